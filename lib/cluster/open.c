/* Opening a model on the peers of a cluster, and what each of them has of it. */
#include "cluster/cluster.h"
#include "cluster/messages.h"
#include "engine/model.h"

#include <string.h>

lk_status lk_cluster_set_stages(lk_cluster *c, int32_t n_stage, lk_err *err) {
    if (n_stage < 1 || c->transport.n_peer % n_stage)
        return lk_fail(err, LK_E_ARG,
                       "%d ranks cannot be divided into %d stages; the number of stages must be a "
                       "divisor of the number of ranks",
                       c->transport.n_peer, n_stage);
    c->n_stage = n_stage;
    return LK_OK;
}

static lk_peer_weights own_weights(const struct lk_model *model) {
    const struct lk_net *net = model->net;
    lk_peer_weights own;
    memset(&own, 0, sizeof own); /* with the padding */
    own.stage = model->parts ? model->parts->stages.own : 0;
    own.n_stage = lk_cluster_n_stage(model);
    own.first_layer = net->first_layer;
    own.n_layer = net->end_layer - net->first_layer;
    own.weight_bytes = net->matrix_bytes;
    own.table_bytes = net->table_bytes;
    return own;
}

/* Note what each of n_peer peers has, and where the caches of this model's sessions are. */
static lk_status add_parts(struct lk_model *model, const struct lk_stages *stages, int32_t n_peer,
                           lk_err *err) {
    const struct lk_hparams *hp = &model->net->hp;
    size_t n_layer = (size_t)hp->n_layer, n_cached = (size_t)lk_hparams_cached(hp),
           n_weights = (size_t)n_peer * sizeof(lk_peer_weights);
    int32_t n_share = n_peer / stages->n;
    model->parts_bytes = sizeof *model->parts + n_weights + (n_layer + n_cached) * sizeof(int32_t);
    model->parts = lk_alloc(&model->ledger, LK_FOR_OTHER, model->parts_bytes);
    if (!model->parts) return lk_fail(err, LK_E_NOMEM, "out of memory for a model");
    struct lk_parts *parts = model->parts;
    parts->stages = *stages;
    parts->weights = (lk_peer_weights *)(parts + 1);
    parts->holder = (int32_t *)(parts->weights + n_peer);
    parts->cached = parts->holder + n_layer;
    for (int layer = 0; layer < hp->n_layer; layer++) {
        parts->holder[layer] = lk_stages_of(stages, layer) * n_share;
        if (!hp->is_recurrent[layer]) parts->cached[hp->index[layer]] = parts->holder[layer];
    }
    if (stages->n <= 1) return LK_OK;
    model->holder = parts->holder;
    model->place = (struct lk_place){.holder = parts->cached, .own = stages->own * n_share};
    return LK_OK;
}

/* Open the layers of a stage, for n_peer peers. */
static lk_status open_part(lk_model **out, const char *path, const lk_model_opts *opts,
                           int32_t stage, int32_t n_stage, int32_t n_peer, lk_err *err) {
    struct lk_stages stages = {.own = stage, .n = n_stage};
    const struct lk_layer_choice choice = {lk_stages_choose, &stages};
    lk_model *model = NULL;
    lk_status status = lk_model_open_layers(&model, path, opts, n_stage > 1 ? &choice : NULL, err);
    if (!status) status = add_parts(model, &stages, n_peer, err);
    if (!status)
        *out = model;
    else
        lk_model_free(model);
    return status;
}

lk_status lk_model_open_stage(lk_model **out, const char *path, const lk_model_opts *opts,
                              int32_t stage, int32_t n_stage, lk_err *err) {
    if (!opts || !opts->header_only)
        return lk_fail(err, LK_E_ARG,
                       "one stage alone can be planned only: open it with header_only");
    if (n_stage < 1 || stage < 0 || stage >= n_stage)
        return lk_fail(err, LK_E_ARG, "stage %d of %d does not exist; stages count from 0", stage,
                       n_stage);
    return open_part(out, path, opts, stage, n_stage, n_stage, err);
}

/* What must be the same on all peers, besides the version. */
struct model_facts {
    uint64_t fingerprint, identity, sidecar;
    int32_t n_ctx_rope, n_cached;
};

/* Peer 0's model must be this one. */
static lk_status check_same_model(const struct lk_model *model, struct lk_cluster *cluster,
                                  lk_err *err) {
    struct model_facts own, first;
    memset(&own, 0, sizeof own); /* with the padding */
    own.fingerprint = model->net->fingerprint;
    own.identity = model->net->identity;
    own.sidecar = model->sidecar ? model->sidecar->fingerprint : 0;
    own.n_ctx_rope = model->net->hp.n_ctx_rope;
    own.n_cached = lk_hparams_cached(&model->net->hp);
    first = own;
    if (!lk_cluster_broadcast(cluster, &first, sizeof first)) return lk_fail_lost(err);
    if (memcmp(&first, &own, sizeof own) == 0) return LK_OK;
    return lk_fail(err, LK_E_FORMAT,
                   "the model or the sidecar differs from that of rank 0; copy the same files to "
                   "all machines");
}

bool lk_model_get_peer(const lk_model *model, int32_t peer, lk_peer_weights *out) {
    int32_t n_peer = model->peers ? lk_cluster_of(model->peers)->transport.n_peer : 1;
    if (peer < 0 || peer >= n_peer) return false;
    *out = model->peers ? model->parts->weights[peer] : own_weights(model);
    return true;
}

/* Give the model a number. */
static lk_status enter_model(struct lk_model *model, struct lk_cluster *cluster, lk_err *err) {
    model->number = lk_handles_add(cluster, &cluster->models, model);
    if (model->number >= 0) return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "out of memory for a model");
}

/* lk_model_open_cluster on this peer. */
static lk_status open_on_peer(lk_model **out, const char *path, const lk_model_opts *opts,
                              struct lk_cluster *cluster, lk_err *err) {
    lk_err why = {0};
    lk_model *model = NULL;
    int32_t n_stage = cluster->n_stage > 1 ? cluster->n_stage : 1,
            n_peer = cluster->transport.n_peer, n_share = n_peer / n_stage,
            stage = cluster->transport.own / n_share;
    lk_status status = open_part(&model, path, opts, stage, n_stage, n_peer, &why);
    status = lk_cluster_agree(&cluster->peers, status, &why);
    if (!model) return lk_fail(err, status, "%s", why.msg);
    if (!status) {
        status = check_same_model(model, cluster, &why);
        if (!status) status = enter_model(model, cluster, &why);
        status = lk_cluster_agree(&cluster->peers, status, &why);
    }
    model->peers = &cluster->peers;
    model->place.share = (struct lk_share){cluster->transport.own % n_share, n_share};
    lk_peer_weights own = {0};
    if (!status) own = own_weights(model);
    if (!status && !lk_cluster_gather(cluster, &own, sizeof own, model->parts->weights))
        status = lk_fail_lost(&why);
    if (!status) {
        *out = model;
        return LK_OK;
    }
    lk_handles_remove(&cluster->models, model);
    lk_model_free(model);
    return lk_fail(err, status, "%s", why.msg);
}

static lk_status run_open(struct lk_op *op, lk_err *err) {
    struct lk_open_op *open = (struct lk_open_op *)op;
    return open_on_peer(open->out, op->path, open->opts, open->cluster, err);
}

lk_status lk_model_open_cluster(lk_model **out, const char *path, const lk_model_opts *opts,
                                lk_cluster *cluster, lk_err *err) {
    static const lk_model_opts defaults;
    struct lk_open_op open = {.op = {.kind = LK_OP_MODEL_OPEN, .run = run_open, .path = path},
                              .out = out,
                              .opts = opts ? opts : &defaults,
                              .cluster = cluster};
    if (open.opts->header_only)
        return lk_fail(err, LK_E_ARG,
                       "a cluster needs the model's weights; open it without header_only");
    return cluster->peers.run(&cluster->peers, &open.op, err);
}
