/* Unpacking, two groups of bytes at a time: `a` and `b` below are two cells that follow one another (of K
 * two octets of tokens, of V two quads of tokens), for two octets of rows side by side. In every plane the
 * field of b follows that of a. */
#include "codec/cells.h"
#include "kern/avx512.h"

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

LK_INLINE __m512i all(int byte) { return _mm512_set1_epi8((char)byte); }

/* Bits of each byte n places to the right; negative n: to the left. */
LK_INLINE __m512i turn(__m512i v, int n) { return n ? _mm512_rorv_epi32(v, _mm512_set1_epi32(n & 31)) : v; }

/* The same for the lower and the upper half. */
LK_INLINE __m512i turn2(__m512i v, int n, int upper) {
    return _mm512_rorv_epi32(v, _mm512_inserti64x4(_mm512_set1_epi32(n & 31), _mm256_set1_epi32(upper & 31), 1));
}

LK_INLINE __m512i only(__m512i v, int mask) { return _mm512_and_si512(v, all(mask)); }

/* v where the mask has ones, else base */
LK_INLINE __m512i merge(__m512i base, __m512i v, int mask) { return _mm512_ternarylogic_epi32(all(mask), v, base, 0xca); }

/* ---- fields to bytes ------------------------------------------------------------------------- */

/* Codes put together from their fields, then looked up. */
LK_INLINE struct at plain_at(int bits) { return (struct at){bits & 4, bits & 6}; }

LK_INLINE struct pair plain_pair(int bits, struct fields f, const struct lk_avx512_levels *levels) {
    struct pair code;
    if (bits & 4) code = (struct pair){f.four, turn(f.four, 4)};
    else if (bits & 2) code = (struct pair){f.two, turn(f.two, 2)};
    else code = (struct pair){f.one, turn(f.one, 1)};
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
    if (levels->given) code = (struct pair){_mm512_shuffle_epi8(levels->a, code.a), _mm512_shuffle_epi8(levels->b, code.b)};
    return code;
}

static void plain_levels(int bits, const __m128i *table, struct lk_avx512_levels *out) {
    out->given = table && bits <= 4;
    if (out->given) out->a = out->b = _mm512_broadcast_i32x4(*table);
}

/* VPERMB looks up six bits and ignores two: tables that know where the fields of a cell are find its level
 * without isolating them. */
#define VBMI __attribute__((target("avx512vbmi")))

LK_INLINE struct at vbmi_at(int bits) { return bits > 4 ? plain_at(bits) : (struct at){0, bits == 3 ? 4 : 0}; }

VBMI LK_INLINE struct pair vbmi_pair(int bits, struct fields f, const struct lk_avx512_levels *levels) {
    if (bits > 4) return plain_pair(bits, f, levels);
    __m512i a = bits == 4 ? f.four : bits == 3 ? merge(f.two, f.one, 0x30) : bits == 2 ? f.two : f.one;
    __m512i b = bits == 4 ? turn(f.four, 4) : a;
    return (struct pair){_mm512_permutexvar_epi8(a, levels->a), _mm512_permutexvar_epi8(b, levels->b)};
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
    __m512i index = _mm512_or_si512(sixteen, _mm512_set_epi64(0x3030303030303030, 0x3030303030303030, 0x2020202020202020,
                                                              0x2020202020202020, 0x1010101010101010, 0x1010101010101010, 0, 0));
    out->a = _mm512_shuffle_epi8(out->a, code_in(bits, index, false));
    out->b = _mm512_shuffle_epi8(out->b, code_in(bits, index, true));
}

/* ---- tiles ------------------------------------------------------------------------------------ */

typedef struct pair make_pair(int bits, struct fields f, const struct lk_avx512_levels *levels);

LK_INLINE __m512i load_both(const uint8_t *p, const uint8_t *upper) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)p)),
                              _mm256_loadu_si256((const __m256i *)upper), 1);
}

LK_INLINE __m512i load_twice(const uint8_t *p) { return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)p)); }

struct planes {
    const uint8_t *four, *two, *one;
};

LK_INLINE struct planes planes_of(int bits, int d_head, const uint8_t *tile) {
    const uint8_t *two = tile + (bits & 4 ? lk_cells_bytes(4, d_head) : 0);
    return (struct planes){tile, two, two + (bits & 2 ? lk_cells_bytes(2, d_head) : 0)};
}

/* Cells 4 quad .. 4 quad + 3 are the octets of tokens; a: octets 0 and 2, b: 1 and 3. */
LK_INLINE void unpack_k(int bits, int d_head, const void *tile, struct at at, const struct lk_avx512_levels *levels, make_pair *make,
                        uint8_t *cells) {
    struct planes p = planes_of(bits, d_head, tile);
    for (int quad = 0; quad < d_head / 4; quad += 2) {
        LK_UNROLL
        for (int i = 0; i < 2; i++) {
            struct fields f;
            if (bits & 4) f.four = _mm512_loadu_si512(p.four + (quad + i) * 64);
            if (bits & 2) f.two = turn2(load_twice(p.two + (quad + i) * 32), -at.two, 4 - at.two);
            if (bits & 1) f.one = turn2(load_twice(p.one + quad / 2 * 32), 4 * i - at.one, 4 * i + 2 - at.one);
            struct pair out = make(bits, f, levels);
            _mm512_store_si512(cells + (quad + i) * 128, out.a);
            _mm512_store_si512(cells + (quad + i) * 128 + 64, out.b);
        }
    }
}

/* Codes around zero, doubled: 2 code - (2^bits - 1). Where a table is given, it has that done. */
LK_INLINE __m512i around_zero(int bits, __m512i code) {
    return bits > 4 ? _mm512_sub_epi8(_mm512_add_epi8(code, code), all((1 << bits) - 1)) : code;
}

/* Cells 8 octet .. 8 octet + 7 are the quads of tokens; two octets of channels side by side. An odd last
 * one stands beside itself. */
LK_INLINE void unpack_v(int bits, int d_head, const void *tile, struct at at, const struct lk_avx512_levels *levels, make_pair *make,
                        int c0, int c1, uint8_t *cells, size_t stride) {
    struct planes p = planes_of(bits, d_head, tile);
    for (int octet = c0 / 8; octet < c1 / 8; octet += 2, cells += stride) {
        int next = octet + (octet + 1 < d_head / 8);
        LK_UNROLL
        for (int i = 0; i < 4; i++) {
            struct fields f;
            if (bits & 4) f.four = load_both(p.four + octet * 128 + i * 32, p.four + next * 128 + i * 32);
            if (bits & 2) f.two = turn(load_both(p.two + octet * 64 + i / 2 * 32, p.two + next * 64 + i / 2 * 32), i % 2 * 4 - at.two);
            if (bits & 1) f.one = turn(load_both(p.one + octet * 32, p.one + next * 32), 2 * i - at.one);
            struct pair out = make(bits, f, levels);
            _mm512_store_si512(cells + i * 128, around_zero(bits, out.a));
            _mm512_store_si512(cells + i * 128 + 64, around_zero(bits, out.b));
        }
    }
}

static void whole_bytes_v(int d_head, const uint8_t *tile, int c0, int c1, uint8_t *cells, size_t stride) {
    for (int octet = c0 / 8; octet < c1 / 8; octet += 2, cells += stride) {
        int next = octet + (octet + 1 < d_head / 8);
        for (int quad = 0; quad < 8; quad++) {
            __m512i x = load_both(tile + (octet * 8 + quad) * 32, tile + (next * 8 + quad) * 32);
            _mm512_store_si512(cells + quad * 64, _mm512_xor_si512(x, all(128)));
        }
    }
}

static const uint8_t *plain_k(int bits, int d_head, const void *tile, const struct lk_avx512_levels *levels, uint8_t *cells,
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

static void plain_v(int bits, int d_head, const void *tile, const struct lk_avx512_levels *levels, int c0, int c1, uint8_t *cells, size_t stride) {
    switch (bits) {
    case 1: unpack_v(1, d_head, tile, plain_at(1), levels, plain_pair, c0, c1, cells, stride); return;
    case 2: unpack_v(2, d_head, tile, plain_at(2), levels, plain_pair, c0, c1, cells, stride); return;
    case 3: unpack_v(3, d_head, tile, plain_at(3), levels, plain_pair, c0, c1, cells, stride); return;
    case 4: unpack_v(4, d_head, tile, plain_at(4), levels, plain_pair, c0, c1, cells, stride); return;
    case 5: unpack_v(5, d_head, tile, plain_at(5), levels, plain_pair, c0, c1, cells, stride); return;
    case 6: unpack_v(6, d_head, tile, plain_at(6), levels, plain_pair, c0, c1, cells, stride); return;
    case 7: unpack_v(7, d_head, tile, plain_at(7), levels, plain_pair, c0, c1, cells, stride); return;
    default: whole_bytes_v(d_head, tile, c0, c1, cells, stride);
    }
}

VBMI static const uint8_t *vbmi_k(int bits, int d_head, const void *tile, const struct lk_avx512_levels *levels, uint8_t *cells,
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

VBMI static void vbmi_v(int bits, int d_head, const void *tile, const struct lk_avx512_levels *levels, int c0, int c1, uint8_t *cells, size_t stride) {
    switch (bits) {
    case 1: unpack_v(1, d_head, tile, vbmi_at(1), levels, vbmi_pair, c0, c1, cells, stride); return;
    case 2: unpack_v(2, d_head, tile, vbmi_at(2), levels, vbmi_pair, c0, c1, cells, stride); return;
    case 3: unpack_v(3, d_head, tile, vbmi_at(3), levels, vbmi_pair, c0, c1, cells, stride); return;
    case 4: unpack_v(4, d_head, tile, vbmi_at(4), levels, vbmi_pair, c0, c1, cells, stride); return;
    default: plain_v(bits, d_head, tile, levels, c0, c1, cells, stride);
    }
}

const struct lk_avx512_unpack lk_avx512_unpack = {.levels = plain_levels, .k = plain_k, .v = plain_v};
const struct lk_avx512_unpack lk_avx512vbmi_unpack = {.levels = vbmi_levels, .k = vbmi_k, .v = vbmi_v};
