/* What saving and loading a session costs, beside reading its tokens again.
 *
 *   bench_session MODEL TEXT [recipe [tokens [file]]]      defaults: best-3 8192 bench.session
 *
 * Reads the first tokens of TEXT, saves the session, loads it into another one, and lets both go on with 64
 * greedy tokens, which must be the same, with the same logits to the bit. Times are of one run, loading's the
 * median of nine. */
#include "bench_support.h"
#include "lowkey.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { GREEDY = 64, LOADS = 9 };

static int32_t best(const float *logits, int32_t n) {
    int32_t most = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[most]) most = i;
    return most;
}

/* Number of tokens after which both still agree to the bit. */
static int agree(lk_session *a, lk_session *b, int32_t n_vocab) {
    lk_err err = {0};
    for (int i = 0;; i++) {
        const float *x = lk_session_logits(a, -1), *y = lk_session_logits(b, -1);
        if (memcmp(x, y, (size_t)n_vocab * sizeof *x) != 0 || i == GREEDY) return i;
        int32_t tok = best(x, n_vocab);
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
        return fprintf(stderr, "usage: bench_session MODEL TEXT [recipe [tokens [file]]]\n"), 2;
    size_t n_tok = argc > 4 ? strtoul(argv[4], NULL, 10) : 8192, n_text;
    const char *path = argc > 5 ? argv[5] : "bench.session";
    bench_check(lk_model_open(&model, argv[1], NULL, &err), &err);
    bench_check(lk_recipe_parse(&recipe, argc > 3 ? argv[3] : "best-3", &err), &err);
    int32_t *tok = bench_read_tokens(model, argv[2], 1 << 20, &n_text);
    if (!tok || n_text < n_tok) return fprintf(stderr, "bench_session: the text is too short\n"), 1;
    lk_session_opts opts = {.n_ctx = (int32_t)n_tok + GREEDY};
    bench_check(lk_session_new(&session, model, recipe, &opts, &err), &err);
    bench_check(lk_session_new(&again, model, recipe, &opts, &err), &err);
    double began = bench_now();
    bench_check(lk_session_sync(session, tok, n_tok, NULL, &err), &err);
    double prefill = bench_now() - began;
    began = bench_now();
    bench_check(lk_session_save(session, NULL, path, &err), &err);
    double save = bench_now() - began, load[LOADS];
    for (int i = 0; i < LOADS; i++) {
        began = bench_now();
        bench_check(lk_session_load(again, NULL, path, &err), &err);
        load[i] = bench_now() - began;
    }
    qsort(load, LOADS, sizeof *load, bench_by_size);
    struct stat info;
    double cache = (double)lk_session_get_stats(session).cache_bytes;
    if (stat(path, &info) != 0) return 1;
    unlink(path);
    printf("%s, %zu tokens: read in %.2f s, saved in %.3f s, loaded in %.4f s (%.0f times faster "
           "than read; slowest %.4f s)\n",
           lk_recipe_text(recipe), n_tok, prefill, save, load[LOADS / 2], prefill / load[LOADS / 2],
           load[LOADS - 1]);
    printf("file %.3f MiB, cache %.3f MiB: %+.2f %%\n", (double)info.st_size / (1 << 20),
           cache / (1 << 20), 100 * ((double)info.st_size / cache - 1));
    int same = agree(session, again, lk_model_get_info(model).n_vocab);
    printf("%d of %d greedy tokens with the same logits to the bit\n", same, GREEDY);
    lk_session_free(session);
    lk_session_free(again);
    lk_tokens_free(tok);
    lk_recipe_free(recipe);
    lk_model_free(model);
    return same == GREEDY ? 0 : 1;
}
