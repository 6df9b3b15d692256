/* Attention over a real cache as commands for a device, which the emulated device executes on the
 * blocks in RAM, compared with attention on the CPU. */
#include "attention/device_call.h"
#include "cache/cache.h"
#include "device/modules.h"
#include "support.h"
#include "test.h"

#include <math.h>

struct setup {
    const char *recipe;
    int n_head, n_head_kv, d_head, n_swa;
    float alibi, softcap;
};

static const struct setup setups[] = {
    {"all: f16", 6, 2, 64, 0, 0, 0},
    {"sink 4: f16; body: k=rot3 v=rot2; window 64: f16", 8, 2, 128, 0, 0, 0},
    {"sink 4: f16; body: k=rot3 v=rot2; recent 20%: rot4; window 64: f16", 8, 2, 128, 0, 0, 30},
    {"sink 4: f16; body: rot4; recent 10%: rot8; window 33: int8", 9, 3, 96, 0, 0, 0},
    {"body: kivi2; residual 128: f16", 6, 2, 64, 0, 8, 0},
    {"body: asym4; window 20: f16", 4, 4, 80, 0, 0, 0},
    {"sink 4: f16; body: rot4; window 40: f16", 4, 1, 128, 75, 0, 0},
    {"sink 4(shift): f16; body: none; window 90: int8; window 20: f16", 6, 2, 64, 0, 0, 0},
    {"sink 4: f16; body: none; window 90: f16", 6, 2, 64, 0, 8, 0},
    {"sink 4(shift): f16; body: none; window 90: f16", 6, 2, 64, 0, 8, 0},
    {"body: k=rot4 v=rot3; window 40: k=rot8(nosigma) v=rot4; window 16: f16", 8, 2, 128, 0, 0, 0},
    {"body: k=rot4(sigma) v=rot3(sigma); window 40: k=rot8(nosigma) v=rot4(nosigma); window 16: "
     "f16",
     8, 2, 64, 0, 0, 0},
};

enum { ROWS = 420, QUERIES = 11 };

/* Attention of the newest tokens on the CPU: out [n_tok][n_head][d]. */
static void attend_here(struct lk_attn a, float *out) {
    a.out = out;
    a.n_thread = 1;
    a.partial =
        malloc(lk_attn_partial_floats(a.n_head, a.n_head_kv, a.d_head, a.n_tok, 1) * sizeof(float));
    a.scratch = aligned_alloc(64, lk_attn_scratch_floats(a.d_head) * sizeof(float));
    lk_attn_items(&a, 0, 1);
    lk_attn_combine(&a, lk_attn_ranges(&a, a.k, a.v), 0, 1);
    free(a.partial), free(a.scratch);
}

/* The same by the device, LK_DEVICE_TOKENS tokens at a time. whole: it leaves the result, and the
 * maximum and sum of each softmax; else the ranges are joined here. sums [n_tok][n_head][2]: the
 * maximum and sum of the first range. */
static void attend_there(struct lk_device *device, struct lk_attn a, bool whole, float *out,
                         float *sums) {
    int n_range = lk_attn_device_ranges(&a);
    size_t n_q = (size_t)a.n_tok * a.n_head * a.d_head;
    size_t bytes = (size_t)n_range * a.n_tok * a.n_head * (a.d_head + LK_ATTN_SUMS) * sizeof(float);
    uint64_t partial, result, q;
    float *here = malloc(bytes), *queries = malloc(2 * n_q * sizeof *queries);
    memcpy(queries, a.q, n_q * sizeof *queries);
    if (lk_attn_device_shifts(&a)) lk_attn_shift_queries(&a, queries + n_q);
    assert_int_equal(device->call->alloc(device, bytes, &partial, NULL), LK_OK);
    assert_int_equal(device->call->alloc(device, n_q * sizeof(float), &result, NULL), LK_OK);
    assert_int_equal(device->call->alloc(device, 2 * n_q * sizeof(float), &q, NULL), LK_OK);
    assert_int_equal(device->call->upload(device, q, queries, 2 * n_q * sizeof(float), NULL),
                     LK_OK);
    a.q = (float *)(uintptr_t)q;
    a.partial = (float *)(uintptr_t)partial;
    a.out = whole ? (float *)(uintptr_t)result : NULL;
    for (int t = 0; t < a.n_tok; t += LK_DEVICE_TOKENS)
        for (int range = 0; range < n_range; range++) {
            struct lk_device_attend call;
            lk_err err = {0};
            int n_tok = a.n_tok - t < LK_DEVICE_TOKENS ? a.n_tok - t : LK_DEVICE_TOKENS;
            struct lk_device_piece piece = {range, t, n_tok};
            struct lk_attn_packet parts;
            size_t size = lk_attn_device_packet(&a, 0, NULL, &parts);
            char *packet = malloc(size);
            uint64_t at;
            assert_int_equal(device->call->alloc(device, size, &at, NULL), LK_OK);
            assert_int_equal(lk_attn_device_packet(&a, at, packet, &parts), size);
            lk_attn_device_call(&a, &piece, &parts, &call);
            assert_int_equal(device->call->upload(device, at, packet, size, NULL), LK_OK);
            if (device->call->attend(device, &call, NULL, 1, &err)) fail_msg("%s", err.msg);
            assert_int_equal(device->call->sync(device, NULL), LK_OK);
            device->call->free(device, at, size);
            free(packet);
        }
    assert_int_equal(device->call->download(device, here, partial, bytes, NULL), LK_OK);
    for (int i = 0; i < a.n_tok * a.n_head; i++)
        memcpy(sums + 2 * i, here + (size_t)i * (a.d_head + LK_ATTN_SUMS) + a.d_head,
               2 * sizeof *sums);
    a.partial = here, a.out = out, a.n_thread = 1;
    if (whole)
        assert_int_equal(device->call->download(device, out, result, n_q * sizeof *out, NULL),
                         LK_OK);
    else
        lk_attn_combine(&a, n_range, 0, 1);
    device->call->free(device, partial, bytes);
    device->call->free(device, result, n_q * sizeof(float));
    device->call->free(device, q, 2 * n_q * sizeof(float));
    free(here), free(queries);
}

static void check(struct lk_device *device, const struct setup *s, unsigned seed) {
    static const uint8_t is_swa[] = {1};
    struct lk_cache_shape shape = {.n_layer = 1, .n_head_kv = s->n_head_kv, .d_head = s->d_head};
    if (s->n_swa) shape.n_swa = s->n_swa, shape.is_swa = is_swa;
    struct lk_rope rope[2];
    double speed[32];
    for (int j = 0; j < 32; j++) speed[j] = pow(10000, -j / 32.0);
    for (int i = 0; i < 2; i++) lk_rope_init(&rope[i], 32, true, 1, speed);
    shape.rope = rope;
    struct lk_ledger ledger = {0};
    struct lk_cache *cache;
    lk_recipe *recipe;
    struct random r = {seed};
    lk_err err = {0};
    if (lk_recipe_parse(&recipe, s->recipe, &err)) fail_msg("%s: %s", s->recipe, err.msg);
    assert_int_equal(lk_cache_new(&cache, recipe, &shape, &ledger, NULL), LK_OK);
    float sinks[16];
    for (int h = 0; h < 16; h++) sinks[h] = (float)(h % 5) - 1;
    size_t width = (size_t)s->n_head_kv * s->d_head, n_q = (size_t)s->n_head * s->d_head;
    float *x[2], *q = malloc(ROWS * n_q * sizeof *q);
    for (int side = 0; side < 2; side++) x[side] = malloc(ROWS * width * sizeof(float));
    for (size_t i = 0; i < ROWS * width; i++)
        x[0][i] = random_gauss(&r) + (float)(i % 5), x[1][i] = random_gauss(&r);
    for (size_t i = 0; i < ROWS * n_q; i++) q[i] = random_gauss(&r);

    int done = 0, steps[] = {200, 37, 1, 100, 1, 70, QUERIES};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        int n = steps[i];
        assert_int_equal(lk_cache_prepare(cache, 0, 1, n, n, NULL), LK_OK);
        for (int side = 0; side < 2; side++) {
            if (side == LK_K) lk_cache_observe(cache, 0, q + done * n_q, n, s->n_head);
            assert_int_equal(lk_cache_append(cache, 0, side, x[side] + done * width, n, NULL),
                             LK_OK);
        }
        done += n;
        struct lk_attn a = {.k = &cache->kv[0][LK_K],
                            .v = &cache->kv[0][LK_V],
                            .kernels = lk_kernels_choose("reference"),
                            .n_head = s->n_head,
                            .n_head_kv = s->n_head_kv,
                            .d_head = s->d_head,
                            .n_tok = n < QUERIES ? n : QUERIES,
                            .scale = 0.1f,
                            .alibi_max_bias = s->alibi,
                            .softcap = s->softcap,
                            .rope = rope};
        a.q = q + (done - a.n_tok) * n_q;
        if (seed % 2) a.sink = sinks;
        size_t n_out = a.n_tok * n_q;
        float *want = malloc(n_out * sizeof *want), *got = malloc(n_out * sizeof *got);
        assert_null(lk_attn_device_refuses(&a));
        if (a.k->n_level == 1) /* all heads of a run of rows are one command */
            assert_int_equal(lk_attn_device_weights(&a, NULL, 0, 1, true, 0, NULL), 1);
        attend_here(a, want);
        size_t n_sum = 2 * (size_t)a.n_tok * a.n_head;
        float *sums = malloc(2 * n_sum * sizeof *sums);
        for (int whole = 0; whole < (lk_attn_device_ranges(&a) > 1 ? 1 : 2); whole++) {
            attend_there(device, a, whole, got, sums + whole * n_sum);
            double error = nmse(got, want, n_out);
            if (!(error < 1e-6)) fail_msg("%s, %d rows: NMSE %.2e", s->recipe, done, error);
            if (whole) assert_memory_equal(sums, sums + n_sum, n_sum * sizeof *sums);
        }
        free(want), free(got), free(sums);
        for (int side = 0; side < 2; side++)
            assert_int_equal(lk_cache_age(cache, 0, side, NULL), LK_OK);
    }
    free(q), free(x[0]), free(x[1]);
    lk_cache_free(cache);
    lk_recipe_free(recipe);
}

static void a_device_attends_as_the_cpu(void **state) {
    lk_err err = {0};
    struct lk_device *device;
    if (lk_device_open("emulated", &device, &err)) fail_msg("%s", err.msg);
    for (size_t i = 0; i < sizeof setups / sizeof setups[0]; i++)
        check(device, &setups[i], (unsigned)i + 1);
    lk_device_close(device);
}

/* ---- packets that are not made again ---- */

struct made {
    char *source, *packet;
    size_t n_source, n_packet;
};

static struct made make(const struct lk_attn *a) {
    struct lk_attn_packet parts;
    struct made m = {.n_source = lk_attn_device_sources(a, NULL),
                     .n_packet = lk_attn_device_packet(a, 4096, NULL, &parts)};
    m.source = malloc(m.n_source), m.packet = malloc(m.n_packet);
    memset(m.source, 0xaa, m.n_source), memset(m.packet, 0x55, m.n_packet);
    assert_int_equal(lk_attn_device_sources(a, m.source), m.n_source);
    assert_int_equal(lk_attn_device_packet(a, 4096, m.packet, &parts), m.n_packet);
    return m;
}

static bool same_bytes(const char *a, size_t n_a, const char *b, size_t n_b) {
    return n_a == n_b && memcmp(a, b, n_a) == 0;
}

/* Rows come, age and go, also to slabs that were given back: equal sources have equal packets, and
 * a step that fills no block changes neither. */
static void packets_follow_from_their_sources(void **state) {
    enum { OPS = 60, HEADS = 2, D = 64, STEP = 50 };
    static const char *const recipes[] = {
        "best-3", "all: rot4", "sink 4: f16; body: rot2; recent 64: rot4; window 32: f16",
        "eager; body: k=rot3(nosigma) v=asym2; window 8: rot8"};
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        struct lk_cache_shape shape = {.n_layer = 1, .n_head_kv = HEADS, .d_head = D, .n_head = 4};
        struct lk_ledger ledger = {0};
        struct lk_cache *cache;
        lk_recipe *recipe;
        struct random r = {(unsigned)i + 1};
        struct made made[OPS];
        float x[STEP * HEADS * D], q[STEP * 4 * D];
        int n_same = 0;
        assert_int_equal(lk_recipe_parse(&recipe, recipes[i], NULL), LK_OK);
        shape.n_ctx = OPS * STEP;
        assert_int_equal(lk_cache_new(&cache, recipe, &shape, &ledger, NULL), LK_OK);
        for (int op = 0; op < OPS; op++) {
            int n = op % 3 ? 1 : random_int(&r, 1, STEP);
            if (op % 20 == 19) lk_cache_clear(cache);
            for (int j = 0; j < n * HEADS * D; j++) x[j] = random_gauss(&r);
            for (int j = 0; j < n * 4 * D; j++) q[j] = random_gauss(&r);
            assert_int_equal(lk_cache_prepare(cache, 0, 1, n, n, NULL), LK_OK);
            lk_cache_observe(cache, 0, q, n, 4);
            for (int side = 0; side < 2; side++)
                assert_int_equal(lk_cache_append(cache, 0, side, x, n, NULL), LK_OK);
            struct lk_attn a = {.k = &cache->kv[0][LK_K],
                                .v = &cache->kv[0][LK_V],
                                .n_head = 4,
                                .n_head_kv = HEADS,
                                .d_head = D,
                                .n_tok = 1};
            made[op] = make(&a);
            for (int e = 0; e < op; e++) {
                if (!same_bytes(made[e].source, made[e].n_source, made[op].source,
                                made[op].n_source))
                    continue;
                if (!same_bytes(made[e].packet, made[e].n_packet, made[op].packet,
                                made[op].n_packet))
                    fail_msg("%s: the packet changed between %d and %d", recipes[i], e, op);
                n_same += e == op - 1;
            }
            for (int side = 0; side < 2; side++)
                assert_int_equal(lk_cache_age(cache, 0, side, NULL), LK_OK);
        }
        if (n_same < OPS / 4) fail_msg("%s: %d of %d packets stay", recipes[i], n_same, OPS);
        for (int op = 0; op < OPS; op++) free(made[op].source), free(made[op].packet);
        lk_cache_free(cache);
        lk_recipe_free(recipe);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_device_attends_as_the_cpu),
                                       cmocka_unit_test(packets_follow_from_their_sources)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
