/* Graph fragments that several families share. */
#include "model/blocks.h"

#include "model/many_tokens.h"
#include "model/q4_1_split.h"

#include <math.h>

struct ggml_tensor *lk_rms_norm(struct ggml_context *ctx, struct ggml_tensor *x,
                                struct ggml_tensor *weight, float eps) {
    return ggml_mul(ctx, ggml_rms_norm(ctx, x, eps), weight);
}

struct ggml_tensor *lk_layer_norm(struct ggml_context *ctx, struct ggml_tensor *x,
                                  struct ggml_tensor *weight, struct ggml_tensor *bias, float eps) {
    x = ggml_mul(ctx, ggml_norm(ctx, x, eps), weight);
    return bias ? ggml_add(ctx, x, bias) : x;
}

/* ggml has no fast batched product for Q4_1 and Q5_1. It multiplies row by row, at less than
 * half the speed of its f32 product (2 cores with AVX-512, 512 tokens: 36 to 44 GMAC/s, f32: 86
 * to 100). */
static bool cast_is_faster(const struct ggml_tensor *weight, int64_t n_tok) {
    const int64_t min_tok = 128, max_elements = 16 << 20;
    if (weight->type != GGML_TYPE_Q4_1 && weight->type != GGML_TYPE_Q5_1) return false;
    return n_tok >= min_tok && ggml_nelements(weight) <= max_elements &&
           ggml_backend_buffer_is_host(weight->buffer);
}

uint64_t lk_linear_scratch_bytes(const struct lk_net *net, int64_t n_tok) {
    uint64_t max_cast = 0, max_input = 0;
    for (int i = 0; i < net->hp.n_layer; i++) {
        const struct lk_layer *l = &net->layer[i];
        const struct ggml_tensor *matrix[] = {
            l->wq,          l->wk,       l->wv,   l->wqkv,  l->wo,       l->ffn_gate, l->ffn_up,
            l->ffn_gate_up, l->ffn_down, l->wq_a, l->wkv_a, l->tok_gate, l->tok_up};
        for (size_t m = 0; m < sizeof matrix / sizeof *matrix; m++) {
            if (!matrix[m]) continue;
            uint64_t cast = cast_is_faster(matrix[m], n_tok)
                                ? (uint64_t)ggml_nelements(matrix[m]) * sizeof(float)
                                : 0,
                     input = lk_many_tokens_bytes(net, matrix[m], n_tok);
            if (cast > max_cast) max_cast = cast;
            if (input > max_input) max_input = input;
        }
    }
    return max_cast + max_input;
}

struct ggml_tensor *lk_linear(const struct lk_net *net, struct ggml_context *ctx,
                              struct ggml_tensor *weight, struct ggml_tensor *bias,
                              struct ggml_tensor *residual, struct ggml_tensor *x) {
    if (cast_is_faster(weight, x->ne[1])) weight = ggml_cast(ctx, weight, GGML_TYPE_F32);
    struct ggml_tensor *offset = lk_q4_1_offset(weight),
                       *y = lk_many_tokens(net, ctx, weight, residual, x);
    bool is_added = y || offset; /* the residual */
    if (!y) {
        y = ggml_mul_mat(ctx, weight, x);
        if (offset) y = lk_q4_1_add_offset(ctx, net->kernels, offset, x, residual, y);
    }
    if (bias) y = ggml_add(ctx, y, bias);
    return residual && !is_added ? ggml_add(ctx, y, residual) : y;
}

struct ggml_tensor *lk_view_heads(struct ggml_context *ctx, struct ggml_tensor *x, int first, int n,
                                  int d_head) {
    size_t head_bytes = (size_t)d_head * sizeof(float);
    return ggml_view_3d(ctx, x, d_head, n, x->ne[1], head_bytes, x->nb[1],
                        (size_t)first * head_bytes);
}

struct ggml_tensor *lk_apply_rope(const struct lk_net *net, struct ggml_context *ctx, int layer,
                                  struct ggml_tensor *x, struct ggml_tensor *pos) {
    const struct lk_hparams *hp = &net->hp;
    const struct lk_rope_args *a = &hp->rope[hp->is_swa[layer] != 0];
    struct ggml_tensor *factors =
        lk_net_on_device(net, layer) ? net->rope_factors_on_device : net->rope_factors;
    if (hp->is_swa[layer]) factors = NULL;
    int n_rot = hp->is_swa[layer] ? hp->n_rot_swa : hp->n_rot;
    return ggml_rope_ext(ctx, x, pos, factors, n_rot, hp->rope_mode, hp->n_ctx_orig, a->base,
                         a->scale, a->ext_factor, a->attn_factor, hp->yarn_beta_fast,
                         hp->yarn_beta_slow);
}

struct ggml_tensor *lk_apply_rope_back(const struct lk_net *net, struct ggml_context *ctx,
                                       int layer, struct ggml_tensor *dy, struct ggml_tensor *pos) {
    const struct lk_hparams *hp = &net->hp;
    const struct lk_rope_args *a = &hp->rope[hp->is_swa[layer] != 0];
    struct ggml_tensor *factors = hp->is_swa[layer] ? NULL : net->rope_factors;
    int n_rot = hp->is_swa[layer] ? hp->n_rot_swa : hp->n_rot;
    return ggml_rope_ext_back(ctx, dy, pos, factors, n_rot, hp->rope_mode, hp->n_ctx_orig, a->base,
                              a->scale, a->ext_factor, a->attn_factor, hp->yarn_beta_fast,
                              hp->yarn_beta_slow);
}

/* The norm of q or k: of each head, or of all heads together. The heads of x are adjacent. */
static struct ggml_tensor *norm_heads(const struct lk_net *net, struct ggml_context *ctx,
                                      struct ggml_tensor *x, struct ggml_tensor *weight) {
    float eps = net->hp.norm_eps;
    int64_t d_head = x->ne[0], n_head = x->ne[1], n_tok = x->ne[2];
    bool whole = weight->ne[0] != d_head;
    if (whole) x = ggml_view_2d(ctx, x, d_head * n_head, n_tok, x->nb[2], 0);
    x = net->hp.layer_norms ? lk_layer_norm(ctx, x, weight, NULL, eps)
                            : lk_rms_norm(ctx, x, weight, eps);
    return whole ? ggml_reshape_3d(ctx, x, d_head, n_head, n_tok) : x;
}

/* Norm and RoPE of q or k. The result is contiguous. */
static struct ggml_tensor *norm_and_rope(const struct lk_net *net, struct ggml_context *ctx,
                                         int layer, struct ggml_tensor *x, struct ggml_tensor *norm,
                                         struct ggml_tensor *pos) {
    if (norm) x = norm_heads(net, ctx, x, norm);
    if (net->hp.rope_mode >= 0 && !net->hp.no_rope[layer])
        x = lk_apply_rope(net, ctx, layer, x, pos);
    return ggml_is_contiguous(x) ? x : ggml_cont(ctx, x);
}

/* Custom node, in place. src: q [n_tok][n_head][d_head] and the positions [n_tok]. */
static void scale_by_position_op(struct ggml_tensor *q, int ith, int nth, void *userdata) {
    const struct lk_hparams *hp = userdata;
    const int32_t *pos = q->src[1]->data;
    int64_t n = q->ne[0] * q->ne[1];
    for (int64_t tok = ith; tok < q->ne[2]; tok += nth) {
        float *row = (float *)((char *)q->data + tok * q->nb[2]);
        float scale = 1 + hp->attn_temp * logf(1 + (float)(pos[tok] / hp->n_ctx_orig));
        for (int64_t c = 0; c < n && scale != 1; c++) row[c] *= scale;
    }
}

/* The same in ggml's operators, for a device. Half a position is added so that a quotient is never
 * rounded down past an integer. */
static struct ggml_tensor *scale_by_position(const struct lk_hparams *hp, struct ggml_context *ctx,
                                             struct ggml_tensor *q, struct ggml_tensor *pos) {
    float n = 1.0f / (float)hp->n_ctx_orig;
    struct ggml_tensor *turn =
        ggml_floor(ctx, ggml_scale_bias(ctx, ggml_cast(ctx, pos, GGML_TYPE_F32), n, 0.5f * n));
    struct ggml_tensor *scale = ggml_log(ctx, ggml_scale_bias(ctx, turn, 1, 1));
    scale = ggml_scale_bias(ctx, scale, hp->attn_temp, 1);
    return ggml_mul(ctx, q, ggml_reshape_3d(ctx, scale, 1, 1, pos->ne[0]));
}

/* q, k and v from one product, or from three. */
static void project_qkv(const struct lk_net *net, struct ggml_context *ctx, int layer,
                        struct ggml_tensor *x, struct ggml_tensor *pos, struct lk_qkv *out) {
    const struct lk_hparams *hp = &net->hp;
    const struct lk_layer *l = &net->layer[layer];
    struct ggml_tensor *q, *k, *v;
    if (l->wqkv) {
        struct ggml_tensor *all = lk_linear(net, ctx, l->wqkv, l->bqkv, NULL, x);
        v = lk_view_heads(ctx, all, hp->n_head + hp->n_head_kv, hp->n_head_kv, hp->d_head);
        /* One RoPE node instead of two: for a single token, the q and k heads are adjacent. */
        if (x->ne[1] == 1 && !l->q_norm && !l->k_norm) {
            all = norm_and_rope(net, ctx, layer,
                                lk_view_heads(ctx, all, 0, hp->n_head + hp->n_head_kv, hp->d_head),
                                NULL, pos);
            all = ggml_reshape_2d(ctx, all, (int64_t)hp->d_head * (hp->n_head + hp->n_head_kv), 1);
            out->q = lk_view_heads(ctx, all, 0, hp->n_head, hp->d_head);
            out->k = lk_view_heads(ctx, all, hp->n_head, hp->n_head_kv, hp->d_head);
            out->v = v;
            return;
        }
        q = lk_view_heads(ctx, all, 0, hp->n_head, hp->d_head);
        k = lk_view_heads(ctx, all, hp->n_head, hp->n_head_kv, hp->d_head);
    } else {
        q = ggml_reshape_3d(ctx, lk_linear(net, ctx, l->wq, l->bq, NULL, x), hp->d_head, hp->n_head,
                            x->ne[1]);
        k = ggml_reshape_3d(ctx, lk_linear(net, ctx, l->wk, l->bk, NULL, x), hp->d_head,
                            hp->n_head_kv, x->ne[1]);
        v = ggml_reshape_3d(ctx, lk_linear(net, ctx, l->wv, l->bv, NULL, x), hp->d_head,
                            hp->n_head_kv, x->ne[1]);
    }
    out->q = norm_and_rope(net, ctx, layer, q, l->q_norm, pos);
    out->k = norm_and_rope(net, ctx, layer, k, l->k_norm, pos);
    out->v = ggml_is_contiguous(v) ? v : ggml_cont(ctx, v);
}

void lk_make_qkv(const struct lk_net *net, struct ggml_context *ctx, int layer,
                 struct ggml_tensor *x, struct ggml_tensor *pos, struct lk_qkv *out) {
    project_qkv(net, ctx, layer, x, pos, out);
    if (net->hp.attn_temp != 0 && lk_net_is_remote(net, layer))
        out->q = scale_by_position(&net->hp, ctx, out->q, pos);
    else if (net->hp.attn_temp != 0)
        out->q = ggml_custom_inplace(ctx, out->q, &pos, 1, scale_by_position_op, GGML_N_TASKS_MAX,
                                     (void *)(uintptr_t)&net->hp);
}

struct ggml_tensor *lk_add_to_residual(const struct lk_net *net, struct ggml_context *ctx,
                                       struct ggml_tensor *weight, struct ggml_tensor *bias,
                                       struct ggml_tensor *residual, struct ggml_tensor *x) {
    float scale = net->hp.residual_scale;
    if (scale == 1.0f || !residual) return lk_linear(net, ctx, weight, bias, residual, x);
    x = ggml_scale(ctx, lk_linear(net, ctx, weight, bias, NULL, x), scale);
    return ggml_add(ctx, x, residual);
}

static struct ggml_tensor *ffn_gated(const struct lk_net *net, struct ggml_context *ctx,
                                     const struct lk_layer *l, enum ggml_glu_op op,
                                     struct ggml_tensor *residual, struct ggml_tensor *x) {
    if (l->ffn_gate_up) {
        x = ggml_glu(ctx, lk_linear(net, ctx, l->ffn_gate_up, l->ffn_gate_up_b, NULL, x), op,
                     false);
    } else {
        struct ggml_tensor *gate = lk_linear(net, ctx, l->ffn_gate, l->ffn_gate_b, NULL, x);
        x = ggml_glu_split(ctx, gate, lk_linear(net, ctx, l->ffn_up, l->ffn_up_b, NULL, x), op);
    }
    return lk_add_to_residual(net, ctx, l->ffn_down, l->ffn_down_b, residual, x);
}

struct ggml_tensor *lk_ffn_silu_gated(const struct lk_net *net, struct ggml_context *ctx,
                                      const struct lk_layer *l, struct ggml_tensor *residual,
                                      struct ggml_tensor *x) {
    return ffn_gated(net, ctx, l, GGML_GLU_OP_SWIGLU, residual, x);
}

struct ggml_tensor *lk_ffn_gelu_gated(const struct lk_net *net, struct ggml_context *ctx,
                                      const struct lk_layer *l, struct ggml_tensor *residual,
                                      struct ggml_tensor *x) {
    return ffn_gated(net, ctx, l, GGML_GLU_OP_GEGLU, residual, x);
}

struct ggml_tensor *lk_ffn_gelu(const struct lk_net *net, struct ggml_context *ctx,
                                const struct lk_layer *l, struct ggml_tensor *residual,
                                struct ggml_tensor *x) {
    return lk_linear(net, ctx, l->ffn_down, l->ffn_down_b, residual,
                     ggml_gelu(ctx, lk_linear(net, ctx, l->ffn_up, l->ffn_up_b, NULL, x)));
}

struct ggml_tensor *lk_embed_tokens(const struct lk_net *net, struct ggml_context *ctx,
                                    struct ggml_tensor *tok, struct ggml_tensor *pos) {
    (void)pos;
    struct ggml_tensor *x = ggml_get_rows(ctx, net->tok_embd, tok);
    return net->hp.embd_scale == 1.0f ? x : ggml_scale(ctx, x, net->hp.embd_scale);
}

struct lk_qkv lk_pre_attn_rms(const struct lk_net *net, struct ggml_context *ctx, int layer,
                              struct ggml_tensor *x, struct ggml_tensor *pos) {
    struct ggml_tensor *weight = net->layer[layer].attn_norm;
    struct lk_qkv out = {.x = x};
    if (weight) x = lk_rms_norm(ctx, x, weight, net->hp.norm_eps);
    lk_make_qkv(net, ctx, layer, x, pos, &out);
    return out;
}

struct ggml_tensor *lk_post_attn_silu(const struct lk_net *net, struct ggml_context *ctx, int layer,
                                      const struct lk_qkv *qkv, struct ggml_tensor *attn) {
    const struct lk_layer *l = &net->layer[layer];
    struct ggml_tensor *x = lk_add_to_residual(net, ctx, l->wo, l->bo, qkv->x, attn);
    return lk_ffn_silu_gated(net, ctx, l, x, lk_rms_norm(ctx, x, l->ffn_norm, net->hp.norm_eps));
}

/* W_O, norm, residual, feed-forward network, norm, residual. */
static struct ggml_tensor *post_attn_normed(const struct lk_net *net, struct ggml_context *ctx,
                                            int layer, const struct lk_qkv *qkv,
                                            struct ggml_tensor *attn, enum ggml_glu_op op) {
    const struct lk_layer *l = &net->layer[layer];
    float eps = net->hp.norm_eps;
    struct ggml_tensor *x = lk_linear(net, ctx, l->wo, l->bo, NULL, attn);
    x = ggml_add(ctx, lk_rms_norm(ctx, x, l->attn_post_norm, eps), qkv->x);
    struct ggml_tensor *in = l->ffn_norm ? lk_rms_norm(ctx, x, l->ffn_norm, eps) : x;
    struct ggml_tensor *ffn = ffn_gated(net, ctx, l, op, NULL, in);
    return ggml_add(ctx, lk_rms_norm(ctx, ffn, l->ffn_post_norm, eps), x);
}

struct ggml_tensor *lk_post_attn_gelu_normed(const struct lk_net *net, struct ggml_context *ctx,
                                             int layer, const struct lk_qkv *qkv,
                                             struct ggml_tensor *attn) {
    return post_attn_normed(net, ctx, layer, qkv, attn, GGML_GLU_OP_GEGLU);
}

struct ggml_tensor *lk_post_attn_silu_normed(const struct lk_net *net, struct ggml_context *ctx,
                                             int layer, const struct lk_qkv *qkv,
                                             struct ggml_tensor *attn) {
    return post_attn_normed(net, ctx, layer, qkv, attn, GGML_GLU_OP_SWIGLU);
}

struct ggml_tensor *lk_norm_rms(const struct lk_net *net, struct ggml_context *ctx,
                                struct ggml_tensor *x) {
    return lk_rms_norm(ctx, x, net->output_norm, net->hp.norm_eps);
}

struct ggml_tensor *lk_head_rms(const struct lk_net *net, struct ggml_context *ctx,
                                struct ggml_tensor *x) {
    x = lk_linear(net, ctx, net->output, net->output_b, NULL, lk_norm_rms(net, ctx, x));
    if (net->hp.logit_scale != 1.0f) x = ggml_scale(ctx, x, net->hp.logit_scale);
    float cap = net->hp.logit_softcap;
    return cap == 0 ? x : ggml_scale(ctx, ggml_tanh(ctx, ggml_scale(ctx, x, 1.0f / cap)), cap);
}

struct lk_qkv lk_pre_attn_ln(const struct lk_net *net, struct ggml_context *ctx, int layer,
                             struct ggml_tensor *x, struct ggml_tensor *pos) {
    const struct lk_layer *l = &net->layer[layer];
    struct lk_qkv out = {.x = x};
    lk_make_qkv(net, ctx, layer,
                lk_layer_norm(ctx, x, l->attn_norm, l->attn_norm_b, net->hp.norm_eps), pos, &out);
    return out;
}

struct ggml_tensor *lk_post_attn_gelu(const struct lk_net *net, struct ggml_context *ctx, int layer,
                                      const struct lk_qkv *qkv, struct ggml_tensor *attn) {
    const struct lk_layer *l = &net->layer[layer];
    struct ggml_tensor *x = lk_linear(net, ctx, l->wo, l->bo, qkv->x, attn);
    return lk_ffn_gelu(net, ctx, l, x,
                       lk_layer_norm(ctx, x, l->ffn_norm, l->ffn_norm_b, net->hp.norm_eps));
}

struct ggml_tensor *lk_norm_ln(const struct lk_net *net, struct ggml_context *ctx,
                               struct ggml_tensor *x) {
    return lk_layer_norm(ctx, x, net->output_norm, net->output_norm_b, net->hp.norm_eps);
}

struct ggml_tensor *lk_head_ln(const struct lk_net *net, struct ggml_context *ctx,
                               struct ggml_tensor *x) {
    return lk_linear(net, ctx, net->output, net->output_b, NULL, lk_norm_ln(net, ctx, x));
}
