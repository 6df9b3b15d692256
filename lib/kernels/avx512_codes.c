/* Unpacks tiles for the AVX-512 kernels, and quantizes weights of values. */
#include "kernels/avx512_cells.h"
#include "kernels/avx512_dot.h"

static void plain_levels(int bits, const uint8_t *table, struct lk_avx512_levels *out) {
    out->trellis = false;
    out->given = table && bits <= 4;
    if (out->given)
        out->a = out->b = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table));
}

static void plain_trellis_levels(const uint8_t *table, struct lk_avx512_levels *out) {
    out->given = out->trellis = true;
    for (int i = 0; i < 4; i++)
        out->of_index[i] =
            _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(table + 16 * i)));
}

static void vbmi_trellis_levels(const uint8_t *table, struct lk_avx512_levels *out) {
    out->given = out->trellis = true;
    out->of_index[0] = _mm512_loadu_si512(table);
}

/* Code of cell a (or b) for each index of six bits that the lookup of vbmi_pair sees. */
static __m512i code_of_index(int bits, __m512i index, bool b) {
    if (bits == 5) return blend_bits(and_bytes(index, 15), rotate_right(index, b ? 1 : 0), 16);
    __m512i low = rotate_right(index, !b || bits == 4 ? 0 : bits == 1 ? 1 : 2);
    if (bits != 3) return and_bytes(low, (1 << bits) - 1);
    return blend_bits(and_bytes(low, 3), rotate_right(index, b ? 3 : 2), 4);
}

VBMI static void vbmi_levels(int bits, const uint8_t *table, struct lk_avx512_levels *out) {
    uint8_t byte[64] = {0};
    out->trellis = false;
    out->given = bits <= 5;
    if (!out->given) return;
    for (int i = 0; i < 64; i++) byte[i] = (uint8_t)i;
    __m512i index = _mm512_loadu_si512(byte), level = index;
    if (table) level = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)table));
    out->a = _mm512_permutexvar_epi8(code_of_index(bits, index, false), level);
    out->b = _mm512_permutexvar_epi8(code_of_index(bits, index, true), level);
}

/* ---- tiles ---- */

LK_ALWAYS_INLINE void unpack_k(struct pair_form form, int d_head, const void *tile,
                               const struct lk_avx512_levels *levels, uint8_t *cells) {
    struct plane_ptrs p = find_planes(form.bits, d_head, tile);
    for (int quad = 0; quad < d_head / 4; quad += 2) {
        LK_UNROLL
        for (int i = 0; i < 2; i++) {
            struct cell_pair out = unpack_pair_k(form, p, quad + i, i, levels);
            _mm512_store_si512(cells + (quad + i) * 128, out.a);
            _mm512_store_si512(cells + (quad + i) * 128 + 64, out.b);
        }
    }
}

LK_ALWAYS_INLINE void unpack_v(struct pair_form form, int d_head, const void *tile,
                               const struct lk_avx512_levels *levels, int c0, int c1,
                               uint8_t *cells, size_t stride) {
    struct plane_ptrs p = find_planes(form.bits, d_head, tile);
    for (int octet = c0 / 8; octet < c1 / 8; octet += 2, cells += stride) {
        int next = octet + (octet + 1 < d_head / 8);
        LK_UNROLL
        for (int i = 0; i < 4; i++) {
            struct cell_pair out = unpack_pair_v(form, p, octet, next, i, levels);
            _mm512_store_si512(cells + i * 128, out.a);
            _mm512_store_si512(cells + i * 128 + 64, out.b);
        }
    }
}

static void copy_v_bytes(int d_head, const uint8_t *tile, int c0, int c1, uint8_t *cells,
                         size_t stride) {
    for (int octet = c0 / 8; octet < c1 / 8; octet += 2, cells += stride) {
        int next = octet + (octet + 1 < d_head / 8);
        for (int quad = 0; quad < 8; quad++) {
            __m512i x = loadu_32_32(tile + (octet * 8 + quad) * 32, tile + (next * 8 + quad) * 32);
            _mm512_store_si512(cells + quad * 64, _mm512_xor_si512(x, set1_u8(128)));
        }
    }
}

/* unpack_k and unpack_v with a constant number of bits. */
LK_ALWAYS_INLINE const uint8_t *unpack_k_bits(pair_form_fn *form, int bits, int d_head,
                                              const void *tile,
                                              const struct lk_avx512_levels *levels, uint8_t *cells,
                                              enum lk_avx512_order *order) {
    *order = bits == 8 ? LK_OCTETS_01_23 : LK_OCTETS_02_13;
    switch (bits) {
    case 1: unpack_k(form(1), d_head, tile, levels, cells); return cells;
    case 2: unpack_k(form(2), d_head, tile, levels, cells); return cells;
    case 3: unpack_k(form(3), d_head, tile, levels, cells); return cells;
    case 4: unpack_k(form(4), d_head, tile, levels, cells); return cells;
    case 5: unpack_k(form(5), d_head, tile, levels, cells); return cells;
    case 6: unpack_k(form(6), d_head, tile, levels, cells); return cells;
    case 7: unpack_k(form(7), d_head, tile, levels, cells); return cells;
    default: return tile;
    }
}

LK_ALWAYS_INLINE void unpack_v_bits(pair_form_fn *form, int bits, int d_head, const void *tile,
                                    const struct lk_avx512_levels *levels, int c0, int c1,
                                    uint8_t *cells, size_t stride) {
    switch (bits) {
    case 1: unpack_v(form(1), d_head, tile, levels, c0, c1, cells, stride); return;
    case 2: unpack_v(form(2), d_head, tile, levels, c0, c1, cells, stride); return;
    case 3: unpack_v(form(3), d_head, tile, levels, c0, c1, cells, stride); return;
    case 4: unpack_v(form(4), d_head, tile, levels, c0, c1, cells, stride); return;
    case 5: unpack_v(form(5), d_head, tile, levels, c0, c1, cells, stride); return;
    case 6: unpack_v(form(6), d_head, tile, levels, c0, c1, cells, stride); return;
    case 7: unpack_v(form(7), d_head, tile, levels, c0, c1, cells, stride); return;
    default: copy_v_bytes(d_head, tile, c0, c1, cells, stride);
    }
}

static const uint8_t *plain_k(int bits, int d_head, const void *tile,
                              const struct lk_avx512_levels *levels, uint8_t *cells,
                              enum lk_avx512_order *order) {
    if (levels->trellis)
        return unpack_k_bits(plain_trellis_form, bits, d_head, tile, levels, cells, order);
    return unpack_k_bits(plain_form, bits, d_head, tile, levels, cells, order);
}

static void plain_v(int bits, int d_head, const void *tile, const struct lk_avx512_levels *levels,
                    int c0, int c1, uint8_t *cells, size_t stride) {
    if (levels->trellis)
        unpack_v_bits(plain_trellis_form, bits, d_head, tile, levels, c0, c1, cells, stride);
    else
        unpack_v_bits(plain_form, bits, d_head, tile, levels, c0, c1, cells, stride);
}

VBMI static const uint8_t *vbmi_k(int bits, int d_head, const void *tile,
                                  const struct lk_avx512_levels *levels, uint8_t *cells,
                                  enum lk_avx512_order *order) {
    if (levels->trellis)
        return unpack_k_bits(vbmi_trellis_form, bits, d_head, tile, levels, cells, order);
    return unpack_k_bits(vbmi_form, bits, d_head, tile, levels, cells, order);
}

VBMI static void vbmi_v(int bits, int d_head, const void *tile,
                        const struct lk_avx512_levels *levels, int c0, int c1, uint8_t *cells,
                        size_t stride) {
    if (levels->trellis)
        unpack_v_bits(vbmi_trellis_form, bits, d_head, tile, levels, c0, c1, cells, stride);
    else
        unpack_v_bits(vbmi_form, bits, d_head, tile, levels, c0, c1, cells, stride);
}

const struct lk_avx512_unpack lk_avx512_unpack = {
    .levels = plain_levels, .trellis_levels = plain_trellis_levels, .k = plain_k, .v = plain_v};
const struct lk_avx512_unpack lk_avx512vbmi_unpack = {
    .levels = vbmi_levels, .trellis_levels = vbmi_trellis_levels, .k = vbmi_k, .v = vbmi_v};

/* ---- weights ---- */

LK_ALWAYS_INLINE void quantize_all(const float *p, size_t stride, int n, const __m512 scale[2],
                                   bool fine, struct lk_avx512_weights *out) {
    uint8_t(*byte)[2 * LK_TILE] = out->byte;
    float *step = out->step;
    for (; n >= 4; n -= 4, p += 4 * stride, byte += 4, step += 4)
        lk_avx512_quantize_weights_of(p, stride, 4, scale, fine, byte, step);
    if (n == 3) lk_avx512_quantize_weights_of(p, stride, 3, scale, fine, byte, step);
    if (n == 2) lk_avx512_quantize_weights_of(p, stride, 2, scale, fine, byte, step);
    if (n == 1) lk_avx512_quantize_weights_of(p, stride, 1, scale, fine, byte, step);
}

void lk_avx512_quantize_weights(const float *p, size_t stride, int n, const __m512 scale[2],
                                bool fine, struct lk_avx512_weights *out) {
    if (fine)
        quantize_all(p, stride, n, scale, true, out);
    else
        quantize_all(p, stride, n, scale, false, out);
}
