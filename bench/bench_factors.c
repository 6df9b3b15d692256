/* Speed, size and quality of a model whose W_K and W_V are replaced by factors.
 *
 *   build/bench/factors MODEL SIDECAR TEXT [recipe [rounds]]
 *
 * The recipe stores latents of K before RoPE and of V, without 'eager'. Default:
 * 'k=latent(pre) v=latent', 3 rounds. Compares f16, the recipe, the recipe with 'eager', and the
 * same with --factors kv, on one thread: CPU seconds of a prompt of 512 tokens and of 64 steps
 * after one token, the best of the rounds, which alternate. Weights are copied, not mapped, so that
 * all of them count. Then KL(f16 || other) of the last 128
 * of 512 tokens, in chunks of 32 after a prompt of 384. */
#include "base/clock.h"
#include "bench_support.h"
#include "lowkey.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIGS = 4, PREFILL = 512, STEPS = 64, SCORED = 128, CHUNK = 32 };

struct config {
    const char *name;
    lk_model *model;
    lk_recipe *recipe;
    lk_session *session;
    double prefill, decode; /* CPU seconds */
    double kl, kl_error;
};

static lk_model *open_model(const char *path, const char *sidecar, unsigned factors) {
    lk_err err = {0};
    lk_model *model;
    lk_model_opts opts = {.n_threads = 1, .no_mmap = true, .sidecar = sidecar, .factors = factors};
    bench_check(lk_model_open(&model, path, &opts, &err), &err);
    return model;
}

static void add_config(struct config *c, const char *name, lk_model *model, const char *recipe,
                       const char *more) {
    lk_err err = {0};
    char text[1024];
    lk_session_opts opts = {.n_ctx = PREFILL};
    snprintf(text, sizeof text, "%s%s", recipe, more);
    *c = (struct config){.name = name, .model = model, .prefill = INFINITY, .decode = INFINITY};
    bench_check(lk_recipe_parse(&c->recipe, text, &err), &err);
    bench_check(lk_session_new(&c->session, model, c->recipe, &opts, &err), &err);
}

static void time_config(struct config *c, const int32_t *tok) {
    lk_err err = {0};
    lk_session_clear(c->session);
    double start = lk_process_cpu_seconds();
    bench_check(lk_session_sync(c->session, tok, PREFILL, NULL, &err), &err);
    c->prefill = fmin(c->prefill, lk_process_cpu_seconds() - start);
    lk_session_clear(c->session);
    bench_check(lk_session_sync(c->session, tok, 1, NULL, &err), &err);
    start = lk_process_cpu_seconds();
    for (int i = 1; i <= STEPS; i++)
        bench_check(lk_session_eval(c->session, tok + i, 1, false, &err), &err);
    c->decode = fmin(c->decode, lk_process_cpu_seconds() - start);
}

/* KL(p || q) of the distributions with these logits. */
static double divergence(const float *p, const float *q, int n) {
    double max_p = p[0], max_q = q[0], sum_p = 0, sum_q = 0, kl = 0;
    for (int i = 0; i < n; i++) max_p = fmax(max_p, p[i]), max_q = fmax(max_q, q[i]);
    for (int i = 0; i < n; i++) sum_p += exp(p[i] - max_p), sum_q += exp(q[i] - max_q);
    double shift = max_q + log(sum_q) - max_p - log(sum_p);
    for (int i = 0; i < n; i++)
        kl += exp(p[i] - max_p) / sum_p * ((double)p[i] - (double)q[i] + shift);
    return kl;
}

/* Compare config 0 with all others, token by token. */
static void compare_configs(struct config *c, const int32_t *tok) {
    enum { PROMPT = PREFILL - SCORED };
    lk_err err = {0};
    int n_vocab = lk_model_get_info(c->model).n_vocab;
    double squares[CONFIGS] = {0};
    for (int k = 0; k < CONFIGS; k++)
        bench_check(lk_session_sync(c[k].session, tok, PROMPT, NULL, &err), &err);
    for (int at = PROMPT; at < PREFILL; at += CHUNK)
        for (int k = 0; k < CONFIGS; k++) {
            bench_check(lk_session_eval(c[k].session, tok + at, CHUNK, true, &err), &err);
            for (int i = 0; i < CHUNK; i++) {
                double kl = divergence(lk_session_logits(c->session, i),
                                       lk_session_logits(c[k].session, i), n_vocab);
                c[k].kl += kl / SCORED;
                squares[k] += kl * kl / SCORED;
            }
        }
    for (int k = 0; k < CONFIGS; k++)
        c[k].kl_error = sqrt(fmax(0, squares[k] - c[k].kl * c[k].kl) / SCORED);
}

int main(int argc, char **argv) {
    if (argc < 4)
        return fprintf(stderr, "usage: build/bench/factors MODEL SIDECAR TEXT [recipe [rounds]]\n"),
               2;
    const char *recipe = argc > 4 ? argv[4] : "k=latent(pre) v=latent";
    int rounds = argc > 5 ? atoi(argv[5]) : 3;
    lk_model *plain = open_model(argv[1], argv[2], 0),
             *factored = open_model(argv[1], argv[2], LK_FACTORS_K | LK_FACTORS_V);
    struct config c[CONFIGS];
    size_t n_text;
    int32_t *tok = bench_read_tokens(plain, argv[3], 1 << 16, &n_text);
    if (!tok || n_text < PREFILL)
        return fprintf(stderr, "bench/factors: the text is too short\n"), 1;
    add_config(&c[0], "f16", plain, "f16", "");
    add_config(&c[1], "lazy", plain, recipe, "");
    add_config(&c[2], "eager", plain, recipe, "; eager");
    add_config(&c[3], "factors", factored, recipe, "; eager");
    for (int r = 0; r < rounds; r++)
        for (int k = 0; k < CONFIGS; k++) time_config(&c[k], tok);
    compare_configs(c, tok);
    printf("%s\n%-8s %12s %14s %14s %18s\n", recipe, "", "weights MiB", "prefill tok/s",
           "decode tok/s", "KL");
    for (int k = 0; k < CONFIGS; k++)
        printf("%-8s %12.2f %14.1f %14.1f %9.4f ± %.4f\n", c[k].name,
               (double)lk_model_get_info(c[k].model).weight_bytes / (1 << 20),
               PREFILL / c[k].prefill, STEPS / c[k].decode, c[k].kl, c[k].kl_error);
    for (int k = 0; k < CONFIGS; k++) {
        lk_session_free(c[k].session);
        lk_recipe_free(c[k].recipe);
    }
    lk_tokens_free(tok);
    lk_model_free(factored);
    lk_model_free(plain);
    return 0;
}
