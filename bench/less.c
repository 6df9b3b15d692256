/* Recipes with LESS's states on a text, against the full cache and against the same without states:
 *
 *   less [--f32] [-t N] [-s STEP] MODEL TEXT SIDECAR N_CTX N_CHUNK RECIPE...
 *
 * Chunks come from all over the text. The second half of each is scored, as `lowkey perplexity` does.
 * Recipes that say 'absorb less' use the sidecar. Prints a line for each recipe. */
#include "engine/engine.h"
#include "offline/compare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 16 };

struct run {
    lk_model          *model;
    struct lk_sidecar *sidecar;
    lk_recipe         *recipe[1 + MOST];
    lk_session        *session[1 + MOST];
    struct lk_predictor predictor[1 + MOST];
    struct lk_prediction *score[1 + MOST], *at[1 + MOST];
    struct lk_ledger   ledger;
    size_t             n, n_ctx, n_chunk, n_step;
};

static int complain(const lk_err *err) {
    fprintf(stderr, "%s\n", err->msg);
    return 1;
}

static char *read_text(const char *path, size_t *len) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    *len = (size_t)ftell(f);
    rewind(f);
    char *text = malloc(*len + 1);
    if (fread(text, 1, *len, f) != *len) *len = 0;
    fclose(f);
    return text;
}

static lk_status open_session(struct run *r, size_t i, const char *recipe, lk_err *err) {
    lk_session_opts opts = {.n_ctx = (int32_t)r->n_ctx};
    lk_status status = lk_recipe_parse(&r->recipe[i], recipe, err);
    if (!status) status = lk_session_new(&r->session[i], r->model, r->recipe[i], &opts, err);
    if (!status && r->recipe[i]->absorbs) status = lk_session_absorb(r->session[i], r->sidecar, err);
    if (!status) r->predictor[i] = lk_session_predictor(r->session[i]);
    r->score[i] = malloc(r->n_chunk * lk_compare_scored(r->n_ctx) * sizeof *r->score[i]);
    return status;
}

static lk_status compare(struct run *r, const int32_t *tok, size_t n_tok, lk_err *err) {
    size_t n_vocab = (size_t)lk_model_get_info(r->model).n_vocab, have = n_tok / r->n_ctx;
    float *work = malloc((r->n_step + 1) * n_vocab * sizeof *work);
    int32_t *chunk = malloc(r->n_ctx * sizeof *chunk);
    lk_status status = LK_OK;
    for (size_t c = 0; !status && c < r->n_chunk; c++) {
        memcpy(chunk, tok + c * have / r->n_chunk * r->n_ctx, r->n_ctx * sizeof *chunk);
        lk_compare_begin(r->model, chunk);
        for (size_t i = 0; i < r->n; i++) r->at[i] = r->score[i] + c * lk_compare_scored(r->n_ctx);
        status = lk_compare_chunk(r->predictor, r->n, n_vocab, chunk, r->n_ctx, r->n_step, work, r->at, NULL, NULL, err);
    }
    free(work), free(chunk);
    return status;
}

static void print(struct run *r) {
    size_t n = r->n_chunk * lk_compare_scored(r->n_ctx);
    for (size_t i = 0; i < r->n; i++) {
        lk_compare_result c = lk_compare_summarise(r->score[i], n);
        lk_session_stats s = lk_session_get_stats(r->session[i]);
        printf("ppl %8.4f  KL %.5f +- %.5f  top %5.2f%%  cache %8llu  state %7llu  networks %9zu  tok/s %6.1f  %s\n", c.ppl, c.kl_mean, c.kl_stderr,
               100 * c.top1, (unsigned long long)s.cache_bytes, (unsigned long long)s.state_bytes,
               r->session[i]->absorb ? lk_absorb_kernel_bytes(r->session[i]->absorb) : 0, (double)(r->n_chunk * r->n_ctx) / r->predictor[i].seconds,
               lk_recipe_text(r->recipe[i]));
    }
}

int main(int argc, char **argv) {
    struct run r = {.n = 1, .n_step = 32};
    lk_model_opts opts = {.n_threads = 2};
    int a = 1;
    for (; a < argc && argv[a][0] == '-'; a++) {
        if (!strcmp(argv[a], "--f32")) opts.weights = LK_WEIGHTS_F32;
        else if (!strcmp(argv[a], "-t") && a + 1 < argc) opts.n_threads = atoi(argv[++a]);
        else if (!strcmp(argv[a], "-s") && a + 1 < argc) r.n_step = (size_t)atoi(argv[++a]);
    }
    if (argc - a < 6 || argc - a > 5 + MOST) return fprintf(stderr, "usage: less [--f32] [-t N] [-s STEP] MODEL TEXT SIDECAR N_CTX N_CHUNK RECIPE...\n"), 2;
    lk_err err = {0};
    size_t len, n_tok;
    int32_t *tok;
    char *text = read_text(argv[a + 1], &len);
    r.n_ctx = (size_t)atoi(argv[a + 3]), r.n_chunk = (size_t)atoi(argv[a + 4]);
    if (!text) return fprintf(stderr, "cannot read %s\n", argv[a + 1]), 1;
    if (lk_model_open(&r.model, argv[a], &opts, &err) || lk_tokenize(r.model, text, len, false, &tok, &n_tok, &err)) return complain(&err);
    if (n_tok / r.n_ctx < r.n_chunk || r.n_chunk < 1) return fprintf(stderr, "the text has %zu chunks\n", n_tok / r.n_ctx), 1;
    const struct lk_hparams *hp = &r.model->net->hp;
    struct lk_sidecar_model of = {r.model->net->fingerprint, hp->n_layer, hp->n_head_kv, hp->d_head};
    if (lk_sidecar_open(&r.sidecar, argv[a + 2], &of, &r.ledger, &err) || open_session(&r, 0, "f16", &err)) return complain(&err);
    for (; a + 5 < argc; a++, r.n++)
        if (open_session(&r, r.n, argv[a + 5], &err)) return complain(&err);
    printf("%s\n", r.sidecar->info.options);
    if (compare(&r, tok, n_tok, &err)) return complain(&err);
    print(&r);
    for (size_t i = 0; i < r.n; i++) lk_session_free(r.session[i]), lk_recipe_free(r.recipe[i]), free(r.score[i]);
    lk_sidecar_close(r.sidecar);
    lk_tokens_free(tok);
    lk_model_free(r.model);
    free(text);
    return 0;
}
