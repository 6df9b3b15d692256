/* Eviction of rows whose heads share latents: a unit of heads keeps the same rows, chosen by the
 * sum of its heads' scores. Every row that leaves is reported for each head, as it was appended.
 * Steps and prompts are compared with a plain account of rows. */
#include "cache/cache.h"
#include "cache/project.h"
#include "support_basis.h"
#include "support_kv.h"
#include "test.h"

enum { N_HEAD = 4, D_HEAD = 32, WIDTH = N_HEAD * D_HEAD, MAX_TOKENS = 480 };

struct setup {
    const char *recipe;
    int group[LK_N_BASIS]; /* heads of a group of K, of K before RoPE, of V */
    int unit, sinks, keep, percent, batch;
    double limit; /* nmse of all rows */
};

static const struct setup setups[] = {
    {"sink 4: f16; keep 40 by h2o; window 30: f16", {1, 1, 1}, 1, 4, 40, 0, 1, 1e-6},
    {"sink 4: f16; keep 40 by h2o: latent100%; window 30: f16", {1, 1, 1}, 1, 4, 40, 0, 1, 1e-6},
    {"sink 4: f16; keep 40 by h2o: latent100%; window 30: f16", {1, 1, 2}, 2, 4, 40, 0, 1, 1e-6},
    {"keep 40 by replay: latent100%; window 30: f16", {1, 1, 2}, 2, 0, 40, 0, 1, 1e-6},
    {"keep 40 by tova(apart): k=latent100%(pre) v=latent100%; window 9: f16",
     {1, 2, 1},
     2,
     0,
     40,
     0,
     1,
     1e-6},
    {"keep 33 by tova: k=int8 v=latent100%", {1, 1, 4}, 4, 0, 33, 0, 1, 1e-3},
    {"sink 2: k=latent100%(pre) v=latent100%; keep 48 by random: k=latent100%(pre)+int8 "
     "v=latent100%+int8; window 16: k=latent100%(pre) v=latent100%",
     {1, 4, 2},
     4,
     2,
     48,
     0,
     1,
     1e-3},
    {"keep 10% by h2o(mean): latent100%; window 20: f16", {2, 1, 1}, 2, 0, 0, 10, 1, 1e-6},
    {"sink 2: f16; keep 30 by h2o: int8; window 20: k=int8 v=f16", {1, 1, 1}, 1, 2, 30, 0, 1, 1e-3},
    {"keep 30 by tova(apart): k=f16 v=latent100%; window 20: k=f16 v=latent100%",
     {1, 1, 2},
     2,
     0,
     30,
     0,
     1,
     1e-6},
    {"sink 1: f16; keep 25 by newest: k=latent100%(pre)+rot8(nomean,nosigma) v=latent100%; window "
     "16: f16",
     {1, 2, 2},
     2,
     1,
     25,
     0,
     1,
     1e-3},
    {"keep 64 by h2o: latent100%+kivi4; window 8: f16", {2, 1, 2}, 2, 0, 64, 0, 32, 0.03},
    {"sink 4: f16; keep 64 by h2o: kivi4; window 8: f16", {1, 1, 1}, 1, 4, 64, 0, 32, 0.03},
    {"keep 128 by tova(apart): k=kivi2(g128) v=f16; window 8: f16",
     {1, 1, 1},
     1,
     0,
     128,
     0,
     128,
     0.3},
    {"sink 2: f16; keep 64 by h2o: k=latent100%(pre)+rot8 v=latent100%+rot8; window 8: f16",
     {1, 4, 2},
     4,
     2,
     64,
     0,
     32,
     1e-3},
    {"sink 4: f16; body: none; window 40: k=latent100%(pre) v=latent100%; absorb less",
     {1, 2, 4},
     1,
     4,
     0,
     0,
     1,
     1e-6},
};
enum { N_SETUP = sizeof setups / sizeof *setups };

/* Limit for a single row. Values outside of a kivi block's ranges are clamped, so some rows are
 * much worse than most; wrong rows have about 2. */
static double row_limit(const struct setup *setup) {
    return setup->limit > 0.01 ? 1 : 5 * setup->limit;
}

/* ---- the account: which rows a head holds, and which have left it, in order ---- */

struct account {
    const struct setup *setup;
    struct lk_policy policy;
    int n_tok, newer; /* rows [newer, n_tok) are in levels newer than the body */
    int n_kept[N_HEAD], kept[N_HEAD][MAX_TOKENS], n_gone[N_HEAD], gone[N_HEAD][MAX_TOKENS];
    float score[N_HEAD][MAX_TOKENS]; /* by position */
};

static float account_score(const struct account *p, int head, int pos) {
    bool joint = p->policy.kind == LK_POLICY_TOVA && !p->policy.per_head;
    int n = joint ? N_HEAD : p->setup->unit, first = head / n * n;
    float sum = 0;
    for (int h = first; h < first + n; h++) {
        float score = p->score[h][pos];
        sum = p->policy.kind == LK_POLICY_REPLAY ? fmaxf(sum, score) : sum + score;
    }
    if (p->policy.kind == LK_POLICY_NEWEST) return (float)pos;
    if (p->policy.kind == LK_POLICY_RANDOM) {
        int32_t at[N_HEAD] = {pos, pos, pos, pos};
        struct lk_policy_rows rows = {.pos = at, .n_head = N_HEAD};
        return lk_policy_score(&p->policy, &rows, 0, first);
    }
    return p->policy.mean ? sum / (float)(p->n_tok - pos) : sum;
}

static int account_capacity(const struct account *p) {
    int n = p->setup->percent ? (int)ceil(p->setup->percent / 100.0 * p->n_tok) : p->setup->keep;
    return (n + p->setup->batch - 1) / p->setup->batch * p->setup->batch;
}

/* Rows up to `newer` arrive in the body one by one. */
static void account_age(struct account *p, int newer) {
    for (; p->newer < newer; p->newer++)
        for (int h = 0; h < N_HEAD; h++) {
            int *kept = p->kept[h], argmin = 0;
            kept[p->n_kept[h]++] = p->newer;
            if (p->n_kept[h] <= account_capacity(p)) continue;
            for (int j = 1; j < p->n_kept[h]; j++) {
                float a = account_score(p, h, kept[j]), b = account_score(p, h, kept[argmin]);
                if (a < b || (a == b && kept[j] < kept[argmin])) argmin = j;
            }
            p->gone[h][p->n_gone[h]++] = kept[argmin];
            kept[argmin] = kept[--p->n_kept[h]];
        }
}

static bool account_holds(const struct account *p, int head, int pos) {
    if (pos < p->setup->sinks || (pos >= p->newer && pos < p->n_tok)) return true;
    for (int j = 0; j < p->n_kept[head]; j++)
        if (p->kept[head][j] == pos) return true;
    return false;
}

/* ---- the cache ---- */

struct under_test {
    const struct setup *setup;
    struct lk_ledger ledger, common;
    struct lk_basis basis[LK_N_BASIS];
    const struct lk_basis *table[LK_N_BASIS];
    struct lk_rope rope[2];
    lk_recipe *recipe;
    struct lk_cache *cache;
    float *x[2];                   /* [MAX_TOKENS][WIDTH] rows as scored */
    float *gone[2];                /* [N_HEAD][MAX_TOKENS][D_HEAD] as they were reported */
    int n_gone[N_HEAD], n_checked; /* rows per head; rows compared with the account */
};

static void record_row(void *user, int layer, int head, const float *k, const float *v) {
    struct under_test *s = user;
    assert_int_equal(layer, 0);
    assert_in_range(head, 0, N_HEAD - 1);
    size_t at = ((size_t)head * MAX_TOKENS + s->n_gone[head]++) * D_HEAD;
    memcpy(s->gone[LK_K] + at, k, D_HEAD * sizeof *k);
    memcpy(s->gone[LK_V] + at, v, D_HEAD * sizeof *v);
}

static void open_cache(struct under_test *s, const struct setup *setup, uint64_t seed) {
    struct random r = {seed};
    lk_err err = {0};
    double speed[D_HEAD / 2];
    *s = (struct under_test){.setup = setup, .ledger = {.common = &s->common}};
    for (int j = 0; j < D_HEAD / 2; j++) speed[j] = pow(1000, -2.0 * j / D_HEAD);
    for (int i = 0; i < 2; i++)
        lk_rope_init(&s->rope[i], D_HEAD / 2 - 2, i == (int)(seed % 2), 1.2f, speed);
    for (int i = 0; i < LK_N_BASIS; i++) {
        int group = setup->group[i], width = group * D_HEAD;
        s->basis[i] = random_basis(&r, N_HEAD / group, width, width, width, seed % 2, seed % 3 > 0);
        s->table[i] = &s->basis[i];
    }
    struct lk_cache_shape shape = {.n_layer = 1,
                                   .n_head_kv = N_HEAD,
                                   .d_head = D_HEAD,
                                   .n_ctx = 1000,
                                   .basis = s->table,
                                   .rope = s->rope};
    if (lk_recipe_parse(&s->recipe, setup->recipe, &err) != LK_OK ||
        lk_cache_new(&s->cache, s->recipe, &shape, &s->ledger, &err) != LK_OK)
        fail_msg("%s: %s", setup->recipe, err.msg);
    s->cache->evict_hook = (struct lk_evict_hook){record_row, s};
    for (int side = 0; side < 2; side++) {
        s->gone[side] = malloc((size_t)MAX_TOKENS * WIDTH * sizeof(float));
        s->x[side] = malloc((size_t)MAX_TOKENS * WIDTH * sizeof(float));
        for (int i = 0; i < MAX_TOKENS * WIDTH; i++) s->x[side][i] = random_gauss(&r);
    }
}

static void close_cache(struct under_test *s) {
    for (int side = 0; side < 2; side++) free(s->x[side]), free(s->gone[side]);
    lk_cache_free(s->cache);
    lk_recipe_free(s->recipe);
    for (int i = 0; i < LK_N_BASIS; i++) free_basis(&s->basis[i]);
    for (int p = 0; p < LK_N_PURPOSE; p++)
        assert_int_equal(lk_ledger_bytes(&s->ledger, p) + lk_ledger_bytes(&s->common, p), 0);
}

/* The first row after the body, by the cache's counts. */
static int first_newer(const struct lk_kv *kv) {
    int level = 0;
    while (kv->rule[level].limit.policy.kind == LK_POLICY_NONE) level++;
    int64_t newer = kv->n_tok;
    for (int i = level + 1; i < kv->n_level; i++) newer -= kv->count[i].rows;
    return (int)newer;
}

/* The cache holds the account's rows, and every part decodes to the rows that were appended. */
static void compare_rows(const struct under_test *s, const struct account *p, bool decode) {
    for (int side = 0; side < 2; side++)
        for (int h = 0; h < N_HEAD; h++) {
            const struct lk_kv *kv = &s->cache->kv[0][side];
            bool seen[MAX_TOKENS] = {false};
            double sum = 0;
            int n = 0, sinks = p->n_tok < p->setup->sinks ? p->n_tok : p->setup->sinks;
            for (int level = 0; level < kv->n_level; level++)
                for (int64_t at = 0; at < kv->count[level].rows; at++, n++) {
                    float x[D_HEAD];
                    int64_t pos = lk_kv_position(kv, level, at, h);
                    if (pos < 0 || pos >= p->n_tok || seen[pos] || !account_holds(p, h, (int)pos))
                        fail_msg("%s, %d tokens: head %d holds position %d", p->setup->recipe,
                                 p->n_tok, h, (int)pos);
                    seen[pos] = true;
                    if (!decode) continue;
                    lk_project_read_head(kv, level, at, h, D_HEAD, s->cache->kernels, x);
                    double e = nmse(x, s->x[side] + pos * WIDTH + h * D_HEAD, D_HEAD);
                    sum += e;
                    if (!(e < row_limit(p->setup)))
                        fail_msg("%s, %d tokens: %s of head %d, position %d: nmse %g",
                                 p->setup->recipe, p->n_tok, side == LK_K ? "K" : "V", h, (int)pos,
                                 e);
                }
            assert_int_equal(n,
                             sinks + p->n_kept[h] + (p->n_tok > sinks ? p->n_tok - p->newer : 0));
            assert_int_equal(kv->first, p->n_tok - n);
        }
}

/* The hook got K and V of the account's rows, head by head and in order. */
static void compare_gone(struct under_test *s, const struct account *p) {
    for (int h = 0; h < N_HEAD; h++) {
        assert_int_equal(s->n_gone[h], p->n_gone[h]);
        for (int i = s->n_checked; i < s->n_gone[h]; i++)
            for (int side = 0; side < 2; side++) {
                double e = nmse(s->gone[side] + ((size_t)h * MAX_TOKENS + i) * D_HEAD,
                                s->x[side] + (size_t)p->gone[h][i] * WIDTH + h * D_HEAD, D_HEAD);
                if (!(e < row_limit(p->setup)))
                    fail_msg("%s: row %d of head %d, position %d: %s reported with nmse %g",
                             p->setup->recipe, i, h, p->gone[h][i], side == LK_K ? "K" : "V", e);
            }
    }
    s->n_checked = s->n_gone[0];
}

/* Draw scores of the held rows, the same for the cache and the account, with ties. */
static void draw_scores(const struct under_test *s, struct account *p, struct random *r) {
    struct lk_evict *evict = &s->cache->evict[0];
    bool last = lk_policy_needed_scores(&p->policy) == LK_SCORES_LAST;
    for (int64_t j = 0; evict->needs_scores && j < evict->n; j++)
        for (int h = 0; h < N_HEAD; h++) {
            float w = random_int(r, 0, 9) ? random_uniform(r) : 0,
                  *mine = &p->score[h][evict->pos[j * N_HEAD + h]];
            *mine = last ? w : *mine + w;
            evict->score[j * N_HEAD + h] = *mine;
        }
}

/* Append random portions until the test's rows are used up. */
static void run_steps(struct under_test *s, struct account *p, struct random *r) {
    for (int round = 0; p->n_tok < MAX_TOKENS; round++) {
        int n = random_int(r, 1, round % 5 ? 3 : 30);
        if (n > MAX_TOKENS - p->n_tok) n = MAX_TOKENS - p->n_tok;
        assert_int_equal(lk_cache_prepare(s->cache, 0, 1, n, n, NULL), LK_OK);
        uint64_t n_alloc = s->ledger.n_alloc;
        for (int side = 0; side < 2; side++)
            assert_int_equal(
                lk_cache_append(s->cache, 0, side, s->x[side] + p->n_tok * WIDTH, n, NULL), LK_OK);
        p->n_tok += n;
        draw_scores(s, p, r);
        assert_int_equal(lk_cache_age(s->cache, 0, round % 2, NULL), LK_OK);
        if (s->ledger.n_alloc != n_alloc) fail_msg("%s: allocated", p->setup->recipe);
        account_age(p, first_newer(&s->cache->kv[0][LK_K]));
        compare_rows(s, p, round % 8 == 0 || p->n_tok == MAX_TOKENS);
        compare_gone(s, p);
        struct lk_cache_bytes b = lk_cache_count_bytes(s->cache);
        assert_int_equal(b.code + b.scale + b.exact + b.padding,
                         lk_ledger_bytes(&s->ledger, LK_FOR_CACHE));
    }
    assert_true(p->n_gone[0] > 100);
}

static void start_account(const struct under_test *s, struct account *p) {
    *p = (struct account){
        .setup = s->setup, .policy = s->cache->evict[0].policy, .newer = s->setup->sinks};
    assert_int_equal(s->cache->evict[0].unit, s->setup->unit);
}

static void test_steps(void **state) {
    for (int i = 0; i < N_SETUP; i++) {
        static struct under_test s;
        static struct account p;
        struct random r = {(uint64_t)i};
        open_cache(&s, &setups[i], (uint64_t)i);
        start_account(&s, &p);
        run_steps(&s, &p, &r);
        /* A copy holds the same rows, and goes on without changing them. */
        struct lk_cache *copy = NULL;
        assert_int_equal(lk_cache_new(&copy, s.recipe, &s.cache->shape, &s.ledger, NULL), LK_OK);
        assert_int_equal(lk_cache_copy(copy, s.cache, NULL), LK_OK);
        struct under_test t = s;
        t.cache = copy;
        compare_rows(&t, &p, true);
        assert_int_equal(lk_cache_prepare(copy, 0, 1, 40, 40, NULL), LK_OK);
        for (int side = 0; side < 2; side++)
            assert_int_equal(lk_cache_append(copy, 0, side, s.x[side], 40, NULL), LK_OK);
        assert_int_equal(lk_cache_age(copy, 0, LK_K, NULL), LK_OK);
        compare_rows(&s, &p, true);
        lk_cache_free(copy);
        close_cache(&s);
    }
}

static int compare_ints(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

/* A prompt keeps what evicting its rows one by one keeps, and reports the others in order. */
static void test_prompts(void **state) {
    for (int i = 0; i < N_SETUP; i++) {
        static struct under_test s;
        static struct account p;
        static float attn_scores[MAX_TOKENS * N_HEAD];
        static struct lk_scored_row order[MAX_TOKENS];
        struct random r = {40 + (uint64_t)i};
        const int n = i % 2 ? 310 : 290;
        open_cache(&s, &setups[i], (uint64_t)i);
        start_account(&s, &p);
        p.n_tok = n;
        for (int j = 0; j < n * N_HEAD; j++)
            attn_scores[j] = p.score[j % N_HEAD][j / N_HEAD] = random_uniform(&r);
        void *block[2];
        struct lk_kv exact[2];
        for (int side = 0; side < 2; side++)
            exact[side] = exact_rows(side, N_HEAD, D_HEAD, s.x[side], n, &block[side]);
        const struct lk_kv *const both[] = {&exact[0], &exact[1]};
        assert_int_equal(lk_cache_alloc_prompt(s.cache, 0, n, NULL), LK_OK);
        account_age(&p, first_newer(&s.cache->kv[0][LK_K]));
        for (int h = N_HEAD - 1; h >= 0; h--)
            lk_evict_select(s.cache, 0, h, s.cache->evict[0].needs_scores ? attn_scores : NULL,
                            both, order);
        for (int h = N_HEAD - 1; h >= 0; h--)
            for (int side = 0; side < 2; side++)
                lk_cache_encode_prompt(s.cache, 0, side, h, &exact[side]);
        for (int h = 0; h < N_HEAD; h++)
            qsort(p.gone[h], (size_t)p.n_gone[h], sizeof p.gone[h][0], compare_ints);
        compare_rows(&s, &p, true);
        compare_gone(&s, &p);
        run_steps(&s, &p, &r);
        free(block[0]), free(block[1]);
        close_cache(&s);
    }
}

/* Heads of a unit add up, or the largest counts; other heads do not matter. */
static void test_policy_sums_units(void **state) {
    const float score[] = {1, 2, 4, 8, 16, 32, 64, 128};
    struct lk_policy_rows rows = {.score = score, .n_head = 4, .unit = 2, .n_tok = 11};
    struct lk_policy h2o = {.kind = LK_POLICY_H2O}, mean = {.kind = LK_POLICY_H2O, .mean = true},
                     tova = {.kind = LK_POLICY_TOVA},
                     apart = {.kind = LK_POLICY_TOVA, .per_head = true},
                     random = {.kind = LK_POLICY_RANDOM}, replay = {.kind = LK_POLICY_REPLAY};
    assert_true(lk_policy_score(&h2o, &rows, 0, 0) == 3 &&
                lk_policy_score(&h2o, &rows, 0, 3) == 12);
    assert_true(lk_policy_score(&mean, &rows, 1, 1) == 48.0f / 10);
    assert_true(lk_policy_score(&apart, &rows, 1, 2) == 192);
    assert_true(lk_policy_score(&replay, &rows, 1, 2) == 128);
    assert_true(lk_policy_score(&tova, &rows, 1, 2) == 240);
    assert_true(lk_policy_score(&random, &rows, 1, 2) == lk_policy_score(&random, &rows, 1, 3));
    assert_true(lk_policy_score(&random, &rows, 1, 2) != lk_policy_score(&random, &rows, 1, 1));
    rows.unit = 0;
    assert_true(lk_policy_score(&h2o, &rows, 1, 2) == 64);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policy_sums_units),
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
