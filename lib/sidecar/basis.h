/* A basis: a linear projection of a layer's K or V rows to few coordinates that keep most of their
 * energy.
 *
 * The KV heads of a layer are divided into groups of adjacent heads. A group's row x has `width`
 * numbers, the rows of its heads one after the other. It becomes z = down (x - mean), and x is
 * reconstructed as x' = mean + up^T z:
 *
 *   x [width] --down--> z [n_comp] --first r--> z [r] --up--> x' [width]
 *
 * Components are in order of importance, so a lower rank is a prefix of z, and a prefix of the rows
 * of down and up, whose row j belongs to component j. Lowering the rank recomputes nothing
 * (TALE). */
#ifndef LK_SIDECAR_BASIS_H
#define LK_SIDECAR_BASIS_H

#include <stddef.h>
#include <stdint.h>

/* The rows that a basis is for. */
enum lk_basis_side {
    LK_BASIS_K,    /* keys as cached and scored: after RoPE if the model uses RoPE */
    LK_BASIS_KPRE, /* keys before RoPE (Palu) */
    LK_BASIS_V,
    LK_N_BASIS
};

/* The name used in tensor names: "k", "kpre" or "v". Static. */
static inline const char *lk_basis_side_name(enum lk_basis_side side) {
    static const char *const name[LK_N_BASIS] = {
        [LK_BASIS_K] = "k", [LK_BASIS_KPRE] = "kpre", [LK_BASIS_V] = "v"};
    return name[side];
}

/* Numbers of `down` and `up`. */
enum lk_basis_type {
    LK_BASIS_F32,
    LK_BASIS_F16,
    LK_BASIS_Q8, /* signed bytes, times a scale for each row */
    LK_N_BASIS_TYPE
};

/* Bytes of n numbers, without scales. */
static inline size_t lk_basis_numbers_bytes(enum lk_basis_type type, size_t n) {
    return n * (type == LK_BASIS_F32 ? sizeof(float) : type == LK_BASIS_F16 ? sizeof(int16_t) : 1);
}

/* A matrix of each group: [n_group][n_comp][width]. */
struct lk_basis_matrix {
    union {
        const float *f32;
        const uint16_t *f16;
        const int8_t *q8;
        const void *any;
    };
    const float *scale; /* [n_group][n_comp] for LK_BASIS_Q8, otherwise NULL */
};

struct lk_basis {
    int32_t n_group; /* 0: no such basis */
    int32_t width;   /* heads per group x d_head; n_group * width = n_head_kv * d_head */
    int32_t n_comp;  /* components kept, 1 to width */
    enum lk_basis_type type;
    struct lk_basis_matrix down, up; /* the same memory if they are equal: orthonormal */
    const float *mean;               /* [n_group][width], or NULL: zero */
    const int32_t *rank;             /* [n_group] recommended rank, 1 to n_comp */
    /* [n_group][n_comp] sum |x - x'|^2 / sum |x|^2 over the calibration rows, with components
     * 0 to j kept; NULL if it is not kept */
    const float *error;
};

#endif
