#include "serve/metrics.h"

#include <inttypes.h>

static const double bounds[LK_BUCKETS] = {0.01, 0.03, 0.1, 0.3, 1, 2, 5, 10, 30, 60, 180, 600};

void lk_times_add(struct lk_times *times, double seconds) {
    int i = 0;
    while (i < LK_BUCKETS && seconds > bounds[i]) i++;
    atomic_fetch_add(&times->count[i], 1);
    atomic_fetch_add(&times->micros, seconds > 0 ? (uint64_t)(seconds * 1e6) : 0);
}

static void print_one(struct lk_buf *out, const char *name, const char *type, const char *help,
                      uint64_t value) {
    lk_buf_print(out, "# HELP lowkey_%s %s\n# TYPE lowkey_%s %s\nlowkey_%s %" PRIu64 "\n", name,
                 help, name, type, name, value);
}

static void print_times(struct lk_buf *out, const char *name, const char *help,
                        const struct lk_times *times) {
    uint64_t sum = 0;
    lk_buf_print(out, "# HELP lowkey_%s_seconds %s\n# TYPE lowkey_%s_seconds histogram\n", name,
                 help, name);
    for (int i = 0; i < LK_BUCKETS; i++) {
        sum += atomic_load(&times->count[i]);
        lk_buf_print(out, "lowkey_%s_seconds_bucket{le=\"%g\"} %" PRIu64 "\n", name, bounds[i],
                     sum);
    }
    sum += atomic_load(&times->count[LK_BUCKETS]);
    lk_buf_print(out, "lowkey_%s_seconds_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, sum);
    lk_buf_print(out, "lowkey_%s_seconds_sum %.6f\nlowkey_%s_seconds_count %" PRIu64 "\n", name,
                 1e-6 * (double)atomic_load(&times->micros), name, sum);
}

void lk_metrics_print(const struct lk_metrics *m, struct lk_buf *out) {
    lk_buf_text(out, "# HELP lowkey_responses_total Responses by the class of their status.\n# "
                     "TYPE lowkey_responses_total counter\n");
    for (int i = 2; i < 6; i++)
        lk_buf_print(out, "lowkey_responses_total{class=\"%dxx\"} %" PRIu64 "\n", i,
                     (uint64_t)atomic_load(&m->answered[i]));
    print_one(out, "refused_total", "counter", "Requests turned away for want of room.",
              atomic_load(&m->refused));
    print_one(out, "clients_gone_total", "counter",
              "Clients that left before their answer was whole.", atomic_load(&m->gone));
    print_one(out, "prompt_tokens_total", "counter", "Tokens of prompts, those reused included.",
              atomic_load(&m->prompt_tokens));
    print_one(out, "reused_tokens_total", "counter", "Tokens of prompts that a session still held.",
              atomic_load(&m->reused_tokens));
    print_one(out, "copied_tokens_total", "counter",
              "Of the reused ones, those that came with a copy of another session.",
              atomic_load(&m->copied_tokens));
    print_one(out, "answer_tokens_total", "counter", "Tokens of answers.",
              atomic_load(&m->answer_tokens));
    print_one(out, "decode_steps_total", "counter",
              "Decoding steps; answer tokens over steps is the mean batch.",
              atomic_load(&m->decode_steps));
    print_one(out, "answers_waiting", "gauge", "Answers not begun yet.", atomic_load(&m->waiting));
    print_one(out, "answers_active", "gauge", "Answers being made.", atomic_load(&m->active));
    print_one(out, "sessions", "gauge", "Sessions kept, idle ones included.",
              atomic_load(&m->sessions));
    print_one(out, "cache_bytes", "gauge", "Bytes that all sessions hold, by their ledgers.",
              atomic_load(&m->cache_bytes));
    print_one(out, "shared_bytes", "gauge",
              "Of these, bytes that sessions hold together, counted once.",
              atomic_load(&m->shared_bytes));
    print_one(out, "cache_limit_bytes", "gauge", "Bytes that all sessions may hold.",
              atomic_load(&m->max_bytes));
    print_one(out, "store_hits_total", "counter",
              "Prompts whose beginning was loaded from the store.", atomic_load(&m->store_hits));
    print_one(out, "store_misses_total", "counter",
              "Prompts of which neither memory nor the store held a beginning.",
              atomic_load(&m->store_misses));
    print_one(out, "session_loads_total", "counter", "Sessions loaded from disk.",
              atomic_load(&m->loads));
    print_one(out, "session_saves_total", "counter", "Sessions saved to disk.",
              atomic_load(&m->saves));
    print_one(out, "session_loaded_bytes_total", "counter", "Bytes of the files loaded.",
              atomic_load(&m->loaded_bytes));
    print_one(out, "session_saved_bytes_total", "counter", "Bytes of the files saved.",
              atomic_load(&m->saved_bytes));
    print_one(out, "session_disk_failures_total", "counter", "Loads and saves that did not work.",
              atomic_load(&m->disk_failures));
    print_one(out, "store_removed_total", "counter", "Stored sessions removed to hold the limit.",
              atomic_load(&m->stored_removed));
    print_one(out, "store_sessions", "gauge", "Files in the store.", atomic_load(&m->stored));
    print_one(out, "store_bytes", "gauge", "Bytes of the files in the store.",
              atomic_load(&m->stored_bytes));
    print_times(out, "session_load", "Time to load a session from disk.", &m->load);
    print_times(out, "session_save", "Time to save a session to disk.", &m->save);
    print_times(out, "queue", "Time from the request to the beginning of work on an answer.",
                &m->queue);
    print_times(out, "prompt", "Time to read a prompt.", &m->prompt);
    print_times(out, "decode", "Time from the prompt read to the end of the answer.", &m->decode);
}
