/* Recipes that let rows go, on a text, token by token as a decoder reads it, against the full cache:
 *
 *   less [--f32] [-t N] [-c CTX] [-n CHUNKS] MODEL TEXT RECIPE... [--sidecar FILE RECIPE...]...
 *
 * Recipes that say 'absorb less' use the sidecar named before them. All sessions read the same token in one
 * pass over the weights, so many recipes cost little more than one. Chunks of CTX tokens (default 4096) come
 * from all over the text; the second half of each is scored, as `lowkey perplexity` does.
 *
 * Prints a line for each recipe: perplexity, its standard error, KL and its standard error, the share of
 * predictions that agree, bytes of the cache, of the states in it, and of the networks; tab-separated. */
#include "engine/engine.h"
#include "offline/compare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64, MOST_SIDECARS = 8 };

struct run {
    lk_model             *model;
    lk_batch             *batch;
    struct lk_sidecar    *sidecar[MOST_SIDECARS];
    lk_recipe            *recipe[MOST];
    lk_session           *session[MOST];  /* the full cache first                      */
    struct lk_prediction *score[MOST];    /* [n_chunk][lk_compare_scored(n_ctx)]       */
    struct lk_ledger      ledger;
    size_t                n, n_sidecar, n_vocab, n_ctx, n_chunk;
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

static lk_status open_sidecar(struct run *r, const char *path, lk_err *err) {
    const struct lk_hparams *hp = &r->model->net->hp;
    struct lk_sidecar_model of = {r->model->net->fingerprint, hp->n_layer, hp->n_head_kv, hp->d_head};
    if (r->n_sidecar == MOST_SIDECARS) return lk_fail(err, LK_E_ARG, "at most %d sidecars are possible", MOST_SIDECARS);
    lk_status status = lk_sidecar_open(&r->sidecar[r->n_sidecar], path, &of, &r->ledger, err);
    if (status == LK_OK) r->n_sidecar++;
    return status;
}

static lk_status open_session(struct run *r, const char *recipe, lk_err *err) {
    lk_session_opts opts = {.n_ctx = (int32_t)r->n_ctx};
    if (r->n == MOST) return lk_fail(err, LK_E_ARG, "at most %d recipes are possible", MOST - 1);
    lk_status status = lk_recipe_parse(&r->recipe[r->n], recipe, err);
    if (status == LK_OK) status = lk_session_new(&r->session[r->n], r->model, r->recipe[r->n], &opts, err);
    if (status == LK_OK && r->recipe[r->n]->absorbs && r->n_sidecar) status = lk_session_absorb(r->session[r->n], r->sidecar[r->n_sidecar - 1], err);
    r->score[r->n] = malloc(r->n_chunk * lk_compare_scored(r->n_ctx) * sizeof *r->score[r->n]);
    r->n++;
    return status;
}

static lk_status read_chunk(struct run *r, size_t chunk, const int32_t *tok, float *work, lk_err *err) {
    lk_batch_item item[MOST];
    size_t half = r->n_ctx / 2, from = chunk * lk_compare_scored(r->n_ctx);
    for (size_t i = 0; i < r->n; i++) lk_session_clear(r->session[i]);
    for (size_t pos = 0; pos + 1 < r->n_ctx; pos++) {
        for (size_t i = 0; i < r->n; i++) item[i] = (lk_batch_item){.session = r->session[i], .tok = tok + pos, .n_tok = 1};
        lk_status status = lk_batch_eval(r->batch, item, r->n, err);
        for (size_t i = 0; i < r->n; i++) {
            if (status == LK_OK && item[i].err.code != LK_OK) *err = item[i].err, status = err->code;
            if (status != LK_OK) return status;
            float *mine = i ? work + r->n_vocab : work;
            if (pos >= half) r->score[i][from + pos - half] = lk_compare_score(lk_session_logits(r->session[i], -1), r->n_vocab, tok[pos + 1], work, mine);
        }
    }
    return LK_OK;
}

static lk_status compare(struct run *r, const int32_t *tok, size_t n_tok, lk_err *err) {
    size_t have = n_tok / r->n_ctx;
    float *work = malloc(2 * r->n_vocab * sizeof *work);
    int32_t *chunk = malloc(r->n_ctx * sizeof *chunk);
    lk_status status = lk_batch_new(&r->batch, r->model, err);
    for (size_t c = 0; status == LK_OK && c < r->n_chunk; c++) {
        memcpy(chunk, tok + c * have / r->n_chunk * r->n_ctx, r->n_ctx * sizeof *chunk);
        lk_compare_begin(r->model, chunk);
        status = read_chunk(r, c, chunk, work, err);
    }
    lk_batch_free(r->batch);
    free(work), free(chunk);
    return status;
}

static void print(struct run *r) {
    for (size_t i = 0; i < r->n; i++) {
        lk_compare_result c = lk_compare_summarise(r->score[i], r->n_chunk * lk_compare_scored(r->n_ctx));
        lk_session_stats s = lk_session_get_stats(r->session[i]);
        printf("%.4f\t%.4f\t%.5f\t%.5f\t%.4f\t%llu\t%llu\t%zu\t%s\n", c.ppl, c.ppl_stderr, c.kl_mean, c.kl_stderr, c.top1,
               (unsigned long long)s.cache_bytes, (unsigned long long)s.state_bytes,
               r->session[i]->absorb ? lk_absorb_kernel_bytes(r->session[i]->absorb) : 0, lk_recipe_text(r->recipe[i]));
    }
}

static int usage(void) {
    fprintf(stderr, "usage: less [--f32] [-t N] [-c CTX] [-n CHUNKS] MODEL TEXT RECIPE... [--sidecar FILE RECIPE...]...\n");
    return 2;
}

int main(int argc, char **argv) {
    struct run r = {.n_ctx = 4096, .n_chunk = 1};
    lk_model_opts opts = {.n_threads = 1};
    int a = 1;
    for (; a < argc && argv[a][0] == '-'; a++) {
        if (!strcmp(argv[a], "--f32")) opts.weights = LK_WEIGHTS_F32;
        else if (a + 1 == argc) return usage();
        else if (!strcmp(argv[a], "-t")) opts.n_threads = atoi(argv[++a]);
        else if (!strcmp(argv[a], "-c")) r.n_ctx = (size_t)atoi(argv[++a]);
        else if (!strcmp(argv[a], "-n")) r.n_chunk = (size_t)atoi(argv[++a]);
        else return usage();
    }
    if (argc - a < 3) return usage();
    lk_err err = {0};
    size_t len, n_tok;
    int32_t *tok;
    char *text = read_text(argv[a + 1], &len);
    if (!text) return fprintf(stderr, "cannot read %s\n", argv[a + 1]), 1;
    if (lk_model_open(&r.model, argv[a], &opts, &err) || lk_tokenize(r.model, text, len, false, &tok, &n_tok, &err)) return complain(&err);
    if (r.n_ctx < 4 || r.n_chunk < 1 || n_tok / r.n_ctx < r.n_chunk) return fprintf(stderr, "the text has %zu tokens\n", n_tok), 1;
    r.n_vocab = (size_t)lk_model_get_info(r.model).n_vocab;
    if (open_session(&r, "f16", &err)) return complain(&err);
    for (a += 2; a < argc; a++) {
        bool sidecar = !strcmp(argv[a], "--sidecar") && a + 1 < argc;
        if (sidecar ? open_sidecar(&r, argv[++a], &err) : open_session(&r, argv[a], &err)) return complain(&err);
    }
    if (compare(&r, tok, n_tok, &err)) return complain(&err);
    print(&r);
    for (size_t i = 0; i < r.n; i++) lk_session_free(r.session[i]), lk_recipe_free(r.recipe[i]), free(r.score[i]);
    for (size_t i = 0; i < r.n_sidecar; i++) lk_sidecar_close(r.sidecar[i]);
    lk_tokens_free(tok);
    lk_model_free(r.model);
    free(text);
    return 0;
}
