/* Codes of latents as the bytes that integer matrix units multiply: codebooks of rot (codec/rot.h)
 * with 2 to 4 bits, doubled and centered. */
#ifndef LK_CUDA_LATENT_CODES_H
#define LK_CUDA_LATENT_CODES_H

#include "cuda/warp.h"

/* Codebooks, 4 entries a word. With 4 bits they are 2 * entry, not centered: they are below 128, so
 * that a permute whose selector has bit 3 set gives 0, because it repeats the sign. What is
 * missing, LATENT_CENTER, is a correction of the sums. */
template <int BITS> struct latent_book;
template <> struct latent_book<2> {
    static constexpr uint32_t t0 = 0x1406faecu, t1 = 0, t2 = 0, t3 = 0; /* -20 -6 6 20 */
};
template <> struct latent_book<3> { /* -43 -27 -15 -5 5 15 27 43 */
    static constexpr uint32_t t0 = 0xfbf1e5d5u, t1 = 0x2b1b0f05u, t2 = 0, t3 = 0;
};
template <> struct latent_book<4> { /* twice 0 8 13 17 21 24 27 30 33 36 39 42 46 50 55 63 */
    static constexpr uint32_t t0 = 0x221a1000u, t1 = 0x3c36302au, t2 = 0x544e4842u,
                              t3 = 0x7e6e645cu;
};
enum { LATENT_CENTER = 63 };

/* Selectors of 8 codes in nibbles -> two registers of 4 bytes. t0: the book's first word, which
 * stays in a register. */
template <int BITS> WF void latent_lookup(const U &x, U *r0, U *r1, const U &t0) {
    typedef latent_book<BITS> b;
    if constexpr (BITS < 4) {
        *r0 = prmt(t0, splat(b::t1), x);
        *r1 = prmt(t0, splat(b::t1), x >> 16);
    } else {
        U y = x ^ 0x88888888u; /* codes 0..7 select from the first half, 8..15 from the second */
        *r0 = prmt(t0, splat(b::t1), x) | prmt(splat(b::t2), splat(b::t3), y);
        *r1 = prmt(t0, splat(b::t1), x >> 16) | prmt(splat(b::t2), splat(b::t3), y >> 16);
    }
}

/* The lane's words of step ks (32 channels) of a tile of K, for tokens 4u + i + 8s. at2, at1: of
 * the planes of 2 or 4 bits, and of 1 bit. */
template <int KB> WF void latent_k_words(S tiles, const U &at2, const U &at1, int ks, U *word) {
    if constexpr (KB == 4) {
#pragma unroll
        for (int x = 0; x < 4; x++)
            word[x] = lds32(tiles, at2 + (uint32_t)(ks * 512 + x / 2 * 64 + x % 2 * 32));
    } else {
        word[0] = lds32(tiles, at2 + (uint32_t)(ks * 256));
        word[1] = lds32(tiles, at2 + (uint32_t)(ks * 256 + 32));
        if constexpr (KB == 3) {
            U w = lds32(tiles, at1 + (uint32_t)(ks * 128));
            word[2] = opaque_u(w & 0x55555555u), word[3] = opaque_u(w & 0xaaaaaaaau);
        }
    }
}

/* Those words -> the 8 codes of token 4u + i + 8s, channels 8j + {0,4,1,5 | 2,6,3,7}. */
template <int KB> WF void latent_k_codes(const U *word, int s, U *r0, U *r1, const U &t0) {
    U x;
    if constexpr (KB == 4) { /* words: (cell even, odd) x (tokens s = 0, 1 | 2, 3) */
        U a = word[s / 2], b = word[2 + s / 2];
        x = s % 2 ? bsel(a >> 4, b, 0x0f0f0f0fu) : bsel(a, b << 4, 0x0f0f0f0fu);
        latent_lookup<4>(x, r0, r1, t0);
    } else {
        U a = word[0], b = word[1];
        if (s == 0) x = bsel(a, b << 4, 0x0f0f0f0fu);
        if (s == 1) x = bsel(a >> 2, b << 2, 0x0f0f0f0fu);
        if (s == 2) x = bsel(a >> 4, b, 0x0f0f0f0fu);
        if (s == 3) x = bsel(a >> 6, b >> 2, 0x0f0f0f0fu);
        if constexpr (KB == 3) { /* the third bit goes to bit 2; bit 3 becomes 0 */
            U w = word[2 + s % 2];
            x = bsel(x, s == 0 ? w << 2 : s == 1 ? w << 1 : s == 2 ? w : w >> 1, 0x33333333u);
        } else {
            x = x & 0x33333333u;
        }
        latent_lookup<KB>(x, r0, r1, t0);
    }
}

#endif
