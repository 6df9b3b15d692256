/* Attention over latents compared with attention over rows, at several depths, on one thread.
 *
 *   build/bench/latent [depth,... [heads [kv_heads [d_head [layers]]]]]
 *
 * Defaults: 4096,16384,65536 9 3 64 4.
 *
 * Bases are random, over groups of up to four KV heads. RoPE has base 1e5. Rows are noise. For each
 * recipe this prints bits per value, the time of one token's attention in all layers, and the
 * speedup over f16 rows.
 * (Palu, rank 50 % at 64k: 1.89 with K before RoPE, 2.91 with quantized latents.)
 *
 * Then K before RoPE alone: the fused kernel (attention/score_pre.h) compared with reconstructing
 * all keys in memory before they are read. */
#include "attention/attention.h"
#include "attention/attn_item.h"
#include "attention/score_pre.h"
#include "bench_support.h"
#include "cache/latent_levels.h"
#include "support_basis.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAYERS = 32, PORTION = 128, MAX_UNFUSED = 65536 /* depth */ };

static const double RUN_SECONDS = 0.4;

static const char *const recipes[] = {
    "f16",
    "k=f16 v=latent50%",
    "k=latent50% v=f16",
    "k=latent50% v=latent50%",
    "k=latent50%(pre) v=f16",
    "k=latent50%(pre) v=latent50%",
    "rot3",
    "k=latent50%+rot3 v=latent50%+rot3",
    "k=latent50%(pre)+rot3(nomean) v=latent50%+rot3",
    "palu",
    "best-1.9",
    "tale",
};

struct bench {
    struct lk_cache_shape shape;
    struct lk_cache *cache;
    struct lk_attn attn;
    struct lk_ledger ledger;
    struct lk_basis basis[LK_N_BASIS][MAX_LAYERS];
    const struct lk_basis *bases[LK_N_BASIS];
    struct lk_rope rope[2];
};

static int fail(const char *what) {
    fprintf(stderr, "bench/latent: %s\n", what);
    return 1;
}

static void make_bases(struct bench *w) {
    struct random r = {1};
    int heads = w->shape.n_head_kv < 4 ? w->shape.n_head_kv : 4, d = w->shape.d_head;
    double speed[LK_MAX_PAIR];
    while (w->shape.n_head_kv % heads) heads--;
    for (int side = 0; side < LK_N_BASIS; side++) {
        w->bases[side] = w->basis[side];
        for (int layer = 0; layer < w->shape.n_layer; layer++)
            w->basis[side][layer] = layer ? w->basis[side][0]
                                          : random_basis(&r, w->shape.n_head_kv / heads, heads * d,
                                                         heads * d, heads * d / 2, 0, 0);
    }
    for (int j = 0; j < d / 2; j++) speed[j] = pow(1e5, -2.0 * j / d);
    lk_rope_init(&w->rope[0], d / 2, true, 1, speed);
    w->rope[1] = w->rope[0];
    w->shape.kernels = w->attn.kernels;
    w->shape.basis = w->bases;
    w->shape.rope = w->rope;
}

/* Append `depth` rows of noise, the same in every layer. */
static bool fill_cache(struct bench *w, int64_t depth, lk_err *err) {
    size_t n = (size_t)PORTION * w->shape.n_head_kv * w->shape.d_head,
           n_q = (size_t)PORTION * w->attn.n_head * w->shape.d_head;
    float *rows = malloc(n * sizeof *rows), *q = malloc(n_q * sizeof *q);
    struct random r = {2};
    bool ok = rows && q;
    for (size_t i = 0; ok && i < n_q; i++) q[i] = random_gauss(&r);
    for (size_t i = 0; ok && i < n; i++) rows[i] = random_gauss(&r);
    for (int64_t at = 0; ok && at < depth; at += PORTION) {
        ok = !lk_cache_prepare(w->cache, 0, w->shape.n_layer, PORTION, PORTION, err);
        for (int layer = 0; ok && layer < w->shape.n_layer; layer++) {
            lk_cache_observe(w->cache, layer, q, PORTION, w->attn.n_head);
            for (int side = 0; ok && side < 2; side++)
                ok = !lk_cache_append(w->cache, layer, side, rows, PORTION, err) &&
                     !lk_cache_age(w->cache, layer, side, err);
        }
    }
    free(rows);
    free(q);
    return ok;
}

static void attend(struct bench *w) {
    for (int layer = 0; layer < w->shape.n_layer; layer++) {
        w->attn.k = &w->cache->kv[layer][LK_K];
        w->attn.v = &w->cache->kv[layer][LK_V];
        lk_attn_items(&w->attn, 0, 1);
        lk_attn_combine(&w->attn, lk_attn_ranges(&w->attn, w->attn.k, w->attn.v), 0, 1);
    }
}

/* ---- keys alone ---- */

/* One tile of latents of K, for one KV head. */
struct key_tile {
    const struct lk_level *level;
    const struct lk_rows *rows;
    struct lk_pre_queries *pre;
    int64_t pos; /* of the first row */
    int head_kv, in_segment;
    float *keys;   /* [d_head][LK_TILE] room for the reconstructed keys */
    float *scores; /* [query heads of a KV head][LK_TILE] */
};

typedef void tile_fn(struct bench *w, const struct key_tile *tile);

/* Call fn for every whole tile of the layers' latents of K, head by head. keys: room for the keys
 * of one layer. */
static void each_tile(struct bench *w, tile_fn *fn, float *keys, float *scores) {
    struct lk_kernels_state before;
    lk_kernels_enter(w->attn.kernels, &before);
    int rank = w->shape.n_head_kv * w->shape.d_head;
    void *mem = aligned_alloc(64, (lk_pre_queries_bytes(w->shape.d_head, rank) + 63) / 64 * 64);
    struct lk_pre_queries pre = lk_pre_queries_new(w->shape.d_head, rank, mem);
    struct key_tile tile = {.keys = keys, .scores = scores, .pre = &pre};
    if (!mem) exit(fail("no memory"));
    for (int layer = 0; layer < w->shape.n_layer; layer++) {
        struct lk_kv *k = &w->cache->kv[layer][LK_K];
        int i = 0;
        while (i + 1 < k->n_level && !k->level[i].k_up) i++;
        struct lk_run run = {
            .kv = k, .level = i, .end_part = k->level[i].n_part, .max_rows = LK_TILE};
        tile.level = &k->level[i];
        tile.keys = keys;
        for (int64_t at = 0; at + LK_TILE <= k->count[i].rows; at += LK_TILE) {
            lk_run_find(&run, at, k->count[i].rows);
            tile.pos = at;
            tile.in_segment = at / LK_TILE % LK_SEGMENT_TILES;
            for (int head = 0; head < w->shape.n_head_kv; head++) {
                struct lk_rows rows = lk_run_rows(&run, head / tile.level->n_head);
                tile.rows = &rows;
                tile.head_kv = head;
                fn(w, &tile);
                tile.keys += (size_t)w->shape.d_head * LK_TILE;
            }
        }
    }
    lk_kernels_leave(w->attn.kernels, &before);
    free(mem);
}

static void score_tile_fused(struct bench *w, const struct key_tile *tile) {
    int group = w->attn.n_head / w->attn.n_head_kv;
    struct lk_part_queries queries = {
        .head_kv = tile->head_kv, .n_head = 1, .n_each = group, .first = tile->head_kv * group};
    struct lk_pre_tile at = {tile->level, tile->rows, tile->pos, tile->in_segment};
    for (int i = 0; i < group; i++)
        queries.q[i] = w->attn.q + (size_t)(tile->head_kv * group + i) * w->shape.d_head;
    lk_attn_score_pre(&w->attn, &at, &queries, tile->pre, tile->scores, LK_TILE);
}

/* Reconstruct the tile's keys, rotated within the tile. */
static void reconstruct_tile(struct bench *w, const struct key_tile *tile) {
    const struct lk_rope *rope = tile->level->rope;
    lk_kernels_score(w->attn.kernels, tile->rows, &tile->level->k_up[tile->head_kv].up, tile->keys,
                     LK_TILE);
    for (int j = 0; j < rope->n_pair; j++) { /* rows of up are in the order of pairs */
        float *a = tile->keys + 2 * j * LK_TILE, *b = a + LK_TILE;
        for (int t = 0; t < LK_TILE; t++) {
            float y = a[t], z = b[t];
            a[t] = rope->table[tile->in_segment][j][0][t] * y -
                   rope->table[tile->in_segment][j][1][t] * z;
            b[t] = rope->table[tile->in_segment][j][1][t] * y +
                   rope->table[tile->in_segment][j][0][t] * z;
        }
    }
}

/* Score the tile's reconstructed keys. */
static void score_tile_keys(struct bench *w, const struct key_tile *tile) {
    const struct lk_rope *rope = tile->level->rope;
    int group = w->attn.n_head / w->attn.n_head_kv, d = w->shape.d_head;
    struct lk_rope_phase phase = {.set = false};
    lk_rope_phase_set(rope, &phase, tile->pos - tile->in_segment * LK_TILE);
    for (int i = 0; i < group; i++) {
        float q[2 * LK_MAX_PAIR], sum[LK_TILE] = {0};
        lk_rope_unrotate_query_pairs(rope, &phase,
                                     w->attn.q + (size_t)(tile->head_kv * group + i) * d, d, q);
        for (int c = 0; c < d; c++)
            for (int t = 0; t < LK_TILE; t++) sum[t] += q[c] * tile->keys[c * LK_TILE + t];
        memcpy(tile->scores + i * LK_TILE, sum, sizeof sum);
    }
}

static void score_fused(struct bench *w, float *keys, float *scores) {
    each_tile(w, score_tile_fused, keys, scores);
}

static void score_unfused(struct bench *w, float *keys, float *scores) {
    each_tile(w, reconstruct_tile, keys, scores);
    each_tile(w, score_tile_keys, keys, scores);
}

/* Seconds of one call, the minimum of several. */
static double time_keys(struct bench *w, void (*score)(struct bench *, float *, float *),
                        float *keys, float *scores) {
    double min = INFINITY, until = lk_now() + RUN_SECONDS;
    do {
        double start = lk_now();
        score(w, keys, scores);
        if (lk_now() - start < min) min = lk_now() - start;
    } while (lk_now() < until);
    return min;
}

static double time_attention(struct bench *w) {
    double min = INFINITY, until = lk_now() + RUN_SECONDS;
    do {
        double start = lk_now();
        attend(w);
        if (lk_now() - start < min) min = lk_now() - start;
    } while (lk_now() < until);
    return min;
}

/* ---- one recipe ---- */

/* f16_seconds: of the first recipe, set by it. */
static int measure_recipe(struct bench *w, const char *text, int64_t depth, double *f16_seconds) {
    lk_err err = {0};
    lk_recipe *recipe;
    if (lk_recipe_parse(&recipe, text, &err)) return fail(err.msg);
    lk_status status = lk_cache_new(&w->cache, recipe, &w->shape, &w->ledger, &err);
    lk_recipe_free(recipe);
    if (status) return fail(err.msg);
    w->cache->kernels = w->attn.kernels;
    if (!fill_cache(w, depth, &err)) return fail(err.msg);
    struct lk_cache_bytes bytes = lk_cache_count_bytes(w->cache);
    double total = (double)(bytes.code + bytes.scale + bytes.exact + bytes.padding),
           seconds = time_attention(w);
    if (*f16_seconds == 0) *f16_seconds = seconds;
    printf("%8lld  %-52s %6.2f %10.3f %8.2f\n", (long long)depth, text,
           8 * total /
               ((double)depth * 2 * w->shape.n_layer * w->shape.n_head_kv * w->shape.d_head),
           1e3 * seconds, *f16_seconds / seconds);
    if (strstr(text, "(pre)") && strstr(text, "v=latent50%") && depth <= MAX_UNFUSED) {
        size_t n_key = (size_t)w->shape.n_layer * depth * w->shape.n_head_kv * w->shape.d_head;
        float *keys = malloc(n_key * sizeof *keys);
        float *scores = malloc((size_t)LK_ATTN_QUERIES * LK_TILE * sizeof *scores);
        if (!keys || !scores) return fail("no memory");
        memset(keys, 0, n_key * sizeof *keys);
        double fused = time_keys(w, score_fused, keys, scores),
               unfused = time_keys(w, score_unfused, keys, scores);
        printf("%8s  %-52s %6s %10.3f\n", "", "  scores of K, fused", "", 1e3 * fused);
        printf("%8s  %-52s %6s %10.3f %8.2f times the fused time\n", "",
               "  scores of K, all keys reconstructed first", "", 1e3 * unfused, unfused / fused);
        free(keys);
        free(scores);
    }
    lk_cache_free(w->cache);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv) {
    int number[] = {9, 3, 64, 4};
    for (int i = 2; i < argc && i < 6; i++) number[i - 2] = atoi(argv[i]);
    int n_head = number[0], n_head_kv = number[1], d = number[2];
    struct bench w = {.shape = {.n_layer = number[3], .n_head_kv = n_head_kv, .d_head = d}};
    if (n_head_kv < 1 || n_head < 1 || n_head % n_head_kv || n_head / n_head_kv > LK_ATTN_QUERIES ||
        d < 16 || d % 16 || d > LK_MAX_D_HEAD || w.shape.n_layer < 1 ||
        w.shape.n_layer > MAX_LAYERS)
        return fail("a numeric argument is out of range");
    w.attn.kernels = lk_kernels_choose(NULL);
    make_bases(&w);
    int width = w.basis[0][0].width;
    struct random r = {3};
    float *q = malloc((size_t)n_head * d * sizeof *q),
          *out = malloc((size_t)n_head * d * sizeof *out);
    w.attn = (struct lk_attn){.kernels = w.attn.kernels,
                              .n_head = n_head,
                              .n_head_kv = n_head_kv,
                              .d_head = d,
                              .n_tok = 1,
                              .n_thread = 1,
                              .scale = 0.125f,
                              .q = q,
                              .out = out};
    w.attn.partial = aligned_alloc(
        64, (lk_attn_partial_floats(n_head, n_head_kv, d + width, 1, 1) * sizeof(float) + 63) / 64 *
                64);
    w.attn.scratch =
        aligned_alloc(64, (lk_attn_scratch_floats(width) * sizeof(float) + 63) / 64 * 64);
    if (!q || !out || !w.attn.partial || !w.attn.scratch) return fail("no memory");
    for (int i = 0; i < n_head * d; i++) q[i] = random_gauss(&r);
    printf("%d query heads, %d KV heads of %d, %d layers, groups of %d heads, 1 thread, %s "
           "kernels\n%8s  %-52s %6s %10s %8s\n",
           n_head, n_head_kv, d, w.shape.n_layer, width / d, w.attn.kernels->name, "depth",
           "recipe", "bits", "ms", "speedup");
    for (const char *at = argc > 1 ? argv[1] : "4096,16384,65536"; *at;) {
        char *end;
        long depth = strtol(at, &end, 10);
        double f16_seconds = 0;
        if (depth < PORTION || depth > 1 << 20 || (*end && *end != ','))
            return fail("depth must be a comma-separated list of numbers between 128 and 1048576");
        for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
            if (measure_recipe(&w, recipes[i], depth, &f16_seconds)) return 1;
        at = *end ? end + 1 : end;
    }
    for (int side = 0; side < LK_N_BASIS; side++) free_basis(&w.basis[side][0]);
    free(q);
    free(out);
    free(w.attn.partial);
    free(w.attn.scratch);
    return 0;
}
