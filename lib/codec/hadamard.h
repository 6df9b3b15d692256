/* The orthonormal rotation H = (1/sqrt n) H_n diag(signs), n = d_head.
 *
 * For n divisible by 4, H_n is a Hadamard matrix at all orders needed here: Sylvester's for powers
 * of two, and Paley's constructions (12, 20, 28, ...) times powers of two. For other n the rotation
 * is the Kronecker product of a small orthonormal DCT and a power-of-two Hadamard matrix. The signs
 * depend only on n, so any build can read a packed cache. */
#ifndef LK_CODEC_HADAMARD_H
#define LK_CODEC_HADAMARD_H

/* x <- H x and x <- H^T x, in place. x: [n], 1 <= n <= LK_MAX_D_HEAD. */
void lk_rotate(float *x, int n);
void lk_unrotate(float *x, int n);

/* Set sign [n] to the diagonal of signs in H, 1 or -1. If n is a power of two, H is Sylvester's
 * matrix times this diagonal. */
void lk_rotation_signs(float *sign, int n);

/* H_n = S (x) W: a small orthogonal matrix S of order `small`, times Sylvester's Hadamard matrix W
 * of order `width`.
 *
 *   SYLVESTER  small = 1
 *   PALEY_1    small = q + 1,     q prime, q = 3 mod 4: S = I + [0 1; -1 Q]
 *   PALEY_2    small = 2 (q + 1), q prime, q = 1 mod 4:
 *              S = C (x) [1 1; 1 -1] + I (x) [1 -1; -1 -1],  C = [0 1; 1 Q]
 *   COSINE     small odd: orthonormal DCT-II
 *
 * Q[i][j] = (j - i | q), the Legendre symbol. */
enum lk_rotation_kind { LK_SYLVESTER, LK_PALEY_1, LK_PALEY_2, LK_COSINE };

struct lk_rotation {
    enum lk_rotation_kind kind;
    int small, width, q;
};

/* The factors of H_n. */
struct lk_rotation lk_rotation_of(int n);

#endif
