/* A compression in progress, for lowrank/compress.c and tests. The interface is in lowkey_lab.h. */
#ifndef LK_LOWRANK_COMPRESS_H
#define LK_LOWRANK_COMPRESS_H

#include "lowrank/fisher.h"
#include "lowrank/layer_basis.h"

struct lk_compress {
    struct lk_ledger ledger;
    struct lk_model *model;
    struct lk_compress_plan plan;
    struct lk_statistics *statistics;         /* NULL without a text */
    struct lk_fisher fisher;                  /* empty if the ranks do not need it */
    struct lk_layer_basis *layer[LK_N_BASIS]; /* [n_layer], NULL until fitted or if not made */
    uint64_t text_hash, n_tok;
    uint64_t n_fitted; /* layers x sides */
};

/* The basis of a layer after lk_compress_fit; n_group == 0 if there is none. Borrowed. */
static inline const struct lk_basis *lk_compress_layer(const struct lk_compress *c, int layer,
                                                       enum lk_basis_side side) {
    static const struct lk_basis none;
    return c->layer[side] ? &c->layer[side][layer].basis : &none;
}

#endif
