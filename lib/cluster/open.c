/* Opening a model on the ranks of a cluster, and what each of them has of it. */
#include "cluster/cluster.h"
#include "cluster/messages.h"
#include "engine/model.h"

#include <string.h>

lk_status lk_cluster_set_stages(lk_cluster *c, int32_t n_stage, lk_err *err) {
    if (n_stage < 1 || c->ranks.n_rank % n_stage)
        return lk_fail(err, LK_E_ARG,
                       "%d ranks cannot be divided into %d stages; the number of stages must be a "
                       "divisor of the number of ranks",
                       c->ranks.n_rank, n_stage);
    c->n_stage = n_stage;
    return LK_OK;
}

lk_status lk_model_open_stage(lk_model **out, const char *path, const lk_model_opts *opts,
                              int32_t stage, int32_t n_stage, lk_err *err) {
    if (!opts || !opts->header_only)
        return lk_fail(err, LK_E_ARG,
                       "one stage alone can be planned only: open it with header_only");
    if (n_stage < 1 || stage < 0 || stage >= n_stage)
        return lk_fail(err, LK_E_ARG, "stage %d of %d does not exist; stages count from 0", stage,
                       n_stage);
    return lk_model_open_part(out, path, opts, stage, n_stage, err);
}

/* What must be the same on all ranks, besides the version. */
struct model_facts {
    uint64_t fingerprint, identity, sidecar;
    int32_t n_ctx_rope, n_cached;
};

/* Rank 0's model must be this one. */
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

static lk_rank_weights own_weights(const struct lk_model *model) {
    const struct lk_net *net = model->net;
    const struct lk_stages *s = &net->stages;
    lk_rank_weights own;
    memset(&own, 0, sizeof own); /* with the padding */
    own.stage = s->own;
    own.n_stage = s->n;
    own.first_layer = s->first[s->own];
    own.n_layer = s->first[s->own + 1] - s->first[s->own];
    own.weight_bytes = net->matrix_bytes;
    own.table_bytes = net->table_bytes;
    return own;
}

bool lk_model_get_rank(const lk_model *model, int32_t rank, lk_rank_weights *out) {
    int32_t n_rank = model->peers ? model->peers->exchange->n_rank : 1;
    if (rank < 0 || rank >= n_rank) return false;
    *out = model->rank ? model->rank[rank] : own_weights(model);
    return true;
}

/* Give the model a number, and the weights of all ranks. */
static lk_status enter_model(struct lk_model *model, struct lk_cluster *cluster, lk_err *err) {
    model->number = lk_handles_add(cluster, &cluster->models, model);
    model->rank_bytes = (size_t)cluster->ranks.n_rank * sizeof *model->rank;
    model->rank = lk_alloc(&model->ledger, LK_FOR_OTHER, model->rank_bytes);
    if (model->number >= 0 && model->rank) return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "out of memory for a model");
}

/* lk_model_open_cluster on this rank. */
static lk_status open_on_rank(lk_model **out, const char *path, const lk_model_opts *opts,
                              struct lk_cluster *cluster, lk_err *err) {
    lk_err why = {0};
    lk_model *model = NULL;
    int32_t n_stage = cluster->n_stage > 1 ? cluster->n_stage : 1,
            stage = cluster->ranks.rank / lk_cluster_shards(cluster, n_stage);
    lk_status status = lk_model_open_part(&model, path, opts, stage, n_stage, &why);
    status = lk_agree(&cluster->peers, status, &why);
    if (!status) {
        status = check_same_model(model, cluster, &why);
        if (!status) status = enter_model(model, cluster, &why);
        status = lk_agree(&cluster->peers, status, &why);
    }
    if (model) {
        int n_shard = lk_cluster_shards(cluster, n_stage);
        model->peers = &cluster->peers;
        model->shard = (struct lk_shard){cluster->ranks.rank % n_shard, n_shard};
    }
    lk_rank_weights own = {0};
    if (!status) own = own_weights(model);
    if (!status && !lk_cluster_gather(cluster, &own, sizeof own, model->rank))
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
    return open_on_rank(open->out, op->path, open->opts, open->cluster, err);
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
    return lk_op_run(&cluster->peers, &open.op, err);
}
