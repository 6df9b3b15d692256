/* The fold of slow pairs (cache/rope.h) for tests in C++, which cannot include that header. */
#ifndef LK_TESTS_ROPE_FOLD_H
#define LK_TESTS_ROPE_FOLD_H

/* Functions and coefficients for n_pair pairs with these speeds and magnitude 1: basis [4][128],
 * cosine, sine [4][2 n_pair]. Returns the number of pairs that are too fast for four functions. */
int rope_fold(int n_pair, const double *speed, float *basis, float *cosine, float *sine);

#endif
