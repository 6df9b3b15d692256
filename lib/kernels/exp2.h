/* The exponential of softmax and GELU: exp(x) = 2^(x log2 e), and 2^x = 2^k 2^r with k an integer
 * and
 * r| <= 1/2. */
#ifndef LK_KERNELS_EXP2_H
#define LK_KERNELS_EXP2_H

static const float lk_log2e = 1.44269504f;

/* For x <= this, 2^x is not a normal float and becomes 0. */
static const float lk_exp2_min = -126.0f;

/* 2^r ~ sum of lk_exp2[i] r^i: degree 5, exact at 0, maximum relative error 1.1e-7. */
static const float lk_exp2[6] = {
    1.0f, 6.931469776e-01f, 2.402224209e-01f, 5.550733743e-02f, 9.671512640e-03f, 1.326472720e-03f};

#endif
