/* Names of the kinds of rows that have a basis. */
#include "sidecar/basis.h"

const char *lk_basis_side_name(enum lk_basis_side side) {
    static const char *const name[LK_N_BASIS] = {
        [LK_BASIS_K] = "k", [LK_BASIS_KPRE] = "kpre", [LK_BASIS_V] = "v"};
    return name[side];
}
