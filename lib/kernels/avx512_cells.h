/* Unpack codes of up to 7 bits to bytes, 64 at a time. `a` and `b` below are two consecutive cells
 * (octets of tokens of K, quads of tokens of V), each for two octets of rows side by side. In every
 * plane the field of b follows that of a. */
#ifndef LK_KERNELS_AVX512_CELLS_H
#define LK_KERNELS_AVX512_CELLS_H

#include "codec/bitplanes.h"
#include "kernels/avx512.h"

/* Loaded planes. The fields of a are at bit 0 in `four`, and at the bits of struct field_shift in
 * `two` and `one`. Those of b are above them. The other bits belong to other cells. Planes that the
 * codes do not have are not set. */
struct plane_fields {
    __m512i four, two, one;
};

struct field_shift {
    int two, one;
};

struct cell_pair {
    __m512i a, b;
};

LK_ALWAYS_INLINE __m512i set1_u8(int byte) { return _mm512_set1_epi8((char)byte); }

/* Rotate 32-bit lanes, which moves the bits of each byte n places to the right; n < 0: to the
 * left. */
LK_ALWAYS_INLINE __m512i rotate_right(__m512i v, int n) {
    return n ? _mm512_rorv_epi32(v, _mm512_set1_epi32(n & 31)) : v;
}

/* Same as above, by n in the lower half and by `upper` in the upper half. */
LK_ALWAYS_INLINE __m512i rotate_right_2(__m512i v, int n, int upper) {
    return _mm512_rorv_epi32(
        v, _mm512_inserti64x4(_mm512_set1_epi32(n & 31), _mm256_set1_epi32(upper & 31), 1));
}

LK_ALWAYS_INLINE __m512i and_bytes(__m512i v, int mask) {
    return _mm512_and_si512(v, set1_u8(mask));
}

/* Bits of v where the mask is 1, else of base. */
LK_ALWAYS_INLINE __m512i blend_bits(__m512i base, __m512i v, int mask) {
    return _mm512_ternarylogic_epi32(set1_u8(mask), v, base, 0xca);
}

/* ---- fields to bytes ---- */

/* With a trellis: bits of a and b that are an index in the lowest six bits, with anything above. */
LK_ALWAYS_INLINE struct cell_pair trellis_index(int bits, struct plane_fields f) {
    if (bits == 1) return (struct cell_pair){f.one, rotate_right(f.one, 1)};
    if (bits == 2) return (struct cell_pair){f.two, rotate_right(f.two, 2)};
    if (bits > 3) return (struct cell_pair){f.four, rotate_right(f.four, 4)};
    return (struct cell_pair){blend_bits(f.two, f.one, 0x30),
                              blend_bits(rotate_right(f.two, 2), rotate_right(f.one, 1), 0x30)};
}

/* The level of an index without VBMI: one lookup in each quarter of the table. */
LK_ALWAYS_INLINE __m512i lookup_quarters(const __m512i quarter[4], __m512i index) {
    __m512i low = and_bytes(index, 15);
    __mmask64 bit4 = _mm512_test_epi8_mask(index, set1_u8(16)),
              bit5 = _mm512_test_epi8_mask(index, set1_u8(32));
    __m512i lower = _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(quarter[0], low), bit4, quarter[1],
                                             low),
            upper = _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(quarter[2], low), bit4, quarter[3],
                                             low);
    return _mm512_mask_mov_epi8(lower, bit5, upper);
}

LK_ALWAYS_INLINE struct cell_pair plain_trellis_pair(int bits, struct plane_fields f,
                                                     const struct lk_avx512_levels *levels) {
    struct cell_pair index = trellis_index(bits, f);
    return (struct cell_pair){lookup_quarters(levels->of_index, index.a),
                              lookup_quarters(levels->of_index, index.b)};
}

/* Without VBMI: codes are assembled from their fields, then looked up. */
LK_ALWAYS_INLINE struct field_shift plain_shift(int bits) {
    return (struct field_shift){bits & 4, bits & 6};
}

LK_ALWAYS_INLINE struct cell_pair plain_pair(int bits, struct plane_fields f,
                                             const struct lk_avx512_levels *levels) {
    struct cell_pair code;
    if (bits & 4)
        code = (struct cell_pair){f.four, rotate_right(f.four, 4)};
    else if (bits & 2)
        code = (struct cell_pair){f.two, rotate_right(f.two, 2)};
    else
        code = (struct cell_pair){f.one, rotate_right(f.one, 1)};
    if (bits > 5) { /* planes of 4 and 2 bits, or all three */
        code.a = blend_bits(code.a, f.two, 0x30);
        code.b = blend_bits(code.b, rotate_right(f.two, 2), 0x30);
    }
    int top = 1 << (bits & 6); /* value of the code's highest bit */
    if (bits & 1 && bits > 1) {
        code.a = blend_bits(code.a, f.one, top);
        code.b = blend_bits(code.b, rotate_right(f.one, 1), top);
    }
    code.a = and_bytes(code.a, (1 << bits) - 1);
    code.b = and_bytes(code.b, (1 << bits) - 1);
    if (levels->given)
        code = (struct cell_pair){_mm512_shuffle_epi8(levels->a, code.a),
                                  _mm512_shuffle_epi8(levels->b, code.b)};
    return code;
}

/* With VBMI: VPERMB looks up six bits and ignores the other two. Its tables know where the fields
 * of a cell are and find the level without isolating them. */
#define VBMI __attribute__((target("avx512vbmi")))

LK_ALWAYS_INLINE struct field_shift vbmi_shift(int bits) {
    return bits > 4 ? plain_shift(bits) : (struct field_shift){0, bits == 3 ? 4 : 0};
}

VBMI LK_ALWAYS_INLINE struct cell_pair vbmi_pair(int bits, struct plane_fields f,
                                                 const struct lk_avx512_levels *levels) {
    if (bits > 5) return plain_pair(bits, f, levels);
    __m512i a = bits == 5   ? blend_bits(f.four, f.one, 0x10)
                : bits == 4 ? f.four
                : bits == 3 ? blend_bits(f.two, f.one, 0x30)
                : bits == 2 ? f.two
                            : f.one;
    __m512i b = bits == 5   ? blend_bits(rotate_right(f.four, 4), f.one, 0x20)
                : bits == 4 ? rotate_right(f.four, 4)
                            : a;
    return (struct cell_pair){_mm512_permutexvar_epi8(a, levels->a),
                              _mm512_permutexvar_epi8(b, levels->b)};
}

VBMI LK_ALWAYS_INLINE struct cell_pair vbmi_trellis_pair(int bits, struct plane_fields f,
                                                         const struct lk_avx512_levels *levels) {
    struct cell_pair index = trellis_index(bits, f);
    return (struct cell_pair){_mm512_permutexvar_epi8(index.a, levels->of_index[0]),
                              _mm512_permutexvar_epi8(index.b, levels->of_index[0])};
}

/* Codes of 5 to 7 bits as levels around zero, doubled: 2 code - (2^bits - 1). For fewer bits, and
 * for 5 bits with VBMI, the table has done so. */
LK_ALWAYS_INLINE __m512i around_zero(int bits, const struct lk_avx512_levels *levels,
                                     __m512i code) {
    if (bits < 5 || (bits == 5 && levels->given)) return code;
    return _mm512_sub_epi8(_mm512_add_epi8(code, code), set1_u8((1 << bits) - 1));
}

/* How cells of one width are unpacked; constants after inlining. */
struct pair_form {
    int bits;
    struct field_shift shift;
    struct cell_pair (*unpack)(int bits, struct plane_fields f,
                               const struct lk_avx512_levels *levels);
};
typedef struct pair_form pair_form_fn(int bits);

LK_ALWAYS_INLINE struct pair_form plain_form(int bits) {
    return (struct pair_form){bits, plain_shift(bits), plain_pair};
}
LK_ALWAYS_INLINE struct pair_form vbmi_form(int bits) {
    return (struct pair_form){bits, vbmi_shift(bits), vbmi_pair};
}
LK_ALWAYS_INLINE struct pair_form plain_trellis_form(int bits) {
    return (struct pair_form){bits, vbmi_shift(bits), plain_trellis_pair};
}
LK_ALWAYS_INLINE struct pair_form vbmi_trellis_form(int bits) {
    return (struct pair_form){bits, vbmi_shift(bits), vbmi_trellis_pair};
}

/* ---- cells of a tile ---- */

LK_ALWAYS_INLINE __m512i loadu_32_32(const uint8_t *p, const uint8_t *upper) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)p)),
                              _mm256_loadu_si256((const __m256i *)upper), 1);
}

LK_ALWAYS_INLINE __m512i broadcast_32(const uint8_t *p) {
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)p));
}

struct plane_ptrs {
    const uint8_t *four, *two, *one;
};

LK_ALWAYS_INLINE struct plane_ptrs find_planes(int bits, int d_head, const uint8_t *tile) {
    const uint8_t *two = tile + (bits & 4 ? lk_bitplanes_bytes(4, d_head) : 0);
    return (struct plane_ptrs){tile, two, two + (bits & 2 ? lk_bitplanes_bytes(2, d_head) : 0)};
}

/* Cells 4 quad .. 4 quad + 3 of K, the octets of tokens: a has octets 0 and 2, b has 1 and 3. odd:
 * quad % 2, a constant. */
LK_ALWAYS_INLINE struct cell_pair unpack_pair_k(struct pair_form form, struct plane_ptrs p,
                                                int quad, int odd,
                                                const struct lk_avx512_levels *levels) {
    const int bits = form.bits;
    const struct field_shift shift = form.shift;
    struct plane_fields f;
    if (bits & 4) f.four = _mm512_loadu_si512(p.four + quad * 64);
    if (bits & 2)
        f.two = rotate_right_2(broadcast_32(p.two + quad * 32), -shift.two, 4 - shift.two);
    if (bits & 1)
        f.one = rotate_right_2(broadcast_32(p.one + quad / 2 * 32), 4 * odd - shift.one,
                               4 * odd + 2 - shift.one);
    return form.unpack(bits, f, levels);
}

/* Cells 8 octet + 2 i and the next one of V, quads of tokens, next to those of octet `next` of
 * channels. next == octet for an odd last octet, which is then duplicated. i < 4 is a constant. */
LK_ALWAYS_INLINE struct cell_pair unpack_pair_v(struct pair_form form, struct plane_ptrs p,
                                                int octet, int next, int i,
                                                const struct lk_avx512_levels *levels) {
    const int bits = form.bits;
    const struct field_shift shift = form.shift;
    struct plane_fields f;
    if (bits & 4) f.four = loadu_32_32(p.four + octet * 128 + i * 32, p.four + next * 128 + i * 32);
    if (bits & 2)
        f.two = rotate_right(
            loadu_32_32(p.two + octet * 64 + i / 2 * 32, p.two + next * 64 + i / 2 * 32),
            i % 2 * 4 - shift.two);
    if (bits & 1)
        f.one = rotate_right(loadu_32_32(p.one + octet * 32, p.one + next * 32), 2 * i - shift.one);
    struct cell_pair cell = form.unpack(bits, f, levels);
    return (struct cell_pair){around_zero(bits, levels, cell.a), around_zero(bits, levels, cell.b)};
}

#endif
