/* Tasks with a number that is hidden in a long text.
 *
 * `needle`: a number that is stated once in a long text, and asked for at its end.
 *
 * After Kamradt's test and RULER's NIAH (Hsieh et al. 2024, section 3.1). The haystack consists of
 * sentences of a real text, with the needle at a depth of 0 to 1. The key is a name, the value has
 * seven digits. Part "single" has one needle. Part "multi" has three more, with other keys at
 * random depths (RULER's multi-key).
 *
 * `passkey`: a pass key in a text without information (Mohtashami and Jaggi, "Landmark
 * Attention", 2023, section 4.2), with lengths counted in tokens. */
#include "base/buf.h"
#include "eval/items.h"
#include "eval/material.h"
#include "eval/task.h"

#include <stdlib.h>
#include <string.h>

enum { N_DEPTH = 5, N_NEEDLE = 4 };

/* The random choices of an item. They do not depend on its length. */
struct needle_plan {
    size_t first; /* first sentence of the haystack */
    const char *name[N_NEEDLE], *number[N_NEEDLE];
    double depth[N_NEEDLE]; /* the needle asked for is first */
};

static struct needle_plan plan_needles(const struct lk_grid_point *point,
                                       const struct lk_haystack *haystack, struct lk_arena *arena) {
    struct lk_rng rng = point->rng;
    struct needle_plan n = {.first = lk_rng_below(&rng, haystack->n_unit)};
    size_t base = lk_rng_below(&rng, 4096);
    for (size_t i = 0; i < N_NEEDLE; i++) {
        n.name[i] = lk_invent_name((uint32_t)(base + i * 1031) & 4095, "wick", arena);
        n.number[i] = lk_arena_printf(arena, "%zu", 1000000 + lk_rng_below(&rng, 9000000));
        n.depth[i] = i ? lk_rng_below(&rng, 1001) / 1000.0 : point->depth;
    }
    return n;
}

static int compare_needles(const void *a, const void *b) {
    const struct lk_needle *x = a, *y = b;
    if (x->before != y->before) return x->before < y->before ? -1 : 1;
    return strcmp(x->text, y->text); /* the same order on every machine */
}

static lk_status make_needle(void *user, size_t n_unit, struct lk_arena *arena,
                             struct lk_item *item, lk_err *err) {
    const struct lk_grid_point *point = user;
    const struct lk_haystack *haystack = point->user;
    struct needle_plan chosen = plan_needles(point, haystack, arena);
    bool multi = point->part == 1;
    size_t n_needle = multi ? N_NEEDLE : 1;
    struct lk_needle needle[N_NEEDLE];
    for (size_t i = 0; i < n_needle; i++)
        needle[i] = (struct lk_needle){(size_t)(chosen.depth[i] * (double)n_unit + 0.5),
                                       lk_arena_printf(arena, "The secret number of %s is %s.",
                                                       chosen.name[i], chosen.number[i])};
    qsort(needle, n_needle, sizeof *needle, compare_needles);
    struct lk_buf text = {0};
    lk_haystack_write(haystack, chosen.first, n_unit, needle, n_needle, " ", &text);
    const char *lines = lk_arena_take_buf(arena, &text);
    const char **expect = lk_arena_alloc(arena, sizeof *expect);
    if (!expect) return lk_arena_check(arena, err);
    expect[0] = chosen.number[0];
    item->part = multi ? "multi" : "single";
    item->key = lk_arena_printf(arena, "%s/%zu/%.0f/%zu", item->part, point->length,
                                100 * point->depth, point->round);
    item->context = lk_arena_printf(
        arena, "%s the text below. Remember %s: you will be asked about it afterwards.\n\n%s",
        multi ? "Some places have a secret number, stated once somewhere in"
              : "A place has a secret number, stated once somewhere in",
        multi ? "the numbers" : "the number", lines);
    item->question = lk_arena_printf(arena, "What is the secret number of %s that the text states?",
                                     chosen.name[0]);
    item->opening = lk_arena_printf(arena, "The secret number of %s is", chosen.name[0]);
    item->answer = lk_arena_printf(arena, " %s", chosen.number[0]);
    item->expect = expect;
    item->n_expect = 1;
    item->match = LK_MATCH_ALL;
    item->n_generate = 16;
    item->length = (double)point->length;
    item->depth = point->depth;
    return LK_OK;
}

static lk_status make_needle_items(const struct lk_items_opts *opts, struct lk_items *out,
                                   lk_err *err) {
    struct lk_haystack haystack;
    lk_status status = lk_task_require_text(opts->env, err);
    if (!status)
        status = lk_haystack_split(opts->env->opts->text, opts->env->opts->text_len, &out->arena,
                                   &haystack, err);
    if (status) return status;
    struct lk_item_grid grid = {.n_part = 2,
                                .n_depth = N_DEPTH,
                                .n_round = 1,
                                .min_unit = 1,
                                .max_unit = haystack.n_unit,
                                .make = make_needle,
                                .user = &haystack};
    return lk_items_generate(&grid, opts, out, err);
}

static const struct lk_question_kind needle_kind = {make_needle_items, 4096, 1024};

const struct lk_task lk_task_needle = {
    .name = "needle",
    .summary = "numbers hidden in --text, by length and depth",
    .arg = &needle_kind,
    LK_QUESTION_FUNCTIONS,
};

/* ---- passkey ---- */

enum { MIN_UNITS = 1, MAX_UNITS = 1 << 24 };

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

static const struct lk_question_kind passkey_kind = {make_passkey_items, 4096, 1024};

const struct lk_task lk_task_passkey = {
    .name = "passkey",
    .summary = "a pass key in a text without information, by length and depth",
    .arg = &passkey_kind,
    LK_QUESTION_FUNCTIONS,
};
