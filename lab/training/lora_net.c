/* Adapters in training: one layer as graphs, memory, and steps. */
#include "training/lora_net.h"

#include "attention/attn_item.h"
#include "base/cxx_call.h"
#include "base/hash.h"
#include "engine/adapters.h"
#include "model/blocks.h"
#include "model/net.h"
#include "training/descent.h"
#include "training/less_net.h"

#include <math.h>
#include <string.h>

/* ---- one layer; ggml's shapes are [fastest, ...], comments have C order ---- */

/* The graph of one layer with adapters and a lossy cache, and its gradient (lora_net.h). */
enum lk_lora_pass {
    LK_LORA_TEACH,    /* exact rows, no adapters: attn, out */
    LK_LORA_ROWS,     /* q, exact and body rows without delta */
    LK_LORA_FORWARD,  /* out */
    LK_LORA_BACKWARD, /* dx, da, db from dy */
    LK_LORA_MATCH,    /* loss, da, db for the target dy of attention */
};

/* Tensors are valid until the graph's next use. */
struct lk_lora_layer {
    struct lk_lora_net *net;
    enum lk_lora_pass pass;
    int layer;
    const float *x, *dy; /* [n_tok][n_embd] */
    float norm;          /* of LK_LORA_MATCH: the gradient is that of norm * loss */

    struct ggml_tensor *q;                      /* [n_tok][n_head][d_head] after RoPE */
    struct ggml_tensor *exact[2], *body[2];     /* [n_tok][n_head_kv][d_head], K after RoPE */
    struct ggml_tensor *attn, *out, *loss, *dx; /* loss: |attn - target|^2 */
    struct ggml_tensor *da[LK_N_ADAPTED], *db[LK_N_ADAPTED]; /* as A and B */
};

/* What the gradient needs of the forward pass. */
struct nodes {
    struct lk_lora_layer *l;
    struct lk_graph *g;
    struct ggml_context *ctx;
    const struct lk_net *net;
    const struct lk_layer *w;
    struct ggml_tensor *x, *pos;
    struct ggml_tensor *h;                              /* normed x */
    struct ggml_tensor *mid[LK_N_ADAPTED];              /* A times the projection's input */
    struct ggml_tensor *raw[2];                         /* q and k before their norm and RoPE */
    struct ggml_tensor *side[2], *mask;                 /* rows of K and V: all that are seen */
    struct ggml_tensor *q, *weight;                     /* [n_head][n][d], softmax [n_head][n][m] */
    struct ggml_tensor *o;                              /* [n][n_head * d_head] */
    struct ggml_tensor *y, *h2, *gate, *up, *silu_gate; /* of the feed-forward part */
    bool student;
};

static struct ggml_tensor *transposed(struct nodes *n, struct ggml_tensor *t) {
    return ggml_cont(n->ctx, ggml_transpose(n->ctx, t));
}

/* A tensor whose memory is the caller's. */
static struct ggml_tensor *external(struct ggml_context *ctx, const void *data, enum ggml_type type,
                                    int64_t ne0, int64_t ne1) {
    struct ggml_tensor *t = ggml_new_tensor_2d(ctx, type, ne0, ne1);
    t->data = (void *)data;
    return t;
}

static struct ggml_tensor *external_f32(struct nodes *n, const float *data, int64_t ne0,
                                        int64_t ne1) {
    return external(n->ctx, data, GGML_TYPE_F32, ne0, ne1);
}

static struct ggml_tensor *keep(struct nodes *n, struct ggml_tensor *t) {
    ggml_set_output(t);
    ggml_build_forward_expand(n->g->graph, t);
    return t;
}

/* ---- projections ---- */

/* The weight of a projection, and its bias or NULL: separate, or rows of one matrix. */
static struct ggml_tensor *weight_of(struct nodes *n, enum lk_adapted which,
                                     struct ggml_tensor **bias) {
    const struct lk_layer *w = n->w;
    struct ggml_tensor *const own[] = {w->wq, w->wk, w->wv, w->wo}, *const own_bias[] = {
                                                                        w->bq, w->bk, w->bv, w->bo};
    *bias = own_bias[which];
    if (which == LK_ADAPT_O || !w->wqkv) return own[which];
    int64_t n_q = (int64_t)n->net->hp.n_head * n->net->hp.d_head,
            n_kv = (int64_t)n->net->hp.n_head_kv * n->net->hp.d_head,
            first = which == LK_ADAPT_Q   ? 0
                    : which == LK_ADAPT_K ? n_q
                                          : n_q + n_kv,
            rows = which == LK_ADAPT_Q ? n_q : n_kv;
    if (w->bqkv) *bias = ggml_view_1d(n->ctx, w->bqkv, rows, (size_t)first * sizeof(float));
    return ggml_view_2d(n->ctx, w->wqkv, w->wqkv->ne[0], rows, w->wqkv->nb[1],
                        (size_t)first * w->wqkv->nb[1]);
}

static struct ggml_tensor *factor(struct nodes *n, enum lk_adapted which, char part) {
    const struct lk_lora_net *net = n->l->net;
    const struct lk_lora_param *p = &net->param[n->l->layer][which];
    return part == 'a' ? external_f32(n, net->weight + p->a, p->n_in, net->rank)
                       : external_f32(n, net->weight + p->b, net->rank, p->n_out);
}

/* W x + bias + scale B A x */
static struct ggml_tensor *project(struct nodes *n, enum lk_adapted which, struct ggml_tensor *x) {
    struct ggml_tensor *bias, *w = weight_of(n, which, &bias), *y = ggml_mul_mat(n->ctx, w, x);
    if (bias) y = ggml_add(n->ctx, y, bias);
    if (!n->student) return y;
    n->mid[which] =
        ggml_scale(n->ctx, ggml_mul_mat(n->ctx, factor(n, which, 'a'), x), n->l->net->scale);
    return ggml_add(n->ctx, y, ggml_mul_mat(n->ctx, factor(n, which, 'b'), n->mid[which]));
}

/* The gradient with respect to x, from dy. Those of A and B become outputs. `xt` and `add`: x
 * transposed, and what is added to the result, or NULL. The result is NULL unless `through`. */
static struct ggml_tensor *project_back(struct nodes *n, enum lk_adapted which,
                                        struct ggml_tensor *xt, struct ggml_tensor *dy,
                                        struct ggml_tensor *add, bool through) {
    struct ggml_context *ctx = n->ctx;
    struct lk_lora_layer *l = n->l;
    struct ggml_tensor *bias, *w = weight_of(n, which, &bias), *a = factor(n, which, 'a'),
                              *b = factor(n, which, 'b');
    struct ggml_tensor *d_mid =
        ggml_scale(ctx, ggml_mul_mat(ctx, transposed(n, b), dy), l->net->scale);
    l->db[which] = keep(n, ggml_mul_mat(ctx, transposed(n, n->mid[which]), transposed(n, dy)));
    l->da[which] = keep(n, ggml_mul_mat(ctx, xt, transposed(n, d_mid)));
    if (!through) return NULL;
    struct ggml_tensor *dx = ggml_add(ctx, ggml_mul_mat(ctx, transposed(n, w), dy),
                                      ggml_mul_mat(ctx, transposed(n, a), d_mid));
    return add ? ggml_add(ctx, dx, add) : dx;
}

/* ---- positions ---- */

/* x [n][heads][d_head] after RoPE, if the model has it. */
static struct ggml_tensor *rotated(struct nodes *n, struct ggml_tensor *x) {
    return n->net->hp.rope_mode < 0 ? x : lk_apply_rope(n->net, n->ctx, n->l->layer, x, n->pos);
}

static struct ggml_tensor *rotated_back(struct nodes *n, struct ggml_tensor *dy) {
    return n->net->hp.rope_mode < 0 ? dy
                                    : lk_apply_rope_back(n->net, n->ctx, n->l->layer, dy, n->pos);
}

/* ---- rows of the body ---- */

/* P x + c of rows [n][n_head_kv][d_head]; x without a projection. */
static struct ggml_tensor *through_basis(struct nodes *n, const struct lk_lora_side *side,
                                         struct ggml_tensor *x) {
    int64_t d = x->ne[0], heads = x->ne[1], n_tok = x->ne[2], n_row = d * heads;
    if (!side->p) return x;
    x = ggml_mul_mat(n->ctx, external_f32(n, side->p, n_row, n_row),
                     ggml_reshape_2d(n->ctx, x, n_row, n_tok));
    x = ggml_add(n->ctx, x, external_f32(n, side->c, n_row, 1));
    return ggml_reshape_3d(n->ctx, x, d, heads, n_tok);
}

static struct ggml_tensor *through_basis_back(struct nodes *n, const struct lk_lora_side *side,
                                              struct ggml_tensor *dy) {
    int64_t d = dy->ne[0], heads = dy->ne[1], n_tok = dy->ne[2], n_row = d * heads;
    if (!side->p) return dy;
    dy = ggml_mul_mat(n->ctx, transposed(n, external_f32(n, side->p, n_row, n_row)),
                      ggml_reshape_2d(n->ctx, dy, n_row, n_tok));
    return ggml_reshape_3d(n->ctx, dy, d, heads, n_tok);
}

static const struct lk_lora_side *side_of(const struct nodes *n, enum lk_side side) {
    return &n->l->net->cache->side[n->l->layer][side];
}

/* Rows of one side as the cache's body has them, from k or v before RoPE, and k after RoPE. */
static struct ggml_tensor *body_rows(struct nodes *n, enum lk_side side, struct ggml_tensor *pre,
                                     struct ggml_tensor *rows) {
    const struct lk_lora_side *s = side_of(n, side);
    const struct lk_lora_net *net = n->l->net;
    int64_t n_row = rows->ne[0] * rows->ne[1];
    struct ggml_tensor *x = through_basis(n, s, s->pre ? pre : rows);
    if (s->pre) x = rotated(n, x);
    if (!net->delta || !s->lossy || n->l->pass == LK_LORA_ROWS) return x;
    const float *delta =
        net->delta + ((size_t)n->l->layer * 2 + side) * (size_t)net->n_tok * (size_t)n_row;
    struct ggml_tensor *d = external_f32(n, delta, n_row, net->n_tok);
    return ggml_add(n->ctx, x, ggml_reshape_3d(n->ctx, d, rows->ne[0], rows->ne[1], net->n_tok));
}

/* ---- forward ---- */

static struct ggml_tensor *heads_first(struct nodes *n, struct ggml_tensor *x) {
    return ggml_cont(n->ctx, ggml_permute(n->ctx, x, 0, 2, 1, 3));
}

static struct ggml_tensor *split_heads(struct nodes *n, struct ggml_tensor *x) {
    int64_t d = n->net->hp.d_head;
    return ggml_reshape_3d(n->ctx, x, d, x->ne[0] / d, x->ne[1]);
}

static struct ggml_tensor *maybe_norm(struct nodes *n, struct ggml_tensor *x,
                                      struct ggml_tensor *norm) {
    return norm ? lk_rms_norm(n->ctx, x, norm, n->net->hp.norm_eps) : x;
}

/* q, and the rows that attention sees. */
static void build_rows(struct nodes *n) {
    struct lk_lora_layer *l = n->l;
    n->h = lk_rms_norm(n->ctx, n->x, n->w->attn_norm, n->net->hp.norm_eps);
    n->raw[0] = split_heads(n, project(n, LK_ADAPT_Q, n->h));
    n->raw[1] = split_heads(n, project(n, LK_ADAPT_K, n->h));
    l->exact[LK_V] = split_heads(n, project(n, LK_ADAPT_V, n->h));
    struct ggml_tensor *q = maybe_norm(n, n->raw[0], n->w->q_norm),
                       *k = maybe_norm(n, n->raw[1], n->w->k_norm);
    l->q = rotated(n, q);
    l->exact[LK_K] = rotated(n, k);
    n->q = heads_first(n, l->q);
    for (int side = 0; side < 2; side++) {
        n->side[side] = heads_first(n, l->exact[side]);
        if (!n->student) continue;
        l->body[side] =
            body_rows(n, (enum lk_side)side, side == LK_K ? k : l->exact[side], l->exact[side]);
        n->side[side] = ggml_concat(n->ctx, n->side[side], heads_first(n, l->body[side]), 1);
    }
}

static void build_attention(struct nodes *n) {
    struct ggml_context *ctx = n->ctx;
    int64_t n_tok = n->l->net->n_tok;
    struct ggml_tensor *score = ggml_mul_mat(ctx, n->side[LK_K], n->q);
    n->weight = ggml_soft_max_ext(ctx, score, n->mask, n->net->hp.attn_scale, 0);
    struct ggml_tensor *v =
        ggml_cont(ctx, ggml_permute(ctx, n->side[LK_V], 1, 0, 2, 3)); /* [n_head_kv][d][m] */
    struct ggml_tensor *o = heads_first(n, ggml_mul_mat(ctx, v, n->weight));
    n->o = ggml_reshape_2d(ctx, o, (int64_t)n->net->hp.n_head * n->net->hp.d_head, n_tok);
    n->l->attn = project(n, LK_ADAPT_O, n->o);
}

static void build_feed_forward(struct nodes *n) {
    const struct lk_layer *w = n->w;
    struct ggml_context *ctx = n->ctx;
    n->y = ggml_add(ctx, n->x, n->l->attn);
    n->h2 = lk_rms_norm(ctx, n->y, w->ffn_norm, n->net->hp.norm_eps);
    n->gate = lk_linear(n->net, ctx, w->ffn_gate, w->ffn_gate_b, NULL, n->h2);
    n->up = lk_linear(n->net, ctx, w->ffn_up, w->ffn_up_b, NULL, n->h2);
    n->silu_gate = ggml_silu(ctx, n->gate);
    n->l->out = lk_linear(n->net, ctx, w->ffn_down, w->ffn_down_b, n->y,
                          ggml_mul(ctx, n->silu_gate, n->up));
}

/* ---- backward ---- */

/* dy of the layer's output -> d of y */
static struct ggml_tensor *feed_forward_back(struct nodes *n, struct ggml_tensor *dy) {
    const struct lk_layer *w = n->w;
    struct ggml_context *ctx = n->ctx;
    struct ggml_tensor *d_mul = ggml_mul_mat(ctx, transposed(n, w->ffn_down), dy),
                       *d_up = ggml_mul(ctx, d_mul, n->silu_gate),
                       *d_gate = ggml_silu_back(ctx, ggml_mul(ctx, d_mul, n->up), n->gate);
    struct ggml_tensor *dh = ggml_add(ctx, ggml_mul_mat(ctx, transposed(n, w->ffn_up), d_up),
                                      ggml_mul_mat(ctx, transposed(n, w->ffn_gate), d_gate));
    dh = ggml_mul(ctx, dh, w->ffn_norm);
    return ggml_add(ctx, dy, ggml_rms_norm_back(ctx, dh, n->y, n->net->hp.norm_eps));
}

/* Rows [first, first + n) of each head of x [n_head_kv][m][d], as [n][n_head_kv][d]. */
static struct ggml_tensor *tokens_first(struct nodes *n, struct ggml_tensor *x, int64_t first) {
    int64_t n_tok = n->l->net->n_tok;
    struct ggml_tensor *part = ggml_view_3d(n->ctx, x, x->ne[0], n_tok, x->ne[2], x->nb[1],
                                            x->nb[2], (size_t)first * x->nb[1]);
    return ggml_cont(n->ctx, ggml_permute(n->ctx, part, 0, 2, 1, 3));
}

/* The sum over the query heads of a group and their tokens of outer products: left [n_head][n][a],
 * right [n_head][n][b] -> [n_head_kv][b][a]. */
static struct ggml_tensor *outer(struct nodes *n, struct ggml_tensor *left,
                                 struct ggml_tensor *right) {
    int64_t heads = n->net->hp.n_head_kv, group = left->ne[2] / heads;
    struct ggml_tensor *t[2] = {left, right};
    for (int i = 0; i < 2; i++)
        t[i] =
            transposed(n, ggml_reshape_3d(n->ctx, t[i], t[i]->ne[0], t[i]->ne[1] * group, heads));
    return ggml_mul_mat(n->ctx, t[0], t[1]);
}

/* The gradient with respect to rows of one side before RoPE, from that of all rows that attention
 * sees, d [n_head_kv][2 n][d]. */
static struct ggml_tensor *rows_back(struct nodes *n, enum lk_side side, struct ggml_tensor *d) {
    struct ggml_context *ctx = n->ctx;
    const struct lk_lora_side *s = side_of(n, side);
    struct ggml_tensor *exact = tokens_first(n, d, 0), *body = tokens_first(n, d, n->l->net->n_tok);
    if (side == LK_V) return ggml_add(ctx, exact, through_basis_back(n, s, body));
    if (!s->pre) return rotated_back(n, ggml_add(ctx, exact, through_basis_back(n, s, body)));
    body = through_basis_back(n, s, rotated_back(n, body));
    return ggml_add(ctx, rotated_back(n, exact), body);
}

static struct ggml_tensor *norm_back(struct nodes *n, struct ggml_tensor *dy, struct ggml_tensor *x,
                                     struct ggml_tensor *norm) {
    if (!norm) return dy;
    return ggml_rms_norm_back(n->ctx, ggml_mul(n->ctx, dy, norm), x, n->net->hp.norm_eps);
}

/* d of the attention block's output -> d of x through the projections; NULL unless `through`. */
static struct ggml_tensor *attention_back(struct nodes *n, struct ggml_tensor *da, bool through) {
    struct ggml_context *ctx = n->ctx;
    const struct lk_hparams *hp = &n->net->hp;
    int64_t n_tok = n->l->net->n_tok, n_q = (int64_t)hp->n_head * hp->d_head,
            n_kv = (int64_t)hp->n_head_kv * hp->d_head;
    struct ggml_tensor *d_o = project_back(n, LK_ADAPT_O, transposed(n, n->o), da, NULL, true);
    d_o = heads_first(n, split_heads(n, d_o)); /* [n_head][n][d] */
    struct ggml_tensor *d_score = ggml_soft_max_ext_back(ctx, ggml_mul_mat(ctx, n->side[LK_V], d_o),
                                                         n->weight, hp->attn_scale, 0);
    struct ggml_tensor *k = ggml_cont(ctx, ggml_permute(ctx, n->side[LK_K], 1, 0, 2, 3));
    struct ggml_tensor *dq = ggml_mul_mat(ctx, k, d_score), *dk = outer(n, n->q, d_score),
                       *dv = outer(n, d_o, n->weight);
    dq = ggml_cont(ctx, ggml_permute(ctx, dq, 0, 2, 1, 3));
    dq = norm_back(n, rotated_back(n, dq), n->raw[0], n->w->q_norm);
    dk = norm_back(n, rows_back(n, LK_K, dk), n->raw[1], n->w->k_norm);
    dv = rows_back(n, LK_V, dv);
    struct ggml_tensor *ht = transposed(n, n->h), *dh;
    dh = project_back(n, LK_ADAPT_Q, ht, ggml_reshape_2d(ctx, dq, n_q, n_tok), NULL, through);
    dh = project_back(n, LK_ADAPT_K, ht, ggml_reshape_2d(ctx, dk, n_kv, n_tok), dh, through);
    dh = project_back(n, LK_ADAPT_V, ht, ggml_reshape_2d(ctx, dv, n_kv, n_tok), dh, through);
    if (!through) return NULL;
    return ggml_rms_norm_back(ctx, ggml_mul(ctx, dh, n->w->attn_norm), n->x, hp->norm_eps);
}

/* ---- masks ---- */

/* Planes of an additive mask: with ALiBi one for each head, else one for all. */
static size_t n_plane(const struct lk_hparams *hp) {
    return hp->alibi_max_bias > 0 ? (size_t)hp->n_head : 1;
}

/* Make the planes of mask [n_plane][n][m] from the first one. Column j is position j % n. */
static void add_alibi(const struct lk_hparams *hp, float *mask, int n, int m) {
    for (size_t h = n_plane(hp); hp->alibi_max_bias > 0 && h-- > 0;) {
        float slope = lk_alibi_slope((int)h, hp->n_head, hp->alibi_max_bias);
        for (int i = 0; i < n; i++)
            for (int j = 0; j < m; j++)
                mask[(h * n + i) * m + j] = mask[(size_t)i * m + j] - slope * (float)(i - j % n);
    }
}

/* [n_plane][n][m] */
static struct ggml_tensor *mask_of(struct nodes *n) {
    const struct lk_lora_net *net = n->l->net;
    int64_t n_tok = net->n_tok, m = n->student ? 2 * n_tok : n_tok,
            planes = (int64_t)n_plane(&n->net->hp);
    struct ggml_tensor *all =
        external_f32(n, n->student ? net->mask : net->causal, m, n_tok * planes);
    return ggml_reshape_3d(n->ctx, all, m, n_tok, planes);
}

/* ---- passes ---- */

static void keep_rows(struct nodes *n) {
    keep(n, n->l->q);
    for (int side = 0; side < 2; side++) {
        keep(n, n->l->exact[side]);
        keep(n, n->l->body[side]);
    }
}

/* Create the nodes of the pass in g, which is empty. May throw. */
static void lora_layer_build(struct lk_lora_layer *l, struct lk_graph *g) {
    struct lk_lora_net *net = l->net;
    int64_t n_tok = net->n_tok, n_embd = net->model->net->hp.n_embd;
    struct nodes n = {.l = l,
                      .g = g,
                      .ctx = g->ctx,
                      .net = net->model->net,
                      .w = &net->model->net->layer[l->layer],
                      .student = l->pass != LK_LORA_TEACH};
    n.x = external_f32(&n, l->x, n_embd, n_tok);
    n.pos = external(n.ctx, net->pos, GGML_TYPE_I32, n_tok, 1);
    n.mask = mask_of(&n);
    build_rows(&n);
    if (l->pass == LK_LORA_ROWS) {
        keep_rows(&n);
        return;
    }
    build_attention(&n);
    if (l->pass == LK_LORA_MATCH) {
        struct ggml_tensor *error =
            ggml_sub(n.ctx, l->attn, external_f32(&n, l->dy, n_embd, n_tok));
        l->loss = keep(&n, ggml_sum(n.ctx, ggml_sqr(n.ctx, error)));
        attention_back(&n, ggml_scale(n.ctx, error, 2 * l->norm), false);
        return;
    }
    build_feed_forward(&n);
    if (l->pass == LK_LORA_TEACH) keep(&n, l->attn);
    if (l->pass != LK_LORA_BACKWARD) {
        keep(&n, l->out);
        return;
    }
    struct ggml_tensor *dy = feed_forward_back(&n, external_f32(&n, l->dy, n_embd, n_tok));
    l->dx = keep(&n, ggml_add(n.ctx, dy, attention_back(&n, dy, true)));
}

enum {
    GRAPH_NODES = 512,
    VOCAB_SLICE = 8192, /* rows of the output matrix that are transposed at a time */
    HEAD_TOKENS = 256,  /* tokens whose logits exist at a time */
};

lk_status lk_lora_check(const struct lk_net *net, lk_err *err) {
    static const char *const supported[] = {"llama", "qwen2", "qwen3", "refact"};
    bool found = false;
    for (size_t i = 0; i < sizeof supported / sizeof *supported; i++)
        found |= strcmp(net->arch, supported[i]) == 0;
    if (!found || net->hp.n_expert > 0 || net->hp.logit_softcap != 0)
        return lk_fail(
            err, LK_E_UNSUPPORTED,
            "adapters can be trained for llama, qwen2, qwen3 and refact models, not for %s",
            net->arch);
    for (int i = 0; i < net->hp.n_layer; i++) {
        const struct lk_layer *l = &net->layer[i];
        const struct ggml_tensor *matrix[] = {
            l->wq, l->wk, l->wv, l->wqkv, l->wo, l->ffn_gate, l->ffn_up, l->ffn_down, net->output};
        bool f32 = !l->ffn_gate_up;
        for (size_t m = 0; m < sizeof matrix / sizeof *matrix; m++)
            f32 = f32 && (!matrix[m] || matrix[m]->type == GGML_TYPE_F32);
        if (!f32)
            return lk_fail(err, LK_E_UNSUPPORTED,
                           "adapters are trained with weights in f32; open the model with "
                           "LK_WEIGHTS_F32 and no_repack");
    }
    return LK_OK;
}

/* ---- memory ---- */

/* One allocation. */
struct buffer {
    void **at;
    size_t bytes;
};

enum { N_BUFFER = 7 };

static void list_buffers(struct lk_lora_net *net, struct buffer buffer[N_BUFFER]) {
    const struct lk_hparams *hp = &net->model->net->hp;
    size_t n = (size_t)net->n_tok, n_row = (size_t)hp->n_head_kv * hp->d_head,
           n_query = (size_t)hp->n_head * hp->d_head, n_layer = (size_t)hp->n_layer;
    bool coded = net->cache->coded;
    const struct buffer all[N_BUFFER] = {
        {(void **)&net->param, n_layer * sizeof *net->param},
        {(void **)&net->weight, 5 * net->n_weight * sizeof(float)},
        {(void **)&net->mask, 2 * n_plane(hp) * n * n * sizeof(float)},
        {(void **)&net->causal, n_plane(hp) * n * n * sizeof(float)},
        {(void **)&net->pos, n * sizeof *net->pos},
        {(void **)&net->delta, coded ? 2 * n_layer * n * n_row * sizeof(float) : 0},
        {(void **)&net->rows, coded ? n * (n_query + 4 * n_row) * sizeof(float) : 0}};
    memcpy(buffer, all, sizeof all);
}

/* Lay out the adapters, and return the number of their weights. `param` may be NULL. */
static size_t place_params(const struct lk_hparams *hp, int rank,
                           struct lk_lora_param (*param)[LK_N_ADAPTED]) {
    size_t at = 0;
    for (int layer = 0; layer < hp->n_layer; layer++)
        for (int i = 0; i < LK_N_ADAPTED; i++) {
            struct lk_lora_param p = {.n_in = lk_adapter_inputs(hp, (enum lk_adapted)i),
                                      .n_out = lk_adapter_outputs(hp, (enum lk_adapted)i),
                                      .a = at};
            p.b = p.a + (size_t)rank * p.n_in;
            at = p.b + (size_t)rank * p.n_out;
            if (param) param[layer][i] = p;
        }
    return at;
}

static lk_status alloc_net(struct lk_lora_net *net, lk_err *err) {
    struct buffer buffer[N_BUFFER];
    net->n_weight = place_params(&net->model->net->hp, net->rank, NULL);
    list_buffers(net, buffer);
    size_t bytes = 0;
    for (int i = 0; i < N_BUFFER; i++) {
        bytes += buffer[i].bytes;
        if (buffer[i].bytes) *buffer[i].at = lk_alloc(net->ledger, LK_FOR_SCRATCH, buffer[i].bytes);
        if (buffer[i].bytes && !*buffer[i].at)
            return lk_fail(err, LK_E_NOMEM, "no memory to train (%.0f MiB)",
                           (double)bytes / (1 << 20));
    }
    net->mean = net->weight + net->n_weight;
    net->square = net->mean + net->n_weight;
    net->best = net->square + net->n_weight; /* lora_state.c saves all up to here */
    net->gradient = net->best + net->n_weight;
    return LK_OK;
}

static void init_weights(struct lk_lora_net *net, uint64_t seed) {
    const struct lk_hparams *hp = &net->model->net->hp;
    for (int i = 0; i < hp->n_layer * LK_N_ADAPTED; i++) {
        const struct lk_lora_param *p = &net->param[i / LK_N_ADAPTED][i % LK_N_ADAPTED];
        float range = 1 / sqrtf((float)p->n_in);
        uint64_t of = lk_splitmix64_nth(seed, (uint64_t)i);
        for (size_t j = 0; j < (size_t)net->rank * p->n_in; j++) {
            float uniform = (float)(lk_splitmix64_nth(of, j) >> 40) / (float)(1 << 24);
            net->weight[p->a + j] = range * (2 * uniform - 1);
        }
    }
}

lk_status lk_lora_net_new(struct lk_lora_net **out, struct lk_model *model,
                          struct lk_lora_cache *cache, int n_tok, int rank, float alpha,
                          uint64_t seed, struct lk_ledger *ledger, lk_err *err) {
    lk_status status = lk_lora_check(model->net, err);
    if (status) return status;
    const struct lk_hparams *hp = &model->net->hp;
    int max_rank = hp->n_head_kv * hp->d_head;
    if (max_rank > hp->n_embd) max_rank = hp->n_embd;
    if (rank < 1 || rank > max_rank || rank > LK_MAX_ADAPTER_RANK)
        return lk_fail(err, LK_E_ARG, "the rank of an adapter of this model is 1 to %d, not %d",
                       max_rank < LK_MAX_ADAPTER_RANK ? max_rank : LK_MAX_ADAPTER_RANK, rank);
    struct lk_lora_net *net = lk_alloc(ledger, LK_FOR_SCRATCH, sizeof *net);
    if (!net) return lk_fail(err, LK_E_NOMEM, "no memory to train");
    *net = (struct lk_lora_net){.model = model,
                                .cache = cache,
                                .ledger = ledger,
                                .n_tok = n_tok,
                                .rank = rank,
                                .scale = alpha / (float)rank};
    status = alloc_net(net, err);
    if (status) {
        lk_lora_net_free(net);
        return status;
    }
    place_params(hp, rank, net->param);
    init_weights(net, seed);
    lk_lora_cache_mask(cache, n_tok, net->mask);
    for (int i = 0; i < n_tok; i++) {
        net->pos[i] = i;
        for (int j = 0; j < n_tok; j++) net->causal[(size_t)i * n_tok + j] = j <= i ? 0 : -INFINITY;
    }
    add_alibi(hp, net->mask, n_tok, 2 * n_tok);
    add_alibi(hp, net->causal, n_tok, n_tok);
    *out = net;
    return LK_OK;
}

void lk_lora_net_free(struct lk_lora_net *net) {
    if (!net) return;
    struct lk_ledger *ledger = net->ledger;
    struct buffer buffer[N_BUFFER];
    lk_graph_free(&net->graph, ledger);
    list_buffers(net, buffer);
    for (int i = 0; i < N_BUFFER; i++)
        lk_release(ledger, LK_FOR_SCRATCH, *buffer[i].at, buffer[i].bytes);
    lk_release(ledger, LK_FOR_SCRATCH, net, sizeof *net);
}

/* ---- graphs ---- */

/* A graph to build and compute. */
struct job {
    struct lk_lora_net *net;
    struct lk_lora_layer layer; /* of layers */
    void (*build)(struct job *);
    const int32_t *tok; /* of embeddings */
    struct ggml_tensor *out;
    /* of the head: tokens, and the last layer's outputs */
    int n;
    const float *teacher, *student;
    bool with_gradient;
    struct ggml_tensor *kl[2], *dx;
};

/* May throw. */
static void build_job(void *arg) {
    struct job *job = arg;
    job->build(job);
}

static lk_status run_job(struct job *job, lk_err *err) {
    struct lk_lora_net *net = job->net;
    lk_status status = lk_graph_begin(&net->graph, GRAPH_NODES, net->ledger, err);
    if (!status) status = lk_cxx_call(build_job, job, err);
    if (!status) status = lk_graph_finish(&net->graph, net->ledger, err);
    return status ? status : lk_graph_run(&net->graph, net->model, err);
}

static struct ggml_tensor *output(struct lk_graph *g, struct ggml_tensor *t) {
    ggml_set_output(t);
    ggml_build_forward_expand(g->graph, t);
    return t;
}

static size_t stream_bytes(const struct lk_lora_net *net) {
    return (size_t)net->n_tok * net->model->net->hp.n_embd * sizeof(float);
}

static void build_embed(struct job *job) {
    struct lk_lora_net *net = job->net;
    struct lk_graph *g = &net->graph;
    struct ggml_tensor *tok = external(g->ctx, job->tok, GGML_TYPE_I32, net->n_tok, 1),
                       *pos = external(g->ctx, net->pos, GGML_TYPE_I32, net->n_tok, 1);
    job->out = output(g, net->model->net->family->embed(net->model->net, g->ctx, tok, pos));
}

lk_status lk_lora_embed(struct lk_lora_net *net, const int32_t *tok, float *x, lk_err *err) {
    struct job job = {.net = net, .build = build_embed, .tok = tok};
    lk_status status = run_job(&job, err);
    if (!status) memcpy(x, job.out->data, stream_bytes(net));
    return status;
}

static void build_layer(struct job *job) { lora_layer_build(&job->layer, &job->net->graph); }

static struct job layer_job(struct lk_lora_net *net, enum lk_lora_pass pass, int layer,
                            const float *x) {
    return (struct job){.net = net,
                        .build = build_layer,
                        .layer = {.net = net, .pass = pass, .layer = layer, .x = x}};
}

lk_status lk_lora_teach(struct lk_lora_net *net, int layer, const float *x, float *attn, float *out,
                        lk_err *err) {
    struct job job = layer_job(net, LK_LORA_TEACH, layer, x);
    lk_status status = run_job(&job, err);
    if (status) return status;
    if (attn) memcpy(attn, job.layer.attn->data, stream_bytes(net));
    memcpy(out, job.layer.out->data, stream_bytes(net));
    return LK_OK;
}

/* What quantization adds to the rows of the body. */
static lk_status measure_delta(struct lk_lora_net *net, int layer, const float *x, lk_err *err) {
    if (!net->delta) return LK_OK;
    const struct lk_hparams *hp = &net->model->net->hp;
    size_t n = (size_t)net->n_tok, n_row = (size_t)hp->n_head_kv * hp->d_head,
           n_query = (size_t)hp->n_head * hp->d_head;
    float *q = net->rows, *k = q + n * n_query, *v = k + n * n_row,
          *delta = net->delta + (size_t)layer * 2 * n * n_row;
    struct job job = layer_job(net, LK_LORA_ROWS, layer, x);
    lk_status status = run_job(&job, err);
    if (status) return status;
    memcpy(q, job.layer.q->data, n * n_query * sizeof *q);
    for (int side = 0; side < 2; side++)
        memcpy(side ? v : k, job.layer.exact[side]->data, n * n_row * sizeof *k);
    status = lk_lora_cache_read(net->cache, layer, q, k, v, net->n_tok, delta, err);
    for (int side = 0; !status && side < 2; side++) {
        const float *body = job.layer.body[side]->data;
        for (size_t i = 0; i < n * n_row; i++) delta[side * n * n_row + i] -= body[i];
    }
    return status;
}

lk_status lk_lora_forward(struct lk_lora_net *net, int layer, const float *x, float *out,
                          lk_err *err) {
    struct job job = layer_job(net, LK_LORA_FORWARD, layer, x);
    lk_status status = measure_delta(net, layer, x, err);
    if (!status) status = run_job(&job, err);
    if (!status) memcpy(out, job.layer.out->data, stream_bytes(net));
    return status;
}

/* Add the gradients of a graph to the net's. */
static void sum_gradients(struct lk_lora_net *net, const struct lk_lora_layer *l, float weight) {
    for (int i = 0; i < LK_N_ADAPTED; i++) {
        const struct lk_lora_param *p = &net->param[l->layer][i];
        const float *da = l->da[i]->data, *db = l->db[i]->data;
        for (size_t j = 0; j < (size_t)net->rank * p->n_in; j++)
            net->gradient[p->a + j] += weight * da[j];
        for (size_t j = 0; j < (size_t)net->rank * p->n_out; j++)
            net->gradient[p->b + j] += weight * db[j];
    }
}

lk_status lk_lora_backward(struct lk_lora_net *net, int layer, const float *x, const float *dy,
                           float *dx, lk_err *err) {
    struct job job = layer_job(net, LK_LORA_BACKWARD, layer, x);
    job.layer.dy = dy;
    lk_status status = run_job(&job, err);
    if (status) return status;
    sum_gradients(net, &job.layer, 1);
    memcpy(dx, job.layer.dx->data, stream_bytes(net));
    return LK_OK;
}

lk_status lk_lora_match(struct lk_lora_net *net, int layer, const float *x, const float *target,
                        float weight, float *loss, lk_err *err) {
    struct job job = layer_job(net, LK_LORA_MATCH, layer, x);
    double power = 0;
    for (size_t i = 0; i < stream_bytes(net) / sizeof(float); i++)
        power += (double)target[i] * target[i];
    job.layer.dy = target;
    job.layer.norm = (float)(1 / (power > 0 ? power : 1));
    lk_status status = measure_delta(net, layer, x, err);
    if (!status) status = run_job(&job, err);
    if (status) return status;
    sum_gradients(net, &job.layer, weight);
    *loss = *(const float *)job.layer.loss->data * job.layer.norm;
    return LK_OK;
}

/* ---- the head ---- */

/* dl [n][n_vocab] times the output matrix: the sum over slices of the vocabulary. */
static struct ggml_tensor *through_output(struct ggml_context *ctx, struct ggml_tensor *w,
                                          struct ggml_tensor *dl) {
    struct ggml_tensor *sum = NULL;
    for (int64_t at = 0; at < w->ne[1]; at += VOCAB_SLICE) {
        int64_t n = w->ne[1] - at < VOCAB_SLICE ? w->ne[1] - at : VOCAB_SLICE;
        struct ggml_tensor *rows =
                               ggml_view_2d(ctx, w, w->ne[0], n, w->nb[1], (size_t)at * w->nb[1]),
                           *part = ggml_view_2d(ctx, dl, n, dl->ne[1], dl->nb[1],
                                                (size_t)at * dl->nb[0]);
        struct ggml_tensor *product =
            ggml_mul_mat(ctx, ggml_cont(ctx, ggml_transpose(ctx, rows)), ggml_cont(ctx, part));
        sum = sum ? ggml_add(ctx, sum, product) : product;
    }
    return sum;
}

static void build_head(struct job *job) {
    struct lk_lora_net *net = job->net;
    const struct lk_net *m = net->model->net;
    struct lk_graph *g = &net->graph;
    int64_t n = job->n, n_embd = m->hp.n_embd;
    struct ggml_tensor *xt = external(g->ctx, job->teacher, GGML_TYPE_F32, n_embd, n),
                       *xs = external(g->ctx, job->student, GGML_TYPE_F32, n_embd, n);
    struct ggml_tensor *lt = m->family->head(m, g->ctx, xt), *ls = m->family->head(m, g->ctx, xs);
    struct ggml_tensor *p = ggml_soft_max(g->ctx, lt);
    job->kl[0] = output(g, ggml_cross_entropy_loss(g->ctx, ls, p));
    job->kl[1] = output(g, ggml_cross_entropy_loss(g->ctx, lt, p));
    if (!job->with_gradient) return;
    struct ggml_tensor *dl = ggml_scale(g->ctx, ggml_sub(g->ctx, ggml_soft_max(g->ctx, ls), p),
                                        1.0f / (float)net->n_tok);
    struct ggml_tensor *dn =
        ggml_mul(g->ctx, through_output(g->ctx, m->output, dl), m->output_norm);
    job->dx = output(g, ggml_rms_norm_back(g->ctx, dn, xs, m->hp.norm_eps));
}

lk_status lk_lora_divergence(struct lk_lora_net *net, const float *teacher, const float *student,
                             double *kl, float *dx, lk_err *err) {
    size_t n_embd = (size_t)net->model->net->hp.n_embd;
    lk_status status = LK_OK;
    *kl = 0;
    for (int at = 0; !status && at < net->n_tok; at += HEAD_TOKENS) {
        struct job job = {.net = net,
                          .build = build_head,
                          .n = net->n_tok - at < HEAD_TOKENS ? net->n_tok - at : HEAD_TOKENS,
                          .teacher = teacher + at * n_embd,
                          .student = student + at * n_embd,
                          .with_gradient = dx != NULL};
        status = run_job(&job, err);
        if (status) break;
        *kl += (double)job.n / net->n_tok *
               ((double)*(float *)job.kl[0]->data - *(float *)job.kl[1]->data);
        if (dx) memcpy(dx + at * n_embd, job.dx->data, job.n * n_embd * sizeof *dx);
    }
    return status;
}

/* ---- steps ---- */

void lk_lora_step(struct lk_lora_net *net, float rate, int64_t nth, int n_window) {
    struct lk_adam adam = {net->weight, net->mean, net->square, net->gradient, net->n_weight};
    lk_adam_step(&adam, rate, nth, n_window);
}
