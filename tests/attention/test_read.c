/* Decoding that reads a share of the tiles: the rule, computed here in double precision from the
 * blocks; the same choice for any number of threads and of tokens; calls that read everything. */
#include "codec/f16.h"
#include "codec/rot.h"
#include "test_rules.h"

enum { MAX_ROWS = 1700, MAX_TILES = MAX_ROWS / LK_TILE, MAX_NEW = 9 };

/* Keys whose scores differ from tile to tile, and queries that look for some of them. */
static void open_with_rows(struct world *w, const char *recipe, struct random *r) {
    open_world(w, recipe);
    float level[4] = {0};
    for (int t = 0; t < w->n_row; t++) {
        for (int c = 0; t % 50 == 0 && c < 4; c++) level[c] = 2 * random_gauss(r);
        for (int i = 0; i < w->n_head_kv * D; i++) {
            size_t at = (size_t)t * w->n_head_kv * D + i;
            w->k[at] = 0.5f * random_gauss(r) + (i % D < 4 ? level[(i + i / D) % 4] : 0);
            w->v[at] = random_gauss(r) + (i % D < 4 ? level[i % 4] : 0);
        }
        for (int i = 0; i < n_head(w) * D; i++)
            w->q[(size_t)t * n_head(w) * D + i] = random_gauss(r);
    }
    for (int from = 0, n; from < w->n_row; from += n) { /* a prompt, then the newest tokens */
        n = from == 0 ? w->n_row - MAX_NEW : MAX_NEW;
        append(w, from, n);
        if (from == 0) age(w);
    }
}

/* ---- the rule, from the blocks ---- */

/* Level that holds position pos, and the index of its row in the level's blocks. */
static int level_of(const struct lk_kv *kv, int pos, int *row) {
    int64_t first = kv->first;
    for (int level = 0;; first += kv->count[level++].rows)
        if (pos < first + kv->count[level].rows) {
            *row = (int)(pos - first) + kv->count[level].skip;
            return level;
        }
}

/* Whether a tile starts at pos that a token at position `token` may leave out. */
static bool candidate(const struct world *w, int pos, int token) {
    int row, last, level = level_of(&w->cache->kv[0][LK_K], pos, &row);
    const struct lk_codec *of_k = &w->cache->kv[0][LK_K].rule[level].codec;
    if (of_k->coding != LK_ROT || !of_k->mean) return false;
    if (pos + LK_TILE > token + 1 - LK_READ_NEWEST) return false;
    for (int side = 0; side < 2; side++) {
        const struct lk_kv *kv = &w->cache->kv[0][side];
        level = level_of(kv, pos, &row);
        if (row % LK_TILE || level_of(kv, pos + LK_TILE - 1, &last) != level) return false;
        if (kv->rule[level].block_rows != LK_TILE) return false;
    }
    return true;
}

/* Estimated log of a tile's weight. */
static double estimate(const struct world *w, int pos, int head_kv, const float *query) {
    const struct lk_kv *k = &w->cache->kv[0][LK_K];
    int row, level = level_of(k, pos, &row);
    const struct lk_codec *codec = &k->rule[level].codec;
    const char *head = lk_kv_block(k, level, row / LK_TILE) + head_kv * k->level[level].head_bytes;
    const uint16_t *scale = lk_rot_scales(codec, head, D);
    const int8_t *mean = lk_rot_mean(codec, head, D);
    float q[D];
    lk_codec_transform_query(codec, D, lk_kv_sigma(k, level, head_kv), query, q);
    double dot = 0, norm = 0, square = 0, unit = lk_rot_codebook(codec).unit;
    for (int c = 0; c < D; c++) {
        dot += (double)q[c] * mean[c] * lk_rot_load_mean_scale(scale);
        norm += (double)q[c] * q[c];
    }
    for (int t = 0; t < LK_TILE; t++)
        square += pow(lk_f16_to_f32(scale[t] & 0x7fff) / unit, 2) / LK_TILE;
    return score_scale * dot + 0.5 * score_scale * score_scale * norm * square;
}

static int descending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Set chosen[t] for the k largest x[t], t < n. *gap becomes the relative distance between the last
 * that is chosen and the first that is not, if that is smaller. */
static void choose_largest(const double *x, int n, int k, bool *chosen, double *gap) {
    double sorted[MAX_TILES];
    memcpy(sorted, x, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, descending);
    if (k > 0 && k < n) *gap = fmin(*gap, sorted[k - 1] / sorted[k] - 1);
    for (int t = 0; t < n; t++) chosen[t] = k > 0 && (k >= n || x[t] >= sorted[k - 1]);
}

/* Mark the rows that the token at position `token` reads. Returns the number of tiles of one KV
 * head that are left out. gap: as above. */
static int choose(const struct world *w, int token, int head_kv, bool *is_read, double *gap) {
    double log_weight[MAX_TILES], share[MAX_TILES] = {0};
    bool chosen[MAX_TILES];
    int at[MAX_TILES], n = 0, n_left_out = 0;
    for (int pos = 0; pos <= token;) {
        bool found = candidate(w, pos, token);
        if (found) at[n++] = pos;
        pos += found ? LK_TILE : 1;
    }
    for (int i = 0; i < w->group; i++) {
        const float *q = w->q + ((size_t)token * n_head(w) + head_kv * w->group + i) * D;
        double max = -1e9, sum = 0;
        for (int t = 0; t < n; t++) {
            log_weight[t] = estimate(w, at[t], head_kv, q);
            max = fmax(max, log_weight[t]);
        }
        for (int t = 0; t < n; t++) sum += exp(log_weight[t] - max);
        for (int t = 0; t < n; t++) share[t] = fmax(share[t], exp(log_weight[t] - max) / sum);
    }
    choose_largest(share, n, (int)ceilf(w->read * (float)n), chosen, gap);
    for (int t = 0; t <= token; t++) is_read[t] = true;
    for (int t = 0; t < n; t++) {
        if (!chosen[t]) memset(is_read + at[t], 0, LK_TILE);
        n_left_out += !chosen[t];
    }
    return n_left_out;
}

/* Attention of a token over the rows that it reads, as the cache holds them. Returns the number of
 * tiles that are left out. */
static int attend_plainly(const struct world *w, int token, float *out, double *gap) {
    static float row[2][MAX_ROWS * D];
    bool is_read[MAX_ROWS];
    int n_left_out = 0;
    for (int kv = 0; kv < w->n_head_kv; kv++) {
        n_left_out += choose(w, token, kv, is_read, gap);
        for (int side = 0; side < 2; side++)
            lk_kv_read_positions(&w->cache->kv[0][side], 0, token + 1, kv, &lk_kernels_reference,
                                 row[side], D);
        for (int i = 0; i < w->group; i++) {
            const float *q = w->q + ((size_t)token * n_head(w) + kv * w->group + i) * D;
            double sum = 0, acc[D] = {0};
            for (int t = 0; t <= token; t++) {
                double s = 0;
                if (!is_read[t]) continue;
                for (int c = 0; c < D; c++) s += (double)q[c] * row[0][t * D + c];
                double e = exp(score_scale * s);
                sum += e;
                for (int c = 0; c < D; c++) acc[c] += e * row[1][t * D + c];
            }
            for (int c = 0; c < D; c++)
                out[(size_t)(kv * w->group + i) * D + c] = (float)(acc[c] / sum);
        }
    }
    return n_left_out;
}

static const char *const recipes[] = {
    "sink 4: f16; body: k=rot3 v=rot2; recent 20%: rot4; window 64: rot8",
    "body: k=rot2 v=kivi2; window 64: f16",
    "sink 4: f16; body: rot4; window 64: f16",
    "sink 3: f16; body: k=rot6 v=int8; recent 300: k=int8 v=int8; window 32: f16",
    "rot8",
};
enum { N_RECIPE = sizeof recipes / sizeof *recipes };

/* Every table reads the tiles that the rule chooses. Limit: rounding of queries and weights to 8
 * bits, as in tests/kernels/test_kernels.c. */
static void test_rule(void **state) {
    char names[200];
    int n_left_out = 0, n_close = 0;
    double ignored = 0;
    lk_kernels_names(names, sizeof names);
    for (int s = 0; s < 2 * N_RECIPE; s++) {
        struct random r = {31 + s};
        struct world w = {.n_head_kv = 1 + s % 3,
                          .group = 1 + s % 4,
                          .n_row = random_int(&r, 900, MAX_ROWS),
                          .read = s % 2 ? 0.15f : 0.4f};
        open_with_rows(&w, recipes[s / 2], &r);
        size_t n = (size_t)n_head(&w) * D;
        float *out = malloc(LK_DECODE_TOKENS * n * sizeof *out),
              *ref = malloc(LK_DECODE_TOKENS * n * sizeof *ref), *all = malloc(n * sizeof *all);
        double gap = 1;
        for (int t = 0; t < LK_DECODE_TOKENS; t++)
            n_left_out += attend_plainly(&w, w.n_row - LK_DECODE_TOKENS + t, ref + t * n, &gap);
        n_close += gap < 1e-3;
        char list[200], *rest = list;
        strcpy(list, names);
        for (char *name; gap >= 1e-3 && (name = strtok_r(rest, ", ", &rest));)
            for (int n_tok = 1; n_tok <= LK_DECODE_TOKENS; n_tok += LK_DECODE_TOKENS - 1) {
                attend(&w, lk_kernels_choose(name), w.n_row, n_tok, 1 + s % MAX_THREADS, out);
                double e = nmse(out, ref + (LK_DECODE_TOKENS - n_tok) * n, n_tok * n);
                if (!(e < 1e-3))
                    fail_msg("%s, %s, %d tokens: nmse %g", recipes[s / 2], name, n_tok, e);
            }
        w.read = 0;
        attend(&w, &lk_kernels_reference, w.n_row, 1, 1, all);
        ignored += nmse(all, ref + (LK_DECODE_TOKENS - 1) * n, n) / (2 * N_RECIPE);
        free(out), free(ref), free(all);
        close_world(&w);
    }
    assert_true(n_left_out > 1000);
    assert_true(n_close <= 4);
    assert_true(ignored > 1e-2); /* reading everything would be noticed */
}

/* Threads change neither the choice nor the result, beyond rounding. */
static void test_threads(void **state) {
    for (int i = 0; i < N_RECIPE; i++) {
        struct random r = {7 + i};
        struct world w = {.n_head_kv = 2, .group = 3, .n_row = 1300, .read = 0.2f};
        open_with_rows(&w, recipes[i], &r);
        size_t n = (size_t)n_head(&w) * D;
        float *one = malloc(n * sizeof *one), *other = malloc(n * sizeof *one);
        struct lk_read_count first = attend(&w, lk_kernels_choose(NULL), w.n_row, 1, 1, one);
        assert_true(first.n_tile_read > 0 && first.n_tile_read < first.n_tile / 4);
        for (int n_thread = 2; n_thread <= MAX_THREADS; n_thread++) {
            struct lk_read_count count =
                attend(&w, lk_kernels_choose(NULL), w.n_row, 1, n_thread, other);
            assert_int_equal(count.n_tile_read, first.n_tile_read);
            assert_int_equal(count.n_tile, first.n_tile);
            double e = nmse(other, one, n);
            if (!(e < 1e-9)) fail_msg("%s, %d threads: nmse %g", recipes[i], n_thread, e);
        }
        free(one), free(other);
        close_world(&w);
    }
}

/* A share of 100 % gives the same as no rule, and so do calls of many tokens. */
static void test_everything_is_read(void **state) {
    for (int i = 0; i < N_RECIPE; i++)
        for (int n_tok = 1; n_tok <= MAX_NEW; n_tok += LK_DECODE_TOKENS) {
            struct random r = {70 + i};
            struct world w = {.n_head_kv = 2, .group = 2, .n_row = 1111};
            open_with_rows(&w, recipes[i], &r);
            size_t n = (size_t)n_head(&w) * D * n_tok;
            float *whole = malloc(n * sizeof *whole), *out = malloc(n * sizeof *out);
            attend(&w, lk_kernels_choose(NULL), w.n_row, n_tok, 1, whole);
            w.read = n_tok == 1 ? 1 : 0.01f;
            struct lk_read_count count =
                attend(&w, lk_kernels_choose(NULL), w.n_row, n_tok, 2, out);
            assert_int_equal(count.n_tile_read, count.n_tile);
            assert_true(n_tok > 1 || count.n_tile > 40);
            double e = nmse(out, whole, n);
            if (!(e < 1e-9)) fail_msg("%s, %d tokens: nmse %g", recipes[i], n_tok, e);
            free(whole), free(out);
            close_world(&w);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rule), cmocka_unit_test(test_threads),
                                       cmocka_unit_test(test_everything_is_read)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
