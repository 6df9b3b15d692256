/* Speed of the kernels by codec, compared with a plain read of the same memory.
 *
 *   build/bench/kern [threads [d_head [queries [megabytes [table]]]]]
 *
 * Defaults: 1 64 3 800, and the fastest table.
 *
 * `table`: a name of struct lk_kernels, or "all". Each thread works through its share of
 * `megabytes` of packed rows of one KV head, in runs of CHUNK rows, as attention does. As in a long
 * context, the rows do not fit into the last-level cache. Columns:
 *
 *   bits       per value, including scales and means
 *   ns/token   of one KV head and all its queries, all threads together
 *   Gmac/s     10^9 multiply-adds per second
 *   GB/s       packed bytes read per second
 *   of read    GB/s relative to a plain read of the same memory with the same threads
 *   encode     ns to pack one row, one thread
 *
 * K+V is the score and the weighted sum of one token. The levels of the presets follow. */
#define _DEFAULT_SOURCE /* clock_gettime, barriers, madvise */
#include "kernels/kernels.h"
#include "recipe/recipe.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { MAX_THREADS = 64, DISTINCT = 64, ROUNDS = 5, CHUNK = 256 };

struct job {
    const struct lk_kernels *kernels;
    const struct lk_codec *codec;
    enum lk_side side;
    int d_head, n_q, rows;
    size_t bytes, n_block; /* bytes of a block; number of blocks */
    const char *mem;
    void **block; /* [n_block], for kernels */
    void (*work)(struct job *job);
    pthread_barrier_t *start;
    double seconds, sum; /* sum keeps the work from being optimized away */
};

/* Parameters of a whole run. */
struct setup {
    const struct lk_kernels *kernels;
    int n_thread, d_head, n_q;
    size_t bytes;
    char *mem;
    double read; /* GB/s of a plain read */
};

/* Results for one side of a codec. */
struct figures {
    double bits, ns, gmacs, gbs, encode, bytes_per_row;
};

/* CPU time of the calling thread, so that other programs on the machine do not count. */
static double thread_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float noise(unsigned *state) {
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        *state = *state * 1664525u + 1013904223u;
        sum += (float)(*state >> 8) / 8388608.0f - 1;
    }
    return sum;
}

/* ---- a plain read: the upper limit ----
 *
 * Vector loads into independent sums, from STREAMS places in turn, with prefetching. Of the
 * variants tried (1, 2 and 4 streams; 0, 1 and 4 KiB ahead) the fastest in memory larger than the
 * caches. */

typedef uint64_t u64x8 __attribute__((vector_size(64)));

enum { STREAMS = 4, AHEAD = 4096, LINES = 4 };

static inline __attribute__((always_inline)) double sum_bytes(const char *mem, size_t bytes) {
    u64x8 sum[2 * LINES] = {{0}};
    size_t part = bytes / STREAMS / 64 * 64;
    for (size_t i = 0; i + LINES * 64 <= part; i += LINES * 64)
        for (int k = 0; k < STREAMS; k++)
            for (int j = 0; j < LINES; j++) {
                const char *at = mem + k * part + i + 64 * j;
                u64x8 x;
                __builtin_prefetch(at + AHEAD);
                memcpy(&x, at, sizeof x);
                sum[(k * LINES + j) % (2 * LINES)] += x;
            }
    uint64_t all = 0;
    for (int j = 0; j < 2 * LINES; j++)
        for (int l = 0; l < 8; l++) all += sum[j][l];
    return (double)all;
}

static double sum_plain(const char *mem, size_t bytes) { return sum_bytes(mem, bytes); }
#if defined(__x86_64__)
__attribute__((target("avx2"))) static double sum_avx2(const char *mem, size_t bytes) {
    return sum_bytes(mem, bytes);
}
__attribute__((target("avx512f"))) static double sum_avx512(const char *mem, size_t bytes) {
    return sum_bytes(mem, bytes);
}
#endif

static void read_memory(struct job *job) {
    double (*add)(const char *, size_t) = sum_plain;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) add = sum_avx2;
    if (__builtin_cpu_supports("avx512f")) add = sum_avx512;
#endif
    job->sum += add(job->mem, job->bytes * job->n_block);
}

/* ---- the kernels ---- */

static void run_kernel(struct job *job) {
    int d = job->d_head, n_q = job->n_q;
    float *q = malloc(sizeof(float) * n_q * d), *s = malloc(sizeof(float) * n_q * CHUNK),
          *acc = calloc(n_q * d, sizeof(float));
    void *form = aligned_alloc(64, (lk_queries_bytes(n_q, d) + 63) / 64 * 64);
    if (!q || !s || !acc || !form) abort();
    unsigned state = 1;
    for (int i = 0; i < n_q * d; i++) q[i] = noise(&state);
    for (int i = 0; i < n_q * CHUNK; i++) s[i] = fabsf(noise(&state)) / 4;
    struct lk_queries queries;
    lk_queries_prepare(&queries, q, n_q, d, form);
    struct lk_kernels_state before;
    int n_each = CHUNK / job->rows > 1 ? CHUNK / job->rows : 1;
    lk_kernels_enter(job->kernels, &before);
    for (size_t b = 0; b < job->n_block; b += n_each) {
        int n_block = job->n_block - b < (size_t)n_each ? (int)(job->n_block - b) : n_each;
        struct lk_rows rows = {.codec = job->codec,
                               .block = job->block + b,
                               .d_head = d,
                               .block_rows = job->rows,
                               .n = n_block * job->rows};
        rows.prefetch = (struct lk_prefetch){.block = rows.block + n_block,
                                             .n_block = b + 2 * n_each <= job->n_block ? n_each : 0,
                                             .n_piece = 1};
        if (job->side == LK_K)
            lk_kernels_score(job->kernels, &rows, &queries, s, CHUNK);
        else
            lk_kernels_accumulate(job->kernels, &rows, s, CHUNK, n_q, acc);
    }
    lk_kernels_leave(job->kernels, &before);
    job->sum += s[0] + acc[0];
    free(q), free(s), free(acc), free(form);
}

static void *run_job(void *arg) {
    struct job *job = arg;
    pthread_barrier_wait(job->start);
    double start = thread_seconds();
    job->work(job);
    job->seconds = thread_seconds() - start;
    return NULL;
}

/* Seconds of the slowest thread; each works on its share of the blocks. The minimum of several
 * rounds. */
static double time_job(const struct job *whole, int n_thread, void (*work)(struct job *job)) {
    double best = INFINITY;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t thread[MAX_THREADS];
        pthread_barrier_t start;
        struct job job[MAX_THREADS];
        double took = 0;
        pthread_barrier_init(&start, NULL, n_thread);
        for (int i = 0; i < n_thread; i++) {
            job[i] = *whole;
            job[i].work = work;
            job[i].start = &start;
            job[i].n_block = whole->n_block / n_thread;
            job[i].mem = whole->mem + i * job[i].n_block * whole->bytes;
            if (whole->block) job[i].block = whole->block + i * job[i].n_block;
            if (pthread_create(&thread[i], NULL, run_job, &job[i])) abort();
        }
        for (int i = 0; i < n_thread; i++) {
            pthread_join(thread[i], NULL);
            took = fmax(took, job[i].seconds);
        }
        pthread_barrier_destroy(&start);
        if (took < best) best = took;
    }
    return best;
}

/* Fill mem with packed blocks. Returns the nanoseconds to encode one row. */
static double fill_blocks(struct job *job, char *mem) {
    size_t n_float = (size_t)job->rows * job->d_head;
    float *x = malloc(n_float * sizeof *x);
    if (!x) abort();
    struct lk_part part = {job->codec, job->side, job->d_head, job->rows, NULL};
    unsigned state = 2;
    double spent = 0;
    size_t distinct = job->n_block < DISTINCT ? job->n_block : DISTINCT;
    for (size_t b = 0; b < distinct; b++) {
        for (size_t i = 0; i < n_float; i++) x[i] = noise(&state);
        double start = thread_seconds();
        job->kernels->encode(&part, mem + b * job->bytes, 0, job->rows, x, job->d_head);
        spent += thread_seconds() - start;
    }
    for (size_t b = distinct; b < job->n_block; b++)
        memcpy(mem + b * job->bytes, mem + b % distinct * job->bytes, job->bytes);
    free(x);
    return 1e9 * spent / (double)(distinct * job->rows);
}

static double read_bandwidth(const struct setup *s, const char *mem) {
    struct job all = {.bytes = 4096, .n_block = s->bytes / 4096, .mem = mem};
    return (double)s->bytes / time_job(&all, s->n_thread, read_memory) / 1e9;
}

/* Same as above with huge pages, for comparison: a KV cache has small ones. */
static double huge_bandwidth(const struct setup *s) {
    double found = 0;
#ifdef MADV_HUGEPAGE
    size_t page = 2u << 20, size = (s->bytes + page - 1) / page * page;
    char *mem = aligned_alloc(page, size);
    if (!mem) return 0;
    madvise(mem, size, MADV_HUGEPAGE);
    memset(mem, 1, size);
    found = read_bandwidth(s, mem);
    free(mem);
#else
    (void)s;
#endif
    return found;
}

/* Returns false if the codec does not support this d_head. */
static bool measure(const struct setup *s, const struct lk_codec *codec, enum lk_side side,
                    struct figures *out) {
    struct job job = {.kernels = s->kernels,
                      .codec = codec,
                      .side = side,
                      .d_head = s->d_head,
                      .n_q = s->n_q,
                      .mem = s->mem};
    if (lk_codec_reject_reason(codec, side, s->d_head)) return false;
    job.rows = lk_codec_block_rows(codec, side);
    job.bytes = lk_codec_head_bytes(codec, side, s->d_head, job.rows);
    job.n_block = s->bytes / job.bytes / s->n_thread * s->n_thread;
    out->encode = fill_blocks(&job, s->mem);
    job.block = malloc(job.n_block * sizeof *job.block);
    if (!job.block) abort();
    for (size_t b = 0; b < job.n_block; b++) job.block[b] = s->mem + b * job.bytes;
    double seconds = time_job(&job, s->n_thread, run_kernel),
           n_row = (double)job.n_block * job.rows;
    free(job.block);
    out->bytes_per_row = (double)job.bytes / job.rows;
    out->bits = 8 * out->bytes_per_row / s->d_head;
    out->ns = 1e9 * seconds / n_row;
    out->gmacs = s->d_head * s->n_q / out->ns;
    out->gbs = out->bytes_per_row / out->ns;
    return true;
}

static void print_line(const struct setup *s, const char *name, const char *side,
                       const struct figures *f) {
    printf("%-26s %-4s %6.2f %9.2f %9.1f %8.1f %7.0f %%", name, side, f->bits, f->ns, f->gmacs,
           f->gbs, 100 * f->gbs / s->read);
    if (f->encode > 0) printf(" %8.0f", f->encode);
    printf("\n");
}

/* Lines for K, V and both; or only for both. */
static void bench_pair(const struct setup *s, const char *name, const struct lk_codec *k,
                       const struct lk_codec *v, bool sides) {
    struct figures f[2];
    if (!measure(s, k, LK_K, &f[0]) || !measure(s, v, LK_V, &f[1])) {
        printf("%-26s does not support heads of %d channels\n", name, s->d_head);
        return;
    }
    double bytes = f[0].bytes_per_row + f[1].bytes_per_row, ns = f[0].ns + f[1].ns;
    struct figures both = {.bits = (f[0].bits + f[1].bits) / 2,
                           .ns = ns,
                           .gmacs = 2.0 * s->d_head * s->n_q / ns,
                           .gbs = bytes / ns};
    if (sides) {
        print_line(s, name, "K", &f[0]);
        print_line(s, "", "V", &f[1]);
    }
    print_line(s, sides ? "" : name, "K+V", &both);
}

static void bench_codecs(const struct setup *s) {
    static const struct lk_codec codecs[] = {
        {.coding = LK_F16, .bits = 16},
        {.coding = LK_INT8, .bits = 8},
        {.coding = LK_KIVI, .bits = 2, .group = 32},
        {.coding = LK_KIVI, .bits = 4, .group = 32},
        {.coding = LK_ROT, .bits = 1, .mean = true},
        {.coding = LK_ROT, .bits = 2, .mean = true, .lloyd = true},
        {.coding = LK_ROT, .bits = 3, .mean = true, .lloyd = true},
        {.coding = LK_ROT, .bits = 4, .mean = true, .lloyd = true},
        {.coding = LK_ROT, .bits = 1, .mean = true, .trellis = true},
        {.coding = LK_ROT, .bits = 2, .mean = true, .trellis = true},
        {.coding = LK_ROT, .bits = 3, .mean = true, .trellis = true},
        {.coding = LK_ROT, .bits = 4, .mean = true, .trellis = true},
        {.coding = LK_ROT, .bits = 4, .mean = true},
        {.coding = LK_ROT, .bits = 5, .mean = true},
        {.coding = LK_ROT, .bits = 6, .mean = true},
        {.coding = LK_ROT, .bits = 7, .mean = true},
        {.coding = LK_ROT, .bits = 8, .mean = true},
        {.coding = LK_ROT, .bits = 3},
        {.coding = LK_ASYM, .bits = 2},
        {.coding = LK_ASYM, .bits = 3, .hadamard = true},
        {.coding = LK_ASYM, .bits = 4},
        {.coding = LK_ASYM, .bits = 8},
        {.coding = LK_ASYM, .bits = 4, .group = 32},
        {.coding = LK_ASYM, .bits = 4, .group = 64},
    };
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) {
        char name[32];
        struct lk_codec k = codecs[i], v = codecs[i];
        k.sigma = codecs[i].mean; /* as in recipes; sigma costs a kernel nothing */
        v.mean = false;
        lk_codec_print(&k, LK_K, name, sizeof name);
        bench_pair(s, name, &k, &v, true);
    }
}

/* Every level of every preset that holds a share of a long context. */
static void bench_presets(const struct setup *s) {
    lk_preset preset;
    for (size_t i = 0; lk_recipe_preset(i, &preset); i++) {
        lk_recipe *recipe;
        if (lk_recipe_parse(&recipe, preset.name, NULL)) continue;
        for (int j = 0; j < recipe->n_level; j++) {
            const struct lk_level_spec *level = &recipe->level[j];
            char name[80];
            if (level->range != LK_BODY && !(level->percent > 0)) continue;
            if (level->k.projection || level->v.projection) continue; /* see bench_latent.c */
            snprintf(name, sizeof name, "%s %s", preset.name, level->name);
            bench_pair(s, name, &level->k, &level->v, false);
        }
        lk_recipe_free(recipe);
    }
}

static void bench_table(struct setup *s) {
    s->read = read_bandwidth(s, s->mem);
    printf("%s, %d thread(s), d_head %d, %d queries, %zu MB; a plain read reaches %.1f GB/s (with "
           "huge pages %.1f)\n",
           s->kernels->name, s->n_thread, s->d_head, s->n_q, s->bytes >> 20, s->read,
           huge_bandwidth(s));
    printf("%-26s %-4s %6s %9s %9s %8s %9s %8s\n", "codec", "side", "bits", "ns/token", "Gmac/s",
           "GB/s", "of read", "encode");
    bench_codecs(s);
    bench_presets(s);
    printf("a plain read now reaches %.1f GB/s\n\n", read_bandwidth(s, s->mem));
}

int main(int argc, char **argv) {
    static const char *const tables[] = {"amx",  "avx512vbmi", "avx512",   "avxvnni",
                                         "avx2", "neon",       "reference"};
    struct setup s = {.n_thread = argc > 1 ? atoi(argv[1]) : 1,
                      .d_head = argc > 2 ? atoi(argv[2]) : 64,
                      .n_q = argc > 3 ? atoi(argv[3]) : 3,
                      .bytes = (size_t)(argc > 4 ? atoi(argv[4]) : 800) << 20};
    bool all = argc > 5 && strcmp(argv[5], "all") == 0;
    s.kernels = lk_kernels_choose(argc > 5 && !all ? argv[5] : NULL);
    if (s.n_thread < 1 || s.n_thread > MAX_THREADS || s.d_head < 8 || s.d_head % 8 ||
        s.d_head > LK_MAX_D_HEAD || s.n_q < 1 || s.bytes == 0 || !s.kernels) {
        fprintf(stderr,
                "usage: build/bench/kern [threads [d_head [queries [megabytes [table]]]]]\n");
        return 2;
    }
    s.mem = aligned_alloc(64, s.bytes);
    if (!s.mem) return 1;
    memset(s.mem, 1, s.bytes);
    for (size_t i = 0; all && i < sizeof tables / sizeof tables[0]; i++) {
        s.kernels = lk_kernels_choose(tables[i]);
        if (s.kernels) bench_table(&s);
    }
    if (!all) bench_table(&s);
    free(s.mem);
    return 0;
}
