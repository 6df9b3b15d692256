/* The cost of saving and loading a session, compared with evaluating its tokens again.
 *
 *   build/bench/session MODEL TEXT [recipe [tokens [file]]]
 *
 * Defaults: best-3 8192 bench.session.
 *
 * Prefills the first tokens of TEXT, saves the session, loads it into another one, and continues
 * both with 64 greedy tokens, whose logits must be bit-identical. Loading is the median of nine
 * runs; the other times are of one run. */
#include "bench_support.h"
#include "lowkey.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { GREEDY = 64, LOADS = 9 };

static int32_t argmax(const float *logits, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* Number of greedy tokens for which the logits of both are identical. */
static int count_identical(lk_session *a, lk_session *b, int32_t n_vocab) {
    lk_err err = {0};
    for (int i = 0;; i++) {
        const float *x = lk_session_logits(a, -1), *y = lk_session_logits(b, -1);
        if (memcmp(x, y, (size_t)n_vocab * sizeof *x) != 0 || i == GREEDY) return i;
        int32_t tok = argmax(x, n_vocab);
        bench_check(lk_session_eval(a, &tok, 1, false, &err), &err);
        bench_check(lk_session_eval(b, &tok, 1, false, &err), &err);
    }
}

int main(int argc, char **argv) {
    lk_err err = {0};
    lk_model *model;
    lk_recipe *recipe;
    lk_session *session, *again;
    if (argc < 3)
        return fprintf(stderr, "usage: build/bench/session MODEL TEXT [recipe [tokens [file]]]\n"),
               2;
    size_t n_tok = argc > 4 ? strtoul(argv[4], NULL, 10) : 8192, n_text;
    const char *path = argc > 5 ? argv[5] : "bench.session";
    bench_check(lk_model_open(&model, argv[1], NULL, &err), &err);
    bench_check(lk_recipe_parse(&recipe, argc > 3 ? argv[3] : "best-3", &err), &err);
    int32_t *tok = bench_read_tokens(model, argv[2], 1 << 20, &n_text);
    if (!tok || n_text < n_tok) return fprintf(stderr, "bench/session: the text is too short\n"), 1;
    lk_session_opts opts = {.n_ctx = (int32_t)n_tok + GREEDY};
    bench_check(lk_session_new(&session, model, recipe, &opts, &err), &err);
    bench_check(lk_session_new(&again, model, recipe, &opts, &err), &err);
    double start = lk_now();
    bench_check(lk_session_sync(session, tok, n_tok, NULL, &err), &err);
    double prefill = lk_now() - start;
    start = lk_now();
    bench_check(lk_session_save(session, NULL, path, &err), &err);
    double save = lk_now() - start, load[LOADS];
    for (int i = 0; i < LOADS; i++) {
        start = lk_now();
        bench_check(lk_session_load(again, NULL, path, &err), &err);
        load[i] = lk_now() - start;
    }
    qsort(load, LOADS, sizeof *load, bench_compare_doubles);
    struct stat info;
    double cache = (double)lk_session_get_stats(session).cache_bytes;
    if (stat(path, &info) != 0) return 1;
    unlink(path);
    printf("%s, %zu tokens: prefill %.2f s, save %.3f s, load %.4f s (%.0f times faster than "
           "prefill; slowest %.4f s)\n",
           lk_recipe_text(recipe), n_tok, prefill, save, load[LOADS / 2], prefill / load[LOADS / 2],
           load[LOADS - 1]);
    printf("file %.3f MiB, cache %.3f MiB: %+.2f %%\n", (double)info.st_size / (1 << 20),
           cache / (1 << 20), 100 * ((double)info.st_size / cache - 1));
    int same = count_identical(session, again, lk_model_get_info(model).n_vocab);
    printf("%d of %d greedy tokens with bit-identical logits\n", same, GREEDY);
    lk_session_free(session);
    lk_session_free(again);
    lk_tokens_free(tok);
    lk_recipe_free(recipe);
    lk_model_free(model);
    return same == GREEDY ? 0 : 1;
}
