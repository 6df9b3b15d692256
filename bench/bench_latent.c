/* Attention over latents beside attention over rows, at several depths, in one run on one thread.
 *
 *   bench_latent [depth,... [heads [kv_heads [d_head [layers]]]]]
 *   defaults:     4096,16384,65536  9  3  64  4
 *
 * Bases are random, over groups of up to four KV heads; rows are noise. For each recipe: bits per value, the time of a
 * token's attention in all layers, and how many times faster that is than with whole half floats (rank 50 % at Palu's
 * 64k: 1.89 with K before RoPE, 2.91 with codes). Then keys before RoPE alone: the fused way (attn/pre.h) beside
 * bringing all of them back to memory before they are read. */
#include "attention/attention.h"
#include "attention/runs.h"
#include "attention/score_pre.h"
#include "bench_support.h"
#include "cache/k_up.h"
#include "support_basis.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 8, PORTION = 128 };

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
    "k=latent50%(pre)+rot3(nomean) v=latent93%+rot2",
};

struct world {
    struct lk_cache_shape shape;
    struct lk_cache *cache;
    struct lk_attn attn;
    struct lk_ledger ledger;
    struct lk_basis basis[LK_N_BASIS][MOST];
    const struct lk_basis *bases[LK_N_BASIS];
    struct lk_rope rope[2];
};

static int fail(const char *what) {
    fprintf(stderr, "bench_latent: %s\n", what);
    return 1;
}

static void make_model(struct world *w) {
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
    for (int j = 0; j < d / 2; j++) speed[j] = pow(10000, -2.0 * j / d);
    lk_rope_init(&w->rope[0], d / 2, true, 1, speed);
    w->rope[1] = w->rope[0];
    w->shape.basis = w->bases;
    w->shape.rope = w->rope;
}

/* `depth` rows of noise, the same in every layer. */
static bool fill(struct world *w, int64_t depth, lk_err *err) {
    size_t n = (size_t)PORTION * w->shape.n_head_kv * w->shape.d_head,
           n_q = (size_t)PORTION * w->attn.n_head * w->shape.d_head;
    float *rows = malloc(n * sizeof *rows), *q = malloc(n_q * sizeof *q);
    struct random r = {2};
    bool ok = rows && q;
    for (size_t i = 0; ok && i < n_q; i++) q[i] = random_gauss(&r);
    for (size_t i = 0; ok && i < n; i++) rows[i] = random_gauss(&r);
    for (int64_t at = 0; ok && at < depth; at += PORTION) {
        ok = lk_cache_prepare(w->cache, 0, w->shape.n_layer, PORTION, PORTION, err) == LK_OK;
        for (int layer = 0; ok && layer < w->shape.n_layer; layer++) {
            lk_cache_observe(w->cache, layer, q, PORTION, w->attn.n_head);
            for (int side = 0; ok && side < 2; side++)
                ok = lk_cache_append(w->cache, layer, side, rows, PORTION, err) == LK_OK &&
                     lk_cache_age(w->cache, layer, side, err) == LK_OK;
        }
    }
    free(rows);
    free(q);
    return ok;
}

static void attend(struct world *w) {
    for (int layer = 0; layer < w->shape.n_layer; layer++) {
        w->attn.k = &w->cache->kv[layer][LK_K];
        w->attn.v = &w->cache->kv[layer][LK_V];
        lk_attn_items(&w->attn, 0, 1);
        lk_attn_combine(&w->attn, lk_attn_ranges(&w->attn, w->attn.k, w->attn.v), 0, 1);
    }
}

/* ---- keys alone ---- */

/* Calls on every whole tile of the layers' latents of K, head by head. room: where the tile's keys may lie. */
typedef void on_tile(struct world *w, const struct lk_level *level, int head,
                     const struct lk_rows *rows, struct lk_rope_view *view, float *room, float *s);

static void each_tile(struct world *w, on_tile *call, float *room, float *s) {
    struct lk_kernels_state before;
    lk_kernels_enter(w->attn.kernels, &before);
    size_t key = (size_t)w->shape.d_head * LK_TILE;
    for (int layer = 0; layer < w->shape.n_layer; layer++) {
        struct lk_kv *k = &w->cache->kv[layer][LK_K];
        struct lk_rope_view view = {.set = false};
        int i = 0;
        while (i + 1 < k->n_level && !k->level[i].k_up) i++;
        struct lk_run run = {.most = LK_TILE};
        lk_run_begin(&run, k, i, 0, k->level[i].n_part);
        float *to = room;
        for (int64_t at = 0; at + LK_TILE <= k->fill[i].rows; at += LK_TILE) {
            lk_run_find(&run, at, k->fill[i].rows);
            lk_rope_view_move(k->level[i].rope, &view, at);
            for (int head = 0; head < w->shape.n_head_kv; head++, to += key) {
                struct lk_rows rows = lk_run_rows(&run, head / k->level[i].n_head);
                call(w, &k->level[i], head, &rows, &view, to, s);
            }
        }
    }
    lk_kernels_leave(w->attn.kernels, &before);
}

static void fused(struct world *w, const struct lk_level *level, int head,
                  const struct lk_rows *rows, struct lk_rope_view *view, float *room, float *s) {
    const float *q[LK_ATTN_QUERIES];
    int group = w->attn.n_head / w->attn.n_head_kv;
    (void)room;
    for (int i = 0; i < group; i++) q[i] = w->attn.q + (size_t)(head * group + i) * w->shape.d_head;
    lk_attn_score_pre(&w->attn, level, head, rows, q, group, view, s, LK_TILE);
}

static void bring_back(struct world *w, const struct lk_level *level, int head,
                       const struct lk_rows *rows, struct lk_rope_view *view, float *room,
                       float *s) {
    const struct lk_rope *rope = level->rope;
    struct lk_rope_table pairs = lk_rope_tile_table(rope);
    (void)view;
    (void)s;
    w->attn.kernels->score(rows, &level->k_up[head].up, room, LK_TILE);
    for (int j = 0; j < rope->n_pair; j++) {
        float *a = room + lk_turns_first(&pairs, j) * LK_TILE,
              *b = room + lk_turns_second(&pairs, j) * LK_TILE;
        for (int t = 0; t < LK_TILE; t++) {
            float y = a[t], z = b[t];
            a[t] = rope->turn[j][0][t] * y - rope->turn[j][1][t] * z;
            b[t] = rope->turn[j][1][t] * y + rope->turn[j][0][t] * z;
        }
    }
}

static void read_back(struct world *w, const struct lk_level *level, int head,
                      const struct lk_rows *rows, struct lk_rope_view *view, float *room,
                      float *s) {
    int group = w->attn.n_head / w->attn.n_head_kv, d = w->shape.d_head;
    (void)rows;
    for (int i = 0; i < group; i++) {
        float seen[2 * LK_MAX_PAIR], sum[LK_TILE] = {0};
        lk_rope_view_apply(level->rope, view, w->attn.q + (size_t)(head * group + i) * d, d, seen);
        for (int c = 0; c < d; c++)
            for (int t = 0; t < LK_TILE; t++) sum[t] += seen[c] * room[c * LK_TILE + t];
        memcpy(s + i * LK_TILE, sum, sizeof sum);
    }
}

static void score_fused(struct world *w, float *room, float *s) { each_tile(w, fused, room, s); }

static void score_apart(struct world *w, float *room, float *s) {
    each_tile(w, bring_back, room, s);
    each_tile(w, read_back, room, s);
}

/* Seconds of one call, the least of several. */
static double time_keys(struct world *w, void (*score)(struct world *, float *, float *),
                        float *room, float *s) {
    double least = INFINITY, until = bench_now() + RUN_SECONDS;
    do {
        double start = bench_now();
        score(w, room, s);
        if (bench_now() - start < least) least = bench_now() - start;
    } while (bench_now() < until);
    return least;
}

static double time_attention(struct world *w) {
    double least = INFINITY, until = bench_now() + RUN_SECONDS;
    do {
        double start = bench_now();
        attend(w);
        if (bench_now() - start < least) least = bench_now() - start;
    } while (bench_now() < until);
    return least;
}

/* ---- one recipe ---- */

static int measure(struct world *w, const char *text, int64_t depth, double *whole) {
    lk_err err = {0};
    lk_recipe *recipe;
    if (lk_recipe_parse(&recipe, text, &err) != LK_OK) return fail(err.msg);
    lk_status status = lk_cache_new(&w->cache, recipe, &w->shape, &w->ledger, &err);
    lk_recipe_free(recipe);
    if (status != LK_OK) return fail(err.msg);
    w->cache->kernels = w->attn.kernels;
    if (!fill(w, depth, &err)) return fail(err.msg);
    struct lk_cache_bytes bytes = lk_cache_count(w->cache);
    double total = (double)(bytes.code + bytes.scale + bytes.exact + bytes.padding),
           seconds = time_attention(w);
    if (*whole == 0) *whole = seconds;
    printf("%8lld  %-52s %6.2f %10.3f %8.2f\n", (long long)depth, text,
           8 * total /
               ((double)depth * 2 * w->shape.n_layer * w->shape.n_head_kv * w->shape.d_head),
           1e3 * seconds, *whole / seconds);
    if (strstr(text, "(pre)") && strstr(text, "v=latent50%")) {
        float *room = malloc((size_t)w->shape.n_layer * depth * w->shape.n_head_kv *
                             w->shape.d_head * sizeof *room);
        float *s = malloc((size_t)LK_ATTN_QUERIES * LK_TILE * sizeof *s);
        if (!room || !s) return fail("no memory");
        memset(room, 0,
               (size_t)w->shape.n_layer * depth * w->shape.n_head_kv * w->shape.d_head *
                   sizeof *room);
        double one = time_keys(w, score_fused, room, s), two = time_keys(w, score_apart, room, s);
        printf("%8s  %-52s %6s %10.3f\n%8s  %-52s %6s %10.3f %8.2f times the fused one's time\n",
               "", "  its scores of K, fused", "", 1e3 * one, "",
               "  its scores of K, all of it brought back first", "", 1e3 * two, two / one);
        free(room);
        free(s);
    }
    lk_cache_free(w->cache);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv) {
    int number[] = {9, 3, 64, 4};
    for (int i = 2; i < argc && i < 6; i++) number[i - 2] = atoi(argv[i]);
    int n_head = number[0], n_head_kv = number[1], d = number[2];
    struct world w = {.shape = {.n_layer = number[3], .n_head_kv = n_head_kv, .d_head = d}};
    if (n_head_kv < 1 || n_head < 1 || n_head % n_head_kv || n_head / n_head_kv > LK_ATTN_QUERIES ||
        d < 16 || d % 16 || d > LK_MAX_D_HEAD || w.shape.n_layer < 1 || w.shape.n_layer > MOST)
        return fail("a number is out of range");
    make_model(&w);
    int width = w.basis[0][0].width;
    struct random r = {3};
    float *q = malloc((size_t)n_head * d * sizeof *q),
          *out = malloc((size_t)n_head * d * sizeof *out);
    w.attn = (struct lk_attn){.kernels = lk_kernels_choose(NULL),
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
           "recipe", "bits", "ms", "faster");
    for (const char *at = argc > 1 ? argv[1] : "4096,16384,65536"; *at;) {
        char *end;
        long depth = strtol(at, &end, 10);
        double whole = 0;
        if (depth < PORTION || depth > 1 << 20 || (*end && *end != ','))
            return fail("depths are numbers with commas between them");
        for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
            if (measure(&w, recipes[i], depth, &whole)) return 1;
        at = *end ? end + 1 : end;
    }
    for (int side = 0; side < LK_N_BASIS; side++) free_basis(&w.basis[side][0]);
    free(q);
    free(out);
    free(w.attn.partial);
    free(w.attn.scratch);
    return 0;
}
