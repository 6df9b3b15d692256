/* Positive random features of the softmax's kernel (FAVOR+; Choromanski et al. 2020, Lemma 1), for LESS's comparison
 * with features that nobody trained:
 *
 *   exp(scale q.k) = E phi(q) phi(k),   phi(x)_r = exp(sqrt(scale) w_r.x - scale |x|^2 / 2) / sqrt(R)
 *
 * over w_r ~ N(0, 1)^d_head. All heads have the same directions, which are orthogonal with lengths as of normal draws. */
#ifndef LK_ABSORB_PERFORMER_H
#define LK_ABSORB_PERFORMER_H

#include <stddef.h>
#include <stdint.h>

/* Directions w [n_feature][d_head] of `seed`; n_feature <= d_head. */
void lk_performer_draw(uint64_t seed, int n_feature, int d_head, float *w);

/* Features of a query or a key x [d_head], into out [n_feature]. Exponents are held at 40, so that products are finite. */
void lk_performer_features(const float *w, int n_feature, int d_head, float scale, const float *x,
                           float *out);

#endif
