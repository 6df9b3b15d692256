/* Statistics of a model on a text, from which low-rank bases are computed: second moments of the K
 * and V rows and of the queries.
 *
 * Statistics can be saved after any window of the text, and continued later on the same text.
 * Memory per layer and side: 8 x n_head_kv x d_head x width bytes, with `width` the channels of a
 * group of heads. The text can have any length. */
#ifndef LK_LOWRANK_STATISTICS_H
#define LK_LOWRANK_STATISTICS_H

#include "engine/session_state.h"
#include "lowrank/moments.h"
#include "sidecar/basis.h"

struct lk_statistics_opts {
    int32_t group[LK_N_BASIS]; /* KV heads per group; 0: this side is not collected */
    bool queries;              /* also collect the queries */
    /* Weight each row of V by k^T M k: the mean square of its key's scores with the queries so far,
     * whose second moment is M. Needs the queries and K. */
    bool scored;
    int32_t n_ctx;  /* tokens of a window, the begin-of-sequence token included */
    int32_t n_skip; /* first rows of a window to ignore: attention sinks */
};

struct lk_statistics {
    struct lk_ledger *ledger;
    struct lk_statistics_opts opts;
    int32_t n_layer, n_head, n_head_kv, d_head;
    uint64_t key;                        /* hash of model, options and text */
    uint64_t n_text, n_tok;              /* tokens of the text, and those collected so far */
    struct lk_moments *side[LK_N_BASIS]; /* [n_layer], or NULL */
    struct lk_moments *query; /* [n_layer] by KV head, over all its query heads; or NULL */
};

/* Check the options for a text of n_tok tokens. LK_E_ARG if a group size does not divide the number
 * of KV heads, if the window is impossible, or if the text is too short. */
lk_status lk_statistics_check(const struct lk_hparams *hp, const struct lk_statistics_opts *opts,
                              size_t n_tok, lk_err *err);

/* Empty statistics for the text tok[0..n_tok); also checks. *out is owned: lk_statistics_free. */
lk_status lk_statistics_new(struct lk_statistics **out, const struct lk_model *model,
                            const struct lk_statistics_opts *opts, const int32_t *tok, size_t n_tok,
                            struct lk_ledger *ledger, lk_err *err);
void lk_statistics_free(struct lk_statistics *s);

/* Save to `path`, which appears only when it is complete. */
lk_status lk_statistics_save(const struct lk_statistics *s, const char *path, lk_err *err);

/* Load from `path` if the file exists. LK_E_FORMAT if it is damaged, LK_E_ARG if it belongs to
 * another model, text or options. */
lk_status lk_statistics_load(struct lk_statistics *s, const char *path, lk_err *err);

/* ---- collecting ----
 *
 * Evaluates a text with a full cache and adds each layer's rows as they come.
 * Memory: that session's cache, and the rows of one evaluation. */

/* Continue from s->n_tok to the end of tok[0..n_tok), the text that `s` was made for. Statistics
 * are saved to `path` (NULL: never) at the end of a window every ten seconds, and at the end of the
 * text. `progress` counts tokens of the text. After a failure `s` must not be used; the file holds
 * an earlier state. */
lk_status lk_statistics_collect(struct lk_statistics *s, struct lk_model *model, const int32_t *tok,
                                size_t n_tok, const char *path, lk_progress progress, void *user,
                                lk_err *err);

#endif
