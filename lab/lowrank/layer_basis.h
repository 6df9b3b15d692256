/* Fits the low-rank bases of K or V for all layers of a model. */
#ifndef LK_LOWRANK_LAYER_BASIS_H
#define LK_LOWRANK_LAYER_BASIS_H

#include "lowrank/compress_plan.h"

/* A layer's basis with all components, until they are truncated. Its arrays share one
 * allocation. */
struct lk_layer_basis {
    struct lk_basis basis; /* its pointers are those below */
    float *down, *up;      /* up == down if both are the same */
    float *mean, *error;   /* mean may be NULL */
    int32_t *rank;
    double *power; /* [n_group] sum |x|^2 */
    void *memory;
    size_t bytes;
};

/* What bases are fitted to. */
struct lk_basis_source {
    const struct lk_compress_plan *plan;
    const struct lk_net *net;
    const struct lk_statistics *statistics; /* NULL without a text */
    struct lk_ledger *ledger;
};

/* Fit the bases of one side: out [n_layer], zeroed. layer_done is called after each layer, with
 * `user`; false cancels. After a failure the caller still frees `out`. */
lk_status lk_fit_layers(struct lk_layer_basis *out, const struct lk_basis_source *source,
                        enum lk_basis_side side, bool (*layer_done)(void *user), void *user,
                        lk_err *err);
void lk_layer_basis_free(struct lk_layer_basis *b, struct lk_ledger *ledger);

/* Keep only the components that the ranks of some group need. */
void lk_layer_basis_truncate(struct lk_layer_basis *b);

/* The basis with numbers of another type, in memory of `ledger` and borrowing what does not change.
 * Free *mem [*bytes], which is for LK_FOR_OTHER, after the basis. LK_E_NOMEM. */
lk_status lk_layer_basis_pack(const struct lk_layer_basis *b, enum lk_basis_type type,
                              struct lk_ledger *ledger, struct lk_basis *out, void **mem,
                              size_t *bytes, lk_err *err);

/* Share of the power of the layer's rows that is lost at its ranks. */
double lk_layer_basis_loss(const struct lk_layer_basis *b);

#endif
