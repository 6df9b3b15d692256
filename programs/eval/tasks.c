/* The table of tasks, and what their open functions share. */
#include "eval/tasks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct lk_task *const table[] = {
    &lk_task_text,      &lk_task_choice[0], &lk_task_choice[1], &lk_task_choice[2],
    &lk_task_choice[3], &lk_task_choice[4], &lk_task_choice[5], &lk_task_choice[6],
    &lk_task_agree,     &lk_task_bytes,     &lk_task_needle,    &lk_task_passkey,
    &lk_task_vt,        &lk_task_fwe,       &lk_task_qa,        &lk_task_gsm8k,
    &lk_task_mgsm,      &lk_task_summary,
};

/* Names that stand for several tasks. */
static const struct {
    const char *name, *task[8];
} group[] = {
    {"choice",
     {"arc_easy", "arc_challenge", "openbookqa", "piqa", "social_i_qa", "winogrande", "hellaswag"}},
    {"ruler", {"vt", "fwe", "qa"}},
};

enum { N_GROUP = sizeof group / sizeof group[0] };

const struct lk_task *lk_task_at(size_t i) {
    return i < sizeof table / sizeof table[0] ? table[i] : NULL;
}

const struct lk_task *lk_task_find(const char *name) {
    for (size_t i = 0; lk_task_at(i); i++)
        if (strcmp(lk_task_at(i)->name, name) == 0) return lk_task_at(i);
    return NULL;
}

const char *lk_task_group_name(size_t i) { return i < N_GROUP ? group[i].name : NULL; }

const struct lk_task *lk_task_group(const char *name, size_t i) {
    for (size_t g = 0; g < N_GROUP; g++)
        if (strcmp(group[g].name, name) == 0 &&
            i < sizeof group[g].task / sizeof group[g].task[0] && group[g].task[i])
            return lk_task_find(group[g].task[i]);
    return NULL;
}

size_t lk_task_limit(const struct lk_task_env *env, size_t n, size_t usual, size_t quick) {
    size_t most = env->opts->limit ? env->opts->limit : env->opts->quick && quick ? quick : usual;
    return most && most < n ? most : n;
}

lk_status lk_task_need_text(const struct lk_task_env *env, lk_err *err) {
    const struct lk_eval_opts *opts = env->opts;
    if (!opts->text)
        return lk_fail(err, LK_E_ARG, "%s needs a text: give --text FILE", env->task->name);
    if (!opts->text_len)
        return lk_fail(err, LK_E_ARG, "%s: the text %s is empty", env->task->name, opts->text_path);
    return LK_OK;
}

lk_status lk_task_data(const struct lk_task_env *env, const char *file, const char *what,
                       char *path, size_t cap, lk_err *err) {
    const char *data = env->opts->data;
    if (!data)
        return lk_fail(err, LK_E_ARG, "%s needs %s: give --data DIR with DIR/%s", env->task->name,
                       what, file);
    int n = snprintf(path, cap, "%s/%s", data, file);
    if (n < 0 || (size_t)n >= cap)
        return lk_fail(err, LK_E_ARG, "--data: the name %s is too long", data);
    if (access(path, R_OK) == 0) return LK_OK;
    return lk_fail(err, LK_E_IO, "%s needs %s: cannot read %s: %s", env->task->name, what, path,
                   strerror(errno));
}

lk_status lk_task_tokenize(const lk_model *model, const char *text, size_t len, int32_t **tok,
                           size_t *n_tok, lk_err *err) {
    int32_t *begin = NULL, *body = NULL, *both = NULL;
    size_t n_begin = 0, n_body = 0;
    lk_status status = lk_tokenize(model, "", 0, true, &begin, &n_begin, err);
    if (status == LK_OK) status = lk_tokenize(model, text, len, false, &body, &n_body, err);
    if (status == LK_OK) {
        both = malloc((n_begin + n_body + 1) * sizeof *both);
        if (!both) status = lk_fail(err, LK_E_NOMEM, "no memory for %zu tokens", n_begin + n_body);
    }
    if (status == LK_OK) {
        if (n_begin) memcpy(both, begin, n_begin * sizeof *both);
        if (n_body) memcpy(both + n_begin, body, n_body * sizeof *both);
        *tok = both;
        *n_tok = n_begin + n_body;
    }
    lk_tokens_free(begin);
    lk_tokens_free(body);
    return status;
}

char *lk_task_detokenize(const lk_model *model, const int32_t *tok, size_t n) {
    char piece[1024], *text = NULL;
    size_t len = 0, cap = 0;
    for (size_t i = 0; i <= n; i++) {
        size_t more = i < n ? lk_token_text(model, tok[i], piece, sizeof piece) : 0;
        if (more >= sizeof piece) more = sizeof piece - 1;
        if (len + more + 1 > cap) {
            cap = 2 * (len + more + 1);
            char *larger = realloc(text, cap);
            if (!larger) {
                free(text);
                return NULL;
            }
            text = larger;
        }
        memcpy(text + len, piece, more);
        len += more;
    }
    text[len] = 0;
    return text;
}
