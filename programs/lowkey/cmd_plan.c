/* lowkey plan: what memory contexts will need. */
#include "commands.h"
#include "common.h"
#include "say.h"
#include "stats_print.h"
#include "table.h"

#include <stdlib.h>

struct plan_args {
    struct model_args model;
    struct texts kv;
    struct numbers ctx;
    int64_t fit;                 /* MiB; 0: not asked */
    bool stream, json, left_out; /* left_out: presets that need a sidecar */
};

enum { TOKENS_MOST = 1 << 24 };

/* One row of the answer. */
struct row {
    const char *kv;
    lk_plan plan;
};

static enum args_result read_args(const struct verb *verb, int argc, char **argv,
                                  struct plan_args *a) {
    const struct opt_group groups[] = {
        {"What to plan",
         {
             {'k', "kv", "RECIPE",
              "preset, recipe or file; may be repeated (default: every preset)", OPT_TEXTS, &a->kv,
              0, 0},
             {'c', "ctx", "N[,N...]", "tokens (default: the model's trained length)", OPT_NUMBERS,
              &a->ctx, 1, TOKENS_MOST},
             {0, "fit", "MIB", "find the largest context whose peak fits into MIB instead", OPT_INT,
              &a->fit, 1, 1 << 24},
             {0, "stream", NULL, "prompts are read through the compressed cache", OPT_FLAG,
              &a->stream, 0, 0},
             {0, "json", NULL, "print JSON", OPT_FLAG, &a->json, 0, 0},
         }},
        model_options(&a->model),
    };
    int first;
    return args_read(verb, groups, sizeof groups / sizeof groups[0], argc, argv, &first);
}

static bool fits(const lk_model *model, const lk_recipe *recipe, size_t n_tok,
                 const struct plan_args *a, lk_plan *plan) {
    return !lk_plan_make(model, recipe, n_tok, a->stream, plan, NULL) &&
           plan->peak_bytes <= (uint64_t)a->fit << 20;
}

/* The largest context that fits; a plan of 0 tokens where not even one does. */
static lk_plan largest(const lk_model *model, const lk_recipe *recipe, const struct plan_args *a) {
    lk_plan best = {0}, plan;
    size_t low = 0, high = TOKENS_MOST; /* low fits */
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

static double ratio(const lk_plan *plan) {
    return plan->cache_bytes ? (double)plan->f16_bytes / (double)plan->cache_bytes : 0.0;
}

static int print_json(const struct row *row, size_t n, const lk_model *model) {
    json_t *list = json_array();
    char *name = model_name(model);
    for (size_t i = 0; i < n; i++) {
        const lk_plan *p = &row[i].plan;
        json_array_append_new(
            list, json_pack("{s:s s:I s:I s:I s:o s:o s:I s:I s:I}", "kv", row[i].kv, "n_tok",
                            (json_int_t)p->n_tok, "cache_bytes", (json_int_t)p->cache_bytes,
                            "f16_bytes", (json_int_t)p->f16_bytes, "ratio", json_number(ratio(p)),
                            "bits_per_value", json_number(p->bits_per_value), "weight_bytes",
                            (json_int_t)p->weight_bytes, "scratch_bytes",
                            (json_int_t)p->scratch_bytes, "peak_bytes", (json_int_t)p->peak_bytes));
    }
    int done = json_print(json_pack("{s:s s:o s:I}", "model", name, "plans", list, "file_bytes",
                                    (json_int_t)lk_model_get_info(model).file_bytes),
                          false);
    free(name);
    return done;
}

static void print_table(const struct row *row, size_t n, const struct plan_args *a,
                        const lk_model *model) {
    static const char *const title[] = {"recipe",     "tokens",  "cache",   "f16 cache", "smaller",
                                        "bits/value", "weights", "scratch", "peak"};
    lk_model_info info = lk_model_get_info(model);
    bool beyond = false;
    struct table table = table_new("lrrrrrrrr");
    for (size_t i = 0; i < sizeof title / sizeof title[0]; i++) table_cell(&table, "%s", title[i]);
    for (size_t i = 0; i < n; i++) {
        const lk_plan *p = &row[i].plan;
        char b[NUMBER_ROOM];
        table_cell(&table, "%s", row[i].kv);
        table_cell(&table, "%s%s", say_count(b, p->n_tok),
                   p->n_tok == TOKENS_MOST && a->fit ? "+" : "");
        table_cell(&table, "%s", say_bytes(b, p->cache_bytes));
        table_cell(&table, "%s", say_bytes(b, p->f16_bytes));
        table_cell(&table, "%.2fx", ratio(p));
        table_cell(&table, "%.2f", p->bits_per_value);
        table_cell(&table, "%s", say_bytes(b, p->weight_bytes));
        table_cell(&table, "%s", say_bytes(b, p->scratch_bytes));
        table_cell(&table, "%s", say_bytes(b, p->peak_bytes));
        beyond = beyond || p->n_tok > (uint64_t)info.n_ctx_train;
    }
    table_print(&table, stdout, 1);
    char b[NUMBER_ROOM];
    if (!a->model.no_mmap)
        printf("\nThe mapped model file, %s, is not counted.\n", say_bytes(b, info.file_bytes));
    if (a->left_out)
        printf("Presets that need a sidecar are left out; --sidecar brings them in ('lowkey "
               "recipes' says how to make one).\n");
    if (beyond && info.n_ctx_train > 0)
        printf("The model was trained for %s tokens; beyond that its answers decay.\n",
               say_count(b, (uint64_t)info.n_ctx_train));
}

static lk_status make_plan(const lk_model *model, const lk_recipe *recipe,
                           const struct plan_args *a, int64_t n_ctx, lk_plan *plan, lk_err *err) {
    if (!a->fit) return lk_plan_make(model, recipe, (size_t)n_ctx, a->stream, plan, err);
    *plan = largest(model, recipe, a);
    if (plan->n_tok) return LK_OK;
    /* Nothing fits: because of the size, or because the recipe does not suit the model? */
    lk_plan one;
    return lk_plan_make(model, recipe, 1, a->stream, &one, err);
}

/* Every preset, but for those that need a sidecar where there is none. */
static void take_presets(struct plan_args *a) {
    for (size_t i = 0; a->kv.n < LIST_MOST && lk_recipe_preset(i).name; i++) {
        lk_preset preset = lk_recipe_preset(i);
        if (a->model.sidecar || !preset.sidecar)
            a->kv.item[a->kv.n++] = preset.name;
        else
            a->left_out = true;
    }
}

/* Fill rows for every recipe and context. `given`: the recipes were asked for, so each must do; else
 * a preset that the model, or its sidecar, is not made for is left out. */
static int make_rows(const lk_model *model, const struct recipes *recipes,
                     const struct plan_args *a, bool given, struct row *row, size_t *n) {
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
                return complain_of(&err);
        }
    }
    return STATUS_OK;
}

int plan_verb(const struct verb *verb, int argc, char **argv) {
    static struct row row[LIST_MOST * LIST_MOST];
    struct plan_args a = {0};
    struct recipes recipes = {0};
    lk_model *model = NULL;
    enum args_result read = read_args(verb, argc, argv, &a);
    if (read != ARGS_RUN) return read == ARGS_HELP ? STATUS_OK : STATUS_BAD;
    if (a.fit && a.ctx.n) return complain("--fit finds a context; leave --ctx away");
    bool given = a.kv.n > 0;
    if (!given) take_presets(&a);
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
