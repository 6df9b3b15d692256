/* Helpers of the tests of rules that leave tiles out: a cache of one layer, its rows, and attention
 * over them. */
#ifndef LK_TEST_RULES_H
#define LK_TEST_RULES_H

#include "attention/read.h"
#include "cache/cache.h"
#include "test.h"

enum { D = 32, MAX_THREADS = 4 };

static const float score_scale = 0.5f;

struct world {
    int n_head_kv, group, n_row, n_swa;
    float read;   /* share of the tiles; 0: all */
    float *k, *v; /* [n_row][n_head_kv][D] */
    float *q;     /* [n_row][n_head][D] */
    struct lk_ledger ledger;
    struct lk_cache *cache;
    lk_recipe *recipe;
};

static inline int n_head(const struct world *w) { return w->n_head_kv * w->group; }

/* An empty cache, and rows that the caller fills. */
static inline void open_world(struct world *w, const char *recipe) {
    static const uint8_t is_swa[] = {1};
    struct lk_cache_shape shape = {.n_layer = 1, .n_head_kv = w->n_head_kv, .d_head = D};
    if (w->n_swa) shape.n_swa = w->n_swa, shape.is_swa = is_swa;
    assert_int_equal(lk_recipe_parse(&w->recipe, recipe, NULL), LK_OK);
    assert_int_equal(lk_cache_new(&w->cache, w->recipe, &shape, &w->ledger, NULL), LK_OK);
    size_t n = (size_t)w->n_row * w->n_head_kv * D;
    w->k = malloc(n * sizeof *w->k);
    w->v = malloc(n * sizeof *w->v);
    w->q = malloc(n * w->group * sizeof *w->q);
    assert_true(w->k && w->v && w->q);
}

static inline void close_world(struct world *w) {
    lk_cache_free(w->cache);
    lk_recipe_free(w->recipe);
    free(w->k), free(w->v), free(w->q);
}

static inline void append(struct world *w, int from, int n) {
    size_t width = (size_t)w->n_head_kv * D;
    assert_int_equal(lk_cache_prepare(w->cache, 0, 1, n, n, NULL), LK_OK);
    for (int side = 0; side < 2; side++) {
        const float *x = (side == LK_K ? w->k : w->v) + from * width;
        if (side == LK_K)
            lk_cache_observe(w->cache, 0, w->q + (size_t)from * n_head(w) * D, n, n_head(w));
        assert_int_equal(lk_cache_append(w->cache, 0, side, x, n, NULL), LK_OK);
    }
}

static inline void age(struct world *w) {
    for (int side = 0; side < 2; side++)
        assert_int_equal(lk_cache_age(w->cache, 0, side, NULL), LK_OK);
}

/* Attention of n_tok tokens, whose rows end before row `end`. out [n_tok][n_head][D]. Returns the
 * counts of all threads. */
static inline struct lk_read_count attend(const struct world *w, const struct lk_kernels *kernels,
                                          int end, int n_tok, int n_thread, float *out) {
    struct lk_read_count count[MAX_THREADS] = {0}, sum = {0};
    struct lk_attn a = {.k = &w->cache->kv[0][LK_K],
                        .v = &w->cache->kv[0][LK_V],
                        .kernels = kernels,
                        .n_head = n_head(w),
                        .n_head_kv = w->n_head_kv,
                        .d_head = D,
                        .n_tok = n_tok,
                        .n_thread = n_thread,
                        .scale = score_scale,
                        .read = w->read,
                        .read_count = count,
                        .q = w->q + (size_t)(end - n_tok) * n_head(w) * D,
                        .out = out};
    lk_recipe recipe = *w->recipe;
    recipe.read = w->read;
    a.read_floats = lk_read_floats(&recipe, w->n_row, a.n_head, a.n_head_kv, D);
    a.read_scratch = malloc(n_thread * a.read_floats * sizeof(float));
    a.partial =
        malloc(lk_attn_partial_floats(a.n_head, a.n_head_kv, D, n_tok, n_thread) * sizeof(float));
    a.scratch = aligned_alloc(64, n_thread * lk_attn_scratch_floats(D) * sizeof(float));
    for (int i = 0; i < n_thread; i++) lk_attn_items(&a, i, n_thread);
    for (int i = 0; i < n_thread; i++)
        lk_attn_combine(&a, lk_attn_ranges(&a, a.k, a.v), i, n_thread);
    free(a.partial), free(a.scratch), free(a.read_scratch);
    for (int i = 0; i < n_thread; i++) {
        sum.n_tile += count[i].n_tile;
        sum.n_tile_read += count[i].n_tile_read;
    }
    return sum;
}

#endif
