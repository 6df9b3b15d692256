/* lowkey bench: the speed of recipes at chosen depths. */
#include "auto_recipe.h"
#include "available.h"
#include "cmd.h"
#include "common.h"
#include "lowkey_lab.h"
#include "output.h"
#include "progress.h"
#include "table.h"
#include "text.h"
#include "xalloc.h"

#include <stdlib.h>
#include <string.h>

struct bench_args {
    struct model_args model;
    struct string_list kv;
    struct number_list depth;
    const char *file;
    int64_t prefill, decode, repeat;
    bool json;
};

/* Below this, the figures are not those of the machine (struct lk_bench_result). An idle machine
 * has 0.95 and more: threads sleep if they wait for long. */
static const double LEAST_CPU_SHARE = 0.85;

enum { TEXT_TOKENS = 2048, DEPTH_MOST = 1 << 24 };

/* One row of the result. */
struct row {
    const char *kv, *name; /* its text; how tables call it */
    lk_bench_result r;
};

static int read_args(const struct command *command, int argc, char **argv, struct bench_args *a) {
    const struct opt_group groups[] = {
        {"What to measure",
         {
             {'k', "kv", "RECIPE",
              "preset, recipe or file; may be repeated (default f16 and best-4)", OPT_TEXTS,
              &a->kv},
             {'d', "depth", "N[,N...]",
              "tokens in the cache when a measurement starts (default 0,8k)", OPT_NUMBERS,
              &a->depth, 0, DEPTH_MOST},
             {'p', "prefill", "N", "tokens to prefill at each depth (default 512); 0: none",
              OPT_INT, &a->prefill, 0, DEPTH_MOST},
             {'n', "tokens", "N", "tokens to decode at each depth (default 32); 0: none", OPT_INT,
              &a->decode, 0, DEPTH_MOST},
             {'r', "repeat", "N", "repetitions (default 3)", OPT_INT, &a->repeat, 1, 1000},
             {'f', "file", "FILE", "text to fill the cache with (default: generated sentences)",
              OPT_TEXT, &a->file},
             {0, "json", NULL, "print JSON", OPT_FLAG, &a->json},
         }},
        model_options(&a->model, MODEL_RUN),
    };
    return args_read(command, groups, sizeof groups / sizeof groups[0], argc, argv, NULL);
}

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int check_args(struct bench_args *a) {
    if (!a->depth.n) {
        a->depth.item[a->depth.n++] = 0;
        a->depth.item[a->depth.n++] = 8192;
    }
    if (!a->kv.n) {
        a->kv.item[a->kv.n++] = "f16";
        a->kv.item[a->kv.n++] = "best-4";
    }
    if (!a->prefill && !a->decode)
        return print_error("nothing to measure: --prefill and --tokens are both 0");
    qsort(a->depth.item, a->depth.n, sizeof a->depth.item[0], by_size);
    for (size_t i = 1; i < a->depth.n; i++) {
        if (a->depth.item[i] == a->depth.item[i - 1])
            return print_error("--depth: %lld is given twice", (long long)a->depth.item[i]);
    }
    return STATUS_OK;
}

/* The text to fill the cache with. */
static int find_tokens(const struct bench_args *a, const lk_model *model, struct tokens *out) {
    struct lk_buf text = {0};
    if (!a->file) make_sentences(&text, TEXT_TOKENS);
    int status = a->file ? read_tokens(model, a->file, out) : tokenize_text(model, &text, out);
    lk_buf_free(&text);
    if (out->n > TEXT_TOKENS) out->n = TEXT_TOKENS;
    return status;
}

static int measure(const struct bench_args *a, lk_model *model, const struct recipes *recipes,
                   const int32_t *tok, size_t n_tok, struct row *row, size_t *n_row) {
    size_t depth[MAX_LIST];
    for (size_t i = 0; i < a->depth.n; i++) depth[i] = (size_t)a->depth.item[i];
    for (size_t k = 0; k < recipes->n; k++) {
        lk_err err = {0};
        lk_bench_result result[MAX_LIST];
        char *what = xasprintf("measuring %s (%zu of %zu)", recipes->name[k], k + 1, recipes->n);
        struct progress progress = progress_start(what);
        lk_bench_opts opts = {.depth = depth,
                              .n_depth = a->depth.n,
                              .n_prefill = (int32_t)a->prefill,
                              .n_decode = (int32_t)a->decode,
                              .n_repeat = (int32_t)a->repeat,
                              .max_bytes = available_bytes(""),
                              .progress = progress_step,
                              .user = &progress};
        lk_status status = lk_bench(model, recipes->item[k], tok, n_tok, &opts, result, &err);
        progress_end(&progress);
        free(what);
        if (status) return print_lk_error(&err);
        for (size_t i = 0; i < a->depth.n; i++) {
            row[(*n_row)++] =
                (struct row){lk_recipe_text(recipes->item[k]), recipes->name[k], result[i]};
        }
    }
    return STATUS_OK;
}

/* Refuse a depth that cannot fit before anything is computed. The cache is held twice. */
static int check_depth(const struct bench_args *a, const lk_model *model,
                       const struct recipes *recipes) {
    const size_t depth = (size_t)a->depth.item[a->depth.n - 1];
    const size_t n_tok = depth + (size_t)a->prefill + (size_t)a->decode;
    const uint64_t limit = available_bytes("");
    for (size_t k = 0; k < recipes->n && limit && n_tok <= INT32_MAX; k++) {
        char need[NUMBER_BUF], have[NUMBER_BUF], count[NUMBER_BUF];
        lk_session_opts opts = {.n_ctx = (int32_t)n_tok};
        lk_plan plan;
        if (lk_plan_make(model, recipes->item[k], &opts, &plan, NULL)) continue;
        if (plan.cache_bytes <= limit / 2) continue;
        return print_error("--depth: %s tokens of %s need twice %s of cache, but the free memory "
                           "is %s",
                           format_count(count, depth), recipes->name[k],
                           format_bytes(need, plan.cache_bytes), format_bytes(have, limit));
    }
    return STATUS_OK;
}

/* ---- output ---- */

static json_t *json_rate(double tps) { return tps > 0 ? json_number(tps) : json_null(); }

static int print_json(const struct bench_args *a, const lk_model *model, size_t n_tok,
                      const struct row *row, size_t n_row) {
    json_t *list = json_array();
    char *name = model_name(model);
    lk_model_info info = lk_model_get_info(model);
    for (size_t i = 0; i < n_row; i++) {
        const lk_bench_result *r = &row[i].r;
        json_t *result = json_pack(
            "{s:s s:I s:o s:o s:I s:o s:o s:o s:I s:I s:o s:o}", "kv", row[i].kv, "depth",
            (json_int_t)r->depth, "prefill_tps", json_rate(r->prefill_tps), "decode_tps",
            json_rate(r->decode_tps), "cache_bytes", (json_int_t)r->cache_bytes, "bits_per_value",
            json_number(r->bits_per_value), "prefill_tps_best", json_rate(r->prefill_tps_best),
            "decode_tps_best", json_rate(r->decode_tps_best), "n_tok", (json_int_t)r->n_tok,
            "n_repeated", (json_int_t)r->n_repeated, "bits_with_sidecar",
            json_number(r->bits_with_sidecar), "cpu_share", json_number(r->cpu_share));
        if (r->n_peer > 1)
            json_object_update_new(
                result, json_pack("{s:i s:I s:o s:o s:o s:o s:o}", "n_rank", (int)r->n_peer,
                                  "max_rank_bytes", (json_int_t)r->max_peer_bytes,
                                  "exchanges_per_token", json_number(r->exchanges_per_token),
                                  "received_per_token", json_number(r->received_per_token),
                                  "sent_per_token", json_number(r->sent_per_token),
                                  "exchange_seconds", json_number(r->exchange_seconds),
                                  "exchange_share", json_number(r->exchange_share)));
        json_array_append_new(list, result);
    }
    int done =
        json_print(json_pack("{s:s s:s s:i s:I s:I s:I s:I s:o}", "model", name, "kernels",
                             info.kernels, "n_threads", (int)info.n_threads, "n_prefill",
                             (json_int_t)a->prefill, "n_decode", (json_int_t)a->decode, "n_repeat",
                             (json_int_t)a->repeat, "n_text", (json_int_t)n_tok, "results", list),
                   false);
    free(name);
    return done;
}

static void rate_cell(struct table *table, double tps) {
    if (tps > 0)
        table_cell(table, "%.1f", tps);
    else
        table_cell(table, "-");
}

/* What several ranks exchange to decode a token. */
static void print_exchanges(const struct row *row, size_t n_row) {
    struct table table = table_new("lrrrrrr");
    char b[NUMBER_BUF];
    table_titles(&table, "recipe|depth|largest part|exchanges|sent|exchanging|share");
    for (size_t i = 0; i < n_row; i++) {
        const lk_bench_result *r = &row[i].r;
        table_cell(&table, "%s", row[i].name);
        table_cell(&table, "%s", format_count(b, r->depth));
        table_cell(&table, "%s", format_bytes(b, r->max_peer_bytes));
        table_cell(&table, "%.1f", r->exchanges_per_token);
        table_cell(&table, "%s", format_bytes(b, (uint64_t)r->sent_per_token));
        table_cell(&table, "%.2f ms", 1e3 * r->exchange_seconds);
        table_cell(&table, "%.0f%%", 100 * r->exchange_share);
    }
    putchar('\n');
    table_print(&table, stdout, 1);
    putchar('\n');
    print_paragraph(stdout,
                    "%d ranks. Largest part: of the cache, on one rank. Per decoded token: "
                    "exchanges of all ranks, bytes that rank 0 sends, its time in exchanges, "
                    "waiting for other ranks included, and the share of that in all time.",
                    row[0].r.n_peer);
}

static void print_table(const struct bench_args *a, const lk_model *model, size_t n_tok,
                        const struct row *row, size_t n_row) {
    lk_model_info info = lk_model_get_info(model);
    bool repeated = false, sidecar = false;
    double cpu_share = 1;
    for (size_t i = 0; i < n_row; i++)
        sidecar = sidecar || row[i].r.bits_with_sidecar > row[i].r.bits_per_value;
    char columns[16];
    snprintf(columns, sizeof columns, "lrrRrRrR%s", sidecar ? "R" : "");
    struct table table = table_new(columns);
    char b[NUMBER_BUF];
    table_titles(&table, "recipe|depth|prefill t/s|best|decode t/s|best|cache|bits/value");
    if (sidecar) table_cell(&table, "+ sidecar");
    for (size_t i = 0; i < n_row; i++) {
        const lk_bench_result *r = &row[i].r;
        table_cell(&table, "%s", row[i].name);
        table_cell(&table, "%s", format_count(b, r->depth));
        rate_cell(&table, r->prefill_tps);
        rate_cell(&table, r->prefill_tps_best);
        rate_cell(&table, r->decode_tps);
        rate_cell(&table, r->decode_tps_best);
        table_cell(&table, "%s", format_bytes(b, r->cache_bytes));
        table_cell(&table, "%.2f", r->bits_per_value);
        if (sidecar) table_cell(&table, "%.2f", r->bits_with_sidecar);
        repeated = repeated || r->n_repeated > 0;
        if (r->cpu_share < cpu_share) cpu_share = r->cpu_share;
    }
    table_print(&table, stdout, 1);
    putchar('\n');
    print_paragraph(stdout,
                    "t/s: tokens per second, %lld prefilled, %lld decoded one by one; median and "
                    "best of %lld; %d thread%s, %s kernels.",
                    (long long)a->prefill, (long long)a->decode, (long long)a->repeat,
                    info.n_threads, info.n_threads == 1 ? "" : "s", info.kernels);
    if (sidecar)
        print_paragraph(stdout, "+ sidecar: bits per value with what one session needs of the "
                                "sidecar, which sessions share.");
    if (repeated)
        print_paragraph(stdout,
                        "Beyond 512 tokens, the cache repeats the keys and values of a text of %s "
                        "tokens.",
                        format_count(b, n_tok));
    if (cpu_share < LEAST_CPU_SHARE)
        print_paragraph(stdout,
                        "The threads had a processor for only %.0f %% of the time: other programs "
                        "ran, or the process is limited. Measure again on an idle machine.",
                        100 * cpu_share);
}

static int print_rows(const struct bench_args *a, const lk_model *model, size_t n_tok,
                      const struct row *row, size_t n_row) {
    if (a->json) return print_json(a, model, n_tok, row, n_row);
    print_table(a, model, n_tok, row, n_row);
    if (n_row && row[0].r.n_peer > 1) print_exchanges(row, n_row);
    return STATUS_OK;
}

int cmd_bench(const struct command *command, int argc, char **argv) {
    static struct row row[MAX_LIST * MAX_LIST];
    struct bench_args a = {
        .model.cluster = command->cluster, .prefill = 512, .decode = 32, .repeat = 3};
    struct recipes recipes = {0};
    lk_model *model = NULL;
    struct tokens tok = {0};
    size_t n_row = 0;
    int read = read_args(command, argc, argv, &a);
    if (read != ARGS_RUN) return read;
    int status = check_args(&a);
    if (!status) status = recipes_open(&a.kv, "f16", &recipes);
    if (!status) status = model_open(&a.model, false, &model);
    if (!status) status = auto_recipes_open(&a.model, model, &recipes);
    if (!status) status = find_tokens(&a, model, &tok);
    if (!status) warn_beyond_training(model, a.depth.item[a.depth.n - 1]);
    if (!status && !a.model.cluster) status = check_depth(&a, model, &recipes);
    if (!status) status = measure(&a, model, &recipes, tok.at, tok.n, row, &n_row);
    /* Results from before Ctrl-C are printed too. */
    if (!status || (status == STATUS_INTERRUPTED && n_row)) {
        int printed = print_rows(&a, model, tok.n, row, n_row);
        if (!status) status = printed;
    }
    free(tok.at);
    lk_model_free(model);
    recipes_free(&recipes);
    return status;
}
