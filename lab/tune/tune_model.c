/* The estimated loss and the bytes of recipes, and the choice of bits. */
#include "tune/tune_model.h"

#include "base/err.h"
#include "recipe/recipe.h"

#include <math.h>
#include <string.h>

/* Options of an item: bits of the body, and of the level 'recent', which has at least as many. */
enum { N_OPTION = LK_TUNE_N_BITS * LK_TUNE_N_BITS };

const uint8_t lk_tune_bits_at[LK_TUNE_N_BITS] = {1, 2, 3, 4, 5, 6, 8};
const uint8_t lk_tune_recent_at[LK_TUNE_N_RECENT] = {0, 10, 20, 40};

static int index_of_bits(int bits) {
    int i = 0;
    while (i < LK_TUNE_N_BITS - 1 && lk_tune_bits_at[i] < bits) i++;
    return i;
}

/* Levels without a trellis (Lloyd-Max) lose this much more, at 1 to 4 bits. */
enum { N_PLAIN = 4 };
static const double without_trellis[N_PLAIN] = {1.27, 1.27, 1.17, 1.07};

double lk_tune_distortion(int bits, enum lk_tune_trellis trellis) {
    static const double distortion[LK_TUNE_N_BITS] = {0.447,  0.1006,  0.0270, 0.0070,
                                                      0.0024, 0.00062, 0.00004};
    int i = index_of_bits(bits);
    return distortion[i] * (i < N_PLAIN && bits > (int)trellis ? without_trellis[i] : 1);
}

/* ---- head groups ---- */

int lk_tune_divide_heads(const struct lk_cache_shape *shape, int max_group,
                         struct lk_tune_group *group) {
    enum { MAX_ALL = LK_MAX_OVERRIDE / LK_TUNE_AGES };
    int n = 0, most = MAX_ALL / shape->n_layer;
    if (most > max_group) most = max_group;
    for (int layer = 0; layer < shape->n_layer; layer++) {
        int n_head = lk_cache_n_head(shape, layer), n_here = n_head;
        while (n_here > 1 && (n_here > most || n_head % n_here)) n_here--;
        if (n_head > LK_MAX_NAMED_HEAD) n_here = 1;
        for (int i = 0; i < n_here; i++, n++) {
            if (!group) continue;
            int each = n_head / n_here; /* of several groups: at most half of 64 */
            uint64_t heads = n_here > 1 ? (((uint64_t)1 << each) - 1) << (i * each) : 0;
            group[n] = (struct lk_tune_group){layer, heads};
        }
    }
    return n;
}

/* ---- loss ---- */

void lk_tune_fill_kl(double kl[2][LK_TUNE_N_BITS], const uint8_t *bits, size_t n_probe,
                     const double probe[2][LK_TUNE_MAX_PROBE], enum lk_tune_trellis trellis) {
    const double min_kl = 1e-9; /* of rounding: logits are f32 */
    for (int side = 0; side < 2; side++) {
        double x[LK_TUNE_MAX_PROBE], y[LK_TUNE_MAX_PROBE];
        size_t left = n_probe;
        do {
            size_t i = --left;
            x[i] = log(lk_tune_distortion(bits[i], LK_TUNE_TRELLIS));
            y[i] = log(fmax(probe[side][i], min_kl));
            if (i + 1 < n_probe) y[i] = fmax(y[i], y[i + 1]); /* fewer bits cannot lose less */
        } while (left > 0);
        for (int b = 0; b < LK_TUNE_N_BITS; b++) {
            double at = log(lk_tune_distortion(lk_tune_bits_at[b], trellis));
            size_t i = 0; /* between probes i and i + 1 */
            while (i + 1 < n_probe && x[i + 1] >= at) i++;
            bool between = i + 1 < n_probe && at <= x[i];
            double slope = between ? (y[i + 1] - y[i]) / (x[i + 1] - x[i]) : 1;
            kl[side][b] = exp(y[i] + slope * (at - x[i]));
        }
    }
}

double lk_tune_loss_at(const struct lk_tune_model *model, int group, int side, int bits) {
    return model->kl[group][side][index_of_bits(bits)];
}

double lk_tune_share(double all, double rest, int recent) {
    const double min = 0.01, max = 0.95;
    double share = all > 0 ? 1 - rest / all : lk_tune_recent_at[recent] / 100.0;
    return fmin(fmax(share, min), max);
}

/* Factor of the loss of one side of one group. middle: mean of log kl at 3 bits. */
static double tilt_factor(const struct lk_tune_model *model, const struct lk_tune_tilt *tilt,
                          int group, int side, double middle) {
    int layer = model->group[group].layer;
    double depth = model->n_layer > 1 ? (double)layer / (model->n_layer - 1) - 0.5 : 0;
    double deviation = log(model->kl[group][side][index_of_bits(3)]) - middle;
    return exp((side ? tilt->v : 0) + tilt->depth * depth + tilt->contrast * deviation);
}

static double middle_of(const struct lk_tune_model *model) {
    double sum = 0;
    for (int group = 0; group < model->n_group; group++)
        for (int side = 0; side < 2; side++) sum += log(model->kl[group][side][index_of_bits(3)]);
    return sum / (2.0 * model->n_group);
}

/* ---- cost ---- */

lk_status lk_tune_plan(const lk_model *model, const char *text, int32_t n_ctx, lk_plan *plan,
                       lk_err *err) {
    lk_recipe *recipe = NULL;
    lk_session_opts opts = {.n_ctx = n_ctx};
    lk_status status = lk_recipe_parse(&recipe, text, err);
    if (!status) status = lk_plan_make(model, recipe, &opts, plan, err);
    lk_recipe_free(recipe);
    return status;
}

/* What a cost is counted for. */
struct counting {
    const lk_model *model;
    const struct lk_tune_model *loss;
    struct lk_tune_bits *bits; /* [n_group] scratch */
    int recent;
    int32_t n_ctx;
};

/* Bytes of the recipe with these bits. */
static lk_status count_bytes(const struct counting *c, uint64_t *bytes, lk_err *err) {
    struct lk_buf text = {0};
    lk_plan plan;
    lk_tune_print(&text, c->loss->group, c->bits, c->loss->n_group, lk_tune_recent_at[c->recent],
                  LK_TUNE_TRELLIS);
    lk_status status = text.failed ? lk_fail(err, LK_E_NOMEM, "no memory for a recipe")
                                   : lk_tune_plan(c->model, text.at, c->n_ctx, &plan, err);
    if (!status) *bytes = plan.cache_bytes;
    lk_buf_free(&text);
    return status;
}

static const struct lk_tune_bits fewest = {{{1, 1}, {1, 1}}};

/* Bytes of the recipe that has the fewest bits but for `bits` in one side and age, in one group or
 * (group < 0) in all. The level 'recent' has 8 bits. */
static lk_status count_change(const struct counting *c, int group, int age, int side, int bits,
                              uint64_t *bytes, lk_err *err) {
    for (int i = 0; i < c->loss->n_group; i++) {
        c->bits[i] = fewest;
        memset(c->bits[i].of[LK_TUNE_RECENT], age == LK_TUNE_BODY ? 8 : 1, 2);
        if (group < 0 || i == group) c->bits[i].of[age][side] = (uint8_t)bits;
    }
    return count_bytes(c, bytes, err);
}

/* The cost of more bits in one side and age: of all groups, and each group's part of it. A layer
 * with a sliding window may have all its rows in the level 'recent'. */
static lk_status count_age(struct lk_tune_cost *cost, const struct counting *c, int age, int side,
                           lk_err *err) {
    uint64_t least = 0, bytes = 0, sum = 0;
    int n_group = c->loss->n_group;
    lk_status status = LK_OK;
    for (int b = 0; !status && b < LK_TUNE_N_BITS; b++) {
        status = count_change(c, -1, age, side, lk_tune_bits_at[b], &bytes, err);
        if (b == 0) least = bytes;
        cost->more[age][side][b] = bytes > least ? bytes - least : 0;
    }
    for (int group = 0; !status && group < n_group; group++) {
        status = count_change(c, group, age, side, 8, &bytes, err);
        cost->part[group][age][side] = bytes > least ? (double)(bytes - least) : 0;
        sum += bytes > least ? bytes - least : 0;
    }
    for (int group = 0; group < n_group; group++)
        cost->part[group][age][side] =
            sum ? cost->part[group][age][side] / (double)sum : 1.0 / n_group;
    return status;
}

static lk_status count_all(struct lk_tune_cost *cost, const struct counting *c, lk_err *err) {
    for (int i = 0; i < c->loss->n_group; i++) c->bits[i] = fewest;
    lk_status status = count_bytes(c, &cost->base, err);
    for (int age = 0; age < (c->recent ? LK_TUNE_AGES : 1); age++)
        for (int side = 0; !status && side < 2; side++) status = count_age(cost, c, age, side, err);
    return status;
}

lk_status lk_tune_count_cost(struct lk_tune_cost *cost, const struct lk_tune_model *loss,
                             const lk_model *model, int32_t n_ctx, int recent, lk_err *err) {
    struct lk_ledger ledger = {0};
    size_t size = (size_t)loss->n_group * sizeof(struct lk_tune_bits);
    struct counting c = {.model = model, .loss = loss, .recent = recent, .n_ctx = n_ctx};
    c.bits = lk_alloc(&ledger, LK_FOR_SCRATCH, size);
    if (!c.bits) return lk_fail(err, LK_E_NOMEM, "no memory for %d head groups", loss->n_group);
    memset(cost->more, 0, sizeof cost->more);
    lk_status status = count_all(cost, &c, err);
    lk_release(&ledger, LK_FOR_SCRATCH, c.bits, size);
    return status;
}

/* ---- choice ---- */

/* The options of one side of one group. */
static void list_options(const struct lk_tune_model *model, const struct lk_tune_cost *cost,
                         const struct lk_tune_form *form, int group, int side, double factor,
                         struct lk_allocate_option option[N_OPTION]) {
    double share = model->share[group][side][form->recent],
           odds = share / (1 - share) * exp(form->tilt.recent);
    const double(*part)[2] = cost->part[group];
    const double *kl = model->kl[group][side];
    share = odds / (1 + odds);
    int fewest_bits = side == LK_K ? form->min_k_bits : 1;
    for (int body = 0; body < LK_TUNE_N_BITS; body++)
        for (int newer = 0; newer < LK_TUNE_N_BITS; newer++) {
            bool possible = lk_tune_bits_at[body] >= fewest_bits &&
                            (form->recent ? newer >= body : newer == body);
            double bytes = part[LK_TUNE_BODY][side] * (double)cost->more[LK_TUNE_BODY][side][body];
            if (form->recent)
                bytes +=
                    part[LK_TUNE_RECENT][side] * (double)cost->more[LK_TUNE_RECENT][side][newer];
            option[body * LK_TUNE_N_BITS + newer] = (struct lk_allocate_option){
                .loss = possible ? factor * (kl[body] * (1 - share) + kl[newer] * share) : INFINITY,
                .cost = (uint64_t)ceil(bytes)};
        }
}

lk_status lk_tune_choose(const struct lk_tune_model *model, const struct lk_tune_cost *cost,
                         const struct lk_tune_form *form, uint64_t max_bytes,
                         struct lk_ledger *ledger, struct lk_tune_bits *bits, double *kl,
                         lk_err *err) {
    size_t n_item = 2 * (size_t)model->n_group;
    struct lk_allocate_option(*option)[N_OPTION] =
        lk_alloc(ledger, LK_FOR_SCRATCH, n_item * sizeof *option);
    int *choice = lk_alloc(ledger, LK_FOR_SCRATCH, n_item * sizeof *choice);
    double middle = middle_of(model);
    lk_status status = LK_OK;
    if (!option || !choice)
        status = lk_fail(err, LK_E_NOMEM, "no memory to allocate bits to %zu items", n_item);
    for (size_t i = 0; !status && i < n_item; i++) {
        int group = (int)(i / 2), side = (int)(i % 2);
        list_options(model, cost, form, group, side,
                     tilt_factor(model, &form->tilt, group, side, middle), option[i]);
    }
    uint64_t least = cost->base;
    for (size_t i = 0; !status && i < n_item; i++) least += lk_allocate_least(option[i], N_OPTION);
    if (!status && least > max_bytes)
        status = lk_fail(err, LK_E_ARG, "%llu bytes are too few; the smallest recipe has %llu",
                         (unsigned long long)max_bytes, (unsigned long long)least);
    if (!status)
        status = lk_allocate(option[0], n_item, N_OPTION, max_bytes - cost->base, ledger, choice,
                             kl, err);
    for (size_t i = 0; !status && i < n_item; i++) {
        struct lk_tune_bits *group = &bits[i / 2];
        group->of[LK_TUNE_BODY][i % 2] = lk_tune_bits_at[choice[i] / LK_TUNE_N_BITS];
        group->of[LK_TUNE_RECENT][i % 2] = lk_tune_bits_at[choice[i] % LK_TUNE_N_BITS];
    }
    lk_release(ledger, LK_FOR_SCRATCH, choice, n_item * sizeof *choice);
    lk_release(ledger, LK_FOR_SCRATCH, option, n_item * sizeof *option);
    return status;
}

/* ---- allocation: multiple-choice knapsack by dynamic programming over the budget ---- */

uint64_t lk_allocate_least(const struct lk_allocate_option *option, size_t n_option) {
    uint64_t min = UINT64_MAX;
    for (size_t i = 0; i < n_option; i++)
        if (isfinite(option[i].loss) && option[i].cost < min) min = option[i].cost;
    return min;
}

/* best[u]: minimal loss of the items so far with at most u units above their minimum costs.
 * Extends it by one item, from `before`, and records the item's choice for each u in pick. */
static void add_item(const struct lk_allocate_option *option, size_t n_option, uint64_t unit,
                     size_t n_unit, const double *before, double *best, uint8_t *pick) {
    uint64_t min = lk_allocate_least(option, n_option);
    for (size_t u = 0; u <= n_unit; u++) best[u] = INFINITY;
    for (size_t i = 0; i < n_option; i++) {
        if (!isfinite(option[i].loss)) continue;
        uint64_t need = (option[i].cost - min + unit - 1) / unit;
        for (size_t u = (size_t)need; need <= n_unit && u <= n_unit; u++) {
            double loss = before[u - (size_t)need] + option[i].loss;
            if (loss >= best[u]) continue;
            best[u] = loss;
            pick[u] = (uint8_t)i;
        }
    }
}

lk_status lk_allocate(const struct lk_allocate_option *option, size_t n_item, size_t n_option,
                      uint64_t budget, struct lk_ledger *ledger, int *choice, double *loss,
                      lk_err *err) {
    uint64_t floor = 0;
    for (size_t i = 0; i < n_item; i++) floor += lk_allocate_least(option + i * n_option, n_option);
    if (floor > budget)
        return lk_fail(err, LK_E_ARG, "%llu bytes are too few; the smallest recipe has %llu",
                       (unsigned long long)budget, (unsigned long long)floor);
    uint64_t room = budget - floor, unit = room / LK_ALLOCATE_UNITS + 1;
    size_t n_unit = (size_t)(room / unit), row = n_unit + 1;
    double *best = lk_alloc(ledger, LK_FOR_SCRATCH, 2 * row * sizeof *best);
    uint8_t *pick = lk_alloc(ledger, LK_FOR_SCRATCH, n_item * row);
    lk_status status = LK_OK;
    if (!best || !pick)
        status = lk_fail(err, LK_E_NOMEM, "no memory to allocate bits to %zu items", n_item);
    for (size_t i = 0; !status && i < n_item; i++)
        add_item(option + i * n_option, n_option, unit, n_unit, best + i % 2 * row,
                 best + (i + 1) % 2 * row, pick + i * row);
    if (!status) {
        size_t u = n_unit;
        *loss = best[n_item % 2 * row + u];
        for (size_t i = n_item; i-- > 0;) {
            const struct lk_allocate_option *item = option + i * n_option;
            choice[i] = pick[i * row + u];
            u -= (size_t)((item[choice[i]].cost - lk_allocate_least(item, n_option) + unit - 1) /
                          unit);
        }
    }
    lk_release(ledger, LK_FOR_SCRATCH, pick, n_item * row);
    lk_release(ledger, LK_FOR_SCRATCH, best, 2 * row * sizeof *best);
    return status;
}
