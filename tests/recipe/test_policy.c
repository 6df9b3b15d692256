/* Eviction policies: the rows that the cache keeps at every step, over random scores, equal those
 * of a simple model of each policy, and decode to the rows that were appended. */
#include "cache/cache.h"
#include "support_kv.h"
#include "test.h"

enum { N_HEAD = 3, D_HEAD = 64, N_CHANNEL = N_HEAD * D_HEAD, MAX_TOKENS = 1200 };

struct setup {
    const char *recipe;
    int sinks, keep, percent, window, batch, wait;
    double limit; /* nmse of rows */
};

static const struct setup setups[] = {
    {"sink 4: f16; keep 40 by h2o; window 30: f16", 4, 40, 0, 30, 1, 0, 1e-6},
    {"keep 40 by h2o(mean): f16; window 1: f16", 0, 40, 0, 1, 1, 0, 1e-6},
    {"keep 33 by tova", 0, 33, 0, 0, 1, 0, 1e-6},
    {"sink 2: f16; keep 50 by tova(apart): k=int8 v=rot4; window 20: f16", 2, 50, 0, 20, 1, 0,
     0.02},
    {"keep 64 by random: f16; window 16: f16", 0, 64, 0, 16, 1, 0, 1e-6},
    {"sink 1: f16; keep 25 by newest; window 16: f16", 1, 25, 0, 16, 1, 0, 1e-6},
    {"sink 4: f16; keep 96 by h2o: rot4; window 30: f16", 4, 96, 0, 30, 32, 256, 0.03},
    {"keep 70 by h2o: k=rot5(nomean,nosigma) v=kivi4; window 8: f16", 0, 70, 0, 8, 1, 0, 0.03},
    {"sink 4: f16; keep 10% by h2o; window 30: f16", 4, 0, 10, 30, 1, 0, 1e-6},
    {"keep 20% by tova: rot3(nosigma)", 0, 0, 20, 0, 32, 0, 0.08},
    {"sink 4: f16; keep 96 by h2o: k=kivi4(g64) v=kivi4; window 30: f16", 4, 96, 0, 30, 64, 0,
     0.03},
};

/* ---- the model: lists of tokens, and the rules of the papers ---- */

struct model {
    const struct setup *setup;
    struct lk_policy policy;
    int n_tok, n_kept[N_HEAD], kept[N_HEAD][MAX_TOKENS];
    int newer;                       /* first token after the body: [newer, n_tok) are not in it */
    float score[N_HEAD][MAX_TOKENS]; /* by position */
};

static float model_score(const struct model *p, int head, int pos) {
    float sum = 0;
    switch (p->policy.kind) {
    case LK_POLICY_H2O:
        return p->policy.mean ? p->score[head][pos] / (float)(p->n_tok - pos) : p->score[head][pos];
    case LK_POLICY_TOVA:
        if (p->policy.per_head) return p->score[head][pos];
        for (int h = 0; h < N_HEAD; h++) sum += p->score[h][pos];
        return sum;
    default: return (float)pos;
    }
}

static int model_capacity(const struct model *p) {
    int size = p->setup->percent ? (int)ceil(p->setup->percent / 100.0 * p->n_tok) : p->setup->keep;
    return (size + p->setup->batch - 1) / p->setup->batch * p->setup->batch;
}

static void model_age(struct model *p) {
    while (p->n_tok - p->newer >= p->setup->window + p->setup->batch) {
        if (p->n_kept[0] == 0 && p->n_tok - p->newer < p->setup->wait) return;
        for (int i = 0; i < p->setup->batch; i++, p->newer++)
            for (int h = 0; h < N_HEAD; h++) {
                int *kept = p->kept[h];
                kept[p->n_kept[h]++] = p->newer;
                if (p->n_kept[h] <= model_capacity(p)) continue;
                int argmin = 0;
                for (int j = 1; j < p->n_kept[h]; j++) {
                    float a = model_score(p, h, kept[j]), b = model_score(p, h, kept[argmin]);
                    if (a < b || (a == b && kept[j] < kept[argmin])) argmin = j;
                }
                kept[argmin] = kept[--p->n_kept[h]];
            }
    }
}

static bool model_holds(const struct model *p, int head, int pos) {
    if (pos < p->setup->sinks || (pos >= p->newer && pos < p->n_tok)) return true;
    for (int j = 0; j < p->n_kept[head]; j++)
        if (p->kept[head][j] == pos) return true;
    return false;
}

/* ---- the cache ---- */

struct cache_under_test {
    struct lk_ledger ledger, common;
    lk_recipe *recipe;
    struct lk_cache *cache;
    float *x[2]; /* [MAX_TOKENS][N_CHANNEL] all rows appended so far */
    int n_left;  /* evicted rows, per head */
};

static void count_evicted(void *user, int layer, int head, const float *k, const float *v) {
    struct cache_under_test *s = user;
    assert_int_equal(layer, 0);
    assert_true(head >= 0 && head < N_HEAD && !isnan(k[0]) && !isnan(v[0]));
    s->n_left++;
}

static void open_cache(struct cache_under_test *s, const char *text, uint64_t seed) {
    struct lk_cache_shape shape = {
        .n_layer = 1, .n_head_kv = N_HEAD, .d_head = D_HEAD, .n_ctx = 1000};
    struct random r = {seed};
    lk_err err = {0};
    *s = (struct cache_under_test){.ledger = {.common = &s->common}};
    if (lk_recipe_parse(&s->recipe, text, &err) != LK_OK ||
        lk_cache_new(&s->cache, s->recipe, &shape, &s->ledger, &err) != LK_OK)
        fail_msg("%s: %s", text, err.msg);
    s->cache->evict_hook = (struct lk_evict_hook){count_evicted, s};
    for (int side = 0; side < 2; side++) {
        s->x[side] = malloc(MAX_TOKENS * N_CHANNEL * sizeof(float));
        for (int i = 0; i < MAX_TOKENS * N_CHANNEL; i++) s->x[side][i] = random_gauss(&r);
    }
}

static void close_cache(struct cache_under_test *s) {
    free(s->x[0]), free(s->x[1]);
    lk_cache_free(s->cache);
    lk_recipe_free(s->recipe);
    for (int p = 0; p < LK_N_PURPOSE; p++)
        assert_int_equal(lk_ledger_bytes(&s->ledger, p) + lk_ledger_bytes(&s->common, p), 0);
}

/* Check that the cache holds the rows of the model, each once, and that they decode to the rows
 * appended. */
static void compare(const struct cache_under_test *s, const struct model *p, const char *text) {
    for (int side = 0; side < 2; side++) {
        const struct lk_kv *kv = &s->cache->kv[0][side];
        for (int h = 0; h < N_HEAD; h++) {
            static bool seen[MAX_TOKENS];
            int n = 0;
            double error = 0, power = 0;
            memset(seen, 0, sizeof seen);
            for (int level = 0; level < kv->n_level; level++)
                for (int64_t at = 0; at < kv->count[level].rows; at++, n++) {
                    int64_t pos = lk_kv_position(kv, level, at, h);
                    if (pos < 0 || pos >= p->n_tok || seen[pos] || !model_holds(p, h, (int)pos))
                        fail_msg("%s, %d tokens, head %d: holds position %d", text, p->n_tok, h,
                                 (int)pos);
                    seen[pos] = true;
                    if (p->n_tok % 50) continue; /* decoding is slow */
                    float x[D_HEAD], *expect = s->x[side] + pos * N_CHANNEL + h * D_HEAD;
                    struct lk_row_range row = {kv, level, at, 1};
                    lk_kv_read(&row, h, s->cache->kernels, x, D_HEAD);
                    for (int c = 0; c < D_HEAD; c++) {
                        error += (x[c] - expect[c]) * (x[c] - expect[c]);
                        power += expect[c] * expect[c];
                    }
                }
            int sinks = p->n_tok < p->setup->sinks ? p->n_tok : p->setup->sinks;
            assert_int_equal(n,
                             sinks + p->n_kept[h] + (p->n_tok > sinks ? p->n_tok - p->newer : 0));
            assert_int_equal(kv->first, p->n_tok - n);
            if (power > 0 && !(error <= p->setup->limit * power))
                fail_msg("%s: nmse %g", text, error / power);
        }
    }
}

static void test_every_step(void **state) {
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        const struct setup *setup = &setups[i];
        static struct model p;
        static struct cache_under_test s;
        struct random r = {i};
        open_cache(&s, setup->recipe, i);
        p = (struct model){
            .setup = setup, .policy = s.cache->evict[0].policy, .newer = setup->sinks};
        if (p.policy.kind == LK_POLICY_RANDOM) { /* tested separately */
            close_cache(&s);
            continue;
        }
        struct lk_evict *evict = &s.cache->evict[0];
        while (p.n_tok < MAX_TOKENS) {
            int n = random_int(&r, 1, p.n_tok % 7 ? 3 : 40);
            if (n > MAX_TOKENS - p.n_tok) n = MAX_TOKENS - p.n_tok;
            assert_int_equal(lk_cache_prepare(s.cache, 0, 1, n, n, NULL), LK_OK);
            uint64_t n_alloc = s.ledger.n_alloc;
            for (int side = 0; side < 2; side++)
                assert_int_equal(
                    lk_cache_append(s.cache, 0, side, s.x[side] + p.n_tok * N_CHANNEL, n, NULL),
                    LK_OK);
            p.n_tok += n;
            bool last = lk_policy_needed_scores(&p.policy) == LK_SCORES_LAST;
            for (int64_t j = 0; evict->needs_scores && j < evict->n; j++)
                for (int h = 0; h < N_HEAD; h++) {
                    float w = random_uniform(&r), *mine = &p.score[h][evict->pos[j * N_HEAD + h]];
                    if (random_int(&r, 0, 9) == 0) w = 0; /* to get ties */
                    *mine = last ? w : *mine + w;
                    evict->score[j * N_HEAD + h] = *mine;
                }
            assert_int_equal(lk_cache_age(s.cache, 0, LK_K, NULL), LK_OK);
            if (s.ledger.n_alloc != n_alloc) fail_msg("%s: allocated", setup->recipe);
            model_age(&p);
            compare(&s, &p, setup->recipe);
            struct lk_cache_bytes b = lk_cache_count_bytes(s.cache);
            assert_int_equal(b.code + b.scale + b.exact + b.padding,
                             lk_ledger_bytes(&s.ledger, LK_FOR_CACHE));
        }
        assert_int_equal(s.n_left, N_HEAD * s.cache->kv[0][LK_V].first);
        assert_false(lk_cache_truncate(s.cache, MAX_TOKENS - 1));
        struct lk_cache *copy = NULL;
        assert_int_equal(lk_cache_new(&copy, s.recipe, &s.cache->shape, &s.ledger, NULL), LK_OK);
        assert_int_equal(lk_cache_copy(copy, s.cache, NULL), LK_OK);
        struct cache_under_test t = s;
        t.cache = copy;
        compare(&t, &p, setup->recipe);
        lk_cache_free(copy);
        close_cache(&s);
    }
}

/* A prompt is reduced in one step: the rows with the highest scores stay. */
static void test_prompts(void **state) {
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        const struct setup *setup = &setups[i];
        static struct model p;
        static struct cache_under_test s;
        static float attn_scores[MAX_TOKENS * N_HEAD];
        static struct lk_scored_row order[MAX_TOKENS];
        struct random r = {40 + i};
        const int n = i % 2 ? 700 : 90;
        open_cache(&s, setup->recipe, i);
        p = (struct model){
            .setup = setup, .policy = s.cache->evict[0].policy, .newer = setup->sinks, .n_tok = n};
        if (p.policy.kind == LK_POLICY_RANDOM) {
            close_cache(&s);
            continue;
        }
        for (int j = 0; j < n * N_HEAD; j++)
            attn_scores[j] = p.score[j % N_HEAD][j / N_HEAD] = random_uniform(&r);
        model_age(&p); /* with constant scores, evicting one by one gives the same rows */
        struct lk_kv exact[2];
        const struct lk_kv *const both[] = {&exact[0], &exact[1]};
        void *block[2];
        for (int side = 0; side < 2; side++)
            exact[side] = exact_rows(side, N_HEAD, D_HEAD, s.x[side], n, &block[side]);
        assert_int_equal(lk_cache_alloc_prompt(s.cache, 0, n, NULL), LK_OK);
        for (int h = 0; h < N_HEAD; h++)
            lk_evict_select(s.cache, 0, h, s.cache->evict[0].needs_scores ? attn_scores : NULL,
                            both, order);
        for (int h = 0; h < N_HEAD; h++)
            for (int side = 0; side < 2; side++)
                lk_cache_encode_prompt(s.cache, 0, side, h, &exact[side]);
        p.n_tok = n;
        compare(&s, &p, setup->recipe);
        assert_int_equal(s.n_left, N_HEAD * s.cache->kv[0][LK_K].first);
        const struct lk_evict *evict = &s.cache->evict[0];
        for (int64_t j = 0; evict->needs_scores && j < evict->n * N_HEAD; j++)
            assert_true(evict->score[j] == p.score[j % N_HEAD][evict->pos[j]]);
        free(block[0]), free(block[1]);
        close_cache(&s);
    }
}

/* Policy random keeps rows spread over all tokens seen, and different rows in each head. */
static void test_random_is_a_sample(void **state) {
    static struct cache_under_test s;
    open_cache(&s, "keep 64 by random: f16; window 16: f16", 3);
    for (int at = 0; at < MAX_TOKENS; at += 8) {
        for (int side = 0; side < 2; side++)
            assert_int_equal(lk_cache_append(s.cache, 0, side, s.x[side] + at * N_CHANNEL, 8, NULL),
                             LK_OK);
        assert_int_equal(lk_cache_age(s.cache, 0, LK_V, NULL), LK_OK);
    }
    double mean[N_HEAD] = {0};
    int same = 0;
    const int32_t *pos = s.cache->evict[0].pos;
    for (int i = 0; i < 64; i++)
        for (int h = 0; h < N_HEAD; h++) {
            mean[h] += pos[i * N_HEAD + h] / 64.0;
            for (int j = 0; h > 0 && j < 64; j++) same += pos[j * N_HEAD + h] == pos[i * N_HEAD];
        }
    /* 64 of 1184 rows: the mean has a deviation of 1184 / sqrt(12 * 64) = 43, and two samples share
     * 3.5 rows on average. */
    for (int h = 0; h < N_HEAD; h++) assert_true(fabs(mean[h] - 592) < 160);
    assert_true(same < 24);
    close_cache(&s);
}

/* Replacing a row keeps the block's mean. The row is then nearly as accurate as if it had been
 * encoded with the block. */
static void test_replaced_rows(void **state) {
    struct random r = {8};
    float x[LK_TILE * D_HEAD], y[D_HEAD], back[LK_TILE * D_HEAD], sigma[D_HEAD];
    for (int i = 0; i < LK_TILE * D_HEAD; i++) x[i] = random_gauss(&r) + (i % D_HEAD == 5 ? 9 : 0);
    for (int c = 0; c < D_HEAD; c++)
        y[c] = random_gauss(&r) + (c == 5 ? 9 : 0), sigma[c] = 0.5f + (float)(c % 3);
    for (int bits = 2; bits <= 8; bits++) {
        struct lk_codec codec = {.coding = LK_ROT,
                                 .bits = bits,
                                 .mean = true,
                                 .sigma = true,
                                 .lloyd = lk_codec_default_lloyd(bits)};
        struct lk_part part = {&codec, LK_K, D_HEAD, LK_TILE, sigma};
        assert_true(lk_codec_can_replace(&codec, LK_K));
        size_t size = lk_codec_head_bytes(&codec, LK_K, D_HEAD, LK_TILE);
        char *head = malloc(size), *before = malloc(size);
        lk_codec_encode(&part, head, 0, LK_TILE, x, D_HEAD);
        lk_codec_decode(&part, head, 0, LK_TILE, back, D_HEAD);
        double encoded = nmse(back, x, LK_TILE * D_HEAD);
        memcpy(before, head, size);
        lk_codec_replace(&part, head, 3, x + 3 * D_HEAD);
        assert_memory_equal(before, head, size); /* the same row gives the same bits */
        lk_codec_replace(&part, head, 17, y);
        float now[LK_TILE * D_HEAD];
        lk_codec_decode(&part, head, 0, LK_TILE, now, D_HEAD);
        double replaced = nmse(now + 17 * D_HEAD, y, D_HEAD);
        if (!(replaced < 2 * encoded))
            fail_msg("%d bits: nmse %g, encoded together %g", bits, replaced, encoded);
        memcpy(now + 17 * D_HEAD, back + 17 * D_HEAD, D_HEAD * sizeof *now);
        assert_memory_equal(now, back, sizeof now); /* no other row has changed */
        free(head), free(before);
    }
}

/* If any allocation fails, the cache keeps its previous state. */
static void test_failed_allocations(void **state) {
    for (int nth = 1;; nth++) {
        static struct cache_under_test s;
        open_cache(&s, "sink 4: f16; keep 40 by h2o: f16; window 30: f16", 5);
        lk_status status = LK_OK;
        int at = 0;
        s.ledger.fail_at = nth;
        for (; status == LK_OK && at < 800; at += status == LK_OK ? 16 : 0) {
            status = lk_cache_prepare(s.cache, 0, 1, 16, 16, NULL);
            for (int side = 0; status == LK_OK && side < 2; side++)
                assert_int_equal(
                    lk_cache_append(s.cache, 0, side, s.x[side] + at * N_CHANNEL, 16, NULL), LK_OK);
            if (status == LK_OK) assert_int_equal(lk_cache_age(s.cache, 0, LK_K, NULL), LK_OK);
        }
        s.ledger.fail_at = 0;
        const struct lk_evict *evict = &s.cache->evict[0];
        assert_int_equal(evict->n, at < 74 ? at : 74);
        for (int h = 0; h < N_HEAD && evict->n; h++)
            assert_int_equal(evict->pos[(evict->n - 1) * N_HEAD + h], at - 1);
        close_cache(&s);
        if (status == LK_OK) {
            assert_true(nth > 5);
            return;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_step),         cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_random_is_a_sample), cmocka_unit_test(test_replaced_rows),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
