/* Latent attention: V's rows are keys too, and K holds only the rotary part. Attention over what
 * the cache holds is compared with a plain sum over its decoded rows. */
#include "attention/attention.h"
#include "cache/cache.h"
#include "support_baselines.h"
#include "test.h"

enum { HEADS = 5, LATENT = 128, ROPE = 32, QUERY = LATENT + ROPE, MAX_TOK = 70, THREADS = 3 };

static struct lk_cache *new_cache(const char *text, const struct lk_kernels *kernels,
                                  struct lk_ledger *ledger, lk_recipe **recipe) {
    struct lk_cache_shape shape = {.n_layer = 1,
                                   .n_head_kv = 1,
                                   .d_head = LATENT,
                                   .d_rope = ROPE,
                                   .n_ctx = 4096,
                                   .kernels = kernels};
    struct lk_cache *cache;
    lk_err err = {0};
    if (lk_recipe_parse(recipe, text, &err) != LK_OK) fail_msg("%s: %s", text, err.msg);
    if (lk_cache_new(&cache, *recipe, &shape, ledger, &err) != LK_OK)
        fail_msg("%s: %s", text, err.msg);
    return cache;
}

/* Append n random rows, in parts, and age them. */
static void append_rows(struct lk_cache *cache, struct random *r, int n) {
    static const int width[] = {ROPE, LATENT};
    for (int at = 0, now; at < n; at += now) {
        now = n - at < 50 ? n - at : 50;
        assert_int_equal(lk_cache_prepare(cache, 0, 1, now, 1, NULL), LK_OK);
        for (int side = 0; side < 2; side++) {
            float x[50 * LATENT];
            for (int i = 0; i < now * width[side]; i++) x[i] = random_gauss(r);
            assert_int_equal(lk_cache_append(cache, 0, side, x, now, NULL), LK_OK);
        }
        for (int side = 0; side < 2; side++)
            assert_int_equal(lk_cache_age(cache, 0, side, NULL), LK_OK);
    }
}

/* The held rows of one side [n][d], decoded. */
static float *read_rows(const struct lk_kv *kv, int d) {
    int64_t n = kv->n_tok - kv->first;
    float *x = malloc((size_t)n * d * sizeof *x);
    lk_kv_read_positions(kv, kv->first, kv->n_tok, 0, &lk_kernels_reference, x, d);
    return x;
}

/* What the last n_tok tokens get: out [n_tok][HEADS][LATENT]. */
static void attend_plainly(const struct lk_cache *cache, const float *q, int n_tok, float scale,
                           float *out) {
    const struct lk_kv *k = &cache->kv[0][LK_K], *v = &cache->kv[0][LK_V];
    float *rope = read_rows(k, ROPE), *latent = read_rows(v, LATENT);
    int n = (int)(k->n_tok - k->first);
    double *weight = malloc((size_t)n * sizeof *weight);
    for (int i = 0; i < n_tok * HEADS; i++, q += QUERY, out += LATENT) {
        int n_seen = n - n_tok + 1 + i / HEADS;
        double max = -INFINITY, total = 0, sum[LATENT] = {0};
        for (int t = 0; t < n_seen; t++) {
            weight[t] = 0;
            for (int c = 0; c < LATENT; c++) weight[t] += (double)q[c] * latent[t * LATENT + c];
            for (int c = 0; c < ROPE; c++) weight[t] += (double)q[LATENT + c] * rope[t * ROPE + c];
            weight[t] *= scale;
            max = fmax(max, weight[t]);
        }
        for (int t = 0; t < n_seen; t++) {
            double w = exp(weight[t] - max);
            total += w;
            for (int c = 0; c < LATENT; c++) sum[c] += w * latent[t * LATENT + c];
        }
        for (int c = 0; c < LATENT; c++) out[c] = (float)(sum[c] / total);
    }
    free(rope), free(latent), free(weight);
}

static void attend(const struct lk_cache *cache, const struct lk_kernels *kernels, const float *q,
                   int n_tok, float scale, float *out) {
    struct lk_attn a = {.k = &cache->kv[0][LK_K],
                        .v = &cache->kv[0][LK_V],
                        .kernels = kernels,
                        .n_head = HEADS,
                        .n_head_kv = 1,
                        .d_head = LATENT,
                        .d_rope = ROPE,
                        .n_tok = n_tok,
                        .n_thread = THREADS,
                        .scale = scale,
                        .q = q,
                        .out = out};
    size_t scratch = lk_attn_scratch_floats(lk_cache_max_widths(cache).part) * THREADS;
    a.partial = malloc(lk_attn_partial_floats(HEADS, 1, LATENT, n_tok, THREADS) * sizeof(float));
    a.scratch = aligned_alloc(64, scratch * sizeof(float));
    for (int i = 0; i < THREADS; i++) lk_attn_items(&a, i, THREADS);
    for (int i = 0; i < THREADS; i++) lk_attn_combine(&a, lk_attn_ranges(&a, a.k, a.v), i, THREADS);
    free(a.partial), free(a.scratch);
}

static void check_recipe(const char *text, const char *table, double limit) {
    static const int length[] = {1, 31, 75, 640}, tokens[] = {1, 3, 70};
    const struct lk_kernels *kernels = lk_kernels_choose(table);
    float scale = 1 / sqrtf(QUERY), *q = malloc(MAX_TOK * HEADS * QUERY * sizeof *q);
    float *out[2] = {malloc(MAX_TOK * HEADS * LATENT * sizeof(float)),
                     malloc(MAX_TOK * HEADS * LATENT * sizeof(float))};
    for (int l = 0; kernels && l < 4; l++) {
        struct random r = {(uint64_t)l + 1};
        struct lk_ledger ledger = {0};
        lk_recipe *recipe;
        struct lk_cache *cache = new_cache(text, kernels, &ledger, &recipe);
        append_rows(cache, &r, length[l]);
        for (int i = 0; i < MAX_TOK * HEADS * QUERY; i++) q[i] = random_gauss(&r);
        for (int t = 0; t < 3 && tokens[t] <= length[l]; t++) {
            attend_plainly(cache, q, tokens[t], scale, out[0]);
            attend(cache, kernels, q, tokens[t], scale, out[1]);
            double e = nmse(out[1], out[0], (size_t)tokens[t] * HEADS * LATENT);
            if (!(e <= limit))
                fail_msg("%s, %s, %d rows, %d tokens: nmse %g", text, table, length[l], tokens[t],
                         e);
        }
        lk_cache_free(cache);
        lk_recipe_free(recipe);
        assert_int_equal(lk_ledger_bytes(&ledger, LK_FOR_CACHE), 0);
    }
    free(q), free(out[0]), free(out[1]);
}

/* Kernels round queries and weights of codes to 8 bits. */
static void test_every_codec(void **state) {
    static const char *const codec[] = {"rot4", "rot1",  "rot3(mean,sigma)", "rot2(trellis)",
                                        "int8", "kivi4", "asym4(g32)",       "asym3(hadamard)",
                                        "hqq4", "rot8",  "kvquant3",         "kvarn4"};
    static const char *const table[] = {"reference", "avx2", "avxvnni", "avx512", "amx", "neon"};
    for (size_t t = 0; t < sizeof table / sizeof *table; t++) {
        bool exact = strcmp(table[t], "reference") == 0;
        check_recipe("f16", table[t], exact ? 1e-6 : 1e-5);
        for (size_t i = 0; i < sizeof codec / sizeof *codec; i++) {
            char text[96];
            snprintf(text, sizeof text, "sink 4: f16; body: k=int8 v=%s; window 40: f16", codec[i]);
            check_recipe(text, table[t], exact ? 1e-6 : 1e-3);
        }
    }
}

/* K's codec encodes the rotary part, of at least 8 bits. The latents are held once. */
static void test_bytes(void **state) {
    struct lk_ledger ledger = {0};
    lk_recipe *recipe;
    struct lk_cache *cache = new_cache("all: k=rot2 v=rot4", NULL, &ledger, &recipe);
    struct lk_codec rot8 = {.coding = LK_ROT, .bits = 8}, rot4 = {.coding = LK_ROT, .bits = 4};
    const struct lk_level *k = &cache->kv[0][LK_K].level[0], *v = &cache->kv[0][LK_V].level[0];
    assert_int_equal(k->block_bytes, lk_codec_head_bytes(&rot8, LK_K, ROPE, LK_TILE));
    assert_int_equal(k->block_bytes, (ROPE + 2) * LK_TILE);
    assert_int_equal(v->block_bytes, lk_codec_head_bytes(&rot4, LK_V, LATENT, LK_TILE));
    assert_int_equal(v->block_bytes, (LATENT / 2 + 2) * LK_TILE);
    assert_int_equal(lk_cache_f16_bytes(&cache->shape, 10), 10 * 2 * (LATENT + ROPE));
    lk_cache_free(cache);
    lk_recipe_free(recipe);
    cache = new_cache("all: k=f16 v=rot4", NULL, &ledger, &recipe);
    assert_int_equal(cache->kv[0][LK_K].rule[0].codec.coding, LK_F16);
    lk_cache_free(cache);
    lk_recipe_free(recipe);
}

int main(void) {
    register_baselines();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_codec),
                                       cmocka_unit_test(test_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
