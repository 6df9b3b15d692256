/* Weights replaced by their factors (Palu, appendix C, Eq. 3-6).
 *
 * If rows y = W x of K or V are only used through a basis, z = down y, then W is never needed:
 *
 *   z = A x + down b,   A = down W      A: [sum of ranks][n_embd] instead of W: [n_kv][n_embd]
 *
 * A file's matrix may hold the rows of several projections; it is then divided into those of q, k
 * and v. A bias is treated like a matrix with one column. The up-projection and the mean of the
 * basis are left to the cache and to attention (cache/project.h).
 *
 * A is computed from dequantized weights. It is held in Q8_0 if these are quantized, because a
 * second quantization costs more than the first: the basis and the other weights do not make up for
 * it. SmolLM2 (Q4_1), bases of full rank from `lowkey compress --svd plain --rank 100%`, 191
 * predictions on Persuasion: KL 0.082 with Q4_1, 0.004 with Q8_0, and 0.004 with f16 or with the
 * weights themselves, from the rounding of activations. */
#ifndef LK_MODEL_FACTOR_H
#define LK_MODEL_FACTOR_H

#include "model/adapter.h"

/* The down-projection of one layer's K or V: z_g = down_g y_g for each group g of `width` rows of
 * W. */
struct lk_factor {
    int n_group, width;
    const int32_t *rank; /* [n_group] components that are kept; NULL: W is not replaced */
    /* Row `comp` of the down-projection of a group: a pointer to `width` floats, in buf [width] or
     * elsewhere. Only called while the model is loaded. */
    const float *(*down)(const void *user, int group, int comp, float *buf);
    const void *user;
};

/* Rows of A: the latents of a token. */
int64_t lk_factor_rows(const struct lk_factor *factor);

/* What becomes of rows of a matrix in the file. */
enum lk_row_use { LK_ROWS_KEPT, LK_ROWS_REPLACED, LK_ROWS_SKIPPED };

struct lk_row_segment {
    enum lk_row_use use;
    int64_t n;                        /* rows in the file */
    const struct lk_factor *factor;   /* of replaced rows */
    const struct lk_adapter *adapter; /* added to the file's rows before all else, or NULL */
};

/* Rows that are left of the segment. */
int64_t lk_segment_rows(const struct lk_row_segment *segment);

/* out [lk_factor_rows][n_col] = down w, for w [n_group * width][n_col]. Sums are in double.
 * buf: [width] */
void lk_factor_apply(const struct lk_factor *factor, const float *w, int64_t n_col, float *buf,
                     float *out);

#endif
