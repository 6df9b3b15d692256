/* Training LESS: examples are collected once, then each layer learns by itself (LESS, section 3.2). */
#include "base/atomic_file.h"
#include "codec/half.h"
#include "engine/absorb.h"
#include "lowkey_lab.h"
#include "model/blocks.h"
#include "sidecar/sidecar.h"
#include "training/less_net.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PATH_CAP = 4096, LEVEL_SEQUENCES = 8, LEVEL_QUERIES = 16, HALVINGS = 6 };
static const double untrained_share = 0.2; /* of a state before anything is learned */

/* What a layer's training has come to, as its file holds it before 4 n_weight + n_head floats: weights,
 * Adam's moments, the best weights, levels. */
struct state {
    uint64_t magic, identity; /* of all that decides the result */
    int32_t layer, n_epoch;   /* epochs done */
    int64_t n_step;
    int32_t best_epoch; /* from 1; 0: as initialised */
    float best;
};

struct training {
    struct lk_model *model;
    struct lk_ledger ledger;
    lk_less_opts opts; /* defaults filled in */
    const char *path;
    struct lk_less_data data;
    struct lk_less_size size;
    struct lk_less_net *net;
    struct lk_sidecar *from; /* whose networks are trained further, or NULL */
    struct lk_absorb *known; /* these, checked */
    struct state state;      /* of the layer at hand */
    float *wo, *best;        /* [n_embd][n_head * d_head], [n_weight] */
    float *norm; /* [n_seq] mean |W_O residual|^2 of each sequence, of the layer at hand */
    int32_t *order,
        *query; /* [2][n_seq] sequences, those kept back last, and an epoch's; [n_query] */
    int n_valid;
    uint64_t identity, done, total;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool report(void *user, uint64_t done, uint64_t total) {
    struct training *t = user;
    (void)total;
    return !t->opts.progress || t->opts.progress(t->opts.user, t->done + done, t->total);
}

static lk_status count(struct training *t, lk_err *err) {
    t->done++;
    return report(t, 0, 0)
               ? LK_OK
               : lk_fail(err, LK_E_CANCELLED, "cancelled; the same command continues where it was");
}

/* ---- random choices ---- */

/* Shuffle the first n numbers of `order`. */
static void shuffle(int32_t *order, int n, uint64_t seed) {
    for (int i = n - 1; i > 0; i--) {
        int j = (int)(lk_less_random(seed, (uint64_t)i) % (uint64_t)(i + 1));
        int32_t swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

/* One of so many queries is looked at, always as far from the next one; of a sequence with `all`. */
static int part_of(const struct training *t, int all) { return all / t->size.n_query; }

/* The first is a random one of its part, or without a seed the middle one. */
static void choose_queries(const struct training *t, int all, uint64_t seed) {
    int part = part_of(t, all),
        first = seed ? (int)(lk_less_random(seed, 0) % (uint64_t)part) : part / 2;
    for (int i = 0; i < t->size.n_query; i++) t->query[i] = i * part + first;
}

static uint64_t seed_of(const struct training *t, int layer, int epoch, int step) {
    uint64_t seed = lk_less_random(t->opts.seed, 1000 + (uint64_t)layer);
    return lk_less_random(lk_less_random(seed, (uint64_t)epoch), (uint64_t)step) | 1;
}

/* ---- files ---- */

static const uint64_t state_magic = 0x3330657461746b6cull;

static lk_status name_file(char out[PATH_CAP], const char *path, const char *format, int n,
                           lk_err *err) {
    size_t len = strlen(path);
    if (len + 32 > PATH_CAP) return lk_fail(err, LK_E_ARG, "the path %.60s... is too long", path);
    memcpy(out, path, len);
    snprintf(out + len, PATH_CAP - len, format, n);
    return LK_OK;
}

/* The parts of a layer's file behind its head. */
struct span {
    float *at;
    size_t n;
};

static int list_spans(const struct training *t, struct span span[3]) {
    const struct span all[] = {{t->net->weight, 3 * t->net->n_weight},
                               {t->best, t->net->n_weight},
                               {t->net->level, (size_t)t->size.shape.n_head}};
    memcpy(span, all, sizeof all);
    return 3;
}

static lk_status save_layer(struct training *t, lk_err *err) {
    char path[PATH_CAP];
    struct span span[3];
    struct lk_atomic_file f;
    lk_status status = name_file(path, t->path, ".layer-%d", t->state.layer, err);
    if (status == LK_OK) status = lk_atomic_file_open_public(&f, path, err);
    if (status != LK_OK) return status;
    bool ok = fwrite(&t->state, sizeof t->state, 1, f.file) == 1;
    for (int i = 0, n = list_spans(t, span); ok && i < n; i++)
        ok = fwrite(span[i].at, sizeof(float), span[i].n, f.file) == span[i].n;
    if (!ok) status = lk_fail(err, LK_E_IO, "cannot write %s: %s", path, strerror(errno));
    return lk_atomic_file_close(&f, status, err);
}

/* True where the layer's file holds a state of this training, which is then in the net. */
static bool load_layer(struct training *t, int layer) {
    char path[PATH_CAP];
    struct span span[3];
    if (name_file(path, t->path, ".layer-%d", layer, NULL) != LK_OK) return false;
    FILE *file = fopen(path, "rb");
    if (!file) return false;
    bool ok = fread(&t->state, sizeof t->state, 1, file) == 1 && t->state.magic == state_magic &&
              t->state.identity == t->identity && t->state.layer == layer;
    for (int i = 0, n = list_spans(t, span); ok && i < n; i++)
        ok = fread(span[i].at, sizeof(float), span[i].n, file) == span[i].n;
    fclose(file);
    return ok;
}

static void remove_files(const struct training *t) {
    char path[PATH_CAP];
    for (int layer = 0; layer < t->data.source.n_layer; layer++)
        if (name_file(path, t->path, ".layer-%d", layer, NULL) == LK_OK) unlink(path);
    if (name_file(path, t->path, ".examples", 0, NULL) == LK_OK) unlink(path);
}

/* ---- a layer ---- */

/* W_O as floats, whatever it is kept as: the product with unit vectors. */
static lk_status read_wo(struct training *t, int layer, lk_err *err) {
    const struct lk_layer *l = &t->model->net->layer[layer];
    int64_t n_in = l->wo->ne[0], n_out = l->wo->ne[1];
    struct lk_graph g = {0};
    lk_status status = lk_graph_begin(&g, 16, &t->ledger, err);
    if (status == LK_OK) {
        g.x_in = ggml_new_tensor_2d(g.ctx, GGML_TYPE_F32, n_in, n_in);
        ggml_set_input(g.x_in);
        g.x_out = lk_linear(t->model->net, g.ctx, l->wo, NULL, NULL, g.x_in);
        ggml_set_output(g.x_out);
        ggml_build_forward_expand(g.graph, g.x_out);
        status = lk_graph_finish(&g, &t->ledger, err);
    }
    if (status == LK_OK) {
        float *one = g.x_in->data;
        memset(one, 0, ggml_nbytes(g.x_in));
        for (int64_t i = 0; i < n_in; i++) one[i * n_in + i] = 1;
        status = lk_graph_run(&g, t->model, err);
    }
    for (int64_t i = 0; status == LK_OK && i < n_in; i++)
        for (int64_t o = 0; o < n_out; o++)
            t->wo[o * n_in + i] = ((const float *)g.x_out->data)[i * n_out + o];
    lk_graph_free(&g, &t->ledger);
    if (status == LK_OK) lk_less_net_set_wo(t->net, t->wo);
    return status;
}

static lk_status show(struct training *t, int seq, uint64_t seed, lk_err *err) {
    struct lk_less_example example;
    lk_status status = lk_less_data_read(&t->data, t->state.layer, seq, &example, err);
    if (status != LK_OK) return status;
    choose_queries(t, example.n_query, seed);
    t->net->norm = t->norm[seq];
    lk_less_net_show(t->net, &example, t->query);
    return LK_OK;
}

/* What each sequence's losses are divided by, so that all count alike, whatever their budget leaves. */
static lk_status measure_norms(struct training *t, lk_err *err) {
    lk_status status = LK_OK;
    for (int seq = 0; status == LK_OK && seq < t->opts.n_seq; seq++) {
        float loss, base = 0;
        t->norm[seq] = 1;
        status = show(t, seq, 0, err);
        if (status == LK_OK) status = lk_less_net_judge(t->net, &loss, &base, err);
        if (base > 0) t->norm[seq] = base;
    }
    return status;
}

/* Raise the levels by what makes the states of networks that have learned nothing weigh untrained_share of the rows that
 * are left: by 1/n of the mean logarithm over some queries of this example, which is one of n. */
static void raise_levels(struct training *t, const struct lk_less_example *ex,
                         const struct lk_less_maps *maps, int n) {
    const struct lk_less_shape *s = &t->size.shape;
    int d = s->d_head, group = s->n_head / s->n_head_kv;
    float x[LK_LESS_MAX_HIDDEN], work[LK_LESS_MAX_HIDDEN], psi[LK_LESS_MAX_FEATURE],
        phi[LK_LESS_MAX_FEATURE];
    for (int head = 0; head < s->n_head_kv; head++) {
        const int32_t *gone = ex->gone + (size_t)head * ex->n_gone;
        double z[LK_LESS_MAX_FEATURE] = {0};
        int row = 0;
        for (int i = 0; i < LEVEL_QUERIES; i++) {
            int query = (int)((int64_t)(i + 1) * ex->n_query / LEVEL_QUERIES) - 1;
            for (; row < ex->n_gone && gone[row] <= query; row++) {
                for (int c = 0; c < d; c++)
                    x[c] = lk_unhalf(ex->k[((size_t)head * ex->n_gone + row) * d + c]);
                lk_less_psi(s, maps, head, x, psi, work);
                for (int r = 0; r < s->n_feature; r++) z[r] += psi[r];
            }
            for (int h = head * group; h < (head + 1) * group; h++) {
                size_t at = (size_t)h * ex->n_query + query;
                double sum = 1e-30;
                for (int c = 0; c < d; c++) x[c] = lk_unhalf(ex->q[at * d + c]);
                lk_less_phi(s, maps, h, x, phi, work);
                for (int r = 0; r < s->n_feature; r++) sum += phi[r] * z[r];
                t->net->level[h] += (float)(log(untrained_share / sum) + ex->log_sum[at]) /
                                    (float)(n * LEVEL_QUERIES);
            }
        }
    }
}

static lk_status choose_levels(struct training *t, int n, lk_err *err) {
    size_t bytes = lk_less_map_bytes(&t->size.shape);
    void *block = lk_alloc(&t->ledger, LK_FOR_SCRATCH, bytes);
    if (!block) return lk_fail(err, LK_E_NOMEM, "no memory to train");
    struct lk_less_maps maps;
    lk_less_net_export(t->net, t->net->weight, block, &maps);
    lk_status status = LK_OK;
    for (int i = 0; status == LK_OK && i < n; i++) {
        struct lk_less_example ex;
        status = lk_less_data_read(&t->data, t->state.layer, t->order[i], &ex, err);
        if (status == LK_OK) raise_levels(t, &ex, &maps, n);
    }
    lk_release(&t->ledger, LK_FOR_SCRATCH, block, bytes);
    return status;
}

/* A fresh state: levels come from the sequences to learn from. */
static lk_status begin_layer(struct training *t, int layer, lk_err *err) {
    int n_train = t->opts.n_seq - t->n_valid, n_head = t->size.shape.n_head;
    t->state = (struct state){
        .magic = state_magic, .identity = t->identity, .layer = layer, .best = INFINITY};
    lk_less_net_reset(t->net, t->opts.plain ? 1e-4f : 1, seed_of(t, layer, 0, 0));
    memset(t->net->level, 0, (size_t)n_head * sizeof(float));
    if (t->known) lk_less_net_import(t->net, &t->known->maps[layer]);
    memcpy(t->best, t->net->weight, t->net->n_weight * sizeof(float));
    return t->opts.plain || t->known
               ? LK_OK
               : choose_levels(t, n_train < LEVEL_SEQUENCES ? n_train : LEVEL_SEQUENCES, err);
}

/* Of Adam: halved again and again in the second half of the epochs. */
static float rate_of(const struct training *t, int epoch) {
    int n = t->opts.n_epoch, late = 2 * epoch - n;
    return late < 0 ? t->opts.rate
                    : ldexpf(t->opts.rate, -(1 + (int)((int64_t)late * HALVINGS / n)));
}

static lk_status not_finite(const struct training *t, int seq, lk_err *err) {
    int layer = t->state.layer, done = t->state.n_epoch;
    if (!done)
        return lk_fail(err, LK_E_FORMAT,
                       "layer %d, epoch 1, sequence %d: the loss is not finite; use a smaller rate",
                       layer, seq);
    return lk_fail(err, LK_E_FORMAT,
                   "layer %d, epoch %d, sequence %d: the loss is not finite; use a smaller rate "
                   "(the state after epoch %d is kept in %s.layer-%d)",
                   layer, done + 1, seq, done, t->path, layer);
}

static lk_status run_epoch(struct training *t, lk_err *err) {
    int n_seq = t->opts.n_seq, n_train = n_seq - t->n_valid, epoch = t->state.n_epoch,
        layer = t->state.layer;
    float rate = rate_of(t, epoch), loss, base;
    double sum = 0;
    int32_t *order = t->order + n_seq; /* this epoch's */
    memcpy(order, t->order, (size_t)n_train * sizeof *order);
    shuffle(order, n_train, seed_of(t, layer, epoch + 1, n_seq));
    lk_status status = LK_OK;
    for (int i = 0; status == LK_OK && i < n_train; i++) {
        uint64_t seed = seed_of(t, layer, epoch + 1, i);
        status = show(t, order[i], seed, err);
        if (status == LK_OK)
            status = lk_less_net_learn(t->net, rate, ++t->state.n_step, seed, &loss, err);
        if (status == LK_OK && !isfinite(loss)) status = not_finite(t, order[i], err);
        if (status == LK_OK) status = count(t, err);
    }
    for (int i = n_train; status == LK_OK && i < n_seq; i++) {
        status = show(t, t->order[i], 0, err);
        if (status == LK_OK) status = lk_less_net_judge(t->net, &loss, &base, err);
        if (status == LK_OK && !isfinite(loss)) status = not_finite(t, t->order[i], err);
        sum += loss;
    }
    if (status != LK_OK) return status;
    float valid = (float)(sum / t->n_valid);
    t->state.n_epoch = epoch + 1;
    if (valid < t->state.best) {
        t->state.best = valid;
        t->state.best_epoch = epoch + 1;
        memcpy(t->best, t->net->weight, t->net->n_weight * sizeof(float));
    }
    return save_layer(t, err);
}

static lk_status train_layer(struct training *t, int layer, lk_err *err) {
    double began = now();
    lk_status status = read_wo(t, layer, err);
    if (status == LK_OK && !load_layer(t, layer)) status = begin_layer(t, layer, err);
    if (status == LK_OK && t->state.n_epoch < t->opts.n_epoch) status = measure_norms(t, err);
    while (status == LK_OK && t->state.n_epoch < t->opts.n_epoch) status = run_epoch(t, err);
    lk_less_layer done = {.layer = layer,
                          .best_epoch = t->state.best_epoch,
                          .n_epoch = t->state.n_epoch,
                          .loss = t->state.best,
                          .seconds = now() - began};
    if (status == LK_OK && t->opts.layer_done) t->opts.layer_done(t->opts.user, &done);
    return status;
}

/* ---- the sidecar ---- */

static lk_status add_tensor(struct lk_draft *draft, int layer, const char *part,
                            enum lk_sidecar_type type, const void *data, int ne0, int ne1, int ne2,
                            lk_err *err) {
    struct lk_sidecar_tensor tensor = {.ne = {ne0, ne1, ne2}, .type = type, .data = (void *)data};
    snprintf(tensor.name, sizeof tensor.name, "blk.%d.less.%s", layer, part);
    return lk_draft_add(draft, &tensor, err);
}

static lk_status add_layer(struct lk_draft *draft, const struct lk_less_shape *s, int layer,
                           const struct lk_less_maps *k, lk_err *err) {
    const struct {
        const char *part;
        enum lk_sidecar_type type;
        const void *data;
        int ne0, ne1, ne2;
    } all[] = {{"phi.w1", LK_SIDECAR_F16, k->phi_w1, s->n_hidden, s->d_head, s->n_phi},
               {"phi.w2", LK_SIDECAR_F16, k->phi_w2, s->n_feature, s->n_hidden, s->n_phi},
               {"psi.w1", LK_SIDECAR_F16, k->psi_w1, s->n_hidden, s->d_head, s->n_psi},
               {"psi.w2", LK_SIDECAR_F16, k->psi_w2, s->n_feature, s->n_hidden, s->n_psi},
               {"phi.level", LK_SIDECAR_F32, k->phi_level, s->n_head, 1, 1},
               {"psi.w3", LK_SIDECAR_F32, k->psi_w3, s->n_feature, s->n_feature, s->n_psi},
               {"psi.s1", LK_SIDECAR_F32, k->psi_s1, s->n_feature, s->n_psi, 1},
               {"psi.s2", LK_SIDECAR_F32, k->psi_s2, s->n_feature, s->n_psi, 1}};
    lk_status status = LK_OK;
    for (size_t i = 0; status == LK_OK && i < sizeof all / sizeof *all; i++)
        status = add_tensor(draft, layer, all[i].part, all[i].type, all[i].data, all[i].ne0,
                            all[i].ne1, all[i].ne2, err);
    return status;
}

static lk_status write_draft(const struct training *t, const struct lk_draft *draft, lk_err *err) {
    struct lk_atomic_file f;
    lk_status status = lk_atomic_file_open_public(&f, t->path, err);
    if (status != LK_OK) return status;
    return lk_atomic_file_close(&f, lk_draft_write(draft, f.file, err), err);
}

/* All layers' files into one sidecar. */
static lk_status write_sidecar(struct training *t, lk_err *err) {
    const struct lk_less_source *source = &t->data.source;
    const struct lk_less_shape *s = &t->size.shape;
    const lk_less_opts *o = &t->opts;
    struct lk_sidecar_info info = {
        .method = "less",
        .model = {source->fingerprint, source->n_layer, source->n_head_kv, source->d_head},
        .calibration_hash = source->hash,
        .calibration_tokens = (uint64_t)o->n_seq * o->n_ctx};
    char budgets[LK_LESS_MAX_POLICIES * 12] = "";
    for (int i = 0, at = 0; i < o->n_budget; i++)
        at += snprintf(budgets + at, sizeof budgets - at, "%s%d", i ? "," : "", o->budget[i]);
    snprintf(info.options, sizeof info.options,
             "policy %s, budget %s, %d sequences of %d tokens, R %d, R' %d, share %d, %d epochs, "
             "%d queries, rate %g, dropout %g, seed %" PRIu64 "%s%s",
             o->policy, budgets, o->n_seq, o->n_ctx, s->n_feature, s->n_hidden, o->share,
             o->n_epoch, t->size.n_query, (double)o->rate, (double)o->dropout, o->seed,
             o->plain ? ", without levels" : "", o->from ? ", trained further" : "");
    size_t each = (lk_less_map_bytes(s) + 3) / 4 * 4,
           bytes = each * (size_t)source->n_layer; /* floats stay aligned */
    char *block = lk_alloc(&t->ledger, LK_FOR_SCRATCH, bytes);
    if (!block)
        return lk_fail(err, LK_E_NOMEM, "no memory to write the networks (%.0f MiB)",
                       (double)bytes / (1 << 20));
    struct lk_draft *draft = NULL;
    lk_status status = lk_draft_new(&draft, &info, &t->ledger, err);
    for (int layer = 0; status == LK_OK && layer < source->n_layer; layer++) {
        struct lk_less_maps maps;
        if (!load_layer(t, layer))
            status = lk_fail(err, LK_E_IO, "%s.layer-%d has gone; run the command again", t->path,
                             layer);
        if (status == LK_OK) lk_less_net_export(t->net, t->best, block + layer * each, &maps);
        if (status == LK_OK) status = add_layer(draft, s, layer, &maps, err);
    }
    if (status == LK_OK) status = write_draft(t, draft, err);
    lk_draft_free(draft);
    lk_release(&t->ledger, LK_FOR_SCRATCH, block, bytes);
    return status;
}

/* ---- everything ---- */

static lk_status check_opts(struct training *t, size_t n_tok, lk_err *err) {
    lk_less_opts *o = &t->opts;
    if (o->n_ctx == 0) o->n_ctx = 1024;
    if (o->n_feature == 0) o->n_feature = 8;
    if (o->n_hidden == 0) o->n_hidden = 512;
    if (o->n_epoch == 0) o->n_epoch = 40;
    if (o->n_query == 0) o->n_query = 256;
    if (!(o->rate > 0)) o->rate = 1e-3f;
    if (!(o->valid > 0)) o->valid = 0.1f;
    if (o->n_ctx < 16 || o->n_ctx > 1 << 16)
        return lk_fail(err, LK_E_ARG, "sequences of %d tokens are not possible; give 16 to 65536",
                       o->n_ctx);
    if (o->n_feature < 1 || o->n_feature > LK_LESS_MAX_FEATURE)
        return lk_fail(err, LK_E_ARG, "%d features are not possible; give 1 to %d", o->n_feature,
                       LK_LESS_MAX_FEATURE);
    if (o->n_hidden < 1 || o->n_hidden > LK_LESS_MAX_HIDDEN)
        return lk_fail(err, LK_E_ARG, "%d hidden values are not possible; give 1 to %d",
                       o->n_hidden, LK_LESS_MAX_HIDDEN);
    if (o->n_epoch < 1 || o->n_query < 1 || !(o->dropout >= 0 && o->dropout < 0.99f) ||
        !(o->valid < 1) || o->share < 0 || o->share > 2)
        return lk_fail(err, LK_E_ARG,
                       "epochs and queries are positive, dropout and the share kept back below 1, "
                       "sharing 0 to 2");
    if (o->n_budget < 1 || o->n_budget > LK_LESS_MAX_POLICIES)
        return lk_fail(err, LK_E_ARG, "%d budgets are not possible; give 1 to %d", o->n_budget,
                       LK_LESS_MAX_POLICIES);
    size_t have = n_tok / (size_t)o->n_ctx;
    if (o->n_seq == 0) o->n_seq = have < 1 << 20 ? (int32_t)have : 1 << 20;
    if (o->n_seq < 2 || (size_t)o->n_seq > have)
        return lk_fail(err, LK_E_ARG,
                       "the text has %zu sequences of %d tokens; at least %d are wanted", have,
                       o->n_ctx, o->n_seq < 2 ? 2 : o->n_seq);
    t->n_valid = (int)lrintf(o->valid * (float)o->n_seq);
    if (t->n_valid < 1) t->n_valid = 1;
    if (t->n_valid >= o->n_seq) t->n_valid = o->n_seq - 1;
    return LK_OK;
}

/* The networks that are trained further, and their sizes for those of the options. */
static lk_status open_known(struct training *t, lk_err *err) {
    const struct lk_hparams *hp = &t->model->net->hp;
    struct lk_sidecar_model of = {t->model->net->fingerprint, hp->n_layer, hp->n_head_kv,
                                  hp->d_head};
    if (!t->opts.from) return LK_OK;
    lk_status status = lk_sidecar_open(&t->from, t->opts.from, &of, &t->ledger, err);
    if (status == LK_OK)
        status = lk_absorb_new(&t->known, t->from, hp->n_head, t->model->kernels, &t->ledger, err);
    if (status != LK_OK) return status;
    const struct lk_less_shape *s = &t->known->shape;
    t->opts.n_feature = s->n_feature;
    t->opts.n_hidden = s->n_hidden;
    t->opts.share = s->n_psi < s->n_head_kv ? 2 : s->n_phi < s->n_head ? 1 : 0;
    if (s->n_phi != (t->opts.share == 0 ? hp->n_head : t->opts.share == 1 ? hp->n_head_kv : 1))
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "networks for each head cannot be trained further beside ones for all");
    return LK_OK;
}

/* FNV-1a, further. */
static uint64_t hash_more(uint64_t hash, const void *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) hash = (hash ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3ull;
    return hash;
}

/* Of all that decides the weights. */
static uint64_t identify(const struct training *t) {
    const lk_less_opts *o = &t->opts;
    struct lk_less_source source;
    memcpy(&source, &t->data.source, sizeof source);
    const int32_t numbers[] = {o->n_feature,    o->n_hidden, o->share, o->n_epoch,
                               t->size.n_query, t->n_valid,  o->plain};
    const float reals[] = {o->rate, o->dropout};
    const struct part {
        const void *at;
        size_t n;
    } part[] = {{&source, sizeof source},
                {numbers, sizeof numbers},
                {reals, sizeof reals},
                {&o->seed, sizeof o->seed}};
    uint64_t hash = 0xcbf29ce484222325ull;
    for (size_t p = 0; p < sizeof part / sizeof *part; p++)
        hash = hash_more(hash, part[p].at, part[p].n);
    for (size_t i = 0; t->from && i < t->from->n_tensor; i++) {
        const struct lk_sidecar_tensor *tensor = &t->from->tensor[i];
        hash = hash_more(hash, tensor->data, lk_sidecar_bytes(tensor));
    }
    return hash;
}

static lk_status make_net(struct training *t, lk_err *err) {
    const struct lk_hparams *hp = &t->model->net->hp;
    const lk_less_opts *o = &t->opts;
    size_t wo_floats = (size_t)hp->n_embd * hp->n_head * hp->d_head;
    struct lk_less_shape shape = {.n_head = hp->n_head,
                                  .n_head_kv = hp->n_head_kv,
                                  .d_head = hp->d_head,
                                  .n_hidden = o->n_hidden,
                                  .n_feature = o->n_feature,
                                  .n_phi = o->share == 0   ? hp->n_head
                                           : o->share == 1 ? hp->n_head_kv
                                                           : 1,
                                  .n_psi = o->share == 2 ? 1 : hp->n_head_kv};
    t->size = (struct lk_less_size){.shape = shape,
                                    .n_embd = hp->n_embd,
                                    .dropout = o->dropout,
                                    .n_query = o->n_query < t->data.n_least ? o->n_query
                                                                            : t->data.n_least};
    t->size.n_between = part_of(t, t->data.n_most);
    t->wo = lk_alloc(&t->ledger, LK_FOR_SCRATCH, wo_floats * sizeof *t->wo);
    t->norm = lk_alloc(&t->ledger, LK_FOR_SCRATCH, (size_t)o->n_seq * sizeof *t->norm);
    t->order = lk_alloc(&t->ledger, LK_FOR_SCRATCH, 2 * (size_t)o->n_seq * sizeof *t->order);
    t->query = lk_alloc(&t->ledger, LK_FOR_SCRATCH, (size_t)t->size.n_query * sizeof *t->query);
    if (!t->wo || !t->norm || !t->order || !t->query)
        return lk_fail(err, LK_E_NOMEM, "no memory to train");
    for (int i = 0; i < o->n_seq; i++) t->order[i] = i;
    shuffle(t->order, o->n_seq, lk_less_random(o->seed, 0));
    lk_status status =
        lk_less_net_new(&t->net, &t->size, o->seed, t->wo, t->model, &t->ledger, err);
    if (status != LK_OK) return status;
    t->best = lk_alloc(&t->ledger, LK_FOR_SCRATCH, t->net->n_weight * sizeof *t->best);
    t->identity = identify(t);
    return t->best ? LK_OK : lk_fail(err, LK_E_NOMEM, "no memory to train");
}

static void release(struct training *t) {
    const struct lk_hparams *hp = &t->model->net->hp;
    if (t->net) lk_release(&t->ledger, LK_FOR_SCRATCH, t->best, t->net->n_weight * sizeof *t->best);
    lk_less_net_free(t->net);
    lk_release(&t->ledger, LK_FOR_SCRATCH, t->query, (size_t)t->size.n_query * sizeof *t->query);
    lk_release(&t->ledger, LK_FOR_SCRATCH, t->order, 2 * (size_t)t->opts.n_seq * sizeof *t->order);
    lk_release(&t->ledger, LK_FOR_SCRATCH, t->norm, (size_t)t->opts.n_seq * sizeof *t->norm);
    lk_release(&t->ledger, LK_FOR_SCRATCH, t->wo,
               (size_t)hp->n_embd * hp->n_head * hp->d_head * sizeof *t->wo);
    lk_absorb_free(t->known);
    lk_sidecar_close(t->from);
    if (t->data.ledger) lk_less_data_close(&t->data);
}

/* Steps that are left, so that the time left can be told from those done. */
static uint64_t steps_left(struct training *t, int first, int last) {
    uint64_t left = 0, steps = (uint64_t)(t->opts.n_seq - t->n_valid);
    for (int layer = first; layer <= last; layer++)
        left += steps * (uint64_t)(t->opts.n_epoch - (load_layer(t, layer) ? t->state.n_epoch : 0));
    return left;
}

lk_status lk_train_less(lk_model *model, const int32_t *tok, size_t n_tok, const lk_less_opts *opts,
                        const char *path, lk_err *err) {
    struct training t = {.model = model, .opts = *opts, .path = path};
    struct lk_less_policy policy[LK_LESS_MAX_POLICIES];
    char examples[PATH_CAP];
    int n_layer = model->net->hp.n_layer, first = opts->first_layer,
        last = opts->n_layer ? first + opts->n_layer - 1 : n_layer - 1;
    if (first < 0 || last < first || last >= n_layer)
        return lk_fail(err, LK_E_ARG, "the model has layers 0 to %d", n_layer - 1);
    lk_status status = check_opts(&t, n_tok, err);
    for (int i = 0; status == LK_OK && i < opts->n_budget; i++)
        status = lk_less_policy_named(&policy[i], opts->policy, opts->budget[i], err);
    if (status == LK_OK) status = name_file(examples, path, ".examples", 0, err);
    if (status != LK_OK) return status;
    t.total = (uint64_t)t.opts.n_seq * n_layer +
              (uint64_t)(t.opts.n_seq - t.n_valid) * (last - first + 1) * t.opts.n_epoch;
    status = open_known(&t, err);
    if (status == LK_OK)
        status = lk_less_data_open(&t.data, examples, model, policy, opts->n_budget, tok,
                                   t.opts.n_seq, t.opts.n_ctx, report, &t, &t.ledger, err);
    if (status == LK_OK) status = make_net(&t, err);
    if (status == LK_OK) {
        t.total = steps_left(&t, first, last);
        for (int layer = first; status == LK_OK && layer <= last; layer++)
            status = train_layer(&t, layer, err);
    }
    if (status == LK_OK && first == 0 && last == n_layer - 1) {
        status = write_sidecar(&t, err);
        if (status == LK_OK) remove_files(&t);
    }
    release(&t);
    return status;
}
