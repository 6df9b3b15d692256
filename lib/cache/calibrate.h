/* Channel statistics of a stream, taken once, from the first rows that are about to be coded. */
#ifndef LK_CACHE_CALIBRATE_H
#define LK_CACHE_CALIBRATE_H

#include "cache/cache.h"

/* Room for the statistics that level i needs; where several levels share them, for the widest. */
lk_status lk_equalizer_add(struct lk_kv *kv, int level, struct lk_ledger *ledger, lk_err *err);
void lk_equalizer_free(struct lk_equalizer *equalizer, struct lk_ledger *ledger);
void lk_equalizer_clear(struct lk_equalizer *equalizer);
void lk_equalizer_copy(struct lk_equalizer *to, const struct lk_equalizer *from);
uint64_t lk_equalizer_bytes(const struct lk_equalizer *equalizer);

/* Add the power of queries q [n_tok][n_head][d_head] to the statistics of a stream of K. Of many tokens some
 * are enough for latents, into which queries have to be projected. */
void lk_equalizer_observe(struct lk_kv *kv, const float *q, int n_tok, int n_head, int n_head_kv,
                          int d_head);

/* Take sigma of one part of level `to`, by which rows are divided before the rotation: from n_tile whole
 * tiles of `from`'s level, its rows [at, at + n_tile * LK_TILE), and, for K, from the queries observed.
 * room, rows: scratch as of lk_read_part.
 *
 * The rotation spreads a row's error evenly over channels, so for divisors D the error of a score is
 *
 *     E (q.k^ - q.k)^2 ~ (sum_c D_c^2 E q_c^2) (sum_c E k_c^2 / D_c^2)
 *
 * which is least for D_c = sqrt(rms k_c / rms q_c). The deviation of k is taken about the mean of a tile
 * of LK_TILE rows, because that mean is removed anyway. V has no q: D_c = sqrt(rms v_c). For latents, k and q
 * are what they are in the basis. */
void lk_calibrate(struct lk_kv *kv, int to, int part, int d_head, const struct lk_kernels *kernels,
                  const struct lk_kv *from, int level, int64_t at, int64_t n_tile, float *room,
                  float *rows, size_t stride);

/* Rows [at, at + n) of one part of a level, as they are kept, into x, `stride` floats apart. */
void lk_read_rows(const struct lk_kv *kv, int level, int64_t at, int64_t n, int part,
                  const struct lk_kernels *kernels, float *x, size_t stride);

#endif
