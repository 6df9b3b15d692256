/* Training adapters by distillation from the same model with a full cache: layer by layer, then end
 * to end.
 *
 * Palu (appendix D) and "Effectively Compress KV Heads" (section 4.1) fine-tune on the next token.
 * Here the teacher is the model itself, so any text will do, and the adapters learn what the cache
 * lost instead of what the text is about. */
#include "base/atomic_file.h"
#include "base/clock.h"
#include "base/hash.h"
#include "lowkey_lab.h"
#include "training/descent.h"
#include "training/less_net.h"
#include "training/lora_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What a sequence costs, in forward passes. */
enum { LAYER_COST = 2, FULL_COST = 5, VALID_COST = 2 };
enum { N_MEASURED = 10 }; /* measurements on the validation sequences, evenly over the steps */
static const double save_seconds = 30;
static const double warm_up = 0.05; /* share of the steps */
enum { END_PART = 5 };              /* the rate end to end is this part of the one layer by layer */

struct trainer {
    struct lk_model *model;
    struct lk_ledger ledger;
    lk_lora_opts opts; /* defaults filled in */
    const int32_t *tok;
    int n_seq, n_valid, last_layer;
    int64_t n_layer_step, n_step; /* of layer by layer; of all */
    struct lk_lora_cache *cache;
    struct lk_lora_net *net;
    int32_t *order; /* [2][n_seq] sequences, the validation ones last; then an epoch's order */
    float *x; /* [n_layer + 1][n_ctx][n_embd] inputs of all layers, and the last one's output */
    float *teacher, *target; /* [n_ctx][n_embd] */
    int32_t *window;         /* [n_ctx] */
    uint64_t done, total;
    struct lk_lora_state state;
    char state_path[LK_MAX_PATH];
};

static int n_train(const struct trainer *t) { return t->n_seq - t->n_valid; }

static size_t stream_floats(const struct trainer *t) {
    return (size_t)t->opts.n_ctx * t->model->net->hp.n_embd;
}

static float *input_of(const struct trainer *t, int layer) {
    return t->x + (size_t)layer * stream_floats(t);
}

/* Report progress, `cost` more of it. LK_E_CANCELLED. */
static lk_status count_cost(struct trainer *t, int cost, lk_err *err) {
    t->done += (uint64_t)cost;
    if (!t->opts.progress || t->opts.progress(t->opts.user, t->done, t->total)) return LK_OK;
    return lk_fail(err, LK_E_CANCELLED, "cancelled; run the same command to continue");
}

/* ---- sequences ---- */

/* The training sequence of a position in the whole training. */
static int sequence_at(struct trainer *t, int64_t at) {
    int64_t epoch = at / n_train(t);
    int32_t *order = t->order + t->n_seq;
    memcpy(order, t->order, (size_t)n_train(t) * sizeof *order);
    lk_shuffle(order, n_train(t), lk_splitmix64_nth(t->opts.seed, 1000 + (uint64_t)epoch));
    return order[at % n_train(t)];
}

/* Embed a sequence: the input of layer 0 for the student, and for the teacher. */
static lk_status start_sequence(struct trainer *t, int seq, lk_err *err) {
    size_t n_ctx = (size_t)t->opts.n_ctx;
    memcpy(t->window, t->tok + (size_t)seq * n_ctx, n_ctx * sizeof *t->window);
    lk_compare_set_bos(t->model, t->window);
    lk_lora_cache_start(t->cache);
    lk_status status = lk_lora_embed(t->net, t->window, t->x, err);
    if (!status) memcpy(t->teacher, t->x, stream_floats(t) * sizeof *t->x);
    return status;
}

static bool is_adapted(const struct trainer *t, int layer) {
    return layer >= t->opts.first_layer && layer <= t->last_layer;
}

/* Layer by layer: add the gradients of one sequence. *loss: mean over the layers with adapters. */
static lk_status match_layers(struct trainer *t, int seq, double *loss, lk_err *err) {
    int n_layer = t->model->net->hp.n_layer, n = t->last_layer - t->opts.first_layer + 1;
    lk_status status = start_sequence(t, seq, err);
    *loss = 0;
    for (int layer = 0; !status && layer < n_layer && layer <= t->last_layer; layer++) {
        float *x = input_of(t, layer % 2), *next = input_of(t, (layer + 1) % 2), one;
        status = lk_lora_teach(t->net, layer, x, t->target, next, err);
        if (!status) status = count_cost(t, 0, err);
        if (status || !is_adapted(t, layer)) continue;
        status = lk_lora_match(t->net, layer, x, t->target, 1.0f / (float)n, &one, err);
        *loss += one / n;
    }
    return status;
}

/* The outputs of the last layer, of the full model and of the adapted one, and their divergence.
 * grad: [n_ctx][n_embd] or NULL */
static lk_status run_sequence(struct trainer *t, int seq, double *kl, float *grad, lk_err *err) {
    int n_layer = t->model->net->hp.n_layer;
    lk_status status = start_sequence(t, seq, err);
    for (int layer = 0; !status && layer < n_layer; layer++) {
        status = lk_lora_teach(t->net, layer, t->teacher, NULL, t->teacher, err);
        if (!status)
            status =
                lk_lora_forward(t->net, layer, input_of(t, layer), input_of(t, layer + 1), err);
        if (!status) status = count_cost(t, 0, err);
    }
    if (status) return status;
    return lk_lora_divergence(t->net, t->teacher, input_of(t, n_layer), kl, grad, err);
}

/* End to end: add the gradients of one sequence. */
static lk_status match_predictions(struct trainer *t, int seq, double *loss, lk_err *err) {
    lk_status status = run_sequence(t, seq, loss, t->target, err);
    for (int layer = t->model->net->hp.n_layer - 1; !status && layer >= t->opts.first_layer;
         layer--) {
        status = lk_lora_backward(t->net, layer, input_of(t, layer), t->target, t->target, err);
        if (!status) status = count_cost(t, 0, err);
    }
    return status;
}

/* Gradients of layers that get no adapters. */
static void clear_other_layers(struct trainer *t) {
    for (int layer = 0; layer < t->model->net->hp.n_layer; layer++)
        for (int i = 0; !is_adapted(t, layer) && i < LK_N_ADAPTED; i++) {
            const struct lk_lora_param *p = &t->net->param[layer][i];
            size_t n = (size_t)t->net->rank * (size_t)(p->n_in + p->n_out);
            memset(t->net->gradient + p->a, 0, n * sizeof(float));
        }
}

/* ---- steps ---- */

/* Measure the divergence on the validation sequences. Keep the weights if it is the smallest. */
static lk_status validate(struct trainer *t, lk_err *err) {
    double sum = 0, sum2 = 0, n = t->n_valid;
    for (int i = n_train(t); i < t->n_seq; i++) {
        double kl;
        lk_status status = run_sequence(t, t->order[i], &kl, NULL, err);
        if (status) return status;
        sum += kl;
        sum2 += kl * kl;
        status = count_cost(t, VALID_COST, err);
        if (status) return status;
    }
    double variance = sum2 / n - sum / n * (sum / n);
    if (!isfinite(sum))
        return lk_fail(err, LK_E_FORMAT,
                       "step %" PRId64 ": the divergence is not finite; use a smaller rate",
                       t->state.n_step);
    if (sum / n < t->state.best_kl) {
        t->state.best_kl = sum / n;
        t->state.best_step = t->state.n_step;
        memcpy(t->net->best, t->net->weight, t->net->n_weight * sizeof(float));
    }
    lk_lora_report report = {.step = t->state.n_step,
                             .n_step = t->n_step,
                             .best_step = t->state.best_step,
                             .kl = sum / n,
                             .kl_stderr = n > 1 && variance > 0 ? sqrt(variance / (n - 1)) : 0};
    if (t->opts.report) t->opts.report(t->opts.user, &report);
    return LK_OK;
}

/* The rate of step i of n, `max` at most: a linear warm-up, then half a cosine. */
static float rate_at(float max, int64_t i, int64_t n) {
    double at = ((double)i + 1) / (double)n, pi = acos(-1);
    if (at < warm_up) return (float)(max * at / warm_up);
    return (float)(max * (1 + cos(pi * (at - warm_up) / (1 - warm_up))) / 2);
}

/* Step `step` of the whole training. */
static lk_status run_step(struct trainer *t, int64_t step, lk_err *err) {
    bool layers = step < t->n_layer_step;
    int64_t first = layers ? 0 : t->n_layer_step, n = layers ? t->n_layer_step : t->n_step - first,
            nth = step - first;
    int batch = t->opts.batch;
    memset(t->net->gradient, 0, t->net->n_weight * sizeof(float));
    if (nth == 0) memset(t->net->mean, 0, 2 * t->net->n_weight * sizeof(float));
    for (int i = 0; i < batch; i++) {
        double loss = 0;
        int seq = sequence_at(t, step * batch + i);
        lk_status status =
            layers ? match_layers(t, seq, &loss, err) : match_predictions(t, seq, &loss, err);
        if (status) return status;
        if (!isfinite(loss))
            return lk_fail(err, LK_E_FORMAT,
                           "step %" PRId64 ": the loss is not finite; use a smaller rate",
                           step + 1);
        status = count_cost(t, layers ? LAYER_COST : FULL_COST, err);
        if (status) return status;
    }
    clear_other_layers(t);
    lk_lora_step(t->net, rate_at(layers ? t->opts.rate : t->opts.end_rate, nth, n), nth + 1, batch);
    return LK_OK;
}

/* Whether the divergence is measured after `step` steps: at regular intervals, and at the ends of
 * the two parts. */
static bool is_measured(const struct trainer *t, int64_t step) {
    return step == 0 || step == t->n_layer_step ||
           step * N_MEASURED / t->n_step != (step - 1) * N_MEASURED / t->n_step;
}

/* What is left to do, in forward passes. */
static uint64_t cost_left(const struct trainer *t) {
    int64_t step = t->state.n_step, n_valid = 0,
            by_layer = step < t->n_layer_step ? t->n_layer_step - step : 0,
            end_to_end = t->n_step - step - by_layer;
    for (int64_t i = step; i <= t->n_step; i++) n_valid += is_measured(t, i);
    return (uint64_t)(t->opts.batch * (by_layer * LAYER_COST + end_to_end * FULL_COST) +
                      VALID_COST * t->n_valid * n_valid);
}

static lk_status run_steps(struct trainer *t, lk_err *err) {
    lk_status status = lk_lora_state_load(t->state_path, &t->state, t->net, err);
    if (!status && t->state.n_step > t->n_step)
        status =
            lk_fail(err, LK_E_FORMAT, "%s is damaged; delete it to start again", t->state_path);
    int64_t *step = &t->state.n_step, saved = *step;
    double last_save = lk_now();
    t->done = 0;
    t->total = cost_left(t);
    while (!status) {
        if (is_measured(t, *step)) status = validate(t, err);
        if (!status && *step == t->n_step) break;
        if (!status) status = run_step(t, *step, err);
        if (status) break;
        ++*step;
        if (lk_now() - last_save < save_seconds) continue;
        status = lk_lora_state_save(t->state_path, &t->state, t->net, err);
        last_save = lk_now();
        saved = *step;
    }
    if (status != LK_E_CANCELLED || *step == saved) return status;
    lk_status lost = lk_lora_state_save(t->state_path, &t->state, t->net, err);
    return lost ? lost : status;
}

/* ---- options and memory ---- */

static lk_status resolve_opts(struct trainer *t, size_t n_tok, lk_err *err) {
    lk_lora_opts *o = &t->opts;
    int n_layer = t->model->net->hp.n_layer;
    if (o->n_ctx == 0) o->n_ctx = 512;
    if (!(o->valid > 0)) o->valid = 0.05f;
    if (o->rank == 0) o->rank = 32;
    if (!(o->alpha > 0)) o->alpha = 32;
    if (!(o->rate > 0)) o->rate = 2e-4f;
    if (o->batch == 0) o->batch = 1;
    if (o->n_layer_epoch == 0) o->n_layer_epoch = 1;
    if (o->n_epoch == 0) o->n_epoch = 1;
    if (o->n_layer_epoch < 0) o->n_layer_epoch = 0;
    if (o->n_epoch < 0) o->n_epoch = 0;
    if (!(o->end_rate > 0)) o->end_rate = o->n_layer_epoch > 0 ? o->rate / END_PART : o->rate;
    t->last_layer = o->n_layer ? o->first_layer + o->n_layer - 1 : n_layer - 1;
    if (o->first_layer < 0 || t->last_layer < o->first_layer || t->last_layer >= n_layer)
        return lk_fail(err, LK_E_ARG, "the layers must be between 0 and %d", n_layer - 1);
    if (o->n_ctx < 16 || o->n_ctx > 1 << 14)
        return lk_fail(err, LK_E_ARG, "sequences must have between 16 and 16384 tokens, not %d",
                       o->n_ctx);
    if (o->n_layer_epoch + o->n_epoch == 0)
        return lk_fail(err, LK_E_ARG, "nothing to train: give at least one epoch");
    if (!isfinite(o->alpha) || !isfinite(o->rate) || o->rate > 1 || !isfinite(o->end_rate) ||
        o->end_rate > 1 || o->valid >= 1)
        return lk_fail(err, LK_E_ARG,
                       "alpha, the rate or the share for validation is out of range");
    size_t n_seq = n_tok / (size_t)o->n_ctx;
    if (n_seq < 2 || n_seq > 1 << 24)
        return lk_fail(err, LK_E_ARG, "the text has %zu sequences of %d tokens; give at least 2",
                       n_seq, o->n_ctx);
    t->n_seq = (int)n_seq;
    t->n_valid = (int)lrintf((float)t->n_seq * o->valid);
    if (t->n_valid < 1) t->n_valid = 1;
    if (t->n_valid > t->n_seq - 1) t->n_valid = t->n_seq - 1;
    if (o->batch < 1 || o->batch > n_train(t))
        return lk_fail(err, LK_E_ARG, "a step has 1 to %d sequences, not %d", n_train(t), o->batch);
    t->n_layer_step = (int64_t)o->n_layer_epoch * n_train(t) / o->batch;
    t->n_step = t->n_layer_step + (int64_t)o->n_epoch * n_train(t) / o->batch;
    return LK_OK;
}

/* A hash of what the result depends on. */
static uint64_t identify(const struct trainer *t, const lk_recipe *recipe) {
    const lk_lora_opts *o = &t->opts;
    const int32_t integers[] = {o->n_ctx, o->rank,    o->batch,       o->n_layer_epoch, o->n_epoch,
                                t->n_seq, t->n_valid, o->first_layer, t->last_layer};
    const float reals[] = {o->alpha, o->rate, o->end_rate};
    const char *text = lk_recipe_text(recipe);
    const uint64_t of[] = {t->model->net->fingerprint,
                           t->model->sidecar ? t->model->sidecar->fingerprint : 0, o->seed};
    uint64_t hash = lk_fnv1a(LK_FNV1A_INIT, integers, sizeof integers);
    hash = lk_fnv1a(hash, reals, sizeof reals);
    hash = lk_fnv1a(hash, of, sizeof of);
    hash = lk_fnv1a(hash, text, strlen(text));
    return lk_fnv1a(hash, t->tok, (size_t)t->n_seq * o->n_ctx * sizeof *t->tok);
}

static size_t x_bytes(const struct trainer *t) {
    return (size_t)(t->model->net->hp.n_layer + 1) * stream_floats(t) * sizeof(float);
}

static lk_status trainer_alloc(struct trainer *t, const lk_recipe *recipe, lk_err *err) {
    struct lk_ledger *ledger = &t->ledger;
    const lk_lora_opts *o = &t->opts;
    size_t stream = stream_floats(t) * sizeof(float);
    t->order = lk_alloc(ledger, LK_FOR_SCRATCH, 2 * (size_t)t->n_seq * sizeof *t->order);
    t->x = lk_alloc(ledger, LK_FOR_SCRATCH, x_bytes(t));
    t->teacher = lk_alloc(ledger, LK_FOR_SCRATCH, stream);
    t->target = lk_alloc(ledger, LK_FOR_SCRATCH, stream);
    t->window = lk_alloc(ledger, LK_FOR_SCRATCH, (size_t)o->n_ctx * sizeof *t->window);
    if (!t->order || !t->x || !t->teacher || !t->target || !t->window)
        return lk_fail(err, LK_E_NOMEM, "no memory to train (%.0f MiB)",
                       (double)(x_bytes(t) + 2 * stream) / (1 << 20));
    for (int i = 0; i < t->n_seq; i++) t->order[i] = i;
    lk_shuffle(t->order, t->n_seq, lk_splitmix64_nth(o->seed, 0));
    lk_status status = lk_lora_cache_new(&t->cache, t->model, recipe, o->n_ctx, ledger, err);
    if (!status)
        status = lk_lora_net_new(&t->net, t->model, t->cache, o->n_ctx, o->rank, o->alpha,
                                 lk_splitmix64_nth(o->seed, 1), ledger, err);
    return status;
}

static void trainer_free(struct trainer *t) {
    struct lk_ledger *ledger = &t->ledger;
    size_t stream = stream_floats(t) * sizeof(float);
    lk_lora_net_free(t->net);
    lk_lora_cache_free(t->cache);
    lk_release(ledger, LK_FOR_SCRATCH, t->window, (size_t)t->opts.n_ctx * sizeof *t->window);
    lk_release(ledger, LK_FOR_SCRATCH, t->target, stream);
    lk_release(ledger, LK_FOR_SCRATCH, t->teacher, stream);
    lk_release(ledger, LK_FOR_SCRATCH, t->x, x_bytes(t));
    lk_release(ledger, LK_FOR_SCRATCH, t->order, 2 * (size_t)t->n_seq * sizeof *t->order);
}

static struct lk_sidecar_info describe_training(const struct trainer *t, const lk_recipe *recipe) {
    const lk_lora_opts *o = &t->opts;
    const struct lk_hparams *hp = &t->model->net->hp;
    size_t n = (size_t)t->n_seq * o->n_ctx;
    struct lk_sidecar_info info = {
        .method = "lora",
        .model = {t->model->net->fingerprint, hp->n_layer, hp->n_head_kv, hp->d_head},
        .calibration_hash = lk_fnv1a(LK_FNV1A_INIT, t->tok, n * sizeof *t->tok),
        .calibration_tokens = n};
    snprintf(info.options, sizeof info.options,
             "recipe %.200s, rank %d, alpha %g, rates %g and %g, %d sequences of %d tokens, %d per "
             "step, "
             "%d epochs by layer, %d end to end, seed %" PRIu64 ", weights of step %" PRId64
             "%s%.60s",
             lk_recipe_text(recipe), o->rank, (double)o->alpha, (double)o->rate,
             (double)o->end_rate, t->n_seq, o->n_ctx, o->batch, o->n_layer_epoch, o->n_epoch,
             o->seed, t->state.best_step, t->model->sidecar ? "; bases: " : "",
             t->model->sidecar ? t->model->sidecar->info.method : "");
    return info;
}

lk_status lk_train_lora(lk_model *model, const lk_recipe *recipe, const int32_t *tok, size_t n_tok,
                        const lk_lora_opts *opts, const char *path, lk_err *err) {
    struct trainer t = {.model = model, .opts = *opts, .tok = tok};
    lk_status status = lk_model_check_dense(model, err);
    if (!status) status = lk_lora_check(model->net, err);
    if (!status && model->adapter)
        status =
            lk_fail(err, LK_E_ARG,
                    "the model's sidecar already has adapters; give the sidecar from which they "
                    "were trained");
    if (!status) status = resolve_opts(&t, n_tok, err);
    if (!status) status = lk_lora_state_path(t.state_path, path, err);
    if (status) return status;
    status = trainer_alloc(&t, recipe, err);
    if (!status) {
        t.state = (struct lk_lora_state){.identity = identify(&t, recipe), .best_kl = INFINITY};
        status = run_steps(&t, err);
    }
    if (!status) {
        struct lk_sidecar_info info = describe_training(&t, recipe);
        status = lk_lora_sidecar_write(t.net, t.opts.first_layer, t.last_layer, &info,
                                       model->sidecar, path, err);
    }
    if (!status) unlink(t.state_path);
    trainer_free(&t);
    return status;
}
