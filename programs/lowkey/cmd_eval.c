/* lowkey eval: run tasks with recipes and with the full cache; results can be resumed. */
#include "auto_recipe.h"
#include "base/closest.h"
#include "cmd.h"
#include "common.h"
#include "eval/eval.h"
#include "eval/task.h"
#include "model_find.h"
#include "output.h"
#include "progress.h"
#include "table.h"
#include "text.h"
#include "xalloc.h"

#include <stdlib.h>
#include <string.h>

struct eval_args {
    struct model_args model;
    struct string_list kv;
    const char *text, *data, *output;
    int64_t limit, seed, ctx, min_answer, questions;
    bool quick, plain, json;
};

/* The tasks and groups of tasks as lines for --help, at most 80 columns wide. */
static void append_task_list(struct lk_buf *out) {
    enum { NAMES_PER_LINE = 4 };
    xbuf_printf(out, "Tasks\n");
    for (size_t i = 0; lk_task_at(i); i++)
        xbuf_printf(out, "  %-14s %s\n", lk_task_at(i)->name, lk_task_at(i)->summary);
    for (size_t i = 0; lk_task_group_name(i); i++) {
        const char *group = lk_task_group_name(i);
        xbuf_printf(out, "  %-14s", group);
        for (size_t t = 0; lk_task_in_group(group, t); t++) {
            bool wrap = t && t % NAMES_PER_LINE == 0;
            xbuf_printf(out, "%s%*s %s",
                        wrap ? ",\n"
                        : t  ? ","
                             : "",
                        wrap ? 16 : 0, "", lk_task_in_group(group, t)->name);
        }
        xbuf_printf(out, "\n");
    }
}

/* The names of tasks and groups as words for the shell completion. */
static void append_task_words(struct lk_buf *out) {
    for (size_t i = 0; lk_task_at(i); i++) xbuf_printf(out, "%s ", lk_task_at(i)->name);
    for (size_t i = 0; lk_task_group_name(i); i++)
        xbuf_printf(out, "%s%s", i ? " " : "", lk_task_group_name(i));
}

static int read_args(const struct command *command, int argc, char **argv, struct eval_args *a,
                     int *first) {
    const struct opt_group groups[] = {
        {"Evaluation",
         {
             {'k', "kv", "RECIPE",
              "preset, recipe or file, or auto, auto-3, auto-2 (default best-4), or llama.cpp:TYPE "
              "for libllama's cache of type f16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl or plain "
              "(f16 without flash attention); may be repeated",
              OPT_TEXTS, &a->kv,
              .complete = KV_WORDS
              " llama.cpp:f16 llama.cpp:q8_0 llama.cpp:q5_1 llama.cpp:q5_0 llama.cpp:q4_1 "
              "llama.cpp:q4_0 llama.cpp:iq4_nl llama.cpp:plain"},
             {0, "text", "FILE", "text for the tasks that need one; -: standard input", OPT_TEXT,
              &a->text},
             {0, "data", "DIR", "folder of data sets (default: $LOWKEY_DATA)", OPT_TEXT, &a->data},
             {'c', "ctx", "N", "context length in tokens (default: of the task)", OPT_INT, &a->ctx,
              4, 1 << 24},
             {'o', "output", "FILE",
              "append each result to FILE, as JSON lines for 'python -m lowkey.report'; the same "
              "command continues from it, also with more tasks, recipes or items",
              OPT_TEXT, &a->output},
             {0, "limit", "N", "maximum number of items of a task", OPT_INT, &a->limit, 1, 1 << 24},
             {0, "quick", NULL, "few and short items", OPT_FLAG, &a->quick},
             {0, "seed", "N", "random seed of generated tasks (default 1)", OPT_INT, &a->seed, 0,
              UINT32_MAX},
             {0, "plain", NULL, "ask questions without the model's chat template", OPT_FLAG,
              &a->plain},
             {0, "min-answer", "N",
              "minimum number of tokens of a generated answer (default 0), for small chat models "
              "that end their turn at once",
              OPT_INT, &a->min_answer, 0, 1 << 20},
             {0, "questions", "N",
              "questions about each document of vt and fwe, all documents of -c tokens (default: "
              "one, documents of several lengths)",
              OPT_INT, &a->questions, 1, 4},
             {0, "json", NULL, "print the results as JSON lines", OPT_FLAG, &a->json},
         }},
        model_options(&a->model, MODEL_RUN_ALONE),
    };
    return args_read(command, groups, sizeof groups / sizeof groups[0], argc, argv, first);
}

static int print_unknown_task(const char *name) {
    struct lk_closest closest = {.word = name, .len = strlen(name)};
    for (size_t i = 0; lk_task_at(i); i++) lk_closest_offer(&closest, lk_task_at(i)->name);
    for (size_t i = 0; lk_task_group_name(i); i++)
        lk_closest_offer(&closest, lk_task_group_name(i));
    return print_error("unknown task '%s'%s%s%s 'lowkey help eval' lists them", name,
                       closest.name ? ": did you mean '" : "", closest.name ? closest.name : "",
                       closest.name ? "'?" : ";");
}

/* The named tasks and the tasks of named groups, each once. task: [LK_MAX_EVAL_TASKS]. */
static int find_tasks(char **name, int n_name, const struct lk_task **task, size_t *n) {
    *n = 0;
    if (n_name == 0) return print_error("no task: give one or more; 'lowkey help eval' lists them");
    for (int i = 0; i < n_name; i++) {
        const struct lk_task *one = lk_task_find(name[i]);
        if (!one && !lk_task_in_group(name[i], 0)) return print_unknown_task(name[i]);
        for (size_t g = 0; one || lk_task_in_group(name[i], g); g++) {
            const struct lk_task *next = one ? one : lk_task_in_group(name[i], g);
            bool known = false;
            for (size_t t = 0; t < *n; t++) known |= task[t] == next;
            if (!known && *n == LK_MAX_EVAL_TASKS)
                return print_error("more than %d tasks", LK_MAX_EVAL_TASKS);
            if (!known) task[(*n)++] = next;
            if (one) break;
        }
    }
    return STATUS_OK;
}

/* The text of each recipe; files are read. text: [MAX_LIST], each to be freed; NULL: 'auto'. */
static int read_recipe_texts(const struct string_list *kv, char **text) {
    for (size_t i = 0; i < kv->n; i++) {
        lk_recipe *recipe = NULL;
        if (auto_size(kv->item[i])) continue;
        int status =
            lk_backend_is_llama(kv->item[i]) ? STATUS_OK : recipe_open(kv->item[i], &recipe);
        if (status) return status;
        text[i] = xasprintf("%s", recipe ? lk_recipe_text(recipe) : kv->item[i]);
        lk_recipe_free(recipe);
    }
    return STATUS_OK;
}

/* The texts of 'auto', which depend on the model. */
static int read_auto_texts(const struct string_list *kv, const lk_model *model, char **text) {
    for (size_t i = 0; i < kv->n; i++) {
        const struct string_list one = {.item = {kv->item[i]}, .n = 1};
        lk_recipe *recipe = NULL;
        if (text[i]) continue;
        int status = auto_recipe_of_size(model, auto_name_of(&one), true, &recipe);
        if (status) return status;
        text[i] = xasprintf("%s", lk_recipe_text(recipe));
        lk_recipe_free(recipe);
    }
    return STATUS_OK;
}

/* ---- progress ---- */

struct eval_progress {
    struct progress progress;
    char what[64];
};

static bool on_progress(void *user, const char *task, const char *kv, double done, double total) {
    struct eval_progress *w = user;
    snprintf(w->what, sizeof w->what, "%s%s%.40s", task, kv ? ", " : "", kv ? kv : "");
    w->progress.what = w->what;
    return progress_step(&w->progress, (uint64_t)done, (uint64_t)(total > 1 ? total : 1));
}

/* ---- output ---- */

static void format_metric(char *out, size_t cap, double value) {
    if (value >= 1e5)
        snprintf(out, cap, "%.0f", value);
    else
        snprintf(out, cap, "%.4g", value);
}

/* A cache as --kv has it, for a table: the text of a file's recipe is long. */
static const char *name_of(const struct lk_eval *eval, const struct string_list *given,
                           const char *kv) {
    for (size_t i = 0; i < given->n; i++)
        if (strcmp(eval->kv[i], kv) == 0) return given->item[i];
    return kv;
}

/* Print one task: a row per subject, a column per metric that any subject has. Returns whether
 * there was a result. `again`: after another table. */
static bool print_task_table(const struct lk_eval *eval, const struct string_list *given,
                             const struct lk_task *task, bool again) {
    const char *kv[LK_MAX_EVAL_KV],
        *column[MAX_TABLE_COLUMNS] = {"bits_per_value", "bytes_per_token"}, *name;
    size_t n_kv = lk_eval_list_kv(eval, task, kv), n_column = 2, n_row = 0;
    json_t *metric;
    char align[MAX_TABLE_COLUMNS + 1] = "lrr";
    for (size_t i = 0; i < n_kv; i++) {
        n_row += lk_results_result(eval->results, task->name, kv[i]) != NULL;
        json_object_foreach(
            json_object_get(lk_results_result(eval->results, task->name, kv[i]), "metrics"), name,
            metric) {
            bool known = false;
            for (size_t c = 0; c < n_column; c++) known |= strcmp(column[c], name) == 0;
            if (known || n_column + 1 == MAX_TABLE_COLUMNS) continue;
            align[n_column + 1] = 'r';
            column[n_column++] = name;
        }
    }
    if (!n_row) return false;
    if (again) putchar('\n');
    struct table table = table_new(align);
    table_cell(&table, "%s", task->name);
    for (size_t c = 0; c < n_column; c++) table_cell(&table, "%s", column[c]);
    for (size_t i = 0; i < n_kv; i++) {
        const json_t *metrics =
            json_object_get(lk_results_result(eval->results, task->name, kv[i]), "metrics");
        if (!metrics) continue;
        table_cell(&table, "%s", name_of(eval, given, kv[i]));
        for (size_t c = 0; c < n_column; c++) {
            const json_t *one = json_object_get(metrics, column[c]),
                         *error = json_object_get(one, "stderr");
            char a[NUMBER_BUF] = "", b[NUMBER_BUF];
            if (json_is_number(json_object_get(one, "value")))
                format_metric(a, sizeof a, json_number_value(json_object_get(one, "value")));
            format_metric(b, sizeof b, json_number_value(error));
            if (json_is_number(error) && json_number_value(error) > 0)
                table_cell(&table, "%s +-%s", a, b);
            else
                table_cell(&table, "%s", a);
        }
    }
    table_print(&table, stdout, true);
    return true;
}

static void print_tables(const struct lk_eval *eval, const struct string_list *given) {
    bool printed = false;
    for (size_t t = 0; t < eval->n_task; t++) {
        printed |= print_task_table(eval, given, eval->task[t], printed);
        const json_t *plain =
            lk_results_result(eval->results, eval->task[t]->name, "llama.cpp:plain");
        const json_t *kl =
            json_object_get(json_object_get(json_object_get(plain, "metrics"), "kl_mean"), "value");
        if (eval->task[t]->has_noise_floor && json_is_number(kl))
            print_paragraph(stdout,
                            "noise floor: KL %.4g is the difference between two f16 caches that "
                            "sum in a different order (llama.cpp with and without flash "
                            "attention). With --weights shipped, smaller values cannot be "
                            "distinguished from 0: use --weights f32",
                            json_number_value(kl));
    }
}

static int print_json_lines(const struct lk_eval *eval) {
    int status = STATUS_OK;
    for (size_t t = 0; t < eval->n_task && !status; t++) {
        const char *kv[LK_MAX_EVAL_KV];
        size_t n_kv = lk_eval_list_kv(eval, eval->task[t], kv);
        for (size_t i = 0; i < n_kv && !status; i++) {
            const json_t *result = lk_results_result(eval->results, eval->task[t]->name, kv[i]);
            if (result) status = json_print(json_incref((json_t *)result), true);
        }
    }
    return status;
}

/* ---- the command ---- */

static int run_tasks(const struct eval_args *a, struct lk_eval *eval, const char *command_line) {
    lk_err err = {0};
    struct eval_progress progress = {.progress = progress_start("evaluating")};
    eval->progress = on_progress;
    eval->user = &progress;
    json_t *header = lk_run_header(eval, command_line, &err);
    if (!header) return print_lk_error(&err);
    lk_status status = lk_results_open(&eval->results, a->output, header, &err);
    json_decref(header);
    if (status) return print_lk_error(&err);
    status = lk_eval_run(eval, &err);
    progress_end(&progress.progress);
    int exit_status = status ? print_lk_error(&err) : STATUS_OK;
    if (exit_status == STATUS_INTERRUPTED && a->output)
        print_error("interrupted; the same command continues from %s", a->output);
    if (!exit_status && a->json)
        exit_status = print_json_lines(eval);
    else if (!a->json)
        print_tables(eval, &a->kv);
    if (lk_results_close(eval->results, &err) && !exit_status) exit_status = print_lk_error(&err);
    lk_model_pair_close(&eval->models);
    return exit_status;
}

/* Look up 'auto' for the model, and warn if --ctx is more than it was trained for. The model itself
 * is opened later. */
static int read_header(const struct eval_args *a, char **kv) {
    struct model_args header = a->model;
    lk_model *model = NULL;
    header.header_only = true;
    header.sidecar = NULL;
    bool has_auto = false;
    for (size_t i = 0; i < a->kv.n; i++) has_auto |= kv[i] == NULL;
    if (!a->ctx && !has_auto) return STATUS_OK;
    int status = model_open(&header, false, &model);
    if (!status) status = read_auto_texts(&a->kv, model, kv);
    if (!status && a->ctx) warn_beyond_training(model, a->ctx);
    lk_model_free(model);
    return status;
}

int cmd_eval(const struct command *command, int argc, char **argv) {
    struct eval_args a = {.seed = 1, .data = getenv("LOWKEY_DATA")};
    const struct lk_task *task[LK_MAX_EVAL_TASKS];
    char *kv[MAX_LIST] = {NULL}, *path = NULL;
    struct lk_buf text = {0}, task_list = {0}, task_words = {0};
    struct lk_eval eval = {.task = task, .kv = (const char *const *)kv};
    int first;
    char *command_line = quoted_command_line(argc, argv);
    struct command with_tasks = *command;
    append_task_list(&task_list);
    append_task_words(&task_words);
    with_tasks.appendix = task_list.at;
    with_tasks.complete = task_words.at;
    int result = read_args(&with_tasks, argc, argv, &a, &first);
    lk_buf_free(&task_list);
    lk_buf_free(&task_words);
    if (result != ARGS_RUN) {
        free(command_line);
        return result;
    }
    if (a.data && !*a.data) a.data = NULL;
    if (!a.kv.n) a.kv.item[a.kv.n++] = "best-4";
    int status = find_tasks(argv + first, argc - first, task, &eval.n_task);
    if (!status) status = read_recipe_texts(&a.kv, kv);
    if (!status && a.text) status = read_text_file(a.text, "text", MAX_PROMPT_BYTES, &text);
    a.model.n_ctx = a.ctx;
    if (!status) status = model_opts_from_args(&a.model, &eval.models.opts);
    if (!status) status = model_find(a.model.model, false, &path);
    if (!status) status = read_header(&a, kv);
    if (!status) {
        eval.n_kv = a.kv.n;
        eval.models.path = path;
        eval.opts = (struct lk_eval_opts){.text_path = a.text,
                                          .text = text.at,
                                          .text_len = text.len,
                                          .data = a.data,
                                          .limit = (size_t)a.limit,
                                          .seed = (uint64_t)a.seed,
                                          .n_ctx = (int32_t)a.ctx,
                                          .plain = a.plain,
                                          .min_answer = (size_t)a.min_answer,
                                          .n_question = (size_t)a.questions,
                                          .quick = a.quick};
        status = run_tasks(&a, &eval, command_line);
    }
    for (size_t i = 0; i < a.kv.n; i++) free(kv[i]);
    lk_buf_free(&text);
    free(path);
    free(command_line);
    return status;
}
