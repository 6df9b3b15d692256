/* The sequences of a pass, the custom nodes of attention, and the graph over all layers. */
#include "engine/pass.h"

#include "attention/latents.h"
#include "engine/on_card.h"
#include "engine/pass_attn.h"
#include "engine/recurrent.h"
#include "engine/session_state.h"
#include "model/recurrence_nodes.h"

#include <string.h>

enum { NODES_AROUND = 64 }; /* nodes outside of the layers */

/* ---- sequences ---- */

lk_status lk_pass_init(struct lk_pass *pass, struct lk_model *model, struct lk_ledger *ledger,
                       lk_err *err) {
    const struct lk_hparams *hp = &model->net->hp;
    lk_status status = lk_model_check_weights(model, err);
    if (status) return status;
    *pass = (struct lk_pass){.model = model, .ledger = ledger};
    pass->attn = (struct lk_attn){.kernels = model->kernels,
                                  .n_head = hp->n_head,
                                  .d_rope = hp->d_rope,
                                  .n_thread = model->n_thread,
                                  .scale = hp->attn_scale,
                                  .softcap = hp->attn_softcap,
                                  .alibi_max_bias = hp->alibi_max_bias};
    int n_layer = hp->n_layer;
    pass->job = lk_alloc(ledger, LK_FOR_OTHER, n_layer * sizeof *pass->job);
    if (!pass->job) return lk_fail(err, LK_E_NOMEM, "out of memory for %d layers", n_layer);
    for (int layer = 0; layer < n_layer; layer++) pass->job[layer] = lk_pass_job(pass, layer);
    return LK_OK;
}

struct lk_layer_job lk_pass_job(struct lk_pass *pass, int layer) {
    const struct lk_hparams *hp = &pass->model->net->hp;
    return (struct lk_layer_job){.pass = pass,
                                 .layer = layer,
                                 .index = hp->index[layer],
                                 .heads = lk_hparams_heads(hp, layer),
                                 .stores = !lk_hparams_shares(hp, layer),
                                 .observes = true};
}

void lk_pass_free(struct lk_pass *pass) {
    if (!pass->ledger) return;
    lk_graph_free(&pass->graph, pass->ledger);
    lk_release(pass->ledger, LK_FOR_SCRATCH, pass->attn.scratch, pass->n_scratch * sizeof(float));
    lk_release(pass->ledger, LK_FOR_SCRATCH, pass->attn.partial, pass->n_partial * sizeof(float));
    lk_release(pass->ledger, LK_FOR_SCRATCH, pass->joined, pass->n_joined * sizeof(float));
    lk_release(pass->ledger, LK_FOR_SCRATCH, pass->gathered, pass->n_gathered * sizeof(float));
    lk_release(pass->ledger, LK_FOR_SCRATCH, pass->hidden, pass->n_hidden * sizeof(float));
    lk_release(pass->ledger, LK_FOR_OTHER, pass->seq, pass->seq_cap * sizeof *pass->seq);
    lk_release(pass->ledger, LK_FOR_OTHER, pass->bound, pass->seq_cap * sizeof *pass->bound);
    lk_release(pass->ledger, LK_FOR_OTHER, pass->job,
               pass->model->net->hp.n_layer * sizeof *pass->job);
    *pass = (struct lk_pass){0};
}

lk_status lk_pass_reset(struct lk_pass *pass, size_t n_seq, lk_err *err) {
    pass->n_seq = 0;
    pass->n_row = pass->n_out = 0;
    pass->partial_needed = pass->joined_needed = 0;
    if (n_seq <= pass->seq_cap) return LK_OK;
    struct lk_seq *seq = lk_alloc(pass->ledger, LK_FOR_OTHER, n_seq * sizeof *seq);
    if (seq && lk_grow(pass->ledger, LK_FOR_OTHER, (void **)&pass->bound,
                       pass->seq_cap * sizeof *pass->bound, n_seq * sizeof *pass->bound)) {
        lk_release(pass->ledger, LK_FOR_OTHER, pass->seq, pass->seq_cap * sizeof *pass->seq);
        pass->seq = seq;
        pass->seq_cap = n_seq;
        return LK_OK;
    }
    lk_release(pass->ledger, LK_FOR_OTHER, seq, n_seq * sizeof *seq);
    return lk_fail(err, LK_E_NOMEM, "out of memory for a pass of %zu sequences", n_seq);
}

/* Floats of a sequence's partials. */
static size_t seq_partial_floats(const struct lk_pass *pass, const struct lk_session *s,
                                 int n_tok) {
    size_t here = lk_pass_partial_floats(&pass->model->net->hp, s->width.latent, n_tok,
                                         pass->attn.n_thread),
           there = lk_device_partial_floats(s, n_tok);
    return here > there ? here : there;
}

struct lk_seq *lk_pass_add(struct lk_pass *pass, struct lk_session *s, int n_tok, int n_out) {
    const struct lk_hparams *hp = &pass->model->net->hp;
    struct lk_seq *seq = &pass->seq[pass->n_seq++];
    *seq = (struct lk_seq){.session = s,
                           .absorb = s->absorb,
                           .row = pass->n_row,
                           .n_tok = n_tok,
                           .n_out = n_out,
                           .partial = pass->partial_needed};
    pass->n_row += n_tok;
    pass->n_out += n_out;
    pass->partial_needed += seq_partial_floats(pass, s, n_tok);
    if (s->cache->shape.place.share.n > 1)
        pass->joined_needed +=
            (size_t)n_tok * hp->n_head * lk_attn_joined_floats(hp->d_head, s->width.latent);
    return seq;
}

/* Replace *mem, which has *n_have floats, by n floats. Its contents are lost. */
static bool replace_floats(struct lk_pass *pass, float **mem, size_t *n_have, size_t n) {
    lk_release(pass->ledger, LK_FOR_SCRATCH, *mem, *n_have * sizeof(float));
    *mem = lk_alloc(pass->ledger, LK_FOR_SCRATCH, n * sizeof(float));
    *n_have = *mem ? n : 0;
    return *mem;
}

lk_status lk_pass_reserve_attn(struct lk_pass *pass, lk_err *err) {
    struct lk_attn *a = &pass->attn;
    int part = 0; /* the widest of all sessions */
    for (size_t i = 0; i < pass->n_seq; i++)
        if (pass->seq[i].session->width.part > part) part = pass->seq[i].session->width.part;
    size_t partial = pass->partial_needed, scratch = lk_attn_scratch_floats(part) * a->n_thread,
           joined = pass->joined_needed, gathered = joined * (size_t)pass->model->place.share.n,
           hidden = lk_net_has_all(pass->model->net)
                        ? 0
                        : (size_t)pass->n_row * pass->model->net->hp.n_embd;
    if ((partial <= pass->n_partial ||
         replace_floats(pass, &a->partial, &pass->n_partial, partial)) &&
        (scratch <= pass->n_scratch ||
         replace_floats(pass, &a->scratch, &pass->n_scratch, scratch)) &&
        (joined <= pass->n_joined ||
         replace_floats(pass, &pass->joined, &pass->n_joined, joined)) &&
        (gathered <= pass->n_gathered ||
         replace_floats(pass, &pass->gathered, &pass->n_gathered, gathered)) &&
        (hidden <= pass->n_hidden || replace_floats(pass, &pass->hidden, &pass->n_hidden, hidden)))
        return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "out of memory for the attention of %d tokens", pass->n_row);
}

static lk_status reserve_devices(struct lk_pass *pass, lk_err *err) {
    lk_status status = LK_OK;
    for (size_t i = 0; i < pass->n_seq && !status; i++) {
        const struct lk_seq *seq = &pass->seq[i];
        if (lk_device_has_rows(seq))
            status = lk_device_rows_reserve(seq, seq_partial_floats(pass, seq->session, seq->n_tok),
                                            err);
    }
    return status;
}

/* ---- custom nodes: thread ith of nth does its share for every sequence ---- */

/* Append a sequence's rows of x [n_row][width] to its cache. If its recipe is eager, rows that are
 * old enough are encoded before any query attends to them. */
static lk_status store_rows(const struct lk_layer_job *job, const struct lk_seq *seq,
                            enum lk_side side, const struct ggml_tensor *x) {
    struct lk_cache *cache = seq->session->cache;
    size_t width = lk_kv_width(&cache->kv[job->index][side]);
    const float *rows = (const float *)x->data + (size_t)seq->row * width;
    lk_status status = lk_cache_append(cache, job->index, side, rows, seq->n_tok, NULL);
    if (status || !seq->session->recipe->eager) return status;
    return lk_cache_encode(cache, job->index, side, NULL);
}

/* src: q and, in a layer that stores rows, k and v (struct lk_qkv). Appends K and V to
 * the caches and shows them the queries. K and V of a sequence may go to different threads. */
static void store_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_layer_job *job = userdata;
    struct lk_attn a = lk_pass_attn(job);
    for (size_t task = (size_t)ith; task < 2 * job->pass->n_seq; task += (size_t)nth) {
        struct lk_seq *seq = &job->pass->seq[task / 2];
        struct lk_cache *cache = seq->session->cache;
        enum lk_side side = task % 2 ? LK_V : LK_K;
        if (seq->failed) continue;
        const float *q = lk_pass_queries(&a, dst->src[0], seq->row);
        if (side == LK_K && job->stores && job->observes)
            lk_cache_observe(cache, job->index, q, seq->n_tok, a.n_head);
        lk_status status = job->stores ? store_rows(job, seq, side, dst->src[1 + side]) : LK_OK;
        if (status) {
            seq->failed = status;
        } else if (side == LK_K) {
            struct lk_attn attn = lk_pass_seq_attn(job, task / 2, NULL, NULL);
            seq->n_range = lk_device_has_rows(seq) ? lk_device_ranges(seq, &attn)
                                                   : lk_attn_ranges(&attn, attn.k, attn.v);
            const struct lk_evict *evict = &cache->evict[job->index];
            seq->attn_scores = evict->adds_scores ? evict->score : NULL;
        }
    }
}

/* src: q, and the node to wait for. */
static void attend_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_layer_job *job = userdata;
    for (size_t i = 0; i < job->pass->n_seq; i++) {
        struct lk_seq *seq = &job->pass->seq[i];
        if (seq->failed) continue;
        struct lk_attn attn = lk_pass_seq_attn(job, i, dst->src[0], NULL);
        const struct lk_watch *watch = &seq->session->watch;
        if (ith == 0 && job->stores && watch->on_attention)
            watch->on_attention(watch->user, job->index, &attn);
        if (!lk_device_has_rows(seq)) lk_attn_items(&attn, ith, nth);
        if (seq->absorb && !(seq->absorb->there && lk_device_has_rows(seq)))
            lk_absorb_attend(seq->absorb, job->index, attn.q, attn.n_tok, ith, nth);
    }
    if (ith == 0) lk_pass_attend_on_devices(job, dst->src[0], NULL);
}

/* src: the node to wait for, and q. Adds the attention scores of rows for policies that need
 * them. */
static void score_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_layer_job *job = userdata;
    for (size_t i = 0; i < job->pass->n_seq; i++) {
        struct lk_seq *seq = &job->pass->seq[i];
        const struct lk_evict *evict = seq->session->cache->kv[job->index][LK_K].evict;
        if (seq->failed || !evict || !evict->needs_scores || !seq->attn_scores) continue;
        struct lk_attn attn = lk_pass_seq_attn(job, i, dst->src[1], NULL);
        enum lk_policy_scores kind = lk_policy_needed_scores(&evict->policy);
        if (!lk_device_has_rows(seq))
            lk_attn_accumulate_scores(&attn, seq->n_range, kind, seq->attn_scores, ith, nth);
        else if (ith == 0)
            lk_device_score(seq, &attn, kind == LK_SCORES_LAST);
    }
}

/* Floats of a call's joined partials. */
static size_t joined_floats(const struct lk_attn *attn) {
    return (size_t)attn->n_tok * attn->n_head *
           lk_attn_joined_floats(attn->d_head, lk_attn_v_rank(attn->v));
}

/* Floats of the joined partials of the first n sequences in a layer, in their order. */
static size_t joined_before(const struct lk_layer_job *job, size_t n) {
    size_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        struct lk_attn attn = lk_pass_seq_attn(job, i, NULL, NULL);
        if (lk_kv_is_divided(attn.k)) sum += joined_floats(&attn);
    }
    return sum;
}

/* src: the node to wait for. Joins the ranges of all sequences whose rows are divided. */
static void join_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_layer_job *job = userdata;
    float *joined = job->pass->joined;
    (void)dst;
    for (size_t i = 0; i < job->pass->n_seq; i++) {
        const struct lk_seq *seq = &job->pass->seq[i];
        struct lk_attn attn = lk_pass_seq_attn(job, i, NULL, NULL);
        if (!lk_kv_is_divided(attn.k)) continue;
        if (!seq->failed)
            lk_attn_join(&attn, seq->n_range, joined, ith, nth);
        else if (ith == 0)
            memset(joined, 0, joined_floats(&attn) * sizeof *joined);
        joined += joined_floats(&attn);
    }
}

/* src: the node to wait for. One thread exchanges the joined partials; the others wait at the end
 * of the node. */
static void gather_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_layer_job *job = userdata;
    struct lk_pass *pass = job->pass;
    (void)dst, (void)nth;
    size_t n = joined_before(job, pass->n_seq) * sizeof *pass->joined;
    if (ith != 0 || n == 0) return;
    if (lk_gather(pass->model, pass->joined, n, pass->gathered)) return;
    for (size_t i = 0; i < pass->n_seq; i++) pass->seq[i].failed = LK_E_IO;
}

/* Let a call combine what was gathered. Returns the number of shares. */
static int use_gathered(const struct lk_layer_job *job, size_t i, struct lk_attn *attn) {
    attn->partial = job->pass->gathered + joined_before(job, i);
    attn->range_stride = joined_before(job, job->pass->n_seq);
    return attn->k->share.n;
}

/* src: the node to wait for, and q. Joins the ranges of all sequences. */
static void combine_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_layer_job *job = userdata;
    for (size_t i = 0; i < job->pass->n_seq; i++) {
        struct lk_seq *seq = &job->pass->seq[i];
        struct lk_attn attn = lk_pass_seq_attn(job, i, NULL, dst);
        if (seq->absorb) attn.extra_partial = seq->absorb->partial;
        const struct lk_watch *watch = &seq->session->watch;
        if (ith == 0 && job->stores && !seq->failed && watch->on_partials) {
            attn.q = lk_pass_queries(&attn, dst->src[1], seq->row);
            watch->on_partials(watch->user, job->index, &attn, seq->n_range);
        }
        int n_range = lk_kv_is_divided(attn.k) ? use_gathered(job, i, &attn) : seq->n_range;
        if (!seq->failed)
            lk_attn_combine(&attn, n_range, ith, nth);
        else if (ith == 0)
            memset(attn.out, 0, (size_t)seq->n_tok * attn.n_head * attn.d_head * sizeof(float));
    }
}

/* src: the node to wait for: after all layers. Re-encodes the rows of the layers that are held
 * here. */
static void age_node(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    struct lk_pass *pass = userdata;
    float *scratch = pass->attn.scratch + pass->n_scratch / pass->attn.n_thread * ith;
    int n_kv = 2 * lk_hparams_cached(&pass->model->net->hp);
    (void)dst;
    for (size_t task = (size_t)ith; task < n_kv * pass->n_seq; task += (size_t)nth) {
        struct lk_seq *seq = &pass->seq[task / n_kv];
        const struct lk_kv *kv = lk_cache_kv(seq->session->cache, (int)(task % n_kv));
        if (seq->failed || kv->is_elsewhere || seq->session->rows.device) continue;
        if (kv->side == LK_V && kv->evict) continue; /* aged together with K */
        struct lk_short_list room;
        struct lk_moves *list = lk_moves_start(&room, seq->session->cache, scratch);
        lk_status status = lk_cache_age_by(list, (int)(task % n_kv) / 2, kv->side, NULL);
        lk_moves_run(list);
        if (status) seq->failed = status;
    }
    for (size_t i = (size_t)ith; i < pass->n_seq; i += (size_t)nth)
        if (!pass->seq[i].failed && pass->seq[i].session->rows.device)
            lk_device_finish(&pass->seq[i], scratch,
                             pass->graph.on_card && !lk_device_needs_scores(pass->seq[i].session));
}

/* True if any layer of any sequence has a policy that needs attention scores. */
static bool pass_needs_scores(const struct lk_pass *pass) {
    for (size_t i = 0; i < pass->n_seq; i++)
        for (int layer = 0; layer < lk_hparams_cached(&pass->model->net->hp); layer++) {
            const struct lk_evict *evict = pass->seq[i].session->cache->kv[layer][LK_K].evict;
            if (evict && evict->needs_scores) return true;
        }
    return false;
}

/* Are the rows of a layer divided, of any sequence? */
static bool layer_is_divided(const struct lk_layer_job *job) {
    for (size_t i = 0; i < job->pass->n_seq; i++)
        if (lk_kv_is_divided(&job->pass->seq[i].session->cache->kv[job->index][LK_K])) return true;
    return false;
}

/* Are the rows of any sequence divided? */
static bool pass_is_divided(const struct lk_pass *pass) { return pass->joined_needed > 0; }

struct ggml_tensor *lk_store_nodes(struct ggml_context *ctx, struct lk_layer_job *job,
                                   const struct lk_qkv *pre) {
    struct ggml_tensor *rows[] = {pre->q, pre->k, pre->v};
    return lk_graph_effect(ctx, store_node, rows, job->stores ? 3 : 1, job);
}

struct ggml_tensor *lk_attention_nodes(struct ggml_context *ctx, struct lk_layer_job *job,
                                       const struct lk_qkv *pre, struct ggml_tensor *ready) {
    int64_t n_attn = (int64_t)job->pass->attn.n_head * job->heads.d, n_tok = pre->q->ne[2];
    struct ggml_tensor *queries[] = {pre->q, ready};
    struct ggml_tensor *partial = lk_graph_effect(ctx, attend_node, queries, 2, job);
    struct ggml_tensor *weights[] = {partial, pre->q};
    if (job->stores && pass_needs_scores(job->pass))
        partial = lk_graph_effect(ctx, score_node, weights, 2, job);
    if (layer_is_divided(job)) {
        partial = lk_graph_effect(ctx, join_node, &partial, 1, job);
        partial = lk_graph_effect(ctx, gather_node, &partial, 1, job);
    }
    struct ggml_tensor *sums[] = {partial, pre->q};
    return ggml_custom_4d(ctx, GGML_TYPE_F32, n_attn, n_tok, 1, 1, sums, 2, combine_node,
                          GGML_N_TASKS_MAX, job);
}

/* ---- the parts of a layer that ggml computes ---- */

static enum lk_graph_place place_of(const struct lk_net *net, int layer) {
    return lk_net_on_device(net, layer) ? LK_ON_DEVICE : LK_ON_CPU;
}

struct lk_qkv lk_pre_nodes(struct lk_graph *g, const struct lk_net *net, int layer,
                           struct ggml_tensor *x, struct ggml_tensor *pos) {
    lk_graph_enter(g, place_of(net, layer));
    return net->family->pre(net, g->ctx, layer, lk_graph_use(g, x), lk_graph_use(g, pos));
}

void lk_pre_to_cpu(struct lk_graph *g, const struct lk_net *net, int layer, struct ggml_tensor *tok,
                   struct lk_qkv *pre) {
    lk_graph_enter(g, LK_ON_CPU);
    struct ggml_tensor **used[] = {&pre->q, &pre->k, &pre->v, &pre->mixed, &pre->decay, &pre->beta};
    for (size_t i = 0; i < sizeof used / sizeof *used; i++) *used[i] = lk_graph_use(g, *used[i]);
    if (net->family->token_input)
        pre->tok = net->family->token_input(net, g->ctx, layer, lk_graph_use(g, tok));
}

struct ggml_tensor *lk_post_nodes(struct lk_graph *g, const struct lk_net *net, int layer,
                                  const struct lk_qkv *pre, struct ggml_tensor *attn) {
    struct lk_qkv used = *pre;
    lk_graph_enter(g, place_of(net, layer));
    used.x = lk_graph_use(g, pre->x);
    used.tok = lk_graph_use(g, pre->tok);
    used.aux = lk_graph_use(g, pre->aux);
    return net->family->post(net, g->ctx, layer, &used, lk_graph_use(g, attn));
}

/* ---- layers that are not held here ---- */

void lk_pass_count_rows(struct lk_pass *pass) {
    for (size_t task = 0; task < 2 * pass->n_seq; task++) {
        struct lk_seq *seq = &pass->seq[task / 2];
        struct lk_cache *cache = seq->session->cache;
        for (int layer = 0; layer < cache->shape.n_layer; layer++) {
            const struct lk_kv *kv = &cache->kv[layer][task % 2];
            if (!kv->is_elsewhere || seq->failed) continue;
            lk_status status = lk_cache_append(cache, layer, kv->side, NULL, seq->n_tok, NULL);
            if (!status && seq->session->recipe->eager)
                status = lk_cache_encode(cache, layer, kv->side, NULL);
            if (!status) status = lk_cache_age(cache, layer, kv->side, NULL);
            seq->failed = status;
        }
    }
}

/* ---- the graph ---- */

/* What a graph with recurrences on the device names of a sequence; 0 of others. */
static uint64_t bound_of(const struct lk_pass *pass, const struct lk_seq *seq) {
    enum { MAX_TOK = 2 * LK_EVAL_MAX };
    if (!pass->model->net->device || !seq->session->recurrent_there.now.buffer) return 0;
    uint64_t number = lk_recurrent_there_number(seq->session, seq->drafts);
    return (number * MAX_TOK + (uint64_t)seq->n_tok) * 2 + seq->drafts;
}

/* Does the graph serve the pass's sequences, as far as it names them? */
static bool is_bound(const struct lk_pass *pass) {
    if (pass->n_bound != pass->n_seq) return lk_recurrence_count_there(pass->model->net) == 0;
    for (size_t i = 0; i < pass->n_seq; i++)
        if (pass->bound[i] != bound_of(pass, &pass->seq[i])) return false;
    return true;
}

static void bind_sequences(struct lk_pass *pass) {
    pass->n_bound = pass->n_seq;
    for (size_t i = 0; i < pass->n_seq; i++) pass->bound[i] = bound_of(pass, &pass->seq[i]);
}

/* An empty graph with room for the pass's nodes. */
static lk_status begin_graph(struct lk_pass *pass, lk_err *err) {
    struct lk_graph *g = &pass->graph;
    const struct lk_net *net = pass->model->net;
    int n_there = (int)pass->n_seq * LK_RECURRENCE_NODES; /* in each such layer */
    lk_graph_set_device(g, pass->model, net->hp.n_layer);
    if (lk_recurrence_run_there(net) > 0)
        g->piece_node = LK_PIECE_NODES + lk_recurrence_run_there(net) * (LK_LAYER_NODES + n_there);
    return lk_graph_begin(g,
                          net->hp.n_layer * LK_LAYER_NODES + NODES_AROUND +
                              lk_recurrence_count_there(net) * n_there,
                          pass->ledger, err);
}

lk_status lk_pass_build(struct lk_pass *pass, lk_err *err) {
    struct lk_graph *g = &pass->graph;
    const struct lk_net *net = pass->model->net;
    bool last = net->end_layer == net->hp.n_layer;
    int n_row = pass->n_row, n_out = pass->n_out;
    lk_status status = lk_pass_reserve_attn(pass, err);
    if (!status) status = reserve_devices(pass, err);
    if (status) return status;
    bool needs_scores = pass_needs_scores(pass), divided = pass_is_divided(pass),
         on_card = pass->model->net->device && lk_pass_on_card(pass);
    if (g->ctx && g->n_tok == n_row && g->n_out == n_out && g->needs_scores == needs_scores &&
        g->divided == divided && g->on_card == on_card && is_bound(pass))
        return LK_OK;
    status = begin_graph(pass, err);
    if (status) return status;
    g->tok = lk_graph_input(g, (size_t)n_row);
    g->pos = lk_graph_input(g, (size_t)n_row);
    if (last && n_out < n_row) g->out = lk_graph_input(g, (size_t)n_out);
    struct ggml_tensor *x;
    if (net->first_layer == 0) {
        x = net->family->embed(net, g->ctx, g->tok, g->pos);
    } else {
        x = g->x_in = ggml_new_tensor_2d(g->ctx, GGML_TYPE_F32, net->hp.n_embd, n_row);
        ggml_set_input(g->x_in);
    }
    if (on_card) lk_card_token_inputs(pass);
    for (int layer = net->first_layer; layer < net->end_layer; layer++) {
        struct lk_layer_job *job = &pass->job[layer];
        struct lk_qkv pre = lk_pre_nodes(g, net, layer, x, g->pos);
        struct ggml_tensor *attn;
        if (on_card && lk_card_has_layer(net, layer)) {
            attn = lk_card_attention(g, job, &pre);
        } else if (lk_net_recurs_there(net, layer)) {
            attn = lk_recurrence_there_pass(g, job, &pre);
        } else {
            lk_pre_to_cpu(g, net, layer, g->tok, &pre);
            attn = net->hp.is_recurrent[layer]
                       ? lk_recurrence_nodes(g->ctx, job, &pre)
                       : lk_attention_nodes(g->ctx, job, &pre, lk_store_nodes(g->ctx, job, &pre));
        }
        x = lk_post_nodes(g, net, layer, &pre, attn);
    }
    if (g->out) x = ggml_get_rows(g->ctx, x, lk_graph_use(g, g->out));
    if (last) x = net->family->head(net, g->ctx, x);
    if (on_card) lk_card_age(pass);
    lk_graph_enter(g, LK_ON_CPU);
    x = lk_graph_use(g, x);
    if (last)
        g->logits = x;
    else
        g->x_out = x;
    ggml_set_output(x);
    ggml_build_forward_expand(g->graph, x);
    ggml_build_forward_expand(g->graph, lk_graph_effect(g->ctx, age_node, &x, 1, pass));
    status = lk_graph_finish(g, pass->ledger, err);
    if (!status) status = lk_graph_reserve_work(g, pass->model, err);
    if (status) return status;
    g->n_tok = n_row;
    g->n_out = n_out;
    g->needs_scores = needs_scores;
    g->divided = divided;
    g->on_card = on_card;
    bind_sequences(pass);
    return LK_OK;
}
