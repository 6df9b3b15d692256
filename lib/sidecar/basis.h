/* A basis: coordinates of a layer's K or V rows in which few numbers say almost all.
 *
 * The KV heads of a layer are divided into groups of neighbours. A group's rows x, `width` numbers, its
 * heads one after the other, become z = down (x - mean), and z gives back x ~ mean + up^T z:
 *
 *   x [width] --down--> z [n_comp] --first r--> z [r] --up--> x' [width]
 *
 * Components come in order of importance, so a lower rank is a prefix: of z, and of the rows of down and
 * of up, which both have component j as row j. Nothing is computed again when a rank falls (TALE). */
#ifndef LK_SIDECAR_BASIS_H
#define LK_SIDECAR_BASIS_H

#include <stdint.h>

/* What rows a basis is for. */
enum lk_basis_side {
    LK_BASIS_K,    /* keys as they are cached and scored: after RoPE where the model rotates */
    LK_BASIS_KPRE, /* keys before RoPE (Palu) */
    LK_BASIS_V,
    LK_N_BASIS
};

/* As in tensors' names: "k", "kpre", "v". Static. */
const char *lk_basis_side_name(enum lk_basis_side side);

struct lk_basis {
    int32_t n_group;     /* 0: there is no such basis */
    int32_t width;       /* heads of a group x d_head; n_group * width = n_head_kv * d_head */
    int32_t n_comp;      /* components kept, 1 to width */
    const float *down;   /* [n_group][n_comp][width] */
    const float *up;     /* [n_group][n_comp][width]; `down` itself where that is orthonormal */
    const float *mean;   /* [n_group][width], or NULL: zero */
    const int32_t *rank; /* [n_group] recommended, 1 to n_comp */
    const float *error;  /* [n_group][n_comp] sum |x - x'|^2 / sum |x|^2 over the calibration rows
                             when components 0 to j are kept */
};

#endif
