/* Quality of recipes with eviction compared with the full cache, on texts that are evaluated token
 * by token as in decoding.
 *
 *   build/bench/less [--f32] [--kernels NAME] [-t N] [-c CTX] [-f TEXT]... MODEL RECIPE...
 *              [--sidecar FILE RECIPE...]...
 *
 * Recipes with 'absorb less' use the sidecar given before them. The CTX tokens (default 4096) in
 * the middle of each text are evaluated, and the second half is scored as in `lowkey perplexity`.
 * All sessions of all texts make each step in one batch, so many cost little more than one.
 *
 * Prints one tab-separated line for each text and recipe: text, perplexity, its standard error, KL,
 * its standard error, top-1 agreement, bytes of the cache, of the states in it, of the networks,
 * recipe. */
#include "bench_support.h"
#include "engine/session_state.h"
#include "lowkey_lab.h"
#include "lowkey_serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RECIPES = 64, MAX_FILES = 8 };

/* A recipe on a text. */
struct trial {
    lk_session *session;
    struct lk_prediction *score; /* [lk_compare_n_scored(n_ctx)] */
};

struct run {
    lk_model *model;
    struct lk_sidecar *sidecar[MAX_FILES];
    struct lk_sidecar *recipe_sidecar[MAX_RECIPES]; /* of recipe i, or NULL */
    const char *path[MAX_FILES];
    int32_t *tok[MAX_FILES];        /* [n_ctx] of each text */
    lk_recipe *recipe[MAX_RECIPES]; /* [0] is the full cache */
    struct trial trial[MAX_FILES][MAX_RECIPES];
    struct lk_ledger ledger;
    size_t n_text, n_recipe, n_sidecar, n_vocab, n_ctx;
};

static int print_error(const lk_err *err) {
    fprintf(stderr, "%s\n", err->msg);
    return 1;
}

/* Read the tokens in the middle of text i. */
static lk_status read_tokens(struct run *r, size_t i, lk_err *err) {
    size_t len, n = 0;
    int32_t *tok = NULL;
    char *text = bench_read_file(r->path[i], &len);
    if (!text) return lk_fail(err, LK_E_IO, "cannot read %s", r->path[i]);
    lk_status status = lk_tokenize(r->model, text, len, 0, 0, &tok, &n, err);
    free(text);
    if (!status && n < r->n_ctx)
        status = lk_fail(err, LK_E_ARG, "%s has only %zu tokens", r->path[i], n);
    if (!status) {
        r->tok[i] = malloc(r->n_ctx * sizeof **r->tok);
        memcpy(r->tok[i], tok + (n - r->n_ctx) / 2, r->n_ctx * sizeof *tok);
        lk_compare_set_bos(r->model, r->tok[i]);
    }
    lk_tokens_free(tok);
    return status;
}

static lk_status open_sidecar(struct run *r, const char *path, lk_err *err) {
    const struct lk_hparams *hp = &r->model->net->hp;
    struct lk_sidecar_model of = {r->model->net->fingerprint, hp->n_layer, hp->n_head_kv,
                                  hp->d_head};
    if (r->n_sidecar == MAX_FILES)
        return lk_fail(err, LK_E_ARG, "too many sidecars; at most %d are allowed", MAX_FILES);
    lk_status status = lk_sidecar_open(&r->sidecar[r->n_sidecar], path, &of, &r->ledger, err);
    if (!status) r->n_sidecar++;
    return status;
}

static lk_status add_recipe(struct run *r, const char *text, lk_err *err) {
    if (r->n_recipe == MAX_RECIPES)
        return lk_fail(err, LK_E_ARG, "too many recipes; at most %d are allowed", MAX_RECIPES - 1);
    r->recipe_sidecar[r->n_recipe] = r->n_sidecar ? r->sidecar[r->n_sidecar - 1] : NULL;
    lk_status status = lk_recipe_parse(&r->recipe[r->n_recipe], text, err);
    if (!status) r->n_recipe++;
    return status;
}

static lk_status open_trials(struct run *r, lk_err *err) {
    lk_session_opts opts = {.n_ctx = (int32_t)r->n_ctx};
    lk_status status = LK_OK;
    for (size_t t = 0; t < r->n_text; t++)
        for (size_t i = 0; !status && i < r->n_recipe; i++) {
            struct trial *trial = &r->trial[t][i];
            trial->score = malloc(lk_compare_n_scored(r->n_ctx) * sizeof *trial->score);
            status = lk_session_new(&trial->session, r->model, r->recipe[i], &opts, err);
            if (!status && r->recipe[i]->absorbs && r->recipe_sidecar[i])
                status = lk_session_enable_absorb(trial->session, r->recipe_sidecar[i], err);
        }
    return status;
}

static void score_step(struct run *r, size_t pos, float *work) {
    for (size_t t = 0; t < r->n_text; t++)
        for (size_t i = 0; i < r->n_recipe; i++)
            r->trial[t][i].score[pos - r->n_ctx / 2] =
                lk_compare_score(lk_session_logits(r->trial[t][i].session, -1), r->n_vocab,
                                 r->tok[t][pos + 1], work, i ? work + r->n_vocab : work);
}

static lk_status eval_texts(struct run *r, lk_batch *batch, float *work, lk_err *err) {
    lk_batch_entry *item = malloc(r->n_text * r->n_recipe * sizeof *item);
    lk_status status = LK_OK;
    for (size_t pos = 0; !status && pos + 1 < r->n_ctx; pos++) {
        size_t n = 0;
        for (size_t t = 0; t < r->n_text; t++)
            for (size_t i = 0; i < r->n_recipe; i++)
                item[n++] = (lk_batch_entry){
                    .session = r->trial[t][i].session, .tok = r->tok[t] + pos, .n_tok = 1};
        status = lk_batch_eval(batch, item, n, err);
        for (size_t k = 0; !status && k < n; k++)
            if (item[k].err.code) status = lk_fail(err, item[k].err.code, "%s", item[k].err.msg);
        if (!status && pos >= r->n_ctx / 2) score_step(r, pos, work);
        if (pos % 256 == 0) fprintf(stderr, "%zu of %zu\n", pos, r->n_ctx);
    }
    free(item);
    return status;
}

static void print_results(const struct run *r) {
    for (size_t t = 0; t < r->n_text; t++)
        for (size_t i = 0; i < r->n_recipe; i++) {
            const struct lk_session *session = r->trial[t][i].session;
            lk_compare_result c =
                lk_compare_summarize(r->trial[t][i].score, lk_compare_n_scored(r->n_ctx), 1);
            lk_session_stats s = lk_session_get_stats(session);
            printf("%s\t%.4f\t%.4f\t%.4g\t%.4g\t%.4f\t%llu\t%llu\t%zu\t%s\n", r->path[t], c.ppl,
                   c.ppl_stderr, c.kl_mean, c.kl_stderr, c.top1, (unsigned long long)s.cache_bytes,
                   (unsigned long long)s.state_bytes,
                   session->absorb ? lk_absorb_map_bytes(session->absorb) : 0,
                   lk_recipe_text(r->recipe[i]));
        }
}

static void free_run(struct run *r) {
    for (size_t t = 0; t < r->n_text; t++) {
        for (size_t i = 0; i < r->n_recipe; i++)
            lk_session_free(r->trial[t][i].session), free(r->trial[t][i].score);
        free(r->tok[t]);
    }
    for (size_t i = 0; i < r->n_recipe; i++) lk_recipe_free(r->recipe[i]);
    for (size_t i = 0; i < r->n_sidecar; i++) lk_sidecar_close(r->sidecar[i]);
    lk_model_free(r->model);
}

static lk_status run(struct run *r, const char *model, const lk_model_opts *opts, char **arg,
                     int n_arg, lk_err *err) {
    lk_status status = lk_model_open(&r->model, model, opts, err);
    if (!status) r->n_vocab = (size_t)lk_model_get_info(r->model).n_vocab;
    for (size_t i = 0; !status && i < r->n_text; i++) status = read_tokens(r, i, err);
    if (!status) status = add_recipe(r, "f16", err);
    for (int a = 0; !status && a < n_arg; a++) {
        bool sidecar = !strcmp(arg[a], "--sidecar") && a + 1 < n_arg;
        status = sidecar ? open_sidecar(r, arg[++a], err) : add_recipe(r, arg[a], err);
    }
    if (!status) status = open_trials(r, err);
    lk_batch *batch = NULL;
    float *work = malloc(2 * r->n_vocab * sizeof *work);
    if (!status) status = lk_batch_new(&batch, r->model, err);
    if (!status) status = eval_texts(r, batch, work, err);
    lk_batch_free(batch);
    free(work);
    return status;
}

int main(int argc, char **argv) {
    static struct run r = {.n_ctx = 4096};
    lk_model_opts opts = {.n_threads = 1};
    lk_err err = {0};
    int a = 1;
    for (; a < argc && argv[a][0] == '-'; a++) {
        if (!strcmp(argv[a], "--f32"))
            opts.weights = LK_WEIGHTS_F32;
        else if (!strcmp(argv[a], "--kernels") && a + 1 < argc)
            opts.kernels = argv[++a];
        else if (!strcmp(argv[a], "-t") && a + 1 < argc)
            opts.n_threads = atoi(argv[++a]);
        else if (!strcmp(argv[a], "-c") && a + 1 < argc)
            r.n_ctx = (size_t)atoi(argv[++a]);
        else if (!strcmp(argv[a], "-f") && a + 1 < argc && r.n_text < MAX_FILES)
            r.path[r.n_text++] = argv[++a];
        else
            break;
    }
    if (argc - a < 2 || argv[a][0] == '-' || r.n_text == 0 || r.n_ctx < 4)
        return fprintf(
                   stderr,
                   "usage: build/bench/less [--f32] [--kernels NAME] [-t N] [-c CTX] [-f TEXT]... "
                   "MODEL RECIPE... [--sidecar FILE RECIPE...]...\n"),
               2;
    lk_status status = run(&r, argv[a], &opts, argv + a + 1, argc - a - 1, &err);
    if (!status) print_results(&r);
    free_run(&r);
    return status ? print_error(&err) : 0;
}
