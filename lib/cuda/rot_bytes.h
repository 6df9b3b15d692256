/* Codes of rot with a Lloyd-Max codebook (codec/rot.h) of 2 to 4 bits as the bytes that integer
 * matrix units multiply: entries of the codebook, doubled and centered. */
#ifndef LK_CUDA_ROT_BYTES_H
#define LK_CUDA_ROT_BYTES_H

#include "cuda/warp.h"

/* Codebooks, 4 entries a word. With 4 bits they are not centered: they are below 128, so that a
 * permute whose selector has bit 3 set gives 0, because it repeats the sign. What is missing,
 * rot_center, is a correction of the sums. */
template <int BITS> struct rot_book;
template <> struct rot_book<2> { /* -20 -6 6 20 */
    static constexpr uint32_t t0 = 0x1406faecu, t1 = 0, t2 = 0, t3 = 0;
};
template <> struct rot_book<3> { /* -43 -27 -15 -5 5 15 27 43 */
    static constexpr uint32_t t0 = 0xfbf1e5d5u, t1 = 0x2b1b0f05u, t2 = 0, t3 = 0;
};
template <> struct rot_book<4> { /* twice 0 8 13 17 21 24 27 30 33 36 39 42 46 50 55 63 */
    static constexpr uint32_t t0 = 0x221a1000u, t1 = 0x3c36302au, t2 = 0x544e4842u,
                              t3 = 0x7e6e645cu;
};
constexpr int rot_center(int bits) { return bits == 4 ? 63 : 0; }

/* Selectors of 8 codes in nibbles -> two registers of 4 bytes. t0: the book's first word, which
 * stays in a register. */
template <int BITS> WF void rot_lookup(const U &x, U *r0, U *r1, const U &t0) {
    typedef rot_book<BITS> b;
    if constexpr (BITS < 4) {
        *r0 = prmt(t0, splat(b::t1), x);
        *r1 = prmt(t0, splat(b::t1), x >> 16);
    } else {
        U y = x ^ 0x88888888u; /* codes 0..7 select from the first half, 8..15 from the second */
        *r0 = prmt(t0, splat(b::t1), x) | prmt(splat(b::t2), splat(b::t3), y);
        *r1 = prmt(t0, splat(b::t1), x >> 16) | prmt(splat(b::t2), splat(b::t3), y >> 16);
    }
}

/* Words of four tiles of K (codec/bitplanes.h) -> the 8 codes of row 4 u + i + 8 s, of channels
 * 8 j + {0, 4, 1, 5 | 2, 6, 3, 7}; i is the word's place in its piece of 16 bytes. word(n): of 4
 * bits those of (even, odd c / 4) x (rows of s = 0, 1 | 2, 3); else two of the 2-bit plane, and of
 * 3 bits the even and the odd bits of the third plane. */
template <int KB, class WORD> WF void rot_k_bytes(WORD word, int s, U *r0, U *r1, const U &t0) {
    U x;
    if constexpr (KB == 4) {
        U a = word(s / 2), b = word(2 + s / 2);
        x = s % 2 ? bsel(a >> 4, b, 0x0f0f0f0fu) : bsel(a, b << 4, 0x0f0f0f0fu);
    } else {
        U a = word(0), b = word(1);
        if (s == 0) x = bsel(a, b << 4, 0x0f0f0f0fu);
        if (s == 1) x = bsel(a >> 2, b << 2, 0x0f0f0f0fu);
        if (s == 2) x = bsel(a >> 4, b, 0x0f0f0f0fu);
        if (s == 3) x = bsel(a >> 6, b >> 2, 0x0f0f0f0fu);
        if constexpr (KB == 3) { /* bit s of each nibble of the third plane goes to bit 2 */
            U w = word(2 + s % 2);
            x = bsel(x, s == 0 ? w << 2 : s == 1 ? w << 1 : s == 2 ? w : w >> 1, 0x33333333u);
        } else {
            x = x & 0x33333333u;
        }
    }
    rot_lookup<KB>(x, r0, r1, t0);
}

/* A word of V, a channel's 16 rows or 8 with 4 bits -> bytes, r [4 or 2]. third: of 3 bits, the
 * rows' bits of the third plane. */
template <int VB> WF void rot_v_bytes(const U &w, const U &third, U *r, const U &t0) {
    if constexpr (VB == 4) {
        rot_lookup<4>(w, &r[0], &r[1], t0);
    } else {
        U even = w & 0x33333333u, odd = (w >> 2) & 0x33333333u;
        if constexpr (VB == 3) {
            even |= ((third << 2) & 0x04040404u) | ((third << 4) & 0x40404040u);
            odd |= ((third << 1) & 0x04040404u) | ((third << 3) & 0x40404040u);
        }
        rot_lookup<VB>(even, &r[0], &r[1], t0);
        rot_lookup<VB>(odd, &r[2], &r[3], t0);
    }
}

#endif
