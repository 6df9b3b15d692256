/* The latent kernels, emulated, against attention in double precision over the same codes, with up
 * in 8 bits as the kernels have it. */
extern "C" {
#include "codec/codec.h"
#include "codec/hadamard.h"
#include "rope_fold.h"
#include "support.h"
}

#include "cuda/latent.h"
#include "cuda/latent_pack.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <vector>

extern "C" {
#include <cmocka.h>
}

/* What a case is made of, in addition to the kernel's shape. */
struct problem {
    int k_rank, v_rank;
    int n_head_kv, group, k_heads, v_heads; /* of a layer; of the parts of K and V */
    int n_tok, n_row;
    int k_first, v_first; /* rows of the tables before the segment */
    int64_t position;     /* of the segment's first row */
    int before, window;   /* as in struct lk_device_segment */
    int n_cluster;
    double base; /* of RoPE */
    bool halves, mean;
};

static float *gauss(struct random *r, std::vector<float> &x, size_t n, float scale) {
    x.resize(n);
    for (float &y : x) y = random_gauss(r) * scale;
    return x.data();
}

static struct lk_codec rot_codec(int bits) {
    struct lk_codec c = {};
    c.coding = LK_ROT, c.bits = (uint8_t)bits, c.lloyd = true;
    return c;
}

/* Blocks of one side in scattered order, all rows encoded, and the rows as the kernel sees them: in
 * the codec's domain. Rows outside the segment's have scales that are not numbers. */
struct side {
    std::vector<char> pool;
    std::vector<uint64_t> table;
    std::vector<float> rows; /* [part][row of the table][rank] */
    std::vector<struct lk_device_latent_part> part;
    char *base;
    int n_tile;
};

static void make_side(struct random *r, struct side *side, enum lk_side which, int bits, int rank,
                      int n_part, int first, int n_row) {
    struct lk_codec codec = rot_codec(bits);
    size_t head = lk_codec_head_bytes(&codec, which, rank, LK_TILE), block = head * (size_t)n_part;
    int n_tile = side->n_tile = (first + n_row + 31) / 32;
    side->pool.assign(block * (size_t)n_tile + 128, 0);
    side->base = (char *)(((uintptr_t)side->pool.data() + 127) / 128 * 128);
    side->table.resize((size_t)n_tile);
    side->rows.resize((size_t)n_part * n_tile * 32 * rank);
    for (int p = 0; p < n_part; p++) side->part.push_back({(uint32_t)(p * head), (uint32_t)rank});
    for (int tile = 0; tile < n_tile; tile++) {
        char *at = side->base + (size_t)((tile * 7 + 3) % n_tile) * block;
        if (n_tile % 7 == 0) at = side->base + (size_t)(n_tile - 1 - tile) * block;
        side->table[(size_t)tile] = (uint64_t)(uintptr_t)at;
        for (int p = 0; p < n_part; p++) {
            std::vector<float> x((size_t)32 * rank);
            for (int t = 0; t < 32; t++)
                for (int c = 0; c < rank; c++)
                    x[(size_t)t * rank + c] =
                        random_gauss(r) / sqrtf(1 + 0.05f * c) * (t % 7 ? 1.0f : 3.0f);
            struct lk_part part = {&codec, which, rank, LK_TILE, NULL};
            lk_codec_encode(&part, at + p * head, 0, 32, x.data(), (size_t)rank);
            float *y = &side->rows[((size_t)p * n_tile + tile) * 32 * rank];
            lk_codec_decode(&part, at + p * head, 0, 32, y, (size_t)rank);
            for (int t = 0; t < 32; t++) {
                int row = tile * 32 + t;
                lk_rotate(y + (size_t)t * rank, rank);
                if (row >= first && row < first + n_row) continue;
                memset(at + p * head + (size_t)4 * bits * rank + 2 * t, 0x7f, 2);
            }
        }
    }
}

/* The largest relative error of a call's partials. */
template <class sh, int CLUSTER> static double run(const struct problem &p, uint64_t seed) {
    typedef latent_kernel<sh, CLUSTER> kernel;
    struct random r = {seed};
    constexpr int D = sh::D;
    struct side k, v;
    make_side(&r, &k, LK_K, sh::KB, p.k_rank, p.n_head_kv / p.k_heads, p.k_first, p.n_row);
    make_side(&r, &v, LK_V, sh::VB, p.v_rank, p.n_head_kv / p.v_heads, p.v_first, p.n_row);
    /* RoPE */
    double speed[D / 2];
    for (int j = 0; j < D / 2; j++) speed[j] = pow(p.base, -2.0 * j / D);
    float basis[4 * 128], cosine[4 * D], sine[4 * D];
    int n_fast = rope_fold(D / 2, speed, basis, cosine, sine);
    if (sh::FOLD && !sh::POST) assert_true(n_fast <= sh::FAST);
    struct latent_rope tables = {speed, 1, D / 2, basis, cosine, sine, D};
    int n_coarse = (int)((p.position + p.n_row) / 128) + 3;
    std::vector<float> fine((size_t)128 * D), coarse((size_t)n_coarse * D);
    latent_pack_angles(speed, D / 2, 128, 1, fine.data());
    latent_pack_angles(speed, D / 2, n_coarse, 128, coarse.data());
    /* up-projections and queries */
    std::vector<std::vector<float>> up8((size_t)p.n_head_kv);
    std::vector<float> k_mean, v_mean, up, q, packed_mean((size_t)p.n_head_kv * D);
    std::vector<uint16_t> k_up, v_up((size_t)p.n_head_kv * p.v_rank * D);
    char *packed = (char *)aligned_alloc(128, (size_t)p.n_head_kv * sh::UP_HEAD / 128 * 128 + 128);
    char *packed_rope = (char *)aligned_alloc(128, sh::ROPE / 128 * 128 + 128);
    if constexpr (!sh::POST) latent_pack_rope<sh>(tables, packed_rope);
    gauss(&r, k_mean, (size_t)p.n_head_kv * D, p.mean ? 1.0f : 0.0f);
    gauss(&r, v_mean, (size_t)p.n_head_kv * D, p.mean ? 1.0f : 0.0f);
    for (int h = 0; h < p.n_head_kv; h++) {
        gauss(&r, up, (size_t)D * p.k_rank, 1 / sqrtf((float)p.k_rank));
        for (int c = 0; c < D; c += 2) {
            float size = expf(0.5f * random_gauss(&r));
            for (int i = 0; i < 2 * p.k_rank; i++) up[(size_t)c * p.k_rank + i] *= size;
        }
        up8[(size_t)h].resize(up.size());
        if constexpr (sh::POST) {
            for (int c = 0; c < D; c++)
                for (int j = 0; j < p.k_rank; j++) {
                    uint16_t x = lk_f32_to_f16(up[(size_t)c * p.k_rank + j]);
                    k_up.push_back(x);
                    up8[(size_t)h][(size_t)c * p.k_rank + j] = lk_f16_to_f32(x);
                }
            continue;
        } else {
            latent_pack_up<sh>(up.data(), p.k_rank, p.mean ? &k_mean[(size_t)h * D] : NULL,
                               packed + (size_t)h * sh::UP_HEAD, &packed_mean[(size_t)h * D],
                               up8[(size_t)h].data());
        }
    }
    for (uint16_t &x : v_up) x = lk_f32_to_f16(random_gauss(&r) / sqrtf((float)p.v_rank));
    int n_head = p.n_head_kv * p.group, n_col = p.n_tok * p.group;
    gauss(&r, q, (size_t)p.n_tok * n_head * D, 0.6f);
    /* the call */
    std::vector<float> partial((size_t)p.n_tok * n_head * (D + 2), NAN);
    struct lk_device_latent call = {};
    call.q = (uint64_t)(uintptr_t)q.data();
    call.partial = (uint64_t)(uintptr_t)partial.data();
    call.k_up = (uint64_t)(uintptr_t)(sh::POST ? (char *)k_up.data() : packed);
    std::vector<float> k_query((size_t)p.n_tok * n_head * p.k_rank, NAN);
    if (sh::POST) call.k_query = (uint64_t)(uintptr_t)k_query.data();
    float *means = sh::POST ? k_mean.data() : packed_mean.data();
    call.k_mean = p.mean ? (uint64_t)(uintptr_t)means : 0;
    call.v_up = (uint64_t)(uintptr_t)v_up.data();
    call.v_mean = p.mean ? (uint64_t)(uintptr_t)v_mean.data() : 0;
    call.k_part = (uint64_t)(uintptr_t)k.part.data();
    call.v_part = (uint64_t)(uintptr_t)v.part.data();
    call.segment.k.table = (uint64_t)(uintptr_t)k.table.data();
    call.segment.v.table = (uint64_t)(uintptr_t)v.table.data();
    call.segment.k.first = (uint32_t)p.k_first, call.segment.v.first = (uint32_t)p.v_first;
    call.segment.n_row = p.n_row, call.segment.before = p.before;
    call.position = p.position, call.n_tok = p.n_tok, call.window = p.window;
    int n_tile = (n_col + sh::NQ - 1) / sh::NQ;
    size_t columns = (size_t)p.n_head_kv * n_tile * sh::NQ;
    std::vector<float> sum(columns * (size_t)(p.v_rank + 2), NAN),
        scratch(columns * (sh::RV / 32) * (size_t)p.n_cluster * 34, NAN);
    std::vector<uint32_t> ticket(columns * (sh::RV / 32), 0);
    struct lk_device_latent_launch a = {};
    a.call = (uint64_t)(uintptr_t)&call, a.rope = (uint64_t)(uintptr_t)packed_rope;
    a.fine = (uint64_t)(uintptr_t)fine.data(), a.coarse = (uint64_t)(uintptr_t)coarse.data();
    a.sum = (uint64_t)(uintptr_t)sum.data(), a.scratch = (uint64_t)(uintptr_t)scratch.data();
    a.ticket = (uint64_t)(uintptr_t)ticket.data();
    a.n_call = 1, a.n_head_kv = p.n_head_kv, a.group = p.group;
    a.k_heads = p.k_heads, a.v_heads = p.v_heads, a.n_tile = n_tile;
    a.n_split = CLUSTER * p.n_cluster, a.k_rank = p.k_rank, a.v_rank = p.v_rank, a.n_pair = D / 2,
    a.halves = p.halves;
    a.scale = 1 / sqrtf((float)D);
    for (int h = 0; sh::POST && h < p.n_head_kv; h++)
        gpu_emulate_cluster<latent_front<D>>(h, 0, 0, 0, a);
    for (int y = 0; y < p.n_head_kv / sh::NH * n_tile; y++)
        for (int x = 0; x < a.n_split; x += CLUSTER)
            gpu_emulate_cluster<kernel>(x, y, 0, sh::BYTES, a);
    for (int h = 0; h < p.n_head_kv; h++)
        gpu_emulate_cluster<latent_back<D, sh::NQ>>(h, 0, 0, 0, a);
    for (uint32_t x : ticket) assert_int_equal(x, 0);

    double error = 0, total = 0;
    for (int tok = 0; tok < p.n_tok; tok++)
        for (int head = 0; head < n_head; head++) {
            int h = head / p.group;
            const float *x = &q[((size_t)tok * n_head + head) * D];
            std::vector<double> score, key(D), out(D, 0.0);
            double max = -1e300, l = 0;
            std::vector<int> seen;
            for (int i = 0; i < p.n_row; i++) {
                if (i > p.before + tok || (p.window && i <= p.before + tok - p.window)) continue;
                const float *z =
                    &k.rows[((size_t)(h / p.k_heads) * k.n_tile * 32 + p.k_first + i) * p.k_rank];
                for (int c = 0; c < D; c++) {
                    key[(size_t)c] = p.mean ? k_mean[(size_t)h * D + c] : 0;
                    for (int j = 0; j < p.k_rank; j++)
                        key[(size_t)c] += (double)up8[(size_t)h][(size_t)c * p.k_rank + j] * z[j];
                }
                double s = 0;
                for (int j = 0; j < D / 2; j++) {
                    double angle = sh::POST ? 0 : speed[j] * (double)(p.position + i),
                           co = cos(angle), si = sin(angle), ka = key[2 * (size_t)j],
                           kb = key[2 * (size_t)j + 1];
                    s += x[p.halves && !sh::POST ? j : 2 * j] * (co * ka - si * kb) +
                         x[p.halves && !sh::POST ? j + D / 2 : 2 * j + 1] * (si * ka + co * kb);
                }
                seen.push_back(i), score.push_back(s * a.scale);
                max = fmax(max, score.back());
            }
            const float *got = &partial[((size_t)tok * n_head + head) * (D + 2)];
            if (seen.empty()) {
                assert_true(got[D + 1] == 0);
                continue;
            }
            for (size_t n = 0; n < seen.size(); n++) {
                double weight = exp(score[n] - max);
                const float *z =
                    &v.rows[((size_t)(h / p.v_heads) * v.n_tile * 32 + p.v_first + seen[n]) *
                            p.v_rank];
                l += weight;
                for (int c = 0; c < D; c++) {
                    double y = p.mean ? v_mean[(size_t)h * D + c] : 0;
                    for (int j = 0; j < p.v_rank; j++)
                        y += (double)z[j] * lk_f16_to_f32(v_up[((size_t)h * p.v_rank + j) * D + c]);
                    out[(size_t)c] += weight * y;
                }
            }
            double factor = exp(got[D] - max); /* the partial's maximum is as it likes */
            for (int c = 0; c <= D; c++) {
                double want = c < D ? out[(size_t)c] : l, have = got[c < D ? c : D + 1] * factor;
                if (c < D) error += (have - want) * (have - want), total += want * want;
                if (c == D) assert_true(fabs(have - want) <= 2e-3 * want);
            }
        }
    free(packed);
    free(packed_rope);
    double result = error / total;
    printf(
        "D %d, K rot%d rank %d, V rot%d rank %d, %d heads of a block, %d queries, %s, %d splits, "
        "%d bytes: NMSE %.1e\n",
        D, sh::KB, p.k_rank, sh::VB, p.v_rank, sh::NH, n_col, sh::FOLD ? "fold" : "no fold",
        a.n_split, sh::BYTES, result);
    return result;
}

static struct problem plain(int k_rank, int v_rank, int n_row) {
    struct problem p = {};
    p.k_rank = k_rank, p.v_rank = v_rank, p.n_row = n_row;
    p.n_head_kv = p.k_heads = p.v_heads = 4, p.group = p.n_tok = p.n_cluster = 1;
    p.before = n_row, p.base = 1e4, p.halves = true;
    return p;
}

/* The largest shared memory of a block: on data center cards from sm_90 on, and on others. */
enum { SHARED = 227 << 10, SHARED_SMALL = 99 << 10 };

template <class sh, int CLUSTER> static void check(const struct problem &p, int shared = SHARED) {
    assert_true(sh::BYTES <= shared);
    double error = run<sh, CLUSTER>(p, (uint64_t)(p.n_row * 31 + p.k_rank + sh::KB));
    assert_true(error < 1e-6);
}

/* Palu's setting: K in a quarter of the channels, V in three quarters, 4 bits, no grouped queries.
 * Several splits and clusters, and segments that start anywhere. */
typedef latent_shape<128, 128, 4, 384, 4, 4, 1, true, 2, 2, false> palu;
static void test_palu(void **state) {
    (void)state;
    struct problem p = plain(128, 384, 300);
    check<palu, 1>(p);
    p.n_cluster = 2, p.k_first = 77, p.v_first = 77 + 64, p.position = 100000;
    check<palu, 2>(p);
}

/* Segments that have fewer chunks than there are splits. */
static void test_short(void **state) {
    (void)state;
    struct problem p = plain(128, 384, 20);
    p.n_cluster = 2, p.k_first = 120, p.v_first = 120, p.position = 1000;
    check<palu, 1>(p);
}

static void test_means(void **state) {
    (void)state;
    struct problem p = plain(128, 128, 200);
    p.mean = true, p.position = 5000, p.halves = false;
    check<latent_shape<128, 128, 3, 128, 2, 4, 1, true, 2, 2, false>, 1>(p);
    p.group = 3, p.n_head_kv = p.k_heads = p.v_heads = 2;
    check<latent_shape<128, 128, 4, 128, 4, 2, 4, false, 1, 1, true>, 1>(p);
}

/* Ranks between multiples of 64 and 128, and parts that K and V divide differently. */
static void test_ranks(void **state) {
    (void)state;
    struct problem p = plain(88, 200, 200);
    p.n_head_kv = 4, p.k_heads = 4, p.v_heads = 2;
    p.k_first = 3, p.v_first = 35, p.position = 1003;
    check<latent_shape<128, 128, 4, 256, 3, 2, 1, true, 2, 2, false>, 1>(p);
}

/* Half of the channels, with the table of the rotation in f16. */
static void test_even(void **state) {
    (void)state;
    struct problem p = plain(256, 256, 200);
    check<latent_shape<128, 256, 4, 256, 4, 4, 1, true, 1, 1, true>, 2>(p);
}

/* Grouped queries without the fold, and several query tokens, which see different rows. */
static void test_queries(void **state) {
    (void)state;
    struct problem p = plain(128, 256, 300);
    typedef latent_shape<128, 128, 4, 256, 4, 4, 4, false, 2, 2, true> gqa;
    p.group = 3, p.n_tok = 4, p.before = 296, p.window = 200, p.n_cluster = 2, p.base = 5e5;
    check<gqa, 1>(p);
    p.window = 0, p.before = -2; /* the first tokens see nothing */
    check<gqa, 1>(p);
    p = plain(128, 128, 190);
    p.n_head_kv = p.k_heads = p.v_heads = 2;
    p.group = 8, p.n_tok = 2;
    check<latent_shape<128, 128, 2, 128, 2, 2, 8, false, 2, 2, true>, 1>(p);
}

static void test_heads_of_64(void **state) {
    (void)state;
    struct problem p = plain(64, 128, 200);
    p.n_head_kv = p.k_heads = p.v_heads = 2, p.group = 2, p.base = 1e5;
    check<latent_shape<64, 64, 3, 128, 3, 2, 2, true, 2, 2, false>, 1>(p);
    p.n_head_kv = 1, p.k_heads = p.v_heads = 1, p.group = 7, p.n_tok = 2, p.before = 198;
    check<latent_shape<64, 64, 4, 128, 4, 1, 8, false, 2, 2, false>, 1>(p);
}

/* Cards whose blocks have 99 KB of shared memory. */
static void test_small_cards(void **state) {
    (void)state;
    struct problem p = plain(128, 384, 200);
    p.n_head_kv = p.k_heads = p.v_heads = 2;
    check<latent_shape<128, 128, 4, 384, 4, 2, 1, true, 1, 1, true>, 2>(p, SHARED_SMALL);
    p.group = 4, p.v_rank = 256, p.n_head_kv = p.k_heads = p.v_heads = 1;
    check<latent_shape<128, 128, 4, 256, 4, 1, 4, false, 1, 1, true>, 1>(p, SHARED_SMALL);
}

/* Latents of rotated keys, as TALE has them. */
static void test_rotated(void **state) {
    (void)state;
    struct problem p = plain(200, 256, 300);
    check<latent_shape<128, 256, 4, 256, 4, 4, 1, false, 2, 2, false, true>, 2>(p);
    p = plain(128, 128, 190);
    p.n_head_kv = p.k_heads = p.v_heads = 2, p.group = 4, p.n_tok = 2, p.mean = true;
    check<latent_shape<128, 128, 3, 128, 2, 2, 4, false, 2, 2, false, true>, 1>(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_palu),        cmocka_unit_test(test_short),
        cmocka_unit_test(test_means),       cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_even),        cmocka_unit_test(test_queries),
        cmocka_unit_test(test_heads_of_64), cmocka_unit_test(test_small_cards),
        cmocka_unit_test(test_rotated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
