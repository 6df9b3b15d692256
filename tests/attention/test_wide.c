/* Latents of more channels than any head has. */
#include "attention/attention.h"
#include "cache/cache.h"
#include "test.h"

static float *gaussians(struct random *r, size_t n) {
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = random_gauss(r);
    return x;
}

/* 16 heads of 256 share latents of 2,048 channels and more. The basis keeps some channels, so that
 * rows with nothing else are reconstructed. */
static void test_wide_latents(void **state) {
    enum { HEADS = 16, D = 256, ALL = HEADS * D, ROWS = 70, EVERY = 2 };
    static const char *const text[] = {"latent50%", "latent50%+rot4", "latent50%+int8",
                                       "k=latent50%(pre)+rot4(nomean) v=latent50%+rot3"};
    static const double limit[] = {1e-6, 3e-2, 1e-3, 8e-2};
    struct random r = {3};
    int n_comp = ALL / EVERY;
    float *down = calloc((size_t)n_comp * ALL, sizeof *down);
    for (int j = 0; j < n_comp; j++) down[(size_t)j * ALL + EVERY * j] = 1;
    int32_t rank = n_comp;
    struct lk_basis basis = {.n_group = 1,
                             .width = ALL,
                             .n_comp = n_comp,
                             .down = {.f32 = down},
                             .up = {.f32 = down},
                             .rank = &rank};
    const struct lk_basis *table[LK_N_BASIS] = {&basis, &basis, &basis};
    float *x = calloc((size_t)ROWS * ALL, sizeof *x), *q = gaussians(&r, ALL);
    for (int i = 0; i < ROWS * ALL; i += EVERY) x[i] = random_gauss(&r);
    float *out[2] = {malloc(ALL * sizeof(float)), malloc(ALL * sizeof(float))};
    for (int i = 0; i < 4; i++) {
        for (int rows = 0; rows < 2; rows++) {
            struct lk_ledger ledger = {0};
            struct lk_cache_shape shape = {.n_layer = 1,
                                           .n_head_kv = HEADS,
                                           .d_head = D,
                                           .basis = table,
                                           .kernels = lk_kernels_choose(NULL)};
            struct lk_cache *cache;
            lk_recipe *recipe;
            lk_err err = {0};
            assert_int_equal(lk_recipe_parse(&recipe, rows ? "f16" : text[i], NULL), LK_OK);
            if (lk_cache_new(&cache, recipe, &shape, &ledger, &err)) fail_msg("%s", err.msg);
            for (int side = 0; side < 2; side++) {
                lk_cache_observe(cache, 0, q, 1, HEADS);
                assert_int_equal(lk_cache_append(cache, 0, side, x, ROWS, NULL), LK_OK);
                assert_int_equal(lk_cache_age(cache, 0, side, NULL), LK_OK);
                if (!rows) assert_int_equal(cache->kv[0][side].level[0].d_part, n_comp);
            }
            struct lk_cache_widths width = lk_cache_max_widths(cache);
            struct lk_attn a = {.k = &cache->kv[0][LK_K],
                                .v = &cache->kv[0][LK_V],
                                .kernels = shape.kernels,
                                .n_head = HEADS,
                                .n_head_kv = HEADS,
                                .d_head = D,
                                .n_tok = 1,
                                .n_thread = 1,
                                .scale = 1 / 16.0f,
                                .q = q,
                                .out = out[rows]};
            a.partial = malloc(lk_attn_partial_floats(HEADS, HEADS, D + width.latent, 1, 1) *
                               sizeof(float));
            a.scratch = aligned_alloc(64, lk_attn_scratch_floats(width.part) * sizeof(float));
            lk_attn_items(&a, 0, 1);
            lk_attn_combine(&a, lk_attn_ranges(&a, a.k, a.v), 0, 1);
            free(a.partial), free(a.scratch);
            lk_cache_free(cache);
            lk_recipe_free(recipe);
        }
        double e = nmse(out[0], out[1], ALL);
        if (!(e < limit[i])) fail_msg("%s: nmse %g", text[i], e);
    }
    free(x), free(q), free(out[0]), free(out[1]), free(down);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_wide_latents)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
