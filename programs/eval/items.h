/* The items of the tasks that ask questions: generated from a seed, or read from data.
 *
 * Generated items cover a grid: lengths of a quarter, a half, three quarters and the whole of the
 * context (with --quick the half and the whole), and depths at which something is hidden. A sweep visits
 * each length and depth once, in random order, kinds of items taking turns; a round has as many sweeps as
 * there are kinds, so that it visits each place with each kind. A limit thus thins the grid evenly, and
 * goes on with further rounds. The same seed gives the same items in the same order, whatever the limit. */
#ifndef LK_EVAL_ITEMS_H
#define LK_EVAL_ITEMS_H

#include "eval/fit_length.h"
#include "eval/random.h"
#include "eval/task.h"

struct lk_items {
    struct lk_arena arena; /* its ledger set before the first use */
    struct lk_item *item;  /* [n], in the arena like all they point at */
    size_t n;
};

/* What items are made for. */
struct lk_items_opts {
    const struct lk_task_env *env;
    struct lk_reader reader;
    size_t n_ctx; /* most tokens of an item with its answer */
};

/* Make a task's items. LK_E_ARG: something that it needs was not given, or does not suffice; LK_E_IO
 * and LK_E_FORMAT name the file and the line. `out` is to be freed in any case: lk_arena_free. */
typedef lk_status (*lk_items_maker)(const struct lk_items_opts *opts, struct lk_items *out,
                                    lk_err *err);

/* ---- for the makers ---- */

/* Room for n items, empty at first. */
lk_status lk_items_room(struct lk_items *items, size_t n, lk_err *err);

/* Where a generated item stands in the grid. */
struct lk_place {
    size_t part, round;
    size_t length;           /* tokens of the item with its answer, at most */
    double depth;            /* 0 to 1; < 0 where the grid has no depths */
    struct lk_random random; /* of this item alone */
    const void *user;        /* of the grid */
};

struct lk_grid {
    size_t n_part;          /* kinds of items */
    size_t n_depth;         /* depths from 0 to 1 in equal steps; 0: no depths */
    size_t n_round;         /* without a limit; with --quick one sweep */
    size_t n_least, n_most; /* units of an item, see fit.h */
    lk_item_maker make;     /* its user is the item's struct lk_place */
    const void *user;
};

/* Place of the i-th item of a grid. */
struct lk_place lk_grid_place(const struct lk_grid *grid, const struct lk_items_opts *opts,
                              size_t i);

/* Generate the items of a grid. LK_E_ARG where n_most units are too few for a length. */
lk_status lk_items_generate(const struct lk_grid *grid, const struct lk_items_opts *opts,
                            struct lk_items *out, lk_err *err);

#endif
