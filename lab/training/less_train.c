/* Training LESS: examples are collected once, then each layer is trained on its own (LESS, section
 * 3.2). */
#include "base/clock.h"
#include "base/hash.h"
#include "codec/f16.h"
#include "engine/absorb.h"
#include "lowkey_lab.h"
#include "model/blocks.h"
#include "training/descent.h"
#include "training/less_checkpoint.h"
#include "training/less_data.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    LEVEL_SEQUENCES = 8, /* sequences to estimate the levels from, and queries of each */
    LEVEL_QUERIES = 16
};
static const double untrained_share = 0.2; /* of a state in attention, before training */
static const float loss_floor = 0.25f;     /* see less_net.h */

struct trainer {
    struct lk_model *model;
    struct lk_ledger ledger;
    lk_less_opts opts; /* defaults filled in */
    struct lk_less_data data;
    struct lk_less_size size;
    struct lk_less_net *net;
    struct lk_less_checkpoint saved; /* of the current layer */
    struct lk_sidecar *from;         /* the sidecar to fine-tune, or NULL */
    struct lk_absorb *from_networks; /* its networks, checked */
    float *wo;                       /* [n_embd][n_head * d_head] of the current layer */
    float *best_weight;              /* [n_weight] */
    float *norm;    /* [n_seq] mean |W_O residual|^2 of each sequence in the current layer */
    int32_t *order; /* [2][n_seq] sequences, the validation ones last; then an epoch's order */
    struct lk_less_queries queries; /* of the current step */
    int n_valid;                    /* validation sequences */
    uint64_t done, total;
};

/* lk_progress of the examples; `done` counts from the trainer's. */
static bool report_progress(void *user, uint64_t done, uint64_t total) {
    struct trainer *t = user;
    (void)total;
    return !t->opts.progress || t->opts.progress(t->opts.user, t->done + done, t->total);
}

static lk_status count_step(struct trainer *t, lk_err *err) {
    t->done++;
    return report_progress(t, 0, 0)
               ? LK_OK
               : lk_fail(err, LK_E_CANCELLED, "cancelled; run the same command to continue");
}

/* ---- random choices ---- */

/* Seed of a step, never 0. */
static uint64_t step_seed(const struct trainer *t, int layer, int epoch, int step) {
    uint64_t seed = lk_splitmix64_nth(t->opts.seed, 1000 + (uint64_t)layer);
    return lk_splitmix64_nth(lk_splitmix64_nth(seed, (uint64_t)epoch), (uint64_t)step) | 1;
}

/* ---- the start of a layer ---- */

/* Set t->wo and the net's W_O as floats, whatever the format of the weights: the product with unit
 * vectors. */
static lk_status load_wo(struct trainer *t, int layer, lk_err *err) {
    const struct lk_layer *l = &t->model->net->layer[layer];
    int64_t n_in = l->wo->ne[0], n_out = l->wo->ne[1];
    struct lk_graph g = {0};
    lk_status status = lk_graph_begin(&g, 16, &t->ledger, err);
    if (!status) {
        g.x_in = ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, n_in, n_in);
        ggml_set_input(g.x_in);
        g.x_out = lk_linear(t->model->net, g.ctx, l->wo, NULL, NULL, g.x_in);
        ggml_set_output(g.x_out);
        ggml_build_forward_expand(g.graph, g.x_out);
        status = lk_graph_finish(&g, &t->ledger, err);
    }
    if (!status) {
        float *one = g.x_in->data;
        memset(one, 0, ggml_nbytes(g.x_in));
        for (int64_t i = 0; i < n_in; i++) one[i * n_in + i] = 1;
        status = lk_graph_run(&g, t->model, err);
    }
    for (int64_t i = 0; !status && i < n_in; i++)
        for (int64_t o = 0; o < n_out; o++)
            t->wo[o * n_in + i] = ((const float *)g.x_out->data)[i * n_out + o];
    lk_graph_free(&g, &t->ledger);
    if (!status) lk_less_net_set_wo(t->net, t->wo);
    return status;
}

/* Set the net's inputs to queries of a sequence. */
static lk_status set_sequence(struct trainer *t, int seq, uint64_t seed, lk_err *err) {
    struct lk_less_example example;
    lk_status status = lk_less_data_read(&t->data, t->saved.state.layer, seq, &example, err);
    if (status) return status;
    lk_less_choose_queries(&t->queries, &t->data.source, seq, seed);
    t->net->norm = t->norm[seq];
    lk_less_net_set_input(t->net, &example, t->queries.query, t->queries.weight);
    return LK_OK;
}

/* Set t->norm. Dividing losses by it gives every sequence the same weight, whatever its budget. The
 * paper's losses are not weighted; they are divided by the mean, which Adam does not notice. */
static lk_status measure_norms(struct trainer *t, lk_err *err) {
    lk_status status = LK_OK;
    double mean = 0;
    for (int seq = 0; !status && seq < t->opts.n_seq; seq++) {
        struct lk_less_loss loss = {0};
        t->norm[seq] = 1;
        status = set_sequence(t, seq, 0, err);
        if (!status) status = lk_less_net_eval(t->net, &loss, err);
        if (loss.power > 0) t->norm[seq] = loss.power;
        mean += t->norm[seq] / t->opts.n_seq;
    }
    for (int seq = 0; t->opts.plain && seq < t->opts.n_seq; seq++) t->norm[seq] = (float)mean;
    return status;
}

/* Add one of n examples to the estimate of the levels: 1/n of the mean logarithm, over some
 * queries, of the factor with which the states of untrained networks weigh untrained_share of the
 * rows left. */
static void add_to_levels(struct trainer *t, const struct lk_less_example *ex,
                          const struct lk_less_maps *maps, int n) {
    const struct lk_less_shape *s = &t->size.shape;
    int d = s->d_head, group = s->n_head / s->n_head_kv;
    float x[LK_LESS_MAX_HIDDEN], work[LK_LESS_MAX_HIDDEN], psi[LK_LESS_MAX_FEATURE],
        phi[LK_LESS_MAX_FEATURE];
    for (int head = 0; head < s->n_head_kv; head++) {
        const int32_t *evicted_at = ex->evicted_at + (size_t)head * ex->n_evicted;
        double z[LK_LESS_MAX_FEATURE] = {0};
        int row = 0;
        for (int i = 0; i < LEVEL_QUERIES; i++) {
            int query = (int)((int64_t)(i + 1) * ex->n_query / LEVEL_QUERIES) - 1;
            for (; row < ex->n_evicted && evicted_at[row] <= query * ex->stride; row++) {
                for (int c = 0; c < d; c++)
                    x[c] = lk_f16_to_f32(ex->k[((size_t)head * ex->n_evicted + row) * d + c]);
                lk_less_psi(s, maps, head, x, psi, work);
                for (int r = 0; r < s->n_feature; r++) z[r] += psi[r];
            }
            for (int h = head * group; h < (head + 1) * group; h++) {
                size_t at = (size_t)h * ex->n_query + query;
                double sum = 1e-30;
                for (int c = 0; c < d; c++) x[c] = lk_f16_to_f32(ex->q[at * d + c]);
                lk_less_phi(s, maps, h, x, phi, work);
                for (int r = 0; r < s->n_feature; r++) sum += phi[r] * z[r];
                t->net->level[h] += (float)(log(untrained_share / sum) + ex->log_sum[at]) /
                                    (float)(n * LEVEL_QUERIES);
            }
        }
    }
}

/* Estimate the levels from the first n training sequences. */
static lk_status estimate_levels(struct trainer *t, int n, lk_err *err) {
    size_t bytes = lk_less_map_bytes(&t->size.shape);
    void *block = lk_alloc(&t->ledger, LK_FOR_SCRATCH, bytes);
    if (!block) return lk_fail(err, LK_E_NOMEM, "no memory to train");
    struct lk_less_maps maps;
    lk_less_net_export(t->net, t->net->weight, block, &maps);
    lk_status status = LK_OK;
    for (int i = 0; !status && i < n; i++) {
        struct lk_less_example ex;
        status = lk_less_data_read(&t->data, t->saved.state.layer, t->order[i], &ex, err);
        if (!status) add_to_levels(t, &ex, &maps, n);
    }
    lk_release(&t->ledger, LK_FOR_SCRATCH, block, bytes);
    return status;
}

/* Set the initial weights and levels of a layer. */
static lk_status start_layer(struct trainer *t, int layer, lk_err *err) {
    int n_train = t->opts.n_seq - t->n_valid, n_head = t->size.shape.n_head;
    lk_less_checkpoint_start(&t->saved, layer);
    lk_less_net_reset(t->net, t->opts.plain ? 1e-4f : 1, step_seed(t, layer, 0, 0));
    memset(t->net->level, 0, (size_t)n_head * sizeof(float));
    if (t->from_networks) lk_less_net_import(t->net, &t->from_networks->maps[layer]);
    memcpy(t->best_weight, t->net->weight, t->net->n_weight * sizeof(float));
    if (t->opts.plain || t->from_networks) return LK_OK;
    return estimate_levels(t, n_train < LEVEL_SEQUENCES ? n_train : LEVEL_SEQUENCES, err);
}

/* ---- epochs ---- */

static struct lk_less_schedule schedule_of(const struct trainer *t) {
    return (struct lk_less_schedule){t->opts.n_epoch, t->opts.rate, t->opts.plain};
}

static lk_status fail_not_finite(const struct trainer *t, int seq, lk_err *err) {
    int layer = t->saved.state.layer, done = t->saved.state.n_epoch;
    if (!done)
        return lk_fail(err, LK_E_FORMAT,
                       "layer %d, epoch 1, sequence %d: the loss is not finite; use a smaller rate",
                       layer, seq);
    return lk_fail(err, LK_E_FORMAT,
                   "layer %d, epoch %d, sequence %d: the loss is not finite; use a smaller rate "
                   "(the state after epoch %d is kept in %s.layer-%d)",
                   layer, done + 1, seq, done, t->saved.path, layer);
}

/* The loss on the validation sequences, divided by the policy's alone. */
static lk_status validate(struct trainer *t, float *out, lk_err *err) {
    double sum = 0, sum_base = 0;
    for (int i = t->opts.n_seq - t->n_valid; i < t->opts.n_seq; i++) {
        struct lk_less_loss loss;
        lk_status status = set_sequence(t, t->order[i], 0, err);
        if (!status) status = lk_less_net_eval(t->net, &loss, err);
        if (!status && !isfinite(loss.loss)) status = fail_not_finite(t, t->order[i], err);
        if (status) return status;
        sum += loss.loss;
        sum_base += loss.base;
    }
    *out = (float)(sum / sum_base);
    return LK_OK;
}

static lk_status run_epoch(struct trainer *t, lk_err *err) {
    struct lk_less_state *state = &t->saved.state;
    int n_seq = t->opts.n_seq, n_train = n_seq - t->n_valid, epoch = state->n_epoch,
        layer = state->layer;
    struct lk_less_schedule schedule = schedule_of(t);
    float rate = lk_less_epoch_rate(&schedule, epoch), loss;
    int32_t *order = t->order + n_seq; /* of this epoch */
    memcpy(order, t->order, (size_t)n_train * sizeof *order);
    lk_shuffle(order, n_train, step_seed(t, layer, epoch + 1, n_seq));
    lk_status status = LK_OK;
    for (int i = 0; !status && i < n_train; i++) {
        uint64_t seed = step_seed(t, layer, epoch + 1, i);
        status = set_sequence(t, order[i], seed, err);
        if (!status) status = lk_less_net_add_gradient(t->net, seed, &loss, err);
        if (!status && !isfinite(loss)) status = fail_not_finite(t, order[i], err);
        if (!status && ((i + 1) % lk_less_batch(&schedule) == 0 || i + 1 == n_train))
            lk_less_net_step(t->net, rate, ++state->n_step);
        if (!status) status = count_step(t, err);
    }
    float valid;
    if (!status) status = validate(t, &valid, err);
    if (status) return status;
    state->n_epoch = epoch + 1;
    if (valid < state->best) {
        state->best = valid;
        state->best_epoch = epoch + 1;
        memcpy(t->best_weight, t->net->weight, t->net->n_weight * sizeof(float));
    }
    return lk_less_checkpoint_save(&t->saved, err);
}

/* After the last epoch: lower the levels of single heads, down to switching the state off, as long
 * as the validation loss falls. A state then helps on these sequences or is not used. */
static lk_status tune_levels(struct trainer *t, lk_err *err) {
    /* The last one switches the state off; files hold finite numbers. */
    static const float lower[] = {0.5f, 1, 2, 1e4f};
    struct lk_less_state *state = &t->saved.state;
    float *level = t->net->level, valid = 0;
    memcpy(t->net->weight, t->best_weight, t->net->n_weight * sizeof(float));
    lk_status status = validate(t, &state->best, err);
    for (int head = 0; !status && head < t->size.shape.n_head; head++) {
        float start = level[head], best = start;
        for (size_t i = 0; !status && i < sizeof lower / sizeof *lower; i++) {
            level[head] = start - lower[i];
            status = validate(t, &valid, err);
            if (status || valid >= state->best) break;
            state->best = valid;
            best = level[head];
        }
        level[head] = best;
    }
    state->tuned = 1;
    return status ? status : lk_less_checkpoint_save(&t->saved, err);
}

static lk_status train_layer(struct trainer *t, int layer, lk_err *err) {
    const struct lk_less_state *state = &t->saved.state;
    double start = lk_now();
    bool found = false;
    lk_status status = load_wo(t, layer, err);
    if (!status) status = lk_less_checkpoint_load(&t->saved, layer, &found, err);
    if (!status && !found) status = start_layer(t, layer, err);
    if (!status && !state->tuned) status = measure_norms(t, err);
    while (!status && state->n_epoch < t->opts.n_epoch) status = run_epoch(t, err);
    if (!status && !state->tuned && !t->opts.plain) status = tune_levels(t, err);
    lk_less_layer done = {.layer = layer,
                          .best_epoch = state->best_epoch,
                          .n_epoch = state->n_epoch,
                          .loss = state->best,
                          .seconds = lk_now() - start};
    if (!status && t->opts.layer_done) t->opts.layer_done(t->opts.user, &done);
    return status;
}

/* ---- options ---- */

static void fill_defaults(lk_less_opts *o) {
    if (o->n_ctx == 0) o->n_ctx = 1024;
    if (o->n_feature == 0) o->n_feature = 8;
    if (o->n_hidden == 0) o->n_hidden = 512;
    if (o->n_epoch == 0) o->n_epoch = 40;
    if (o->plain) o->n_query = o->n_ctx; /* all positions */
    if (o->n_query == 0) o->n_query = 256;
    if (!(o->rate > 0)) o->rate = 1e-3f;
    if (!(o->valid > 0)) o->valid = 0.1f;
}

/* Fill defaults and the number of sequences. */
static lk_status resolve_opts(struct trainer *t, size_t n_tok, lk_err *err) {
    lk_less_opts *o = &t->opts;
    fill_defaults(o);
    if (o->n_ctx < 16 || o->n_ctx > 1 << 16)
        return lk_fail(err, LK_E_ARG, "sequences must have between 16 and 65536 tokens, not %d",
                       o->n_ctx);
    if (o->n_feature < 1 || o->n_feature > LK_LESS_MAX_FEATURE)
        return lk_fail(err, LK_E_ARG, "the number of features must be between 1 and %d, not %d",
                       LK_LESS_MAX_FEATURE, o->n_feature);
    if (o->n_hidden < 1 || o->n_hidden > LK_LESS_MAX_HIDDEN)
        return lk_fail(err, LK_E_ARG, "the number of hidden units must be between 1 and %d, not %d",
                       LK_LESS_MAX_HIDDEN, o->n_hidden);
    if (o->n_epoch < 1 || o->n_query < 1)
        return lk_fail(err, LK_E_ARG, "the numbers of epochs and queries must be positive");
    if (!(o->dropout >= 0 && o->dropout < 0.99f) || !(o->valid < 1))
        return lk_fail(err, LK_E_ARG,
                       "dropout and the share of validation sequences must be less than 1");
    if (o->share < 0 || o->share > 2)
        return lk_fail(err, LK_E_ARG, "the sharing of networks must be 0, 1 or 2, not %d",
                       o->share);
    if (o->n_budget < 1 || o->n_budget > LK_LESS_MAX_POLICIES)
        return lk_fail(err, LK_E_ARG, "the number of budgets must be between 1 and %d, not %d",
                       LK_LESS_MAX_POLICIES, o->n_budget);
    if (o->n_prompt < 0 || o->n_prompt > LK_LESS_MAX_POLICIES)
        return lk_fail(err, LK_E_ARG, "the number of prompts must be between 0 and %d, not %d",
                       LK_LESS_MAX_POLICIES, o->n_prompt);
    for (int i = 0; i < o->n_prompt; i++)
        if (o->prompt[i] < 0 || o->prompt[i] >= o->n_ctx)
            return lk_fail(err, LK_E_ARG,
                           "a prompt of %d tokens does not fit into a sequence of %d tokens",
                           o->prompt[i], o->n_ctx);
    size_t n_have = n_tok / (size_t)o->n_ctx;
    if (o->n_seq == 0) o->n_seq = n_have < 1 << 20 ? (int32_t)n_have : 1 << 20;
    if (o->n_seq < 2 || (size_t)o->n_seq > n_have)
        return lk_fail(err, LK_E_ARG,
                       "the text has %zu sequences of %d tokens; training needs at least %d",
                       n_have, o->n_ctx, o->n_seq < 2 ? 2 : o->n_seq);
    t->n_valid = (int)lrintf(o->valid * (float)o->n_seq);
    if (t->n_valid < 1) t->n_valid = 1;
    if (t->n_valid >= o->n_seq) t->n_valid = o->n_seq - 1;
    return LK_OK;
}

/* Number of different phi networks: one per head, one per KV head, or one. */
static int phi_count(const struct lk_hparams *hp, int share) {
    return share == 0 ? hp->n_head : share == 1 ? hp->n_head_kv : 1;
}

/* Open the sidecar to fine-tune, if any. Its sizes replace the options. */
static lk_status open_from(struct trainer *t, lk_err *err) {
    const struct lk_hparams *hp = &t->model->net->hp;
    struct lk_sidecar_model model = {t->model->net->fingerprint, hp->n_layer, hp->n_head_kv,
                                     hp->d_head};
    if (!t->opts.from) return LK_OK;
    lk_status status = lk_sidecar_open(&t->from, t->opts.from, &model, &t->ledger, err);
    if (!status)
        status = lk_absorb_new(&t->from_networks, t->from, hp->n_head, t->model->kernels,
                               &t->ledger, err);
    if (status) return status;
    const struct lk_less_shape *s = &t->from_networks->shape;
    t->opts.n_feature = s->n_feature;
    t->opts.n_hidden = s->n_hidden;
    t->opts.share = s->n_psi < s->n_head_kv ? 2 : s->n_phi < s->n_head ? 1 : 0;
    if (s->n_phi != phi_count(hp, t->opts.share))
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "cannot fine-tune %s: its phi and psi networks are shared differently",
                       t->opts.from);
    return LK_OK;
}

/* Hash of everything that determines the weights. */
static uint64_t identify(const struct trainer *t) {
    const lk_less_opts *o = &t->opts;
    const struct lk_less_source *source = &t->data.source;
    const int32_t integers[] = {o->n_feature,    o->n_hidden, o->share, o->n_epoch,
                                t->size.n_query, t->n_valid,  o->plain};
    const float reals[] = {o->rate, o->dropout};
    uint64_t hash = lk_fnv1a(LK_FNV1A_INIT, source, sizeof *source);
    hash = lk_fnv1a(hash, integers, sizeof integers);
    hash = lk_fnv1a(hash, reals, sizeof reals);
    hash = lk_fnv1a(hash, &o->seed, sizeof o->seed);
    for (size_t i = 0; t->from && i < t->from->n_tensor; i++) {
        const struct lk_sidecar_tensor *tensor = &t->from->tensor[i];
        hash = lk_fnv1a(hash, tensor->data, lk_sidecar_bytes(tensor));
    }
    return hash;
}

/* ---- memory ---- */

static size_t wo_bytes(const struct lk_hparams *hp) {
    return (size_t)hp->n_embd * hp->n_head * hp->d_head * sizeof(float);
}

/* The net and all memory for training, after t->data is open. */
static lk_status trainer_alloc(struct trainer *t, lk_err *err) {
    const struct lk_less_source *source = &t->data.source;
    const struct lk_hparams *hp = &t->model->net->hp;
    const lk_less_opts *o = &t->opts;
    struct lk_less_shape shape = {.n_head = hp->n_head,
                                  .n_head_kv = hp->n_head_kv,
                                  .d_head = hp->d_head,
                                  .n_hidden = o->n_hidden,
                                  .n_feature = o->n_feature,
                                  .n_phi = phi_count(hp, o->share),
                                  .n_psi = o->share == 2 ? 1 : hp->n_head_kv};
    t->size = (struct lk_less_size){.shape = shape,
                                    .n_embd = hp->n_embd,
                                    .dropout = o->dropout,
                                    .floor = o->plain ? 1 : loss_floor};
    lk_less_queries_size(&t->queries, source, o->n_query);
    size_t n_query = (size_t)t->queries.n_query;
    t->size.n_query = t->queries.n_query;
    t->size.n_between = t->queries.n_between;
    t->wo = lk_alloc(&t->ledger, LK_FOR_SCRATCH, wo_bytes(hp));
    t->norm = lk_alloc(&t->ledger, LK_FOR_SCRATCH, (size_t)o->n_seq * sizeof *t->norm);
    t->order = lk_alloc(&t->ledger, LK_FOR_SCRATCH, 2 * (size_t)o->n_seq * sizeof *t->order);
    t->queries.query = lk_alloc(&t->ledger, LK_FOR_SCRATCH, n_query * sizeof(int32_t));
    t->queries.weight = lk_alloc(&t->ledger, LK_FOR_SCRATCH, n_query * sizeof(float));
    if (!t->wo || !t->norm || !t->order || !t->queries.query || !t->queries.weight)
        return lk_fail(err, LK_E_NOMEM, "no memory to train");
    for (int i = 0; i < o->n_seq; i++) t->order[i] = i;
    lk_shuffle(t->order, o->n_seq, lk_splitmix64_nth(o->seed, 0));
    lk_status status =
        lk_less_net_new(&t->net, &t->size, o->seed, t->wo, t->model, &t->ledger, err);
    if (status) return status;
    t->best_weight =
        lk_alloc(&t->ledger, LK_FOR_SCRATCH, t->net->n_weight * sizeof *t->best_weight);
    if (!t->best_weight) return lk_fail(err, LK_E_NOMEM, "no memory to train");
    t->saved.net = t->net;
    t->saved.best_weight = t->best_weight;
    t->saved.identity = identify(t);
    t->saved.n_epoch = t->opts.n_epoch;
    return LK_OK;
}

static void trainer_free(struct trainer *t) {
    struct lk_ledger *ledger = &t->ledger;
    size_t n_seq = (size_t)t->opts.n_seq, n_query = (size_t)t->size.n_query;
    if (t->net)
        lk_release(ledger, LK_FOR_SCRATCH, t->best_weight,
                   t->net->n_weight * sizeof *t->best_weight);
    lk_less_net_free(t->net);
    lk_release(ledger, LK_FOR_SCRATCH, t->queries.weight, n_query * sizeof(float));
    lk_release(ledger, LK_FOR_SCRATCH, t->queries.query, n_query * sizeof(int32_t));
    lk_release(ledger, LK_FOR_SCRATCH, t->order, 2 * n_seq * sizeof *t->order);
    lk_release(ledger, LK_FOR_SCRATCH, t->norm, n_seq * sizeof *t->norm);
    lk_release(ledger, LK_FOR_SCRATCH, t->wo, wo_bytes(&t->model->net->hp));
    lk_absorb_free(t->from_networks);
    lk_sidecar_close(t->from);
    if (t->data.ledger) lk_less_data_close(&t->data);
}

/* ---- all layers ---- */

/* Training steps left, so that progress tells the time left. Loads the state of every layer. */
static lk_status count_steps(struct trainer *t, int first, int last, uint64_t *left, lk_err *err) {
    uint64_t steps = (uint64_t)(t->opts.n_seq - t->n_valid);
    lk_status status = LK_OK;
    *left = 0;
    for (int layer = first; !status && layer <= last; layer++) {
        bool found;
        status = lk_less_checkpoint_load(&t->saved, layer, &found, err);
        *left += steps * (uint64_t)(t->opts.n_epoch - (found ? t->saved.state.n_epoch : 0));
    }
    return status;
}

/* "1,2,3", or "0" without numbers. */
static void write_numbers(char *out, size_t size, const int32_t *x, int n) {
    snprintf(out, size, "0");
    for (int i = 0, at = 0; i < n; i++)
        at += snprintf(out + at, size - at, "%s%d", i ? "," : "", x[i]);
}

static struct lk_sidecar_info describe_training(const struct trainer *t) {
    const struct lk_less_source *source = &t->data.source;
    const lk_less_opts *o = &t->opts;
    struct lk_sidecar_info info = {
        .method = "less",
        .model = {source->fingerprint, source->n_layer, source->n_head_kv, source->d_head},
        .calibration_hash = source->hash,
        .calibration_tokens = (uint64_t)o->n_seq * o->n_ctx};
    char budgets[LK_LESS_MAX_POLICIES * 12], prompts[LK_LESS_MAX_POLICIES * 12];
    write_numbers(budgets, sizeof budgets, o->budget, o->n_budget);
    write_numbers(prompts, sizeof prompts, o->prompt, o->n_prompt);
    snprintf(info.options, sizeof info.options,
             "policy %s, budget %s, prompt %s, %d sequences of %d tokens, R %d, R' %d, share %d, "
             "%d epochs, "
             "%d queries, rate %g, dropout %g, seed %" PRIu64 "%s%s",
             o->policy, budgets, prompts, o->n_seq, o->n_ctx, t->size.shape.n_feature,
             t->size.shape.n_hidden, o->share, o->n_epoch, t->size.n_query, (double)o->rate,
             (double)o->dropout, o->seed, o->plain ? ", without levels" : "",
             o->from ? ", trained further" : "");
    return info;
}

/* Write the sidecar, then delete the files of the training. */
static lk_status finish(struct trainer *t, const char *examples_path, lk_err *err) {
    struct lk_sidecar_info info = describe_training(t);
    lk_status status = lk_less_sidecar_write(&t->saved, &info, t->model->sidecar, &t->ledger, err);
    if (status) return status;
    lk_less_checkpoint_remove(&t->saved, t->data.source.n_layer);
    unlink(examples_path);
    return LK_OK;
}

lk_status lk_train_less(lk_model *model, const int32_t *tok, size_t n_tok, const lk_less_opts *opts,
                        const char *path, lk_err *err) {
    struct trainer t = {.model = model, .opts = *opts, .saved = {.path = path}};
    struct lk_less_policy policy[LK_LESS_MAX_POLICIES];
    char examples_path[LK_MAX_PATH];
    int n_layer = model->net->hp.n_layer, first = opts->first_layer,
        last = opts->n_layer ? first + opts->n_layer - 1 : n_layer - 1;
    if (first < 0 || last < first || last >= n_layer)
        return lk_fail(err, LK_E_ARG, "the layers must be between 0 and %d", n_layer - 1);
    lk_status status = lk_model_check_dense(model, err);
    if (!status) status = resolve_opts(&t, n_tok, err);
    t.queries = (struct lk_less_queries){.model = model, .tok = tok, .plain = t.opts.plain};
    int n_policy = opts->n_budget > opts->n_prompt ? opts->n_budget : opts->n_prompt;
    for (int i = 0; !status && i < n_policy; i++) {
        status =
            lk_less_policy_named(&policy[i], opts->policy, opts->budget[i % opts->n_budget], err);
        policy[i].prompt = opts->n_prompt ? opts->prompt[i % opts->n_prompt] : 0;
    }
    if (!status) status = lk_less_file_name(examples_path, path, ".examples", 0, err);
    if (status) return status;
    t.total = (uint64_t)t.opts.n_seq * n_layer +
              (uint64_t)(t.opts.n_seq - t.n_valid) * (last - first + 1) * t.opts.n_epoch;
    struct lk_less_data_opts data = {.path = examples_path,
                                     .model = model,
                                     .policy = policy,
                                     .n_policy = n_policy,
                                     .tok = tok,
                                     .n_seq = t.opts.n_seq,
                                     .n_ctx = t.opts.n_ctx,
                                     .stride = lk_less_stride(t.opts.n_ctx, t.opts.n_query),
                                     .progress = report_progress,
                                     .user = &t,
                                     .ledger = &t.ledger};
    status = open_from(&t, err);
    if (!status) status = lk_less_data_open(&t.data, &data, err);
    if (!status) status = trainer_alloc(&t, err);
    if (!status) status = count_steps(&t, first, last, &t.total, err);
    for (int layer = first; !status && layer <= last; layer++) status = train_layer(&t, layer, err);
    if (!status && first == 0 && last == n_layer - 1) status = finish(&t, examples_path, err);
    trainer_free(&t);
    return status;
}
