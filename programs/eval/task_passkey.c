/* A pass key in a text that says nothing: Mohtashami and Jaggi, "Landmark Attention" (2023), section 4.2,
 * with lengths counted in tokens. */
#include "eval/haystack.h"
#include "eval/question.h"
#include "eval/tasks.h"

enum { N_DEPTH = 5, LEAST_UNITS = 1, MOST_UNITS = 1 << 24 };

static lk_status make_passkey(void *user, size_t n_unit, struct lk_arena *arena,
                              struct lk_item *item, lk_err *err) {
    const struct lk_place *place = user;
    struct lk_random random = place->random;
    struct lk_haystack noise = lk_haystack_noise();
    size_t number = 10000 + lk_random_below(&random, 90000);
    struct lk_string text = {.arena = arena};
    struct lk_needle needle = {
        (size_t)(place->depth * (double)n_unit + 0.5),
        lk_arena_print(arena, "The pass key is %zu. Remember it: %zu is the pass key.", number,
                       number)};
    lk_haystack_write(&noise, 0, n_unit, &needle, 1, "\n", &text);
    const char **expect = lk_arena_take(arena, sizeof *expect);
    if (!expect) return lk_arena_check(arena, err);
    expect[0] = lk_arena_print(arena, "%zu", number);
    item->key =
        lk_arena_print(arena, "%zu/%.0f/%zu", place->length, 100 * place->depth, place->round);
    item->context = lk_arena_print(arena,
                                   "A pass key is hidden in a long text that matters to nobody. "
                                   "Find it and remember it.\n\n%s",
                                   lk_string_text(&text));
    item->question = "What is the pass key?";
    item->opening = "The pass key is";
    item->answer = lk_arena_print(arena, " %s", expect[0]);
    item->expect = expect;
    item->n_expect = 1;
    item->match = LK_MATCH_ALL;
    item->n_generate = 12;
    item->length = (double)place->length;
    item->depth = place->depth;
    return LK_OK;
}

static lk_status make_items(const struct lk_items_opts *opts, struct lk_items *out, lk_err *err) {
    static const struct lk_grid grid = {.n_part = 1,
                                        .n_depth = N_DEPTH,
                                        .n_round = 1,
                                        .n_least = LEAST_UNITS,
                                        .n_most = MOST_UNITS,
                                        .make = make_passkey};
    return lk_items_generate(&grid, opts, out, err);
}

static const struct lk_question_kind kind = {make_items, 4096, 1024};

const struct lk_task lk_task_passkey = {
    .name = "passkey",
    .summary = "a pass key in a text that says nothing, by length and depth",
    .arg = &kind,
    .open = lk_question_open,
    .close = lk_question_close,
    .key = lk_question_key,
    .cost = lk_question_cost,
    .prompt = lk_question_prompt,
    .run = lk_question_run,
    .summarise = lk_question_summarise,
};
