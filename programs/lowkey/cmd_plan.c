/* lowkey plan: the memory that contexts need. */
#include "auto_recipe.h"
#include "cmd.h"
#include "common.h"
#include "lowkey_cluster.h"
#include "lowkey_serve.h"
#include "model_find.h"
#include "output.h"
#include "plan_speed.h"
#include "table.h"
#include "xalloc.h"

#include <stdlib.h>
#include <string.h>

struct plan_args {
    struct model_args model;
    struct string_list kv;
    struct number_list ctx;
    int64_t fit;      /* MiB; 0: --fit is not given */
    int64_t sessions; /* 0: --sessions is not given, one */
    int64_t ranks;
    const char *speed;         /* results of lowkey bench; NULL: no speed is planned */
    double latency, bandwidth; /* ms and Gbit/s between ranks */
    bool stream, json;
    bool presets;         /* no --kv is given */
    bool presets_omitted; /* presets that need a sidecar */
};

enum { MAX_TOKENS = 1 << 24, MAX_STAGES = 64 };

/* What the processes of each stage open: their layers of the model. */
struct stages {
    lk_model *model[MAX_STAGES];
    int n;
};

/* One row of the output. */
struct plan_row {
    const char *kv, *name; /* its text; how tables call it */
    const lk_recipe *recipe;
    int stage;
    lk_plan plan;
    /* With --speed: seconds of decoding a token at this depth in one process and on the ranks, the
     * exchanges of that, and the depth from which on the ranks are faster (ranks_win_from). */
    double one_seconds, ranks_seconds;
    lk_cluster_stats exchanged;
    uint64_t win_from;
};

static int read_args(const struct command *command, int argc, char **argv, struct plan_args *a) {
    const struct opt_group groups[] = {
        {"What to plan",
         {
             {'k', "kv", "RECIPE",
              "preset, recipe or file; may be repeated (default: every preset)", OPT_TEXTS, &a->kv},
             {'c', "ctx", "N[,N...]", "context lengths in tokens (default: as trained)",
              OPT_NUMBERS, &a->ctx, 1, MAX_TOKENS},
             {0, "fit", "MIB",
              "find the largest context whose peak fits in MIB, or what it has on the device of "
              "the "
              "cache",
              OPT_INT, &a->fit, 1, 1 << 24},
             {0, "stream", NULL, "plan for prefill through the compressed cache", OPT_FLAG,
              &a->stream},
             {0, "sessions", "N", "number of sessions that share the sidecar (default 1)", OPT_INT,
              &a->sessions, 1, 1 << 20},
             {0, "ranks", "N",
              "processes that divide the cache (default 1): the memory of the one that needs most",
              OPT_INT, &a->ranks, 1, 1024},
             {0, "speed", "FILE",
              "plan the speed of decoding on the ranks too, from the output of 'lowkey bench "
              "--json' for these recipes at two or more depths in one process",
              OPT_TEXT, &a->speed, .complete = "*.json"},
             {0, "latency", "MS",
              "with --speed: milliseconds of a small exchange between all ranks (default 0.05)",
              OPT_REAL, &a->latency, 0, 1000},
             {0, "bandwidth", "GBIT",
              "with --speed: Gbit/s that a rank can receive (default 10); 0: not limited", OPT_REAL,
              &a->bandwidth, 0, 1e6},
             {0, "json", NULL, "print JSON", OPT_FLAG, &a->json},
         }},
        model_options(&a->model, MODEL_PLANNED),
    };
    return args_read(command, groups, sizeof groups / sizeof groups[0], argc, argv, NULL);
}

/* The plan of n_tok tokens for the ranks of a stage. */
static lk_status plan_tokens(const lk_model *model, const lk_recipe *recipe,
                             const struct plan_args *a, size_t n_tok, lk_plan *plan, lk_err *err) {
    lk_session_opts opts = {.n_ctx = (int32_t)n_tok, .chunked_prefill = a->stream};
    return lk_plan_make_peers(model, recipe, &opts, (int32_t)a->ranks, plan, err);
}

/* What a session has on the device of its cache, and what its weights have there. */
static uint64_t there_bytes(const lk_plan *plan) {
    return plan->device_bytes + plan->device_cache_bytes + plan->device_scratch_bytes +
           plan->device_shared_bytes;
}

/* Does every stage have room for n_tok tokens? */
static bool fits(const struct stages *stages, const lk_recipe *recipe, size_t n_tok,
                 const struct plan_args *a) {
    lk_plan plan;
    for (int i = 0; i < stages->n; i++)
        if (plan_tokens(stages->model[i], recipe, a, n_tok, &plan, NULL) ||
            (plan.device_cache_bytes ? there_bytes(&plan) : plan.peak_bytes) > (uint64_t)a->fit
                                                                                   << 20)
            return false;
    return true;
}

/* The largest context that fits; 0 if not even one token fits. */
static size_t largest_context(const struct stages *stages, const lk_recipe *recipe,
                              const struct plan_args *a) {
    size_t low = 0, high = MAX_TOKENS; /* low fits, high does not */
    if (fits(stages, recipe, high, a)) return high;
    while (low + 1 < high) {
        size_t middle = low + (high - low) / 2;
        if (fits(stages, recipe, middle, a))
            low = middle;
        else
            high = middle;
    }
    return low;
}

static double compression_ratio(const lk_plan *plan) {
    return plan->cache_bytes ? (double)plan->f16_bytes / (double)plan->cache_bytes : 0.0;
}

static uint64_t n_sessions(const struct plan_args *a) {
    return a->sessions ? (uint64_t)a->sessions : 1;
}

/* ---- prices ---- */

/* Bits per value of n sessions, with what they need of the sidecar. */
static double bits_with_sidecar(const lk_plan *plan, uint64_t n) {
    return 16.0 * (double)lk_plan_bytes(plan, n) / ((double)n * (double)plan->f16_bytes);
}

/* The number of sessions from which on `a`, with a sidecar, is smaller than `b`; 0: never. */
static uint64_t sessions_to_win(const lk_plan *a, const lk_plan *b) {
    uint64_t each_a = a->cache_bytes + a->derived_bytes, each_b = b->cache_bytes + b->derived_bytes;
    if (each_a >= each_b) return 0;
    return a->sidecar_bytes / (each_b - each_a) + 1;
}

/* The number of tokens from which on n sessions of recipe `a` are smaller than n of `b`; 0: never
 * up to MAX_TOKENS. */
static uint64_t tokens_to_win(const lk_model *model, const lk_recipe *a, const lk_recipe *b,
                              uint64_t n) {
    uint64_t low = 0, high = MAX_TOKENS; /* `a` is smaller at high */
    for (uint64_t at = high; low + 1 < high; at = low + (high - low) / 2) {
        lk_session_opts opts = {.n_ctx = (int32_t)at};
        lk_plan plan_a, plan_b;
        if (lk_plan_make(model, a, &opts, &plan_a, NULL) ||
            lk_plan_make(model, b, &opts, &plan_b, NULL))
            return 0;
        bool smaller = lk_plan_bytes(&plan_a, n) < lk_plan_bytes(&plan_b, n);
        if (at == MAX_TOKENS && !smaller) return 0;
        if (smaller)
            high = at;
        else
            low = at;
    }
    return high;
}

/* From where on recipes with a sidecar are smaller than those without. */
static void print_break_even(const struct plan_row *row, size_t n, const struct plan_args *a,
                             const lk_model *model) {
    uint64_t sessions = n_sessions(a);
    char tokens[NUMBER_BUF], count[NUMBER_BUF];
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            const lk_plan *x = &row[i].plan, *y = &row[j].plan;
            if (!x->sidecar_bytes || y->sidecar_bytes || x->n_tok != y->n_tok) continue;
            uint64_t least = sessions_to_win(x, y);
            format_count(tokens, x->n_tok);
            if (least)
                print_paragraph(stdout,
                                "%s with its sidecar is smaller than %s from %s session%s "
                                "of %s tokens on.",
                                row[i].name, row[j].name, format_count(count, least),
                                least == 1 ? "" : "s", tokens);
            else
                print_paragraph(stdout, "%s is not smaller than %s at %s tokens.", row[i].name,
                                row[j].name, tokens);
            bool last = true; /* the recipes' last context length */
            for (size_t k = i + 1; k < n; k++) last = last && strcmp(row[k].kv, row[i].kv) != 0;
            uint64_t n_tok =
                last ? tokens_to_win(model, row[i].recipe, row[j].recipe, sessions) : 0;
            if (n_tok)
                print_paragraph(stdout, "With %s session%s, it is from %s tokens on.",
                                format_count(count, sessions), sessions == 1 ? "" : "s",
                                format_count(tokens, n_tok));
        }
}

/* ---- output ---- */

/* Add the planned speed to each plan of `list`. */
static void add_speed_json(json_t *list, const struct plan_row *row, const struct plan_args *a) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *speed =
            json_pack("{s:I s:o s:o s:I s:I s:o}", "ranks", (json_int_t)a->ranks, "decode_tps_one",
                      json_number(1 / row[i].one_seconds), "decode_tps",
                      json_number(1 / row[i].ranks_seconds), "exchanges_per_token",
                      (json_int_t)row[i].exchanged.n_exchange, "received_per_token",
                      (json_int_t)row[i].exchanged.bytes, "ranks_win_from",
                      row[i].win_from ? json_integer((json_int_t)row[i].win_from) : json_null());
        json_object_update_new(json_array_get(list, i), speed);
    }
}

/* Layers and weights of each stage. */
static json_t *stages_json(const struct stages *stages) {
    json_t *list = json_array();
    for (int i = 0; i < stages->n; i++) {
        lk_peer_weights w;
        if (!lk_model_get_peer(stages->model[i], 0, &w)) continue;
        json_array_append_new(list, json_pack("{s:i s:i s:I s:I}", "first_layer",
                                              (int)w.first_layer, "n_layer", (int)w.n_layer,
                                              "weight_bytes", (json_int_t)w.weight_bytes,
                                              "table_bytes", (json_int_t)w.table_bytes));
    }
    return list;
}

static int print_json(const struct plan_row *row, size_t n, const struct plan_args *a,
                      const struct stages *stages) {
    const lk_model *model = stages->model[0];
    uint64_t sessions = n_sessions(a);
    json_t *list = json_array();
    char *name = model_name(model);
    for (size_t i = 0; i < n; i++) {
        const lk_plan *p = &row[i].plan;
        json_array_append_new(
            list,
            json_pack("{s:s s:I s:I s:I s:o s:o s:I s:I s:I s:I s:I s:I s:o s:i s:I s:I s:I s:I}",
                      "kv", row[i].kv, "n_tok", (json_int_t)p->n_tok, "cache_bytes",
                      (json_int_t)p->cache_bytes, "f16_bytes", (json_int_t)p->f16_bytes, "ratio",
                      json_number(compression_ratio(p)), "bits_per_value",
                      json_number(p->bits_per_value), "weight_bytes", (json_int_t)p->weight_bytes,
                      "scratch_bytes", (json_int_t)p->scratch_bytes, "peak_bytes",
                      (json_int_t)p->peak_bytes, "sidecar_bytes", (json_int_t)p->sidecar_bytes,
                      "derived_bytes", (json_int_t)p->derived_bytes, "total_bytes",
                      (json_int_t)lk_plan_bytes(p, sessions), "bits_with_sidecar",
                      json_number(bits_with_sidecar(p, sessions)), "stage", row[i].stage,
                      "device_bytes", (json_int_t)p->device_bytes, "device_cache_bytes",
                      (json_int_t)p->device_cache_bytes, "device_scratch_bytes",
                      (json_int_t)p->device_scratch_bytes, "device_shared_bytes",
                      (json_int_t)p->device_shared_bytes));
    }
    if (a->speed) add_speed_json(list, row, a);
    int status = json_print(json_pack("{s:s s:o s:o s:I s:I}", "model", name, "plans", list,
                                      "stages", stages_json(stages), "file_bytes",
                                      (json_int_t)lk_model_get_info(model).file_bytes, "sessions",
                                      (json_int_t)sessions),
                            false);
    free(name);
    return status;
}

/* The planned speed, as a second table. */
static void print_speed(const struct plan_row *row, size_t n, const struct plan_args *a) {
    struct table table = table_new("lrrrrrr");
    char b[NUMBER_BUF];
    table_titles(&table, "recipe|tokens|one t/s|ranks t/s|exchanges|received|faster from");
    for (size_t i = 0; i < n; i++) {
        table_cell(&table, "%s", row[i].name);
        table_cell(&table, "%s", format_count(b, row[i].plan.n_tok));
        table_cell(&table, "%.2f", 1 / row[i].one_seconds);
        table_cell(&table, "%.2f", 1 / row[i].ranks_seconds);
        table_cell(&table, "%s", format_count(b, row[i].exchanged.n_exchange));
        table_cell(&table, "%s", format_bytes(b, row[i].exchanged.bytes));
        table_cell(&table, "%s", row[i].win_from ? format_count(b, row[i].win_from) : "-");
    }
    putchar('\n');
    table_print(&table, stdout, true);
    putchar('\n');
    print_paragraph(stdout,
                    "t/s: tokens per second, decoded one by one with so many tokens in the cache, "
                    "in one process and on %lld ranks with a latency of %g ms and %g Gbit/s; "
                    "exchanges and received: of a rank, per token; faster from: the number of "
                    "tokens in the cache from which on %lld ranks are faster than one.",
                    (long long)a->ranks, a->latency, a->bandwidth, (long long)a->ranks);
}

/* Layers and weights of each stage, in words. */
static void print_stages(const struct stages *stages) {
    for (int i = 0; i < stages->n; i++) {
        lk_peer_weights w;
        char a[NUMBER_BUF], b[NUMBER_BUF];
        if (!lk_model_get_peer(stages->model[i], 0, &w)) continue;
        print_paragraph(stdout, "Stage %d: layers %d to %d, %s of weights and %s of tables.", i,
                        w.first_layer, w.first_layer + w.n_layer - 1,
                        format_bytes(a, w.weight_bytes), format_bytes(b, w.table_bytes));
    }
}

static bool shows_sidecar(const struct plan_args *a) { return a->model.sidecar || a->sessions; }

static void print_plans(const struct plan_row *row, size_t n, const struct plan_args *a,
                        bool several) {
    const bool sidecar = shows_sidecar(a);
    const uint64_t sessions = n_sessions(a);
    char columns[16];
    snprintf(columns, sizeof columns, "l%srrRrRRRr%s", several ? "r" : "", sidecar ? "RrR" : "");
    struct table table = table_new(columns);
    table_titles(&table, several ? "recipe|stage" : "recipe");
    table_titles(&table, "tokens|cache|f16 cache|ratio|bits|weights|scratch|peak");
    if (sidecar) table_titles(&table, "sidecar|total|bits");
    for (size_t i = 0; i < n; i++) {
        const lk_plan *p = &row[i].plan;
        char b[NUMBER_BUF];
        table_cell(&table, "%s", row[i].name);
        if (several) table_cell(&table, "%d", row[i].stage);
        table_cell(&table, "%s%s", format_count(b, p->n_tok),
                   p->n_tok == MAX_TOKENS && a->fit ? "+" : "");
        table_cell(&table, "%s", format_bytes(b, p->cache_bytes));
        table_cell(&table, "%s", format_bytes(b, p->f16_bytes));
        table_cell(&table, "%.2fx", compression_ratio(p));
        table_cell(&table, "%.2f", p->bits_per_value);
        table_cell(&table, "%s", format_bytes(b, p->weight_bytes));
        table_cell(&table, "%s", format_bytes(b, p->scratch_bytes));
        table_cell(&table, "%s", format_bytes(b, p->peak_bytes));
        if (!sidecar) continue;
        table_cell(&table, "%s", format_bytes(b, p->sidecar_bytes));
        table_cell(&table, "%s", format_bytes(b, lk_plan_bytes(p, sessions)));
        table_cell(&table, "%.2f", bits_with_sidecar(p, sessions));
    }
    table_print(&table, stdout, true);
    putchar('\n');
}

/* The table of plans and what its columns mean. */
static void print_table(const struct plan_row *row, size_t n, const struct plan_args *a,
                        const struct stages *stages) {
    const lk_model_info info = lk_model_get_info(stages->model[0]);
    const uint64_t sessions = n_sessions(a);
    bool beyond_trained = false;
    char b[NUMBER_BUF];
    for (size_t i = 0; i < n; i++)
        beyond_trained = beyond_trained || row[i].plan.n_tok > (uint64_t)info.n_ctx_train;
    print_plans(row, n, a, stages->n > 1);
    print_paragraph(stdout, "ratio: f16 cache / cache; bits: of the cache, per value; peak: of "
                            "everything, during prefill");
    if (a->ranks > 1)
        print_paragraph(stdout, "Memory of each of %lld ranks; f16 cache: of all of them.",
                        (long long)a->ranks);
    if (stages->n > 1) print_stages(stages);
    if (shows_sidecar(a))
        print_paragraph(
            stdout,
            "sidecar: the part that the recipe needs, shared by sessions; total and bits: "
            "the caches of %s session%s and the sidecar",
            format_count(b, sessions), sessions == 1 ? "" : "s");
    if (shows_sidecar(a) && !a->presets && a->ranks == 1)
        print_break_even(row, n, a, stages->model[0]);
    if (info.device)
        print_paragraph(stdout, "On %s: %d of %d layers, %s with activations.", info.device,
                        info.n_device_layers, info.n_layer,
                        format_bytes(b, row[0].plan.device_bytes));
    if (row[0].plan.device_cache_bytes)
        print_paragraph(
            stdout,
            "The cache is on %s, in its slabs, with at most %s for its passes and "
            "the sidecar, and not part of the peak.",
            a->model.cache_device ? a->model.cache_device : a->model.device,
            format_bytes(b, row[0].plan.device_scratch_bytes + row[0].plan.device_shared_bytes));
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

/* Plan the speed of every row, from the measurements of --speed. */
static int plan_speed(struct plan_row *row, size_t n, const struct plan_args *a,
                      const lk_model *model) {
    const struct network network = {a->latency / 1e3, a->bandwidth * 1e9 / 8};
    const lk_cluster_stats none = {0};
    char *name = model_name(model);
    int status = STATUS_OK;
    for (size_t i = 0; !status && i < n; i++) {
        struct plan_row *r = &row[i];
        struct decode_cost cost;
        lk_err err = {0};
        status = decode_cost_read(a->speed, name, r->kv, &cost);
        if (!status && lk_plan_exchanges(model, r->recipe, (int32_t)a->ranks, &r->exchanged, &err))
            status = print_lk_error(&err);
        if (status) break;
        r->one_seconds = decode_seconds(&cost, &network, &none, r->plan.n_tok, 1);
        r->ranks_seconds =
            decode_seconds(&cost, &network, &r->exchanged, r->plan.n_tok, (int32_t)a->ranks);
        r->win_from = ranks_win_from(&cost, &network, &r->exchanged, (int32_t)a->ranks);
    }
    free(name);
    return status;
}

/* Plan every preset, except those that need a sidecar if there is none. */
static void add_presets(struct plan_args *a) {
    lk_preset preset;
    for (size_t i = 0; a->kv.n < MAX_LIST && lk_recipe_preset(i, &preset); i++) {
        if (a->model.sidecar || !preset.compress)
            a->kv.item[a->kv.n++] = preset.name;
        else
            a->presets_omitted = true;
    }
}

/* Plan the presets that were tuned for the model, too. */
static int add_tuned_presets(const lk_model *model, struct recipes *recipes) {
    int status = STATUS_OK;
    lk_preset preset;
    for (size_t i = 0; !status && recipes->n < MAX_LIST && lk_model_tuned(model, i, &preset); i++) {
        const char *name = preset.name;
        status = recipe_open(name, &recipes->item[recipes->n]);
        recipes->name[recipes->n] = name;
        recipes->n += !status;
    }
    return status;
}

/* Plan a recipe and a context length for each stage, or with --fit the largest context. */
static lk_status make_plans(const struct stages *stages, const lk_recipe *recipe, const char *name,
                            const struct plan_args *a, int64_t n_ctx, struct plan_row *row,
                            lk_err *err) {
    size_t n_tok = a->fit ? largest_context(stages, recipe, a) : (size_t)n_ctx;
    lk_status status = LK_OK;
    for (int i = 0; !status && i < stages->n; i++) {
        row[i] = (struct plan_row){
            .kv = lk_recipe_text(recipe), .name = name, .recipe = recipe, .stage = i};
        /* Nothing fits: report an error if the recipe is not possible for this model at all. */
        status = plan_tokens(stages->model[i], recipe, a, n_tok ? n_tok : 1, &row[i].plan, err);
        if (n_tok == 0) row[i].plan = (lk_plan){0};
    }
    return status;
}

/* Plan every recipe and context length. `given`: the recipes come from --kv, so each must be
 * possible; otherwise presets that do not work with the model or its sidecar are skipped. */
static int make_rows(const struct stages *stages, const struct recipes *recipes,
                     const struct plan_args *a, bool given, struct plan_row *row, size_t *n) {
    *n = 0;
    for (size_t i = 0; i < recipes->n; i++) {
        for (size_t j = 0; j < a->ctx.n; j++) {
            lk_err err = {0};
            lk_status status = make_plans(stages, recipes->item[i], recipes->name[i], a,
                                          a->ctx.item[j], &row[*n], &err);
            if (!status)
                *n += (size_t)stages->n;
            else if (given ||
                     (status != LK_E_UNSUPPORTED && !(a->model.sidecar && status == LK_E_ARG)))
                return print_lk_error(&err);
        }
    }
    return STATUS_OK;
}

/* Open the model, or each of its stages. */
static int open_stages(const struct plan_args *a, struct stages *out) {
    lk_model_opts opts;
    lk_err err = {0};
    char *path = NULL;
    int n_stage = a->model.stages ? (int)a->model.stages : 1;
    int status = model_opts_from_args(&a->model, &opts);
    if (!status) status = model_find(a->model.model, false, &path);
    for (; !status && out->n < n_stage; out->n += !status)
        if (lk_model_open_stage(&out->model[out->n], path, &opts, out->n, n_stage, &err))
            status = print_lk_error(&err);
    free(path);
    return status;
}

int cmd_plan(const struct command *command, int argc, char **argv) {
    struct plan_args a = {.model.header_only = true, .latency = 0.05, .bandwidth = 10};
    struct recipes recipes = {0};
    struct stages stages = {0};
    struct plan_row *row = NULL;
    int result = read_args(command, argc, argv, &a);
    if (result != ARGS_RUN) return result;
    if (a.speed && !a.kv.n)
        return print_error("--speed: give the recipes that were measured with --kv");
    if (a.fit && a.ctx.n) return print_error("--fit and --ctx cannot be used together");
    if (a.ranks == 0) a.ranks = a.model.stages ? a.model.stages : 1;
    bool given = a.kv.n > 0;
    a.presets = !given;
    if (!given) add_presets(&a);
    int status = recipes_open(&a.kv, "f16", &recipes);
    if (!status) status = open_stages(&a, &stages);
    if (!status) status = auto_recipes_open(&a.model, stages.model[0], &recipes);
    if (!status && !given) status = add_tuned_presets(stages.model[0], &recipes);
    if (!status) {
        lk_model_info info = lk_model_get_info(stages.model[0]);
        if (!a.ctx.n) a.ctx.item[a.ctx.n++] = info.n_ctx_train > 0 ? info.n_ctx_train : 4096;
        size_t n = 0;
        row = xmalloc(recipes.n * a.ctx.n * (size_t)stages.n * sizeof *row);
        status = make_rows(&stages, &recipes, &a, given, row, &n);
        if (!status && a.speed) status = plan_speed(row, n, &a, stages.model[0]);
        if (!status && a.json)
            status = print_json(row, n, &a, &stages);
        else if (!status)
            print_table(row, n, &a, &stages);
        if (!status && a.speed && !a.json) print_speed(row, n, &a);
    }
    free(row);
    for (int i = 0; i < stages.n; i++) lk_model_free(stages.model[i]);
    recipes_free(&recipes);
    return status;
}
