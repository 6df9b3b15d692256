/* Counters of what was served, in Prometheus' text form. */
#ifndef LK_SERVE_METRICS_H
#define LK_SERVE_METRICS_H

#include "base/buf.h"

#include <stdatomic.h>
#include <stdint.h>

enum { LK_BUCKETS = 12 };

/* A histogram of seconds. */
struct lk_times {
    atomic_uint_fast64_t count[LK_BUCKETS + 1]; /* up to each bound, and beyond the last */
    atomic_uint_fast64_t micros;
};

struct lk_metrics {
    atomic_uint_fast64_t answered[6]; /* responses by the hundreds of their status */
    atomic_uint_fast64_t refused;     /* requests turned away for want of room */
    atomic_uint_fast64_t gone;        /* clients that left before their answer was whole */
    atomic_uint_fast64_t prompt_tokens, reused_tokens, copied_tokens, answer_tokens;
    atomic_uint_fast64_t decode_steps; /* passes over the weights that made tokens */
    atomic_uint_fast64_t waiting, active, sessions, cache_bytes, shared_bytes, max_bytes; /* now */
    atomic_uint_fast64_t store_hits,
        store_misses; /* prompts that no session in memory helped with */
    atomic_uint_fast64_t loads, saves, loaded_bytes, saved_bytes, disk_failures,
        stored_removed;                        /* sessions, all kinds */
    atomic_uint_fast64_t stored, stored_bytes; /* now, in the store */
    struct lk_times queue, prompt, decode, load, save;
};

void lk_times_add(struct lk_times *times, double seconds);

void lk_metrics_print(const struct lk_metrics *metrics, struct lk_buf *out);

#endif
