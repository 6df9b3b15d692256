/* Attention in tiles (cuda/attend_tile.h): every codec of K with every codec of V, heads of any
 * size, latent attention; against double precision. */
#include "attend_case.h"

#define EXACT 1e-11

template <class K> static void expect(const attend_case &c) {
    attend_problem p(c);
    double error = run_attend<K>(p);
    if (error <= EXACT) return;
    print_error("%s: NMSE %g\n", c.name.c_str(), error);
    fail();
}

struct named_codec {
    std::string name;
    lk_codec codec;
};

/* All codecs that have kernels, of one side, for heads of d channels. */
static std::vector<named_codec> codecs(lk_side side, int d) {
    std::vector<named_codec> all = {{"f16", f16()}, {"int8", codec_of(LK_INT8, 8)}};
    for (int bits = 1; bits <= 8; bits++)
        if (bits != 7) all.push_back({"rot" + std::to_string(bits), rot(bits, side)});
    for (int bits = 1; bits <= 4; bits++)
        all.push_back({"trellis" + std::to_string(bits), rot(bits, side, true)});
    for (int bits : {2, 4})
        for (int group : {32, 64, 128})
            if (side == LK_K || d % group == 0)
                all.push_back({"kivi" + std::to_string(bits) + "(g" + std::to_string(group) + ")",
                               codec_of(LK_KIVI, bits, group)});
    for (int bits = 2; bits <= 8; bits += 2) all.push_back({"asym", codec_of(LK_ASYM, bits)});
    if (d % 32 == 0) all.push_back({"asym3(g32)", codec_of(LK_ASYM, 3, 32)});
    all.push_back({"asym5(hadamard)", codec_of(LK_ASYM, 5)});
    all.back().codec.hadamard = true;
    lk_codec other = rot(4, side);
    other.mean = side == LK_V, other.lloyd = false;
    all.push_back({side == LK_K ? "rot4(nomean,uniform)" : "rot4(mean,uniform)", other});
    std::vector<named_codec> fit;
    for (auto &x : all)
        if (!lk_codec_reject_reason(&x.codec, side, d)) fit.push_back(x);
    return fit;
}

/* Codecs that rotate with sigma and without it have different domains. */
static bool takes_sigma(const lk_codec &c) { return !c.hadamard; }

template <class K> static void pairs(int d, int group, int step) {
    int i = 0;
    for (auto &k : codecs(LK_K, d))
        for (auto &v : codecs(LK_V, d)) {
            if (i++ % (step * (int)case_step())) continue;
            attend_case c;
            c.name = "d " + std::to_string(d) + ", K " + k.name + ", V " + v.name;
            c.d = d, c.group = group, c.heads = 1 + i % 2, c.seed = (uint64_t)i,
            c.n_split = 1 + i % 3;
            int rows = 20 + i % 120, cut = 1 + i % rows;
            lk_codec k_last = takes_sigma(k.codec) ? rot(8, LK_K) : f16();
            c.k = {{{k.codec, rows, i % 40}, {k_last, 10, 3}}};
            c.v = {{{v.codec, cut, i % 23}, {rot(5, LK_V), rows + 10 - cut, i % 31}}};
            expect<K>(c);
        }
}

typedef attend_kernel<128, 1, 0, 2, 2> narrow;
typedef attend_kernel<256, 2, 0, 2, 1> wide;
typedef attend_kernel<512, 2, 0, 2, 1> widest;

static void pairs_128(void **state) {
    (void)state;
    pairs<narrow>(128, 4, 1);
}
static void pairs_64(void **state) {
    (void)state;
    pairs<narrow>(64, 7, 3);
}
static void pairs_80(void **state) { /* a rotation by Paley's matrix */
    (void)state;
    pairs<narrow>(80, 1, 5);
}
static void pairs_96(void **state) {
    (void)state;
    pairs<narrow>(96, 3, 5);
}
static void pairs_256(void **state) {
    (void)state;
    pairs<wide>(256, 8, 7);
}
static void pairs_small(void **state) {
    (void)state;
    pairs<narrow>(8, 2, 7);
    pairs<narrow>(32, 5, 7);
}

/* Latent attention: V's rows are keys too. */
static void latent_attention(void **state) {
    (void)state;
    int i = 0;
    for (auto &k : codecs(LK_K, 64)) {
        if (!takes_sigma(k.codec)) continue;
        for (auto &v : codecs(LK_V, 128)) {
            if (i++ % (2 * (int)case_step()) || v.codec.mean) continue;
            attend_case c;
            c.name = "latent attention, K " + k.name + ", V " + v.name;
            c.d = 128, c.d_rope = 64, c.group = 4 + i % 9, c.seed = (uint64_t)i,
            c.n_tok = 1 + i % 2;
            c.k = {{{k.codec, 70, 3}, {f16(), 10, 0}}};
            c.v = {{{v.codec, 50, 9}, {f16(), 30, 0}}};
            expect<narrow>(c);
        }
    }
    attend_case c;
    c.name = "latent attention, 512 channels", c.d = 512, c.d_rope = 64, c.group = 16;
    c.k = {{{f16(), 4, 0}, {rot(8, LK_K), 60, 0}}};
    c.v = {{{f16(), 4, 0}, {rot(4, LK_V), 60, 0}}};
    expect<widest>(c);
}

/* What models do to scores, with up to 8 query tokens. */
static void features(void **state) {
    (void)state;
    for (int i = 0; i < 40; i++) {
        attend_case c;
        c.name = "features " + std::to_string(i);
        c.d = i % 2 ? 64 : 128, c.group = 1 + i % 5, c.seed = (uint64_t)i;
        c.n_tok = 1 + i % 8, c.n_split = 1 + i % 4;
        c.softcap = i % 3 ? 0 : 5, c.alibi = i % 4 == 1, c.sink = i % 5 < 2;
        c.window = i % 7 ? 0 : 20 + i, c.n_extra = i % 6 ? 0 : 2, c.shift = i % 9 == 4;
        c.partial = i % 10 == 3;
        if (c.partial) c.sink = false, c.n_extra = 0;
        for (int s = 0; s < 3; s++) {
            c.k.push_back({{f16(), 4, 0}, {rot(3, LK_K), 96, 0}, {f16(), 30 + s, s}});
            c.v.push_back({{f16(), 4, 0}, {codec_of(LK_KIVI, 4, 32), 96, 0}, {f16(), 30 + s, 0}});
        }
        expect<narrow>(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_128), cmocka_unit_test(pairs_64),
        cmocka_unit_test(pairs_80),  cmocka_unit_test(pairs_96),
        cmocka_unit_test(pairs_256), cmocka_unit_test(pairs_small),
        cmocka_unit_test(features),  cmocka_unit_test(latent_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
