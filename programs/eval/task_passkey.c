/* Task `passkey`: a pass key in a text without information (Mohtashami and Jaggi, "Landmark
 * Attention", 2023, section 4.2), with lengths counted in tokens. */
#include "base/buf.h"
#include "eval/haystack.h"
#include "eval/question.h"
#include "eval/task_list.h"

enum { N_DEPTH = 5, MIN_UNITS = 1, MAX_UNITS = 1 << 24 };

static lk_status make_passkey(void *user, size_t n_unit, struct lk_arena *arena,
                              struct lk_item *item, lk_err *err) {
    const struct lk_grid_point *point = user;
    struct lk_rng rng = point->rng;
    struct lk_haystack noise = lk_haystack_noise();
    size_t number = 10000 + lk_rng_below(&rng, 90000);
    struct lk_buf text = {0};
    struct lk_needle needle = {
        (size_t)(point->depth * (double)n_unit + 0.5),
        lk_arena_printf(arena, "The pass key is %zu. Remember it: %zu is the pass key.", number,
                        number)};
    lk_haystack_write(&noise, 0, n_unit, &needle, 1, "\n", &text);
    const char *lines = lk_arena_take_buf(arena, &text);
    const char **expect = lk_arena_alloc(arena, sizeof *expect);
    if (!expect) return lk_arena_check(arena, err);
    expect[0] = lk_arena_printf(arena, "%zu", number);
    item->key =
        lk_arena_printf(arena, "%zu/%.0f/%zu", point->length, 100 * point->depth, point->round);
    item->context = lk_arena_printf(arena,
                                    "A pass key is hidden in a long text that matters to nobody. "
                                    "Find it and remember it.\n\n%s",
                                    lines);
    item->question = "What is the pass key?";
    item->opening = "The pass key is";
    item->answer = lk_arena_printf(arena, " %s", expect[0]);
    item->expect = expect;
    item->n_expect = 1;
    item->match = LK_MATCH_ALL;
    item->n_generate = 12;
    item->length = (double)point->length;
    item->depth = point->depth;
    return LK_OK;
}

static lk_status make_passkey_items(const struct lk_items_opts *opts, struct lk_items *out,
                                    lk_err *err) {
    static const struct lk_item_grid grid = {.n_part = 1,
                                             .n_depth = N_DEPTH,
                                             .n_round = 1,
                                             .min_unit = MIN_UNITS,
                                             .max_unit = MAX_UNITS,
                                             .make = make_passkey};
    return lk_items_generate(&grid, opts, out, err);
}

static const struct lk_question_kind kind = {make_passkey_items, 4096, 1024};

const struct lk_task lk_task_passkey = {
    .name = "passkey",
    .summary = "a pass key in a text without information, by length and depth",
    .arg = &kind,
    LK_QUESTION_FUNCTIONS,
};
