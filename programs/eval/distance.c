#include "eval/distance.h"

#include <stdlib.h>

enum { QUERIES = 8 }; /* of a chunk, spread over its second half */

static void clear(void *self) {
    struct lk_distance *d = self;
    d->at = 0;
    d->inner.clear(d->inner.self);
}

/* Does a step that ends after `end` tokens bring the next query? */
static bool is_query(const struct lk_distance *d, size_t end) {
    size_t half = d->n_ctx / 2, apart = (d->n_ctx - half + QUERIES - 1) / QUERIES;
    return end > half && (d->at <= half || (end - half) / apart > (d->at - half) / apart);
}

static lk_status read(void *self, const int32_t *tok, size_t n, bool all, lk_err *err) {
    struct lk_distance *d = self;
    bool query = is_query(d, d->at + n);
    lk_probe_watch(d->probe, query);
    lk_status status = d->inner.read(d->inner.self, tok, n, all, err);
    d->at += n;
    if (status != LK_OK || !query || !d->full) return status;
    json_t *row = json_array();
    for (int layer = 0; layer < d->probe->n_layer; layer++)
        json_array_append_new(row,
                              lk_json_number(lk_probe_hellinger(d->full->probe, d->probe, layer)));
    return json_array_append_new(d->rows, row) == 0
               ? LK_OK
               : lk_fail(err, LK_E_NOMEM, "no memory for distances");
}

static const float *logits(void *self, int32_t row) {
    struct lk_distance *d = self;
    return d->inner.logits(d->inner.self, row);
}

lk_status lk_distance_begin(struct lk_distance *d, const struct lk_distance *full,
                            struct lk_subject *subject, size_t n_ctx,
                            struct lk_predictor *predictor, lk_err *err) {
    lk_session *session = lk_subject_session(subject);
    *d = (struct lk_distance){.inner = *predictor, .full = full, .n_ctx = n_ctx};
    if (!session) return LK_OK;
    d->rows = json_array();
    if (!d->rows) return lk_fail(err, LK_E_NOMEM, "no memory for distances");
    lk_status status = lk_probe_new(&d->probe, session, err);
    if (status == LK_OK)
        *predictor =
            (struct lk_predictor){.self = d, .clear = clear, .read = read, .logits = logits};
    return status;
}

void lk_distance_end(struct lk_distance *d) {
    lk_probe_free(d->probe);
    json_decref(d->rows);
}

lk_status lk_distance_record(const struct lk_distance *d, json_t *record, lk_err *err) {
    if (!d->full || json_array_size(d->rows) == 0 ||
        json_object_set(record, "hellinger", d->rows) == 0)
        return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "no memory for distances");
}

void lk_distance_summarise(const json_t *records, struct lk_result *result) {
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
        error[layer] = lk_stderr(sum[layer], sum2[layer], (double)n);
    }
    lk_series(result, "hellinger_by_layer", "layer", "Hellinger distance of attention", x, y, error,
              n_layer);
    lk_metric(result, "hellinger", whole / (double)n, lk_stderr(whole, whole2, (double)n), n);
    free(sum);
}
