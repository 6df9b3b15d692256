/* How much does a compressed cache change the predictions on a text? Compare two recipes.
 *
 *   score MODEL.gguf TEXT_FILE RECIPE RECIPE
 *   score MODEL.gguf book.txt best-4 best-3
 */
#include <lowkey_lab.h>

#include <stdio.h>
#include <stdlib.h>

enum { N_CTX = 1024, N_CHUNK = 2, N_RECIPE = 2, MAX_TEXT = 64 * 1024 * 1024 };

/* The contents of a file, *len bytes, or NULL. To be freed. */
static char *read_file(const char *path, size_t *len) {
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    if (!file) return NULL;
    if (fseek(file, 0, SEEK_END) == 0) {
        long size = ftell(file);
        if (size >= 0 && size <= MAX_TEXT) text = malloc((size_t)size + 1);
        rewind(file);
        *len = text ? fread(text, 1, (size_t)size, file) : 0;
    }
    fclose(file);
    return text;
}

static lk_status score(lk_model *model, lk_recipe *const *recipe, const char *text, size_t len,
                       lk_err *err) {
    int32_t *tok;
    size_t n_tok;
    lk_status status = lk_tokenize(model, text, len, LK_TOKENIZE_BEGIN, 0, &tok, &n_tok, err);
    if (status) return status;

    lk_compare_opts opts = {.n_ctx = N_CTX, .n_chunk = N_CHUNK};
    lk_compare_result result[N_RECIPE];
    status = lk_compare(model, (const lk_recipe *const *)recipe, N_RECIPE, tok, n_tok, &opts,
                        result, err);
    lk_tokens_free(tok);
    if (status) return status;

    printf("%-24s %10s %10s %8s %10s\n", "recipe", "KL", "perplexity", "top-1", "bits/value");
    for (int i = 0; i < N_RECIPE; i++) {
        printf("%-24s %10.5f %10.3f %7.1f%% %10.2f\n", lk_recipe_text(recipe[i]), result[i].kl_mean,
               result[i].ppl, 100 * result[i].top1, result[i].bits_per_value);
    }
    return LK_OK;
}

int main(int argc, char **argv) {
    if (argc != 3 + N_RECIPE) {
        fprintf(stderr, "usage: score MODEL.gguf TEXT_FILE RECIPE RECIPE    (lowkey %s)\n",
                lk_version());
        return 2;
    }
    size_t len;
    char *text = read_file(argv[2], &len);
    if (!text) {
        fprintf(stderr, "score: cannot read %s\n", argv[2]);
        return 1;
    }
    lk_err err = {0};
    lk_model *model = NULL;
    lk_recipe *recipe[N_RECIPE] = {NULL};
    lk_status status = LK_OK;
    for (int i = 0; i < N_RECIPE && !status; i++)
        status = lk_recipe_parse(&recipe[i], argv[3 + i], &err);
    if (!status) status = lk_model_open(&model, argv[1], NULL, &err);
    if (!status) status = score(model, recipe, text, len, &err);
    if (status) fprintf(stderr, "score: %s\n", err.msg);

    lk_model_free(model);
    for (int i = 0; i < N_RECIPE; i++) lk_recipe_free(recipe[i]);
    free(text);
    return status ? 1 : 0;
}
