/* The exponential of the softmaxes: exp(x) = 2^(x log2 e), and 2^x = 2^k 2^r with k whole and |r| <= 1/2. */
#ifndef LK_KERNELS_EXP2_H
#define LK_KERNELS_EXP2_H

static const float lk_log2e = 1.44269504f;

/* From here down results are less than the least normal float and become 0. */
static const float lk_exp2_min = -126.0f;

/* 2^r ~ the sum of lk_exp2[i] r^i: of degree 5, exact at 0, with a largest relative error of 1.1e-7. */
static const float lk_exp2[6] = {
    1.0f, 6.931469776e-01f, 2.402224209e-01f, 5.550733743e-02f, 9.671512640e-03f, 1.326472720e-03f};

#endif
