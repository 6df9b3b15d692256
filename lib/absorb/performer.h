/* Positive random features of the softmax kernel (FAVOR+; Choromanski et al. 2020, "Rethinking
 * Attention with Performers", Lemma 1). They serve as an untrained baseline for LESS:
 *
 *   exp(scale q.k) = E phi(q) phi(k)
 *   phi(x)_r = exp(sqrt(scale) w_r.x - scale |x|^2 / 2) / sqrt(R),   w_r ~ N(0, 1)^d_head
 *
 * All heads use the same directions w_r. They are orthogonal, and their lengths are those of normal
 * vectors. */
#ifndef LK_ABSORB_PERFORMER_H
#define LK_ABSORB_PERFORMER_H

#include <stddef.h>
#include <stdint.h>

/* Draw directions w [n_feature][d_head] from `seed`; n_feature <= d_head. */
void lk_performer_draw(uint64_t seed, int n_feature, int d_head, float *w);

/* Features out [n_feature] of a query or a key x [d_head]. Exponents are capped at 40 to keep
 * products finite. */
void lk_performer_features(const float *w, int n_feature, int d_head, float scale, const float *x,
                           float *out);

#endif
