/* Unpacking of whole tiles, and the tables for it. */
#include "kernels/avx512_cells.h"

static void plain_levels(int bits, const __m128i *table, struct lk_avx512_levels *out) {
    out->given = table && bits <= 4;
    if (out->given) out->a = out->b = _mm512_broadcast_i32x4(*table);
}

/* Code of a (or b) in an index of six bits, which the lookup of vbmi_pair sees. */
static __m512i code_in(int bits, __m512i index, bool b) {
    __m512i low = turn(index, !b || bits == 4 ? 0 : bits == 1 ? 1 : 2);
    if (bits != 3) return only(low, (1 << bits) - 1);
    return merge(only(low, 3), turn(index, b ? 3 : 2), 4);
}

static void vbmi_levels(int bits, const __m128i *table, struct lk_avx512_levels *out) {
    const __m128i same = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    plain_levels(bits, table ? table : &same, out);
    if (bits > 4) return;
    __m512i sixteen = _mm512_broadcast_i32x4(same);
    __m512i index =
        _mm512_or_si512(sixteen, _mm512_set_epi64(0x3030303030303030, 0x3030303030303030,
                                                  0x2020202020202020, 0x2020202020202020,
                                                  0x1010101010101010, 0x1010101010101010, 0, 0));
    out->a = _mm512_shuffle_epi8(out->a, code_in(bits, index, false));
    out->b = _mm512_shuffle_epi8(out->b, code_in(bits, index, true));
}

/* ---- tiles ---- */

LK_ALWAYS_INLINE void unpack_k(int bits, int d_head, const void *tile, struct at at,
                               const struct lk_avx512_levels *levels, make_pair *make,
                               uint8_t *cells) {
    struct planes p = planes_of(bits, d_head, tile);
    for (int quad = 0; quad < d_head / 4; quad += 2) {
        LK_UNROLL
        for (int i = 0; i < 2; i++) {
            struct pair out = cells_of_k(bits, p, quad + i, i, at, levels, make);
            _mm512_store_si512(cells + (quad + i) * 128, out.a);
            _mm512_store_si512(cells + (quad + i) * 128 + 64, out.b);
        }
    }
}

/* Codes around zero, doubled: 2 code - (2^bits - 1). Where a table is given, it has that done. */
LK_ALWAYS_INLINE __m512i around_zero(int bits, __m512i code) {
    return bits > 4 ? _mm512_sub_epi8(_mm512_add_epi8(code, code), all((1 << bits) - 1)) : code;
}

LK_ALWAYS_INLINE void unpack_v(int bits, int d_head, const void *tile, struct at at,
                               const struct lk_avx512_levels *levels, make_pair *make, int c0,
                               int c1, uint8_t *cells, size_t stride) {
    struct planes p = planes_of(bits, d_head, tile);
    for (int octet = c0 / 8; octet < c1 / 8; octet += 2, cells += stride) {
        int next = octet + (octet + 1 < d_head / 8);
        LK_UNROLL
        for (int i = 0; i < 4; i++) {
            struct pair out = cells_of_v(bits, p, octet, next, i, at, levels, make);
            _mm512_store_si512(cells + i * 128, around_zero(bits, out.a));
            _mm512_store_si512(cells + i * 128 + 64, around_zero(bits, out.b));
        }
    }
}

static void whole_bytes_v(int d_head, const uint8_t *tile, int c0, int c1, uint8_t *cells,
                          size_t stride) {
    for (int octet = c0 / 8; octet < c1 / 8; octet += 2, cells += stride) {
        int next = octet + (octet + 1 < d_head / 8);
        for (int quad = 0; quad < 8; quad++) {
            __m512i x = load_both(tile + (octet * 8 + quad) * 32, tile + (next * 8 + quad) * 32);
            _mm512_store_si512(cells + quad * 64, _mm512_xor_si512(x, all(128)));
        }
    }
}

static const uint8_t *plain_k(int bits, int d_head, const void *tile,
                              const struct lk_avx512_levels *levels, uint8_t *cells,
                              enum lk_avx512_order *order) {
    *order = bits == 8 ? LK_OCTETS_01_23 : LK_OCTETS_02_13;
    switch (bits) {
    case 1: unpack_k(1, d_head, tile, plain_at(1), levels, plain_pair, cells); return cells;
    case 2: unpack_k(2, d_head, tile, plain_at(2), levels, plain_pair, cells); return cells;
    case 3: unpack_k(3, d_head, tile, plain_at(3), levels, plain_pair, cells); return cells;
    case 4: unpack_k(4, d_head, tile, plain_at(4), levels, plain_pair, cells); return cells;
    case 5: unpack_k(5, d_head, tile, plain_at(5), levels, plain_pair, cells); return cells;
    case 6: unpack_k(6, d_head, tile, plain_at(6), levels, plain_pair, cells); return cells;
    case 7: unpack_k(7, d_head, tile, plain_at(7), levels, plain_pair, cells); return cells;
    default: return tile;
    }
}

static void plain_v(int bits, int d_head, const void *tile, const struct lk_avx512_levels *levels,
                    int c0, int c1, uint8_t *cells, size_t stride) {
    switch (bits) {
    case 1:
        unpack_v(1, d_head, tile, plain_at(1), levels, plain_pair, c0, c1, cells, stride);
        return;
    case 2:
        unpack_v(2, d_head, tile, plain_at(2), levels, plain_pair, c0, c1, cells, stride);
        return;
    case 3:
        unpack_v(3, d_head, tile, plain_at(3), levels, plain_pair, c0, c1, cells, stride);
        return;
    case 4:
        unpack_v(4, d_head, tile, plain_at(4), levels, plain_pair, c0, c1, cells, stride);
        return;
    case 5:
        unpack_v(5, d_head, tile, plain_at(5), levels, plain_pair, c0, c1, cells, stride);
        return;
    case 6:
        unpack_v(6, d_head, tile, plain_at(6), levels, plain_pair, c0, c1, cells, stride);
        return;
    case 7:
        unpack_v(7, d_head, tile, plain_at(7), levels, plain_pair, c0, c1, cells, stride);
        return;
    default: whole_bytes_v(d_head, tile, c0, c1, cells, stride);
    }
}

VBMI static const uint8_t *vbmi_k(int bits, int d_head, const void *tile,
                                  const struct lk_avx512_levels *levels, uint8_t *cells,
                                  enum lk_avx512_order *order) {
    *order = LK_OCTETS_02_13;
    switch (bits) {
    case 1: unpack_k(1, d_head, tile, vbmi_at(1), levels, vbmi_pair, cells); return cells;
    case 2: unpack_k(2, d_head, tile, vbmi_at(2), levels, vbmi_pair, cells); return cells;
    case 3: unpack_k(3, d_head, tile, vbmi_at(3), levels, vbmi_pair, cells); return cells;
    case 4: unpack_k(4, d_head, tile, vbmi_at(4), levels, vbmi_pair, cells); return cells;
    default: return plain_k(bits, d_head, tile, levels, cells, order);
    }
}

VBMI static void vbmi_v(int bits, int d_head, const void *tile,
                        const struct lk_avx512_levels *levels, int c0, int c1, uint8_t *cells,
                        size_t stride) {
    switch (bits) {
    case 1: unpack_v(1, d_head, tile, vbmi_at(1), levels, vbmi_pair, c0, c1, cells, stride); return;
    case 2: unpack_v(2, d_head, tile, vbmi_at(2), levels, vbmi_pair, c0, c1, cells, stride); return;
    case 3: unpack_v(3, d_head, tile, vbmi_at(3), levels, vbmi_pair, c0, c1, cells, stride); return;
    case 4: unpack_v(4, d_head, tile, vbmi_at(4), levels, vbmi_pair, c0, c1, cells, stride); return;
    default: plain_v(bits, d_head, tile, levels, c0, c1, cells, stride);
    }
}

const struct lk_avx512_unpack lk_avx512_unpack = {
    .levels = plain_levels, .k = plain_k, .v = plain_v};
const struct lk_avx512_unpack lk_avx512vbmi_unpack = {
    .levels = vbmi_levels, .k = vbmi_k, .v = vbmi_v};
