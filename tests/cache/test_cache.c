/* Guarantees of the cache: rows keep their order, counts predict what happens, memory is counted,
 * prepared steps allocate nothing, and a failed allocation is only an error. */
#include "cache/cache.h"
#include "support_baselines.h"
#include "support_kv.h"
#include "test.h"

enum { N_LAYER = 2, N_HEAD_KV = 2, D_HEAD = 128, N_CHANNEL = N_HEAD_KV * D_HEAD };

static const char *recipes[] = {
    "all: f16",
    "all: int8",
    "all: rot4",
    "all: kivi2",
    "sink 4: f16; body: k=rot3 v=rot2; window 64: f16",
    "sink 5: int8; body: kivi4(g64); window 40: int8",
    "body: kivi2; residual 128: f16",
    "body: kivi4(g64); residual 64: f16",
    "sink 3: f16; body: rot2; recent 10%: rot4; window 33: f16",
    "body: k=rot3(nosigma) v=rot3(mean); recent 20%: kivi4",
    "sink 4: f16; body: none; window 100: f16",
    "body: none; recent 5%: rot4; window 40: f16",
    "sink 3: int8; body: none; recent 96: k=kivi4(g64) v=rot2; window 40: rot8",
    "sink 2: asym8; body: asym2(hadamard); recent 10%: asym4(g32); window 20: f16",
    "sink 1: f16; body: kvquant4; residual 64: f16",
    "sink 4: f16; body: k=kvarn4 v=kvarn2; residual 64: f16",
    "sink 4: f16; body: rot2(trellis); recent 20%: rot3(trellis); window 40: f16",
    "body: k=hqq4 v=kvquant4; window 40: asym8(g128,hadamard)",
};

static struct lk_cache *new_cache(const char *text, const struct lk_cache_shape *shape,
                                  struct lk_ledger *ledger, lk_recipe **recipe) {
    lk_err err = {0};
    if (lk_recipe_parse(recipe, text, &err) != LK_OK) fail_msg("%s: %s", text, err.msg);
    struct lk_cache *cache = NULL;
    if (lk_cache_new(&cache, *recipe, shape, ledger, &err) != LK_OK)
        fail_msg("%s: %s", text, err.msg);
    return cache;
}

static void append_rows(struct lk_cache *cache, const float *x, int64_t n) {
    for (int layer = 0; layer < cache->shape.n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            assert_int_equal(lk_cache_append(cache, layer, side, x, n, NULL), LK_OK);
            assert_int_equal(lk_cache_age(cache, layer, side, NULL), LK_OK);
        }
}

/* Decode the rows that K or V of a layer holds into out [n_tok][N_CHANNEL]. */
static void decode_rows(const struct lk_kv *kv, float *out) {
    for (int level = 0; level < kv->n_level; level++)
        for (int64_t at = 0; at < kv->count[level].rows;) {
            int row;
            int64_t n;
            const char *block = lk_kv_locate(kv, level, at, &row, &n);
            for (int h = 0; h < N_HEAD_KV; h++)
                lk_codec_decode(
                    &(struct lk_part){&kv->rule[level].codec, kv->side, D_HEAD,
                                      kv->rule[level].block_rows, lk_kv_sigma(kv, level, h)},
                    block + h * kv->level[level].head_bytes, row, (int)n,
                    out + lk_kv_position(kv, level, at, h) * N_CHANNEL + h * D_HEAD, N_CHANNEL);
            at += n;
        }
}

static float *random_rows(struct random *r, int64_t n) {
    float *x = malloc(n * N_CHANNEL * sizeof *x);
    for (int64_t i = 0; i < n * N_CHANNEL; i++)
        x[i] = random_gauss(r) + (i % N_CHANNEL == 7 ? 8 : 0);
    return x;
}

/* Maximum error that a recipe's coarsest codec may cause on these rows. */
static double max_error(const char *text) {
    static const char *const two_bits[] = {"rot2", "kivi2", "asym2", "kvarn2"};
    for (int i = 0; i < 4; i++)
        if (strstr(text, two_bits[i])) return 0.4;
    return strstr(text, "rot") || strstr(text, "kivi") || strstr(text, "quant") ? 0.06 : 1e-3;
}

static void test_rows_keep_their_order(void **state) {
    struct lk_cache_shape shape = {.n_layer = N_LAYER, .n_head_kv = N_HEAD_KV, .d_head = D_HEAD};
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        struct random r = {i};
        struct lk_ledger ledger = {0};
        lk_recipe *recipe;
        struct lk_cache *cache = new_cache(recipes[i], &shape, &ledger, &recipe);
        enum { N = 1100 }; /* past several boundaries of every recipe */
        float *x = random_rows(&r, N), *y = malloc(N * N_CHANNEL * sizeof *y);
        for (int64_t at = 0; at < N;) {
            int64_t n = random_int(&r, 1, 90);
            if (n > N - at) n = N - at;
            assert_int_equal(lk_cache_prepare(cache, 0, N_LAYER, n, n, NULL), LK_OK);
            append_rows(cache, x + at * N_CHANNEL, n);
            at += n;
        }
        for (int side = 0; side < 2; side++) {
            const struct lk_kv *kv = &cache->kv[0][side];
            assert_int_equal(kv->n_tok, N);
            memcpy(y, x, N * N_CHANNEL * sizeof *y); /* evicted rows count as exact */
            decode_rows(kv, y);
            assert_int_equal(kv->first > 0, strstr(recipes[i], "none") != NULL);
            assert_int_equal(kv->first, cache->kv[0][LK_K].first);
            double worst = 0;
            for (int t = 0; t < N; t += 50) {
                double e = nmse(y + t * N_CHANNEL, x + t * N_CHANNEL, 50 * N_CHANNEL);
                if (e > worst) worst = e;
            }
            if (!(worst < max_error(recipes[i])))
                fail_msg("%s, %c: nmse %g", recipes[i], "kv"[side], worst);
        }
        free(x), free(y);
        lk_cache_free(cache);
        lk_recipe_free(recipe);
        for (int p = 0; p < LK_N_PURPOSE; p++) assert_int_equal(lk_ledger_bytes(&ledger, p), 0);
    }
}

/* The arithmetic on counts predicts how rows move. After lk_cache_prepare nothing is allocated. */
static void test_counts_predict_moves(void **state) {
    uint8_t is_swa[N_LAYER] = {0, 1};
    struct lk_cache_shape shape = {.n_layer = N_LAYER,
                                   .n_head_kv = N_HEAD_KV,
                                   .d_head = D_HEAD,
                                   .n_swa = 70,
                                   .is_swa = is_swa};
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        struct random r = {77 + i};
        struct lk_ledger ledger = {0};
        lk_recipe *recipe;
        struct lk_cache *cache = new_cache(recipes[i], &shape, &ledger, &recipe);
        struct lk_level_count count[LK_MAX_KV_LEVEL];
        float *x = random_rows(&r, 128);
        for (int step = 0; step < 40; step++) {
            int64_t n = random_int(&r, 1, step % 3 ? 5 : 128);
            assert_int_equal(lk_cache_prepare(cache, 0, N_LAYER, n, n, NULL), LK_OK);
            struct lk_kv *kv = &cache->kv[step % 2][step / 2 % 2];
            int64_t first = kv->first;
            memcpy(count, kv->count, sizeof count);
            lk_level_advance(kv->rule, count, kv->n_level, kv->n_tok, n, kv->n_swa, &first, NULL);
            uint64_t n_alloc = ledger.n_alloc;
            append_rows(cache, x, n);
            if (ledger.n_alloc != n_alloc)
                fail_msg("%s: allocated %d times", recipes[i], (int)(ledger.n_alloc - n_alloc));
            assert_int_equal(first, kv->first);
            for (int level = 0; level < kv->n_level; level++) {
                assert_int_equal(count[level].rows, kv->count[level].rows);
                assert_int_equal(count[level].skip, kv->count[level].skip);
                assert_int_equal(kv->level[level].n_block,
                                 lk_level_blocks(&kv->rule[level], &count[level]));
            }
        }
        free(x);
        lk_cache_free(cache);
        lk_recipe_free(recipe);
    }
}

/* A level collects 256 rows for its statistics once. A residual of K empties the level above it,
 * which then takes rows again as soon as they make a batch. */
static void test_statistics_are_collected_once(void **state) {
    enum { N = 1200, BEFORE = 400 };
    struct lk_cache_shape shape = {.n_layer = 1, .n_head_kv = N_HEAD_KV, .d_head = D_HEAD};
    struct lk_ledger ledger = {0};
    lk_recipe *recipe;
    struct lk_cache *cache =
        new_cache("body: k=rot3 v=f16; residual 64: k=rot4 v=f16", &shape, &ledger, &recipe);
    const struct lk_kv *kv = &cache->kv[0][LK_K];
    struct random r = {5};
    float *x = random_rows(&r, 1);
    int64_t most[2] = {0}; /* in the staging level, before and after */
    for (int t = 0; t < N; t++) {
        assert_int_equal(lk_cache_prepare(cache, 0, 1, 1, 1, NULL), LK_OK);
        append_rows(cache, x, 1);
        int64_t held = kv->count[kv->n_level - 1].rows;
        if (held > most[t >= BEFORE]) most[t >= BEFORE] = held;
    }
    assert_int_equal(most[0], LK_CALIBRATE_ROWS - 1);
    assert_true(most[1] < kv->rule[kv->n_level - 1].batch);
    free(x);
    lk_cache_free(cache);
    lk_recipe_free(recipe);
}

/* A share of the tokens seen so far: less than one batch more or less than the share. */
static void test_shares_of_the_text(void **state) {
    struct lk_cache_shape shape = {.n_layer = 1, .n_head_kv = N_HEAD_KV, .d_head = D_HEAD};
    struct lk_ledger ledger = {0};
    lk_recipe *recipe;
    struct lk_cache *cache = new_cache("sink 4: f16; body: asym4; recent 25%: int8; window 32: f16",
                                       &shape, &ledger, &recipe);
    struct random r = {6};
    float *x = random_rows(&r, 90);
    for (int64_t n_tok = 0; n_tok < 1500;) {
        int64_t n = random_int(&r, 1, 90);
        assert_int_equal(lk_cache_prepare(cache, 0, 1, n, n, NULL), LK_OK);
        append_rows(cache, x, n);
        n_tok += n;
        for (int side = 0; side < 2 && n_tok > 200; side++) {
            const struct lk_level_count *count = cache->kv[0][side].count;
            assert_int_equal(count[0].rows, 4);
            assert_true(4 * (count[2].rows + LK_TILE) > n_tok);
            assert_true(4 * (count[2].rows - LK_TILE) < n_tok);
            assert_true(count[3].rows >= 32 && count[3].rows < 32 + LK_TILE);
            assert_int_equal(4 + count[1].rows + count[2].rows + count[3].rows, n_tok);
        }
    }
    free(x);
    lk_cache_free(cache);
    lk_recipe_free(recipe);
}

/* A layer with a window of n_swa positions holds what the next token's query sees, and at most two
 * blocks more. */
static void test_sliding_layers_hold_their_window(void **state) {
    enum { N = 400, N_SWA = 70 };
    static const char *const texts[] = {"f16", "all: int8", "body: asym4; window 20: f16"};
    uint8_t is_swa = 1;
    struct lk_cache_shape shape = {
        .n_layer = 1, .n_head_kv = N_HEAD_KV, .d_head = D_HEAD, .n_swa = N_SWA, .is_swa = &is_swa};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct lk_ledger ledger = {0};
        lk_recipe *recipe;
        struct lk_cache *cache = new_cache(texts[i], &shape, &ledger, &recipe);
        struct random r = {7};
        float *x = random_rows(&r, 1);
        for (int64_t n_tok = 1; n_tok <= N; n_tok++) {
            assert_int_equal(lk_cache_prepare(cache, 0, 1, 1, 1, NULL), LK_OK);
            append_rows(cache, x, 1);
            int64_t seen = n_tok - N_SWA + 1 > 0 ? n_tok - N_SWA + 1 : 0; /* the oldest */
            for (int side = 0; side < 2; side++) {
                int64_t first = cache->kv[0][side].first;
                if (first > seen || first < seen - 2 * LK_TILE)
                    fail_msg("%s: the oldest of %d tokens is %d", texts[i], (int)n_tok, (int)first);
            }
        }
        free(x);
        lk_cache_free(cache);
        lk_recipe_free(recipe);
    }
}

/* sigma of a channel of V is the square root of its deviation within tiles. A prompt's first rows
 * count. */
static void test_sigma_is_a_root_of_the_deviation(void **state) {
    enum { N = 2 * LK_OBSERVE_ROWS };
    struct lk_cache_shape shape = {.n_layer = 1, .n_head_kv = N_HEAD_KV, .d_head = D_HEAD};
    struct lk_ledger ledger = {0};
    lk_recipe *recipe[2];
    struct lk_cache *cache[2];
    for (int i = 0; i < 2; i++)
        cache[i] =
            new_cache("body: k=int8 v=rot4(sigma); window 32: f16", &shape, &ledger, &recipe[i]);
    float *x = malloc((size_t)N * N_CHANNEL * sizeof *x);
    for (int i = 0; i < N * N_CHANNEL; i++) {
        int t = i / N_CHANNEL, c = i % N_CHANNEL, scale = t < LK_OBSERVE_ROWS ? 1 : 50;
        x[i] = (float)(scale * (t % 2 ? 1 : -1) * (1 + c % 5) + 3);
    }
    for (int t = 0; t < N; t++) {
        assert_int_equal(lk_cache_prepare(cache[0], 0, 1, 1, 1, NULL), LK_OK);
        append_rows(cache[0], x + (size_t)t * N_CHANNEL, 1);
    }
    assert_int_equal(lk_cache_alloc_prompt(cache[1], 0, N, NULL), LK_OK);
    for (int side = 0; side < 2; side++) {
        void *block;
        struct lk_kv exact = exact_rows(side, N_HEAD_KV, D_HEAD, x, N, &block);
        for (int head = 0; head < N_HEAD_KV; head++)
            lk_cache_encode_prompt(cache[1], 0, side, head, &exact);
        free(block);
    }
    for (int i = 0; i < 2; i++) {
        for (int c = 0; c < N_CHANNEL; c++) {
            float sigma = lk_kv_sigma(&cache[i]->kv[0][LK_V], 0, c / D_HEAD)[c % D_HEAD];
            assert_float_equal(sigma, sqrtf(1 + (float)(c % 5)), 1e-4);
        }
        lk_cache_free(cache[i]);
        lk_recipe_free(recipe[i]);
    }
    free(x);
}

static void test_bytes_match_the_ledger(void **state) {
    struct lk_cache_shape shape = {.n_layer = N_LAYER, .n_head_kv = N_HEAD_KV, .d_head = D_HEAD};
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        struct random r = {i};
        struct lk_ledger ledger = {0};
        lk_recipe *recipe;
        struct lk_cache *cache = new_cache(recipes[i], &shape, &ledger, &recipe);
        float *x = random_rows(&r, 128);
        for (int step = 0; step < 25; step++) {
            assert_int_equal(lk_cache_prepare(cache, 0, N_LAYER, 100, 100, NULL), LK_OK);
            append_rows(cache, x, 100);
            struct lk_cache_bytes b = lk_cache_count_bytes(cache);
            assert_int_equal(b.code + b.scale + b.exact + b.padding,
                             lk_ledger_bytes(&ledger, LK_FOR_CACHE));
        }
        lk_cache_trim(cache);
        struct lk_cache_needs needs;
        uint64_t real = lk_ledger_bytes(&ledger, LK_FOR_CACHE);
        assert_int_equal(lk_cache_estimate(recipe, &shape, 2500, &needs, NULL), LK_OK);
        assert_int_equal(needs.scratch, lk_ledger_bytes(&ledger, LK_FOR_SCRATCH));
        double difference = fabs((double)needs.cache - (double)real),
               slabs = cache->pool.n_class > 4 ? cache->pool.n_class : 4;
        /* Tables have grown ahead of need, and one slab per block size is partly free. */
        if (difference > 0.02 * real + slabs * LK_SLAB_BYTES)
            fail_msg("%s: estimate %.0f, real %.0f", recipes[i], (double)needs.cache, (double)real);
        free(x);
        lk_cache_free(cache);
        lk_recipe_free(recipe);
    }
}

static void test_any_allocation_may_fail(void **state) {
    struct lk_cache_shape shape = {.n_layer = N_LAYER, .n_head_kv = N_HEAD_KV, .d_head = D_HEAD};
    struct random r = {5};
    float *x = random_rows(&r, 128);
    lk_recipe *recipe;
    assert_int_equal(lk_recipe_parse(&recipe, recipes[8], NULL), LK_OK);
    for (int nth = 1;; nth++) {
        struct lk_ledger ledger = {.fail_at = nth};
        struct lk_cache *cache = NULL;
        lk_err err = {0};
        lk_status status = lk_cache_new(&cache, recipe, &shape, &ledger, &err);
        for (int step = 0; status == LK_OK && step < 8; step++) {
            status = lk_cache_prepare(cache, 0, N_LAYER, 100, 100, &err);
            if (status == LK_OK) append_rows(cache, x, 100);
        }
        if (status != LK_OK) {
            assert_int_equal(status, LK_E_NOMEM);
            assert_true(strlen(err.msg) > 10);
        }
        lk_cache_free(cache);
        for (int p = 0; p < LK_N_PURPOSE; p++) assert_int_equal(lk_ledger_bytes(&ledger, p), 0);
        if (status == LK_OK) {
            assert_true(nth > 20);
            break;
        }
    }
    lk_recipe_free(recipe);
    free(x);
}

static void test_truncate(void **state) {
    struct lk_cache_shape shape = {.n_layer = N_LAYER, .n_head_kv = N_HEAD_KV, .d_head = D_HEAD};
    struct lk_ledger ledger = {0};
    lk_recipe *recipe;
    struct lk_cache *cache =
        new_cache("sink 4: f16; body: rot4; window 64: f16", &shape, &ledger, &recipe);
    struct random r = {9};
    float *x = random_rows(&r, 600), *y = malloc(600 * N_CHANNEL * sizeof *y);
    for (int at = 0; at < 600; at += 60) append_rows(cache, x + at * N_CHANNEL, 60);
    assert_false(lk_cache_truncate(cache, 3));
    assert_false(lk_cache_truncate(cache, 500));
    assert_int_equal(cache->kv[0][LK_K].n_tok, 600);
    assert_true(lk_cache_truncate(cache, 550));
    assert_int_equal(cache->kv[1][LK_V].n_tok, 550);
    append_rows(cache, x + 100 * N_CHANNEL, 30);
    decode_rows(&cache->kv[0][LK_K], y);
    assert_true(nmse(y + 550 * N_CHANNEL, x + 100 * N_CHANNEL, 30 * N_CHANNEL) < 1e-6);
    assert_true(nmse(y + 545 * N_CHANNEL, x + 545 * N_CHANNEL, 5 * N_CHANNEL) < 1e-6);
    free(x), free(y);
    lk_cache_free(cache);
    lk_recipe_free(recipe);
}

static void test_unsupported_heads(void **state) {
    struct lk_cache_shape shape = {.n_layer = 1, .n_head_kv = 1, .d_head = 80};
    struct lk_ledger ledger = {0};
    lk_recipe *recipe;
    lk_err err = {0};
    struct lk_cache *cache = NULL;
    assert_int_equal(lk_recipe_parse(&recipe, "all: kivi2(g64)", NULL), LK_OK);
    assert_int_equal(lk_cache_new(&cache, recipe, &shape, &ledger, &err), LK_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "80"));
    for (int p = 0; p < LK_N_PURPOSE; p++) assert_int_equal(lk_ledger_bytes(&ledger, p), 0);
    lk_recipe_free(recipe);
}

/* Without a body exactly the sinks and the window are held, and memory stays constant. */
static void test_no_body(void **state) {
    struct lk_cache_shape shape = {.n_layer = N_LAYER, .n_head_kv = N_HEAD_KV, .d_head = D_HEAD};
    struct lk_ledger ledger = {0};
    lk_recipe *recipe;
    struct lk_cache *cache =
        new_cache("sink 4: f16; body: none; window 100: f16", &shape, &ledger, &recipe);
    struct random r = {21};
    float *x = random_rows(&r, 1);
    uint64_t max = 0;
    for (int n = 1; n <= 3000; n++) {
        assert_int_equal(lk_cache_prepare(cache, 0, N_LAYER, 1, 1, NULL), LK_OK);
        append_rows(cache, x, 1);
        lk_cache_trim(cache);
        uint64_t bytes = lk_ledger_bytes(&ledger, LK_FOR_CACHE);
        if (n <= 300 && max < bytes) max = bytes; /* the window covers four or five blocks */
        if (n > 300 && bytes > max)
            fail_msg("%d tokens: %d bytes, not %d", n, (int)bytes, (int)max);
        for (int side = 0; side < 2; side++) {
            const struct lk_kv *kv = &cache->kv[1][side];
            assert_int_equal(kv->first, n > 104 ? n - 104 : 0);
            assert_int_equal(kv->count[0].rows, n < 4 ? n : 4);
            assert_int_equal(kv->count[1].rows, 0);
            assert_int_equal(kv->count[2].rows, n < 4 ? 0 : n > 104 ? 100 : n - 4);
            if (n <= 4) continue;
            assert_int_equal(lk_kv_position(kv, 0, 2, 0), 2);
            assert_int_equal(lk_kv_position(kv, 2, 0, 0), n > 104 ? n - 100 : 4);
        }
        assert_int_equal(lk_cache_truncate(cache, n - 1), n > 4 && n <= 104);
        if (n > 4 && n <= 104) append_rows(cache, x, 1);
    }
    free(x);
    lk_cache_free(cache);
    lk_recipe_free(recipe);
}

/* Encoding a whole prompt gives the same counts as appending it at once and aging it. Rows that are
 * encoded once have the same bits; others are at least as exact. */
static void test_prompt_equals_append_and_age(void **state) {
    uint8_t is_swa[N_LAYER] = {0, 1};
    struct lk_cache_shape shape = {.n_layer = N_LAYER,
                                   .n_head_kv = N_HEAD_KV,
                                   .d_head = D_HEAD,
                                   .n_swa = 70,
                                   .is_swa = is_swa};
    static const int sizes[] = {2, 70, 300, 511};
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes * 4; i++) {
        const char *text = recipes[i / 4];
        int n = sizes[i % 4];
        struct random r = {i};
        struct lk_ledger ledger = {0};
        lk_recipe *recipe, *again;
        struct lk_cache *prompt = new_cache(text, &shape, &ledger, &recipe),
                        *aged = new_cache(text, &shape, &ledger, &again);
        float *x = random_rows(&r, n), *y = malloc(n * N_CHANNEL * sizeof *y),
              *z = malloc(n * N_CHANNEL * sizeof *z);
        assert_int_equal(lk_cache_prepare(aged, 0, N_LAYER, n, n, NULL), LK_OK);
        append_rows(aged, x, n);
        for (int layer = 0; layer < N_LAYER; layer++) {
            assert_int_equal(lk_cache_alloc_prompt(prompt, layer, n, NULL), LK_OK);
            for (int side = 0; side < 2; side++) {
                void *block;
                struct lk_kv exact = exact_rows(side, N_HEAD_KV, D_HEAD, x, n, &block);
                for (int head = N_HEAD_KV - 1; head >= 0; head--)
                    lk_cache_encode_prompt(prompt, layer, side, head, &exact);
                free(block);
                const struct lk_kv *a = &prompt->kv[layer][side], *b = &aged->kv[layer][side];
                assert_int_equal(a->n_tok, b->n_tok);
                assert_int_equal(a->first, b->first);
                if (a->n_swa == 0) /* a sliding window may drop all rows that were encoded */
                    assert_int_equal(a->equalizer[0].calibrated, b->equalizer[0].calibrated);
                for (int level = 0; level < a->n_level; level++) {
                    assert_int_equal(a->count[level].rows, b->count[level].rows);
                    assert_int_equal(a->count[level].skip, b->count[level].skip);
                    assert_int_equal(a->level[level].n_block, b->level[level].n_block);
                }
                memcpy(y, x, n * N_CHANNEL * sizeof *y);
                memcpy(z, x, n * N_CHANNEL * sizeof *z);
                decode_rows(a, y);
                decode_rows(b, z);
                if (strncmp(text, "all:", 4) == 0 && memcmp(y, z, n * N_CHANNEL * sizeof *y))
                    fail_msg("%s: not the same rows", text);
                double prompt_error = nmse(y, x, n * N_CHANNEL),
                       aged_error = nmse(z, x, n * N_CHANNEL);
                if (!(prompt_error <= 1.02 * aged_error))
                    fail_msg("%s: nmse %g, aged %g", text, prompt_error, aged_error);
            }
        }
        free(x), free(y), free(z);
        lk_cache_free(prompt), lk_cache_free(aged);
        lk_recipe_free(recipe), lk_recipe_free(again);
        for (int p = 0; p < LK_N_PURPOSE; p++) assert_int_equal(lk_ledger_bytes(&ledger, p), 0);
    }
}

/* After a failed allocation the cache can be cleared and used again. */
static void test_prompt_without_memory(void **state) {
    struct lk_cache_shape shape = {.n_layer = N_LAYER, .n_head_kv = N_HEAD_KV, .d_head = D_HEAD};
    for (uint64_t nth = 1; nth < 100; nth++) {
        struct lk_ledger ledger = {0};
        lk_recipe *recipe;
        lk_err err = {0};
        struct lk_cache *cache = new_cache(recipes[4], &shape, &ledger, &recipe);
        ledger.fail_at = (int64_t)nth;
        lk_status status = lk_cache_alloc_prompt(cache, 0, 700, &err);
        ledger.fail_at = 0;
        if (status != LK_OK) {
            assert_int_equal(status, LK_E_NOMEM);
            assert_true(err.msg[0]);
            lk_cache_clear(cache);
            assert_int_equal(lk_cache_alloc_prompt(cache, 0, 700, NULL), LK_OK);
        }
        lk_cache_free(cache);
        lk_recipe_free(recipe);
        for (int p = 0; p < LK_N_PURPOSE; p++) assert_int_equal(lk_ledger_bytes(&ledger, p), 0);
        if (status == LK_OK) {
            assert_true(nth > 3);
            return;
        }
    }
    fail();
}

int main(void) {
    register_baselines();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_keep_their_order),
        cmocka_unit_test(test_counts_predict_moves),
        cmocka_unit_test(test_statistics_are_collected_once),
        cmocka_unit_test(test_shares_of_the_text),
        cmocka_unit_test(test_sliding_layers_hold_their_window),
        cmocka_unit_test(test_sigma_is_a_root_of_the_deviation),
        cmocka_unit_test(test_bytes_match_the_ledger),
        cmocka_unit_test(test_any_allocation_may_fail),
        cmocka_unit_test(test_truncate),
        cmocka_unit_test(test_unsupported_heads),
        cmocka_unit_test(test_no_body),
        cmocka_unit_test(test_prompt_equals_append_and_age),
        cmocka_unit_test(test_prompt_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
