/* Multiple choice: which of several endings the model finds most likely. One task per data set.
 *
 * acc is the share of questions whose right choice has the highest log-likelihood. acc_norm uses
 * the log-likelihood per token, like llama-perplexity --hellaswag. With --shots, solved questions
 * from the end of the data come first. */
#include "base/buf.h"
#include "base/ledger.h"
#include "eval/choice_set.h"
#include "eval/task_list.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUICK = 20 };
enum { SMALL_BATCH_COST = 3 }; /* cost of a token in a small batch, relative to prefill */

struct choice_data_set {
    const char *file; /* in --data; NULL: HellaSwag */
    enum lk_choice_layout layout;
};

struct choice_item {
    int32_t *tok[LK_MAX_CHOICES];
    size_t n_tok[LK_MAX_CHOICES], from[LK_MAX_CHOICES], n, answer;
};

struct choice_task {
    struct choice_item *item; /* [n] */
    size_t n;
};

static void close_choice(void *state) {
    struct choice_task *c = state;
    for (size_t i = 0; i < c->n; i++)
        for (size_t j = 0; j < c->item[i].n; j++) free(c->item[i].tok[j]);
    free(c->item);
    free(c);
}

/* Find HellaSwag's file: the first hellaswag*.txt by name in the folder. */
static lk_status find_hellaswag(const struct lk_task_env *env, char *path, size_t cap,
                                lk_err *err) {
    char folder[512], name[256] = "";
    lk_status status = lk_task_data_path(env, "hellaswag", "questions of six lines each", folder,
                                         sizeof folder, err);
    if (status != LK_OK) return status;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        size_t len = strlen(entry->d_name);
        if (len < 4 || len >= sizeof name || strncmp(entry->d_name, "hellaswag", 9) != 0 ||
            strcmp(entry->d_name + len - 4, ".txt") != 0)
            continue;
        if (!*name || strcmp(entry->d_name, name) < 0) memcpy(name, entry->d_name, len + 1);
    }
    if (dir) closedir(dir);
    if (!*name)
        return lk_fail(err, LK_E_IO, "%s needs questions: %s has no hellaswag*.txt",
                       env->task->name, folder);
    int n = snprintf(path, cap, "%s/%s", folder, name);
    return n > 0 && (size_t)n < cap ? LK_OK
                                    : lk_fail(err, LK_E_ARG, "--data: the name is too long");
}

static lk_status read_data_set(const struct lk_task_env *env, struct lk_choice_set *choices,
                               lk_err *err) {
    const struct choice_data_set *set = env->task->arg;
    char path[1024];
    if (!set->file) {
        lk_status status = find_hellaswag(env, path, sizeof path, err);
        return status == LK_OK ? lk_choice_set_read_hellaswag(choices, path, err) : status;
    }
    lk_status status =
        lk_task_data_path(env, set->file, "questions as JSON lines", path, sizeof path, err);
    return status == LK_OK ? lk_choice_set_read_jsonl(choices, set->layout, path, err) : status;
}

/* The text of n_shot solved questions from the end of the data. */
static const char *solved_examples(struct lk_choice_set *choices, size_t n_shot) {
    struct lk_buf text = {0};
    for (size_t i = 0; i < n_shot; i++) {
        const struct lk_choice_question *shot = &choices->item[choices->n - n_shot + i];
        lk_buf_printf(&text, "%s\n\n", shot->text[shot->answer]);
    }
    return lk_arena_take_buf(&choices->arena, &text);
}

static lk_status tokenize_choices(const struct lk_task_env *env, struct lk_choice_set *choices,
                                  const char *before, size_t i, struct choice_item *q,
                                  lk_err *err) {
    const struct choice_data_set *set = env->task->arg;
    const struct lk_choice_question *item = &choices->item[i];
    q->answer = item->answer;
    for (size_t j = 0; j < item->n; j++) {
        const char *text = *before ? lk_arena_printf(&choices->arena, "%s%s", before, item->text[j])
                                   : item->text[j];
        lk_status status =
            lk_task_tokenize(env->model, text, strlen(text), &q->tok[j], &q->n_tok[j], err);
        if (status != LK_OK) return status;
        q->n++;
    }
    if (lk_choice_find_scored(set->layout, q->tok, q->n_tok, q->n, q->from))
        return lk_arena_check(&choices->arena, err);
    return lk_fail(err, LK_E_FORMAT, "%s: the choices of question %zu do not differ",
                   env->task->name, i + 1);
}

static lk_status read_items(const struct lk_task_env *env, struct lk_choice_set *choices,
                            struct choice_task *c, size_t *n_ctx, lk_err *err) {
    size_t n_shot = env->opts->shots;
    lk_status status = read_data_set(env, choices, err);
    if (status != LK_OK) return status;
    if (choices->n == 0)
        return lk_fail(err, LK_E_ARG, "%s: the data has no questions", env->task->name);
    if (choices->n <= n_shot)
        return lk_fail(
            err, LK_E_ARG,
            "%s: the data has %zu questions, too few for %zu examples; give a smaller --shots",
            env->task->name, choices->n, n_shot);
    size_t n = lk_task_limit(env, choices->n - n_shot, 0, QUICK);
    const char *before = solved_examples(choices, n_shot);
    c->item = calloc(n, sizeof *c->item);
    if (!c->item) return lk_fail(err, LK_E_NOMEM, "no memory for %zu questions", n);
    for (; status == LK_OK && c->n < n; c->n++) {
        status = tokenize_choices(env, choices, before, c->n, &c->item[c->n], err);
        for (size_t j = 0; j < c->item[c->n].n; j++)
            if (c->item[c->n].n_tok[j] > *n_ctx) *n_ctx = c->item[c->n].n_tok[j];
    }
    return status;
}

static lk_status open_choice(const struct lk_task_env *env, struct lk_open_task *out, lk_err *err) {
    struct lk_ledger ledger = {0};
    struct lk_choice_set choices = {.arena = {.ledger = &ledger}};
    struct choice_task *c = calloc(1, sizeof *c);
    size_t n_ctx = 0;
    if (!c) return lk_fail(err, LK_E_NOMEM, "no memory for a task");
    lk_status status = read_items(env, &choices, c, &n_ctx, err);
    lk_choice_set_free(&choices);
    if (status != LK_OK)
        close_choice(c);
    else
        *out = (struct lk_open_task){c, c->n, (int32_t)n_ctx};
    return status;
}

static void key_choice(const void *state, size_t i, char *key, size_t cap) {
    (void)state;
    snprintf(key, cap, "%zu", i + 1);
}

static double cost_choice(const void *state, size_t i) {
    const struct choice_item *q = &((const struct choice_task *)state)->item[i];
    double cost = (double)q->from[0];
    for (size_t j = 0; j < q->n; j++) cost += SMALL_BATCH_COST * (double)(q->n_tok[j] - q->from[j]);
    return cost;
}

/* The tokens of the first choice that are not scored. */
static lk_status prompt_choice(const void *state, size_t i, int32_t **tok, size_t *n, lk_err *err) {
    const struct choice_item *q = &((const struct choice_task *)state)->item[i];
    *tok = malloc(q->from[0] * sizeof **tok);
    if (!*tok) return lk_fail(err, LK_E_NOMEM, "no memory for a question");
    memcpy(*tok, q->tok[0], q->from[0] * sizeof **tok);
    *n = q->from[0];
    return LK_OK;
}

static lk_status run_choice(void *state, size_t i, struct lk_backend *backend, const json_t *full,
                            json_t *record, lk_err *err) {
    const struct choice_item *q = &((const struct choice_task *)state)->item[i];
    double nll[LK_MAX_CHOICES], norm[LK_MAX_CHOICES];
    size_t best = 0, best_norm = 0;
    lk_status status = lk_backend_prefill(backend, q->tok[0], q->from[0], err);
    if (status == LK_OK) status = lk_backend_save(backend, err);
    for (size_t j = 0; j < q->n; j++) {
        bool same = q->from[j] == q->from[0] &&
                    memcmp(q->tok[j], q->tok[0], q->from[0] * sizeof **q->tok) == 0;
        if (status == LK_OK && j && same) status = lk_backend_restore(backend, err);
        if (status == LK_OK)
            status =
                lk_backend_nll(backend, q->tok[j], q->from[j], q->n_tok[j], &nll[j], NULL, err);
        if (status != LK_OK) return status;
        norm[j] = nll[j] / (double)(q->n_tok[j] - q->from[j]);
        if (nll[j] < nll[best]) best = j;
        if (norm[j] < norm[best_norm]) best_norm = j;
    }
    json_t *list = json_array();
    for (size_t j = 0; j < q->n; j++) json_array_append_new(list, lk_json_number(nll[j]));
    json_object_set_new(record, "nll", list);
    json_object_set_new(record, "choice", json_integer((json_int_t)best_norm));
    json_object_set_new(record, "acc", json_boolean(best == q->answer));
    json_object_set_new(record, "acc_norm", json_boolean(best_norm == q->answer));
    json_object_set_new(record, "answer_nll", lk_json_number(norm[q->answer]));
    if (full)
        json_object_set_new(record, "same_choice",
                            json_boolean(lk_record_number(full, "choice") == (double)best_norm));
    return LK_OK;
}

static lk_status summarize_choice(const void *state, const json_t *records, const json_t *full,
                                  struct lk_task_result *result, lk_err *err) {
    (void)state;
    (void)full;
    lk_add_mean(result, "acc", records, "acc");
    lk_add_mean(result, "acc_norm", records, "acc_norm");
    lk_add_mean(result, "same_choice", records, "same_choice");
    lk_add_mean(result, "answer_nll", records, "answer_nll");
    return lk_task_result_check(result, err);
}

/* A task for each data set. HellaSwag's file is found by find_hellaswag. */
#define CHOICE_TASK(NAME, FILE, LAYOUT, SUMMARY)                                                   \
    {                                                                                              \
        .name = NAME, .summary = SUMMARY, .arg = &(const struct choice_data_set){FILE, LAYOUT},    \
        .open = open_choice, .close = close_choice, .key = key_choice, .cost = cost_choice,        \
        .prompt = prompt_choice, .run = run_choice, .summarize = summarize_choice                  \
    }

const struct lk_task lk_task_choice[LK_CHOICE_TASKS] = {
    CHOICE_TASK("arc_easy", "multichoice/arc_easy.jsonl", LK_CHOICE_QUESTION,
                "grade-school science (ARC easy), from --data"),
    CHOICE_TASK("arc_challenge", "multichoice/arc_challenge.jsonl", LK_CHOICE_QUESTION,
                "grade-school science (ARC challenge), from --data"),
    CHOICE_TASK("openbookqa", "multichoice/openbookqa.jsonl", LK_CHOICE_SENTENCE,
                "elementary science (OpenBookQA), from --data"),
    CHOICE_TASK("piqa", "multichoice/piqa.jsonl", LK_CHOICE_QUESTION,
                "everyday physics (PIQA), from --data"),
    CHOICE_TASK("social_i_qa", "multichoice/social_i_qa.jsonl", LK_CHOICE_QUESTION,
                "social situations (SIQA), from --data"),
    CHOICE_TASK("winogrande", "multichoice/winogrande.jsonl", LK_CHOICE_BLANK,
                "the word for a gap (WinoGrande), from --data"),
    CHOICE_TASK("hellaswag", NULL, LK_CHOICE_ENDING, "what happens next (HellaSwag), from --data"),
};
