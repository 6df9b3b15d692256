/* What low rank is made from: second moments of a model's K and V rows, and of its queries, over a text.
 *
 * The text is read in windows of n_ctx tokens by a session with an exact f16 cache; each layer's rows are added as
 * they come. Memory: the moments, 8 x heads x d_head x width bytes per layer and side (width: channels of a group of
 * heads), that session's cache, and rows of one step. The text can be of any length.
 *
 * Statistics can be saved after any window and taken up again, by the same reading of the same text. */
#ifndef LK_LOWRANK_STATISTICS_H
#define LK_LOWRANK_STATISTICS_H

#include "engine/engine.h"
#include "lowrank/moments.h"
#include "sidecar/basis.h"

struct lk_statistics_opts {
    int32_t group
        [LK_N_BASIS]; /* KV heads that are crossed with each other; 0: this side is not wanted */
    bool queries;     /* are queries' moments wanted? */
    int32_t n_ctx;    /* tokens of a window, the model's begin token included */
    int32_t skip;     /* rows at a window's begin that are left out: sinks */
};

struct lk_statistics {
    struct lk_ledger *ledger;
    struct lk_statistics_opts opts;
    int32_t n_layer, n_head, n_head_kv, d_head;
    uint64_t key;                        /* of model, options and text */
    uint64_t n_tok;                      /* of the text, read so far */
    struct lk_moments *side[LK_N_BASIS]; /* [n_layer], or NULL */
    struct lk_moments *query;            /* [n_layer], by KV head: all its query heads; or NULL */
};

/* Are statistics of a text of n_tok tokens possible? LK_E_ARG for a group size that does not divide the number of KV
 * heads, windows that make no sense, and a text that is too short. */
lk_status lk_statistics_check(const struct lk_hparams *hp, const struct lk_statistics_opts *opts,
                              size_t n_tok, lk_err *err);

/* Empty statistics for a text tok[0..n_tok); checked as above. *out is owned: lk_statistics_free. */
lk_status lk_statistics_new(struct lk_statistics **out, const struct lk_model *model,
                            const struct lk_statistics_opts *opts, const int32_t *tok, size_t n_tok,
                            struct lk_ledger *ledger, lk_err *err);
void lk_statistics_free(struct lk_statistics *s);

/* Read the text on from where the statistics stand. Every ten seconds, at a window's end, and at the text's end they
 * are saved to `path` (NULL: they are not). `progress` counts tokens of the text. After a failure, statistics must
 * not be used; the file holds those of an earlier moment. */
lk_status lk_statistics_read(struct lk_statistics *s, struct lk_model *model, const int32_t *tok,
                             size_t n_tok, const char *path, lk_progress progress, void *user,
                             lk_err *err);

/* Take up what `path` holds, where there is such a file. LK_E_FORMAT for a damaged one, LK_E_ARG for one of another
 * model, text or options. */
lk_status lk_statistics_resume(struct lk_statistics *s, const char *path, lk_err *err);

/* Save them now; the file appears under its name when it is whole. */
lk_status lk_statistics_save(const struct lk_statistics *s, const char *path, lk_err *err);

#endif
