/* Codes of up to 7 bits as bytes, two groups of bytes at a time: `a` and `b` below are two cells that follow one another
 * (of K two octets of tokens, of V two quads of tokens), for two octets of rows side by side. In every plane the
 * field of b follows that of a. */
#ifndef LK_KERNELS_AVX512_CELLS_H
#define LK_KERNELS_AVX512_CELLS_H

#include "codec/cells.h"
#include "kernels/avx512.h"

/* Planes with the fields of a at bits 0 (four) and where struct at says; those of b above them, what
 * else is there belongs to others. Planes that a width lacks are not set. */
struct fields {
    __m512i four, two, one;
};

struct at {
    int two, one;
};

struct pair {
    __m512i a, b;
};

LK_ALWAYS_INLINE __m512i all(int byte) { return _mm512_set1_epi8((char)byte); }

/* Bits of each byte n places to the right; negative n: to the left. */
LK_ALWAYS_INLINE __m512i turn(__m512i v, int n) {
    return n ? _mm512_rorv_epi32(v, _mm512_set1_epi32(n & 31)) : v;
}

/* The same for the lower and the upper half. */
LK_ALWAYS_INLINE __m512i turn2(__m512i v, int n, int upper) {
    return _mm512_rorv_epi32(
        v, _mm512_inserti64x4(_mm512_set1_epi32(n & 31), _mm256_set1_epi32(upper & 31), 1));
}

LK_ALWAYS_INLINE __m512i only(__m512i v, int mask) { return _mm512_and_si512(v, all(mask)); }

/* v where the mask has ones, else base */
LK_ALWAYS_INLINE __m512i merge(__m512i base, __m512i v, int mask) {
    return _mm512_ternarylogic_epi32(all(mask), v, base, 0xca);
}

/* ---- fields to bytes ---- */

/* Codes put together from their fields, then looked up. */
LK_ALWAYS_INLINE struct at plain_at(int bits) { return (struct at){bits & 4, bits & 6}; }

LK_ALWAYS_INLINE struct pair plain_pair(int bits, struct fields f,
                                        const struct lk_avx512_levels *levels) {
    struct pair code;
    if (bits & 4)
        code = (struct pair){f.four, turn(f.four, 4)};
    else if (bits & 2)
        code = (struct pair){f.two, turn(f.two, 2)};
    else
        code = (struct pair){f.one, turn(f.one, 1)};
    if (bits > 5) { /* planes of 4 and 2 bits, or of all three */
        code.a = merge(code.a, f.two, 0x30);
        code.b = merge(code.b, turn(f.two, 2), 0x30);
    }
    int top = 1 << (bits & 6); /* where the single bit goes */
    if (bits & 1 && bits > 1) {
        code.a = merge(code.a, f.one, top);
        code.b = merge(code.b, turn(f.one, 1), top);
    }
    code.a = only(code.a, (1 << bits) - 1);
    code.b = only(code.b, (1 << bits) - 1);
    if (levels->given)
        code = (struct pair){_mm512_shuffle_epi8(levels->a, code.a),
                             _mm512_shuffle_epi8(levels->b, code.b)};
    return code;
}

/* VPERMB looks up six bits and ignores two: tables that know where the fields of a cell are find its level
 * without isolating them. */
#define VBMI __attribute__((target("avx512vbmi")))

LK_ALWAYS_INLINE struct at vbmi_at(int bits) {
    return bits > 4 ? plain_at(bits) : (struct at){0, bits == 3 ? 4 : 0};
}

VBMI LK_ALWAYS_INLINE struct pair vbmi_pair(int bits, struct fields f,
                                            const struct lk_avx512_levels *levels) {
    if (bits > 4) return plain_pair(bits, f, levels);
    __m512i a = bits == 4   ? f.four
                : bits == 3 ? merge(f.two, f.one, 0x30)
                : bits == 2 ? f.two
                            : f.one;
    __m512i b = bits == 4 ? turn(f.four, 4) : a;
    return (struct pair){_mm512_permutexvar_epi8(a, levels->a),
                         _mm512_permutexvar_epi8(b, levels->b)};
}

/* ---- cells of a tile ---- */

typedef struct pair make_pair(int bits, struct fields f, const struct lk_avx512_levels *levels);

LK_ALWAYS_INLINE __m512i load_both(const uint8_t *p, const uint8_t *upper) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)p)),
                              _mm256_loadu_si256((const __m256i *)upper), 1);
}

LK_ALWAYS_INLINE __m512i load_twice(const uint8_t *p) {
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)p));
}

struct planes {
    const uint8_t *four, *two, *one;
};

LK_ALWAYS_INLINE struct planes planes_of(int bits, int d_head, const uint8_t *tile) {
    const uint8_t *two = tile + (bits & 4 ? lk_cells_bytes(4, d_head) : 0);
    return (struct planes){tile, two, two + (bits & 2 ? lk_cells_bytes(2, d_head) : 0)};
}

/* Cells 4 quad .. 4 quad + 3, the octets of tokens: a has octets 0 and 2, b 1 and 3. odd: whether quad is, a constant. */
LK_ALWAYS_INLINE struct pair cells_of_k(int bits, struct planes p, int quad, int odd, struct at at,
                                        const struct lk_avx512_levels *levels, make_pair *make) {
    struct fields f;
    if (bits & 4) f.four = _mm512_loadu_si512(p.four + quad * 64);
    if (bits & 2) f.two = turn2(load_twice(p.two + quad * 32), -at.two, 4 - at.two);
    if (bits & 1)
        f.one = turn2(load_twice(p.one + quad / 2 * 32), 4 * odd - at.one, 4 * odd + 2 - at.one);
    return make(bits, f, levels);
}

/* Cells 8 octet + 2 i and the one after it, quads of tokens, and those of the next octet of channels, side by side; an odd last
 * octet stands beside itself. i: a constant below 4. */
LK_ALWAYS_INLINE struct pair cells_of_v(int bits, struct planes p, int octet, int next, int i,
                                        struct at at, const struct lk_avx512_levels *levels,
                                        make_pair *make) {
    struct fields f;
    if (bits & 4) f.four = load_both(p.four + octet * 128 + i * 32, p.four + next * 128 + i * 32);
    if (bits & 2)
        f.two = turn(load_both(p.two + octet * 64 + i / 2 * 32, p.two + next * 64 + i / 2 * 32),
                     i % 2 * 4 - at.two);
    if (bits & 1) f.one = turn(load_both(p.one + octet * 32, p.one + next * 32), 2 * i - at.one);
    return make(bits, f, levels);
}

#endif
