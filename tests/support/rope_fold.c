/* The fold of slow pairs for tests in C++. */
#include "rope_fold.h"

#include "cache/rope.h"

#include <stdlib.h>
#include <string.h>

int rope_fold(int n_pair, const double *speed, float *basis, float *cosine, float *sine) {
    struct lk_rope *rope = malloc(sizeof *rope);
    lk_rope_init(rope, n_pair, false, 1, speed);
    memcpy(basis, rope->fold.basis, sizeof rope->fold.basis);
    for (int m = 0; m < LK_MAX_FOLD; m++) {
        memcpy(cosine + 2 * m * n_pair, rope->fold.cosine[m], 2 * n_pair * sizeof *cosine);
        memcpy(sine + 2 * m * n_pair, rope->fold.sine[m], 2 * n_pair * sizeof *sine);
    }
    int n_fast = rope->fold.n_fast[LK_MAX_FOLD];
    free(rope);
    return n_fast;
}
