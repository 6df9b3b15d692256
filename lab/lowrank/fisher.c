/* Gradients of the key and value projections by ggml. */
#include "lowrank/fisher.h"

#include "base/cxx_call.h"
#include "lowkey_lab.h"

#include <math.h>
#include <string.h>

static size_t fisher_bytes(const struct lk_fisher *f) {
    return (size_t)f->n_layer * 2 * f->n_row * f->n_in * sizeof(float);
}

static float *squares_of(const struct lk_fisher *f, int layer, enum lk_side side) {
    return f->square + ((size_t)layer * 2 + side) * f->n_row * f->n_in;
}

/* ggml_build_backward_expand aborts on anything it does not know: reject that here. */
lk_status lk_fisher_check(const struct lk_net *net, lk_err *err) {
    static const char *const supported[] = {"llama", "qwen2", "qwen3"};
    bool found = false;
    for (size_t i = 0; i < sizeof supported / sizeof *supported; i++)
        found |= strcmp(net->arch, supported[i]) == 0;
    if (!found || net->hp.n_expert > 0 || net->hp.logit_softcap != 0 ||
        net->hp.alibi_max_bias != 0 || net->hp.n_swa != 0)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "%s models cannot be differentiated by ggml (llama, qwen2 and qwen3 can); "
                       "use another --rank-search",
                       net->arch);
    for (int i = 0; i < net->hp.n_layer; i++) {
        const struct lk_layer *l = &net->layer[i];
        const struct ggml_tensor *matrix[] = {
            l->wq, l->wk, l->wv, l->wqkv, l->wo, l->ffn_gate, l->ffn_up, l->ffn_down, net->output};
        for (size_t m = 0; m < sizeof matrix / sizeof *matrix; m++)
            if (matrix[m] && matrix[m]->type != GGML_TYPE_F32)
                return lk_fail(err, LK_E_UNSUPPORTED,
                               "gradients need weights in f32; open the model with --weights f32");
    }
    return LK_OK;
}

lk_status lk_fisher_new(struct lk_fisher *f, struct lk_model *model, struct lk_ledger *ledger,
                        lk_err *err) {
    const struct lk_hparams *hp = &model->net->hp;
    lk_status status = lk_fisher_check(model->net, err);
    if (status) return status;
    *f = (struct lk_fisher){.ledger = ledger,
                            .n_layer = hp->n_layer,
                            .n_head_kv = hp->n_head_kv,
                            .n_row = hp->n_head_kv * hp->d_head,
                            .n_in = hp->n_embd};
    f->square = lk_alloc(ledger, LK_FOR_SCRATCH, fisher_bytes(f));
    return f->square
               ? LK_OK
               : lk_fail(err, LK_E_NOMEM, "no memory for the gradients of %d layers", hp->n_layer);
}

void lk_fisher_free(struct lk_fisher *f) {
    lk_release(f->ledger, LK_FOR_SCRATCH, f->square, fisher_bytes(f));
    f->square = NULL;
}

/* ---- the graph ---- */

struct fisher_graph {
    struct lk_graph g;
    const struct lk_net *net;
    int n, n_node;                            /* tokens of a window; capacity */
    struct ggml_tensor *mask, *labels, *loss; /* labels: [n][n_vocab] one-hot */
};

/* Plain causal attention over the window: [n][n_head * d_head]. */
static struct ggml_tensor *causal_attention(const struct lk_net *net, struct ggml_context *ctx,
                                            const struct lk_qkv *p, struct ggml_tensor *mask) {
    struct ggml_tensor *q = ggml_permute(ctx, p->q, 0, 2, 1, 3),
                       *k = ggml_permute(ctx, p->k, 0, 2, 1, 3);
    struct ggml_tensor *v = ggml_cont(ctx, ggml_permute(ctx, p->v, 1, 2, 0, 3));
    struct ggml_tensor *weight =
        ggml_soft_max_ext(ctx, ggml_mul_mat(ctx, k, q), mask, net->hp.attn_scale, 0);
    struct ggml_tensor *out = ggml_permute(ctx, ggml_mul_mat(ctx, v, weight), 0, 2, 1, 3);
    return ggml_cont_2d(ctx, out, (int64_t)net->hp.n_head * net->hp.d_head, p->q->ne[2]);
}

/* The tensor that holds the projection of one side, and its first row there. */
static struct ggml_tensor *projection_of(const struct lk_net *net, int layer, enum lk_side side,
                                         int64_t *first) {
    const struct lk_layer *l = &net->layer[layer];
    *first = l->wqkv ? (int64_t)net->hp.d_head *
                           (net->hp.n_head + (side == LK_V ? net->hp.n_head_kv : 0))
                     : 0;
    return l->wqkv ? l->wqkv : side == LK_K ? l->wk : l->wv;
}

/* Set or clear the flag of the projections that makes ggml differentiate with respect to them. */
static void set_param_flags(const struct lk_net *net, bool on) {
    for (int layer = 0; layer < net->hp.n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            int64_t first;
            struct ggml_tensor *w = projection_of(net, layer, side, &first);
            if (on)
                ggml_set_param(w);
            else
                w->flags &= ~GGML_TENSOR_FLAG_PARAM;
        }
}

static void build_forward(struct fisher_graph *p) {
    struct lk_graph *g = &p->g;
    const struct lk_net *net = p->net;
    int n = p->n;
    g->tok = ggml_new_tensor_1d(g->ctx, GGML_TYPE_I32, n);
    g->pos = ggml_new_tensor_1d(g->ctx, GGML_TYPE_I32, n);
    p->mask = ggml_new_tensor_2d(g->ctx, GGML_TYPE_F32, n, n);
    p->labels = ggml_new_tensor_2d(g->ctx, GGML_TYPE_F32, net->hp.n_vocab, n);
    struct ggml_tensor *input[] = {g->tok, g->pos, p->mask, p->labels};
    for (size_t i = 0; i < sizeof input / sizeof *input; i++) ggml_set_input(input[i]);
    struct ggml_tensor *x = net->family->embed(net, g->ctx, g->tok, g->pos);
    for (int layer = 0; layer < net->hp.n_layer; layer++) {
        struct lk_qkv pre = net->family->pre(net, g->ctx, layer, x, g->pos);
        x = net->family->post(net, g->ctx, layer, &pre,
                              causal_attention(net, g->ctx, &pre, p->mask));
    }
    p->loss = ggml_cross_entropy_loss(g->ctx, net->family->head(net, g->ctx, x), p->labels);
    ggml_set_loss(p->loss);
    ggml_set_output(p->loss);
    ggml_build_forward_expand(g->graph, p->loss);
}

/* Forward, backward and sums of gradients. May throw. */
static void add_nodes(void *arg) {
    struct fisher_graph *p = arg;
    set_param_flags(p->net, true);
    build_forward(p);
    ggml_build_backward_expand(p->g.ctx, p->g.graph, NULL);
    for (int layer = 0; layer < p->net->hp.n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            int64_t first;
            ggml_set_output(
                ggml_graph_get_grad(p->g.graph, projection_of(p->net, layer, side, &first)));
        }
    /* An input, so that its value, 1, is not overwritten before the backward part. */
    ggml_set_input(ggml_graph_get_grad_acc(p->g.graph, p->loss));
}

static lk_status build_graph(struct fisher_graph *p, struct lk_ledger *ledger, lk_err *err) {
    p->n_node = 4 * (p->net->hp.n_layer * (LK_LAYER_NODES + 16) + 64);
    p->g.grads = true;
    lk_status status = lk_graph_begin(&p->g, 2 * p->n_node, ledger, err);
    if (!status) status = lk_cxx_call(add_nodes, p, err);
    return status ? status : lk_graph_finish(&p->g, ledger, err);
}

/* ---- windows ---- */

/* Set the inputs: window tok[0..n) with labels tok[1..n]. The first token becomes the
 * begin-of-sequence token, if the model has one. */
static void set_window(struct fisher_graph *p, const struct lk_model *model, const int32_t *tok,
                       int n) {
    int64_t n_vocab = p->labels->ne[0];
    float *label = memset(p->labels->data, 0, ggml_nbytes(p->labels)), *mask = p->mask->data;
    memcpy(p->g.tok->data, tok, n * sizeof *tok);
    lk_compare_set_bos(model, p->g.tok->data);
    lk_graph_set_positions(&p->g, 0, 0, n);
    for (int i = 0; i < n; i++) {
        label[i * n_vocab + tok[i + 1]] = 1;
        for (int j = 0; j < n; j++) mask[(size_t)i * n + j] = j <= i ? 0 : -INFINITY;
    }
}

static void add_squares(struct lk_fisher *f, const struct fisher_graph *p,
                        const struct lk_net *net) {
    for (int layer = 0; layer < f->n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            int64_t first;
            struct ggml_tensor *grad =
                ggml_graph_get_grad(p->g.graph, projection_of(net, layer, side, &first));
            const float *g = (const float *)grad->data + first * f->n_in;
            float *square = squares_of(f, layer, side);
            for (size_t i = 0; i < (size_t)f->n_row * f->n_in; i++) square[i] += g[i] * g[i];
        }
    f->n++;
}

lk_status lk_fisher_add(struct lk_fisher *f, struct lk_model *model,
                        const struct lk_fisher_text *text, double *loss, lk_err *err) {
    size_t n_tok = text->n_tok;
    int n_ctx = text->n_ctx;
    size_t n_window = n_tok > 1 ? (n_tok - 1) / n_ctx : 0;
    double sum = 0;
    if (n_ctx < 2 || n_ctx > model->net->hp.n_ctx_train)
        return lk_fail(err, LK_E_ARG,
                       "windows for gradients must have between 2 and %d tokens, not %d",
                       model->net->hp.n_ctx_train, n_ctx);
    if (n_window == 0)
        return lk_fail(err, LK_E_ARG, "the text has %zu tokens; gradients need at least %d", n_tok,
                       n_ctx + 1);
    struct fisher_graph p = {.net = model->net, .n = n_ctx};
    lk_status status = build_graph(&p, f->ledger, err);
    for (size_t i = 0; !status && i < n_window; i++) {
        set_window(&p, model, text->tok + i * n_ctx, n_ctx);
        ggml_graph_reset(p.g.graph);
        status = lk_graph_run(&p.g, model, err);
        if (status) break;
        add_squares(f, &p, model->net);
        sum += *(const float *)p.loss->data;
        if (text->progress && !text->progress(text->user, (i + 1) * n_ctx, n_window * n_ctx))
            status = lk_fail(err, LK_E_CANCELLED, "cancelled while computing gradients");
    }
    set_param_flags(model->net, false);
    lk_graph_free(&p.g, f->ledger);
    if (!status && loss) *loss = sum / (double)n_window;
    return status;
}

double lk_fisher_score(const struct lk_fisher *f, int layer, enum lk_side side, int first, int n) {
    size_t each = (size_t)f->n_row / f->n_head_kv * f->n_in, count = n * each;
    const float *square = squares_of(f, layer, side) + first * each;
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += square[i] / (double)f->n;
    return sum;
}
