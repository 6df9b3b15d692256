/* lowkey inspect: contents and errors of a cache by layer and level. */
#include "auto_recipe.h"
#include "base/atomic_file.h"
#include "cmd.h"
#include "common.h"
#include "lowkey_lab.h"
#include "output.h"
#include "progress.h"
#include "table.h"
#include "text.h"
#include "xalloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tokens to evaluate by default, and how many of them are decoded one by one. */
enum { DEFAULT_TOKENS = 2048, QUERIES = 32 };
enum { K, V }; /* sides of a holding */

struct inspect_args {
    struct model_args model;
    struct string_list kv;
    const char *file;
    int64_t ctx;
    bool layers, json;
};

static int read_args(const struct command *command, int argc, char **argv, struct inspect_args *a) {
    const struct opt_group groups[] = {
        {"What to inspect",
         {
             {'k', "kv", "RECIPE", KV_HELP, OPT_TEXTS, &a->kv, .complete = KV_WORDS},
             {'f', "file", "FILE",
              "the text; -: standard input (default: made-up sentences, whose errors say little "
              "about real texts)",
              OPT_TEXT, &a->file},
             {'c', "ctx", "N", "tokens to evaluate (default: 2048, or all of the text)", OPT_INT,
              &a->ctx, 2, 1 << 24},
             {0, "layers", NULL, "show every level of every layer", OPT_FLAG, &a->layers},
             {0, "json", NULL, "print JSON", OPT_FLAG, &a->json},
         }},
        model_options(&a->model, MODEL_RUN_ALONE),
    };
    return args_read(command, groups, sizeof groups / sizeof groups[0], argc, argv, NULL);
}

/* The tokens to evaluate, as many as --ctx says. */
static int find_tokens(const struct inspect_args *a, const lk_model *model, struct tokens *out) {
    struct lk_buf text = {0};
    char have[NUMBER_BUF], need[NUMBER_BUF];
    if (!a->file) make_sentences(&text, a->ctx ? (size_t)a->ctx : DEFAULT_TOKENS);
    int status = a->file ? read_tokens(model, a->file, out) : tokenize_text(model, &text, out);
    lk_buf_free(&text);
    if (status) return status;
    if (out->n < 2) return print_error("the text has fewer than 2 tokens; give a longer text");
    if ((size_t)a->ctx > out->n)
        return print_error(
            "the text has %s tokens, fewer than the %s of --ctx; give a longer text or "
            "a smaller --ctx",
            format_count(have, out->n), format_count(need, (uint64_t)a->ctx));
    if (a->ctx)
        out->n = (size_t)a->ctx;
    else if (out->n > DEFAULT_TOKENS)
        out->n = DEFAULT_TOKENS;
    return STATUS_OK;
}

/* ---- output ---- */

static void number_cell(struct table *table, const char *format, double value) {
    char text[NUMBER_BUF] = "-";
    if (isfinite(value)) snprintf(text, sizeof text, format, value);
    table_cell(table, "%s", text);
}

/* Codecs, rows, bits, errors and attention of K and V. */
static void holding_cells(struct table *table, const struct lk_holding side[2]) {
    char a[NUMBER_BUF];
    for (int s = 0; s < 2; s++) table_cell(table, "%s", side[s].codec[0] ? side[s].codec : "-");
    for (int s = 0; s < 2; s++) table_cell(table, "%s", format_count(a, (uint64_t)side[s].rows));
    for (int s = 0; s < 2; s++) number_cell(table, "%.2f", lk_holding_bits(&side[s]));
    table_cell(table, "%s", format_bytes(a, side[0].bytes + side[1].bytes));
    for (int s = 0; s < 2; s++) number_cell(table, "%.2g", lk_holding_error(&side[s]));
    number_cell(table, "%.1f%%", 100 * side[K].mass);
}

static void print_levels(const struct lk_inspection *in) {
    struct table table = table_new("lllRRrrrrrr");
    table_titles(&table, "level|K|V|K rows|V rows|K bits|V bits|bytes|K error|V error|attention");
    for (int k = 0; k < in->n_level; k++) {
        table_cell(&table, "%s", in->name[k]);
        holding_cells(&table, in->level[k]);
    }
    table_print(&table, stdout, true);
}

static void print_layer_levels(const struct lk_inspection *in) {
    struct table table = table_new("llllRRrrrrrr");
    table_titles(&table,
                 "layer|level|K|V|K rows|V rows|K bits|V bits|bytes|K error|V error|attention");
    for (int layer = 0; layer < in->n_layer; layer++) {
        for (int k = 0; k < in->n_level; k++) {
            const struct lk_holding *at = in->at[layer * in->n_level + k];
            if (!at[K].rows && !at[V].rows) continue;
            table_cell(&table, "%d", layer);
            table_cell(&table, "%s", in->name[k]);
            holding_cells(&table, at);
        }
    }
    table_print(&table, stdout, true);
}

/* Sum of all levels of a layer. */
static void sum_layer(const struct lk_inspection *in, int layer, struct lk_holding sum[2]) {
    memset(sum, 0, 2 * sizeof *sum);
    for (int k = 0; k < in->n_level; k++) {
        for (int s = 0; s < 2; s++) {
            const struct lk_holding *at = &in->at[layer * in->n_level + k][s];
            sum[s].bytes += at->bytes;
            sum[s].values += at->values;
            sum[s].error += at->error;
            sum[s].power += at->power;
        }
    }
}

static void print_layers(const struct lk_inspection *in) {
    struct table table = table_new("rrrrrrr");
    table_titles(&table, "layer|bytes|K bits|V bits|K error|V error|distance");
    for (int layer = 0; layer < in->n_layer; layer++) {
        struct lk_holding sum[2];
        char a[NUMBER_BUF];
        sum_layer(in, layer, sum);
        table_cell(&table, "%d", layer);
        table_cell(&table, "%s", format_bytes(a, sum[K].bytes + sum[V].bytes));
        for (int s = 0; s < 2; s++) number_cell(&table, "%.2f", lk_holding_bits(&sum[s]));
        for (int s = 0; s < 2; s++) number_cell(&table, "%.2g", lk_holding_error(&sum[s]));
        number_cell(&table, "%.4f", in->hellinger[layer]);
    }
    table_print(&table, stdout, true);
}

static double mean_distance(const struct lk_inspection *in) {
    double sum = 0;
    for (int layer = 0; layer < in->n_layer; layer++) sum += in->hellinger[layer];
    return sum / in->n_layer;
}

static void print_tables(const struct lk_inspection *in, const char *kv, const char *name,
                         bool layers) {
    char a[NUMBER_BUF], b[NUMBER_BUF];
    print_paragraph(stdout, "%.200s with %.200s: %s tokens, %s, %.2f bits per value", name, kv,
                    format_count(a, in->n_tok), format_bytes(b, in->stats.cache_bytes),
                    in->stats.bits_per_value);
    putchar('\n');
    print_levels(in);
    putchar('\n');
    if (layers)
        print_layer_levels(in);
    else
        print_layers(in);
    printf("\nerror: normalized mean square error\n");
    printf("attention: of the last %zu tokens, mean over layers\n", in->n_query);
    print_paragraph(stdout,
                    "distance: Hellinger distance of that attention from the full cache's (mean "
                    "%.4f)",
                    mean_distance(in));
    printf("rows are those of one layer, bytes those of all layers\n");
}

static json_t *holding_json(const struct lk_holding *h) {
    return json_pack("{s:s s:I s:I s:o s:o s:o}", "codec", h->codec, "rows", (json_int_t)h->rows,
                     "bytes", (json_int_t)h->bytes, "bits_per_value",
                     json_number(lk_holding_bits(h)), "error", json_number(lk_holding_error(h)),
                     "attention", json_number(h->mass));
}

static json_t *levels_json(const struct lk_inspection *in, struct lk_holding (*at)[2]) {
    json_t *list = json_array();
    for (int k = 0; k < in->n_level; k++)
        json_array_append_new(list,
                              json_pack("{s:s s:o s:o}", "name", in->name[k], "k",
                                        holding_json(&at[k][K]), "v", holding_json(&at[k][V])));
    return list;
}

static int print_json(const struct lk_inspection *in, const char *kv, const char *name) {
    json_t *layers = json_array();
    for (int layer = 0; layer < in->n_layer; layer++)
        json_array_append_new(layers,
                              json_pack("{s:i s:o s:o}", "layer", layer, "hellinger",
                                        json_number(in->hellinger[layer]), "levels",
                                        levels_json(in, in->at + (size_t)layer * in->n_level)));
    return json_print(json_pack("{s:s s:s s:I s:I s:I s:o s:o s:o s:o s:o}", "model", name, "kv",
                                kv, "n_tok", (json_int_t)in->n_tok, "n_query",
                                (json_int_t)in->n_query, "cache_bytes",
                                (json_int_t)in->stats.cache_bytes, "bits_per_value",
                                json_number(in->stats.bits_per_value), "bytes_per_token",
                                json_number(in->stats.bytes_per_token), "hellinger",
                                json_number(mean_distance(in)), "levels",
                                levels_json(in, in->level), "layers", layers),
                      false);
}

static int inspect_cache(const struct inspect_args *a, lk_model *model, const lk_recipe *recipe,
                         const struct tokens *tok) {
    lk_err err = {0};
    struct lk_inspection *in = NULL;
    struct progress progress = progress_start("evaluating with both caches");
    lk_inspect_opts opts = {.n_query = tok->n > 2 * QUERIES ? QUERIES : 1,
                            .progress = progress_step,
                            .user = &progress};
    lk_status inspected = lk_inspect(&in, model, recipe, tok->at, tok->n, &opts, &err);
    progress_end(&progress);
    if (inspected) return print_lk_error(&err);
    const char *kv = lk_recipe_text(recipe);
    char *name = model_name(model);
    int status = STATUS_OK;
    if (a->json)
        status = print_json(in, kv, name);
    else
        print_tables(in, kv, name, a->layers);
    free(name);
    lk_inspection_free(in);
    return status;
}

int cmd_inspect(const struct command *command, int argc, char **argv) {
    struct inspect_args a = {0};
    lk_recipe *recipe = NULL;
    lk_model *model = NULL;
    struct tokens tok = {0};
    int result = read_args(command, argc, argv, &a);
    if (result != ARGS_RUN) return result;
    int status = open_single_recipe(command, &a.kv, &recipe);
    if (!status) status = model_open(&a.model, false, &model);
    if (!status) status = auto_recipe_open(NULL, &a.model, model, &a.kv, &recipe);
    if (!status) status = find_tokens(&a, model, &tok);
    if (!status) status = inspect_cache(&a, model, recipe, &tok);
    free(tok.at);
    lk_model_free(model);
    lk_recipe_free(recipe);
    return status;
}
