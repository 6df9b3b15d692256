/* lowkey plan: the memory that contexts need. */
#include "commands.h"
#include "common.h"
#include "json_output.h"
#include "output.h"
#include "table.h"

#include <stdlib.h>

struct plan_args {
    struct model_args model;
    struct string_list kv;
    struct number_list ctx;
    int64_t fit; /* MiB; 0: --fit is not given */
    bool stream, json;
    bool presets_omitted; /* presets that need a sidecar */
};

enum { MAX_TOKENS = 1 << 24 };

/* One row of the output. */
struct plan_row {
    const char *kv;
    lk_plan plan;
};

static enum args_result read_args(const struct command *command, int argc, char **argv,
                                  struct plan_args *a) {
    const struct opt_group groups[] = {
        {"What to plan",
         {
             {'k', "kv", "RECIPE",
              "preset, recipe or file; may be repeated (default: every preset)", OPT_TEXTS, &a->kv},
             {'c', "ctx", "N[,N...]", "context lengths in tokens (default: as trained)",
              OPT_NUMBERS, &a->ctx, 1, MAX_TOKENS,
              .man = "Context lengths in tokens, for example `4k,32k` (default: the length that "
                     "the model was trained for)."},
             {0, "fit", "MIB", "find the largest context whose peak fits in MIB", OPT_INT, &a->fit,
              1, 1 << 24},
             {0, "stream", NULL, "plan for prefill through the compressed cache", OPT_FLAG,
              &a->stream},
             {0, "json", NULL, "print JSON", OPT_FLAG, &a->json},
         }},
        model_options(&a->model),
    };
    int first;
    return args_read(command, groups, sizeof groups / sizeof groups[0], argc, argv, &first);
}

static bool fits(const lk_model *model, const lk_recipe *recipe, size_t n_tok,
                 const struct plan_args *a, lk_plan *plan) {
    lk_session_opts opts = {.n_ctx = (int32_t)n_tok, .chunked_prefill = a->stream};
    return !lk_plan_make(model, recipe, &opts, plan, NULL) && plan->peak_bytes <= (uint64_t)a->fit
                                                                                      << 20;
}

/* The plan of the largest context that fits; a plan of 0 tokens if not even one token fits. */
static lk_plan largest_plan(const lk_model *model, const lk_recipe *recipe,
                            const struct plan_args *a) {
    lk_plan best = {0}, plan;
    size_t low = 0, high = MAX_TOKENS; /* low fits, high does not */
    if (fits(model, recipe, high, a, &plan)) return plan;
    while (low + 1 < high) {
        size_t middle = low + (high - low) / 2;
        if (fits(model, recipe, middle, a, &plan)) {
            low = middle;
            best = plan;
        } else {
            high = middle;
        }
    }
    return best;
}

static double compression_ratio(const lk_plan *plan) {
    return plan->cache_bytes ? (double)plan->f16_bytes / (double)plan->cache_bytes : 0.0;
}

static int print_json(const struct plan_row *row, size_t n, const lk_model *model) {
    json_t *list = json_array();
    char *name = model_name(model);
    for (size_t i = 0; i < n; i++) {
        const lk_plan *p = &row[i].plan;
        json_array_append_new(
            list,
            json_pack("{s:s s:I s:I s:I s:o s:o s:I s:I s:I}", "kv", row[i].kv, "n_tok",
                      (json_int_t)p->n_tok, "cache_bytes", (json_int_t)p->cache_bytes, "f16_bytes",
                      (json_int_t)p->f16_bytes, "ratio", json_number(compression_ratio(p)),
                      "bits_per_value", json_number(p->bits_per_value), "weight_bytes",
                      (json_int_t)p->weight_bytes, "scratch_bytes", (json_int_t)p->scratch_bytes,
                      "peak_bytes", (json_int_t)p->peak_bytes));
    }
    int status = json_print(json_pack("{s:s s:o s:I}", "model", name, "plans", list, "file_bytes",
                                      (json_int_t)lk_model_get_info(model).file_bytes),
                            false);
    free(name);
    return status;
}

static void print_table(const struct plan_row *row, size_t n, const struct plan_args *a,
                        const lk_model *model) {
    static const char *const title[] = {"recipe", "tokens",  "cache",   "f16 cache", "ratio",
                                        "bits",   "weights", "scratch", "peak"};
    lk_model_info info = lk_model_get_info(model);
    bool beyond_trained = false;
    struct table table = table_new("lrrRrRRRr");
    for (size_t i = 0; i < sizeof title / sizeof title[0]; i++) table_cell(&table, "%s", title[i]);
    for (size_t i = 0; i < n; i++) {
        const lk_plan *p = &row[i].plan;
        char b[NUMBER_BUF];
        table_cell(&table, "%s", row[i].kv);
        table_cell(&table, "%s%s", format_count(b, p->n_tok),
                   p->n_tok == MAX_TOKENS && a->fit ? "+" : "");
        table_cell(&table, "%s", format_bytes(b, p->cache_bytes));
        table_cell(&table, "%s", format_bytes(b, p->f16_bytes));
        table_cell(&table, "%.2fx", compression_ratio(p));
        table_cell(&table, "%.2f", p->bits_per_value);
        table_cell(&table, "%s", format_bytes(b, p->weight_bytes));
        table_cell(&table, "%s", format_bytes(b, p->scratch_bytes));
        table_cell(&table, "%s", format_bytes(b, p->peak_bytes));
        beyond_trained = beyond_trained || p->n_tok > (uint64_t)info.n_ctx_train;
    }
    table_print(&table, stdout, true);
    char b[NUMBER_BUF];
    putchar('\n');
    print_paragraph(stdout, "ratio: f16 cache / cache; bits: of the cache, per value; peak: of "
                            "everything, during prefill");
    if (!a->model.no_mmap)
        print_paragraph(stdout, "The memory-mapped model file, %s, is not counted.",
                        format_bytes(b, info.file_bytes));
    if (a->presets_omitted)
        print_paragraph(stdout, "Presets that need a sidecar are omitted; give one with --sidecar "
                                "('lowkey recipes' says how to make it).");
    if (beyond_trained && info.n_ctx_train > 0)
        print_paragraph(stdout,
                        "The model was trained for %s tokens; answers get worse beyond "
                        "that.",
                        format_count(b, (uint64_t)info.n_ctx_train));
}

static lk_status make_plan(const lk_model *model, const lk_recipe *recipe,
                           const struct plan_args *a, int64_t n_ctx, lk_plan *plan, lk_err *err) {
    lk_session_opts opts = {.n_ctx = a->fit ? 1 : (int32_t)n_ctx, .chunked_prefill = a->stream};
    if (!a->fit) return lk_plan_make(model, recipe, &opts, plan, err);
    *plan = largest_plan(model, recipe, a);
    if (plan->n_tok) return LK_OK;
    /* Nothing fits. Report an error if the recipe is not possible for this model at all. */
    lk_plan one;
    return lk_plan_make(model, recipe, &opts, &one, err);
}

/* Plan every preset, except those that need a sidecar if there is none. */
static void add_presets(struct plan_args *a) {
    for (size_t i = 0; a->kv.n < MAX_LIST && lk_recipe_preset(i).name; i++) {
        lk_preset preset = lk_recipe_preset(i);
        if (a->model.sidecar || !preset.sidecar)
            a->kv.item[a->kv.n++] = preset.name;
        else
            a->presets_omitted = true;
    }
}

/* Plan every recipe and context length. `given`: the recipes come from --kv, so each must be
 * possible; otherwise presets that do not work with the model or its sidecar are skipped. */
static int make_rows(const lk_model *model, const struct recipes *recipes,
                     const struct plan_args *a, bool given, struct plan_row *row, size_t *n) {
    *n = 0;
    for (size_t i = 0; i < recipes->n; i++) {
        for (size_t j = 0; j < a->ctx.n; j++) {
            lk_err err = {0};
            lk_status status =
                make_plan(model, recipes->item[i], a, a->ctx.item[j], &row[*n].plan, &err);
            row[*n].kv = lk_recipe_text(recipes->item[i]);
            if (!status)
                (*n)++;
            else if (given ||
                     (status != LK_E_UNSUPPORTED && !(a->model.sidecar && status == LK_E_ARG)))
                return print_lk_error(&err);
        }
    }
    return STATUS_OK;
}

int cmd_plan(const struct command *command, int argc, char **argv) {
    static struct plan_row row[MAX_LIST * MAX_LIST];
    struct plan_args a = {.model.header_only = true};
    struct recipes recipes = {0};
    lk_model *model = NULL;
    enum args_result result = read_args(command, argc, argv, &a);
    if (result != ARGS_RUN) return result == ARGS_HELP ? STATUS_OK : STATUS_ERROR;
    if (a.fit && a.ctx.n) return print_error("--fit and --ctx cannot be used together");
    bool given = a.kv.n > 0;
    if (!given) add_presets(&a);
    int status = recipes_open(&a.kv, "f16", &recipes);
    if (!status) status = model_open(&a.model, false, &model);
    if (!status) {
        lk_model_info info = lk_model_get_info(model);
        if (!a.ctx.n) a.ctx.item[a.ctx.n++] = info.n_ctx_train > 0 ? info.n_ctx_train : 4096;
        size_t n = 0;
        status = make_rows(model, &recipes, &a, given, row, &n);
        if (!status && a.json)
            status = print_json(row, n, model);
        else if (!status)
            print_table(row, n, &a, model);
    }
    lk_model_free(model);
    recipes_free(&recipes);
    return status;
}
