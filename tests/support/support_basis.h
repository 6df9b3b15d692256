/* Bases of latents for tests, made from nothing. */
#ifndef LK_TESTS_SUPPORT_BASIS_H
#define LK_TESTS_SUPPORT_BASIS_H

#include "sidecar/basis.h"
#include "support.h"

/* A random basis of n_group groups of `width` channels with n_comp components; orthonormal, or skew: down
 * and up differ, and are each other's inverse at full rank. rank: what it recommends, for each group. With
 * or without a mean. Free it with free_basis. */
struct lk_basis random_basis(struct random *r, int n_group, int width, int n_comp, int rank,
                             int skew, int mean);
void free_basis(struct lk_basis *basis);

#endif
