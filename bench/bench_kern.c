/* Speed of the kernels, codec by codec: time per token of one KV head, and multiply-adds per second.
 *
 *   bench_kern [threads [d_head [queries [megabytes [table]]]]]      defaults: 1 64 3 200, the fastest
 *
 * Every thread reads its share of a cache that would take `megabytes` as halves, tile after tile, as
 * attention does. Read bandwidth of the same memory comes first: no kernel can stream faster. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kern/kern.h"

enum { MAX_THREADS = 64, DISTINCT = 64 };

struct job {
    const struct lk_kern  *kern;
    const struct lk_codec *codec;
    enum lk_side           side;
    int                    d_head, n_q, rows;
    size_t                 bytes, n_block; /* of a block; blocks to read */
    const char            *mem;
    void (*work)(struct job *job);
    double                 seconds, sum; /* sum keeps the work from being optimised away */
};

/* The calling thread's own time: what else runs on the machine does not count. */
static double now(void) {
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

static void read_memory(struct job *job) {
    uint64_t sum[8] = {0};
    for (size_t i = 0; i + 64 <= job->bytes * job->n_block; i += 64)
        for (int j = 0; j < 8; j++) {
            uint64_t x;
            memcpy(&x, job->mem + i + 8 * j, sizeof x);
            sum[j] += x;
        }
    for (int j = 0; j < 8; j++) job->sum += (double)sum[j];
}

static void run_kernel(struct job *job) {
    int d = job->d_head, n_q = job->n_q;
    float *q = malloc(sizeof(float) * n_q * d), *s = malloc(sizeof(float) * n_q * LK_TILE), *acc = calloc(n_q * d, sizeof(float));
    void *form = aligned_alloc(64, (lk_queries_bytes(n_q, d) + 63) / 64 * 64);
    if (!q || !s || !acc || !form) abort();
    unsigned state = 1;
    for (int i = 0; i < n_q * d; i++) q[i] = noise(&state);
    for (int i = 0; i < n_q * LK_TILE; i++) s[i] = fabsf(noise(&state)) / 4;
    struct lk_queries queries;
    lk_queries_prepare(&queries, q, n_q, d, form);
    for (size_t b = 0; b < job->n_block; b++)
        for (int row = 0; row < job->rows; row += LK_TILE) {
            struct lk_tile tile = {.codec = job->codec, .head = job->mem + b * job->bytes, .d_head = d,
                                   .block_rows = job->rows, .row0 = row, .n = LK_TILE};
            tile.next = (const char *)tile.head + job->bytes;
            if (job->side == LK_K) job->kern->score(&tile, &queries, s, LK_TILE);
            else job->kern->accumulate(&tile, s, LK_TILE, n_q, acc);
        }
    job->sum += s[0] + acc[0];
    free(q), free(s), free(acc), free(form);
}

static void *run(void *arg) {
    struct job *job = arg;
    double start = now();
    job->work(job);
    job->seconds = now() - start;
    return NULL;
}

/* Seconds of the slowest thread, each with its share of the blocks; the best of three. */
static double timed(const struct job *whole, int n_thread, void (*work)(struct job *job)) {
    double best = INFINITY;
    for (int round = 0; round < 3; round++) {
        pthread_t thread[MAX_THREADS];
        struct job job[MAX_THREADS];
        double took = 0;
        for (int i = 0; i < n_thread; i++) {
            job[i] = *whole;
            job[i].work = work;
            job[i].n_block = whole->n_block / n_thread;
            job[i].mem = whole->mem + i * job[i].n_block * whole->bytes;
            if (pthread_create(&thread[i], NULL, run, &job[i])) abort();
        }
        for (int i = 0; i < n_thread; i++) {
            pthread_join(thread[i], NULL);
            took = fmax(took, job[i].seconds);
        }
        if (took < best) best = took;
    }
    return best;
}

/* Fill mem with packed blocks; returns nanoseconds to encode one row. */
static double fill(struct job *job, char *mem) {
    size_t n_float = (size_t)job->rows * job->d_head;
    float *x = malloc(n_float * sizeof *x);
    if (!x) abort();
    unsigned state = 2;
    double spent = 0;
    size_t distinct = job->n_block < DISTINCT ? job->n_block : DISTINCT;
    for (size_t b = 0; b < distinct; b++) {
        for (size_t i = 0; i < n_float; i++) x[i] = noise(&state);
        double start = now();
        lk_codec_encode(job->codec, job->side, job->d_head, job->rows, NULL, mem + b * job->bytes, 0, job->rows, x, job->d_head);
        spent += now() - start;
    }
    for (size_t b = distinct; b < job->n_block; b++)
        memcpy(mem + b * job->bytes, mem + b % distinct * job->bytes, job->bytes);
    free(x);
    return 1e9 * spent / (double)(distinct * job->rows);
}

static void bench(const struct lk_kern *kern, const struct lk_codec *codec, int n_thread, int d_head, int n_q, size_t n_row, char *mem) {
    char name[32];
    struct lk_codec plain = *codec;
    plain.sigma = true;
    lk_codec_print(&plain, LK_K, name, sizeof name);
    printf("%-14s", name);
    for (int side = LK_K; side <= LK_V; side++) {
        struct lk_codec side_codec = *codec;
        side_codec.mean = codec->mean && side == LK_K;
        struct job job = {.codec = &side_codec, .side = side, .d_head = d_head, .n_q = n_q, .mem = mem};
        if (lk_codec_refuses(&side_codec, side, d_head)) {
            printf(" | %44s", "-");
            continue;
        }
        job.rows = lk_codec_block_rows(&side_codec, side);
        job.bytes = lk_codec_head_bytes(&side_codec, side, d_head, job.rows);
        job.n_block = n_row / job.rows;
        double encode = fill(&job, mem), macs = (double)job.n_block * job.rows * d_head * n_q;
        job.kern = kern;
        double fast = timed(&job, n_thread, run_kernel);
        struct job few = job;
        few.kern = &lk_kern_reference;
        few.n_block = job.n_block / 256 + n_thread;
        double slow = timed(&few, n_thread, run_kernel) / (double)few.n_block * (double)job.n_block;
        printf(" | %6.2f %7.2f %7.1f %6.1f %6.1f %7.0f", 8.0 * (double)job.bytes / (job.rows * d_head),
               1e9 * fast / (double)(job.n_block * job.rows), macs / fast / 1e9, (double)(job.bytes * job.n_block) / fast / 1e9,
               macs / slow / 1e9, encode);
    }
    printf("\n");
}

int main(int argc, char **argv) {
    int n_thread = argc > 1 ? atoi(argv[1]) : 1, d_head = argc > 2 ? atoi(argv[2]) : 64, n_q = argc > 3 ? atoi(argv[3]) : 3;
    size_t bytes = (size_t)(argc > 4 ? atoi(argv[4]) : 200) << 20;
    const struct lk_kern *kern = lk_kern_choose(argc > 5 ? argv[5] : NULL);
    if (n_thread < 1 || n_thread > MAX_THREADS || d_head < 8 || d_head % 8 || d_head > LK_MAX_D_HEAD || n_q < 1 || bytes == 0 ||
        !kern) {
        fprintf(stderr, "usage: bench_kern [threads [d_head [queries [megabytes [table]]]]]\n");
        return 2;
    }
    size_t n_row = bytes / (2 * d_head) / 128 / n_thread * 128 * n_thread;
    char *mem = aligned_alloc(64, bytes + 64);
    if (!mem || n_row == 0) return 1;
    memset(mem, 1, bytes);
    struct job all = {.bytes = 4096, .n_block = bytes / 4096, .mem = mem};
    printf("%s, %d thread(s), d_head %d, %d queries, %zu tokens, read bandwidth %.1f GB/s\n", kern->name,
           n_thread, d_head, n_q, n_row, (double)bytes / timed(&all, n_thread, read_memory) / 1e9);
    const char *head = "  bits  ns/tok   Gmac/s   GB/s ref G/s enc ns";
    printf("%-14s | K %s | V %s\n", "codec", head + 2, head + 2);
    static const struct lk_codec codecs[] = {
        {.coding = LK_F16, .bits = 16},
        {.coding = LK_INT8, .bits = 8},
        {.coding = LK_KIVI, .bits = 2, .group = 32},
        {.coding = LK_KIVI, .bits = 4, .group = 32},
        {.coding = LK_ROT, .bits = 1, .mean = true},
        {.coding = LK_ROT, .bits = 2, .mean = true},
        {.coding = LK_ROT, .bits = 3, .mean = true},
        {.coding = LK_ROT, .bits = 4, .mean = true},
        {.coding = LK_ROT, .bits = 4, .mean = true, .lloyd = true},
        {.coding = LK_ROT, .bits = 5, .mean = true},
        {.coding = LK_ROT, .bits = 6, .mean = true},
        {.coding = LK_ROT, .bits = 7, .mean = true},
        {.coding = LK_ROT, .bits = 8, .mean = true},
    };
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) bench(kern, &codecs[i], n_thread, d_head, n_q, n_row, mem);
    free(mem);
    return 0;
}
