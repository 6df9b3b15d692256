/* bytes: what a cache of n_ctx tokens holds, by purpose, and the memory of a process that reads them.
 *
 * Each cache is read into by a process of its own, which opens the model, reads the text as one prompt and
 * says the most memory it ever had resident. Of libllama's caches only their size is known. */
#include "eval/tasks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CTX = 4096, CTX_QUICK = 2048 };

struct bytes {
    const struct lk_eval_opts *opts;
    size_t n_ctx;
};

static lk_status open_bytes(const struct lk_task_env *env, struct lk_task_set *set, lk_err *err) {
    lk_status status = lk_task_need_text(env, err);
    if (status != LK_OK) return status;
    struct bytes *b = calloc(1, sizeof *b);
    if (!b) return lk_fail(err, LK_E_NOMEM, "no memory for a task");
    b->opts = env->opts;
    b->n_ctx = env->opts->n_ctx ? (size_t)env->opts->n_ctx : env->opts->quick ? CTX_QUICK : CTX;
    *set = (struct lk_task_set){b, 1, (int32_t)b->n_ctx};
    return LK_OK;
}

static void key_bytes(const void *state, size_t i, char *key, size_t cap) {
    (void)i;
    snprintf(key, cap, "%zu tokens", ((const struct bytes *)state)->n_ctx);
}

static double cost_bytes(const void *state, size_t i) {
    (void)i;
    return (double)((const struct bytes *)state)->n_ctx;
}

/* The most memory this process ever had resident, in bytes; 0 where the system does not say. */
static uint64_t peak_resident(void) {
    char line[256];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmHWM: %llu kB", &kib) == 1) break;
    if (file) fclose(file);
    return (uint64_t)kib * 1024;
}

static lk_status run_bytes(void *state, size_t i, struct lk_subject *subject, const json_t *full,
                           json_t *record, lk_err *err) {
    (void)i;
    (void)full;
    const struct bytes *b = state;
    int32_t *tok = NULL;
    size_t n_tok = 0;
    lk_status status =
        lk_task_tokenize(subject->model, b->opts->text, b->opts->text_len, &tok, &n_tok, err);
    if (status == LK_OK && n_tok < b->n_ctx)
        status = lk_fail(
            err, LK_E_ARG,
            "%s has %zu tokens, fewer than the context of %zu; give a longer text or a smaller -c",
            b->opts->text_path, n_tok, b->n_ctx);
    if (status == LK_OK) status = lk_subject_prompt(subject, tok, b->n_ctx, err);
    free(tok);
    if (status != LK_OK) return status;
    lk_session_stats s = lk_subject_stats(subject);
    json_object_set_new(record, "cache_bytes", json_integer((json_int_t)s.cache_bytes));
    json_object_set_new(record, "f16_bytes", json_integer((json_int_t)s.f16_bytes));
    if (!lk_subject_is_llama(subject->kv)) {
        json_object_set_new(record, "code_bytes", json_integer((json_int_t)s.code_bytes));
        json_object_set_new(record, "scale_bytes", json_integer((json_int_t)s.scale_bytes));
        json_object_set_new(record, "exact_bytes", json_integer((json_int_t)s.exact_bytes));
        json_object_set_new(record, "padding_bytes", json_integer((json_int_t)s.padding_bytes));
        json_object_set_new(record, "state_bytes", json_integer((json_int_t)s.state_bytes));
        json_object_set_new(record, "scratch_bytes", json_integer((json_int_t)s.scratch_bytes));
    }
    if (peak_resident())
        json_object_set_new(record, "peak_resident_bytes",
                            json_integer((json_int_t)peak_resident()));
    return LK_OK;
}

static lk_status summarise_bytes(const void *state, const json_t *records, const json_t *full,
                                 struct lk_result *result, lk_err *err) {
    static const char *const field[] = {"code_bytes",    "scale_bytes",   "exact_bytes",
                                        "padding_bytes", "state_bytes",   "cache_bytes",
                                        "f16_bytes",     "scratch_bytes", "peak_resident_bytes"};
    (void)state;
    const json_t *record = json_array_get(records, 0), *first = json_array_get(full, 0);
    for (size_t i = 0; i < sizeof field / sizeof field[0]; i++)
        if (json_object_get(record, field[i]))
            lk_metric(result, field[i], lk_record_number(record, field[i]), -1, 1);
    double peak = lk_record_number(record, "peak_resident_bytes"),
           most = lk_record_number(first, "peak_resident_bytes");
    if (full && peak > 0 && most > 0) lk_metric(result, "peak_saved_bytes", most - peak, -1, 1);
    return lk_result_check(result, err);
}

const struct lk_task lk_task_bytes = {
    .name = "bytes",
    .summary = "what the cache holds, and the process's peak memory, on --text",
    .own_process = true,
    .open = open_bytes,
    .close = free,
    .key = key_bytes,
    .cost = cost_bytes,
    .run = run_bytes,
    .summarise = summarise_bytes,
};
