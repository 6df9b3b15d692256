/* choice: which of several endings a model finds most likely. One task for each data set.
 *
 * acc counts questions whose right choice has the highest log-likelihood, acc_norm those where it has the
 * highest per token, as llama-perplexity --hellaswag counts. With --shots, solved questions from the end of
 * the data come first. */
#include "base/ledger.h"
#include "eval/choice.h"
#include "eval/tasks.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    QUICK = 20,
    SMALL_READ = 3
}; /* a read of few tokens takes as long as that many times as many */

/* A data set. */
struct set {
    const char *file; /* in --data; NULL: HellaSwag's */
    enum lk_choice_layout layout;
};

struct question {
    int32_t *tok[LK_MAX_CHOICES];
    size_t n_tok[LK_MAX_CHOICES], from[LK_MAX_CHOICES], n, answer;
};

struct choice {
    struct question *item; /* [n] */
    size_t n;
};

static void close_choice(void *state) {
    struct choice *c = state;
    for (size_t i = 0; i < c->n; i++)
        for (size_t j = 0; j < c->item[i].n; j++) free(c->item[i].tok[j]);
    free(c->item);
    free(c);
}

/* HellaSwag's file: the first hellaswag*.txt by name in the folder, whole or a part of it. */
static lk_status find_hellaswag(const struct lk_task_env *env, char *path, size_t cap,
                                lk_err *err) {
    char folder[512], name[256] = "";
    lk_status status =
        lk_task_data(env, "hellaswag", "questions, six lines each", folder, sizeof folder, err);
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
        return lk_fail(err, LK_E_IO, "%s needs questions: there is no hellaswag*.txt in %s",
                       env->task->name, folder);
    int n = snprintf(path, cap, "%s/%s", folder, name);
    return n > 0 && (size_t)n < cap ? LK_OK
                                    : lk_fail(err, LK_E_ARG, "--data: the name is too long");
}

static lk_status read_set(const struct lk_task_env *env, struct lk_choices *choices, lk_err *err) {
    const struct set *set = env->task->arg;
    char path[1024];
    if (!set->file) {
        lk_status status = find_hellaswag(env, path, sizeof path, err);
        return status == LK_OK ? lk_choices_read_hellaswag(choices, path, err) : status;
    }
    lk_status status =
        lk_task_data(env, set->file, "questions as JSON lines", path, sizeof path, err);
    return status == LK_OK ? lk_choices_read_jsonl(choices, set->layout, path, err) : status;
}

/* Solved questions from the end of the data, one after the other. */
static const char *solved(struct lk_choices *choices, size_t n_shot) {
    struct lk_string text = {.arena = &choices->arena};
    for (size_t i = 0; i < n_shot; i++) {
        const struct lk_choice *shot = &choices->item[choices->n - n_shot + i];
        lk_string_print(&text, "%s\n\n", shot->text[shot->answer]);
    }
    return lk_string_text(&text);
}

static lk_status tokenize(const struct lk_task_env *env, struct lk_choices *choices,
                          const char *before, size_t i, struct question *q, lk_err *err) {
    const struct set *set = env->task->arg;
    const struct lk_choice *item = &choices->item[i];
    q->answer = item->answer;
    for (size_t j = 0; j < item->n; j++) {
        const char *text = *before ? lk_arena_print(&choices->arena, "%s%s", before, item->text[j])
                                   : item->text[j];
        lk_status status =
            lk_task_tokenize(env->model, text, strlen(text), &q->tok[j], &q->n_tok[j], err);
        if (status != LK_OK) return status;
        q->n++;
    }
    if (lk_choice_scored(set->layout, q->tok, q->n_tok, q->n, q->from))
        return lk_arena_check(&choices->arena, err);
    return lk_fail(err, LK_E_FORMAT, "%s: the choices of question %zu do not differ",
                   env->task->name, i + 1);
}

static lk_status fill(const struct lk_task_env *env, struct lk_choices *choices, struct choice *c,
                      size_t *n_ctx, lk_err *err) {
    size_t n_shot = env->opts->shots;
    lk_status status = read_set(env, choices, err);
    if (status != LK_OK) return status;
    if (choices->n == 0)
        return lk_fail(err, LK_E_ARG, "%s: the data has no questions", env->task->name);
    if (choices->n <= n_shot)
        return lk_fail(err, LK_E_ARG,
                       "%s: the data has %zu questions, of which %zu are wanted as examples",
                       env->task->name, choices->n, n_shot);
    size_t n = lk_task_limit(env, choices->n - n_shot, 0, QUICK);
    const char *before = solved(choices, n_shot);
    c->item = calloc(n, sizeof *c->item);
    if (!c->item) return lk_fail(err, LK_E_NOMEM, "no memory for %zu questions", n);
    for (; status == LK_OK && c->n < n; c->n++) {
        status = tokenize(env, choices, before, c->n, &c->item[c->n], err);
        for (size_t j = 0; j < c->item[c->n].n; j++)
            if (c->item[c->n].n_tok[j] > *n_ctx) *n_ctx = c->item[c->n].n_tok[j];
    }
    return status;
}

static lk_status open_choice(const struct lk_task_env *env, struct lk_task_set *set, lk_err *err) {
    struct lk_ledger ledger = {0};
    struct lk_choices choices = {.arena = {.ledger = &ledger}};
    struct choice *c = calloc(1, sizeof *c);
    size_t n_ctx = 0;
    if (!c) return lk_fail(err, LK_E_NOMEM, "no memory for a task");
    lk_status status = fill(env, &choices, c, &n_ctx, err);
    lk_choices_free(&choices);
    if (status != LK_OK)
        close_choice(c);
    else
        *set = (struct lk_task_set){c, c->n, (int32_t)n_ctx};
    return status;
}

static void key_choice(const void *state, size_t i, char *key, size_t cap) {
    (void)state;
    snprintf(key, cap, "%zu", i + 1);
}

static double cost_choice(const void *state, size_t i) {
    const struct question *q = &((const struct choice *)state)->item[i];
    double cost = (double)q->from[0];
    for (size_t j = 0; j < q->n; j++) cost += SMALL_READ * (double)(q->n_tok[j] - q->from[j]);
    return cost;
}

/* What the choices begin with, as far as the first is not scored. */
static lk_status prompt_choice(const void *state, size_t i, int32_t **tok, size_t *n, lk_err *err) {
    const struct question *q = &((const struct choice *)state)->item[i];
    *tok = malloc(q->from[0] * sizeof **tok);
    if (!*tok) return lk_fail(err, LK_E_NOMEM, "no memory for a question");
    memcpy(*tok, q->tok[0], q->from[0] * sizeof **tok);
    *n = q->from[0];
    return LK_OK;
}

static lk_status run_choice(void *state, size_t i, struct lk_subject *subject, const json_t *full,
                            json_t *record, lk_err *err) {
    const struct question *q = &((const struct choice *)state)->item[i];
    double nll[LK_MAX_CHOICES], norm[LK_MAX_CHOICES];
    size_t best = 0, best_norm = 0;
    lk_status status = lk_subject_prompt(subject, q->tok[0], q->from[0], err);
    if (status == LK_OK) status = lk_subject_save(subject, err);
    for (size_t j = 0; j < q->n; j++) {
        bool same = q->from[j] == q->from[0] &&
                    memcmp(q->tok[j], q->tok[0], q->from[0] * sizeof **q->tok) == 0;
        if (status == LK_OK && j && same) status = lk_subject_restore(subject, err);
        if (status == LK_OK)
            status =
                lk_subject_nll(subject, q->tok[j], q->from[j], q->n_tok[j], &nll[j], NULL, err);
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

static lk_status summarise_choice(const void *state, const json_t *records, const json_t *full,
                                  struct lk_result *result, lk_err *err) {
    (void)state;
    (void)full;
    lk_metric_mean(result, "acc", records, "acc");
    lk_metric_mean(result, "acc_norm", records, "acc_norm");
    lk_metric_mean(result, "same_choice", records, "same_choice");
    lk_metric_mean(result, "answer_nll", records, "answer_nll");
    return lk_result_check(result, err);
}

static const struct set arc_easy = {"multichoice/arc_easy.jsonl", LK_CHOICE_QUESTION};
static const struct set arc_challenge = {"multichoice/arc_challenge.jsonl", LK_CHOICE_QUESTION};
static const struct set openbookqa = {"multichoice/openbookqa.jsonl", LK_CHOICE_SENTENCE};
static const struct set piqa = {"multichoice/piqa.jsonl", LK_CHOICE_QUESTION};
static const struct set social_i_qa = {"multichoice/social_i_qa.jsonl", LK_CHOICE_QUESTION};
static const struct set winogrande = {"multichoice/winogrande.jsonl", LK_CHOICE_BLANK};
static const struct set hellaswag = {NULL, LK_CHOICE_ENDING};

const struct lk_task lk_task_choice[LK_CHOICE_TASKS] = {
    {.name = "arc_easy",
     .summary = "grade-school science (ARC easy), from --data",
     .arg = &arc_easy,
     .open = open_choice,
     .close = close_choice,
     .key = key_choice,
     .cost = cost_choice,
     .prompt = prompt_choice,
     .run = run_choice,
     .summarise = summarise_choice},
    {.name = "arc_challenge",
     .summary = "grade-school science (ARC challenge), from --data",
     .arg = &arc_challenge,
     .open = open_choice,
     .close = close_choice,
     .key = key_choice,
     .cost = cost_choice,
     .prompt = prompt_choice,
     .run = run_choice,
     .summarise = summarise_choice},
    {.name = "openbookqa",
     .summary = "elementary science (OpenBookQA), from --data",
     .arg = &openbookqa,
     .open = open_choice,
     .close = close_choice,
     .key = key_choice,
     .cost = cost_choice,
     .prompt = prompt_choice,
     .run = run_choice,
     .summarise = summarise_choice},
    {.name = "piqa",
     .summary = "everyday physics (PIQA), from --data",
     .arg = &piqa,
     .open = open_choice,
     .close = close_choice,
     .key = key_choice,
     .cost = cost_choice,
     .prompt = prompt_choice,
     .run = run_choice,
     .summarise = summarise_choice},
    {.name = "social_i_qa",
     .summary = "social situations (SIQA), from --data",
     .arg = &social_i_qa,
     .open = open_choice,
     .close = close_choice,
     .key = key_choice,
     .cost = cost_choice,
     .prompt = prompt_choice,
     .run = run_choice,
     .summarise = summarise_choice},
    {.name = "winogrande",
     .summary = "what a gap stands for (WinoGrande), from --data",
     .arg = &winogrande,
     .open = open_choice,
     .close = close_choice,
     .key = key_choice,
     .cost = cost_choice,
     .prompt = prompt_choice,
     .run = run_choice,
     .summarise = summarise_choice},
    {.name = "hellaswag",
     .summary = "what happens next (HellaSwag), from --data",
     .arg = &hellaswag,
     .open = open_choice,
     .close = close_choice,
     .key = key_choice,
     .cost = cost_choice,
     .prompt = prompt_choice,
     .run = run_choice,
     .summarise = summarise_choice},
};
