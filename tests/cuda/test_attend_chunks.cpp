/* Attention in chunks on the matrix units (cuda/attend_chunk.h), and in the tiles around them,
 * against double precision. */
#include "attend_case.h"

constexpr uint32_t BEST = attend_pair(3, 2) | attend_pair(4, 4);
constexpr uint32_t ALL =
    BEST | attend_pair(2, 2) | attend_pair(4, 2) | attend_pair(3, 3) | attend_pair(4, 3);

/* The bound for codes in chunks, whose queries and weights are rounded to 16 bits. */
#define CHUNKS 2e-8

template <class K> static void expect(const attend_case &c, double bound) {
    attend_problem p(c);
    double error = run_attend<K>(p);
    if (error <= bound) return;
    print_error("%s: NMSE %g\n", c.name.c_str(), error);
    fail();
}

static void add_level(attend_case &c, const lk_codec &k, const lk_codec &v, int rows,
                      int skip = 0) {
    if (c.k.empty()) c.k.resize(1), c.v.resize(1);
    c.k.back().push_back({k, rows, skip});
    c.v.back().push_back({v, rows, skip});
}

static void add_rot(attend_case &c, int kb, int vb, int rows, int skip = 0) {
    add_level(c, rot(kb, LK_K), rot(vb, LK_V), rows, skip);
}

/* The levels of best-3, with `rows` rows in its body. */
static void add_best_3(attend_case &c, int rows, int newest) {
    c.k.emplace_back(), c.v.emplace_back();
    add_level(c, f16(), f16(), 4);
    add_rot(c, 3, 2, rows);
    add_rot(c, 4, 4, rows / 3 / 32 * 32);
    add_rot(c, 8, 8, 64);
    if (newest) add_level(c, f16(), f16(), newest);
}

/* One level: lengths around tiles and chunks, fewer chunks than warps and more. */
static void lengths(void **state) {
    (void)state;
    for (int rows : {1, 31, 32, 33, 128, 129, 300, 1100})
        for (int vb : {2, 4}) {
            attend_case c;
            c.name = std::to_string(rows) + " rows, V in bits " + std::to_string(vb);
            c.seed = (uint64_t)rows, c.group = 1 + rows % 4;
            add_rot(c, vb == 2 ? 3 : 4, vb, rows);
            expect<attend_kernel<128, 1, BEST, 2, 2>>(c, CHUNKS);
        }
}

/* All levels of best-3, several sequences, splits and clusters. */
static void best_3(void **state) {
    (void)state;
    for (int n_split : {1, 2, 6}) {
        attend_case c;
        c.name = "best-3 in splits: " + std::to_string(n_split);
        c.heads = 2, c.n_split = n_split;
        add_best_3(c, 900, 7), add_best_3(c, 96, 0), add_best_3(c, 32, 31);
        expect<attend_kernel<128, 1, BEST, 2, 2>>(c, CHUNKS);
        c.name += ", no clusters";
        expect<attend_kernel<128, 1, BEST, 2, 1>>(c, CHUNKS);
    }
}

/* Pairs and heads of other sizes; up to 8 columns, and more in tiles of columns. */
template <int D, int HPL> static void pairs() {
    for (int kb = 2; kb <= 4; kb++)
        for (int vb = 2; vb <= kb; vb++)
            for (int group : {3, 4, 7, 16}) {
                if (HPL == 1 && group > 4 && kb != vb) continue;
                attend_case c;
                c.name = "K" + std::to_string(kb) + "/V" + std::to_string(vb) + ", group " +
                         std::to_string(group) + ", d " + std::to_string(D);
                c.d = D, c.group = group, c.seed = (uint64_t)(kb * 10 + vb + group);
                add_rot(c, kb, vb, 200);
                expect<attend_kernel<D, HPL, ALL, 2, 1>>(c, CHUNKS);
            }
}
static void pairs_128(void **state) {
    (void)state;
    pairs<128, 1>();
}
static void pairs_64(void **state) {
    (void)state;
    pairs<64, 2>();
}

/* Levels that start within a tile, or divide K and V differently, come in tiles. */
static void misaligned(void **state) {
    (void)state;
    attend_case c;
    c.name = "misaligned", c.n_split = 2;
    c.k = {{{rot(3, LK_K), 300, 5}, {rot(4, LK_K), 64, 0}, {f16(), 40, 3}}};
    c.v = {{{rot(2, LK_V), 200, 0}, {rot(4, LK_V), 150, 17}, {rot(8, LK_V), 54, 31}}};
    expect<attend_kernel<128, 1, BEST, 2, 2>>(c, CHUNKS);
}

/* What models do to scores, with several query tokens. */
static void features(void **state) {
    (void)state;
    for (int i = 0; i < 12; i++) {
        attend_case c;
        c.name = "feature " + std::to_string(i);
        c.seed = (uint64_t)i, c.group = 2 + i % 3, c.n_split = 1 + i % 2 * 3;
        if (i == 0) c.softcap = 3;
        if (i == 1) c.alibi = true;
        if (i == 2) c.sink = true;
        if (i == 3) c.window = 150;
        if (i == 4) c.n_tok = 2;
        if (i == 5) c.n_tok = 4, c.window = 37;
        if (i == 6) c.n_extra = 2;
        if (i == 7) c.partial = true;
        if (i == 8) c.n_extra = 1, c.sink = true, c.n_tok = 3;
        if (i == 9) c.v_sigma = true;
        if (i == 10) c.softcap = 20, c.alibi = true, c.n_tok = 2, c.partial = true;
        if (i == 11) c.shift = true, c.alibi = true;
        add_best_3(c, 320, i % 2 ? 9 : 0), add_best_3(c, 64, 1);
        if (c.v_sigma)
            for (auto &s : c.v)
                for (auto &level : s) level.codec.sigma = level.codec.coding == LK_ROT;
        expect<attend_kernel<128, 1, BEST, 2, 2>>(c, CHUNKS);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(lengths),    cmocka_unit_test(best_3),
                                       cmocka_unit_test(pairs_128),  cmocka_unit_test(pairs_64),
                                       cmocka_unit_test(misaligned), cmocka_unit_test(features)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
