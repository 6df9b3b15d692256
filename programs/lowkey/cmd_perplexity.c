/* lowkey perplexity: recipes compared with the full cache on a text. */
#include "auto_recipe.h"
#include "cmd.h"
#include "common.h"
#include "lowkey_lab.h"
#include "output.h"
#include "progress.h"
#include "table.h"
#include "text.h"
#include "xalloc.h"

#include <stdlib.h>

struct perplexity_args {
    struct model_args model;
    struct string_list kv;
    const char *file;
    int64_t ctx, chunks, score, step;
    bool prompt, json;
};

static int read_args(const struct command *command, int argc, char **argv,
                     struct perplexity_args *a) {
    const struct opt_group groups[] = {
        {"What to compare",
         {
             {'f', "file", "FILE", "the text; -: standard input", OPT_TEXT, &a->file},
             {'k', "kv", "RECIPE", "preset, recipe or file; may be repeated (default best-3)",
              OPT_TEXTS, &a->kv},
             {'c', "ctx", "N", "tokens of a chunk (default 4096)", OPT_INT, &a->ctx, 4, 1 << 24},
             {0, "chunks", "N", "number of chunks (default: all of the text)", OPT_INT, &a->chunks,
              1, 1 << 24},
             {0, "score", "N",
              "predictions to score at the end of a chunk (default: its second half)", OPT_INT,
              &a->score, 1, 1 << 24},
             {0, "prompt", NULL,
              "prefill the tokens before them once for all recipes: faster at long contexts",
              OPT_FLAG, &a->prompt},
             {0, "step", "N",
              "tokens evaluated at a time (default 32); 1 is as exact as decoding, and slow",
              OPT_INT, &a->step, 1, LK_EVAL_MAX},
             {0, "json", NULL, "print JSON", OPT_FLAG, &a->json},
         }},
        model_options(&a->model, MODEL_RUN),
    };
    return args_read(command, groups, sizeof groups / sizeof groups[0], argc, argv, NULL);
}

static int print_json(const struct recipes *recipes, const lk_compare_result *result,
                      const lk_model *model, int64_t n_ctx, size_t n_tok) {
    json_t *list = json_array();
    char *name = model_name(model);
    for (size_t i = 0; i < recipes->n; i++) {
        const lk_compare_result *r = &result[i];
        json_array_append_new(
            list,
            json_pack("{s:s s:o s:o s:o s:o s:o s:o s:o s:o s:o s:o s:o s:o s:o s:I s:o}", "kv",
                      lk_recipe_text(recipes->item[i]), "ppl", json_number(r->ppl), "kl_mean",
                      json_number(r->kl_mean), "kl_median", json_number(r->kl_median), "kl_p99",
                      json_number(r->kl_p99), "kl_p999", json_number(r->kl_p999), "top1",
                      json_number(r->top1), "bytes_per_token", json_number(r->bytes_per_token),
                      "bits_per_value", json_number(r->bits_per_value), "ppl_stderr",
                      json_number(r->ppl_stderr), "kl_stderr", json_number(r->kl_stderr),
                      "ppl_chunk_stderr", json_number(r->ppl_chunk_stderr), "kl_chunk_stderr",
                      json_number(r->kl_chunk_stderr), "tokens_per_second",
                      json_number(r->tokens_per_second), "n_scored", (json_int_t)r->n_scored,
                      "bits_with_sidecar", json_number(r->bits_with_sidecar)));
    }
    int done = json_print(json_pack("{s:s s:I s:I s:o}", "model", name, "n_ctx", (json_int_t)n_ctx,
                                    "n_tok", (json_int_t)n_tok, "results", list),
                          false);
    free(name);
    return done;
}

static void print_table(const struct recipes *recipes, const lk_compare_result *result,
                        bool adapted) {
    char b[NUMBER_BUF];
    bool sidecar = false, chunks = false;
    for (size_t i = 0; i < recipes->n; i++) {
        sidecar = sidecar || result[i].bits_with_sidecar > result[i].bits_per_value;
        chunks = chunks || result[i].ppl_chunk_stderr > 0;
    }
    static const char *const columns[2][2] = {{"lrRrRRRrRrR", "lrRrRRRrRrRr"},
                                              {"lrRRrRRRRrRrR", "lrRRrRRRRrRrRr"}};
    struct table table = table_new(columns[chunks][sidecar]);
    table_titles(&table, chunks ? "recipe|ppl|+-|by chunk|KL mean|+-|by chunk"
                                : "recipe|ppl|+-|KL mean|+-");
    table_titles(&table, "KL p99|KL p99.9|same top|B/token|bits/value|tokens/s");
    if (sidecar) table_cell(&table, "+ sidecar");
    for (size_t i = 0; i < recipes->n; i++) {
        const lk_compare_result *r = &result[i];
        table_cell(&table, "%s", recipes->name[i]);
        table_cell(&table, "%.4f", r->ppl);
        table_cell(&table, "%.4f", r->ppl_stderr);
        if (chunks) table_cell(&table, "%.4f", r->ppl_chunk_stderr);
        table_cell(&table, "%.6f", r->kl_mean);
        table_cell(&table, "%.6f", r->kl_stderr);
        if (chunks) table_cell(&table, "%.6f", r->kl_chunk_stderr);
        table_cell(&table, "%.5f", r->kl_p99);
        table_cell(&table, "%.5f", r->kl_p999);
        table_cell(&table, "%.2f%%", 100.0 * r->top1);
        table_cell(&table, "%s", format_count(b, (uint64_t)(r->bytes_per_token + 0.5)));
        table_cell(&table, "%.2f", r->bits_per_value);
        table_cell(&table, "%.1f", r->tokens_per_second);
        if (sidecar) table_cell(&table, "%.2f", r->bits_with_sidecar);
    }
    table_print(&table, stdout, 1);
    if (!recipes->n) return;
    putchar('\n');
    print_paragraph(stdout,
                    "%s predictions; KL(%s || recipe) in nats; +-: standard error over "
                    "predictions%s; bits/value: everything the cache holds counted%s",
                    format_count(b, result[0].n_scored),
                    adapted ? "full cache of the model without adapters" : "full cache",
                    chunks ? ", by chunk: between the means of chunks" : "",
                    sidecar ? "; + sidecar: with what one session needs of the sidecar, which "
                              "sessions share"
                            : "");
}

/* reference: the model without adapters, or NULL if `model` has none. */
static int compare(const struct perplexity_args *a, lk_model *model, lk_model *reference,
                   const struct recipes *recipes, const int32_t *tok, size_t n_tok) {
    lk_err err = {0};
    lk_compare_result result[MAX_LIST] = {{0}};
    struct progress progress = progress_start("comparing");
    lk_compare_opts opts = {.n_ctx = (int32_t)a->ctx,
                            .n_chunk = (int32_t)a->chunks,
                            .n_scored = (int32_t)a->score,
                            .n_step = (int32_t)a->step,
                            .prompt = a->prompt,
                            .progress = progress_step,
                            .user = &progress,
                            .reference = reference};
    char have[NUMBER_BUF], need[NUMBER_BUF];
    if (n_tok < (size_t)a->ctx)
        return print_error(
            "the text has %s tokens, fewer than a chunk of %s; give a longer text or a "
            "smaller --ctx",
            format_count(have, n_tok), format_count(need, (uint64_t)a->ctx));
    warn_beyond_training(model, a->ctx);
    lk_status status = lk_compare(model, (const lk_recipe *const *)recipes->item, recipes->n, tok,
                                  n_tok, &opts, result, &err);
    progress_end(&progress);
    if (status) return print_lk_error(&err);
    if (a->json) return print_json(recipes, result, model, a->ctx, n_tok);
    print_table(recipes, result, reference != NULL);
    return STATUS_OK;
}

/* The model without its sidecar. */
static int open_original(const struct perplexity_args *a, lk_model **out) {
    struct model_args original = a->model;
    original.sidecar = NULL;
    return model_open(&original, false, out);
}

int cmd_perplexity(const struct command *command, int argc, char **argv) {
    struct perplexity_args a = {.model.cluster = command->cluster, .ctx = 4096};
    struct recipes recipes = {0};
    lk_model *model = NULL, *reference = NULL;
    struct tokens tok = {0};
    struct lk_buf text = {0};
    int read = read_args(command, argc, argv, &a);
    if (read != ARGS_RUN) return read;
    if (!a.file) return print_error("no text: give -f FILE");
    int status = recipes_open(&a.kv, "best-3", &recipes);
    if (!status) status = read_text(a.file, &text);
    if (!status) status = model_open(&a.model, false, &model);
    if (!status) status = auto_recipes_open(&a.model, model, &recipes);
    if (!status) status = tokenize_text(model, &text, &tok);
    if (!status && lk_model_get_info(model).is_adapted) status = open_original(&a, &reference);
    if (!status) status = compare(&a, model, reference, &recipes, tok.at, tok.n);
    free(tok.at);
    lk_buf_free(&text);
    lk_model_free(reference);
    lk_model_free(model);
    recipes_free(&recipes);
    return status;
}
