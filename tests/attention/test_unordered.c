/* Attention over levels that a policy keeps, with latents: equal to plain attention in double over
 * the reconstructed rows, and, with a basis of full rank, to the same policy without latents. */
#include "attention/attention.h"
#include "cache/project.h"
#include "support_basis.h"
#include "test.h"

enum { N_HEAD = 8, N_HEAD_KV = 4, D = 32, WIDTH = N_HEAD_KV * D, N_TOK = 300 };

static const float scale = 0.2f;

/* Bases of one layer, for groups of K, of K before RoPE and of V. */
struct bases {
    struct lk_basis basis[LK_N_BASIS];
    const struct lk_basis *table[LK_N_BASIS];
};

enum kind { ORTHONORMAL, SKEW, PERMUTATION };

/* A permutation of channels with signs is a basis that stores each number as it is. */
static void make_permutation(struct random *r, struct lk_basis *basis) {
    float *q = (float *)basis->down.f32;
    int n = basis->width;
    memset(q, 0, (size_t)basis->n_group * n * n * sizeof *q);
    for (int g = 0; g < basis->n_group; g++, q += (size_t)n * n) {
        int to[WIDTH];
        for (int j = 0; j < n; j++) to[j] = j;
        for (int j = n - 1; j > 0; j--) {
            int other = random_int(r, 0, j), t = to[j];
            to[j] = to[other];
            to[other] = t;
        }
        for (int j = 0; j < n; j++) q[(size_t)j * n + to[j]] = random_int(r, 0, 1) ? 1 : -1;
    }
}

static void make_bases(struct bases *b, struct random *r, const int group[LK_N_BASIS],
                       enum kind kind) {
    for (int i = 0; i < LK_N_BASIS; i++) {
        int width = group[i] * D;
        b->basis[i] =
            random_basis(r, N_HEAD_KV / group[i], width, width, width, kind == SKEW, kind == SKEW);
        if (kind == PERMUTATION) make_permutation(r, &b->basis[i]);
        b->table[i] = &b->basis[i];
    }
}

static void free_bases(struct bases *b) {
    for (int i = 0; i < LK_N_BASIS; i++) free_basis(&b->basis[i]);
}

/* A cache that decodes with real attention: every step accumulates scores and evicts. */
struct decoder {
    struct lk_ledger ledger;
    struct lk_rope rope[2];
    lk_recipe *recipe;
    struct lk_cache *cache;
    struct lk_attn attn;
    float q[N_HEAD * D], out[N_HEAD * D];
};

static void open_decoder(struct decoder *s, const char *text, const struct bases *b, bool halves,
                         const struct lk_kernels *kernels) {
    lk_err err = {0};
    double speed[D / 2];
    memset(s, 0, sizeof *s);
    for (int j = 0; j < D / 2; j++) speed[j] = pow(1000, -2.0 * j / D);
    for (int i = 0; i < 2; i++) lk_rope_init(&s->rope[i], D / 2 - 3, halves, 1.1f, speed);
    struct lk_cache_shape shape = {.n_layer = 1,
                                   .n_head_kv = N_HEAD_KV,
                                   .d_head = D,
                                   .n_ctx = 1000,
                                   .basis = b ? b->table : NULL,
                                   .rope = s->rope};
    if (lk_recipe_parse(&s->recipe, text, &err) != LK_OK ||
        lk_cache_new(&s->cache, s->recipe, &shape, &s->ledger, &err) != LK_OK)
        fail_msg("%s: %s", text, err.msg);
    struct lk_cache_widths width = lk_cache_max_widths(s->cache);
    s->attn = (struct lk_attn){.k = &s->cache->kv[0][LK_K],
                               .v = &s->cache->kv[0][LK_V],
                               .kernels = kernels,
                               .n_head = N_HEAD,
                               .n_head_kv = N_HEAD_KV,
                               .d_head = D,
                               .n_tok = 1,
                               .n_thread = 2,
                               .scale = scale,
                               .rope = s->rope,
                               .q = s->q,
                               .out = s->out};
    s->attn.partial =
        malloc(lk_attn_partial_floats(N_HEAD, N_HEAD_KV, D + width.latent, 1, 2) * sizeof(float));
    s->attn.scratch = aligned_alloc(64, 2 * lk_attn_scratch_floats(width.part) * sizeof(float));
}

static void close_decoder(struct decoder *s) {
    free(s->attn.partial), free(s->attn.scratch);
    lk_cache_free(s->cache);
    lk_recipe_free(s->recipe);
    for (int p = 0; p < LK_N_PURPOSE; p++) assert_int_equal(lk_ledger_bytes(&s->ledger, p), 0);
}

/* One token: append, attend, score, age. x: rows of K and V, q: queries. */
static void step(struct decoder *s, float *const x[2], const float *q) {
    struct lk_evict *evict = &s->cache->evict[0];
    memcpy(s->q, q, sizeof s->q);
    lk_cache_observe(s->cache, 0, q, 1, N_HEAD);
    for (int side = 0; side < 2; side++)
        assert_int_equal(lk_cache_append(s->cache, 0, side, x[side], 1, NULL), LK_OK);
    int n_range = lk_attn_ranges(&s->attn, s->attn.k, s->attn.v);
    for (int i = 0; i < 2; i++) lk_attn_items(&s->attn, i, 2);
    bool last = lk_policy_needed_scores(&evict->policy) == LK_SCORES_LAST;
    for (int i = 0; i < 2 && evict->needs_scores; i++)
        lk_attn_accumulate_scores(&s->attn, n_range, last, evict->score, i, 2);
    for (int i = 0; i < 2; i++) lk_attn_combine(&s->attn, n_range, i, 2);
}

static void age(struct decoder *s) {
    for (int side = 0; side < 2; side++)
        assert_int_equal(lk_cache_age(s->cache, 0, side, NULL), LK_OK);
}

/* Attention in double over the rows that a head holds, reconstructed one by one. out: [D] */
static void attend_plainly(const struct decoder *s, int head, double *out) {
    const struct lk_kv *k = s->attn.k, *v = s->attn.v;
    int head_kv = head / (N_HEAD / N_HEAD_KV);
    double *score = calloc((size_t)k->n_tok, sizeof *score), max = -1e300, sum = 0;
    float row[D];
    memset(out, 0, D * sizeof *out);
    for (int level = 0; level < k->n_level; level++)
        for (int64_t at = 0; at < k->count[level].rows; at++) {
            int64_t pos = lk_kv_position(k, level, at, head_kv);
            lk_project_read_head(k, level, at, head_kv, D, &lk_kernels_reference, row);
            if (k->rule[level].shift) { /* the row moves by the number of dropped rows */
                lk_rope_rotate(&s->rope[0], k->first, 1, row, 0);
                for (int c = 0; c < 2 * s->rope[0].n_pair; c++) row[c] /= s->rope[0].magnitude;
            }
            double dot = 0;
            for (int c = 0; c < D; c++) dot += (double)s->q[head * D + c] * row[c];
            score[pos] = dot * scale;
            if (score[pos] > max) max = score[pos];
        }
    for (int level = 0; level < v->n_level; level++)
        for (int64_t at = 0; at < v->count[level].rows; at++) {
            double w = exp(score[lk_kv_position(v, level, at, head_kv)] - max);
            lk_project_read_head(v, level, at, head_kv, D, &lk_kernels_reference, row);
            for (int c = 0; c < D; c++) out[c] += w * row[c];
            sum += w;
        }
    for (int c = 0; c < D; c++) out[c] /= sum;
    free(score);
}

static float *gaussians(struct random *r, size_t n) {
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = random_gauss(r);
    return x;
}

static const struct {
    const char *recipe;
    int group[LK_N_BASIS];
    double limit; /* integer kernels round queries; floats only sum in another order */
} plain_setups[] = {
    {"sink 4: f16; keep 40 by h2o: k=latent50%(pre) v=latent50%; window 20: f16", {1, 1, 1}, 1e-9},
    {"keep 40 by h2o: k=latent75%(pre) v=latent50%; window 20: f16", {1, 4, 2}, 1e-9},
    {"sink 3: k=latent50%(pre) v=latent50%; keep 37 by tova: k=latent50%(pre) v=f16; window 9: f16",
     {1, 2, 1},
     1e-9},
    {"keep 50 by tova(apart): latent50%; window 20: k=latent75% v=latent100%", {2, 1, 4}, 1e-9},
    {"sink 4: f16; keep 64 by h2o: k=latent50%(pre)+rot4 v=latent50%+rot3; window 20: f16",
     {1, 4, 2},
     2e-5},
    {"keep 64 by h2o(mean): k=latent50%(pre)+rot6 v=latent50%+int8; window 20: k=latent100%(pre) "
     "v=latent100%",
     {1, 2, 4},
     2e-5},
    {"keep 64 by random: k=latent100%(pre)+kivi4 v=latent100%+kivi4; window 20: f16",
     {1, 2, 2},
     2e-5},
    {"sink 4: f16; keep 64 by h2o: kivi2; window 20: f16", {1, 1, 1}, 2e-5},
    {"sink 4(shift): k=latent50%(pre) v=latent50%; body: none; window 40: f16", {1, 2, 2}, 1e-9},
    {"sink 4(shift): latent50%; body: none; window 40: f16", {4, 2, 2}, 1e-9},
    {"sink 4(shift): k=f16 v=latent50%; keep 30 by newest: k=latent50%(pre) v=latent50%; window "
     "20: f16",
     {1, 2, 4},
     1e-9},
};

static void test_equals_plain_attention(void **state) {
    const struct lk_kernels *kernels[] = {&lk_kernels_reference, lk_kernels_choose(NULL)};
    for (size_t i = 0; i < 2 * sizeof plain_setups / sizeof *plain_setups; i++) {
        struct random r = {i};
        struct bases b;
        static struct decoder s;
        const char *text = plain_setups[i / 2].recipe;
        make_bases(&b, &r, plain_setups[i / 2].group, SKEW);
        float *x[2] = {gaussians(&r, N_TOK * WIDTH), gaussians(&r, N_TOK * WIDTH)},
              *q = gaussians(&r, N_TOK * N_HEAD * D);
        open_decoder(&s, text, &b, i / 4 % 2, kernels[i % 2]);
        double error = 0, power = 0;
        for (int t = 0; t < N_TOK; t++) {
            float *const now[2] = {x[0] + t * WIDTH, x[1] + t * WIDTH};
            step(&s, now, q + (size_t)t * N_HEAD * D);
            for (int head = 0; head < N_HEAD && (t % 23 == 0 || t == N_TOK - 1); head++) {
                double out[D];
                attend_plainly(&s, head, out);
                for (int c = 0; c < D; c++) {
                    error += pow(out[c] - s.out[head * D + c], 2);
                    power += out[c] * out[c];
                }
            }
            age(&s);
        }
        assert_true(s.attn.k->first > 100);
        if (!(error < plain_setups[i / 2].limit * power))
            fail_msg("%s, %s: nmse %g", text, i % 2 ? "kernels" : "reference", error / power);
        free(x[0]), free(x[1]), free(q);
        close_decoder(&s);
        free_bases(&b);
    }
}

/* Bases of single heads and full rank keep the same rows as no latents, and attend to them in the
 * same way. With a permutation as basis, latents are the rows' own f16 numbers; other bases round
 * them differently. */
static void test_full_rank_keeps_the_same_rows(void **state) {
    static const char *policies[] = {"h2o", "h2o(mean)", "tova", "tova(apart)", "newest", "random"};
    static const int single[] = {1, 1, 1};
    for (int i = 0; i < 6 * 4; i++) {
        bool pre = i % 2;
        enum kind kind = i / 2 % 2 ? PERMUTATION : ORTHONORMAL;
        double limit = kind == PERMUTATION && !pre ? 1e-9 : 1e-6;
        char latent[128], plain[128];
        snprintf(plain, sizeof plain, "sink 4: f16; keep 40 by %s; window 20: f16",
                 policies[i / 4]);
        snprintf(latent, sizeof latent,
                 "sink 4: f16; keep 40 by %s: k=latent100%%%s v=latent100%%; window 20: f16",
                 policies[i / 4], pre ? "(pre)" : "");
        struct random r = {100 + (uint64_t)i};
        struct bases b;
        static struct decoder with, without;
        make_bases(&b, &r, single, kind);
        float *x[2] = {gaussians(&r, N_TOK * WIDTH), gaussians(&r, N_TOK * WIDTH)},
              *q = gaussians(&r, N_TOK * N_HEAD * D);
        open_decoder(&with, latent, &b, false, lk_kernels_choose(NULL));
        open_decoder(&without, plain, NULL, false, lk_kernels_choose(NULL));
        for (int t = 0; t < N_TOK; t++) {
            float *const now[2] = {x[0] + t * WIDTH, x[1] + t * WIDTH};
            step(&with, now, q + (size_t)t * N_HEAD * D);
            step(&without, now, q + (size_t)t * N_HEAD * D);
            double e = nmse(with.out, without.out, N_HEAD * D);
            if (!(e < limit)) fail_msg("%s, token %d: nmse %g", latent, t, e);
            struct lk_evict *one = &with.cache->evict[0], *other = &without.cache->evict[0];
            size_t n_score = one->needs_scores ? (size_t)one->n * N_HEAD_KV : 0;
            for (size_t j = 0; j < n_score; j++)
                assert_float_equal(one->score[j], other->score[j],
                                   (limit > 1e-9 ? 1e-2 : 1e-5) * other->score[j] + 1e-6);
            /* Nearly equal scores may fall either way if latents are rounded. */
            if (limit > 1e-9 && n_score)
                memcpy(one->score, other->score, n_score * sizeof *one->score);
            age(&with), age(&without);
            assert_int_equal(one->n, other->n);
            assert_memory_equal(one->pos, other->pos,
                                (size_t)one->n * N_HEAD_KV * sizeof *one->pos);
        }
        free(x[0]), free(x[1]), free(q);
        close_decoder(&with), close_decoder(&without);
        free_bases(&b);
    }
}

/* A table for rows at any positions rotates like the table of a tile, and like single rows. */
static void test_tables_at_any_positions(void **state) {
    struct random r = {3};
    static struct lk_rope rope;
    static float angles[LK_MAX_PAIR][2][LK_TILE];
    double speed[D / 2];
    for (int j = 0; j < D / 2; j++) speed[j] = pow(10000, -2.0 * j / D);
    lk_rope_init(&rope, D / 2, true, 1.3f, speed);
    int32_t pos[LK_TILE];
    for (int t = 0; t < LK_TILE; t++) pos[t] = random_int(&r, 0, t % 4 ? 4000 : 1000000);
    struct lk_rope_table table = lk_rope_table_at(&rope, pos, LK_TILE, angles);
    for (int t = 0; t < LK_TILE; t++)
        for (int j = 0; j < table.n_pair; j++) {
            double angle = speed[j] * pos[t];
            assert_float_equal(table.cos_sin[j][0][t], 1.3 * cos(angle), 1e-6);
            assert_float_equal(table.cos_sin[j][1][t], 1.3 * sin(angle), 1e-6);
        }
    for (int t = 0; t < LK_TILE; t++) pos[t] = t;
    table = lk_rope_table_at(&rope, pos, LK_TILE, angles);
    for (int j = 0; j < table.n_pair; j++)
        for (int t = 0; t < LK_TILE; t++)
            assert_float_equal(table.cos_sin[j][0][t], rope.table[0][j][0][t], 1e-6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables_at_any_positions),
        cmocka_unit_test(test_equals_plain_attention),
        cmocka_unit_test(test_full_rank_keeps_the_same_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
