/* Continue a text with greedy sampling and a compressed cache.
 *
 *   generate MODEL.gguf RECIPE N_TOKENS "text"
 *   generate MODEL.gguf best-3 100 "The three things to know about tides are"
 */
#include <lowkey.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Everything that has to be freed, in the order of creation. */
struct run {
    lk_model *model;
    lk_recipe *recipe;
    lk_session *session;
    lk_sampler *sampler;
    int32_t *tok;
};

static lk_status prepare(struct run *run, const char *path, const char *recipe, lk_err *err) {
    lk_status status;
    if ((status = lk_recipe_parse(&run->recipe, recipe, err))) return status;
    if ((status = lk_model_open(&run->model, path, NULL, err))) return status;
    if ((status = lk_session_new(&run->session, run->model, run->recipe, NULL, err))) return status;

    return lk_sampler_new(&run->sampler, run->model, NULL, err); /* the default is greedy */
}

static lk_status generate(struct run *run, const char *text, long n_new, lk_err *err) {
    size_t n_tok;
    lk_status status;
    if ((status = lk_tokenize(run->model, text, strlen(text), LK_TOKENIZE_BEGIN, 0, &run->tok,
                              &n_tok, err)))
        return status;
    if ((status = lk_session_sync(run->session, run->tok, n_tok, NULL, err))) return status;

    for (long i = 0; i < n_new; i++) {
        int32_t next;
        if ((status = lk_sampler_next(run->sampler, run->session, -1, &next, err))) return status;
        if (lk_token_ends(run->model, next)) break;

        size_t len;
        const char *piece = lk_token_text(run->model, next, &len);
        fwrite(piece, 1, len, stdout);
        fflush(stdout);
        if ((status = lk_session_eval(run->session, &next, 1, false, err))) return status;
    }
    putchar('\n');
    return LK_OK;
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: generate MODEL.gguf RECIPE N_TOKENS TEXT    (lowkey %s)\n",
                lk_version());
        return 2;
    }
    struct run run = {0};
    lk_err err = {0};
    lk_status status = prepare(&run, argv[1], argv[2], &err);
    if (!status) status = generate(&run, argv[4], strtol(argv[3], NULL, 10), &err);
    if (status) {
        fprintf(stderr, "generate: %s\n", err.msg);
    } else {
        lk_session_stats stats = lk_session_get_stats(run.session);
        fprintf(stderr, "%llu tokens, %llu bytes of cache, %.2f bits per value\n",
                (unsigned long long)stats.n_tok, (unsigned long long)stats.cache_bytes,
                stats.bits_per_value);
    }
    lk_tokens_free(run.tok);
    lk_sampler_free(run.sampler);
    lk_session_free(run.session);
    lk_model_free(run.model);
    lk_recipe_free(run.recipe);
    return status ? 1 : 0;
}
