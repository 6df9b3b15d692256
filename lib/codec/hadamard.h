/* Orthonormal rotation H = (1/sqrt n) H_n diag(signs), n = d_head.
 *
 * n = 2^k * m with m in {1, 3, 5, ...}: Hadamard matrices exist for n = 4j at all orders needed here
 * (12, 20, 28 by Paley's constructions, times 2^k); for other n the rotation is the Kronecker product
 * of a power-of-two Hadamard matrix and a small orthonormal DCT. Signs are fixed by n, so that a
 * packed cache can be read by any build. */
#ifndef LK_CODEC_HADAMARD_H
#define LK_CODEC_HADAMARD_H

/* x <- H x and x <- H^T x in place; x: [n], 1 <= n <= LK_MAX_D_HEAD. */
void lk_rotate(float *x, int n);
void lk_unrotate(float *x, int n);

/* The diagonal of signs, [n] of 1 and -1: for powers of two all that H has besides Sylvester's matrix. */
void lk_rotation_signs(float *sign, int n);

#endif
