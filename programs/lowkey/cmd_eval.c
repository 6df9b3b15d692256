/* lowkey eval: tasks under recipes, each against the full cache, with resumable results. */
#include "command_line.h"
#include "commands.h"
#include "common.h"
#include "eval/eval.h"
#include "model_find.h"
#include "progress.h"
#include "say.h"
#include "stats_print.h"
#include "table.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

struct eval_args {
    struct model_args model;
    struct texts kv;
    const char *text, *data, *output;
    int64_t limit, seed, ctx, shots;
    bool quick, json;
};

/* The examples, and then what tasks there are. To be freed. */
static char *help_text(const char *examples) {
    struct text text = {0};
    text_add(&text, examples, strlen(examples));
    text_add(&text, "\nTasks\n", 7);
    for (size_t i = 0; lk_task_at(i); i++) {
        char *line = must_print("  %-14s %s\n", lk_task_at(i)->name, lk_task_at(i)->summary);
        text_add(&text, line, strlen(line));
        free(line);
    }
    for (size_t i = 0; lk_task_group_name(i); i++) {
        char *line = must_print("  %-14s", lk_task_group_name(i));
        text_add(&text, line, strlen(line));
        free(line);
        for (size_t t = 0; lk_task_group(lk_task_group_name(i), t); t++) {
            line =
                must_print("%s%s", t ? ", " : " ", lk_task_group(lk_task_group_name(i), t)->name);
            text_add(&text, line, strlen(line));
            free(line);
        }
        text_add(&text, "\n", 1);
    }
    return text.at;
}

static enum args_result read_args(const struct verb *verb, int argc, char **argv,
                                  struct eval_args *a, int *first) {
    const struct opt_group groups[] = {
        {"What to evaluate",
         {
             {'k', "kv", "RECIPE", "preset, recipe, file, or llama.cpp:TYPE; may be repeated",
              OPT_TEXTS, &a->kv, 0, 0},
             {0, "text", "FILE", "text for tasks that are made from one", OPT_TEXT, &a->text, 0, 0},
             {0, "data", "DIR", "data sets of tasks that read some (default: $LOWKEY_DATA)",
              OPT_TEXT, &a->data, 0, 0},
             {0, "limit", "N", "most items of each task", OPT_INT, &a->limit, 1, 1 << 24},
             {0, "seed", "N", "of what tasks generate (default 1)", OPT_INT, &a->seed, 0,
              UINT32_MAX},
             {'c', "ctx", "N", "tokens of a context (default: the task's own)", OPT_INT, &a->ctx, 4,
              1 << 24},
             {0, "shots", "N", "solved questions before each question with choices (default 0)",
              OPT_INT, &a->shots, 0, 1000},
             {0, "quick", NULL, "few and short items", OPT_FLAG, &a->quick, 0, 0},
             {'o', "output", "FILE", "keep results here as they come, and go on from what is there",
              OPT_TEXT, &a->output, 0, 0},
             {0, "json", NULL, "print the results as JSON lines", OPT_FLAG, &a->json, 0, 0},
         }},
        model_options(&a->model),
    };
    return args_read(verb, groups, sizeof groups / sizeof groups[0], argc, argv, first);
}

/* The tasks named, groups taken apart, each once. */
static int choose_tasks(char **name, int n_name, const struct lk_task **task, size_t *n) {
    *n = 0;
    if (n_name == 0) return complain("no task: give some of those that 'lowkey help eval' lists");
    for (int i = 0; i < n_name; i++) {
        const struct lk_task *one = lk_task_find(name[i]);
        if (!one && !lk_task_group(name[i], 0))
            return complain("unknown task '%s'; 'lowkey help eval' lists them", name[i]);
        for (size_t g = 0; one || lk_task_group(name[i], g); g++) {
            const struct lk_task *next = one ? one : lk_task_group(name[i], g);
            bool had = false;
            for (size_t t = 0; t < *n; t++) had |= task[t] == next;
            if (!had && *n == LK_MAX_EVAL_TASKS)
                return complain("more than %d tasks", LK_MAX_EVAL_TASKS);
            if (!had) task[(*n)++] = next;
            if (one) break;
        }
    }
    return STATUS_OK;
}

/* Recipes as texts: files are read. text: [LIST_MOST], to be freed. */
static int read_recipes(const struct texts *kv, char **text) {
    for (size_t i = 0; i < kv->n; i++) {
        lk_recipe *recipe = NULL;
        int status =
            lk_subject_is_llama(kv->item[i]) ? STATUS_OK : recipe_open(kv->item[i], &recipe);
        if (status) return status;
        text[i] = must_print("%s", recipe ? lk_recipe_text(recipe) : kv->item[i]);
        lk_recipe_free(recipe);
    }
    return STATUS_OK;
}

/* ---- progress ---- */

struct watch {
    struct progress progress;
    char what[64];
};

static bool on_progress(void *user, const char *task, const char *kv, double done, double total) {
    struct watch *w = user;
    snprintf(w->what, sizeof w->what, "%s%s%.40s", task, kv ? ", " : "", kv ? kv : "");
    w->progress.what = w->what;
    return progress_step(&w->progress, (uint64_t)done, (uint64_t)(total > 1 ? total : 1));
}

/* ---- what is printed ---- */

static void print_number(char *out, size_t cap, double value) {
    if (value >= 1e5)
        snprintf(out, cap, "%.0f", value);
    else
        snprintf(out, cap, "%.4g", value);
}

/* One task: a row for each subject, a column for each metric that any of them has. */
static void print_task(const struct lk_eval *eval, const struct lk_task *task) {
    const char *kv[LK_MAX_EVAL_KV],
        *column[TABLE_COLUMNS_MOST] = {"bits_per_value", "bytes_per_token"}, *name;
    size_t n_kv = lk_eval_subjects(eval, task, kv), n_column = 2, n_row = 0;
    json_t *metric;
    char align[TABLE_COLUMNS_MOST + 1] = "lrr";
    for (size_t i = 0; i < n_kv; i++) {
        n_row += lk_results_result(eval->results, task->name, kv[i]) != NULL;
        json_object_foreach(
            json_object_get(lk_results_result(eval->results, task->name, kv[i]), "metrics"), name,
            metric) {
            bool had = false;
            for (size_t c = 0; c < n_column; c++) had |= strcmp(column[c], name) == 0;
            if (had || n_column + 1 == TABLE_COLUMNS_MOST) continue;
            align[n_column + 1] = 'r';
            column[n_column++] = name;
        }
    }
    if (!n_row) return;
    struct table table = table_new(align);
    table_cell(&table, "%s", task->name);
    for (size_t c = 0; c < n_column; c++) table_cell(&table, "%s", column[c]);
    for (size_t i = 0; i < n_kv; i++) {
        const json_t *metrics =
            json_object_get(lk_results_result(eval->results, task->name, kv[i]), "metrics");
        if (!metrics) continue;
        table_cell(&table, "%s", kv[i]);
        for (size_t c = 0; c < n_column; c++) {
            const json_t *one = json_object_get(metrics, column[c]),
                         *error = json_object_get(one, "stderr");
            char a[NUMBER_ROOM] = "", b[NUMBER_ROOM];
            if (json_is_number(json_object_get(one, "value")))
                print_number(a, sizeof a, json_number_value(json_object_get(one, "value")));
            print_number(b, sizeof b, json_number_value(error));
            if (json_is_number(error) && json_number_value(error) > 0)
                table_cell(&table, "%s +-%s", a, b);
            else
                table_cell(&table, "%s", a);
        }
    }
    table_print(&table, stdout, 1);
}

static void print_tables(const struct lk_eval *eval) {
    for (size_t t = 0; t < eval->n_task; t++) {
        if (t) putchar('\n');
        print_task(eval, eval->task[t]);
        const json_t *plain =
            lk_results_result(eval->results, eval->task[t]->name, "llama.cpp:plain");
        const json_t *kl =
            json_object_get(json_object_get(json_object_get(plain, "metrics"), "kl_mean"), "value");
        if (eval->task[t]->wants_floor && json_is_number(kl))
            printf("noise floor: KL %.4g is what the same f16 cache gives with sums in another "
                   "order (llama.cpp's plain against its\n"
                   "flash attention); smaller values cannot be told from 0 with weights as "
                   "shipped: use --weights f32\n",
                   json_number_value(kl));
    }
}

static int print_json_lines(const struct lk_eval *eval) {
    int status = STATUS_OK;
    for (size_t t = 0; t < eval->n_task && !status; t++) {
        const char *kv[LK_MAX_EVAL_KV];
        size_t n_kv = lk_eval_subjects(eval, eval->task[t], kv);
        for (size_t i = 0; i < n_kv && !status; i++) {
            const json_t *result = lk_results_result(eval->results, eval->task[t]->name, kv[i]);
            if (result) status = json_print(json_incref((json_t *)result), true);
        }
    }
    return status;
}

/* ---- the verb ---- */

static int evaluate(const struct eval_args *a, struct lk_eval *eval, const char *command) {
    lk_err err = {0};
    struct watch watch = {.progress = progress_begin("evaluating")};
    eval->progress = on_progress;
    eval->user = &watch;
    json_t *header = lk_eval_header(eval, command, &err);
    if (!header) return complain_of(&err);
    lk_status status = lk_results_open(&eval->results, a->output, header, &err);
    json_decref(header);
    if (status) return complain_of(&err);
    status = lk_eval_run(eval, &err);
    progress_end(&watch.progress);
    int ended = status ? complain_of(&err) : STATUS_OK;
    if (ended == STATUS_INTERRUPTED && a->output)
        complain("interrupted; the same command goes on from what %s holds", a->output);
    if (!ended && a->json)
        ended = print_json_lines(eval);
    else if (!a->json)
        print_tables(eval);
    lk_results_close(eval->results);
    lk_models_close(&eval->models);
    return ended;
}

int eval_verb(const struct verb *verb, int argc, char **argv) {
    struct eval_args a = {.seed = 1, .data = getenv("LOWKEY_DATA")};
    const struct lk_task *task[LK_MAX_EVAL_TASKS];
    char *kv[LIST_MOST] = {NULL}, *path = NULL;
    struct text text = {0};
    struct lk_eval eval = {.task = task, .kv = (const char *const *)kv};
    int first, status;
    char *command = command_line(argc, argv); /* before getopt sorts it */
    char *help = help_text(verb->examples);
    struct verb helpful = *verb;
    helpful.examples = help;
    enum args_result read = read_args(&helpful, argc, argv, &a, &first);
    free(help);
    if (read != ARGS_RUN) {
        free(command);
        return read == ARGS_HELP ? STATUS_OK : STATUS_BAD;
    }
    if (a.data && !*a.data) a.data = NULL;
    if (!a.kv.n) a.kv.item[a.kv.n++] = DEFAULT_RECIPE;
    status = choose_tasks(argv + first, argc - first, task, &eval.n_task);
    if (!status) status = read_recipes(&a.kv, kv);
    if (!status && a.text && !read_text(a.text, "text", PROMPT_BYTES_MOST, &text))
        status = interrupted() ? STATUS_INTERRUPTED : STATUS_BAD;
    if (!status) status = model_options_read(&a.model, &eval.models.opts);
    if (!status) status = model_find(a.model.model, false, &path);
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
                                          .shots = (size_t)a.shots,
                                          .quick = a.quick};
        status = evaluate(&a, &eval, command);
    }
    for (size_t i = 0; i < a.kv.n; i++) free(kv[i]);
    free(text.at);
    free(path);
    free(command);
    return status;
}
