/* Needles in a haystack: a number stated once in a long text, asked for at its end.
 *
 * After Kamradt's test and RULER's NIAH (Hsieh et al. 2024, section 3.1): sentences of a real text, the
 * needle at a depth of 0 to 1 of them, a name as key and seven digits as value. "single" has one needle,
 * "multi" three more with other keys at random depths (RULER's multi-key). */
#include "eval/haystack.h"
#include "eval/question.h"
#include "eval/tasks.h"

#include <stdlib.h>
#include <string.h>

enum { N_DEPTH = 5, N_NEEDLE = 4, LEAST_UNITS = 1 };

/* Fixed by the item's random numbers, and not by its length. */
struct needles {
    size_t first; /* sentence of the text that the haystack begins with */
    const char *name[N_NEEDLE], *number[N_NEEDLE];
    double depth[N_NEEDLE]; /* the asked needle first */
};

static struct needles choose(const struct lk_place *place, const struct lk_haystack *haystack,
                             struct lk_arena *arena) {
    struct lk_random random = place->random;
    struct needles n = {.first = lk_random_below(&random, haystack->n_unit)};
    size_t base = lk_random_below(&random, 4096);
    for (size_t i = 0; i < N_NEEDLE; i++) {
        n.name[i] = lk_made_up_name((uint32_t)(base + i * 1031) & 4095, "wick", arena);
        n.number[i] = lk_arena_print(arena, "%zu", 1000000 + lk_random_below(&random, 9000000));
        n.depth[i] = i ? lk_random_below(&random, 1001) / 1000.0 : place->depth;
    }
    return n;
}

static int by_place(const void *a, const void *b) {
    const struct lk_needle *x = a, *y = b;
    if (x->before != y->before) return x->before < y->before ? -1 : 1;
    return strcmp(x->text, y->text); /* the same order everywhere */
}

static lk_status make_needle(void *user, size_t n_unit, struct lk_arena *arena,
                             struct lk_item *item, lk_err *err) {
    const struct lk_place *place = user;
    const struct lk_haystack *haystack = place->user;
    struct needles chosen = choose(place, haystack, arena);
    bool multi = place->part == 1;
    size_t n_needle = multi ? N_NEEDLE : 1;
    struct lk_needle needle[N_NEEDLE];
    for (size_t i = 0; i < n_needle; i++)
        needle[i] = (struct lk_needle){(size_t)(chosen.depth[i] * (double)n_unit + 0.5),
                                       lk_arena_print(arena, "The secret number of %s is %s.",
                                                      chosen.name[i], chosen.number[i])};
    qsort(needle, n_needle, sizeof *needle, by_place);
    struct lk_string context = {.arena = arena}, text = {.arena = arena};
    lk_haystack_write(haystack, chosen.first, n_unit, needle, n_needle, " ", &text);
    lk_string_print(&context,
                    "%s the text below. Remember %s: you will be asked about it afterwards.\n\n%s",
                    multi ? "Some places have a secret number, stated once somewhere in"
                          : "A place has a secret number, stated once somewhere in",
                    multi ? "the numbers" : "the number", lk_string_text(&text));
    const char **expect = lk_arena_take(arena, sizeof *expect);
    if (!expect) return lk_arena_check(arena, err);
    expect[0] = chosen.number[0];
    item->part = multi ? "multi" : "single";
    item->key = lk_arena_print(arena, "%s/%zu/%.0f/%zu", item->part, place->length,
                               100 * place->depth, place->round);
    item->context = lk_string_text(&context);
    item->question = lk_arena_print(arena, "What is the secret number of %s that the text states?",
                                    chosen.name[0]);
    item->opening = lk_arena_print(arena, "The secret number of %s is", chosen.name[0]);
    item->answer = lk_arena_print(arena, " %s", chosen.number[0]);
    item->expect = expect;
    item->n_expect = 1;
    item->match = LK_MATCH_ALL;
    item->n_generate = 16;
    item->length = (double)place->length;
    item->depth = place->depth;
    return LK_OK;
}

static lk_status make_items(const struct lk_items_opts *opts, struct lk_items *out, lk_err *err) {
    struct lk_haystack haystack;
    lk_status status = lk_task_need_text(opts->env, err);
    if (status == LK_OK)
        status = lk_haystack_of(opts->env->opts->text, opts->env->opts->text_len, &out->arena,
                                &haystack, err);
    if (status != LK_OK) return status;
    size_t least = LEAST_UNITS < haystack.n_unit ? LEAST_UNITS : haystack.n_unit;
    struct lk_grid grid = {.n_part = 2,
                           .n_depth = N_DEPTH,
                           .n_round = 1,
                           .n_least = least,
                           .n_most = haystack.n_unit,
                           .make = make_needle,
                           .user = &haystack};
    return lk_items_generate(&grid, opts, out, err);
}

static const struct lk_question_kind kind = {make_items, 4096, 1024};

const struct lk_task lk_task_needle = {
    .name = "needle",
    .summary = "numbers hidden in --text, by length and depth",
    .arg = &kind,
    .open = lk_question_open,
    .close = lk_question_close,
    .key = lk_question_key,
    .cost = lk_question_cost,
    .prompt = lk_question_prompt,
    .run = lk_question_run,
    .summarise = lk_question_summarise,
};
