/* Rows of a basis's matrices as floats, whatever type they are stored in, and compact copies. */
#ifndef LK_CACHE_BASIS_ROWS_H
#define LK_CACHE_BASIS_ROWS_H

#include "sidecar/basis.h"

enum lk_basis_factor { LK_BASIS_DOWN, LK_BASIS_UP };

/* Convert n numbers, a multiple of 4. Half floats are finite. */
void lk_basis_halves_to_floats(const uint16_t *x, int n, float *out);
void lk_basis_bytes_to_floats(const int8_t *x, int n, float scale, float *out);

/* Channels [first, first + n) of row `comp` of a group's matrix: a pointer into the basis if it
 * holds floats, otherwise buf [n], to which they are converted. n is a multiple of 4. */
static inline const float *lk_basis_row(const struct lk_basis *basis, enum lk_basis_factor factor,
                                        int group, int comp, int first, int n, float *buf) {
    const struct lk_basis_matrix *x = factor == LK_BASIS_DOWN ? &basis->down : &basis->up;
    size_t row = (size_t)group * basis->n_comp + comp, at = row * basis->width + first;
    if (basis->type == LK_BASIS_F32) return x->f32 + at;
    if (basis->type == LK_BASIS_F16)
        lk_basis_halves_to_floats(x->f16 + at, n, buf);
    else
        lk_basis_bytes_to_floats(x->q8 + at, n, x->scale[row], buf);
    return buf;
}

/* A copy of the first n_comp components: its matrices and scales lie in `mem`, of
 * lk_basis_copy_bytes and aligned to 64 bytes. The mean and the ranks are borrowed from `of`, and
 * errors are not kept. */
size_t lk_basis_copy_bytes(const struct lk_basis *of, int n_comp);
struct lk_basis lk_basis_copy(const struct lk_basis *of, int n_comp, void *mem);

/* Numbers x [n_row][n] as LK_BASIS_F16 or LK_BASIS_Q8: out [n_row][n], and scale [n_row] for Q8.
 * Each row has one scale, and its largest magnitude becomes 127. */
void lk_basis_pack(enum lk_basis_type type, const float *x, size_t n_row, size_t n, void *out,
                   float *scale);

#endif
