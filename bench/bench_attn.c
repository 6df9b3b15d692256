/* Attention alone over a whole cache, as in decoding: every layer once per token.
 *
 *   build/bench/attn [recipe [depth [threads [layers [heads [kv_heads [d_head [weights_mb
 *                    [portion]]]]]]]]]
 *
 * Defaults: best-3 8192 2 30 9 3 64 85, and a portion of `depth` rows.
 *
 * Layers are filled in turn with `portion` rows at a time. By default that is all rows, as after
 * the prefill of a prompt. With 32, a tile, the cache grows as in decoding, and the rows of all
 * layers are mixed in memory.
 *
 * Between two layers the threads read their share of `weights_mb`, because a model's weights are
 * read between two layers' attention. This time does not count. Rows are noise. Prints for each of
 * three runs the time per token, the time per token, row and KV head, and the packed bytes read per
 * second. */
#define _DEFAULT_SOURCE /* clock_gettime */
#include "attention/attention.h"
#include "base/ledger.h"
#include "bench_support.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_THREADS = 64, RUNS = 3 };

static const double RUN_SECONDS = 0.7;

struct bench {
    struct lk_cache *cache;
    struct lk_attn attn;
    int n_layer, n_thread;
    const uint64_t *weights;
    size_t n_weight; /* words per layer */
    _Atomic int waiting, round;
    int n_token;
    double seconds; /* of attention, on the first thread */
};

struct job {
    struct bench *bench;
    int ith;
    uint64_t sum;
};

static void pause_thread(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    sched_yield();
#endif
}

/* A spinning barrier, like ggml's. */
static void wait_for_all(struct bench *w) {
    int round = atomic_load(&w->round);
    if (atomic_fetch_add(&w->waiting, 1) == w->n_thread - 1) {
        atomic_store(&w->waiting, 0);
        atomic_fetch_add(&w->round, 1);
        return;
    }
    while (atomic_load(&w->round) == round) pause_thread();
}

static void *decode(void *arg) {
    struct job *job = arg;
    struct bench *w = job->bench;
    for (int token = 0; token < w->n_token; token++)
        for (int layer = 0; layer < w->n_layer; layer++) {
            size_t share = w->n_weight / w->n_thread;
            const uint64_t *at = w->weights + layer * w->n_weight + job->ith * share;
            for (size_t i = 0; i < share; i++) job->sum += at[i];
            struct lk_attn attn = w->attn;
            attn.k = &w->cache->kv[layer][LK_K];
            attn.v = &w->cache->kv[layer][LK_V];
            wait_for_all(w);
            double start = lk_now();
            lk_attn_items(&attn, job->ith, w->n_thread);
            wait_for_all(w);
            lk_attn_combine(&attn, lk_attn_ranges(&attn, attn.k, attn.v), job->ith, w->n_thread);
            wait_for_all(w);
            if (job->ith == 0) w->seconds += lk_now() - start;
        }
    return NULL;
}

static double noise(unsigned *state) {
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        *state = *state * 1664525u + 1013904223u;
        sum += (double)(*state >> 8) / 8388608.0 - 1;
    }
    return sum;
}

static int fail(const char *what) {
    fprintf(stderr, "bench/attn: %s\n", what);
    return 1;
}

/* Append rows of noise [at, end) to one layer, tile by tile. rows, q: scratch and queries of a
 * tile. */
static bool fill_layer(struct bench *w, int layer, int64_t at, int64_t end, float *rows,
                       const float *q, unsigned *seed, lk_err *err) {
    const struct lk_cache_shape *shape = &w->cache->shape;
    bool ok = !lk_cache_prepare(w->cache, layer, layer + 1, end - at, LK_TILE, err);
    for (; ok && at < end; at += LK_TILE) {
        for (int i = 0; i < LK_TILE * shape->n_head_kv * shape->d_head; i++)
            rows[i] = (float)noise(seed);
        lk_cache_observe(w->cache, layer, q, LK_TILE, w->attn.n_head);
        for (int side = 0; ok && side < 2; side++)
            ok = !lk_cache_append(w->cache, layer, side, rows, LK_TILE, err) &&
                 !lk_cache_age(w->cache, layer, side, err);
    }
    return ok;
}

/* Append `depth` rows to every layer, in portions. Both are rounded up to whole tiles. */
static bool fill_cache(struct bench *w, int64_t depth, int64_t portion, lk_err *err) {
    const struct lk_cache_shape *shape = &w->cache->shape;
    size_t n = (size_t)LK_TILE * shape->n_head_kv * shape->d_head,
           n_q = (size_t)LK_TILE * w->attn.n_head * shape->d_head;
    float *rows = malloc(n * sizeof *rows), *q = malloc(n_q * sizeof *q);
    unsigned seed = 1;
    bool ok = rows && q;
    for (size_t i = 0; ok && i < n_q; i++) q[i] = (float)noise(&seed);
    depth = (depth + LK_TILE - 1) / LK_TILE * LK_TILE;
    portion = (portion + LK_TILE - 1) / LK_TILE * LK_TILE;
    for (int64_t at = 0; ok && at < depth; at += portion)
        for (int layer = 0; ok && layer < shape->n_layer; layer++)
            ok = fill_layer(w, layer, at, at + portion < depth ? at + portion : depth, rows, q,
                            &seed, err);
    free(rows);
    free(q);
    return ok;
}

static bool run_tokens(struct bench *w, uint64_t *sum) {
    pthread_t thread[MAX_THREADS];
    struct job job[MAX_THREADS];
    w->seconds = 0;
    for (int i = 0; i < w->n_thread; i++) {
        job[i] = (struct job){.bench = w, .ith = i};
        if (pthread_create(&thread[i], NULL, decode, &job[i])) return false;
    }
    for (int i = 0; i < w->n_thread; i++) {
        pthread_join(thread[i], NULL);
        *sum += job[i].sum;
    }
    return true;
}

int main(int argc, char **argv) {
    const char *text = argc > 1 ? argv[1] : "best-3";
    int number[] = {8192, 2, 30, 9, 3, 64, 85, 0};
    for (int i = 2; i < argc && i < 10; i++) number[i - 2] = atoi(argv[i]);
    if (number[7] == 0) number[7] = number[0];
    int depth = number[0], n_layer = number[2], n_head = number[3], n_head_kv = number[4],
        d = number[5];
    struct lk_ledger ledger = {0};
    lk_err err = {0};
    lk_recipe *recipe;
    struct bench w = {.n_layer = n_layer, .n_thread = number[1]};
    if (w.n_thread < 1 || w.n_thread > MAX_THREADS || n_head_kv < 1 || n_head % n_head_kv ||
        depth < 1 || number[7] < 1)
        return fail("a numeric argument is out of range");
    if (lk_recipe_parse(&recipe, text, &err)) return fail(err.msg);
    struct lk_cache_shape shape = {.n_layer = n_layer, .n_head_kv = n_head_kv, .d_head = d};
    if (lk_cache_new(&w.cache, recipe, &shape, &ledger, &err)) return fail(err.msg);
    w.attn = (struct lk_attn){.kernels = lk_kernels_choose(NULL),
                              .n_head = n_head,
                              .n_head_kv = n_head_kv,
                              .d_head = d,
                              .n_tok = 1,
                              .n_thread = w.n_thread,
                              .scale = 0.125f};
    w.cache->kernels = w.attn.kernels;
    if (!fill_cache(&w, depth, number[7], &err)) return fail(err.msg);
    w.n_weight = ((size_t)number[6] << 20) / sizeof(uint64_t) / n_layer;
    uint64_t *weights = malloc((w.n_weight * n_layer + 1) * sizeof(uint64_t));
    float *q = malloc((size_t)n_head * d * sizeof *q),
          *out = malloc((size_t)n_head * d * sizeof *out);
    w.attn.partial = aligned_alloc(
        64, (lk_attn_partial_floats(n_head, n_head_kv, d, 1, w.n_thread) * sizeof(float) + 63) /
                64 * 64);
    w.attn.scratch =
        aligned_alloc(64, (lk_attn_scratch_floats(d) * w.n_thread * sizeof(float) + 63) / 64 * 64);
    if (!weights || !q || !out || !w.attn.partial || !w.attn.scratch) return fail("no memory");
    memset(weights, 1, w.n_weight * n_layer * sizeof(uint64_t));
    unsigned seed = 7;
    for (int i = 0; i < n_head * d; i++) q[i] = (float)noise(&seed);
    w.attn.q = q;
    w.attn.out = out;
    w.weights = weights;
    struct lk_cache_bytes bytes = lk_cache_count_bytes(w.cache);
    double total = (double)(bytes.code + bytes.scale + bytes.exact);
    printf("%s at %d: %.1f MB, %d threads, %s kernels\n", text, depth, total * 1e-6, w.n_thread,
           w.attn.kernels->name);
    uint64_t sum = 0;
    w.n_token = 4;
    if (!run_tokens(&w, &sum)) return fail("cannot create a thread");
    w.n_token = 1 + (int)(4 * RUN_SECONDS / w.seconds);
    for (int run = 0; run < RUNS; run++) {
        if (!run_tokens(&w, &sum)) return fail("cannot create a thread");
        double token = w.seconds / w.n_token;
        printf("%8.3f ms per token %8.2f ns per row and KV head %8.1f GB/s\n", 1e3 * token,
               1e9 * token / ((double)depth * n_layer * n_head_kv), total / token * 1e-9);
    }
    lk_cache_free(w.cache);
    lk_recipe_free(recipe);
    free(weights);
    free(q);
    free(out);
    free(w.attn.partial);
    free(w.attn.scratch);
    return sum == 1; /* never; keeps the compiler from removing the reads */
}
