/* Channel statistics of K or V of one layer. They are computed once, from the first rows that are
 * about to be encoded; until then rows stay exact.
 *
 * A rotation spreads the error of a row evenly over its channels. If channels are divided by D
 * before the rotation, the error of a score is about (sum D^2 E q^2)(sum E k^2 / D^2), and
 * D = sqrt(rms k / rms q) minimizes it. The mean of every 32 rows is subtracted from K first: on
 * models with large K biases this decides whether 3 bits work at all. */
#ifndef LK_CACHE_EQUALIZER_H
#define LK_CACHE_EQUALIZER_H

#include "base/err.h"
#include "cache/kv.h"

/* Allocate the statistics that a level needs. Levels that share them get room for the widest one.
 * LK_E_NOMEM. */
lk_status lk_equalizer_add(struct lk_kv *kv, int level, struct lk_ledger *ledger, lk_err *err);
void lk_equalizer_free(struct lk_equalizer *equalizer, struct lk_ledger *ledger);
void lk_equalizer_clear(struct lk_equalizer *equalizer);
void lk_equalizer_copy(struct lk_equalizer *to, const struct lk_equalizer *from);

/* Until sigma is computed, record the power of the queries after each token of calls of up to n_tok
 * tokens; then free the record. False without memory. */
bool lk_equalizer_record(struct lk_equalizer *equalizer, int n_tok, struct lk_ledger *ledger);

/* Forget the queries after token `tok` of the last call, if they were recorded. */
void lk_equalizer_go_back(struct lk_equalizer *equalizer, int tok);

/* Bytes of sigma, which are also those of the power of queries. */
size_t lk_equalizer_array_bytes(const struct lk_equalizer *equalizer);

/* Bytes of the arrays that are allocated. */
uint64_t lk_equalizer_bytes(const struct lk_equalizer *equalizer);

/* Add the power of queries q [n_tok][n_head][d_head] to the statistics of K. Queries have to be
 * projected for levels of latents, so only some tokens of a long call are used there. */
void lk_equalizer_observe(struct lk_kv *kv, const float *q, int n_tok, int n_head);

/* Compute sigma of one part of level `to`: its rows are divided by sigma before they are rotated.
 * range: the rows to use, whole tiles. For K the observed queries are used too. scratch, x and
 * stride as in lk_rows_read_for, room for LK_TILE rows.
 *
 * The rotation spreads a row's error evenly over channels. With divisors D the error of a score is
 *
 *     E (q.k^ - q.k)^2 ~ (sum_c D_c^2 E q_c^2) (sum_c E k_c^2 / D_c^2)
 *
 * and D_c = sqrt(rms k_c / rms q_c) minimizes it. The deviation of k is taken about the mean of a
 * tile of LK_TILE rows, because codecs remove that mean. V has no q: D_c = sqrt(rms v_c). For
 * latents, k and q are meant in the basis. */
void lk_equalizer_calibrate(struct lk_kv *kv, int to, int part, const struct lk_row_range *range,
                            const struct lk_kernels *kernels, float *scratch, float *x,
                            size_t stride);

#endif
