/* Counters, gauges and histograms of the server, in the text format of Prometheus. */
#ifndef LK_SERVE_METRICS_H
#define LK_SERVE_METRICS_H

#include "base/buf.h"

#include <stdatomic.h>
#include <stdint.h>

enum { LK_HISTOGRAM_BUCKETS = 12 };

/* A histogram of seconds. */
struct lk_histogram {
    atomic_uint_fast64_t count[LK_HISTOGRAM_BUCKETS + 1]; /* the last one is above all bounds */
    atomic_uint_fast64_t sum_us;
};

struct lk_metrics {
    atomic_uint_fast64_t answered[6];  /* responses by status / 100 */
    atomic_uint_fast64_t refused;      /* requests refused because the server was overloaded */
    atomic_uint_fast64_t disconnected; /* clients that disconnected before their reply was sent */
    atomic_uint_fast64_t prompt_tokens, reused_tokens, copied_tokens, answer_tokens;
    atomic_uint_fast64_t draft_tokens, draft_accepted;
    atomic_uint_fast64_t changed_calls; /* of earlier answers, see serve/call_store.h */
    atomic_uint_fast64_t decode_steps;  /* batched forward passes that decoded */
    atomic_uint_fast64_t waiting, active, sessions, cache_bytes, shared_bytes, max_bytes, parked,
        request_bytes, request_max_bytes, ranks;   /* current values */
    atomic_uint_fast64_t store_hits, store_misses; /* prompts without a prefix in memory */
    atomic_uint_fast64_t loads, saves, loaded_bytes, saved_bytes; /* sessions of all kinds */
    atomic_uint_fast64_t disk_failures, stored_removed;
    atomic_uint_fast64_t stored, stored_bytes; /* current values of the store */
    struct lk_histogram queue, prompt, decode, load, save;
};

/* All members are counters of one type. */
void lk_metrics_add(struct lk_metrics *to, const struct lk_metrics *from);

void lk_histogram_add(struct lk_histogram *histogram, double seconds);

/* Append all metrics to `out`. */
void lk_metrics_print(const struct lk_metrics *metrics, struct lk_buf *out);

#endif
