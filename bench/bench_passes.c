/* Time of passes of several tokens, as drafts need them, and of dropping tokens again.
 *
 * usage: build/bench/passes MODEL [THREADS [DEPTH [RECIPE]]]
 *
 * Text is random, so the model may be one of build/bench/random_model.
 * For each number of tokens: milliseconds of a pass, of dropping all its tokens but the first one,
 * and of dropping the last one. Each is the median of 15 runs; with one thread, of its processor
 * time, which other programs change less. */
#include "bench_support.h"
#include "lowkey_draft.h"
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RUNS = 15 };

static double seconds_now(int n_threads) {
    return n_threads == 1 ? (double)clock() / CLOCKS_PER_SEC : lk_now();
}

/* Evaluate single tokens until n fit into a pass. */
static void make_room(lk_session *s, const int32_t *tok, size_t n) {
    lk_err err = {0};
    while (lk_session_draftable(s, n, NULL) < n)
        bench_check(lk_session_eval(s, tok + lk_session_n_tok(s), 1, true, &err), &err);
}

/* Seconds of a pass of n tokens, and of dropping its last n_drop tokens. */
static void time_pass(lk_session *s, int n_threads, const int32_t *tok, size_t n, size_t n_drop,
                      double *pass, double *drop) {
    lk_err err = {0};
    make_room(s, tok, n);
    size_t held = lk_session_n_tok(s);
    double start = seconds_now(n_threads);
    bench_check(lk_session_eval(s, tok + held, n, true, &err), &err);
    *pass = seconds_now(n_threads) - start;
    start = seconds_now(n_threads);
    bench_check(lk_session_truncate(s, held + n - n_drop, &err), &err);
    *drop = seconds_now(n_threads) - start;
}

static double median_ms(double *seconds) {
    qsort(seconds, RUNS, sizeof *seconds, bench_compare_doubles);
    return 1e3 * seconds[RUNS / 2];
}

int main(int argc, char **argv) {
    int n_threads = argc > 2 ? atoi(argv[2]) : 1, depth = argc > 3 ? atoi(argv[3]) : 100;
    if (argc < 2 || argc > 5 || n_threads < 1 || depth < 1 || depth > 60000) {
        fprintf(stderr, "usage: build/bench/passes MODEL [THREADS [DEPTH [RECIPE]]]\n");
        return 1;
    }
    lk_model *model = NULL;
    lk_recipe *recipe = NULL;
    lk_session *s = NULL;
    lk_err err = {0};
    bench_check(lk_model_open(&model, argv[1], &(lk_model_opts){.n_threads = n_threads}, &err),
                &err);
    int n_tok = depth + 4096;
    lk_session_opts opts = {.n_ctx = n_tok};
    struct random r = {1};
    int32_t *tok = malloc((size_t)n_tok * sizeof *tok), n_vocab = lk_model_get_info(model).n_vocab;
    if (!tok) return 1;
    for (int i = 0; i < n_tok; i++) tok[i] = random_int(&r, 0, n_vocab - 1);
    bench_check(lk_recipe_parse(&recipe, argc > 4 ? argv[4] : "best-4", &err), &err);
    bench_check(lk_session_new(&s, model, recipe, &opts, &err), &err);
    bench_check(lk_session_sync(s, tok, (size_t)depth, NULL, &err), &err);
    printf("| tokens | pass, ms | drop all but one | drop one |\n|---:|---:|---:|---:|\n");
    for (size_t n = 1; n <= 16; n *= 2) {
        double pass[RUNS], drop[2][RUNS], ignored;
        time_pass(s, n_threads, tok, n, n - 1, &pass[0], &drop[0][0]); /* allocates */
        for (int i = 0; i < RUNS; i++)
            time_pass(s, n_threads, tok, n, n - 1, &pass[i], &drop[0][i]);
        for (int i = 0; i < RUNS; i++)
            time_pass(s, n_threads, tok, n, n > 1, &ignored, &drop[1][i]);
        double ms[] = {median_ms(pass), median_ms(drop[0]), median_ms(drop[1])};
        printf("| %zu | %.2f | %.2f | %.2f |\n", n, ms[0], ms[1], ms[2]);
    }
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
    free(tok);
    return 0;
}
