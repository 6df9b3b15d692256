/* The items of a task that asks questions: generated from a seed, or read from data.
 *
 * Generated items cover a grid: lengths of 1/4, 2/4, 3/4 and all of the context (with --quick 1/2
 * and all), and depths of a needle. A sweep visits every length and depth once, in random order,
 * and cycles through the parts (kinds of items). A round has as many sweeps as there are parts, so
 * it visits every place with every part. A limit therefore thins out the grid evenly, and a large
 * limit adds further rounds. The same seed gives the same items in the same order, whatever the
 * limit. */
#ifndef LK_EVAL_ITEMS_H
#define LK_EVAL_ITEMS_H

#include "eval/fit_length.h"
#include "eval/rng.h"
#include "eval/task.h"

struct lk_items {
    struct lk_arena arena; /* its ledger is set before the first use */
    struct lk_item *item;  /* [n], in the arena, like all that they point to */
    size_t n;
};

/* What items are made for. */
struct lk_items_opts {
    const struct lk_task_env *env;
    struct lk_prompt_format format;
    size_t n_ctx; /* maximum number of tokens of an item and its answer */
};

/* Make the items of a task. LK_E_ARG if a required option is missing or insufficient. LK_E_IO and
 * LK_E_FORMAT name the file and the line. The caller frees out->arena, even after a failure. */
typedef lk_status (*lk_make_items_fn)(const struct lk_items_opts *opts, struct lk_items *out,
                                      lk_err *err);

/* Allocate n empty items. items->n stays 0. */
lk_status lk_items_alloc(struct lk_items *items, size_t n, lk_err *err);

/* What varies between the generated items of a grid. */
struct lk_grid_point {
    size_t part, round;
    size_t length;     /* maximum number of tokens of the item and its answer */
    double depth;      /* 0 to 1; < 0 if the grid has no depths */
    struct lk_rng rng; /* of this item alone */
    const void *user;  /* the grid's */
};

struct lk_item_grid {
    size_t n_part;             /* kinds of items */
    size_t n_depth;            /* depths from 0 to 1 in equal steps; 0: no depths */
    size_t n_round;            /* rounds without a limit; with --quick there is one sweep */
    size_t min_unit, max_unit; /* units per item, see eval/fit_length.h */
    lk_make_item_fn make;      /* its user is the item's struct lk_grid_point */
    const void *user;
};

/* The i-th point of a grid. */
struct lk_grid_point lk_grid_point_at(const struct lk_item_grid *grid,
                                      const struct lk_items_opts *opts, size_t i);

/* Generate the items of a grid. LK_E_ARG if max_unit units are too few for a length. */
lk_status lk_items_generate(const struct lk_item_grid *grid, const struct lk_items_opts *opts,
                            struct lk_items *out, lk_err *err);

#endif
