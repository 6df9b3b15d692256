/* The metrics in the text format of Prometheus. */
#include "serve/metrics.h"

#include <inttypes.h>

static const double bounds[LK_HISTOGRAM_BUCKETS] = {0.01, 0.03, 0.1, 0.3, 1,   2,
                                                    5,    10,   30,  60,  180, 600};

void lk_histogram_add(struct lk_histogram *histogram, double seconds) {
    int i = 0;
    while (i < LK_HISTOGRAM_BUCKETS && seconds > bounds[i]) i++;
    atomic_fetch_add(&histogram->count[i], 1);
    atomic_fetch_add(&histogram->sum_us, seconds > 0 ? (uint64_t)(seconds * 1e6) : 0);
}

_Static_assert(sizeof(struct lk_metrics) % sizeof(atomic_uint_fast64_t) == 0,
               "lk_metrics_add adds them as an array");

void lk_metrics_add(struct lk_metrics *to, const struct lk_metrics *from) {
    atomic_uint_fast64_t *sum = (atomic_uint_fast64_t *)to;
    const atomic_uint_fast64_t *value = (const atomic_uint_fast64_t *)from;
    for (size_t i = 0; i < sizeof *to / sizeof *sum; i++) sum[i] += value[i];
}

static void print_value(struct lk_buf *out, const char *name, const char *type, const char *help,
                        uint64_t value) {
    lk_buf_printf(out, "# HELP lowkey_%s %s\n# TYPE lowkey_%s %s\nlowkey_%s %" PRIu64 "\n", name,
                  help, name, type, name, value);
}

static void print_histogram(struct lk_buf *out, const char *name, const char *help,
                            const struct lk_histogram *histogram) {
    uint64_t sum = 0;
    lk_buf_printf(out, "# HELP lowkey_%s_seconds %s\n# TYPE lowkey_%s_seconds histogram\n", name,
                  help, name);
    for (int i = 0; i < LK_HISTOGRAM_BUCKETS; i++) {
        sum += atomic_load(&histogram->count[i]);
        lk_buf_printf(out, "lowkey_%s_seconds_bucket{le=\"%g\"} %" PRIu64 "\n", name, bounds[i],
                      sum);
    }
    sum += atomic_load(&histogram->count[LK_HISTOGRAM_BUCKETS]);
    lk_buf_printf(out, "lowkey_%s_seconds_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, sum);
    lk_buf_printf(out, "lowkey_%s_seconds_sum %.6f\nlowkey_%s_seconds_count %" PRIu64 "\n", name,
                  1e-6 * (double)atomic_load(&histogram->sum_us), name, sum);
}

void lk_metrics_print(const struct lk_metrics *m, struct lk_buf *out) {
    const struct {
        const char *name, *type, *help;
        const atomic_uint_fast64_t *value;
    } values[] = {
        {"refused_total", "counter", "Requests refused because the server was overloaded.",
         &m->refused},
        {"clients_gone_total", "counter",
         "Clients that disconnected before their response was complete.", &m->disconnected},
        {"prompt_tokens_total", "counter", "Prompt tokens, including reused ones.",
         &m->prompt_tokens},
        {"reused_tokens_total", "counter", "Prompt tokens that a session already held.",
         &m->reused_tokens},
        {"copied_tokens_total", "counter",
         "Reused prompt tokens that came with a copy of another session.", &m->copied_tokens},
        {"answer_tokens_total", "counter", "Decoded tokens.", &m->answer_tokens},
        {"draft_tokens_total", "counter", "Drafted tokens.", &m->draft_tokens},
        {"draft_accepted_total", "counter", "Drafted tokens that were right.", &m->draft_accepted},
        {"changed_calls_total", "counter",
         "Calls that clients sent back in another serialization than the model's.",
         &m->changed_calls},
        {"decode_steps_total", "counter",
         "Decode steps; answer tokens divided by steps is the mean batch size.", &m->decode_steps},
        {"answers_waiting", "gauge", "Answers waiting in the queue.", &m->waiting},
        {"answers_active", "gauge", "Answers running.", &m->active},
        {"answers_parked", "gauge",
         "Answers whose client does not read; they wait outside of the running ones.", &m->parked},
        {"request_bytes", "gauge", "Memory of requests in work, without caches.",
         &m->request_bytes},
        {"request_max_bytes", "gauge", "Limit of request_bytes.", &m->request_max_bytes},
        {"sessions", "gauge", "Sessions in memory, including idle ones.", &m->sessions},
        {"ranks", "gauge", "Processes that divide the caches.", &m->ranks},
        {"cache_bytes", "gauge", "Bytes of cache and scratch memory of all sessions, on rank 0.",
         &m->cache_bytes},
        {"shared_bytes", "gauge", "Part of cache_bytes that sessions share, counted once.",
         &m->shared_bytes},
        {"cache_limit_bytes", "gauge", "Limit of cache_bytes.", &m->max_bytes},
        {"store_hits_total", "counter", "Prompts whose prefix was loaded from the store.",
         &m->store_hits},
        {"store_misses_total", "counter",
         "Prompts with no usable prefix in memory or in the store.", &m->store_misses},
        {"session_loads_total", "counter", "Sessions loaded from disk.", &m->loads},
        {"session_saves_total", "counter", "Sessions saved to disk.", &m->saves},
        {"session_loaded_bytes_total", "counter", "Bytes of loaded session files.",
         &m->loaded_bytes},
        {"session_saved_bytes_total", "counter", "Bytes of saved session files.", &m->saved_bytes},
        {"session_disk_failures_total", "counter", "Failed loads and saves.", &m->disk_failures},
        {"store_removed_total", "counter", "Stored sessions removed to stay within the limit.",
         &m->stored_removed},
        {"store_sessions", "gauge", "Files in the store.", &m->stored},
        {"store_bytes", "gauge", "Bytes of the files in the store.", &m->stored_bytes},
    };
    lk_buf_append_str(out, "# HELP lowkey_responses_total HTTP responses by status class.\n"
                           "# TYPE lowkey_responses_total counter\n");
    for (int i = 2; i < 6; i++)
        lk_buf_printf(out, "lowkey_responses_total{class=\"%dxx\"} %" PRIu64 "\n", i,
                      (uint64_t)atomic_load(&m->answered[i]));
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        print_value(out, values[i].name, values[i].type, values[i].help,
                    atomic_load(values[i].value));
    print_histogram(out, "session_load", "Time to load a session from disk.", &m->load);
    print_histogram(out, "session_save", "Time to save a session to disk.", &m->save);
    print_histogram(out, "queue", "Time a job waited in the queue.", &m->queue);
    print_histogram(out, "prompt", "Time to prefill a prompt.", &m->prompt);
    print_histogram(out, "decode", "Time from the end of prefill to the end of the answer.",
                    &m->decode);
}
