/* Attention as commands to the device that has the layer's weights. */
#include "engine/on_card.h"

#include "attention/device_call.h"
#include "engine/absorb_device.h"
#include "engine/device_rows.h"
#include "engine/pass.h"
#include "engine/pass_attn.h"
#include "engine/session_state.h"

/* Does the host need queries or partials of the sequence? */
static bool is_read_here(const struct lk_seq *seq) {
    const struct lk_session *s = seq->session;
    bool sums_here = seq->absorb && !seq->absorb->there;
    if (sums_here || s->watch.on_attention || s->watch.on_partials) return true;
    for (int layer = 0; layer < s->cache->shape.n_layer; layer++) {
        struct lk_attn attn = {.k = &s->cache->kv[layer][LK_K],
                               .v = &s->cache->kv[layer][LK_V],
                               .rope = lk_cache_rope(&s->cache->shape, layer)};
        if (lk_attn_device_shifts(&attn)) return true;
    }
    return false;
}

bool lk_pass_on_card(const struct lk_pass *pass) {
    const struct lk_ggml_device *weights = pass->model->net->device;
    if (!weights || !weights->stream || pass->n_seq == 0) return false;
    for (size_t i = 0; i < pass->n_seq; i++) {
        const struct lk_seq *seq = &pass->seq[i];
        if (!lk_model_is_card(pass->model, seq->session->rows.device) || is_read_here(seq))
            return false;
    }
    return true;
}

bool lk_card_has_layer(const struct lk_net *net, int layer) {
    return lk_net_on_device(net, layer) && !net->hp.is_recurrent[layer];
}

void lk_card_follow(struct lk_pass *pass, bool ggml) {
    struct lk_device *device = pass->seq[0].session->rows.device;
    void *stream = ggml ? pass->model->net->device->stream : NULL;
    lk_status status = device->call->follow(device, stream, NULL);
    for (size_t i = 0; i < pass->n_seq && status; i++) pass->seq[i].failed = status;
}

/* ---- store and attend ---- */

/* Show queries to the cache, which come here for that. */
static lk_status observe(const struct lk_layer_job *job, size_t i) {
    const struct lk_seq *seq = &job->pass->seq[i];
    struct lk_cache *cache = seq->session->cache;
    struct lk_device *device = seq->session->rows.device;
    struct lk_attn call = lk_pass_seq_attn(job, i, job->q, NULL);
    if (!job->observes || !lk_cache_observes(cache, job->index)) return LK_OK;
    size_t size = (size_t)seq->n_tok * call.n_head * call.d_head * sizeof(float);
    lk_status status = device->call->download(device, call.partial, (uint64_t)(uintptr_t)call.q,
                                              size, NULL); /* partials have more floats */
    if (!status) lk_cache_observe(cache, job->index, call.partial, seq->n_tok, call.n_head);
    return status;
}

static lk_status store(const struct lk_layer_job *job, size_t i) {
    const struct lk_seq *seq = &job->pass->seq[i];
    struct lk_cache *cache = seq->session->cache;
    uint64_t x[2];
    if (!job->stores) return LK_OK;
    lk_status status = observe(job, i);
    for (int side = 0; side < 2; side++)
        x[side] = (uint64_t)(uintptr_t)job->rows[side]->data +
                  (size_t)seq->row * lk_kv_width(&cache->kv[job->index][side]) * sizeof(float);
    if (!status) status = lk_cache_append_there(cache, job->index, x, seq->n_tok, NULL);
    for (int side = 0; side < 2 && !status && seq->session->recipe->eager; side++)
        status = lk_cache_encode(cache, job->index, (enum lk_side)side, NULL);
    return status;
}

/* Scores of rows for a policy. */
static void score(const struct lk_layer_job *job, size_t i) {
    struct lk_seq *seq = &job->pass->seq[i];
    const struct lk_evict *evict = &seq->session->cache->evict[job->index];
    struct lk_attn call = lk_pass_seq_attn(job, i, job->q, job->out);
    bool last = lk_policy_needed_scores(&evict->policy) == LK_SCORES_LAST;
    if (job->stores && evict->adds_scores && !seq->failed) lk_device_score(seq, &call, last);
}

static void issue_attention(void *user) {
    struct lk_layer_job *job = user;
    struct lk_pass *pass = job->pass;
    struct lk_device *device = pass->seq[0].session->rows.device;
    lk_card_follow(pass, true);
    for (size_t i = 0; i < pass->n_seq; i++) {
        lk_status status = pass->seq[i].failed ? LK_OK : store(job, i);
        if (status) pass->seq[i].failed = status;
    }
    lk_pass_attend_on_devices(job, job->q, job->out);
    for (size_t i = 0; i < pass->n_seq; i++) score(job, i);
    for (size_t i = 0; i < pass->n_seq; i++) { /* no NaN for the other rows' experts */
        struct lk_attn call = lk_pass_seq_attn(job, i, NULL, job->out);
        size_t size = (size_t)call.n_tok * call.n_head * call.d_head * sizeof(float);
        if (pass->seq[i].failed)
            device->call->clear(device, (uint64_t)(uintptr_t)call.out, size, NULL);
    }
    lk_card_follow(pass, false);
}

void lk_card_token_inputs(struct lk_pass *pass) {
    const struct lk_net *net = pass->model->net;
    struct lk_graph *g = &pass->graph;
    for (int layer = net->first_layer; layer < net->end_layer; layer++)
        if (net->family->token_input && lk_card_has_layer(net, layer))
            pass->job[layer].tok = net->family->token_input(net, g->ctx, layer, g->tok);
}

struct ggml_tensor *lk_card_attention(struct lk_graph *g, struct lk_layer_job *job,
                                      struct lk_qkv *pre) {
    lk_graph_command(g, issue_attention, job);
    job->q = lk_graph_use(g, pre->q);
    job->rows[LK_K] = lk_graph_use(g, pre->k);
    job->rows[LK_V] = lk_graph_use(g, pre->v);
    job->out = ggml_new_tensor_2d(g->ctx, GGML_TYPE_F32,
                                  (int64_t)job->pass->attn.n_head * job->heads.d, pre->q->ne[2]);
    pre->tok = job->tok;
    return job->out;
}

/* ---- age ---- */

static void issue_aging(void *user) {
    struct lk_pass *pass = user;
    lk_card_follow(pass, true);
    for (size_t i = 0; i < pass->n_seq; i++)
        if (!pass->seq[i].failed && !lk_device_needs_scores(pass->seq[i].session))
            lk_device_age(&pass->seq[i], pass->attn.scratch);
    lk_card_follow(pass, false);
}

void lk_card_age(struct lk_pass *pass) { lk_graph_command(&pass->graph, issue_aging, pass); }
