/* Task `text`: perplexity, and KL against the full cache, of the predictions in the second half of
 * every chunk.
 *
 * Chunks and scored positions are those of llama-perplexity (-c N), so perplexities are comparable.
 * Chunks are evaluated in small steps through the cache itself. */
#include "eval/backend.h"
#include "eval/task.h"
#include "lowkey_lab.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Hellinger distances ----
 *
 * How far a backend's attention is from the full cache's, while backends are compared on a text:
 * the Hellinger distance of one token's attention in every layer (lk_probe in lowkey_lab.h), for
 * some steps of a chunk.
 *
 * Works by wrapping the predictor of a session. */

struct hellinger {
    lk_predictor inner;
    lk_probe *probe;
    const struct hellinger *full; /* of the full cache; NULL: this is the full cache */
    int32_t n_layer;
    size_t n_ctx, n_done; /* tokens of the chunk, and the ones evaluated so far */
    json_t *rows;         /* [query][layer] distances; owned */
};

enum { N_QUERY = 8 }; /* measured steps per chunk, spread over its second half */

static void measuring_clear(void *self) {
    struct hellinger *h = self;
    h->n_done = 0;
    h->inner.clear(h->inner.self);
}

/* Whether to measure a step that ends after `end` tokens. */
static bool measures_step(const struct hellinger *h, size_t end) {
    size_t half = h->n_ctx / 2, spacing = (h->n_ctx - half + N_QUERY - 1) / N_QUERY;
    return end > half &&
           (h->n_done <= half || (end - half) / spacing > (h->n_done - half) / spacing);
}

static lk_status measuring_eval(void *self, const int32_t *tok, size_t n, bool all, lk_err *err) {
    struct hellinger *h = self;
    bool measured = measures_step(h, h->n_done + n);
    lk_probe_set(h->probe, measured);
    lk_status status = h->inner.eval(h->inner.self, tok, n, all, err);
    h->n_done += n;
    if (status || !measured || !h->full) return status;
    json_t *row = json_array();
    for (int layer = 0; layer < h->n_layer; layer++)
        json_array_append_new(row,
                              lk_json_number(lk_probe_hellinger(h->full->probe, h->probe, layer)));
    return json_array_append_new(h->rows, row) == 0
               ? LK_OK
               : lk_fail(err, LK_E_NOMEM, "no memory for distances");
}

static const float *measuring_logits(void *self, int32_t i) {
    struct hellinger *h = self;
    return h->inner.logits(h->inner.self, i);
}

/* Attach a probe to `backend` and replace *predictor, the backend's, by one that measures chunks of
 * n_ctx tokens. `full`: the measurement of the full cache; NULL for the full cache itself. Without
 * a session (libllama) *predictor is unchanged. Close it even after a failure. */
static lk_status hellinger_open(struct hellinger *h, const struct hellinger *full,
                                struct lk_backend *backend, size_t n_ctx, lk_predictor *predictor,
                                lk_err *err) {
    lk_session *session = lk_backend_session(backend);
    *h = (struct hellinger){.inner = *predictor,
                            .full = full,
                            .n_layer = lk_model_get_info(backend->model).n_cached,
                            .n_ctx = n_ctx};
    if (!session) return LK_OK;
    h->rows = json_array();
    if (!h->rows) return lk_fail(err, LK_E_NOMEM, "no memory for distances");
    lk_status status = lk_probe_new(&h->probe, session, err);
    if (!status)
        *predictor = (lk_predictor){.self = h,
                                    .clear = measuring_clear,
                                    .eval = measuring_eval,
                                    .logits = measuring_logits};
    return status;
}

static void hellinger_close(struct hellinger *h) {
    lk_probe_free(h->probe);
    json_decref(h->rows);
}

/* Add the measured distances to a record as "hellinger". Does nothing for the full cache. */
static lk_status hellinger_record(const struct hellinger *h, json_t *record, lk_err *err) {
    if (!h->full || json_array_size(h->rows) == 0 ||
        json_object_set(record, "hellinger", h->rows) == 0)
        return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "no memory for distances");
}

/* Compute the series hellinger_by_layer and the metric hellinger, the mean over layers, from the
 * records. */
static void hellinger_summarize(const json_t *records, struct lk_task_result *result) {
    json_t *rows = json_object_get(json_array_get(records, 0), "hellinger"), *record, *row;
    size_t n_layer = json_array_size(json_array_get(rows, 0)), n = 0, i, k;
    if (n_layer == 0) return;
    double *sum = calloc(5 * n_layer, sizeof *sum), whole = 0, whole2 = 0;
    result->failed |= !sum;
    if (!sum) return;
    double *sum2 = sum + n_layer, *x = sum2 + n_layer, *y = x + n_layer, *error = y + n_layer;
    json_array_foreach((json_t *)records, k, record) {
        json_array_foreach(json_object_get(record, "hellinger"), i, row) {
            double mean = 0;
            for (size_t layer = 0; layer < n_layer; layer++) {
                double d = json_number_value(json_array_get(row, layer));
                sum[layer] += d;
                sum2[layer] += d * d;
                mean += d / (double)n_layer;
            }
            whole += mean;
            whole2 += mean * mean;
            n++;
        }
    }
    for (size_t layer = 0; layer < n_layer; layer++) {
        x[layer] = (double)layer;
        y[layer] = sum[layer] / (double)n;
        error[layer] = lk_standard_error(sum[layer], sum2[layer], (double)n);
    }
    lk_add_series(result, "hellinger_by_layer", "layer", "Hellinger distance of attention", x, y,
                  error, n_layer);
    lk_add_metric(result, "hellinger", whole / (double)n,
                  lk_standard_error(whole, whole2, (double)n), n);
    free(sum);
}

/* ---- the task ---- */

/* Tokens of a step. The rows of a recipe age between steps. libllama quantizes each row
 * immediately, whatever the step. Its attention is several times faster from 64 queries on if K and
 * V are f16. */
enum { STEP = 32, STEP_LLAMA = 128 };

enum { CTX = 4096, CTX_QUICK = 2048, CHUNKS = 4, CHUNKS_QUICK = 1, N_BIN = 16 };

struct text_task {
    const lk_model *model;
    int32_t *tok;   /* the whole text */
    int32_t *chunk; /* [n_ctx] the current chunk */
    size_t n_ctx, n_scored;
};

static void close_text(void *state) {
    struct text_task *t = state;
    free(t->chunk);
    free(t->tok);
    free(t);
}

static lk_status open_text(const struct lk_task_env *env, struct lk_open_task *out, lk_err *err) {
    size_t n_tok = 0, n_ctx = lk_task_n_ctx(env, CTX, CTX_QUICK);
    lk_status status = lk_task_require_text(env, err);
    if (status) return status;
    if (n_ctx < 4)
        return lk_fail(err, LK_E_ARG,
                       "text: a context of %zu tokens cannot be scored; give at least 4", n_ctx);
    struct text_task *t = calloc(1, sizeof *t);
    if (t) t->chunk = malloc(n_ctx * sizeof *t->chunk);
    if (!t || !t->chunk) status = lk_fail(err, LK_E_NOMEM, "no memory for a text");
    if (!status) status = lk_task_tokenize_text(env->opts, env->model, n_ctx, &t->tok, &n_tok, err);
    if (status) {
        if (t) close_text(t);
        return status;
    }
    t->model = env->model;
    t->n_ctx = n_ctx;
    t->n_scored = lk_compare_n_scored(n_ctx);
    *out = (struct lk_open_task){t, lk_task_limit(env, n_tok / n_ctx, CHUNKS, CHUNKS_QUICK),
                                 (int32_t)n_ctx};
    return LK_OK;
}

static void key_text(const void *state, size_t i, char *key, size_t cap) {
    snprintf(key, cap, "%zu tokens, chunk %zu", ((const struct text_task *)state)->n_ctx, i);
}

static double cost_text(const void *state, size_t i) {
    (void)i;
    return 4 * (double)((const struct text_task *)state)->n_ctx; /* small steps and all logits */
}

/* Add the predictions of a chunk to its record. */
static bool write_scores(json_t *record, const lk_prediction *score, size_t n, bool full) {
    json_t *nll = json_array(), *kl = json_array();
    char *same = malloc(n + 1);
    bool good = nll && kl && same;
    for (size_t i = 0; good && i < n; i++) {
        good = json_array_append_new(nll, lk_json_number(score[i].nll)) == 0;
        if (good && !full) good = json_array_append_new(kl, lk_json_number(score[i].kl)) == 0;
        same[i] = score[i].same ? '1' : '0';
    }
    if (good) same[n] = 0;
    good = good && json_object_set(record, "nll", nll) == 0;
    if (good && !full)
        good = json_object_set(record, "kl", kl) == 0 &&
               json_object_set_new(record, "same", json_string(same)) == 0;
    free(same);
    json_decref(kl);
    json_decref(nll);
    return good;
}

static lk_status run_text(void *state, size_t i, struct lk_backend *const *backend, size_t n,
                          json_t *const *record, lk_err *err) {
    struct text_task *t = state;
    size_t n_vocab = backend[0]->n_vocab,
           n_step = lk_backend_is_llama(backend[0]->kv) ? STEP_LLAMA : STEP;
    lk_predictor *predictor = calloc(n, sizeof *predictor);
    struct hellinger *distance = calloc(n, sizeof *distance);
    lk_prediction **score = calloc(n, sizeof *score), *all = calloc(n * t->n_scored, sizeof *all);
    lk_status status = predictor && distance && score && all
                           ? LK_OK
                           : lk_fail(err, LK_E_NOMEM, "no memory for a chunk");
    for (size_t j = 0; !status && j < n; j++) {
        predictor[j] = lk_backend_predictor(backend[j]);
        score[j] = all + j * t->n_scored;
        status = hellinger_open(&distance[j], j ? &distance[0] : NULL, backend[j], t->n_ctx,
                                &predictor[j], err);
    }
    if (!status) {
        memcpy(t->chunk, t->tok + i * t->n_ctx, t->n_ctx * sizeof *t->chunk);
        lk_compare_set_bos(t->model, t->chunk);
        lk_compare_text chunk = {
            .tok = t->chunk, .n_ctx = t->n_ctx, .n_step = n_step, .n_vocab = n_vocab};
        status = lk_compare_chunk(predictor, n, &chunk, score, err);
    }
    for (size_t j = 0; !status && j < n; j++) {
        json_object_set_new(record[j], "seconds", json_real(predictor[j].seconds));
        if (!write_scores(record[j], score[j], t->n_scored, j == 0))
            status = lk_fail(err, LK_E_NOMEM, "no memory for a chunk's scores");
        if (!status) status = hellinger_record(&distance[j], record[j], err);
    }
    for (size_t j = 0; distance && j < n; j++) hellinger_close(&distance[j]);
    free(distance);
    free(all);
    free(score);
    free(predictor);
    return status;
}

/* The predictions of all records, in order. NULL if there is no memory or a record is damaged. */
static lk_prediction *read_scores(const struct text_task *t, const json_t *records, bool full) {
    size_t n_record = json_array_size(records);
    lk_prediction *score = calloc(n_record * t->n_scored, sizeof *score);
    for (size_t r = 0; score && r < n_record; r++) {
        const json_t *record = json_array_get(records, r), *nll = json_object_get(record, "nll"),
                     *kl = json_object_get(record, "kl");
        const char *same = json_string_value(json_object_get(record, "same"));
        bool complete =
            json_array_size(nll) == t->n_scored &&
            (full || (json_array_size(kl) == t->n_scored && same && strlen(same) == t->n_scored));
        for (size_t i = 0; complete && i < t->n_scored; i++) {
            const json_t *a = json_array_get(nll, i), *b = json_array_get(kl, i);
            score[r * t->n_scored + i] =
                (lk_prediction){.nll = json_is_number(a) ? (float)json_number_value(a) : NAN,
                                .kl = full                ? 0
                                      : json_is_number(b) ? (float)json_number_value(b)
                                                          : NAN,
                                .same = full || same[i] == '1'};
        }
        if (complete) continue;
        free(score);
        return NULL;
    }
    return score;
}

/* Mean KL of the predictions by the number of tokens before them. */
static void add_kl_by_depth(const struct text_task *t, const lk_prediction *score, size_t n_chunk,
                            struct lk_task_result *result) {
    double x[N_BIN], y[N_BIN], error[N_BIN];
    size_t n_bin = t->n_scored < N_BIN ? t->n_scored : N_BIN;
    for (size_t b = 0; b < n_bin; b++) {
        size_t from = b * t->n_scored / n_bin, to = (b + 1) * t->n_scored / n_bin;
        double sum = 0, sum2 = 0, n = (double)((to - from) * n_chunk);
        for (size_t c = 0; c < n_chunk; c++)
            for (size_t i = from; i < to; i++) {
                double kl = score[c * t->n_scored + i].kl;
                sum += kl;
                sum2 += kl * kl;
            }
        x[b] = (double)(t->n_ctx / 2) + 0.5 * (double)(from + to);
        y[b] = sum / n;
        error[b] = lk_standard_error(sum, sum2, n);
    }
    lk_add_series(result, "kl_by_depth", "tokens before the prediction", "KL (nats)", x, y, error,
                  n_bin);
}

static lk_status summarize_text(const void *state, const json_t *records, const json_t *full,
                                struct lk_task_result *result, lk_err *err) {
    const struct text_task *t = state;
    size_t n_chunk = json_array_size(records), n = n_chunk * t->n_scored;
    lk_prediction *score = read_scores(t, records, full == NULL);
    if (!score)
        return lk_fail(err, LK_E_FORMAT,
                       "text: the results file has damaged chunks; give another -o");
    if (full) add_kl_by_depth(t, score, n_chunk, result);
    lk_compare_result r = lk_compare_summarize(score, n, n_chunk);
    lk_add_metric(result, "ppl", r.ppl, r.ppl_stderr, n);
    if (n_chunk > 1) lk_add_metric(result, "ppl_by_chunk", r.ppl, r.ppl_chunk_stderr, n_chunk);
    if (full) {
        if (n_chunk > 1)
            lk_add_metric(result, "kl_by_chunk", r.kl_mean, r.kl_chunk_stderr, n_chunk);
        lk_add_metric(result, "kl_mean", r.kl_mean, r.kl_stderr, n);
        lk_add_metric(result, "kl_median", r.kl_median, -1, n);
        lk_add_metric(result, "kl_p99", r.kl_p99, -1, n);
        lk_add_metric(result, "kl_p999", r.kl_p999, -1, n);
        lk_add_metric(result, "top1", r.top1,
                      lk_standard_error(r.top1 * (double)n, r.top1 * (double)n, (double)n), n);
        hellinger_summarize(records, result);
    }
    free(score);
    return LK_OK;
}

const struct lk_task lk_task_text = {
    .name = "text",
    .summary = "perplexity and KL against the full cache on --text",
    .has_noise_floor = true,
    .open = open_text,
    .close = close_text,
    .key = key_text,
    .cost = cost_text,
    .run_group = run_text,
    .summarize = summarize_text,
};
