/* Hellinger distances of attention: measured during evaluation, summarized over records. */
#include "eval/hellinger.h"

#include "eval/backend_lowkey.h"

#include <stdlib.h>

enum { N_QUERY = 8 }; /* measured steps per chunk, spread over its second half */

static void measuring_clear(void *self) {
    struct lk_hellinger *h = self;
    h->n_done = 0;
    h->inner.clear(h->inner.self);
}

/* Whether to measure a step that ends after `end` tokens. */
static bool measures_step(const struct lk_hellinger *h, size_t end) {
    size_t half = h->n_ctx / 2, spacing = (h->n_ctx - half + N_QUERY - 1) / N_QUERY;
    return end > half &&
           (h->n_done <= half || (end - half) / spacing > (h->n_done - half) / spacing);
}

static lk_status measuring_eval(void *self, const int32_t *tok, size_t n, bool all, lk_err *err) {
    struct lk_hellinger *h = self;
    bool measured = measures_step(h, h->n_done + n);
    lk_probe_set(h->probe, measured);
    lk_status status = h->inner.eval(h->inner.self, tok, n, all, err);
    h->n_done += n;
    if (status != LK_OK || !measured || !h->full) return status;
    json_t *row = json_array();
    for (int layer = 0; layer < h->n_layer; layer++)
        json_array_append_new(row,
                              lk_json_number(lk_probe_hellinger(h->full->probe, h->probe, layer)));
    return json_array_append_new(h->rows, row) == 0
               ? LK_OK
               : lk_fail(err, LK_E_NOMEM, "no memory for distances");
}

static const float *measuring_logits(void *self, int32_t i) {
    struct lk_hellinger *h = self;
    return h->inner.logits(h->inner.self, i);
}

lk_status lk_hellinger_open(struct lk_hellinger *h, const struct lk_hellinger *full,
                            struct lk_backend *backend, size_t n_ctx, lk_predictor *predictor,
                            lk_err *err) {
    lk_session *session = lk_backend_session(backend);
    *h = (struct lk_hellinger){.inner = *predictor,
                               .full = full,
                               .n_layer = lk_model_get_info(backend->model).n_cached,
                               .n_ctx = n_ctx};
    if (!session) return LK_OK;
    h->rows = json_array();
    if (!h->rows) return lk_fail(err, LK_E_NOMEM, "no memory for distances");
    lk_status status = lk_probe_new(&h->probe, session, err);
    if (status == LK_OK)
        *predictor = (lk_predictor){.self = h,
                                    .clear = measuring_clear,
                                    .eval = measuring_eval,
                                    .logits = measuring_logits};
    return status;
}

void lk_hellinger_close(struct lk_hellinger *h) {
    lk_probe_free(h->probe);
    json_decref(h->rows);
}

lk_status lk_hellinger_record(const struct lk_hellinger *h, json_t *record, lk_err *err) {
    if (!h->full || json_array_size(h->rows) == 0 ||
        json_object_set(record, "hellinger", h->rows) == 0)
        return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "no memory for distances");
}

void lk_hellinger_summarize(const json_t *records, struct lk_task_result *result) {
    json_t *rows = json_object_get(json_array_get(records, 0), "hellinger"), *record, *row;
    size_t n_layer = json_array_size(json_array_get(rows, 0)), n = 0, i, k;
    if (n_layer == 0) return;
    double *sum = calloc(5 * n_layer, sizeof *sum), *sum2 = sum + n_layer, *x = sum2 + n_layer,
           *y = x + n_layer, *error = y + n_layer;
    double whole = 0, whole2 = 0;
    result->failed |= !sum;
    if (!sum) return;
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
