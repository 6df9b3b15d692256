/* How far attention is from the full cache's while subjects are compared on a text: now and then, in a
 * step's last token, the Hellinger distance in every layer (offline/probe.h).
 *
 * A distance wraps a session's predictor; the other predictors' wraps point at the first one's. */
#ifndef LK_EVAL_DISTANCE_H
#define LK_EVAL_DISTANCE_H

#include "eval/stats.h"
#include "eval/subject.h"
#include "measure/probe.h"

struct lk_distance {
    struct lk_predictor inner;
    struct lk_probe *probe;
    const struct lk_distance *full; /* NULL: this is the full cache */
    size_t n_ctx, at;               /* of the chunk; tokens of it read */
    json_t *rows;                   /* [query][layer] distances; owned */
};

/* Watch `subject`, whose predictor is *predictor, in chunks of n_ctx tokens; *predictor is replaced by one
 * that does. `full`: the full cache's, or NULL for itself. A subject without a session is left alone. */
lk_status lk_distance_begin(struct lk_distance *d, const struct lk_distance *full,
                            struct lk_subject *subject, size_t n_ctx,
                            struct lk_predictor *predictor, lk_err *err);
void lk_distance_end(struct lk_distance *d);

/* Add what was seen to a record, as "hellinger"; nothing for the full cache. */
lk_status lk_distance_record(const struct lk_distance *d, json_t *record, lk_err *err);

/* From records: series hellinger_by_layer and metric hellinger, the mean over layers. */
void lk_distance_summarise(const json_t *records, struct lk_result *result);

#endif
