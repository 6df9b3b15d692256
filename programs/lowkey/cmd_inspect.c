/* lowkey inspect: what a session's cache holds, by layer and level, and how good it is. */
#include "commands.h"
#include "common.h"
#include "eval/inspect.h"
#include "eval/task.h"
#include "new_file.h"
#include "progress.h"
#include "say.h"
#include "stats_print.h"
#include "table.h"
#include "text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 2048, QUERIES = 32 };

struct inspect_args {
    struct model_args model;
    struct texts kv;
    const char *file, *svg;
    int64_t ctx;
    bool layers, json;
};

static enum args_result read_args(const struct verb *verb, int argc, char **argv,
                                  struct inspect_args *a) {
    const struct opt_group groups[] = {
        {"What to inspect",
         {
             {'k', "kv", "RECIPE",
              "preset, recipe or file (default " DEFAULT_RECIPE "; see 'lowkey recipes')",
              OPT_TEXTS, &a->kv, 0, 0},
             {'f', "file", "FILE",
              "the text to read; - is standard input (default: made-up sentences)", OPT_TEXT,
              &a->file, 0, 0},
             {'c', "ctx", "N", "tokens to read (default: 2048, or what the text has)", OPT_INT,
              &a->ctx, 2, 1 << 24},
             {0, "layers", NULL, "show every level of every layer", OPT_FLAG, &a->layers, 0, 0},
             {0, "svg", "FILE", "write a picture", OPT_TEXT, &a->svg, 0, 0},
             {0, "json", NULL, "print JSON", OPT_FLAG, &a->json, 0, 0},
         }},
        model_options(&a->model),
    };
    int first;
    return args_read(verb, groups, sizeof groups / sizeof groups[0], argc, argv, &first);
}

/* Sentences that differ, enough for n tokens. */
static void make_text(struct text *text, size_t n) {
    static const char *const who[] = {"A sailor",     "The baker",  "Her uncle",    "One clerk",
                                      "My neighbour", "The doctor", "An old friend"};
    static const char *const did[] = {"counted", "lost",  "painted",   "remembered", "sold",
                                      "carried", "found", "described", "kept"};
    static const char *const what[] = {"coins", "letters", "lamps",  "apples", "ropes", "maps",
                                       "doors", "songs",   "stones", "keys",   "clocks"};
    for (size_t i = 0; text->len < 4 * n + 64; i++) {
        char line[128];
        int len = snprintf(line, sizeof line, "%s %s %zu %s. ", who[i * 5 % 7], did[i * 7 % 9],
                           i * i % 97 + 2, what[i * 3 % 11]);
        text_add(text, line, (size_t)len);
    }
}

/* Tokens to read: *n of them, as many as asked for. */
static int read_tokens(const struct inspect_args *a, const lk_model *model, int32_t **tok,
                       size_t *n) {
    struct text text = {0};
    lk_err err = {0};
    char have[NUMBER_ROOM], need[NUMBER_ROOM];
    if (a->file && !read_text(a->file, "text", PROMPT_BYTES_MOST, &text))
        return interrupted() ? STATUS_INTERRUPTED : STATUS_BAD;
    if (!a->file) make_text(&text, a->ctx ? (size_t)a->ctx : TOKENS);
    int status = text.len ? STATUS_OK : complain("the text %s is empty", a->file);
    if (!status && lk_task_tokenize(model, text.at, text.len, tok, n, &err))
        status = complain_of(&err);
    free(text.at);
    if (status) return status;
    if (*n < 2) return complain("the text has no two tokens; give a longer one");
    if ((size_t)a->ctx > *n)
        return complain("the text has %s tokens, fewer than the %s of --ctx; give a longer text or "
                        "a smaller --ctx",
                        say_count(have, *n), say_count(need, (uint64_t)a->ctx));
    if (a->ctx)
        *n = (size_t)a->ctx;
    else if (*n > TOKENS)
        *n = TOKENS;
    return STATUS_OK;
}

/* ---- what is printed ---- */

static void number_cell(struct table *table, const char *format, double value) {
    char text[NUMBER_ROOM] = "-";
    if (isfinite(value)) snprintf(text, sizeof text, format, value);
    table_cell(table, "%s", text);
}

static void titles(struct table *table, const char *const *title, size_t n) {
    for (size_t i = 0; i < n; i++) table_cell(table, "%s", title[i]);
}

/* Codecs, tokens, bits, errors and attention of K and V. */
static void holding_cells(struct table *table, const struct lk_holding side[2]) {
    char a[NUMBER_ROOM];
    for (int s = 0; s < 2; s++) table_cell(table, "%s", side[s].codec[0] ? side[s].codec : "-");
    for (int s = 0; s < 2; s++) table_cell(table, "%s", say_count(a, (uint64_t)side[s].rows));
    for (int s = 0; s < 2; s++) number_cell(table, "%.2f", lk_holding_bits(&side[s]));
    table_cell(table, "%s", say_bytes(a, side[0].bytes + side[1].bytes));
    for (int s = 0; s < 2; s++) number_cell(table, "%.2g", lk_holding_error(&side[s]));
    number_cell(table, "%.1f%%", 100 * side[LK_K].mass);
}

static void print_levels(const struct lk_inspection *in) {
    static const char *const title[] = {"level",   "K",       "V",        "K rows",
                                        "V rows",  "K bits",  "V bits",   "bytes",
                                        "K error", "V error", "attention"};
    struct table table = table_new("lllrrrrrrrr");
    titles(&table, title, sizeof title / sizeof title[0]);
    for (int k = 0; k < in->n_level; k++) {
        table_cell(&table, "%s", in->name[k]);
        holding_cells(&table, in->level[k]);
    }
    table_print(&table, stdout, 1);
}

static void print_levels_of_layers(const struct lk_inspection *in) {
    static const char *const title[] = {"layer",  "level",   "K",       "V",
                                        "K rows", "V rows",  "K bits",  "V bits",
                                        "bytes",  "K error", "V error", "attention"};
    struct table table = table_new("llllrrrrrrrr");
    titles(&table, title, sizeof title / sizeof title[0]);
    for (int layer = 0; layer < in->n_layer; layer++) {
        for (int k = 0; k < in->n_level; k++) {
            const struct lk_holding *at = in->at[layer * in->n_level + k];
            if (!at[LK_K].rows && !at[LK_V].rows) continue;
            table_cell(&table, "%d", layer);
            table_cell(&table, "%s", in->name[k]);
            holding_cells(&table, at);
        }
    }
    table_print(&table, stdout, 1);
}

/* All levels of a layer as one. */
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
    static const char *const title[] = {"layer",   "bytes",   "K bits",  "V bits",
                                        "K error", "V error", "distance"};
    struct table table = table_new("rrrrrrr");
    titles(&table, title, sizeof title / sizeof title[0]);
    for (int layer = 0; layer < in->n_layer; layer++) {
        struct lk_holding sum[2];
        char a[NUMBER_ROOM];
        sum_layer(in, layer, sum);
        table_cell(&table, "%d", layer);
        table_cell(&table, "%s", say_bytes(a, sum[LK_K].bytes + sum[LK_V].bytes));
        for (int s = 0; s < 2; s++) number_cell(&table, "%.2f", lk_holding_bits(&sum[s]));
        for (int s = 0; s < 2; s++) number_cell(&table, "%.2g", lk_holding_error(&sum[s]));
        number_cell(&table, "%.4f", in->hellinger[layer]);
    }
    table_print(&table, stdout, 1);
}

static double mean_distance(const struct lk_inspection *in) {
    double sum = 0;
    for (int layer = 0; layer < in->n_layer; layer++) sum += in->hellinger[layer];
    return sum / in->n_layer;
}

static void print_tables(const struct lk_inspection *in, const char *kv, const char *name,
                         bool layers) {
    char a[NUMBER_ROOM], b[NUMBER_ROOM];
    printf("%s under %s: %s tokens, %s, %.2f bits a value\n\n", name, kv, say_count(a, in->n_tok),
           say_bytes(b, in->stats.cache_bytes), in->stats.bits_per_value);
    print_levels(in);
    putchar('\n');
    if (layers)
        print_levels_of_layers(in);
    else
        print_layers(in);
    printf("\nerror: mean square, normalised; attention: of the last %zu tokens, mean over layers; "
           "distance: Hellinger, of\n"
           "their attention from the full cache's (mean %.4f). Rows count one layer, bytes all.\n",
           in->n_query, mean_distance(in));
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
        json_array_append_new(list, json_pack("{s:s s:o s:o}", "name", in->name[k], "k",
                                              holding_json(&at[k][LK_K]), "v",
                                              holding_json(&at[k][LK_V])));
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

static int write_picture(const struct lk_inspection *in, const char *path, const char *kv,
                         const char *name) {
    lk_err err = {0};
    struct new_file file = {0};
    int status = new_file_open(&file, path);
    if (status) return status;
    char *title = must_print("%s under %s", name, kv);
    if (lk_inspection_draw(in, title, file.file, &err)) status = complain("%s: %s", path, err.msg);
    free(title);
    return new_file_close(&file, status);
}

static int inspect(const struct inspect_args *a, lk_model *model, const lk_recipe *recipe,
                   const int32_t *tok, size_t n) {
    lk_err err = {0};
    struct lk_inspection *in = NULL;
    struct progress progress = progress_begin("reading through both caches");
    size_t n_query = n > 2 * QUERIES ? QUERIES : 1;
    lk_status read =
        lk_inspect(&in, model, recipe, tok, n, n_query, progress_step, &progress, &err);
    progress_end(&progress);
    if (read) return complain_of(&err);
    const char *kv = lk_recipe_text(recipe);
    char *name = model_name(model);
    int status = a->svg ? write_picture(in, a->svg, kv, name) : STATUS_OK;
    if (!status && a->json)
        status = print_json(in, kv, name);
    else if (!status)
        print_tables(in, kv, name, a->layers);
    free(name);
    lk_inspection_free(in);
    return status;
}

int inspect_verb(const struct verb *verb, int argc, char **argv) {
    struct inspect_args a = {0};
    lk_recipe *recipe = NULL;
    lk_model *model = NULL;
    int32_t *tok = NULL;
    size_t n = 0;
    enum args_result read = read_args(verb, argc, argv, &a);
    if (read != ARGS_RUN) return read == ARGS_HELP ? STATUS_OK : STATUS_BAD;
    int status = recipe_only(verb, &a.kv, &recipe);
    if (!status) status = model_open(&a.model, false, &model);
    if (!status) status = read_tokens(&a, model, &tok, &n);
    if (!status) status = inspect(&a, model, recipe, tok, n);
    free(tok);
    lk_model_free(model);
    lk_recipe_free(recipe);
    return status;
}
