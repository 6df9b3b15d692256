/* How far a backend's attention is from the full cache's, while backends are compared on a text:
 * the Hellinger distance of one token's attention in every layer (lk_probe in lowkey_lab.h), for
 * some steps of a chunk.
 *
 * Works by wrapping the predictor of a session. */
#ifndef LK_EVAL_HELLINGER_H
#define LK_EVAL_HELLINGER_H

#include "eval/backend.h"
#include "eval/stats.h"

struct lk_hellinger {
    lk_predictor inner;
    lk_probe *probe;
    const struct lk_hellinger *full; /* of the full cache; NULL: this is the full cache */
    int32_t n_layer;
    size_t n_ctx, n_done; /* tokens of the chunk, and the ones evaluated so far */
    json_t *rows;         /* [query][layer] distances; owned */
};

/* Attach a probe to `backend` and replace *predictor, the backend's, by one that measures chunks of
 * n_ctx tokens. `full`: the measurement of the full cache; NULL for the full cache itself. Without
 * a session (libllama) *predictor is unchanged. Close it even after a failure. */
lk_status lk_hellinger_open(struct lk_hellinger *h, const struct lk_hellinger *full,
                            struct lk_backend *backend, size_t n_ctx, lk_predictor *predictor,
                            lk_err *err);
void lk_hellinger_close(struct lk_hellinger *h);

/* Add the measured distances to a record as "hellinger". Does nothing for the full cache. */
lk_status lk_hellinger_record(const struct lk_hellinger *h, json_t *record, lk_err *err);

/* Compute the series hellinger_by_layer and the metric hellinger, the mean over layers, from the
 * records. */
void lk_hellinger_summarize(const json_t *records, struct lk_task_result *result);

#endif
