/* Drafts of the layer that predicts further tokens. */
#include "engine/draft_mtp.h"

#include "engine/session_state.h"
#include "model/experts.h"
#include "model/mtp.h"

#include <math.h>
#include <string.h>

/* A less probable token is not drafted: it is probably wrong, like those after it. */
static const float min_probability = 0.5f;

static int layer_of(const struct lk_model *model) { return model->net->hp.n_layer; }

/* The graph's inputs are a token, its position and a hidden state, x_in; its outputs the next
 * hidden state, x_out, and logits. */
static lk_status build_graph(struct lk_draft_mtp *d, struct lk_session *s, lk_err *err) {
    const struct lk_net *net = s->model->net;
    struct lk_graph *g = &d->pass.graph;
    int layer = layer_of(s->model);
    struct lk_layer_job *job = &d->pass.job[layer];
    job->age = false;
    job->observes = false;
    lk_status status = lk_pass_reset(&d->pass, 1, err);
    if (status != LK_OK) return status;
    lk_pass_add(&d->pass, s, 1, 1);
    status = lk_pass_reserve_attn(&d->pass, err);
    if (status == LK_OK) status = lk_graph_begin(g, 2 * LK_LAYER_NODES, d->pass.ledger, err);
    if (status != LK_OK) return status;
    g->tok = lk_graph_input(g, 1);
    g->pos = lk_graph_input(g, 1);
    g->x_in = ggml_new_tensor_2d(g->ctx, GGML_TYPE_F32, net->hp.n_embd, 1);
    ggml_set_input(g->x_in);
    struct ggml_tensor *x = lk_mtp_input(net, g->ctx, g->tok, g->x_in);
    struct lk_qkv pre = net->family->pre(net, g->ctx, layer, x, g->pos);
    struct ggml_tensor *stored = lk_store_nodes(g->ctx, job, &pre),
                       *attn = lk_attention_nodes(g->ctx, job, &pre, stored);
    g->x_out = lk_mtp_norm(net, g->ctx, net->family->post(net, g->ctx, layer, &pre, attn));
    g->logits = lk_mtp_head(net, g->ctx, g->x_out);
    ggml_set_output(g->x_out);
    ggml_set_output(g->logits);
    ggml_build_forward_expand(g->graph, g->logits);
    status = lk_graph_finish(g, d->pass.ledger, err);
    return status == LK_OK ? lk_graph_reserve_work(g, s->model, err) : status;
}

lk_status lk_draft_mtp_new(struct lk_draft_mtp **out, struct lk_session *s, lk_err *err) {
    struct lk_ledger *ledger = &s->model->ledger;
    struct lk_draft_mtp *d = lk_alloc(ledger, LK_FOR_OTHER, sizeof *d);
    if (!d) return lk_fail(err, LK_E_NOMEM, "out of memory for drafts");
    d->ledger = ledger;
    d->hidden_size = s->model->net->hp.n_embd * sizeof(float);
    d->hidden = lk_alloc(ledger, LK_FOR_SCRATCH, d->hidden_size);
    lk_status status = d->hidden ? lk_pass_init(&d->pass, s->model, ledger, err)
                                 : lk_fail(err, LK_E_NOMEM, "out of memory for drafts");
    if (status == LK_OK) status = build_graph(d, s, err);
    if (status == LK_OK)
        *out = d;
    else
        lk_draft_mtp_free(d);
    return status;
}

void lk_draft_mtp_free(struct lk_draft_mtp *d) {
    lk_release(d->ledger, LK_FOR_SCRATCH, d->hidden, d->hidden_size);
    lk_pass_free(&d->pass);
    lk_release(d->ledger, LK_FOR_OTHER, d, sizeof *d);
}

uint64_t lk_draft_mtp_bytes(const struct lk_model *model) {
    const struct lk_hparams *hp = &model->net->hp;
    const uint64_t per_node = 1024; /* at least what ggml needs, and a node's padding */
    uint64_t ffn = hp->n_expert ? lk_experts_width(hp) : 3ull * hp->n_ff,
             width = 16ull * hp->n_embd + 2 * ffn + 8ull * hp->n_head * hp->d_head + hp->n_vocab +
                     lk_pass_partial_floats(hp, 0, 1, model->n_thread) +
                     lk_attn_scratch_floats(hp->d_head) * (uint64_t)model->n_thread;
    return sizeof(struct lk_draft_mtp) + width * sizeof(float) + 2 * LK_LAYER_NODES * per_node +
           lk_hparams_layers(hp) * sizeof(struct lk_layer_job) + sizeof(struct lk_seq);
}

/* ---- steps ---- */

/* What the session reserved for its next tokens is enough for as many rows of one layer: it is free
 * again when they are dropped. */
size_t lk_draft_mtp_begin(struct lk_draft_mtp *d, struct lk_session *s, size_t n) {
    struct lk_cache *cache = s->cache;
    const struct lk_hparams *hp = &s->model->net->hp;
    int index = hp->index[layer_of(s->model)];
    memcpy(d->hidden, lk_recurrent_hidden(hp, s->recurrent), d->hidden_size);
    if (cache->reserved > 0) return n < (size_t)cache->reserved ? n : (size_t)cache->reserved;
    return lk_cache_prepare(cache, index, index + 1, (int64_t)n, (int64_t)n, NULL) == LK_OK ? n : 0;
}

/* The layer's rows of tokens that the session does not hold. */
static size_t count_rows(const struct lk_session *s) {
    int index = s->model->net->hp.index[layer_of(s->model)];
    return (size_t)s->cache->kv[index][LK_K].n_tok - s->n_tok;
}

const float *lk_draft_mtp_step(struct lk_draft_mtp *d, struct lk_session *s, int32_t tok) {
    struct lk_graph *g = &d->pass.graph;
    lk_pass_reset(&d->pass, 1, NULL); /* there is room */
    struct lk_seq *seq = lk_pass_add(&d->pass, s, 1, 1);
    seq->absorb = NULL;
    memcpy(g->x_in->data, d->hidden, d->hidden_size);
    *(int32_t *)g->tok->data = tok;
    size_t shifted = (size_t)lk_cache_n_shifted(s->cache);
    lk_graph_set_positions(g, 0, s->n_tok + shifted + count_rows(s), 1);
    if (lk_graph_run(g, s->model, NULL) != LK_OK || seq->failed) return NULL;
    memcpy(d->hidden, g->x_out->data, d->hidden_size);
    return g->logits->data;
}

void lk_draft_mtp_end(struct lk_session *s) {
    lk_cache_drop_layer(s->cache, s->model->net->hp.index[layer_of(s->model)],
                        (int64_t)count_rows(s));
}

/* ---- the source of a drafter ---- */

/* The most probable token, and its probability. */
static int32_t find_best(const float *logits, int32_t n, float *probability) {
    int32_t best = 0;
    float sum = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    for (int32_t i = 0; i < n; i++) sum += expf(logits[i] - logits[best]);
    *probability = 1 / sum;
    return best;
}

static int look(void *self, const struct lk_session *s, int32_t next) {
    (void)self;
    return next < s->model->net->hp.n_vocab ? 0 : -1;
}

static size_t draft(void *self, struct lk_session *s, int32_t next, int32_t *out, size_t n) {
    size_t n_draft = 0;
    for (n = lk_draft_mtp_begin(self, s, n); n_draft < n; n_draft++) {
        float probability = 0;
        const float *logits = lk_draft_mtp_step(self, s, next);
        if (logits) next = find_best(logits, s->model->net->hp.n_vocab, &probability);
        if (!(probability >= min_probability)) break;
        out[n_draft] = next;
    }
    lk_draft_mtp_end(s);
    return n_draft;
}

static void free_source(void *self) { lk_draft_mtp_free(self); }

lk_status lk_draft_mtp_open(struct lk_draft_source *out, struct lk_session *s, lk_err *err) {
    struct lk_draft_mtp *d = NULL;
    lk_status status = lk_draft_mtp_new(&d, s, err);
    if (status == LK_OK)
        *out = (struct lk_draft_source){look, draft, free_source, d, .is_free = false};
    return status;
}
