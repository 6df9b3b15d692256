#include "eval/choice.h"

#include "base/ledger.h"
#include "eval/jsonl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct lk_choice *new_item(struct lk_choices *out) {
    if (out->n == out->cap) {
        size_t cap = out->cap ? 2 * out->cap : 256;
        struct lk_choice *item = realloc(out->item, cap * sizeof *item);
        if (!item) return NULL;
        out->item = item;
        out->cap = cap;
    }
    return memset(&out->item[out->n], 0, sizeof *out->item);
}

lk_status lk_choice_make(struct lk_choices *out, enum lk_choice_layout layout, const char *question,
                         const char *const *choice, size_t n, size_t answer, lk_err *err) {
    const char *blank = strchr(question, '_');
    if (n < 2 || n > LK_MAX_CHOICES)
        return lk_fail(err, LK_E_FORMAT, "%zu choices; 2 to %d are possible", n, LK_MAX_CHOICES);
    if (answer >= n)
        return lk_fail(err, LK_E_FORMAT, "the answer is choice %zu of %zu, counted from 0", answer,
                       n);
    if (layout == LK_CHOICE_BLANK && (!blank || !blank[1]))
        return lk_fail(err, LK_E_FORMAT, "the sentence has no '_' with words after it");
    struct lk_choice *item = new_item(out);
    if (!item) return lk_fail(err, LK_E_NOMEM, "no memory for %zu questions", out->n + 1);
    for (size_t i = 0; i < n; i++) {
        switch (layout) {
        case LK_CHOICE_QUESTION:
            item->text[i] =
                lk_arena_print(&out->arena, "Question: %s\nAnswer: %s", question, choice[i]);
            break;
        case LK_CHOICE_SENTENCE:
            item->text[i] = lk_arena_print(&out->arena, "%s %s", question, choice[i]);
            break;
        case LK_CHOICE_ENDING:
            item->text[i] = lk_arena_print(&out->arena, "%s %s", question, choice[i]);
            break;
        case LK_CHOICE_BLANK:
            item->text[i] = lk_arena_print(&out->arena, "%.*s%s%s", (int)(blank - question),
                                           question, choice[i], blank + 1);
            break;
        }
    }
    item->n = n;
    item->answer = answer;
    out->n++;
    return lk_arena_check(&out->arena, err);
}

void lk_choices_free(struct lk_choices *choices) {
    lk_arena_free(&choices->arena);
    free(choices->item);
    *choices = (struct lk_choices){0};
}

/* ---- JSON lines ---- */

struct reading {
    struct lk_choices *out;
    enum lk_choice_layout layout;
};

/* The place in front of what went wrong. */
static lk_status blame(const char *path, size_t line, lk_status status, lk_err *err) {
    char what[sizeof err->msg];
    if (status == LK_OK || !err) return status;
    snprintf(what, sizeof what, "%s", err->msg);
    return lk_fail(err, status, "%s:%zu: %s", path, line, what);
}

static lk_status read_row(void *user, const struct lk_row *row, lk_err *err) {
    struct reading *r = user;
    const char *question, *choice[LK_MAX_CHOICES] = {NULL};
    const json_t *list, *answer = json_object_get(row->json, "answer");
    lk_status status = lk_row_text(row, "q", &question, err);
    if (status == LK_OK) status = lk_row_list(row, "choices", &list, err);
    if (status != LK_OK) return status;
    for (size_t i = 0; i < json_array_size(list) && i < LK_MAX_CHOICES; i++) {
        choice[i] = json_string_value(json_array_get(list, i));
        if (!choice[i])
            return lk_fail(err, LK_E_FORMAT, "%s:%zu: choice %zu is not a text", row->path,
                           row->line, i);
    }
    if (!json_is_integer(answer) || json_integer_value(answer) < 0)
        return lk_fail(err, LK_E_FORMAT, "%s:%zu: \"answer\" is missing or not a number from 0",
                       row->path, row->line);
    status = lk_choice_make(r->out, r->layout, question, choice, json_array_size(list),
                            (size_t)json_integer_value(answer), err);
    return blame(row->path, row->line, status, err);
}

lk_status lk_choices_read_jsonl(struct lk_choices *out, enum lk_choice_layout layout,
                                const char *path, lk_err *err) {
    struct reading r = {out, layout};
    return lk_jsonl_read(path, read_row, &r, err);
}

/* ---- six lines a question ---- */

/* Read one line without its end into the arena; NULL at the end of the file. */
static const char *read_line(FILE *file, struct lk_arena *arena, char **line, size_t *cap) {
    ssize_t len = getline(line, cap, file);
    if (len < 0) return NULL;
    while (len > 0 && ((*line)[len - 1] == '\n' || (*line)[len - 1] == '\r')) len--;
    return lk_arena_copy(arena, *line, (size_t)len);
}

lk_status lk_choices_read_hellaswag(struct lk_choices *out, const char *path, lk_err *err) {
    enum { LINES = 6 };
    FILE *file = fopen(path, "r");
    if (!file) return lk_fail(err, LK_E_IO, "cannot open %s: %s", path, strerror(errno));
    char *line = NULL;
    size_t cap = 0, number = 0;
    lk_status status = LK_OK;
    for (const char *part[LINES];
         status == LK_OK && (part[0] = read_line(file, &out->arena, &line, &cap));) {
        size_t n = 1;
        while (n < LINES && (part[n] = read_line(file, &out->arena, &line, &cap))) n++;
        if (n < LINES && number && n == 1 && !*part[0]) break; /* an empty line at the end */
        if (n < LINES)
            status =
                lk_fail(err, LK_E_FORMAT, "%s:%zu: the last question has %zu lines instead of six",
                        path, number + 1, n);
        else if (strlen(part[1]) != 1 || part[1][0] < '0' || part[1][0] > '3')
            status =
                lk_fail(err, LK_E_FORMAT, "%s:%zu: '%.20s' is not the index of an ending, 0 to 3",
                        path, number + 2, part[1]);
        else
            status = blame(path, number + 1,
                           lk_choice_make(out, LK_CHOICE_ENDING, part[0], part + 2, 4,
                                          (size_t)(part[1][0] - '0'), err),
                           err);
        number += LINES;
    }
    free(line);
    fclose(file);
    return status;
}

/* ---- what is scored ---- */

bool lk_choice_scored(enum lk_choice_layout layout, int32_t *const *tok, const size_t *n_tok,
                      size_t n, size_t *from) {
    size_t least = n_tok[0], common = 0;
    for (size_t i = 1; i < n; i++) least = n_tok[i] < least ? n_tok[i] : least;
    bool end = layout == LK_CHOICE_BLANK;
    for (bool same = true; same && common < least;) {
        int32_t first = end ? tok[0][n_tok[0] - 1 - common] : tok[0][common];
        for (size_t i = 1; i < n; i++)
            same &= (end ? tok[i][n_tok[i] - 1 - common] : tok[i][common]) == first;
        common += same;
    }
    /* A choice that others begin with keeps its last token; a text has to begin before what is scored. */
    if (!end && common == least) common--;
    for (size_t i = 0; i < n; i++) {
        from[i] = end ? n_tok[i] - common : common;
        if (from[i] == 0 || from[i] >= n_tok[i]) return false;
    }
    return true;
}
