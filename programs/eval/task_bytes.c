/* Task `bytes`: the memory of a cache of n_ctx tokens by purpose, and that of its process.
 *
 * Each cache is filled by a process of its own, which opens the model, prefills the text as one
 * prompt and reports its peak resident memory. For libllama only the size of the cache is known. */
#include "base/os.h"
#include "eval/task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CTX = 4096, CTX_QUICK = 2048 };

struct bytes_task {
    const struct lk_eval_opts *opts;
    size_t n_ctx;
};

static lk_status open_bytes(const struct lk_task_env *env, struct lk_open_task *out, lk_err *err) {
    lk_status status = lk_task_require_text(env, err);
    if (status) return status;
    struct bytes_task *b = calloc(1, sizeof *b);
    if (!b) return lk_fail(err, LK_E_NOMEM, "no memory for a task");
    b->opts = env->opts;
    b->n_ctx = lk_task_n_ctx(env, CTX, CTX_QUICK);
    *out = (struct lk_open_task){b, 1, (int32_t)b->n_ctx};
    return LK_OK;
}

static void key_bytes(const void *state, size_t i, char *key, size_t cap) {
    (void)i;
    snprintf(key, cap, "%zu tokens", ((const struct bytes_task *)state)->n_ctx);
}

static double cost_bytes(const void *state, size_t i) {
    (void)i;
    return (double)((const struct bytes_task *)state)->n_ctx;
}

static lk_status run_bytes(void *state, size_t i, struct lk_backend *backend, const json_t *full,
                           json_t *record, lk_err *err) {
    (void)i;
    (void)full;
    const struct bytes_task *b = state;
    int32_t *tok = NULL;
    size_t n_tok = 0;
    lk_status status = lk_task_tokenize_text(b->opts, backend->model, b->n_ctx, &tok, &n_tok, err);
    if (!status) status = lk_backend_prefill(backend, tok, b->n_ctx, err);
    free(tok);
    if (status) return status;
    lk_session_stats s = lk_backend_stats(backend);
    json_object_set_new(record, "cache_bytes", json_integer((json_int_t)s.cache_bytes));
    json_object_set_new(record, "f16_bytes", json_integer((json_int_t)s.f16_bytes));
    if (!lk_backend_is_llama(backend->kv)) {
        json_object_set_new(record, "code_bytes", json_integer((json_int_t)s.code_bytes));
        json_object_set_new(record, "scale_bytes", json_integer((json_int_t)s.scale_bytes));
        json_object_set_new(record, "exact_bytes", json_integer((json_int_t)s.exact_bytes));
        json_object_set_new(record, "padding_bytes", json_integer((json_int_t)s.padding_bytes));
        json_object_set_new(record, "state_bytes", json_integer((json_int_t)s.state_bytes));
        json_object_set_new(record, "scratch_bytes", json_integer((json_int_t)s.scratch_bytes));
    }
    if (lk_os_peak_bytes())
        json_object_set_new(record, "peak_resident_bytes",
                            json_integer((json_int_t)lk_os_peak_bytes()));
    return LK_OK;
}

static lk_status summarize_bytes(const void *state, const json_t *records, const json_t *full,
                                 struct lk_task_result *result, lk_err *err) {
    static const char *const field[] = {"code_bytes",    "scale_bytes",   "exact_bytes",
                                        "padding_bytes", "state_bytes",   "cache_bytes",
                                        "f16_bytes",     "scratch_bytes", "peak_resident_bytes"};
    (void)state;
    const json_t *record = json_array_get(records, 0), *first = json_array_get(full, 0);
    for (size_t i = 0; i < sizeof field / sizeof field[0]; i++)
        if (json_object_get(record, field[i]))
            lk_add_metric(result, field[i], lk_record_number(record, field[i]), -1, 1);
    double peak = lk_record_number(record, "peak_resident_bytes"),
           full_peak = lk_record_number(first, "peak_resident_bytes");
    if (full && peak > 0 && full_peak > 0)
        lk_add_metric(result, "peak_saved_bytes", full_peak - peak, -1, 1);
    return lk_task_result_check(result, err);
}

const struct lk_task lk_task_bytes = {
    .name = "bytes",
    .summary = "bytes of the cache and peak memory of the process, on --text",
    .own_process = true,
    .open = open_bytes,
    .close = free,
    .key = key_bytes,
    .cost = cost_bytes,
    .run = run_bytes,
    .summarize = summarize_bytes,
};
