/* lowkey tune: a recipe with its own bits for each layer, side and age of a model's cache. */
#include "auto_recipe.h"
#include "base/os.h"
#include "cmd.h"
#include "common.h"
#include "lowkey_lab.h"
#include "output.h"
#include "progress.h"
#include "table.h"
#include "text.h"
#include "tune_report.h"
#include "xalloc.h"

#include <stdlib.h>
#include <string.h>

struct tune_args {
    struct model_args model;
    struct string_list kv, text;
    struct number_list measure_bits;
    const char *check_text, *like, *budgets, *output, *state;
    double bits, max_kl;
    int64_t while_pid, memory, ctx, chunk, chunks, score, check_chunks, head_groups, min_k_bits,
        measure_memory, rounds;
    bool thorough, no_prompt, speed, json;
    bool stores; /* not an option: recipes for 'auto' */
};

static int read_args(const struct command *command, int argc, char **argv, struct tune_args *a) {
    enum { MAX_TOKENS = 1 << 24 };
    const struct opt_group groups[] = {
        {"What to tune",
         {
             {0, "text", "FILE",
              "a text to tune on; -: standard input; may be repeated: each gets an equal share of "
              "the chunks",
              OPT_TEXTS, &a->text},
             {0, "bits", "B",
              "the recipe's size in bits per value, everything counted (default without a size: "
              "those of best-4, best-3 and best-2, stored for --kv auto)",
              OPT_REAL, &a->bits, 0.5, 16},
             {0, "like", "RECIPE", "or the size of another recipe", OPT_TEXT, &a->like,
              .complete = "RECIPE"},
             {0, "memory", "MIB", "or the size in MiB at -c tokens", OPT_INT, &a->memory, 1,
              1 << 24},
             {0, "max-kl", "X", "or the smallest size with at most this KL", OPT_REAL, &a->max_kl,
              1e-6, 10},
             {0, "budgets", "RECIPE",
              "or a recipe with 'keep N% by replay': gives each layer its own share of the rows, "
              "in the same size",
              OPT_TEXT, &a->budgets, .complete = "RECIPE"},
             {'c', "ctx", "N", "tokens of a session whose size counts (default: --chunk)", OPT_INT,
              &a->ctx, 4, MAX_TOKENS},
             {'o', "output", "FILE",
              "write the recipe to FILE, with its figures as comments; --kv accepts it", OPT_TEXT,
              &a->output},
             {0, "speed", NULL,
              "use only codecs that all CPUs decode fast (no trellis): useful from 4 bits on, and "
              "for CPUs without AVX-512",
              OPT_FLAG, &a->speed},
             {0, "min-k-bits", "N",
              "minimum number of bits of keys (default 2); keys of one bit may lose much in longer "
              "contexts than those measured",
              OPT_INT, &a->min_k_bits, 1, 8},
             {0, "head-groups", "N",
              "groups of neighboring KV heads of a layer that have their own bits (default 8); 1: "
              "all have the same, and measuring takes less time",
              OPT_INT, &a->head_groups, 1, 8},
             {0, "while", "PID",
              "without a size: wait until the machine is idle, run with the lowest priority and "
              "only while this process runs, and print nothing",
              OPT_INT, &a->while_pid, 1, 1 << 30},
             {0, "json", NULL, "print JSON", OPT_FLAG, &a->json},
         }},
        {"How to measure",
         {
             {0, "thorough", NULL,
              "measure each head group with a cache of its own, and variants of the recipe, "
              "instead "
              "of estimating from one prefill: takes minutes to hours",
              OPT_FLAG, &a->thorough},
             {0, "chunk", "N",
              "tokens of a chunk (default 4096, or what the texts have and the model was trained "
              "for; with --thorough 1024)",
              OPT_INT, &a->chunk, 4, MAX_TOKENS},
             {0, "chunks", "N",
              "number of chunks to tune on, spread over the texts (default: one of each text, at "
              "least 2)",
              OPT_INT, &a->chunks, 1, 1 << 20},
             {0, "score", "N",
              "predictions to score at the end of a chunk (default 16; with --thorough its second "
              "half); the tokens before them are prefilled once for many recipes",
              OPT_INT, &a->score, 1, MAX_TOKENS},
             {0, "check-text", "FILE",
              "text for the table at the end (default: none; with --thorough the last quarter of "
              "each --text)",
              OPT_TEXT, &a->check_text},
             {0, "check-chunks", "N", "number of its chunks (default 4)", OPT_INT, &a->check_chunks,
              1, 1 << 20},
             {'k', "kv", "RECIPE",
              "recipe in that table, for comparison; may be repeated (default best-4, best-3, "
              "best-2)",
              OPT_TEXTS, &a->kv},
             {0, "measure-bits", "N[,N...]",
              "numbers of bits at which each head group is measured (default 2); others are "
              "interpolated",
              OPT_NUMBERS, &a->measure_bits, 1, 8},
             {0, "no-prompt", NULL,
              "with --thorough: measure head groups without an exact prompt, as recipes are "
              "measured; "
              "takes twice the time",
              OPT_FLAG, &a->no_prompt},
             {0, "rounds", "N", "rounds of measuring variants (default 0; with --thorough 2)",
              OPT_INT, &a->rounds, 0, 16},
             {0, "measure-memory", "MIB",
              "memory for caches that are measured at the same time (default 768)", OPT_INT,
              &a->measure_memory, 1, 1 << 24},
             {0, "state", "FILE",
              "file of all measurements (default: OUTPUT.state); an interrupted run continues from "
              "it, and other sizes need few more",
              OPT_TEXT, &a->state},
         }},
        model_options(&a->model, MODEL_FITTED),
    };
    return args_read(command, groups, sizeof groups / sizeof groups[0], argc, argv, NULL);
}

/* ---- texts ---- */

/* Append n chunks that are spread over `text`, or all that it has if they are fewer. */
static void add_chunks(struct tokens *out, const struct tokens *text, size_t chunk, size_t n) {
    size_t n_have = text->n / chunk;
    if (n > n_have) n = n_have;
    out->at = xrealloc(out->at, (out->n + n * chunk + 1) * sizeof *out->at);
    for (size_t i = 0; i < n; i++, out->n += chunk)
        memcpy(out->at + out->n, text->at + i * n_have / n * chunk, chunk * sizeof *out->at);
}

/* ---- steps ---- */

/* The budget of --memory or --bits, in bytes at n_ctx tokens. */
static int find_budget(const struct tune_args *a, const lk_model *model, uint64_t *bytes) {
    lk_err err = {0};
    lk_recipe *f16 = NULL;
    lk_plan plan;
    lk_session_opts opts = {.n_ctx = (int32_t)(a->ctx ? a->ctx : a->chunk)};
    *bytes = (uint64_t)a->memory << 20;
    if (a->bits == 0) return STATUS_OK;
    int status = recipe_open("f16", &f16);
    if (!status && lk_plan_make(model, f16, &opts, &plan, &err)) status = print_lk_error(&err);
    if (!status) *bytes = (uint64_t)(a->bits / 16 * (double)plan.f16_bytes);
    lk_recipe_free(f16);
    return status;
}

/* Print a failure. After an interruption, say what to do. */
static int fail_step(const struct tune_args *a, const lk_err *err) {
    if (err->code == LK_E_CANCELLED && a->state)
        fprintf(stderr, "lowkey: interrupted; the same command continues from %s\n", a->state);
    return print_lk_error(err);
}

/* Measure and find the recipe. `like`: NULL without --like. */
static int find_recipe(const struct tune_args *a, lk_tune *tune, struct progress *progress,
                       uint64_t max_bytes, const lk_recipe *like, lk_tuned *tuned) {
    lk_err err = {0};
    *progress = progress_start(a->thorough ? "measuring heads" : "estimating");
    lk_status status = lk_tune_measure(tune, &err);
    progress_end(progress);
    if (!status) {
        *progress = progress_start("measuring recipes");
        status = like        ? lk_tune_solve_like(tune, like, tuned, NULL, &err)
                 : max_bytes ? lk_tune_solve(tune, max_bytes, tuned, &err)
                             : lk_tune_solve_kl(tune, a->max_kl, tuned, &err);
        progress_end(progress);
    }
    return status ? fail_step(a, &err) : STATUS_OK;
}

/* Write what was found to the file and to the terminal. tune: may be NULL. */
static int write_report(const struct tune_args *a, const struct tune_report *report,
                        lk_tune *tune) {
    int status = a->output ? tune_report_write(report, a->output) : STATUS_OK;
    if (!status && a->json) status = tune_report_print_json(report, tune);
    if (!status && !a->json) tune_report_print(report);
    return status;
}

/* Is there a text to check on? */
static bool has_check(const struct tune_args *a) { return a->thorough || a->check_text; }

/* Measure on the text of the check, if there is one, and write the results. */
static int report(const struct tune_args *a, lk_model *model, lk_tune *tune,
                  struct progress *progress, const struct tokens *check, const lk_tuned *tuned,
                  const char *command_line) {
    lk_err err = {0};
    struct recipes others = {0};
    const lk_recipe *recipe[MAX_LIST + 1];
    lk_compare_result checked[MAX_LIST + 1];
    char *name = model_name(model);
    struct tune_report r = {.command_line = command_line,
                            .model = name,
                            .weights = a->model.weights ? a->model.weights : "shipped",
                            .text = &a->text,
                            .check_text = a->check_text,
                            .tuned = tuned,
                            .recipe = recipe,
                            .checked = checked,
                            .n_layer = lk_model_get_info(model).n_cached,
                            .chunk = (int)a->chunk};
    int status = has_check(a) ? recipes_open(&a->kv, NULL, &others) : STATUS_OK;
    if (!status) status = auto_recipes_open(&a->model, model, &others);
    for (size_t i = 0; i < others.n; i++) recipe[r.n++] = others.item[i];
    if (has_check(a)) {
        recipe[r.n++] = tuned->recipe;
        *progress = progress_start("checking");
        if (!status && lk_tune_check(tune, recipe, r.n, check->at, check->n,
                                     (int32_t)a->check_chunks, checked, &err))
            status = fail_step(a, &err);
        progress_end(progress);
    }
    if (!status) status = write_report(a, &r, tune);
    recipes_free(&others);
    free(name);
    return status;
}

static int tune_model(const struct tune_args *a, lk_model *model, struct tokens *text,
                      const struct tokens *check, const char *command_line) {
    lk_err err = {0};
    lk_tune *tune = NULL;
    lk_tuned tuned = {0};
    lk_recipe *like = NULL;
    struct progress progress = progress_start("measuring heads");
    int32_t bits[MAX_LIST];
    uint64_t max_bytes = 0;
    for (size_t i = 0; i < a->measure_bits.n; i++) bits[i] = (int32_t)a->measure_bits.item[i];
    lk_tune_opts opts = {.estimate = !a->thorough,
                         .n_ctx = (int32_t)a->ctx,
                         .chunk = (int32_t)a->chunk,
                         .n_chunk = (int32_t)a->chunks,
                         .n_scored = (int32_t)a->score,
                         .max_bytes = (uint64_t)a->measure_memory << 20,
                         .bits = bits,
                         .n_bits = a->measure_bits.n,
                         .max_groups = (int32_t)a->head_groups,
                         .min_k_bits = (int32_t)a->min_k_bits,
                         .n_round = a->rounds ? (int32_t)a->rounds : -1,
                         .no_prompt = a->no_prompt,
                         .fast = a->speed,
                         .state = a->state,
                         .progress = progress_step,
                         .user = &progress};
    int status = find_budget(a, model, &max_bytes);
    if (!status && a->like) status = recipe_open(a->like, &like);
    if (!status && lk_tune_new(&tune, model, text->at, text->n, &opts, &err))
        status = print_lk_error(&err);
    if (!status) status = find_recipe(a, tune, &progress, max_bytes, like, &tuned);
    if (!status) status = report(a, model, tune, &progress, check, &tuned, command_line);
    lk_recipe_free(tuned.recipe);
    lk_recipe_free(like);
    lk_tune_free(tune);
    return status;
}

/* --budgets: shares of the rows that the layers keep. */
static int tune_budgets(const struct tune_args *a, lk_model *model, const struct tokens *text,
                        const char *command_line) {
    lk_err err = {0};
    lk_recipe *like = NULL;
    lk_tuned tuned = {0};
    struct progress progress = progress_start("replaying");
    lk_budget_opts opts = {.chunk = (int32_t)a->chunk,
                           .n_ctx = (int32_t)a->ctx,
                           .progress = progress_step,
                           .user = &progress};
    lk_session_opts planned = {.n_ctx = (int32_t)(a->ctx ? a->ctx : a->chunk)};
    int status = recipe_open(a->budgets, &like);
    if (!status && (lk_tune_budgets(&tuned.recipe, model, like, text->at, text->n, &opts, &err) ||
                    lk_plan_make(model, tuned.recipe, &planned, &tuned.plan, &err)))
        status = print_lk_error(&err);
    progress_end(&progress);
    char *name = model_name(model);
    struct tune_report report = {.command_line = command_line,
                                 .model = name,
                                 .weights = a->model.weights ? a->model.weights : "shipped",
                                 .text = &a->text,
                                 .tuned = &tuned,
                                 .chunk = (int)a->chunk};
    if (!status) status = write_report(a, &report, NULL);
    free(name);
    lk_recipe_free(tuned.recipe);
    lk_recipe_free(like);
    return status;
}

/* Part i of n items that the texts share. */
static size_t share_of(const struct tune_args *a, int64_t n_item, size_t i) {
    return (size_t)n_item * (i + 1) / a->text.n - (size_t)n_item * i / a->text.n;
}

/* Tokens of a text that tuning may use. */
static size_t count_used(const struct tune_args *a, const struct tokens *text) {
    return a->check_text || !a->thorough ? text->n : text->n / 4 * 3;
}

/* Tokens of a chunk of an estimate: what the texts have and the model was trained for. */
static int64_t default_chunk(const struct tune_args *a, const lk_model *model,
                             const struct tokens *text, const struct tokens *check) {
    enum { MIN_CHUNK = 512 };
    size_t chunk = auto_max_chunk(model);
    for (size_t i = 0; i < a->text.n; i++) {
        size_t share = share_of(a, a->chunks, i);
        if (share && text[i].n / share < chunk) chunk = text[i].n / share;
    }
    if (a->check_text && check->n < chunk) chunk = check->n;
    return chunk < MIN_CHUNK ? MIN_CHUNK : (int64_t)chunk;
}

/* Add the chunks of text i to what is tuned on, and to what is checked on. */
static int use_text(const struct tune_args *a, const struct tokens *text, size_t i,
                    struct tokens *used, struct tokens *check) {
    size_t chunk = (size_t)a->chunk, n_used = count_used(a, text),
           share = share_of(a, a->chunks, i);
    if (n_used / chunk < share)
        return print_error("the text %s has %zu tokens to tune on, less than %zu chunks of %zu; "
                           "use a longer text or fewer chunks",
                           a->text.item[i], n_used, share, chunk);
    add_chunks(used, &(struct tokens){text->at, n_used}, chunk, share);
    if (!a->check_text && a->thorough)
        add_chunks(check, &(struct tokens){text->at + n_used, text->n - n_used}, chunk,
                   share_of(a, a->check_chunks, i));
    return STATUS_OK;
}

/* Which texts to tune on and to check on, as tokens. Sets the default of --chunk. */
static int read_texts(struct tune_args *a, const lk_model *model, struct tokens *used,
                      struct tokens *check) {
    struct tokens text[MAX_LIST] = {0};
    int status = a->check_text ? read_tokens(model, a->check_text, check) : STATUS_OK;
    for (size_t i = 0; i < a->text.n && !status; i++)
        status = read_tokens(model, a->text.item[i], &text[i]);
    if (!status && !a->chunk) a->chunk = default_chunk(a, model, text, check);
    for (size_t i = 0; i < a->text.n; i++) {
        if (!status) status = use_text(a, &text[i], i, used, check);
        free(text[i].at);
    }
    size_t chunk = (size_t)a->chunk;
    if (!status && has_check(a) && check->n < chunk)
        status = print_error("the text of the check has less than one chunk of %zu tokens; use a "
                             "longer text or a smaller --chunk",
                             chunk);
    return status;
}

/* ---- recipes for 'auto' ---- */

/* lk_progress that ends with the process of --while. */
static bool is_wanted(void *user, uint64_t done, uint64_t total) {
    const struct tune_args *a = user;
    (void)done, (void)total;
    return lk_os_process_runs(a->while_pid);
}

/* Print a table of the stored recipes. */
static int print_stored(const struct tune_args *a, const lk_model *model) {
    struct table table = table_new("lrl");
    lk_session_opts opts = {.n_ctx = AUTO_CTX};
    json_t *list = json_array();
    int status = STATUS_OK;
    table_titles(&table, "recipe|bits/value|file");
    for (int i = 0; !status && i < AUTO_SIZES; i++) {
        const char *name = auto_names[i].name;
        lk_recipe *recipe = NULL;
        lk_err err = {0};
        lk_plan plan = {0};
        char *path = auto_recipe_path(model, &auto_names[i]);
        status = auto_recipe_of_size(model, &auto_names[i], true, &recipe);
        if (!status && lk_plan_make(model, recipe, &opts, &plan, &err))
            status = print_lk_error(&err);
        table_cell(&table, "%s", name);
        table_cell(&table, "%.3f", plan.bits_per_value);
        table_cell(&table, "%s", path);
        json_array_append_new(list, json_pack("{s:s s:o s:s s:s}", "name", name, "bits_per_value",
                                              json_number(plan.bits_per_value), "file", path, "kv",
                                              status ? "" : lk_recipe_text(recipe)));
        lk_recipe_free(recipe);
        free(path);
    }
    if (!status && a->json)
        status = json_print(json_pack("{s:O}", "stored", list), false);
    else if (!status)
        table_print(&table, stdout, true);
    json_decref(list);
    return status;
}

static int store_recipes(struct tune_args *a) {
    struct tokens text = {0};
    lk_model *model = NULL;
    if (a->while_pid && !auto_recipes_wait(a->while_pid)) return STATUS_OK;
    a->model.no_repack = a->while_pid != 0; /* maps the pages that are in memory already */
    int status = model_open(&a->model, false, &model);
    if (!status && a->text.n) status = read_tokens(model, a->text.item[0], &text);
    struct progress progress = progress_start("tuning");
    if (!status)
        status = auto_recipes_make(model, a->text.n ? &text : NULL,
                                   a->while_pid ? is_wanted : progress_step,
                                   a->while_pid ? (void *)a : (void *)&progress);
    progress_end(&progress);
    if (!status && !a->while_pid) status = print_stored(a, model);
    free(text.at);
    lk_model_free(model);
    return status;
}

static int run(struct tune_args *a, const char *command_line) {
    lk_model *model = NULL;
    struct tokens used = {0}, check = {0};
    int status = model_open(&a->model, false, &model);
    if (!status) status = read_texts(a, model, &used, &check);
    if (!status)
        status = a->budgets ? tune_budgets(a, model, &used, command_line)
                            : tune_model(a, model, &used, &check, command_line);
    free(used.at);
    free(check.at);
    lk_model_free(model);
    return status;
}

static void set_defaults(struct tune_args *a) {
    if (!a->chunk && (a->thorough || a->budgets)) a->chunk = 1024; /* else: read_texts */
    int64_t fewest = a->budgets ? 4 : 2;
    if (!a->chunks) a->chunks = (int64_t)a->text.n < fewest ? fewest : (int64_t)a->text.n;
    if (a->rounds < 0) a->rounds = a->thorough ? 2 : 0;
    if (!a->check_chunks) a->check_chunks = 4;
    if (a->kv.n == 0)
        for (; a->kv.n < 3; a->kv.n++)
            a->kv.item[a->kv.n] = (const char *const[]){"best-4", "best-3", "best-2"}[a->kv.n];
}

/* Does an option say how bits are measured? */
static bool says_how(const struct tune_args *a) {
    return a->speed || a->min_k_bits || a->head_groups || a->thorough || a->score ||
           a->measure_bits.n || a->no_prompt || a->rounds >= 0 || a->measure_memory || a->state;
}

/* Does an option say what to check on? */
static bool says_check(const struct tune_args *a) {
    return a->check_text || a->check_chunks || a->kv.n;
}

/* Without a size, recipes for 'auto' are stored. Only --text, --while and --json have an effect on
 * that. */
static bool is_for_auto(const struct tune_args *a) {
    bool has_size = a->bits > 0 || a->like || a->budgets || a->memory > 0 || a->max_kl > 0;
    return !has_size && !a->output && !a->ctx && !a->chunk && !a->chunks && !says_check(a) &&
           !says_how(a);
}

static int check_args(struct tune_args *a) {
    int n_goal = (a->bits > 0) + (a->like != NULL) + (a->budgets != NULL) + (a->memory > 0) +
                 (a->max_kl > 0);
    if (a->stores && a->text.n > 1) return print_error("without a size, give at most one --text");
    if (a->stores) return STATUS_OK;
    if (a->while_pid) return print_error("--while is for tuning without a size");
    if (!a->text.n) return print_error("no text: give --text FILE");
    if ((size_t)a->chunks < a->text.n)
        return print_error("%zu texts need --chunks %zu or more", a->text.n, a->text.n);
    if (a->no_prompt && !a->thorough) return print_error("--no-prompt needs --thorough");
    if (n_goal != 1)
        return print_error("give one of --bits, --like, --budgets, --memory and --max-kl, not %d",
                           n_goal);
    if (a->memory && !a->ctx)
        return print_error("--memory: the size depends on the context; give -c N");
    int status = a->output ? check_writable(a->output) : STATUS_OK;
    if (!status && a->state) status = check_writable(a->state);
    return status;
}

int cmd_tune(const struct command *command, int argc, char **argv) {
    struct tune_args a = {.rounds = -1};
    char *command_line = quoted_command_line(argc, argv);
    int read = read_args(command, argc, argv, &a);
    if (read != ARGS_RUN) {
        free(command_line);
        return read;
    }
    a.stores = is_for_auto(&a);
    if (a.budgets && (says_how(&a) || says_check(&a))) {
        free(command_line);
        return print_error("--budgets measures no bits: besides a text and a model it takes only "
                           "--chunk, --chunks, -c, -o and --json");
    }
    char *state = a.output && !a.budgets && !a.state ? xasprintf("%s.state", a.output) : NULL;
    if (state) a.state = state;
    catch_interrupts();
    set_defaults(&a);
    int status = check_args(&a);
    if (!status) status = a.stores ? store_recipes(&a) : run(&a, command_line);
    free(state);
    free(command_line);
    return status;
}
