/* Tiles of V that are not read: the rule, computed here in double precision from the rows; the same
 * choice for any number of threads, and for tokens together or one by one; the promise that less
 * than a share of attention is left out; prompts read everything. */
#include "attention/skip.h"
#include "codec/half.h"
#include "test_rules.h"

enum { MAX_ROWS = 1500, MAX_NEW = LK_DECODE_TOKENS };

static float round_to_f16(float x) { return lk_f16_to_f32(lk_f32_to_f16(x)); }

/* Keys whose scores differ from tile to tile, so that some tiles get little attention. */
static void open_with_rows(struct world *w, const char *recipe, struct random *r) {
    open_world(w, recipe);
    float level = 0;
    for (int t = 0; t < w->n_row; t++) {
        if (t % LK_TILE == 0) level = 2 * random_gauss(r);
        for (int i = 0; i < w->n_head_kv * D; i++) {
            size_t at = (size_t)t * w->n_head_kv * D + i;
            w->k[at] = round_to_f16(0.5f * random_gauss(r) + (i % D < 4 ? level : 0));
            w->v[at] = round_to_f16(random_gauss(r));
        }
        for (int i = 0; i < n_head(w) * D; i++)
            w->q[(size_t)t * n_head(w) * D + i] = random_gauss(r) + (i % D < 4 ? 1.0f : 0);
    }
}

/* ---- the rule, from the rows ---- */

static double dot(const float *a, const float *b) {
    double sum = 0;
    for (int c = 0; c < D; c++) sum += (double)a[c] * b[c];
    return sum;
}

/* Query heads of a KV head are divided as evenly as possible. */
static int heads_before(int group, int part) {
    int n_part = (group + LK_SKIP_HEADS - 1) / LK_SKIP_HEADS;
    return group * part / n_part;
}

/* Attention of some heads of one KV head of the token at row `pos` by the rule of skip.h, for rows
 * in f16. weight [n][n_row]: exponentials of scores. out [n][D]. margin: the smallest distance of a
 * tile's weight from a limit, relative to it. Returns the tiles that are left out. */
static int add_tiles(const struct world *w, int kv, int pos, int first, const double *weight, int n,
                     double *out, double *margin) {
    int n_tile = pos / LK_TILE - first / LK_TILE + 1, n_left_out = 0;
    double all[LK_SKIP_HEADS] = {0}, sum[LK_SKIP_HEADS] = {0};
    for (int i = 0; i < n; i++)
        for (int t = first; t <= pos; t++) all[i] += weight[(size_t)i * w->n_row + t];
    memset(out, 0, (size_t)n * D * sizeof *out);
    for (int tile = first / LK_TILE * LK_TILE; tile <= pos; tile += LK_TILE) {
        bool whole = tile >= first && tile + LK_TILE <= pos + 1,
             read = !whole || n_tile < LK_SKIP_MIN_TILES;
        for (int i = 0; i < n; i++) {
            double own = 0, limit = all[i] * w->skip_v / n_tile;
            for (int t = tile; whole && t < tile + LK_TILE; t++)
                own += weight[(size_t)i * w->n_row + t];
            if (!read) *margin = fmin(*margin, fabs(own / limit - 1));
            read |= own >= limit;
        }
        n_left_out += !read;
        for (int i = 0; read && i < n; i++)
            for (int t = tile < first ? first : tile; t < tile + LK_TILE && t <= pos; t++) {
                double e = weight[(size_t)i * w->n_row + t];
                sum[i] += e;
                for (int c = 0; c < D; c++)
                    out[i * D + c] += e * w->v[((size_t)t * w->n_head_kv + kv) * D + c];
            }
    }
    for (int i = 0; i < n; i++)
        for (int c = 0; c < D; c++) out[i * D + c] /= sum[i];
    return n_left_out;
}

/* Same as above, for all heads: out [n_head][D]. */
static int attend_plainly(const struct world *w, int pos, double *out, double *margin) {
    int first = w->n_swa && pos + 1 > w->n_swa ? pos + 1 - w->n_swa : 0, n_left_out = 0;
    double *weight = malloc((size_t)w->group * w->n_row * sizeof *weight);
    for (int kv = 0; kv < w->n_head_kv; kv++) {
        for (int i = 0; i < w->group; i++)
            for (int t = first; t <= pos; t++) {
                const float *q = w->q + ((size_t)pos * n_head(w) + kv * w->group + i) * D;
                weight[(size_t)i * w->n_row + t] =
                    exp(score_scale * dot(q, w->k + ((size_t)t * w->n_head_kv + kv) * D));
            }
        for (int part = 0; heads_before(w->group, part) < w->group; part++) {
            int i = heads_before(w->group, part), n = heads_before(w->group, part + 1) - i;
            n_left_out += add_tiles(w, kv, pos, first, weight + (size_t)i * w->n_row, n,
                                    out + (size_t)(kv * w->group + i) * D, margin);
        }
    }
    free(weight);
    return n_left_out;
}

static double error_of(const float *x, const double *ref, int n) {
    double error = 0, power = 0;
    for (int i = 0; i < n; i++)
        error += (x[i] - ref[i]) * (x[i] - ref[i]), power += ref[i] * ref[i];
    return error / power;
}

/* Every kernel table, 1 to 4 threads and several tokens at once follow the rule. */
static void test_rule(void **state) {
    (void)state;
    static const struct world setups[] = {
        {.n_head_kv = 1, .group = 1, .n_row = 700},
        {.n_head_kv = 2, .group = 3, .n_row = 1403},
        {.n_head_kv = 3, .group = 4, .n_row = 997},
        {.n_head_kv = 2, .group = 7, .n_row = 1201},
        {.n_head_kv = 2, .group = 2, .n_row = 1500, .n_swa = 777}};
    char names[200];
    lk_kernels_names(names, sizeof names);
    int n_left_out = 0, n_close = 0;
    for (size_t s = 0; s < sizeof setups / sizeof *setups; s++) {
        struct random r = {41 + s};
        struct world w = setups[s];
        w.skip_v = s % 2 ? 0.1f : 0.4f;
        open_with_rows(&w, "f16", &r);
        append(&w, 0, w.n_row);
        size_t n = (size_t)n_head(&w) * D;
        float *out = malloc(MAX_NEW * n * sizeof *out);
        double *ref = malloc(MAX_NEW * n * sizeof *ref), margin = 1;
        for (int t = 0; t < MAX_NEW; t++)
            n_left_out += attend_plainly(&w, w.n_row - MAX_NEW + t, ref + t * n, &margin);
        n_close += margin < 1e-4;
        char list[200], *rest = list;
        strcpy(list, names);
        for (char *name; (name = strtok_r(rest, ", ", &rest));)
            for (int n_thread = 1; n_thread <= MAX_THREADS && margin >= 1e-4; n_thread++)
                for (int n_tok = 1; n_tok <= MAX_NEW; n_tok += MAX_NEW - 1) {
                    attend(&w, lk_kernels_choose(name), w.n_row, n_tok, n_thread, out);
                    double e = error_of(out, ref + (MAX_NEW - n_tok) * n, (int)(n_tok * n));
                    /* Weights are rounded to f16, with a mean square error of (2^-11)^2 / 12. */
                    if (!(e < 3e-8))
                        fail_msg("setup %zu, %s, %d threads, %d tokens: nmse %g", s, name, n_thread,
                                 n_tok, e);
                }
        free(out), free(ref);
        close_world(&w);
    }
    assert_true(n_left_out > 100); /* or nothing was tested */
    assert_true(n_close <= 1);
}

static const char *const recipes[] = {
    "f16",
    "sink 4: f16; body: k=rot3 v=rot2; recent 20%: rot4; window 64: rot8",
    "body: k=kivi2 v=kivi2; residual 64: f16",
    "sink 4: f16; body: int8; window 64: f16",
    "sink 1: f16; body: kvquant4; window 64: f16",
    "sink 2: f16; body: k=kvarn4 v=kvarn2; window 64: f16",
    "body: asym3(g32); window 32: f16",
};

/* Threads and the number of tokens of a call change neither the choice nor the result. */
static void test_choice_depends_on_the_token(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        struct random r = {7 + i};
        struct world w = {.n_head_kv = 2, .group = 3, .n_row = 1300, .skip_v = 0.5f};
        open_with_rows(&w, recipes[i], &r);
        append(&w, 0, w.n_row);
        age(&w);
        size_t n = (size_t)n_head(&w) * D;
        float *one = malloc(n * sizeof *one), *other = malloc(n * sizeof *one);
        struct lk_skip_count first = attend(&w, lk_kernels_choose(NULL), w.n_row, 1, 1, one);
        assert_true(first.n_tile_read > 0 && first.n_tile_read < first.n_tile * 9 / 10);
        for (int n_thread = 2; n_thread <= MAX_THREADS; n_thread++) {
            struct lk_skip_count count =
                attend(&w, lk_kernels_choose(NULL), w.n_row, 1, n_thread, other);
            assert_int_equal(count.n_tile_read, first.n_tile_read);
            assert_int_equal(count.n_query, n_head(&w));
            assert_true(fabs(count.dropped - first.dropped) < 1e-5 * first.dropped);
            double e = nmse(other, one, n);
            if (!(e < 1e-9)) fail_msg("%s, %d threads: nmse %g", recipes[i], n_thread, e);
        }
        free(one), free(other);
        close_world(&w);
    }
}

/* Less than the share is left out, whatever the codecs. */
static void test_promise(void **state) {
    (void)state;
    static const float shares[] = {0.003f, 0.05f, 0.25f, 1};
    int n_some = 0;
    for (size_t i = 0; i < 4 * sizeof recipes / sizeof *recipes; i++) {
        struct random r = {99 + i};
        struct world w = {.n_head_kv = 1 + i % 3,
                          .group = 1 + i % 4,
                          .n_row = random_int(&r, 300, MAX_ROWS),
                          .skip_v = shares[i % 4]};
        open_with_rows(&w, recipes[i / 4], &r);
        append(&w, 0, w.n_row - MAX_NEW);
        age(&w);
        append(&w, w.n_row - MAX_NEW, MAX_NEW);
        float *out = malloc((size_t)MAX_NEW * n_head(&w) * D * sizeof *out);
        struct lk_skip_count count =
            attend(&w, lk_kernels_choose(NULL), w.n_row, MAX_NEW, 1 + i % MAX_THREADS, out);
        if (!(count.max_dropped < w.skip_v))
            fail_msg("%s: %g of attention is left out, %g allowed", recipes[i / 4],
                     count.max_dropped, w.skip_v);
        n_some += count.dropped > 0;
        free(out);
        close_world(&w);
    }
    assert_true(n_some >= 12);
}

/* Without a share, in short contexts and for many tokens at once, everything is read. */
static void test_nothing_is_skipped(void **state) {
    (void)state;
    static const struct world setups[] = {
        {.n_head_kv = 1, .group = 2, .n_row = (LK_SKIP_MIN_TILES - 2) * LK_TILE, .skip_v = 1},
        {.n_head_kv = 1, .group = 2, .n_row = 900, .skip_v = 1}};
    for (size_t s = 0; s < sizeof setups / sizeof *setups; s++) {
        struct random r = {4 + s};
        struct world w = setups[s];
        float out[2][(LK_DECODE_TOKENS + 1) * 2 * D];
        int n_tok = s == 0 ? 1 : LK_DECODE_TOKENS + 1;
        open_with_rows(&w, "f16", &r);
        append(&w, 0, w.n_row);
        struct lk_skip_count count = attend(&w, &lk_kernels_reference, w.n_row, n_tok, 2, out[0]);
        assert_true(count.n_tile == 0 && count.n_tile_read == 0 && count.dropped == 0);
        w.skip_v = 0;
        attend(&w, &lk_kernels_reference, w.n_row, n_tok, 2, out[1]);
        assert_memory_equal(out[0], out[1], n_tok * 2 * D * sizeof(float));
        close_world(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rule), cmocka_unit_test(test_choice_depends_on_the_token),
        cmocka_unit_test(test_promise), cmocka_unit_test(test_nothing_is_skipped)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
