/* Speed of several sessions in one batch.
 *
 *   build/bench/batch [option...] MODEL [recipe [depth [steps [n...]]]]
 *     --prompts TEXT        evaluates prompts, and counts their time
 *     --threads N
 *     --sidecar FILE        for recipes that need one
 *     --stages N            N ranks divide the layers: threads of this process, with one thread for
 *                           computing each. N = 1 is one process with one thread
 *     --device NAME         that computes the layers
 *     --cache-device NAME   that holds the rows of the sessions
 *     --lines json          a JSON object for each n, without ms of a build
 *
 * Defaults: best-3 4096 32 1 4 16.
 *
 * Each of n sessions holds `depth` tokens in blocks of its own; then `steps` passes decode one
 * token of each. Columns:
 *
 *   tokens/s   of all sessions together
 *   of one     tokens/s divided by the tokens/s per session of the first n
 *   ms/pass    median
 *   build ms   rebuilding the graph, as needed when a session joins or leaves the batch
 *   cache MiB  of all sessions, from their ledgers
 *
 * The caches are filled with the rows of 256 random tokens, repeated. They cost as much as a
 * text.
 *
 * With --prompts each session evaluates `depth` tokens from another place of TEXT, one session
 * after the other. Columns:
 *
 *   all tok/s  decoded tokens of all sessions / seconds of prompts and decoding (LESS, table 6)
 *   prompts s  seconds of all prompts */
#include "bench_support.h"
#include "engine/batch.h"
#include "lowkey_serve.h"
#include "measure/repeat_rows.h"
#include "support_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SESSIONS = 64, SOURCE = 256, MAX_STEPS = 4096 };

struct setup {
    struct ranks *ranks; /* NULL: one process */
    lk_cluster *cluster;
    lk_model *model;
    lk_recipe *recipe;
    lk_session *source; /* SOURCE tokens in f16, whose rows fill the sessions */
    lk_session *session[MAX_SESSIONS];
    lk_batch *batch;
    const char *text; /* of the prompts; NULL: caches are filled */
    int32_t *tok;     /* of the text, n_tok of them */
    size_t n_tok;
    size_t depth;
    int steps;
    bool json;
    double single; /* tokens per second and session of the first measurement */
};

static lk_session *open_session(const struct setup *s, const lk_recipe *recipe) {
    lk_err err = {0};
    lk_session *session;
    lk_session_opts opts = {.n_ctx = (int32_t)(s->depth + MAX_STEPS)};
    bench_check(lk_session_new(&session, s->model, recipe, &opts, &err), &err);
    return session;
}

static void open_source(struct setup *s) {
    lk_err err = {0};
    lk_recipe *f16;
    int32_t n_vocab = lk_model_get_info(s->model).n_vocab;
    s->tok = malloc(SOURCE * sizeof *s->tok);
    for (int i = 0; i < SOURCE; i++)
        s->tok[i] = (int32_t)((i * 2654435761u >> 7) % (uint32_t)n_vocab);
    bench_check(lk_recipe_parse(&f16, "f16", &err), &err);
    s->source = open_session(s, f16);
    bench_check(lk_session_sync(s->source, s->tok, SOURCE, NULL, &err), &err);
    lk_recipe_free(f16);
}

/* Read enough of the text for the prompts of n sessions. */
static void read_text(struct setup *s, int n) {
    s->tok = bench_read_tokens(s->model, s->text, SIZE_MAX, &s->n_tok);
    if (s->n_tok >= n * s->depth) return;
    fprintf(stderr, "bench/batch: %s has only %zu tokens\n", s->text, s->n_tok);
    exit(2);
}

/* Session k of n with `depth` tokens. */
static void fill(struct setup *s, int k) {
    lk_err err = {0};
    lk_session *session = s->session[k] = open_session(s, s->recipe);
    if (s->text) {
        bench_check(lk_session_sync(session, s->tok + k * s->depth, s->depth, NULL, &err), &err);
        return;
    }
    size_t n = s->depth < SOURCE ? s->depth : SOURCE;
    bench_check(lk_session_sync(session, s->tok, n, NULL, &err), &err);
    if (s->depth > n) bench_check(lk_repeat_rows(session, s->source, s->depth - n, &err), &err);
}

static double median_build(struct setup *s) {
    double seconds[9];
    lk_err err = {0};
    struct lk_graph *g = &s->batch->pass.graph;
    for (int i = 0; i < 9; i++) {
        double start = lk_now();
        g->n_tok = 0; /* forget the shape */
        bench_check(lk_pass_build(&s->batch->pass, &err), &err);
        seconds[i] = lk_now() - start;
    }
    qsort(seconds, 9, sizeof *seconds, bench_compare_doubles);
    return seconds[4];
}

static void measure(struct setup *s, int n) {
    lk_err err = {0};
    lk_batch_entry item[MAX_SESSIONS];
    static double seconds[MAX_STEPS];
    int32_t tok = 1;
    double begin = lk_now();
    for (int k = 0; k < n; k++) {
        if (s->text) lk_session_free(s->session[k]), s->session[k] = NULL;
        if (!s->session[k]) fill(s, k);
    }
    double filled = lk_now();
    for (int step = s->text ? 0 : -1; step < s->steps; step++) { /* -1 is not timed */
        for (int i = 0; i < n; i++)
            item[i] = (lk_batch_entry){.session = s->session[i], .tok = &tok, .n_tok = 1};
        double start = lk_now();
        bench_check(lk_batch_eval(s->batch, item, n, &err), &err);
        if (step >= 0) seconds[step] = lk_now() - start;
        for (int i = 0; i < n; i++) bench_check(item[i].err.code, &item[i].err);
        tok = (tok * 7 + 1) % 1000;
    }
    double all = n * s->steps / (lk_now() - begin);
    uint64_t cache = 0, device = 0;
    for (int i = 0; i < n; i++) {
        lk_session_stats stats = lk_session_get_stats(s->session[i]);
        cache += stats.cache_bytes, device += stats.device_bytes;
    }
    qsort(seconds, s->steps, sizeof *seconds, bench_compare_doubles);
    double pass = seconds[s->steps / 2];
    if (s->single == 0) s->single = 1 / pass;
    if (s->json)
        printf("{\"n\": %d, \"depth\": %zu, \"tps\": %.3f, \"pass_ms\": %.4f, "
               "\"cache_bytes\": %llu, \"device_bytes\": %llu}\n",
               n, s->depth, n / pass, 1e3 * pass, (unsigned long long)cache,
               (unsigned long long)device);
    else
        printf("%4d %10.1f %8.2f %9.2f %9.2f %10.1f", n, n / pass, n / pass / s->single, 1e3 * pass,
               1e3 * median_build(s), (double)cache / (1 << 20));
    if (s->text) printf(" %10.1f %10.2f", all, filled - begin);
    if (!s->json) puts("");
    fflush(stdout);
}

/* Open the model, in n_stage stages if that is not 0. */
static void open_model(struct setup *s, const char *path, lk_model_opts opts, int n_stage) {
    lk_err err = {0};
    if (n_stage > 0) opts.n_threads = 1;
    if (n_stage > 1) {
        s->ranks = ranks_start(n_stage, &s->cluster);
        bench_check(lk_cluster_set_stages(s->cluster, n_stage, &err), &err);
        bench_check(lk_model_open_cluster(&s->model, path, &opts, s->cluster, &err), &err);
    } else {
        bench_check(lk_model_open(&s->model, path, &opts, &err), &err);
    }
}

/* Read options into the setup and the model's; the number of arguments they take, or -1. */
static int read_options(int argc, char **argv, struct setup *s, lk_model_opts *opts, int *n_stage) {
    int at = 1;
    for (; at + 1 < argc && strncmp(argv[at], "--", 2) == 0; at += 2) {
        const char *value = argv[at + 1];
        if (strcmp(argv[at], "--prompts") == 0)
            s->text = value;
        else if (strcmp(argv[at], "--threads") == 0)
            opts->n_threads = (int)strtol(value, NULL, 10);
        else if (strcmp(argv[at], "--sidecar") == 0)
            opts->sidecar = value;
        else if (strcmp(argv[at], "--stages") == 0)
            *n_stage = (int)strtol(value, NULL, 10);
        else if (strcmp(argv[at], "--device") == 0)
            opts->device = value;
        else if (strcmp(argv[at], "--cache-device") == 0)
            opts->cache_device = value;
        else if (strcmp(argv[at], "--lines") == 0 && strcmp(value, "json") == 0)
            s->json = true;
        else
            return -1;
    }
    return at >= argc || argv[at][0] == '-' || *n_stage < 0 || *n_stage > 64 ? -1 : at - 1;
}

int main(int argc, char **argv) {
    lk_err err = {0};
    lk_model_opts opts = {0};
    struct setup s = {0};
    int n_stage = 0, n_word = read_options(argc, argv, &s, &opts, &n_stage);
    if (n_word < 0 || (s.json && s.text))
        return fprintf(stderr,
                       "usage: build/bench/batch [--prompts TEXT | --lines json] [--threads N] "
                       "[--sidecar FILE] [--stages N] [--device NAME] "
                       "[--cache-device NAME] MODEL [recipe [depth [steps [n...]]]]\n"),
               2;
    argc -= n_word, argv += n_word;
    s.depth = argc > 3 ? strtoul(argv[3], NULL, 10) : 4096;
    s.steps = argc > 4 ? (int)strtol(argv[4], NULL, 10) : 32;
    int most_steps =
        s.text ? MAX_STEPS : MAX_STEPS / 16; /* several measurements fill the same caches */
    if (s.depth < 1 || s.steps < 1 || s.steps > most_steps)
        return fprintf(stderr, "bench/batch: depth must be at least 1, steps 1 to %d\n",
                       most_steps),
               2;
    int n[16] = {1, 4, 16}, n_n = 3;
    for (int i = 5; i < argc && i < 21; i++, n_n = i - 5) n[i - 5] = (int)strtol(argv[i], NULL, 10);
    open_model(&s, argv[1], opts, n_stage);
    bench_check(lk_recipe_parse(&s.recipe, argc > 2 ? argv[2] : "best-3", &err), &err);
    bench_check(lk_batch_new(&s.batch, s.model, &err), &err);
    int most = 0;
    for (int i = 0; i < n_n; i++) {
        if (n[i] < 1 || n[i] > MAX_SESSIONS)
            return fprintf(stderr, "bench/batch: n must be 1 to %d\n", MAX_SESSIONS), 2;
        most = n[i] > most ? n[i] : most;
    }
    if (!s.json)
        printf("%s, %zu tokens each, %d threads, %s\n   n   tokens/s   of one   ms/pass  build ms  "
               "cache MiB%s\n",
               lk_recipe_text(s.recipe), s.depth, lk_model_get_info(s.model).n_threads,
               lk_model_get_info(s.model).kernels, s.text ? "  all tok/s  prompts s" : "");
    if (s.text)
        read_text(&s, most);
    else
        open_source(&s);
    for (int i = 0; i < n_n; i++) measure(&s, n[i]);
    free(s.tok);
    lk_session_free(s.source);
    lk_batch_free(s.batch);
    for (int i = 0; i < MAX_SESSIONS; i++) lk_session_free(s.session[i]);
    lk_recipe_free(s.recipe);
    lk_model_free(s.model);
    if (s.ranks) bench_check(ranks_end(s.ranks, &err), &err);
    return 0;
}
