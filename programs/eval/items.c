/* Generates the items of a grid of lengths, depths and parts. */
#include "eval/items.h"

#include <stdio.h>

enum { N_LENGTH = 4, MAX_CELLS = 64 };

lk_status lk_items_alloc(struct lk_items *items, size_t n, lk_err *err) {
    items->item = lk_arena_alloc(&items->arena, (n ? n : 1) * sizeof *items->item);
    return lk_arena_check(&items->arena, err);
}

static size_t n_length(const struct lk_items_opts *opts) {
    return opts->env->opts->quick ? N_LENGTH / 2 : N_LENGTH;
}

/* Number of pairs of a length and a depth. */
static size_t n_cell(const struct lk_item_grid *grid, const struct lk_items_opts *opts) {
    return n_length(opts) * (grid->n_depth ? grid->n_depth : 1);
}

struct lk_grid_point lk_grid_point_at(const struct lk_item_grid *grid,
                                      const struct lk_items_opts *opts, size_t i) {
    const char *name = opts->env->task->name;
    uint64_t seed = opts->env->opts->seed;
    uint32_t order[MAX_CELLS];
    size_t n = n_cell(grid, opts), sweep = i / n, round = sweep / grid->n_part;
    size_t n_len = n_length(opts);
    struct lk_rng round_rng = lk_rng_seed(seed, name, UINT64_MAX - round);
    lk_rng_permutation(&round_rng, order, n);
    size_t cell = order[i % n];
    return (struct lk_grid_point){
        .part = (i % n + sweep) % grid->n_part,
        .round = round,
        .length = opts->n_ctx * (cell % n_len + 1) / n_len,
        .depth = grid->n_depth > 1 ? (double)(cell / n_len) / (double)(grid->n_depth - 1) : -1,
        .rng = lk_rng_seed(seed, name, i),
        .user = grid->user};
}

static lk_status generate_item(const struct lk_item_grid *grid, const struct lk_items_opts *opts,
                               size_t i, struct lk_items *out, lk_err *err) {
    struct lk_grid_point point = lk_grid_point_at(grid, opts, i);
    struct lk_fit_opts fit = {grid->make, &point, grid->min_unit, grid->max_unit, point.length};
    size_t n_unit, n_tok;
    lk_status status =
        lk_fit_length(&fit, &opts->format, &out->arena, &out->item[i], &n_unit, &n_tok, err);
    if (status == LK_E_ARG && err) {
        char what[sizeof err->msg];
        snprintf(what, sizeof what, "%s", err->msg);
        lk_fail(err, status, "%s at length %zu: %.400s; give a larger -c", opts->env->task->name,
                point.length, what);
    }
    if (status == LK_OK && n_unit == grid->max_unit &&
        n_tok + out->item[i].n_generate < point.length - point.length / 16)
        status = lk_fail(err, LK_E_ARG,
                         "%s: the data is enough for items of %zu tokens, not of %zu; give more "
                         "of it or a smaller -c",
                         opts->env->task->name, n_tok, point.length);
    return status;
}

lk_status lk_items_generate(const struct lk_item_grid *grid, const struct lk_items_opts *opts,
                            struct lk_items *out, lk_err *err) {
    const struct lk_eval_opts *o = opts->env->opts;
    size_t n_usual = n_cell(grid, opts) * (o->quick ? 1 : grid->n_part * grid->n_round);
    size_t n = o->limit ? o->limit : n_usual;
    lk_status status = lk_items_alloc(out, n, err);
    while (status == LK_OK && out->n < n) {
        status = generate_item(grid, opts, out->n, out, err);
        if (status == LK_OK) out->n++;
    }
    return status;
}
