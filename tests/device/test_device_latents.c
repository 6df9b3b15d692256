/* Attention over latents on the emulated card, by fast kernels and by the plain one: a cache there
 * and one in RAM get the same rows, and the CPU attends to those in RAM. */
#include "attention/device_call.h"
#include "cache/cache.h"
#include "cache/move_project.h"
#include "device/modules.h"
#include "support.h"
#include "support_basis.h"
#include "test.h"

#include <math.h>

enum { D = 128, HEADS = 4, WIDTH = D * HEADS, ROWS = 330, PAIRS = D / 2 };

struct setup {
    const char *recipe;
    int n_head, skip; /* rows of a block that are not rotated: pairs */
    float softcap;
    bool fast; /* a kernel is made for it */
    double error;
};

/* Fast kernels have K's up-projection in 8 bits. */
static const struct setup setups[] = {
    {"body: k=latent25%(pre)+rot4(nomean,nosigma) v=latent75%+rot4; window 20: f16", 4, 0, 0, true,
     1e-5},
    {"sink 4: f16; body: k=latent25%(pre)+rot4(nomean,nosigma) v=latent50%+rot4; window 20: f16",
     16, 16, 0, true, 1e-5},
    {"body: k=latent50%+rot4(nomean,nosigma) v=latent50%+rot4; window 20: f16", 4, 0, 0, true,
     1e-5},
    {"body: k=latent25%(pre)+rot4(nomean,nosigma) v=latent75%+rot4; window 20: f16", 4, 0, 30,
     false, 1e-6},
    {"body: k=latent25%(pre)+rot4 v=latent75%+rot2(trellis); window 20: f16", 8, 0, 0, false, 1e-6},
};

static void attend_here(struct lk_attn a, float *out) {
    a.out = out;
    a.n_thread = 1;
    a.partial = malloc(lk_attn_partial_floats(a.n_head, a.n_head_kv, D + WIDTH, a.n_tok, 1) *
                       sizeof(float));
    a.scratch = aligned_alloc(64, lk_attn_scratch_floats(WIDTH) * sizeof(float));
    lk_attn_items(&a, 0, 1);
    lk_attn_combine(&a, lk_attn_ranges(&a, a.k, a.v), 0, 1);
    free(a.partial), free(a.scratch);
}

/* The same call leaves a result, with extra partials. */
static void leave_result(struct lk_device *device, struct lk_attn a,
                         const struct lk_attn_packet *parts, const float *partial) {
    const struct lk_device_functions *f = device->call;
    size_t n_row = (size_t)a.n_tok * a.n_head, n = n_row * (D + LK_ATTN_SUMS), n_out = n_row * D;
    float *extra = malloc(2 * n * sizeof *extra), *want = malloc(2 * n_out * sizeof *want),
          *got = want + n_out;
    struct lk_device_piece piece = {0, 0, a.n_tok};
    struct lk_device_attend call;
    uint64_t room, out;
    struct random r = {3};
    for (size_t i = 0; i < n; i++) extra[i] = random_gauss(&r) + (i % (D + 2) == D + 1 ? 9 : 0);
    assert_int_equal(f->alloc(device, 2 * n * sizeof(float), &room, NULL), LK_OK);
    assert_int_equal(f->alloc(device, n_out * sizeof(float), &out, NULL), LK_OK);
    assert_int_equal(f->upload(device, room, extra, n * sizeof(float), NULL), LK_OK);
    struct lk_attn there = a;
    there.extra_partial = (float *)(uintptr_t)room;
    there.partial = (float *)(uintptr_t)room + n, there.out = (float *)(uintptr_t)out;
    assert_true(lk_attn_device_joins(&there));
    lk_attn_device_call(&there, &piece, parts, &call);
    assert_int_equal(f->attend(device, &call, NULL, 1, NULL), LK_OK);
    assert_int_equal(f->download(device, got, out, n_out * sizeof(float), NULL), LK_OK);
    memcpy(extra + n, partial, n * sizeof(float));
    a.partial = extra + n, a.extra_partial = extra, a.out = want, a.n_thread = 1, a.restored = true;
    lk_attn_combine(&a, 1, 0, 1);
    assert_true(nmse(got, want, n_out) < 1e-11);
    f->free(device, room, 2 * n * sizeof(float));
    f->free(device, out, n_out * sizeof(float));
    free(extra), free(want);
}

/* Returns whether a fast kernel had a segment. */
static bool attend_there(struct lk_device *device, struct lk_attn a, float *out) {
    const struct lk_device_functions *f = device->call;
    size_t n_row = (size_t)a.n_tok * a.n_head, bytes = n_row * (D + LK_ATTN_SUMS) * sizeof(float);
    struct lk_device_piece piece = {0, 0, a.n_tok};
    struct lk_device_attend call;
    uint64_t partial, q, at;
    float *here = malloc(bytes);
    lk_err err = {0};
    bool fast = false;
    assert_int_equal(f->alloc(device, bytes, &partial, NULL), LK_OK);
    assert_int_equal(f->alloc(device, n_row * D * sizeof(float), &q, NULL), LK_OK);
    assert_int_equal(f->upload(device, q, a.q, n_row * D * sizeof(float), NULL), LK_OK);
    a.q = (float *)(uintptr_t)q, a.partial = (float *)(uintptr_t)partial;
    struct lk_attn_packet parts;
    size_t size = lk_attn_device_packet(&a, 0, NULL, &parts);
    char *packet = malloc(size);
    assert_int_equal(f->alloc(device, size, &at, NULL), LK_OK);
    lk_attn_device_packet(&a, at, packet, &parts);
    lk_attn_device_call(&a, &piece, &parts, &call);
    assert_int_equal(f->upload(device, at, packet, size, NULL), LK_OK);
    if (f->attend(device, &call, NULL, 1, &err)) fail_msg("%s", err.msg);
    assert_int_equal(f->download(device, here, partial, bytes, NULL), LK_OK);
    for (int i = 0; i < call.n_segment; i++) fast |= call.segment[i].fast;
    leave_result(device, a, &parts, here);
    a.partial = here, a.out = out, a.n_thread = 1, a.restored = true;
    lk_attn_combine(&a, 1, 0, 1);
    f->free(device, at, size);
    f->free(device, partial, bytes);
    f->free(device, q, n_row * D * sizeof(float));
    free(here), free(packet);
    return fast;
}

/* Attention of the newest n tokens in both caches. */
static void compare(const struct setup *s, struct lk_device *device,
                    struct lk_cache *const cache[2], const struct lk_rope *rope, const float *q,
                    int n) {
    struct lk_attn a = {.kernels = lk_kernels_choose("reference"),
                        .n_head = s->n_head,
                        .n_head_kv = HEADS,
                        .d_head = D,
                        .n_tok = n,
                        .scale = 0.1f,
                        .softcap = s->softcap,
                        .rope = rope,
                        .q = q};
    size_t n_out = (size_t)n * s->n_head * D;
    float *want = malloc(n_out * sizeof *want), *got = malloc(n_out * sizeof *got);
    double error = 0, energy = 0;
    a.k = &cache[0]->kv[0][LK_K], a.v = &cache[0]->kv[0][LK_V];
    attend_here(a, want);
    a.k = &cache[1]->kv[0][LK_K], a.v = &cache[1]->kv[0][LK_V];
    assert_null(lk_attn_device_refuses(&a));
    assert_int_equal(attend_there(device, a, got), s->fast);
    for (size_t i = 0; i < n_out; i++) {
        error += (got[i] - want[i]) * (double)(got[i] - want[i]);
        energy += want[i] * (double)want[i];
    }
    printf("%s: NMSE %.1e\n", s->recipe, error / energy);
    if (!(error < s->error * energy)) fail_msg("%s: NMSE %.2e", s->recipe, error / energy);
    free(want), free(got);
}

static void append(struct lk_cache *cache, float *const x[2], int from, int n) {
    assert_int_equal(lk_cache_prepare(cache, 0, 1, n, n, NULL), LK_OK);
    for (int side = 0; side < 2; side++)
        assert_int_equal(lk_cache_append(cache, 0, side, x[side] + (size_t)from * WIDTH, n, NULL),
                         LK_OK);
}

static void check(const struct setup *s, struct lk_device *device,
                  const struct lk_basis *const *basis, unsigned seed) {
    struct lk_rope rope[2];
    double speed[PAIRS];
    for (int j = 0; j < PAIRS; j++) speed[j] = pow(10000, -j / (double)PAIRS);
    for (int i = 0; i < 2; i++) lk_rope_init(&rope[i], PAIRS - s->skip, s->skip == 0, 1, speed);
    struct lk_ledger ledger = {0}, there = {0};
    struct lk_cache_shape shape = {.n_layer = 1,
                                   .n_head_kv = HEADS,
                                   .d_head = D,
                                   .n_head = s->n_head,
                                   .n_ctx = 4096,
                                   .rope = rope,
                                   .basis = basis};
    struct lk_cache *cache[2];
    lk_recipe *recipe;
    lk_err err = {0};
    if (lk_recipe_parse(&recipe, s->recipe, &err)) fail_msg("%s: %s", s->recipe, err.msg);
    if (lk_cache_new(&cache[0], recipe, &shape, &ledger, &err)) fail_msg("%s", err.msg);
    shape.device = device, shape.device_ledger = &there;
    if (lk_cache_new(&cache[1], recipe, &shape, &ledger, &err)) fail_msg("%s", err.msg);
    struct random r = {seed};
    size_t n_q = (size_t)s->n_head * D;
    float *x[2], *q = malloc(8 * n_q * sizeof *q);
    for (int side = 0; side < 2; side++) x[side] = malloc(ROWS * WIDTH * sizeof(float));
    for (size_t i = 0; i < (size_t)ROWS * WIDTH; i++)
        x[0][i] = random_gauss(&r), x[1][i] = random_gauss(&r);
    for (size_t i = 0; i < 8 * n_q; i++) q[i] = random_gauss(&r);
    static const int steps[] = {100, 120, 70, 1, 3};
    for (size_t i = 0, done = 0; i < sizeof steps / sizeof *steps; done += steps[i++]) {
        for (int c = 0; c < 2; c++) append(cache[c], x, (int)done, steps[i]);
        if (steps[i] < 8) compare(s, device, cache, rope, q, steps[i]);
        for (int c = 0; c < 2; c++)
            for (int side = 0; side < 2; side++)
                assert_int_equal(lk_cache_age(cache[c], 0, side, NULL), LK_OK);
        assert_int_equal(lk_pool_take_fault(&cache[1]->pool), LK_OK);
    }
    uint64_t scratch = lk_ledger_bytes(&there, LK_FOR_SCRATCH);
    lk_cache_drop_scratch(cache[1]); /* as a checkpoint does, which has no rows to project */
    assert_true(lk_projecting_bytes(cache[1]) > 0);
    assert_int_equal(scratch - lk_ledger_bytes(&there, LK_FOR_SCRATCH),
                     lk_projecting_bytes(cache[1]));
    for (int c = 0; c < 2; c++) lk_cache_free(cache[c]);
    assert_int_equal(lk_ledger_bytes(&there, LK_FOR_WEIGHTS), 0);
    free(q), free(x[0]), free(x[1]);
    lk_recipe_free(recipe);
}

static void latents_are_attended_to(void **state) {
    (void)state;
    struct random r = {11};
    struct lk_basis k = random_basis(&r, 1, WIDTH, WIDTH / 2, WIDTH / 2, false, true),
                    v = random_basis(&r, 1, WIDTH, WIDTH * 3 / 4, WIDTH / 2, false, true);
    const struct lk_basis *basis[LK_N_BASIS] = {
        [LK_BASIS_K] = &k, [LK_BASIS_KPRE] = &k, [LK_BASIS_V] = &v};
    struct lk_device *device;
    lk_err err = {0};
    if (lk_device_open("emulated", &device, &err)) fail_msg("%s", err.msg);
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++)
        check(&setups[i], device, basis, (unsigned)i + 1);
    lk_device_close(device);
    free_basis(&k);
    free_basis(&v);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(latents_are_attended_to)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
