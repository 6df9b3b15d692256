/* Attention over levels and blocks, compared with a plain softmax over the rows that the cache
 * holds. */
#include "attention/attention.h"
#include "attention/attn_item.h"
#include "attention/partition.h"
#include "cache/latent_levels.h"
#include "cache/project.h"
#include "support_baselines.h"
#include "support_basis.h"
#include "test.h"

#include <pthread.h>

struct setup {
    const char *recipe;
    int n_head, n_head_kv, d_head, n_swa;
    float alibi;
    int group[2];    /* KV heads per latent, of K and of V; 0: no basis */
    bool skew, mean; /* of the bases */
    bool uneven;     /* each group has its own recommended rank */
};

static const struct setup setups[] = {
    {"all: f16", 9, 3, 64, 0, 0, {0, 0}, false, false, false},
    {"all: f16", 3, 3, 80, 0, 8, {0, 0}, false, false, false},
    {"all: int8", 4, 2, 96, 0, 0, {0, 0}, false, false, false},
    {"sink 4: f16; body: k=rot3 v=rot2; window 64: f16",
     9,
     3,
     64,
     0,
     0,
     {0, 0},
     false,
     false,
     false},
    {"sink 16: f16; body: int8; window 100: f16", 8, 1, 128, 0, 0, {0, 0}, false, false, false},
    {"body: kivi2; residual 128: f16", 6, 2, 64, 0, 0, {0, 0}, false, false, false},
    {"sink 5: f16; body: kivi4(g64); recent 10%: rot8; window 33: f16",
     4,
     4,
     128,
     0,
     8,
     {0, 0},
     false,
     false,
     false},
    {"body: k=rot4 v=rot1; window 20: int8", 71, 1, 64, 0, 0, {0, 0}, false, false, false},
    {"sink 4: f16; body: rot4; window 40: f16", 4, 1, 256, 75, 0, {0, 0}, false, false, false},
    {"body: rot5; window 5%: rot6", 5, 5, 80, 0, 0, {0, 0}, false, false, false},
    {"all: f16", 6, 2, 128, 75, 0, {0, 0}, false, false, false},
    {"all: f16", 7, 1, 40, 0, 0, {0, 0}, false, false, false},
    {"all: f16", 4, 1, 256, 33, 8, {0, 0}, false, false, false},
    {"latent100%", 9, 3, 64, 0, 0, {3, 3}, true, true, false},
    {"sink 4: f16; body: k=latent60%+rot3 v=latent50%+rot3; window 64: f16",
     9,
     3,
     64,
     0,
     0,
     {3, 1},
     false,
     false,
     false},
    {"sink 3: latent; body: k=rot4 v=latent40%+rot2; recent 10%: k=rot4 v=latent80%+rot4; window "
     "33: f16",
     8,
     4,
     32,
     0,
     8,
     {1, 2},
     true,
     true,
     false},
    {"body: k=latent50%+kivi2 v=latent50%+kivi2; residual 128: f16",
     6,
     2,
     64,
     0,
     0,
     {2, 2},
     false,
     true,
     false},
    {"body: k=latent30%+int8 v=rot4; window 40: k=latent70%+rot8 v=f16",
     14,
     2,
     64,
     75,
     0,
     {2, 0},
     false,
     true,
     false},
    {"body: latent+rot5(sigma); window 5%: latent+rot6",
     12,
     6,
     48,
     0,
     0,
     {2, 3},
     false,
     false,
     false},
    {"sink 4: f16; body: k=latent(pre)+rot3 v=latent50%+rot3; window 64: f16",
     9,
     3,
     64,
     0,
     0,
     {3, 3},
     false,
     false,
     false},
    {"body: k=latent70%(pre) v=f16; window 20: f16", 8, 4, 32, 75, 0, {2, 0}, true, true, false},
    {"body: k=latent50%(pre)+kivi4 v=rot2; recent 40: k=latent100%(pre)+int8 v=rot4",
     6,
     2,
     64,
     0,
     8,
     {1, 0},
     false,
     true,
     false},
    {"body: k=latent45%(pre)+rot2(nomean) v=f16; recent 90: k=latent80%(pre)+rot6 v=f16; window "
     "20: f16",
     6,
     3,
     40,
     0,
     0,
     {3, 0},
     false,
     true,
     false},
    {"body: latent55%+rot2(mean); window 20: int8", 70, 70, 8, 0, 0, {2, 35}, false, false, false},
    {"sink 4: f16; body: latent+rot3; window 64: f16", 8, 4, 32, 0, 0, {1, 1}, true, true, true},
    {"sink 3: latent; body: k=latent+int8 v=latent; recent 60: k=latent80%+rot8 v=latent100%",
     12,
     6,
     40,
     0,
     8,
     {2, 3},
     false,
     true,
     true},
    {"body: k=asym4(g32) v=asym3(hadamard); window 20: asym8",
     9,
     3,
     64,
     0,
     0,
     {0, 0},
     false,
     false,
     false},
    {"sink 1: f16; body: k=kvquant3 v=hqq4; residual 128: f16",
     8,
     2,
     64,
     75,
     0,
     {0, 0},
     false,
     false,
     false},
    {"all: k=latent50%(pre)+rot3(nomean,nosigma) v=latent50%+rot3",
     9,
     3,
     64,
     0,
     0,
     {3, 3},
     false,
     true,
     false},
    {"sink 3: f16; body: k=latent80%(pre)+rot4(nomean) v=rot4; window 20: f16",
     6,
     2,
     128,
     75,
     8,
     {1, 0},
     true,
     true,
     false},
    {"all: k=latent(pre)+rot3(nomean,nosigma) v=latent+rot3",
     16,
     8,
     64,
     0,
     0,
     {2, 2},
     true,
     true,
     true},
    {"all: k=latent(pre)+asym3(hadamard) v=latent+asym3(hadamard)",
     9,
     3,
     64,
     0,
     0,
     {3, 3},
     false,
     true,
     false},
    {"body: k=latent50%(pre)+kvquant4 v=latent100%+asym4(g32); recent 64: k=latent100%(pre)+asym6 "
     "v=latent100%+asym8",
     6,
     2,
     64,
     0,
     8,
     {2, 2},
     false,
     true,
     false},
    {"body: k=latent50%(pre)+rot5(nomean,nosigma) v=asym5; recent 90: k=latent80%(pre)+asym5 "
     "v=rot8; window 70: k=latent100%(pre)+rot5 v=f16",
     10,
     2,
     64,
     0,
     0,
     {2, 0},
     true,
     true,
     false},
    {"body: k=latent(pre)+rot3 v=latent+rot2(sigma); recent 90: k=latent100%(pre)+rot6 "
     "v=latent100%+rot4; window 20: f16",
     8,
     4,
     48,
     0,
     0,
     {1, 2},
     true,
     true,
     true},
    {"body: k=latent+kivi2 v=latent+kivi4; window 128: f16",
     6,
     6,
     64,
     75,
     0,
     {1, 1},
     false,
     false,
     true},
    {"body: latent+rot4(sigma); window 20: f16", 66, 66, 16, 0, 0, {1, 1}, false, false, true},
    {"sink 4: f16; body: none; window 100: f16", 9, 3, 64, 0, 0, {0, 0}, false, false, false},
    {"sink 40: f16; body: none; recent 200: rot5; window 33: f16",
     4,
     2,
     80,
     0,
     8,
     {0, 0},
     false,
     false,
     false},
    {"sink 7: int8; body: none; window 150: k=rot6 v=int8",
     6,
     1,
     64,
     0,
     0,
     {0, 0},
     false,
     false,
     false},
    {"body: none; window 20: f16", 6, 2, 128, 75, 0, {0, 0}, false, false, false},
    {"sink 4: f16; keep 64 by random: rot4; window 100: f16",
     9,
     3,
     64,
     0,
     0,
     {0, 0},
     false,
     false,
     false},
    {"keep 90 by h2o: k=rot5 v=rot4; recent 50: rot6; window 33: f16",
     4,
     2,
     80,
     0,
     8,
     {0, 0},
     false,
     false,
     false},
    {"sink 2: f16; keep 300 by random", 5, 1, 40, 0, 8, {0, 0}, false, false, false},
};

static void read_row(const struct lk_kv *s, int64_t pos, int head, int d, float *out) {
    int64_t at = pos - s->first;
    int level = 0;
    while (at >= s->count[level].rows) at -= s->count[level++].rows;
    lk_project_read_head(s, level, at, head, d, &lk_kernels_reference, out);
}

/* Position of a head's row of index `at`. */
static int64_t position_of(const struct lk_kv *s, int64_t at, int head) {
    if (s->evict) return s->evict->pos[(at - s->first) * s->evict->n_head + head];
    int64_t sinks = lk_level_sinks(s->rule, s->n_level);
    return at - s->first < sinks ? at - s->first : at;
}

/* Decode all rows that K or V holds, by index: [n_head_kv][n_tok][d], to be freed. */
static float *read_rows(const struct lk_kv *s, int n_head_kv, int d) {
    float *rows = calloc((size_t)n_head_kv * s->n_tok * d, sizeof *rows);
    for (int head = 0; head < n_head_kv; head++)
        for (int64_t pos = s->first; pos < s->n_tok; pos++)
            read_row(s, pos, head, d, rows + ((size_t)head * s->n_tok + pos) * d);
    return rows;
}

/* A score after scaling. */
static double capped(const struct lk_attn *a, double score) {
    return a->softcap > 0 ? a->softcap * tanh(score / a->softcap) : score;
}

/* The definition: softmax(cap(scale q K^T) + bias) V over visible positions, in double. A sink is
 * one more score, whose value is 0. */
static void plain_attention(const struct lk_attn *a, float *out) {
    int d = a->d_head, group = a->n_head / a->n_head_kv;
    int64_t n = a->k->n_tok;
    double *s = malloc(n * sizeof *s), *sum = malloc(d * sizeof *sum);
    float *k = read_rows(a->k, a->n_head_kv, d), *v = read_rows(a->v, a->n_head_kv, d);
    for (int t = 0; t < a->n_tok; t++)
        for (int h = 0; h < a->n_head; h++) {
            int64_t pos = n - a->n_tok + t, from = a->k->n_swa > 0 ? pos - a->k->n_swa + 1 : 0;
            if (from < a->k->first) from = a->k->first;
            const float *q = a->q + ((size_t)t * a->n_head + h) * d;
            double max = -INFINITY, total = 0;
            for (int64_t j = from; j <= pos; j++) {
                const float *row = k + ((size_t)(h / group) * n + j) * d;
                s[j] = 0;
                for (int c = 0; c < d; c++) s[j] += (double)q[c] * row[c];
                s[j] = capped(a, s[j] * a->scale);
                if (a->alibi_max_bias > 0)
                    s[j] += lk_alibi_slope(h, a->n_head, a->alibi_max_bias) *
                            (double)(position_of(a->k, j, h / group) - pos);
                if (s[j] > max) max = s[j];
            }
            if (a->sink && a->sink[h] > max) max = a->sink[h];
            if (a->sink) total = exp(a->sink[h] - max);
            memset(sum, 0, d * sizeof *sum);
            for (int64_t j = from; j <= pos; j++) {
                double p = exp(s[j] - max);
                total += p;
                const float *row = v + ((size_t)(h / group) * n + j) * d;
                for (int c = 0; c < d; c++) sum[c] += p * row[c];
            }
            for (int c = 0; c < d; c++)
                out[((size_t)t * a->n_head + h) * d + c] = (float)(sum[c] / total);
        }
    free(s), free(sum), free(k), free(v);
}

/* The score of the newest visible row, without bias. */
static double newest_score(const struct lk_attn *a, const float *k, int t, int head) {
    int64_t n = a->k->n_tok, pos = n - a->n_tok + t;
    const float *q = a->q + ((size_t)t * a->n_head + head) * a->d_head,
                *row = k + ((size_t)(head * a->n_head_kv / a->n_head) * n + pos) * a->d_head;
    double dot = 0;
    for (int c = 0; c < a->d_head; c++) dot += (double)q[c] * row[c];
    return capped(a, dot * a->scale); /* ALiBi's bias is 0 for this row */
}

/* Attention's output from lk_attn_weights and the values that the cache holds. A row's weight is
 * exp(score - log_sum). */
static void attention_from_weights(const struct lk_attn *a, float *out) {
    int d = a->d_head, group = a->n_head / a->n_head_kv;
    int64_t n = a->k->n_tok;
    float *weight = malloc(n * a->n_head * sizeof *weight), *v = read_rows(a->v, a->n_head_kv, d),
          *k = read_rows(a->k, a->n_head_kv, d), *log_sum = malloc(a->n_head * sizeof *log_sum);
    double sum[LK_MAX_D_HEAD];
    for (int t = 0; t < a->n_tok; t++) {
        lk_attn_weights(a, t, weight, log_sum);
        for (int h = 0; h < a->n_head; h++) {
            float newest = weight[h * n + position_of(a->k, n - a->n_tok + t, h / group)];
            if (newest > 1e-6)
                assert_true(fabs(log(newest) - (newest_score(a, k, t, h) - log_sum[h])) < 0.1);
        }
        for (int h = 0; h < a->n_head; h++) {
            double total = 0;
            memset(sum, 0, sizeof sum);
            for (int64_t j = 0; j < n; j++) {
                double p = j < a->v->first ? 0 : weight[h * n + position_of(a->v, j, h / group)];
                assert_true(p >= 0 && (j <= n - a->n_tok + t || p == 0));
                total += p;
                const float *row = v + ((size_t)(h / group) * n + j) * d;
                for (int c = 0; c < d; c++) sum[c] += p * row[c];
            }
            assert_true(total < 1 + 1e-4 && (a->sink || total > 1 - 1e-4));
            for (int c = 0; c < d; c++) out[((size_t)t * a->n_head + h) * d + c] = (float)sum[c];
        }
    }
    free(weight), free(v), free(k), free(log_sum);
}

static void run_attention(struct lk_attn *a, int n_thread) {
    for (int i = 0; i < n_thread; i++) lk_attn_items(a, i, n_thread);
    for (int i = 0; i < n_thread; i++)
        lk_attn_combine(a, lk_attn_ranges(a, a->k, a->v), i, n_thread);
}

/* Error of lk_attn_accumulate_scores, compared with the sum of lk_attn_weights. */
static double error_of_scores(struct lk_attn *a, int n_thread, bool last) {
    int64_t n = a->k->n_tok, n_row = n - a->k->first;
    int group = a->n_head / a->n_head_kv;
    float *attn_scores = malloc(n_row * a->n_head_kv * sizeof *attn_scores),
          *sum = malloc(n_row * a->n_head_kv * sizeof *sum);
    float *weight = malloc(n * a->n_head * sizeof *weight);
    for (int64_t i = 0; i < n_row * a->n_head_kv; i++)
        attn_scores[i] = sum[i] = 2; /* earlier scores */
    for (int i = 0; i < n_thread; i++) lk_attn_items(a, i, n_thread);
    for (int i = 0; i < n_thread; i++)
        lk_attn_accumulate_scores(a, lk_attn_ranges(a, a->k, a->v), last, attn_scores, i, n_thread);
    if (last) memset(sum, 0, n_row * a->n_head_kv * sizeof *sum);
    for (int t = last ? a->n_tok - 1 : 0; t < a->n_tok; t++) {
        lk_attn_weights(a, t, weight, NULL);
        for (int64_t i = 0; i < n_row; i++)
            for (int h = 0; h < a->n_head; h++)
                sum[i * a->n_head_kv + h / group] +=
                    weight[h * n + position_of(a->k, a->k->first + i, h / group)];
    }
    double e = nmse(attn_scores, sum, n_row * a->n_head_kv);
    free(attn_scores), free(sum), free(weight);
    return e;
}

/* Error with extra_partial: for every second query far above all rows, for the others empty. */
static double error_of_extra(struct lk_attn *a, int n_thread, const float *out) {
    int d = a->d_head, n = a->n_tok * a->n_head;
    float *extra = malloc((size_t)n * (d + 2) * sizeof *extra),
          *mixed = malloc((size_t)n * d * sizeof *mixed);
    float *ref = malloc((size_t)n * d * sizeof *ref), *before = a->out;
    for (int i = 0; i < n; i++) {
        bool above = i % 2;
        for (int c = 0; c < d; c++) {
            extra[(size_t)i * (d + 2) + c] = above ? 6 : 0;
            ref[(size_t)i * d + c] = above ? 2 : out[(size_t)i * d + c]; /* 6 / 3 */
        }
        extra[(size_t)i * (d + 2) + d] = above ? 500 : -INFINITY;
        extra[(size_t)i * (d + 2) + d + 1] = above ? 3 : 0;
    }
    a->extra_partial = extra;
    a->out = mixed;
    run_attention(a, n_thread);
    a->extra_partial = NULL;
    a->out = before;
    double e = nmse(mixed, ref, (size_t)n * d);
    free(extra), free(mixed), free(ref);
    return e;
}

struct fixture {
    struct lk_ledger ledger;
    struct lk_cache *cache;
    lk_recipe *recipe;
    struct lk_basis basis[2];
    const struct lk_basis *bases[LK_N_BASIS];
    struct lk_rope rope[2];
    uint8_t is_swa;
};

static void open_cache(struct fixture *f, const struct setup *setup,
                       const struct lk_kernels *kernels, struct random *r) {
    *f = (struct fixture){.is_swa = setup->n_swa > 0};
    struct lk_cache_shape shape = {.n_layer = 1,
                                   .n_head_kv = setup->n_head_kv,
                                   .d_head = setup->d_head,
                                   .n_swa = setup->n_swa,
                                   .is_swa = &f->is_swa,
                                   .kernels = kernels};
    for (int side = 0; side < 2; side++) {
        int n = setup->group[side], wide = n * setup->d_head;
        if (n)
            f->basis[side] = random_basis(r, setup->n_head_kv / n, wide, wide, wide / 2,
                                          setup->skew, setup->mean);
        for (int g = 0; setup->uneven && g < setup->n_head_kv / n; g++)
            ((int32_t *)f->basis[side].rank)[g] = 1 + (g * 5 + 2) % 4 * (wide - 1) / 4;
    }
    f->bases[LK_BASIS_K] = &f->basis[LK_K];
    f->bases[LK_BASIS_V] = &f->basis[LK_V];
    if (setup->group[LK_K] || setup->group[LK_V]) shape.basis = f->bases;
    if (strstr(setup->recipe, "(pre)")) {
        double speed[LK_MAX_PAIR];
        /* with skew, some channels are not rotated */
        int n_pair = setup->d_head / 2 - (setup->skew ? 4 : 0);
        for (int i = 0; i < n_pair; i++) speed[i] = pow(10000, -(double)i / n_pair);
        for (int i = 0; i < 2; i++)
            lk_rope_init(&f->rope[i], n_pair, setup->mean, i ? 1 : 1.2f, speed);
        f->bases[LK_BASIS_KPRE] = &f->basis[LK_K];
        shape.rope = f->rope;
    }
    lk_err err = {0};
    if (lk_recipe_parse(&f->recipe, setup->recipe, &err) != LK_OK ||
        lk_cache_new(&f->cache, f->recipe, &shape, &f->ledger, &err) != LK_OK)
        fail_msg("%s: %s", setup->recipe, err.msg);
}

static void close_cache(struct fixture *f) {
    lk_cache_free(f->cache);
    lk_recipe_free(f->recipe);
    free_basis(&f->basis[LK_K]), free_basis(&f->basis[LK_V]);
}

/* Append n_rows random rows in portions. The last n_tok are appended at once and not aged. */
static void append_rows(struct lk_cache *cache, int n_rows, int n_tok, struct random *r) {
    int width = cache->shape.n_head_kv * cache->shape.d_head;
    float *x = malloc((size_t)(n_tok > 60 ? n_tok : 60) * width * sizeof *x);
    for (int at = 0; at < n_rows;) {
        int n = at + n_tok < n_rows ? random_int(r, 1, 60) : n_tok;
        if (at < n_rows - n_tok && n > n_rows - n_tok - at) n = n_rows - n_tok - at;
        at += n;
        for (int side = 0; side < 2; side++) {
            for (int i = 0; i < n * width; i++)
                x[i] = random_gauss(r) + (side == LK_K && i % 13 == 0 ? 3 : 0);
            assert_int_equal(lk_cache_append(cache, 0, side, x, n, NULL), LK_OK);
            if (at < n_rows) assert_int_equal(lk_cache_age(cache, 0, side, NULL), LK_OK);
        }
        const struct lk_evict *evict = &cache->evict[0]; /* scores for the policy */
        for (int64_t i = 0; evict->needs_scores && i < evict->n * evict->n_head; i++)
            evict->score[i] += random_uniform(r);
    }
    free(x);
}

/* Whether slow channels of keys before RoPE are folded into few queries (score_pre.h). For many
 * queries, or in another number of functions, the same scores are rounded differently: the folded
 * weights and vectors to 8 bits, and the rotations by up to LK_FOLD_ERROR. The largest error of
 * these tests is 8e-6. Rotations in f32 are far more exact. */
#define FOLDED_ERROR 2e-5
static bool may_fold(const struct lk_kv *k) {
    for (int i = 0; i < k->n_level; i++) {
        const struct lk_k_up *k_up = k->level[i].k_up;
        if (k_up && k_up->up.q8 && !k_up->up.q16 && !k_up->up.q) return true;
    }
    return false;
}

/* Squared errors of the output and of the weights if the rows are a prompt's: AVX-512 multiplies
 * them in fixed point (kernels/avx512_f16.c). The largest of these tests are 4e-7 and 3e-8. */
#define PROMPT_ERROR 5e-7
#define PROMPT_SCORE_ERROR 4e-8

enum { MAX_HEADS = 80 };

/* The output, the weights, and their sums. */
static void compare_with_plain(struct lk_attn *a, const struct setup *setup, double limit) {
    size_t n_out = (size_t)a->n_tok * a->n_head * a->d_head;
    float *ref = malloc(n_out * sizeof *ref), *from_weights = malloc(n_out * sizeof *ref);
    char what[300];
    snprintf(what, sizeof what, "%.150s, %s, %lld rows, %d tokens, %d threads, cap %g",
             setup->recipe, a->kernels->name, (long long)a->k->n_tok, a->n_tok, a->n_thread,
             a->softcap);
    run_attention(a, a->n_thread);
    plain_attention(a, ref);
    double e = nmse(a->out, ref, n_out);
    if (!(e <= limit)) fail_msg("%s: nmse %g", what, e);
    attention_from_weights(a, from_weights);
    e = nmse(from_weights, ref, n_out);
    if (!(e <= limit)) fail_msg("%s: weights: nmse %g", what, e);
    for (int last = 0; setup->n_swa == 0 && last < 2; last++) {
        e = error_of_scores(a, a->n_thread, last);
        if (!(e <= (may_fold(a->k) ? FOLDED_ERROR : a->is_prompt ? PROMPT_SCORE_ERROR : 1e-9)))
            fail_msg("%s: scores: nmse %g", what, e);
    }
    free(ref), free(from_weights);
}

static void check_setup(const struct setup *setup, const struct lk_kernels *kernels, int n_rows,
                        int n_tok, int n_thread, double limit) {
    struct random r = {(uint64_t)n_rows * 31 + n_tok};
    static struct fixture f;
    open_cache(&f, setup, kernels, &r);
    append_rows(f.cache, n_rows, n_tok, &r);
    struct lk_cache *cache = f.cache;
    size_t n_out = (size_t)n_tok * setup->n_head * setup->d_head;
    float *q = malloc(n_out * sizeof *q), *out = malloc(n_out * sizeof *out);
    for (size_t i = 0; i < n_out; i++) q[i] = random_gauss(&r);
    struct lk_attn a = {.k = &cache->kv[0][LK_K],
                        .v = &cache->kv[0][LK_V],
                        .kernels = kernels,
                        .n_head = setup->n_head,
                        .n_head_kv = setup->n_head_kv,
                        .d_head = setup->d_head,
                        .n_tok = n_tok,
                        .n_thread = n_thread,
                        .scale = 1 / sqrtf((float)setup->d_head),
                        .alibi_max_bias = setup->alibi,
                        .q = q,
                        .out = out};
    struct lk_cache_widths room = lk_cache_max_widths(cache);
    a.partial = malloc(lk_attn_partial_floats(setup->n_head, setup->n_head_kv,
                                              setup->d_head + room.latent, n_tok, n_thread) *
                       sizeof(float));
    a.scratch = aligned_alloc(64, n_thread * lk_attn_scratch_floats(room.part) * sizeof(float));
    compare_with_plain(&a, setup, limit);
    if (strcmp(setup->recipe, "all: f16") == 0) {
        struct lk_attn prompt = a;
        prompt.is_prompt = true;
        compare_with_plain(&prompt, setup, PROMPT_ERROR);
    }
    if (n_rows == 333 || n_rows == n_tok) {
        float sink[MAX_HEADS];
        for (int h = 0; h < setup->n_head; h++) sink[h] = 3 * random_gauss(&r);
        struct lk_attn with_sinks = a;
        with_sinks.softcap = 1.5f;
        with_sinks.sink = sink;
        compare_with_plain(&with_sinks, setup, limit);
    }
    run_attention(&a, n_thread);
    double e = error_of_extra(&a, n_thread, out);
    if (!(e <= 1e-9))
        fail_msg("%s, %s, %d rows, %d tokens: extra: nmse %g", setup->recipe, kernels->name, n_rows,
                 n_tok, e);
    free(a.partial), free(a.scratch), free(q), free(out);
    close_cache(&f);
}

/* Each setup with few rows, and with one or (unless cases are sampled) all of the larger sizes.
 * n_many: tokens of the case with many tokens. */
static void check_all(const struct lk_kernels *kernels, bool all_sizes, int n_many, double limit) {
    all_sizes &= case_runs(1);
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        if (!case_runs(i)) continue;
        check_setup(&setups[i], kernels, 1, 1, 1, limit);
        check_setup(&setups[i], kernels, 37, 37, 2, limit);
        if (all_sizes || i % 3 == 0) check_setup(&setups[i], kernels, 333, 1, 3, limit);
        if (all_sizes || i % 3 == 1) check_setup(&setups[i], kernels, 700, n_many, 2, limit);
        if (all_sizes || i % 3 == 2) check_setup(&setups[i], kernels, 1301, 5, 4, limit);
    }
}

static void test_reference_kernels(void **state) {
    check_all(&lk_kernels_reference, false, 7, 1e-10); /* slow */
}

/* The kernels that this machine uses: integer queries and weights lose a little precision. */
static void test_fastest_kernels(void **state) {
    check_all(lk_kernels_choose(NULL), true, 32, 3e-4);
}

/* Keys before RoPE with the kernels that this machine could use but does not choose. */
static void test_slower_kernels(void **state) {
    static const char *const names[] = {"avx2", "avxvnni", "avx512"};
    const struct lk_kernels *best = lk_kernels_choose(NULL);
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        const struct lk_kernels *kernels = lk_kernels_choose(names[n]);
        for (size_t i = 0; kernels && kernels != best && i < sizeof setups / sizeof *setups; i++) {
            if (!strstr(setups[i].recipe, "(pre)") || !case_runs(n + i)) continue;
            check_setup(&setups[i], kernels, 333, 1, 3, 3e-4);
            check_setup(&setups[i], kernels, 701, 3, 2, 3e-4);
        }
    }
}

/* Prompts: many queries, and the first ones see only few rows. In f16 every kernel is exact up to
 * the rounding of floats. */
static void test_prompts(void **state) {
    const struct lk_kernels *best = lk_kernels_choose(NULL), *avx2 = lk_kernels_choose("avx2"),
                            *kernels[] = {&lk_kernels_reference, best, avx2 == best ? NULL : avx2};
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) {
        if (strcmp(setups[i].recipe, "all: f16") != 0) continue;
        for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
            if (!kernels[k] || !case_runs(i + k)) continue;
            bool slow = kernels[k] == &lk_kernels_reference;
            check_setup(&setups[i], kernels[k], slow ? 139 : 290, slow ? 139 : 290, 2, 1e-11);
            check_setup(&setups[i], kernels[k], 601, slow ? 67 : 257, 3, 1e-11);
        }
    }
}

/* Bytes of one head's rows at positions [from, to). */
static double bytes_between(const struct lk_kv *s, int64_t from, int64_t to) {
    int64_t first = s->first;
    double bytes = 0;
    for (int i = 0; i < s->n_level; first += s->count[i].rows, i++)
        for (int64_t pos = first; pos < first + s->count[i].rows; pos++)
            if (pos >= from && pos < to)
                bytes += (double)s->level[i].head_bytes / s->rule[i].block_rows;
    return bytes;
}

/* Ranges cover all positions in order. With few queries, the last range has fewer rows because its
 * rows are larger. It still has more bytes, because each row also has a fixed cost. With many
 * queries, all ranges have about the same number of rows. */
static void test_ranges(void **state) {
    enum { ROWS = 4096, HEADS = 2, D = 64 };
    struct random r = {7};
    struct lk_cache_shape shape = {
        .n_layer = 1, .n_head_kv = HEADS, .d_head = D, .kernels = &lk_kernels_reference};
    struct lk_ledger ledger = {0};
    struct lk_cache *cache;
    lk_recipe *recipe;
    assert_int_equal(lk_recipe_parse(&recipe, "sink 4: f16; body: rot2; recent 50%: f16", NULL),
                     LK_OK);
    assert_int_equal(lk_cache_new(&cache, recipe, &shape, &ledger, NULL), LK_OK);
    float *x = malloc(sizeof(float) * ROWS * HEADS * D);
    for (int i = 0; i < ROWS * HEADS * D; i++) x[i] = random_gauss(&r);
    for (int side = 0; side < 2; side++) {
        assert_int_equal(lk_cache_append(cache, 0, side, x, ROWS, NULL), LK_OK);
        assert_int_equal(lk_cache_age(cache, 0, side, NULL), LK_OK);
    }
    for (int n_tok = 1; n_tok <= 500; n_tok += 499) {
        struct lk_attn a = {.k = &cache->kv[0][LK_K],
                            .v = &cache->kv[0][LK_V],
                            .kernels = &lk_kernels_reference,
                            .n_head = HEADS,
                            .n_head_kv = HEADS,
                            .d_head = D,
                            .n_tok = n_tok,
                            .n_thread = 5,
                            .scale = 1};
        struct lk_partition p = lk_partition_work(&a);
        assert_true(p.n_range > 1);
        assert_int_equal(lk_partition_range(&a, &p, 0), 0);
        assert_int_equal(lk_partition_range(&a, &p, p.n_range), ROWS);
        for (int i = 0; i < p.n_range; i++)
            assert_true(lk_partition_range(&a, &p, i) <= lk_partition_range(&a, &p, i + 1));
        int64_t second = lk_partition_range(&a, &p, 1),
                last = lk_partition_range(&a, &p, p.n_range - 1);
        double last_bytes = bytes_between(a.k, last, ROWS),
               first_bytes = bytes_between(a.k, 0, second);
        if (n_tok == 1)
            assert_true(ROWS - last < 0.7 * second && last_bytes > first_bytes &&
                        last_bytes < 2 * first_bytes);
        else
            assert_true(ROWS - last > 0.9 * second);
    }
    free(x);
    lk_cache_free(cache);
    lk_recipe_free(recipe);
}

static void test_alibi_slopes(void **state) {
    assert_float_equal(lk_alibi_slope(0, 8, 8), 0.5, 1e-7);
    assert_float_equal(lk_alibi_slope(7, 8, 8), 1.0 / 256, 1e-7);
    assert_float_equal(lk_alibi_slope(8, 12, 8), powf(2, -0.5f), 1e-6);
    assert_float_equal(lk_alibi_slope(11, 12, 8), powf(2, -3.5f), 1e-6);
}

int main(void) {
    register_baselines();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_kernels), cmocka_unit_test(test_fastest_kernels),
        cmocka_unit_test(test_slower_kernels),    cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_alibi_slopes),      cmocka_unit_test(test_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
