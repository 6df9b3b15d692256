/* Collects statistics: evaluates a text with a full cache and adds each layer's rows as they come.
 * Memory: that session's cache, and the rows of one evaluation. */
#ifndef LK_LOWRANK_COLLECT_H
#define LK_LOWRANK_COLLECT_H

#include "lowrank/statistics.h"

/* Continue from s->n_tok to the end of tok[0..n_tok), the text that `s` was made for. Statistics
 * are saved to `path` (NULL: never) at the end of a window every ten seconds, and at the end of the
 * text. `progress` counts tokens of the text. After a failure `s` must not be used; the file holds
 * an earlier state. */
lk_status lk_statistics_collect(struct lk_statistics *s, struct lk_model *model, const int32_t *tok,
                                size_t n_tok, const char *path, lk_progress progress, void *user,
                                lk_err *err);

#endif
