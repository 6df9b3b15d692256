/* What a recipe will lose, estimated from measurements of one head group and side at a time.
 *
 * The estimate adds up the measured KL of each side of each group at its bits:
 *
 *   KL = sum over group, side of  kl(bits of body) (1 - share) + kl(bits of recent) share
 *
 * share is the part of a group's and side's loss that is due to the rows of the level 'recent'. kl
 * between and beyond the measured numbers of bits follows the distortion of the codebooks. For
 * small errors KL is quadratic in them, and errors of different rows are nearly independent, so the
 * sum is nearly right; what it misses, the tilts of struct lk_tune_tilt correct. */
#ifndef LK_TUNE_TUNE_MODEL_H
#define LK_TUNE_TUNE_MODEL_H

#include "base/ledger.h"
#include "cache/kv.h"
#include "lowkey.h"
#include "tune/tune_text.h"

enum {
    LK_TUNE_N_BITS = 7,    /* 1 to 6, and 8 */
    LK_TUNE_N_RECENT = 4,  /* sizes of the level 'recent' that are tried; the first is none */
    LK_TUNE_MAX_PROBE = 6, /* numbers of bits that are measured */
    LK_TUNE_MAX_GROUP = 8  /* head groups of a layer: its heads differ in at most 8 codecs */
};

extern const uint8_t lk_tune_bits_at[LK_TUNE_N_BITS];
extern const uint8_t lk_tune_recent_at[LK_TUNE_N_RECENT]; /* percent */

/* Changes to the estimate that make up for interactions: factors e^x of the loss of V, of the odds
 * of `share`, and of the last layer compared with the first; and an exponent 1 + x of each side's
 * deviation from the mean. */
struct lk_tune_tilt {
    double v, recent, depth, contrast;
};

/* What a recipe is chosen among. */
struct lk_tune_form {
    int recent;     /* index in lk_tune_recent_at */
    int min_k_bits; /* keys have at least as many */
    struct lk_tune_tilt tilt;
};

struct lk_tune_model {
    int n_layer, n_group;
    struct lk_tune_group *group;          /* [n_group] layer after layer */
    enum lk_tune_trellis trellis;         /* of the recipes; measured groups have LK_TUNE_TRELLIS */
    double (*kl)[2][LK_TUNE_N_BITS];      /* [n_group] */
    double (*share)[2][LK_TUNE_N_RECENT]; /* [n_group] of a side's loss */
};

/* The share of the rows of the level 'recent' in a loss: `rest` remains of `all` if they are exact.
 * recent: index in lk_tune_recent_at. Neither 0 nor 1. */
double lk_tune_share(double all, double rest, int recent);

/* Divide the KV heads of each layer into at most max_group groups of neighbors, fewer if a recipe
 * would have too many parts. Returns the number of groups. group: NULL, or room for them. */
int lk_tune_divide_heads(const struct lk_cache_shape *shape, int max_group,
                         struct lk_tune_group *group);

/* Squared error of rot at these bits, relative to the power of Gaussian rows, for which it is
 * measured (tests/tune/test_tune_model.c): between those of 64 and of 128 channels. */
double lk_tune_distortion(int bits, enum lk_tune_trellis trellis);

/* Fill kl[2][LK_TUNE_N_BITS] of a group from probes: probe[side][n_probe] is the KL at bits[i], in
 * increasing order, with LK_TUNE_TRELLIS. n_probe > 0. */
void lk_tune_fill_kl(double kl[2][LK_TUNE_N_BITS], const uint8_t *bits, size_t n_probe,
                     const double probe[2][LK_TUNE_MAX_PROBE], enum lk_tune_trellis trellis);

/* KL of one side of one group at some bits; the next higher number that is an option counts. */
double lk_tune_loss_at(const struct lk_tune_model *model, int group, int side, int bits);

/* Bytes of a recipe's parts in a context: those of the smallest recipe, and what more bits add. */
struct lk_tune_cost {
    uint64_t base;                                  /* all groups at the fewest bits */
    uint64_t more[LK_TUNE_AGES][2][LK_TUNE_N_BITS]; /* of a side, all groups */
    double (*part)[LK_TUNE_AGES][2];                /* [n_group] of `more` that is this group's */
};

/* Measure the cost with the planner, for a level 'recent' of lk_tune_recent_at[recent] percent and
 * n_ctx tokens. cost->part: [n_group], the caller's. */
lk_status lk_tune_count_cost(struct lk_tune_cost *cost, const struct lk_tune_model *loss,
                             const lk_model *model, int32_t n_ctx, int recent, lk_err *err);

/* Find the bits [n_group] with the smallest estimated KL of at most max_bytes. cost: for
 * form->recent. *kl: the estimate, with the tilt. LK_E_ARG if no recipe is that small,
 * LK_E_NOMEM. */
lk_status lk_tune_choose(const struct lk_tune_model *model, const struct lk_tune_cost *cost,
                         const struct lk_tune_form *form, uint64_t max_bytes,
                         struct lk_ledger *ledger, struct lk_tune_bits *bits, double *kl,
                         lk_err *err);

/* The plan of a recipe's text at n_ctx tokens. */
lk_status lk_tune_plan(const lk_model *model, const char *text, int32_t n_ctx, lk_plan *plan,
                       lk_err *err);

/* ---- allocation ----
 *
 * Choosing one option for each item, within a budget: the multiple-choice knapsack.
 *
 * An item is one side of one layer, an option its bits, the cost bytes and the loss KL. Dynamic
 * programming over the budget finds the minimum of the sum of losses exactly if costs are counted
 * in units of one. With large budgets a unit is larger, and costs are rounded up to whole units. */

enum { LK_ALLOCATE_OPTIONS = 64, LK_ALLOCATE_UNITS = 2048 };

struct lk_allocate_option {
    double loss; /* INFINITY: not an option */
    uint64_t cost;
};

/* The cost of an item's cheapest option. */
uint64_t lk_allocate_least(const struct lk_allocate_option *option, size_t n_option);

/* Choose choice[i] in [0, n_option) for each of n_item items, so that the sum of costs is at most
 * `budget` and the sum of losses is minimal. option: [n_item][n_option], n_option at most
 * LK_ALLOCATE_OPTIONS, at least one of them finite for each item. *loss: the sum. The sum of costs
 * above each item's minimum is divided into at most LK_ALLOCATE_UNITS units. Scratch memory comes
 * from `ledger`. LK_E_ARG if even the cheapest options exceed the budget, LK_E_NOMEM. */
lk_status lk_allocate(const struct lk_allocate_option *option, size_t n_item, size_t n_option,
                      uint64_t budget, struct lk_ledger *ledger, int *choice, double *loss,
                      lk_err *err);

#endif
