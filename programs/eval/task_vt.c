/* Task `vt`: variable tracking, RULER's multi-hop tracing (Hsieh et al. 2024, section 3.2).
 *
 * One variable is assigned a number, and four more are assigned from each other, in this order but
 * far apart, in noise. The question asks for all five. A short example with other names comes
 * first, as in RULER. Score: share of the five names in the answer. */
#include "base/buf.h"
#include "eval/haystack.h"
#include "eval/question.h"
#include "eval/task_list.h"

#include <stdlib.h>
#include <string.h>

enum {
    N_VARIABLE = 5,
    NAME_LETTERS = 5,
    SHOT_VARIABLES = 3,
    SHOT_UNITS = 2,
    MIN_UNITS = 4,
    MAX_UNITS = 1 << 24
};

#define TASK_TEXT                                                                                  \
    "Variables are assigned values in the text below, some of them from other variables. Keep "    \
    "track of the assignments.\n\n%s"
#define QUESTION "Which variables have the value %zu in the end, by the text above?"

/* Choose n names of random capital letters. False if two are equal. */
static bool choose_names(struct lk_rng *rng, char name[][NAME_LETTERS + 1], size_t n) {
    for (size_t i = 0; i < n; i++) {
        for (size_t c = 0; c < NAME_LETTERS; c++) name[i][c] = (char)('A' + lk_rng_below(rng, 26));
        name[i][NAME_LETTERS] = 0;
        for (size_t j = 0; j < i; j++)
            if (strcmp(name[i], name[j]) == 0) return false;
    }
    return true;
}

static int compare_sizes(const void *a, const void *b) {
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* n_unit lines of noise, with the assignments among them. */
static const char *write_chain(struct lk_rng *rng, char name[][NAME_LETTERS + 1], size_t n_name,
                               size_t number, size_t n_unit, struct lk_arena *arena) {
    struct lk_haystack noise = lk_haystack_noise();
    struct lk_needle needle[N_VARIABLE];
    size_t before[N_VARIABLE];
    for (size_t i = 0; i < n_name; i++) before[i] = lk_rng_below(rng, n_unit + 1);
    qsort(before, n_name, sizeof *before, compare_sizes);
    for (size_t i = 0; i < n_name; i++)
        needle[i] = (struct lk_needle){
            before[i], i ? lk_arena_printf(arena, "VAR %s = VAR %s", name[i], name[i - 1])
                         : lk_arena_printf(arena, "VAR %s = %zu", name[0], number)};
    struct lk_buf text = {0};
    lk_haystack_write(&noise, 0, n_unit, needle, n_name, "\n", &text);
    return lk_arena_printf(arena, TASK_TEXT, lk_arena_take_buf(arena, &text));
}

static const char *list_names(char name[][NAME_LETTERS + 1], size_t n, struct lk_arena *arena) {
    struct lk_buf list = {0};
    for (size_t i = 0; i < n; i++) lk_buf_printf(&list, "%s %s", i ? "," : "", name[i]);
    return lk_arena_take_buf(arena, &list);
}

static lk_status make_vt(void *user, size_t n_unit, struct lk_arena *arena, struct lk_item *item,
                         lk_err *err) {
    const struct lk_grid_point *point = user;
    struct lk_rng rng = point->rng;
    char name[N_VARIABLE + SHOT_VARIABLES][NAME_LETTERS + 1];
    while (!choose_names(&rng, name, N_VARIABLE + SHOT_VARIABLES)) {}
    size_t number = 10000 + lk_rng_below(&rng, 45000), other = 55000 + lk_rng_below(&rng, 45000);
    struct lk_shot *shot = lk_arena_alloc(arena, sizeof *shot);
    const char **expect = lk_arena_alloc(arena, N_VARIABLE * sizeof *expect);
    if (!shot || !expect) return lk_arena_check(arena, err);
    const char *example =
        write_chain(&rng, name + N_VARIABLE, SHOT_VARIABLES, other, SHOT_UNITS, arena);
    shot->question = lk_arena_printf(arena, "%s\n\n" QUESTION, example, other);
    shot->answer =
        lk_arena_printf(arena, "%s.", list_names(name + N_VARIABLE, SHOT_VARIABLES, arena));
    for (size_t i = 0; i < N_VARIABLE; i++) expect[i] = lk_arena_printf(arena, "%s", name[i]);
    item->key = lk_arena_printf(arena, "%zu/%zu", point->length, point->round);
    item->shot = shot;
    item->n_shot = 1;
    item->context = write_chain(&rng, name, N_VARIABLE, number, n_unit, arena);
    item->question = lk_arena_printf(arena, QUESTION, number);
    item->opening = "The variables that have this value are:";
    item->answer = list_names(name, N_VARIABLE, arena);
    item->expect = expect;
    item->n_expect = N_VARIABLE;
    item->match = LK_MATCH_ALL;
    item->n_generate = 40;
    item->length = (double)point->length;
    item->depth = -1;
    return LK_OK;
}

static lk_status make_vt_items(const struct lk_items_opts *opts, struct lk_items *out,
                               lk_err *err) {
    static const struct lk_item_grid grid = {
        .n_part = 1, .n_round = 5, .min_unit = MIN_UNITS, .max_unit = MAX_UNITS, .make = make_vt};
    return lk_items_generate(&grid, opts, out, err);
}

static const struct lk_question_kind kind = {make_vt_items, 4096, 1024};

const struct lk_task lk_task_vt = {
    .name = "vt",
    .summary = "RULER: variables that are assigned from each other",
    .arg = &kind,
    LK_QUESTION_FUNCTIONS,
};
