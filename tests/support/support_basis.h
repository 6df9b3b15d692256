/* Random latent bases for tests. */
#ifndef LK_TESTS_SUPPORT_BASIS_H
#define LK_TESTS_SUPPORT_BASIS_H

#include "sidecar/basis.h"
#include "support.h"

#include <stdbool.h>

/* A random basis: n_group groups of `width` channels with n_comp components each.
 *   skew   down and up differ, and are each other's inverse at full rank; otherwise both are the
 *          same orthonormal matrix
 *   mean   with a random mean
 *   rank   the recommended rank of every group
 * Free with free_basis. */
struct lk_basis random_basis(struct random *r, int n_group, int width, int n_comp, int rank,
                             bool skew, bool mean);
void free_basis(struct lk_basis *basis);

#endif
