/* Tunes recipes: measures the loss of one layer and side at a time, allocates bits, and improves
 * the result by measuring variants of it. */
#include "base/err.h"
#include "base/hash.h"
#include "engine/model.h"
#include "tune/estimate.h"
#include "tune/prompts.h"
#include "tune/tune_search.h"

#include <math.h>
#include <string.h>

enum {
    DEFAULT_CHUNK = 1024,
    DEFAULT_CHUNKS = 2,
    DEFAULT_ROUNDS = 2,
    ESTIMATE_CHUNK = 4096,
    ESTIMATE_SCORED = 16,
    DEFAULT_MIN_K_BITS = 2,
    DEFAULT_BYTES = 768 << 20,
    AGE_BITS = 3 /* of the rows whose age is varied */
};

/* ---- creation ---- */

static bool is_bits(int bits) {
    for (int i = 0; i < LK_TUNE_N_BITS; i++)
        if (lk_tune_bits_at[i] == bits) return true;
    return false;
}

/* Fill in the defaults of t->opts and check it. */
static lk_status check_opts(struct lk_tune *t, size_t n_tok, lk_err *err) {
    lk_tune_opts *o = &t->opts;
    static const int32_t default_bits[] = {2};
    if (!o->chunk) o->chunk = o->estimate ? ESTIMATE_CHUNK : DEFAULT_CHUNK;
    if (!o->n_chunk) o->n_chunk = DEFAULT_CHUNKS;
    if (!o->n_scored && o->estimate)
        o->n_scored = o->chunk > 2 * ESTIMATE_SCORED ? ESTIMATE_SCORED : o->chunk / 2;
    if (!o->n_ctx) o->n_ctx = o->chunk;
    if (!o->n_round) o->n_round = DEFAULT_ROUNDS;
    if (!o->max_bytes) o->max_bytes = DEFAULT_BYTES;
    if (!o->max_groups) o->max_groups = LK_TUNE_MAX_GROUP;
    if (!o->min_k_bits) o->min_k_bits = DEFAULT_MIN_K_BITS;
    if (!o->n_bits) {
        o->bits = default_bits;
        o->n_bits = sizeof default_bits / sizeof *default_bits;
    }
    if (o->chunk < 4 || o->n_chunk < 1 || o->n_ctx < 1 || o->n_ctx > LK_MAX_CTX)
        return lk_fail(err, LK_E_ARG, "a chunk has at least 4 tokens, a context 1 to %d",
                       LK_MAX_CTX);
    if (o->max_groups < 1 || o->max_groups > LK_TUNE_MAX_GROUP)
        return lk_fail(err, LK_E_ARG, "a layer can have 1 to %d head groups", LK_TUNE_MAX_GROUP);
    if (!is_bits(o->min_k_bits))
        return lk_fail(err, LK_E_ARG, "keys cannot have %d bits; give 1 to 6 or 8", o->min_k_bits);
    int32_t most = o->chunk - 1 - o->estimate; /* an estimate needs a prompt */
    if (o->n_scored < 0 || o->n_scored > most)
        return lk_fail(err, LK_E_ARG, "%d predictions of a chunk cannot be scored; give 1 to %d",
                       o->n_scored, most);
    if (o->estimate && o->no_prompt) return lk_fail(err, LK_E_ARG, "an estimate needs prompts");
    if (o->n_bits > LK_TUNE_MAX_PROBE)
        return lk_fail(err, LK_E_ARG, "at most %d numbers of bits can be measured",
                       LK_TUNE_MAX_PROBE);
    for (size_t i = 0; i < o->n_bits; i++) {
        if (!is_bits(o->bits[i]) || (i > 0 && o->bits[i] <= o->bits[i - 1]))
            return lk_fail(err, LK_E_ARG,
                           "numbers of bits to measure are 1 to 6 or 8, in increasing order");
        t->bits[i] = (uint8_t)o->bits[i];
    }
    o->bits = NULL;
    if (n_tok / (size_t)o->chunk < (size_t)o->n_chunk)
        return lk_fail(err, LK_E_ARG,
                       "the text has %zu tokens, less than %d chunks of %d; use a longer text or "
                       "fewer chunks",
                       n_tok, o->n_chunk, o->chunk);
    return LK_OK;
}

static struct lk_measure_text text_of(const struct lk_tune *t, const int32_t *tok, size_t n_tok,
                                      bool prompt) {
    return lk_measure_text_of(tok, n_tok, t->opts.chunk, t->opts.n_scored, prompt);
}

/* What all results of a state share. */
static uint64_t hash_run(const lk_model *model) {
    lk_model_info info = lk_model_get_info(model);
    const char *version = lk_version();
    uint64_t fact[] = {model->net->fingerprint, info.weight_bytes, (uint64_t)info.n_layer};
    return lk_fnv1a(lk_fnv1a(LK_FNV1A_INIT, fact, sizeof fact), version, strlen(version));
}

/* Count the bytes of everything that can be chosen. */
static lk_status count_costs(struct lk_tune *t, lk_err *err) {
    lk_status status = LK_OK;
    for (int i = 0; !status && i < LK_TUNE_N_RECENT; i++)
        status = lk_tune_count_cost(&t->cost[i], &t->loss, t->model, t->opts.n_ctx, i, err);
    return status;
}

static lk_status allocate_arrays(struct lk_tune *t, lk_err *err) {
    size_t n = (size_t)t->loss.n_group;
    bool complete = true;
    t->tok = lk_alloc(&t->ledger, LK_FOR_OTHER, t->n_tok * sizeof *t->tok);
    t->loss.group = lk_alloc(&t->ledger, LK_FOR_OTHER, n * sizeof *t->loss.group);
    t->loss.kl = lk_alloc(&t->ledger, LK_FOR_OTHER, n * sizeof *t->loss.kl);
    t->loss.share = lk_alloc(&t->ledger, LK_FOR_OTHER, n * sizeof *t->loss.share);
    for (int i = 0; i < LK_TUNE_N_RECENT; i++) {
        t->cost[i].part = lk_alloc(&t->ledger, LK_FOR_OTHER, n * sizeof *t->cost[i].part);
        complete &= t->cost[i].part != NULL;
    }
    if (!complete || !t->tok || !t->loss.group || !t->loss.kl || !t->loss.share)
        return lk_fail(err, LK_E_NOMEM, "no memory to tune %zu head groups", n);
    struct lk_cache_shape shape = lk_model_cache_shape(t->model);
    lk_tune_divide_heads(&shape, t->opts.max_groups, t->loss.group);
    return LK_OK;
}

lk_status lk_tune_new(lk_tune **out, lk_model *model, const int32_t *tok, size_t n_tok,
                      const lk_tune_opts *opts, lk_err *err) {
    struct lk_tune *t = lk_alloc(&model->ledger, LK_FOR_OTHER, sizeof *t);
    if (!t) return lk_fail(err, LK_E_NOMEM, "no memory to tune");
    t->model = model;
    if (opts) t->opts = *opts;
    lk_status status = lk_model_check_weights(model, err);
    if (!status) status = check_opts(t, n_tok, err);
    if (!status) {
        t->loss.n_layer = lk_model_get_info(model).n_cached;
        struct lk_cache_shape shape = lk_model_cache_shape(model);
        t->loss.n_group = lk_tune_divide_heads(&shape, t->opts.max_groups, NULL);
        t->loss.trellis = t->opts.fast ? LK_TUNE_NO_TRELLIS : LK_TUNE_TRELLIS;
        t->n_tok = (size_t)t->opts.n_chunk * (size_t)t->opts.chunk;
        status = allocate_arrays(t, err);
    }
    if (!status) {
        size_t chunk = (size_t)t->opts.chunk, n = (size_t)t->opts.n_chunk, n_have = n_tok / chunk;
        for (size_t i = 0; i < n; i++)
            memcpy(t->tok + i * chunk, tok + i * n_have / n * chunk, chunk * sizeof *tok);
        bool prompt = !t->opts.no_prompt;
        t->probes = text_of(t, t->tok, t->n_tok, prompt);
        t->recipes = text_of(t, t->tok, t->n_tok, prompt && t->opts.n_scored);
        status = count_costs(t, err);
    }
    if (!status) status = lk_tune_log_open(&t->log, t->opts.state, hash_run(model), err);
    if (status) {
        lk_tune_free(t);
        return status;
    }
    *out = t;
    return LK_OK;
}

void lk_tune_free(lk_tune *t) {
    if (!t) return;
    size_t n = (size_t)t->loss.n_group;
    lk_prompts_free(t->prompts);
    lk_tune_log_close(&t->log);
    for (int i = 0; i < LK_TUNE_N_RECENT; i++)
        lk_release(&t->ledger, LK_FOR_OTHER, t->cost[i].part, n * sizeof *t->cost[i].part);
    lk_release(&t->ledger, LK_FOR_OTHER, t->loss.group, n * sizeof *t->loss.group);
    lk_release(&t->ledger, LK_FOR_OTHER, t->loss.share, n * sizeof *t->loss.share);
    lk_release(&t->ledger, LK_FOR_OTHER, t->loss.kl, n * sizeof *t->loss.kl);
    lk_release(&t->ledger, LK_FOR_OTHER, t->tok, t->n_tok * sizeof *t->tok);
    lk_release(&t->model->ledger, LK_FOR_OTHER, t, sizeof *t);
}

/* ---- measuring ---- */

/* The number of recipes that lk_tune_measure measures, and where the two kinds start: each side of
 * each head group at each number of bits; then, for each side, all layers with each size of the
 * level 'recent', which is exact. */
static size_t n_probe_recipes(const struct lk_tune *t) {
    return 2 * (size_t)t->loss.n_group * t->opts.n_bits + (size_t)(2 * LK_TUNE_N_RECENT);
}

static size_t probe_at(const struct lk_tune *t, int group, int side, size_t i) {
    return ((size_t)group * 2 + (size_t)side) * t->opts.n_bits + i;
}

static size_t age_probe_at(const struct lk_tune *t, int side, int recent) {
    return probe_at(t, t->loss.n_group, 0, 0) + (size_t)(side * LK_TUNE_N_RECENT + recent);
}

static void print_probes(const struct lk_tune *t, struct lk_buf *recipe) {
    for (int side = 0; side < 2; side++) {
        for (int group = 0; group < t->loss.n_group; group++)
            for (size_t i = 0; i < t->opts.n_bits; i++) {
                struct lk_buf *out = &recipe[probe_at(t, group, side, i)];
                lk_buf_append_str(out, "sink 4: f16; body: f16; ");
                lk_tune_print_probe(out, &t->loss.group[group], side, t->bits[i]);
                lk_buf_append_str(out, "; window 32: f16");
            }
        for (int i = 0; i < LK_TUNE_N_RECENT; i++) {
            struct lk_buf *out = &recipe[age_probe_at(t, side, i)];
            lk_buf_append_str(out, "sink 4: f16; body: ");
            lk_tune_print_side(out, side, AGE_BITS);
            if (lk_tune_recent_at[i])
                lk_buf_printf(out, "; recent %d%%: f16", lk_tune_recent_at[i]);
            lk_buf_append_str(out, "; window 32: f16");
        }
    }
}

/* Make the model of the loss from the measured KL. */
static void fit_loss(struct lk_tune *t, const struct lk_buf *recipe) {
    for (int group = 0; group < t->loss.n_group; group++) {
        double probe[2][LK_TUNE_MAX_PROBE];
        for (int side = 0; side < 2; side++)
            for (size_t i = 0; i < t->opts.n_bits; i++)
                probe[side][i] =
                    lk_tune_measured_kl(t, &t->probes, &recipe[probe_at(t, group, side, i)]);
        lk_tune_fill_kl(t->loss.kl[group], t->bits, t->opts.n_bits, probe, t->loss.trellis);
    }
    for (int side = 0; side < 2; side++) {
        double all = lk_tune_measured_kl(t, &t->probes, &recipe[age_probe_at(t, side, 0)]);
        for (int i = 1; i < LK_TUNE_N_RECENT; i++) {
            double rest = lk_tune_measured_kl(t, &t->probes, &recipe[age_probe_at(t, side, i)]);
            for (int group = 0; group < t->loss.n_group; group++)
                t->loss.share[group][side][i] = lk_tune_share(all, rest, i);
        }
    }
}

static lk_status measure_groups(struct lk_tune *t, lk_err *err) {
    size_t n = n_probe_recipes(t);
    struct lk_buf *recipe = lk_alloc(&t->ledger, LK_FOR_OTHER, n * sizeof *recipe);
    struct lk_measure measure = lk_tune_measure_of(t);
    if (!recipe) return lk_fail(err, LK_E_NOMEM, "no memory for %zu recipes", n);
    print_probes(t, recipe);
    lk_status status = lk_measure_set(&measure, &t->probes, recipe, n, err);
    if (!status) fit_loss(t, recipe);
    for (size_t i = 0; i < n; i++) lk_buf_free(&recipe[i]);
    lk_release(&t->ledger, LK_FOR_OTHER, recipe, n * sizeof *recipe);
    return status;
}

lk_status lk_tune_measure(lk_tune *t, lk_err *err) {
    lk_status status = LK_OK;
    if (t->opts.estimate) status = lk_tune_hold(t, err);
    if (!status) status = t->opts.estimate ? lk_estimate_groups(t, err) : measure_groups(t, err);
    t->measured = !status;
    return status;
}

lk_status lk_tune_set_fast(lk_tune *t, bool fast, lk_err *err) {
    t->loss.trellis = fast ? LK_TUNE_NO_TRELLIS : LK_TUNE_TRELLIS;
    lk_status status = count_costs(t, err);
    return status || !t->measured ? status : lk_tune_measure(t, err);
}

double lk_tune_kl(const lk_tune *t, int32_t layer, int side, int bits) {
    if (!t->measured || layer < 0 || layer >= t->loss.n_layer || side < 0 || side > 1) return 0;
    double sum = 0;
    for (int group = 0; is_bits(bits) && group < t->loss.n_group; group++)
        if (t->loss.group[group].layer == layer)
            sum += lk_tune_loss_at(&t->loss, group, side, bits);
    return sum;
}

/* ---- results ---- */

static lk_status make_result(const struct lk_tune_search *s, size_t i, lk_tuned *out, lk_err *err) {
    lk_tuned tuned = {.estimate = s->at[i].estimate};
    lk_session_opts opts = {.n_ctx = s->t->opts.n_ctx};
    tuned.measured = *lk_tune_log_find(&s->t->log, s->t->recipes.id, s->at[i].text.at);
    lk_status status = lk_recipe_parse(&tuned.recipe, s->at[i].text.at, err);
    if (!status) status = lk_plan_make(s->t->model, tuned.recipe, &opts, &tuned.plan, err);
    if (status) {
        lk_recipe_free(tuned.recipe);
        return status;
    }
    *out = tuned;
    return LK_OK;
}

static lk_status solve(lk_tune *t, uint64_t max_bytes, double max_per_token, lk_tuned *out,
                       lk_err *err) {
    struct lk_tune_search s;
    size_t best = 0;
    lk_status status = lk_tune_search_open(&s, t, max_bytes, err);
    s.max_per_token = max_per_token;
    if (!status) status = lk_tune_search_improve(&s, &best, err);
    if (!status) status = make_result(&s, best, out, err);
    lk_tune_search_close(&s);
    return status;
}

lk_status lk_tune_solve(lk_tune *t, uint64_t max_bytes, lk_tuned *out, lk_err *err) {
    return solve(t, max_bytes, 0, out, err);
}

lk_status lk_tune_solve_like(lk_tune *t, const lk_recipe *like, lk_tuned *out,
                             lk_compare_result *of_like, lk_err *err) {
    enum { ATTEMPTS = 5 };
    struct lk_measure measure = lk_tune_measure_of(t);
    struct lk_buf text = {0};
    lk_plan plan;
    lk_compare_result result = {0};
    double limit = INFINITY;
    bool found = false, measured = !t->opts.estimate && t->opts.n_ctx == t->opts.chunk;
    lk_buf_append_str(&text, lk_recipe_text(like));
    lk_status status = lk_tune_plan(t->model, text.at, t->opts.n_ctx, &plan, err);
    if (!status && (measured || of_like)) {
        status = lk_measure_set(&measure, &t->recipes, &text, 1, err);
        if (!status) result = *lk_tune_log_find(&t->log, t->recipes.id, text.at);
        if (measured) limit = result.bytes_per_token;
    }
    lk_buf_free(&text);
    for (int i = 0; !status && !found && i < ATTEMPTS; i++) {
        lk_tuned tuned;
        status = solve(t, plan.cache_bytes, limit, &tuned, err);
        if (status) break;
        double excess = tuned.measured.bytes_per_token / limit;
        found = excess <= 1;
        if (found)
            *out = tuned;
        else
            lk_recipe_free(tuned.recipe);
        plan.cache_bytes = (uint64_t)((double)plan.cache_bytes * 0.998 / fmax(excess, 1));
    }
    if (!status && !found)
        status = lk_fail(err, LK_E_ARG, "no recipe was found that is as small as '%.80s'",
                         lk_recipe_text(like));
    if (!status && of_like) *of_like = result;
    return status;
}

lk_status lk_tune_estimate(lk_tune *t, uint64_t max_bytes, double *kl, uint64_t *bytes,
                           lk_err *err) {
    struct lk_tune_search s;
    lk_status status = lk_tune_search_open(&s, t, max_bytes, err);
    if (!status) {
        const struct lk_tune_candidate *c = &s.at[lk_tune_search_best_estimate(&s)];
        *kl = c->estimate;
        *bytes = c->bytes;
    }
    lk_tune_search_close(&s);
    return status;
}

/* The smallest size, to a part in a thousand, whose estimate is at most `kl`. */
static lk_status find_bytes(struct lk_tune *t, double kl, uint64_t *max_bytes, lk_err *err) {
    uint64_t low = 0, high = 0, bytes;
    double estimate;
    for (int i = 0; i < LK_TUNE_N_RECENT; i++) {
        if (!low || t->cost[i].base < low) low = t->cost[i].base;
        uint64_t top = t->cost[i].base;
        for (int age = 0; age < LK_TUNE_AGES; age++)
            for (int side = 0; side < 2; side++)
                top += t->cost[i].more[age][side][LK_TUNE_N_BITS - 1];
        if (top > high) high = top;
    }
    high += high / 64; /* rounding of blocks */
    lk_status status = lk_tune_estimate(t, high, &estimate, &bytes, err);
    while (!status && high - low > high / 1000) {
        uint64_t middle = low + (high - low) / 2;
        lk_err failure = {0};
        status = lk_tune_estimate(t, middle, &estimate, &bytes, &failure);
        if (status == LK_E_ARG || (!status && estimate > kl))
            low = middle;
        else if (!status)
            high = middle;
        if (status == LK_E_ARG)
            status = LK_OK;
        else if (status)
            return lk_fail(err, status, "%s", failure.msg);
    }
    if (!status) *max_bytes = high;
    return status;
}

lk_status lk_tune_solve_kl(lk_tune *t, double max_kl, lk_tuned *out, lk_err *err) {
    enum { ATTEMPTS = 4 };
    lk_tuned best = {0};
    double target = max_kl; /* of the estimate */
    uint64_t bytes = 0, last = 0;
    lk_status status = LK_OK;
    for (int i = 0; !status && i < ATTEMPTS; i++) {
        lk_tuned tuned;
        status = find_bytes(t, target, &bytes, err);
        if (!status && bytes == last) break;
        last = bytes;
        if (!status) status = lk_tune_solve(t, bytes, &tuned, err);
        if (status) break;
        double kl = tuned.measured.kl_mean;
        bool fits = kl <= max_kl;
        bool better = fits && (!best.recipe || tuned.plan.cache_bytes < best.plan.cache_bytes);
        lk_recipe_free(better ? best.recipe : tuned.recipe);
        if (better) best = tuned;
        if (fits && kl > 0.95 * max_kl) break;
        target *= 0.98 * max_kl / fmax(kl, 1e-9);
    }
    if (!status && !best.recipe)
        status = lk_fail(err, LK_E_ARG, "no recipe with a KL of at most %g was found", max_kl);
    if (status) {
        lk_recipe_free(best.recipe);
        return status;
    }
    *out = best;
    return LK_OK;
}

lk_status lk_tune_check(lk_tune *t, const lk_recipe *const *recipe, size_t n_recipe,
                        const int32_t *tok, size_t n_tok, int32_t n_chunk,
                        lk_compare_result *results, lk_err *err) {
    size_t chunk = (size_t)t->opts.chunk;
    if (n_tok < chunk)
        return lk_fail(err, LK_E_ARG, "the text has %zu tokens, less than one chunk of %zu", n_tok,
                       chunk);
    if (n_chunk > 0 && n_tok / chunk > (size_t)n_chunk) n_tok = (size_t)n_chunk * chunk;
    struct lk_measure_text text = text_of(t, tok, n_tok, t->recipes.prompt);
    struct lk_measure measure = lk_tune_measure_of(t);
    struct lk_buf *name = lk_alloc(&t->ledger, LK_FOR_OTHER, n_recipe * sizeof *name);
    if (!name) return lk_fail(err, LK_E_NOMEM, "no memory for %zu recipes", n_recipe);
    for (size_t i = 0; i < n_recipe; i++) lk_buf_append_str(&name[i], lk_recipe_text(recipe[i]));
    lk_status status = lk_measure_set(&measure, &text, name, n_recipe, err);
    for (size_t i = 0; !status && i < n_recipe; i++)
        results[i] = *lk_tune_log_find(&t->log, text.id, name[i].at);
    for (size_t i = 0; i < n_recipe; i++) lk_buf_free(&name[i]);
    lk_release(&t->ledger, LK_FOR_OTHER, name, n_recipe * sizeof *name);
    return status;
}
