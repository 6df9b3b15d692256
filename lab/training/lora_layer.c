/* One layer, forward and backward. ggml's shapes are [fastest, ...]; comments have C order. */
#include "training/lora_layer.h"

#include "model/blocks.h"

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

static struct ggml_tensor *external(struct nodes *n, const void *data, enum ggml_type type,
                                    int64_t ne0, int64_t ne1) {
    struct ggml_tensor *t = ggml_new_tensor_2d(n->ctx, type, ne0, ne1);
    t->data = (void *)data;
    return t;
}

static struct ggml_tensor *external_f32(struct nodes *n, const float *data, int64_t ne0,
                                        int64_t ne1) {
    return external(n, data, GGML_TYPE_F32, ne0, ne1);
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
    if (s->pre) x = lk_apply_rope(n->net, n->ctx, n->l->layer, x, n->pos);
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
    l->q = lk_apply_rope(n->net, n->ctx, l->layer, q, n->pos);
    l->exact[LK_K] = lk_apply_rope(n->net, n->ctx, l->layer, k, n->pos);
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
    int layer = n->l->layer;
    struct ggml_tensor *exact = tokens_first(n, d, 0), *body = tokens_first(n, d, n->l->net->n_tok);
    if (side == LK_V) return ggml_add(ctx, exact, through_basis_back(n, s, body));
    if (!s->pre)
        return lk_apply_rope_back(n->net, ctx, layer,
                                  ggml_add(ctx, exact, through_basis_back(n, s, body)), n->pos);
    body = through_basis_back(n, s, lk_apply_rope_back(n->net, ctx, layer, body, n->pos));
    return ggml_add(ctx, lk_apply_rope_back(n->net, ctx, layer, exact, n->pos), body);
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
    dq = norm_back(n, lk_apply_rope_back(n->net, ctx, n->l->layer, dq, n->pos), n->raw[0],
                   n->w->q_norm);
    dk = norm_back(n, rows_back(n, LK_K, dk), n->raw[1], n->w->k_norm);
    dv = rows_back(n, LK_V, dv);
    struct ggml_tensor *ht = transposed(n, n->h), *dh;
    dh = project_back(n, LK_ADAPT_Q, ht, ggml_reshape_2d(ctx, dq, n_q, n_tok), NULL, through);
    dh = project_back(n, LK_ADAPT_K, ht, ggml_reshape_2d(ctx, dk, n_kv, n_tok), dh, through);
    dh = project_back(n, LK_ADAPT_V, ht, ggml_reshape_2d(ctx, dv, n_kv, n_tok), dh, through);
    if (!through) return NULL;
    return ggml_rms_norm_back(ctx, ggml_mul(ctx, dh, n->w->attn_norm), n->x, hp->norm_eps);
}

/* ---- passes ---- */

static void keep_rows(struct nodes *n) {
    keep(n, n->l->q);
    for (int side = 0; side < 2; side++) {
        keep(n, n->l->exact[side]);
        keep(n, n->l->body[side]);
    }
}

void lk_lora_layer_build(struct lk_lora_layer *l, struct lk_graph *g) {
    struct lk_lora_net *net = l->net;
    int64_t n_tok = net->n_tok, n_embd = net->model->net->hp.n_embd;
    struct nodes n = {.l = l,
                      .g = g,
                      .ctx = g->ctx,
                      .net = net->model->net,
                      .w = &net->model->net->layer[l->layer],
                      .student = l->pass != LK_LORA_TEACH};
    n.x = external_f32(&n, l->x, n_embd, n_tok);
    n.pos = external(&n, net->pos, GGML_TYPE_I32, n_tok, 1);
    n.mask = n.student ? external_f32(&n, net->mask, 2 * n_tok, n_tok)
                       : external_f32(&n, net->causal, n_tok, n_tok);
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
