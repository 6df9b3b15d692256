#include "eval/items.h"

#include <stdio.h>

enum { N_LENGTH = 4, CELLS_MOST = 64 };

lk_status lk_items_room(struct lk_items *items, size_t n, lk_err *err) {
    items->item = lk_arena_take(&items->arena, (n ? n : 1) * sizeof *items->item);
    return lk_arena_check(&items->arena, err);
}

static size_t n_length(const struct lk_items_opts *opts) {
    return opts->env->opts->quick ? N_LENGTH / 2 : N_LENGTH;
}

/* Lengths and depths. */
static size_t n_cell(const struct lk_grid *grid, const struct lk_items_opts *opts) {
    return n_length(opts) * (grid->n_depth ? grid->n_depth : 1);
}

struct lk_place lk_grid_place(const struct lk_grid *grid, const struct lk_items_opts *opts,
                              size_t i) {
    const char *name = opts->env->task->name;
    uint64_t seed = opts->env->opts->seed;
    uint32_t order[CELLS_MOST];
    size_t n = n_cell(grid, opts), sweep = i / n, round = sweep / grid->n_part,
           n_len = n_length(opts);
    struct lk_random of_round = lk_random_seed(seed, name, UINT64_MAX - round);
    lk_random_order(&of_round, order, n);
    size_t cell = order[i % n];
    return (struct lk_place){
        .part = (i % n + sweep) % grid->n_part,
        .round = round,
        .length = opts->n_ctx * (cell % n_len + 1) / n_len,
        .depth = grid->n_depth > 1 ? (double)(cell / n_len) / (double)(grid->n_depth - 1) : -1,
        .random = lk_random_seed(seed, name, i),
        .user = grid->user};
}

static lk_status generate_item(const struct lk_grid *grid, const struct lk_items_opts *opts,
                               size_t i, struct lk_items *out, lk_err *err) {
    struct lk_place place = lk_grid_place(grid, opts, i);
    struct lk_fit fit = {grid->make, &place, grid->n_least, grid->n_most, place.length};
    size_t n_unit, n_tok;
    lk_status status =
        lk_fit_item(&fit, &opts->reader, &out->arena, &out->item[i], &n_unit, &n_tok, err);
    if (status == LK_E_ARG && err) {
        char what[sizeof err->msg];
        snprintf(what, sizeof what, "%s", err->msg);
        lk_fail(err, status, "%s at length %zu: %.400s; give a larger -c", opts->env->task->name,
                place.length, what);
    }
    if (status == LK_OK && n_unit == grid->n_most &&
        n_tok + out->item[i].n_generate < place.length - place.length / 16)
        status = lk_fail(err, LK_E_ARG,
                         "%s: there is text for items of %zu tokens, not of %zu; give more of it "
                         "or a smaller -c",
                         opts->env->task->name, n_tok, place.length);
    return status;
}

lk_status lk_items_generate(const struct lk_grid *grid, const struct lk_items_opts *opts,
                            struct lk_items *out, lk_err *err) {
    const struct lk_eval_opts *o = opts->env->opts;
    size_t n =
        o->limit ? o->limit : n_cell(grid, opts) * (o->quick ? 1 : grid->n_part * grid->n_round);
    lk_status status = lk_items_room(out, n, err);
    while (status == LK_OK && out->n < n) {
        status = generate_item(grid, opts, out->n, out, err);
        if (status == LK_OK) out->n++;
    }
    return status;
}
