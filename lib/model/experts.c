/* Chooses experts for each token, and adds up what they compute. */
#include "model/experts.h"

#include "model/blocks.h"

#include <math.h>
#include <string.h>

lk_status lk_experts_read(struct lk_hparams *hp, const struct lk_gguf_reader *r, lk_err *err) {
    enum { MAX_FF = 1 << 20 };
    int32_t groups = 0;
    lk_status status =
        lk_gguf_read_int(r, ".expert_count", LK_OPTIONAL, 0, LK_MAX_EXPERTS, &hp->n_expert, err);
    if (status || hp->n_expert == 0) return status;
    status = lk_gguf_read_int(r, ".expert_used_count", LK_REQUIRED, 1, hp->n_expert,
                              &hp->n_expert_used, err);
    if (!status)
        status =
            lk_gguf_read_int(r, ".expert_group_count", LK_OPTIONAL, 0, INT32_MAX, &groups, err);
    if (!status && groups > 1)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "the model chooses experts in %d groups, which is not supported", groups);
    hp->n_ff_expert = hp->n_ff;
    return status ? status
                  : lk_gguf_read_int(r, ".expert_feed_forward_length", LK_OPTIONAL, 1, MAX_FF,
                                     &hp->n_ff_expert, err);
}

lk_status lk_experts_bind(struct lk_net *net, struct lk_loader *ld, int layer, enum lk_need bias,
                          lk_err *err) {
    const struct lk_hparams *hp = &net->hp;
    struct lk_experts *e = &net->layer[layer].experts;
    int64_t n_embd = hp->n_embd, n_ff = hp->n_ff_expert, n = hp->n_expert;
    const struct lk_tensor_spec spec[] = {
        {&e->router, "blk.%d.ffn_gate_inp.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n},
        {&e->gate, "blk.%d.ffn_gate_exps.weight", LK_USE_EXPERTS, LK_REQUIRED, n_embd, n_ff},
        {&e->up, "blk.%d.ffn_up_exps.weight", LK_USE_EXPERTS, LK_REQUIRED, n_embd, n_ff},
        {&e->down, "blk.%d.ffn_down_exps.weight", LK_USE_EXPERTS, LK_REQUIRED, n_ff, n_embd},
        {&e->router_b, "blk.%d.ffn_gate_inp.bias", LK_USE_VECTOR, bias, n, 1},
        {&e->gate_b, "blk.%d.ffn_gate_exps.bias", LK_USE_VECTOR, bias, n_ff, n},
        {&e->up_b, "blk.%d.ffn_up_exps.bias", LK_USE_VECTOR, bias, n_ff, n},
        {&e->down_b, "blk.%d.ffn_down_exps.bias", LK_USE_VECTOR, bias, n_embd, n},
    };
    return lk_bind(ld, spec, bias ? 8 : 4, layer, err);
}

/* ---- custom nodes ---- */

/* Custom node. src: router logits [n_tok][n_expert]. A row of dst, i32 [n_tok][2 n_used], is the
 * chosen experts and the bits of their weights. Whatever the logits are, the experts of a token
 * differ. */
static void choose_op(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const struct ggml_tensor *logits = dst->src[0];
    int n_expert = (int)logits->ne[0], n_used = (int)dst->ne[0] / 2;
    (void)userdata;
    for (int64_t tok = ith; tok < dst->ne[1]; tok += nth) {
        const float *x = (const float *)((const char *)logits->data + tok * logits->nb[1]);
        int32_t *expert = (int32_t *)((char *)dst->data + tok * dst->nb[1]);
        float *weight = (float *)(expert + n_used), sum = 0;
        bool taken[LK_MAX_EXPERTS] = {false};
        for (int i = 0; i < n_used; i++) {
            int best = -1;
            for (int e = 0; e < n_expert; e++)
                if (!taken[e] && (best < 0 || x[e] > x[best])) best = e;
            taken[best] = true;
            expert[i] = best;
            weight[i] = expf(x[best] - x[expert[0]]);
            sum += weight[i];
        }
        for (int i = 0; i < n_used; i++) weight[i] /= sum;
    }
}

/* Custom node. src: the experts' outputs [n_tok][n_used][n_embd], what choose_op wrote, and the
 * residual [n_tok][n_embd]. Threads take equal shares of the channels. */
static void sum_op(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    enum { LINE = 16 };
    const struct ggml_tensor *y = dst->src[0], *chosen = dst->src[1], *residual = dst->src[2];
    int64_t n_line = (dst->ne[0] + LINE - 1) / LINE, from = n_line * ith / nth * LINE,
            to = n_line * (ith + 1) / nth * LINE;
    int n_used = (int)y->ne[1];
    (void)userdata;
    if (to > dst->ne[0]) to = dst->ne[0];
    for (int64_t tok = 0; tok < dst->ne[1] && from < to; tok++) {
        const char *of_tok = (const char *)y->data + tok * y->nb[2];
        const int32_t *expert = (const int32_t *)((const char *)chosen->data + tok * chosen->nb[1]);
        const float *weight = (const float *)(expert + n_used);
        float *out = (float *)((char *)dst->data + tok * dst->nb[1]);
        memcpy(out + from,
               (const float *)((const char *)residual->data + tok * residual->nb[1]) + from,
               (size_t)(to - from) * sizeof *out);
        for (int i = 0; i < n_used; i++) {
            const float *row = (const float *)(of_tok + i * y->nb[1]);
            for (int64_t c = from; c < to; c++) out[c] += weight[i] * row[c];
        }
    }
}

/* ---- the graph ---- */

/* The products of the chosen experts' matrices with x, plus their biases, if there are any. */
static struct ggml_tensor *multiply(struct ggml_context *ctx, struct ggml_tensor *weight,
                                    struct ggml_tensor *bias, struct ggml_tensor *x,
                                    struct ggml_tensor *expert) {
    struct ggml_tensor *y = ggml_mul_mat_id(ctx, weight, x, expert);
    return bias ? ggml_add_id(ctx, y, bias, expert) : y;
}

struct ggml_tensor *lk_experts_ffn(const struct lk_net *net, struct ggml_context *ctx,
                                   const struct lk_layer *l, struct ggml_tensor *residual,
                                   struct ggml_tensor *x) {
    const struct lk_experts *e = &l->experts;
    int64_t n_tok = x->ne[1], n_used = net->hp.n_expert_used;
    struct ggml_tensor *logits = lk_linear(net, ctx, e->router, e->router_b, NULL, x);
    struct ggml_tensor *chosen = ggml_custom_4d(ctx, GGML_TYPE_I32, 2 * n_used, n_tok, 1, 1,
                                                &logits, 1, choose_op, GGML_N_TASKS_MAX, NULL);
    struct ggml_tensor *expert = ggml_view_2d(ctx, chosen, n_used, n_tok, chosen->nb[1], 0);
    x = ggml_reshape_3d(ctx, x, x->ne[0], 1, n_tok);
    struct ggml_tensor *gate = multiply(ctx, e->gate, e->gate_b, x, expert),
                       *up = multiply(ctx, e->up, e->up_b, x, expert);
    struct ggml_tensor *act = net->hp.clamped_swiglu
                                  ? ggml_swiglu_oai(ctx, gate, up, 1.702f, 7.0f)
                                  : ggml_glu_split(ctx, gate, up, GGML_GLU_OP_SWIGLU);
    struct ggml_tensor *y = multiply(ctx, e->down, e->down_b, act, expert);
    struct ggml_tensor *parts[] = {y, chosen, residual};
    return ggml_custom_4d(ctx, GGML_TYPE_F32, y->ne[0], n_tok, 1, 1, parts, 3, sum_op,
                          GGML_N_TASKS_MAX, NULL);
}

struct ggml_tensor *lk_post_attn_experts(const struct lk_net *net, struct ggml_context *ctx,
                                         int layer, const struct lk_qkv *qkv,
                                         struct ggml_tensor *attn) {
    const struct lk_layer *l = &net->layer[layer];
    struct ggml_tensor *x = lk_linear(net, ctx, l->wo, l->bo, qkv->x, attn);
    return lk_experts_ffn(net, ctx, l, x, lk_rms_norm(ctx, x, l->ffn_norm, net->hp.norm_eps));
}

uint64_t lk_experts_width(const struct lk_hparams *hp) {
    return hp->n_expert + hp->n_expert_used * (3ull * hp->n_ff_expert + hp->n_embd);
}
