/* An endless text through a cache with eviction: do memory and time per token stay constant?
 *
 *   build/bench/stream MODEL RECIPE [tokens [every [threads [SIDECAR]]]]
 *
 * Defaults: 100000, 10000, 1.
 *
 * MODEL may be "tiny": a random model of two layers. The tokens are random, so their number is not
 * limited by a text; the cost of a row does not depend on its token. Each line has, after that
 * number of tokens:
 *
 *   tokens/s       since the last line
 *   CPU ms/token   CPU time of the process since the last line; usable even on a busy machine
 *   cache KiB      from the ledger
 *   session KiB    cache and scratch, from the ledger
 *   resident KiB   growth of resident memory since just before the session was created, when the
 *                  model had been used already
 *
 * The exit status is 1 if the cache grew after the second line. */
#include "bench_support.h"
#include "lowkey.h"
#include "tiny_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double resident(void) {
    long whole = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    if (fscanf(f, "%ld %ld", &whole, &pages) != 2) pages = 0;
    fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int print_error(const lk_err *err) {
    fprintf(stderr, "bench/stream: %s\n", err->msg);
    return 2;
}

/* Evaluate a few tokens to make weights and libraries resident. */
static lk_status warm_up(lk_model *model, const lk_recipe *recipe, lk_err *err) {
    lk_session *session;
    lk_session_opts opts = {.n_ctx = 16};
    lk_status status = lk_session_new(&session, model, recipe, &opts, err);
    if (status != LK_OK) return status;
    for (int32_t tok = 0; status == LK_OK && tok < 4; tok++)
        status = lk_session_eval(session, &tok, 1, false, err);
    lk_session_free(session);
    return status;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr,
                "usage: build/bench/stream MODEL RECIPE [tokens [every [threads [SIDECAR]]]]\n");
        return 2;
    }
    long n = argc > 3 ? atol(argv[3]) : 100000, every = argc > 4 ? atol(argv[4]) : 10000;
    lk_model_opts model_opts = {.n_threads = argc > 5 ? atoi(argv[5]) : 1,
                                .sidecar = argc > 6 ? argv[6] : NULL};
    lk_session_opts opts = {.n_ctx = (int32_t)n};
    lk_err err = {0};
    lk_model *model = NULL;
    lk_recipe *recipe = NULL;
    lk_session *session = NULL;
    char tiny[BENCH_PATH];
    if (strcmp(argv[1], "tiny") == 0) {
        bench_temp_file(tiny);
        struct tiny_spec spec = *tiny_preset("llama");
        spec.n_ctx = 4096;
        if (!tiny_gguf_write(tiny, &spec)) return 2;
        argv[1] = tiny;
    }
    if (lk_model_open(&model, argv[1], &model_opts, &err) ||
        lk_recipe_parse(&recipe, argv[2], &err) || warm_up(model, recipe, &err))
        return print_error(&err);
    double base = resident();
    if (lk_session_new(&session, model, recipe, &opts, &err)) return print_error(&err);
    int32_t n_vocab = lk_model_get_info(model).n_vocab;
    uint64_t random = 1, max_bytes = 0, bytes = 0;
    double last = lk_now(), cpu = cpu_seconds();
    printf("%s\n| tokens | tokens/s | CPU ms/token | cache KiB | session KiB | resident KiB "
           "|\n|---:|---:|---:|---:|---:|---:|\n",
           lk_recipe_text(recipe));
    for (long i = 1; i <= n; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        int32_t tok = (int32_t)((random >> 33) % (uint64_t)n_vocab);
        if (lk_session_eval(session, &tok, 1, false, &err)) return print_error(&err);
        if (i % every) continue;
        double t = lk_now(), c = cpu_seconds();
        lk_session_stats stats = lk_session_get_stats(session);
        bytes = stats.cache_bytes;
        if (i <= 2 * every && max_bytes < bytes) max_bytes = bytes;
        printf("| %ld | %.1f | %.2f | %.1f | %.1f | %.0f |\n", i, (double)every / (t - last),
               1e3 * (c - cpu) / (double)every, (double)bytes / 1024,
               (double)(bytes + stats.scratch_bytes) / 1024 + (double)n * sizeof(int32_t) / 1024,
               (resident() - base) / 1024);
        fflush(stdout);
        last = t, cpu = c;
    }
    lk_session_free(session);
    lk_recipe_free(recipe);
    lk_model_free(model);
    if (argv[1] == tiny) unlink(tiny);
    return bytes > max_bytes;
}
