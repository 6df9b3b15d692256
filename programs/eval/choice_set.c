/* Reads multiple-choice questions and formats them as texts. */
#include "eval/choice_set.h"

#include "eval/jsonl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Append an empty question, which is not counted yet. NULL if there is no memory. */
static struct lk_choice_question *add_question(struct lk_choice_set *set) {
    if (set->n == set->cap) {
        size_t cap = set->cap ? 2 * set->cap : 256;
        struct lk_choice_question *item = realloc(set->item, cap * sizeof *item);
        if (!item) return NULL;
        set->item = item;
        set->cap = cap;
    }
    return memset(&set->item[set->n], 0, sizeof *set->item);
}

lk_status lk_choice_set_add(struct lk_choice_set *set, enum lk_choice_layout layout,
                            const char *question, const char *const *choice, size_t n,
                            size_t answer, lk_err *err) {
    const char *blank = strchr(question, '_');
    if (n < 2 || n > LK_MAX_CHOICES)
        return lk_fail(err, LK_E_FORMAT, "%zu choices; a question has 2 to %d", n, LK_MAX_CHOICES);
    if (answer >= n)
        return lk_fail(err, LK_E_FORMAT, "the answer is choice %zu of %zu (from 0)", answer, n);
    if (layout == LK_CHOICE_BLANK && (!blank || !blank[1]))
        return lk_fail(err, LK_E_FORMAT, "the sentence needs a '_' with words after it");
    struct lk_choice_question *item = add_question(set);
    if (!item) return lk_fail(err, LK_E_NOMEM, "no memory for %zu questions", set->n + 1);
    for (size_t i = 0; i < n; i++) {
        switch (layout) {
        case LK_CHOICE_QUESTION:
            item->text[i] =
                lk_arena_printf(&set->arena, "Question: %s\nAnswer: %s", question, choice[i]);
            break;
        case LK_CHOICE_SENTENCE:
        case LK_CHOICE_ENDING:
            item->text[i] = lk_arena_printf(&set->arena, "%s %s", question, choice[i]);
            break;
        case LK_CHOICE_BLANK:
            item->text[i] = lk_arena_printf(&set->arena, "%.*s%s%s", (int)(blank - question),
                                            question, choice[i], blank + 1);
            break;
        }
    }
    item->n = n;
    item->answer = answer;
    set->n++;
    return lk_arena_check(&set->arena, err);
}

void lk_choice_set_free(struct lk_choice_set *set) {
    lk_arena_free(&set->arena);
    free(set->item);
    *set = (struct lk_choice_set){0};
}

/* ---- JSON lines ---- */

struct choice_reader {
    struct lk_choice_set *set;
    enum lk_choice_layout layout;
};

/* Put the file and the line in front of an error message. */
static lk_status prefix_error(const char *path, size_t line, lk_status status, lk_err *err) {
    char what[sizeof err->msg];
    if (status == LK_OK || !err) return status;
    snprintf(what, sizeof what, "%s", err->msg);
    return lk_fail(err, status, "%s:%zu: %s", path, line, what);
}

static lk_status read_choice_row(void *user, const struct lk_jsonl_row *row, lk_err *err) {
    struct choice_reader *r = user;
    const char *question, *choice[LK_MAX_CHOICES] = {NULL};
    const json_t *list, *answer = json_object_get(row->json, "answer");
    lk_status status = lk_jsonl_string(row, "q", &question, err);
    if (status == LK_OK) status = lk_jsonl_array(row, "choices", &list, err);
    if (status != LK_OK) return status;
    for (size_t i = 0; i < json_array_size(list) && i < LK_MAX_CHOICES; i++) {
        choice[i] = json_string_value(json_array_get(list, i));
        if (!choice[i])
            return lk_fail(err, LK_E_FORMAT, "%s:%zu: choice %zu is not a string", row->path,
                           row->line, i);
    }
    if (!json_is_integer(answer) || json_integer_value(answer) < 0)
        return lk_fail(err, LK_E_FORMAT, "%s:%zu: \"answer\" is missing or not an index from 0",
                       row->path, row->line);
    status = lk_choice_set_add(r->set, r->layout, question, choice, json_array_size(list),
                               (size_t)json_integer_value(answer), err);
    return prefix_error(row->path, row->line, status, err);
}

lk_status lk_choice_set_read_jsonl(struct lk_choice_set *set, enum lk_choice_layout layout,
                                   const char *path, lk_err *err) {
    struct choice_reader r = {set, layout};
    return lk_jsonl_read(path, read_choice_row, &r, err);
}

/* ---- six lines per question ---- */

/* Read one line, without the line break, into the arena. NULL at the end of the file. */
static const char *read_text_line(FILE *file, struct lk_arena *arena, char **line, size_t *cap) {
    ssize_t len = getline(line, cap, file);
    if (len < 0) return NULL;
    while (len > 0 && ((*line)[len - 1] == '\n' || (*line)[len - 1] == '\r')) len--;
    return lk_arena_copy(arena, *line, (size_t)len);
}

lk_status lk_choice_set_read_hellaswag(struct lk_choice_set *set, const char *path, lk_err *err) {
    enum { LINES = 6 };
    FILE *file = fopen(path, "r");
    if (!file) return lk_fail(err, LK_E_IO, "cannot open %s: %s", path, strerror(errno));
    char *line = NULL;
    size_t cap = 0, number = 0;
    lk_status status = LK_OK;
    for (const char *part[LINES];
         status == LK_OK && (part[0] = read_text_line(file, &set->arena, &line, &cap));) {
        size_t n = 1;
        while (n < LINES && (part[n] = read_text_line(file, &set->arena, &line, &cap))) n++;
        if (n < LINES && number && n == 1 && !*part[0]) break; /* empty last line */
        if (n < LINES)
            status =
                lk_fail(err, LK_E_FORMAT, "%s:%zu: the last question has %zu lines instead of six",
                        path, number + 1, n);
        else if (strlen(part[1]) != 1 || part[1][0] < '0' || part[1][0] > '3')
            status =
                lk_fail(err, LK_E_FORMAT, "%s:%zu: '%.20s' is not the index of an ending, 0 to 3",
                        path, number + 2, part[1]);
        else
            status = prefix_error(path, number + 1,
                                  lk_choice_set_add(set, LK_CHOICE_ENDING, part[0], part + 2, 4,
                                                    (size_t)(part[1][0] - '0'), err),
                                  err);
        number += LINES;
    }
    free(line);
    fclose(file);
    return status;
}

/* ---- scored tokens ---- */

bool lk_choice_find_scored(enum lk_choice_layout layout, int32_t *const *tok, const size_t *n_tok,
                           size_t n, size_t *from) {
    size_t shortest = n_tok[0], common = 0;
    for (size_t i = 1; i < n; i++) shortest = n_tok[i] < shortest ? n_tok[i] : shortest;
    bool suffix = layout == LK_CHOICE_BLANK;
    for (bool same = true; same && common < shortest;) {
        int32_t first = suffix ? tok[0][n_tok[0] - 1 - common] : tok[0][common];
        for (size_t i = 1; i < n; i++)
            same &= (suffix ? tok[i][n_tok[i] - 1 - common] : tok[i][common]) == first;
        common += same;
    }
    /* If one text is a prefix of the others, its last token is scored. */
    if (!suffix && common == shortest) common--;
    for (size_t i = 0; i < n; i++) {
        from[i] = suffix ? n_tok[i] - common : common;
        if (from[i] == 0 || from[i] >= n_tok[i]) return false;
    }
    return true;
}
