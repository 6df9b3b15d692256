/* Chooses experts for each token, and adds up what they compute. */
#include "model/experts.h"

#include "model/blocks.h"

#include <math.h>
#include <string.h>

static lk_status read_groups(struct lk_hparams *hp, const struct lk_gguf_reader *r, lk_err *err) {
    lk_status status = lk_gguf_read_int(r, ".expert_group_count", LK_OPTIONAL, 0, LK_MAX_EXPERTS,
                                        &hp->n_group, err);
    if (status || hp->n_group <= 1) return status;
    status = lk_gguf_read_int(r, ".expert_group_used_count", LK_REQUIRED, 1, hp->n_group,
                              &hp->n_group_used, err);
    if (status) return status;
    int32_t size = hp->n_expert / hp->n_group;
    if (hp->n_expert % hp->n_group != 0 || size < 2 || size * hp->n_group_used < hp->n_expert_used)
        return lk_fail(err, LK_E_FORMAT,
                       "%d experts in %d groups, %d of them used, are not possible for %d experts "
                       "per token",
                       hp->n_expert, hp->n_group, hp->n_group_used, hp->n_expert_used);
    return LK_OK;
}

lk_status lk_experts_read(struct lk_hparams *hp, const struct lk_gguf_reader *r, lk_err *err) {
    enum { MAX_FF = 1 << 20 };
    hp->expert_norm = true;
    hp->expert_scale = 1;
    hp->n_group = hp->n_group_used = 1;
    lk_status status =
        lk_gguf_read_int(r, ".expert_count", LK_OPTIONAL, 0, LK_MAX_EXPERTS, &hp->n_expert, err);
    if (status || hp->n_expert == 0) return status;
    status = lk_gguf_read_int(r, ".expert_used_count", LK_REQUIRED, 1, hp->n_expert,
                              &hp->n_expert_used, err);
    hp->n_ff_expert = hp->n_ff;
    if (!status)
        status = lk_gguf_read_int(r, ".expert_feed_forward_length", LK_OPTIONAL, 1, MAX_FF,
                                  &hp->n_ff_expert, err);
    return status ? status : read_groups(hp, r, err);
}

lk_status lk_experts_require(const struct lk_hparams *hp, const struct lk_gguf_reader *r,
                             lk_err *err) {
    if (hp->n_expert > 0) return LK_OK;
    return lk_fail(err, LK_E_FORMAT, "%s models need a key %s.expert_count", r->arch, r->arch);
}

lk_status lk_experts_read_dense(struct lk_hparams *hp, const struct lk_gguf_reader *r,
                                lk_err *err) {
    return lk_gguf_read_int(r, ".leading_dense_block_count", LK_OPTIONAL, 0, hp->n_layer,
                            &hp->n_dense, err);
}

lk_status lk_experts_read_function(struct lk_hparams *hp, const struct lk_gguf_reader *r,
                                   enum lk_need need, lk_err *err) {
    enum { SIGMOID = 2 };
    int32_t function = 0;
    lk_status status =
        lk_gguf_read_int(r, ".expert_gating_func", need, 0, INT32_MAX, &function, err);
    if (!status && function > SIGMOID)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "the model weighs experts by function %d; 1 (softmax) and 2 (sigmoid) are "
                       "supported",
                       function);
    if (function > 0) hp->expert_sigmoid = function == SIGMOID;
    return status;
}

lk_status lk_experts_bind(struct lk_net *net, struct lk_loader *ld, int layer, enum lk_need bias,
                          lk_err *err) {
    const struct lk_hparams *hp = &net->hp;
    struct lk_experts *e = &net->layer[layer].experts;
    int64_t n_embd = hp->n_embd, n_ff = hp->n_ff_expert, n = hp->n_expert;
    const struct lk_tensor_spec joined = {&e->gate_up,    "blk.%d.ffn_gate_up_exps.weight",
                                          LK_USE_EXPERTS, LK_OPTIONAL,
                                          n_embd,         2 * n_ff};
    const struct lk_tensor_spec separate[] = {
        {&e->gate, "blk.%d.ffn_gate_exps.weight", LK_USE_EXPERTS, LK_REQUIRED, n_embd, n_ff},
        {&e->up, "blk.%d.ffn_up_exps.weight", LK_USE_EXPERTS, LK_REQUIRED, n_embd, n_ff},
    };
    const struct lk_tensor_spec spec[] = {
        {&e->router, "blk.%d.ffn_gate_inp.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n},
        {&e->down, "blk.%d.ffn_down_exps.weight", LK_USE_EXPERTS, LK_REQUIRED, n_ff, n_embd},
        {&e->router_b, "blk.%d.ffn_gate_inp.bias", LK_USE_VECTOR, bias, n, 1},
        {&e->gate_b, "blk.%d.ffn_gate_exps.bias", LK_USE_VECTOR, bias, n_ff, n},
        {&e->up_b, "blk.%d.ffn_up_exps.bias", LK_USE_VECTOR, bias, n_ff, n},
        {&e->down_b, "blk.%d.ffn_down_exps.bias", LK_USE_VECTOR, bias, n_embd, n},
    };
    lk_status status = lk_bind(ld, spec, bias ? 6 : 2, layer, err);
    size_t before = ld->n_bind;
    if (!status && !bias) status = lk_bind(ld, &joined, 1, layer, err);
    if (!status && ld->n_bind == before) status = lk_bind(ld, separate, 2, layer, err);
    return status;
}

lk_status lk_experts_bind_bias(struct lk_net *net, struct lk_loader *ld, int layer,
                               enum lk_need need, lk_err *err) {
    struct ggml_tensor **bias = &net->layer[layer].experts.bias;
    const struct lk_tensor_spec spec = {bias, "blk.%d.exp_probs_b.bias", LK_USE_VECTOR,
                                        need, net->hp.n_expert,          1};
    return lk_bind(ld, &spec, 1, layer, err);
}

lk_status lk_experts_bind_shared(struct lk_net *net, struct lk_loader *ld, int layer, bool gated,
                                 lk_err *err) {
    struct lk_layer *l = &net->layer[layer];
    int64_t n_embd = net->hp.n_embd, n_ff = net->hp.n_ff_shared;
    const struct lk_tensor_spec spec[] = {
        {&l->ffn_gate, "blk.%d.ffn_gate_shexp.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_ff},
        {&l->ffn_up, "blk.%d.ffn_up_shexp.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_ff},
        {&l->ffn_down, "blk.%d.ffn_down_shexp.weight", LK_USE_MATRIX, LK_REQUIRED, n_ff, n_embd},
        {&l->experts.shared_gate, "blk.%d.ffn_gate_inp_shexp.weight", LK_USE_VECTOR, LK_REQUIRED,
         n_embd, 1},
    };
    size_t before = ld->n_bind;
    lk_status status = lk_bind(ld, spec, 2, layer, err);
    lk_bind_concat(ld, &l->ffn_gate_up, &l->ffn_gate_up_b, before, 2);
    return status ? status : lk_bind(ld, spec + 2, gated ? 2 : 1, layer, err);
}

/* ---- custom nodes ---- */

/* rank[e]: what experts are chosen by. Logits, if nothing is added to the probabilities. */
static void rank_experts(const struct lk_hparams *hp, const float *x, const float *bias,
                         float *rank) {
    float max = x[0], sum = 0;
    memcpy(rank, x, (size_t)hp->n_expert * sizeof *rank);
    if (!bias && hp->n_group <= 1) return;
    for (int e = 1; e < hp->n_expert; e++) max = fmaxf(max, x[e]);
    for (int e = 0; e < hp->n_expert; e++) sum += expf(x[e] - max);
    for (int e = 0; e < hp->n_expert; e++) {
        rank[e] = hp->expert_sigmoid ? 1 / (1 + expf(-x[e])) : expf(x[e] - max) / sum;
        if (bias) rank[e] += bias[e];
    }
}

/* Index of the largest of value [n] that is not taken, which becomes taken; at least one is not. */
static int take_largest(const float *value, bool *taken, int n) {
    int best = -1;
    for (int i = 0; i < n; i++)
        if (!taken[i] && (best < 0 || value[i] > value[best])) best = i;
    taken[best] = true;
    return best;
}

/* Mark the experts of groups that are not used as taken. */
static void choose_groups(const struct lk_hparams *hp, const float *rank, bool *taken) {
    int size = hp->n_expert / hp->n_group;
    bool used[LK_MAX_EXPERTS] = {false};
    float sum[LK_MAX_EXPERTS];
    for (int g = 0; g < hp->n_group; g++) {
        const float *of_group = rank + g * size;
        bool best[LK_MAX_EXPERTS] = {false};
        sum[g] = of_group[take_largest(of_group, best, size)];
        sum[g] += of_group[take_largest(of_group, best, size)];
    }
    for (int i = 0; i < hp->n_group_used; i++) take_largest(sum, used, hp->n_group);
    for (int g = 0; g < hp->n_group; g++)
        for (int e = 0; e < size; e++) taken[g * size + e] = !used[g];
}

/* The weights of the chosen experts from all logits x. `factor` of each expert may be NULL. */
static void weigh_experts(const struct lk_hparams *hp, const float *x, const int32_t *expert,
                          const float *factor, float *weight) {
    const float min_sum = 6.103515625e-5f; /* as libllama's */
    float max = x[expert[0]], sum = 0;
    for (int e = 0; e < hp->n_expert; e++) max = fmaxf(max, x[e]);
    for (int i = 0; i < hp->n_expert_used; i++) {
        float logit = x[expert[i]];
        weight[i] = hp->expert_sigmoid ? 1 / (1 + expf(-logit)) : expf(logit - max);
        sum += weight[i];
    }
    if (!hp->expert_norm) sum = 1;
    if (!hp->expert_norm && !hp->expert_sigmoid) {
        sum = 0;
        for (int e = 0; e < hp->n_expert; e++) sum += expf(x[e] - max);
    }
    if (sum < min_sum) sum = min_sum;
    for (int i = 0; i < hp->n_expert_used; i++) {
        weight[i] = weight[i] / sum * hp->expert_scale;
        if (factor) weight[i] *= factor[expert[i]];
    }
}

/* Custom node. src: router logits [n_tok][n_expert], then [n_expert] the bias for choosing and the
 * factors of the outputs, each of which may be NULL. A row of dst, i32 [n_tok][2 n_used], is the
 * chosen experts and the bits of their weights. Whatever the logits are, the experts of a token
 * differ. */
static void choose_op(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const struct lk_hparams *hp = userdata;
    const struct ggml_tensor *logits = dst->src[0];
    const float *bias = dst->src[1] ? dst->src[1]->data : NULL,
                *factor = dst->src[2] ? dst->src[2]->data : NULL;
    for (int64_t tok = ith; tok < dst->ne[1]; tok += nth) {
        const float *x = (const float *)((const char *)logits->data + tok * logits->nb[1]);
        int32_t *expert = (int32_t *)((char *)dst->data + tok * dst->nb[1]);
        float rank[LK_MAX_EXPERTS];
        bool taken[LK_MAX_EXPERTS] = {false};
        rank_experts(hp, x, bias, rank);
        if (hp->n_group > 1) choose_groups(hp, rank, taken);
        for (int i = 0; i < hp->n_expert_used; i++)
            expert[i] = take_largest(rank, taken, hp->n_expert);
        weigh_experts(hp, x, expert, factor, (float *)(expert + hp->n_expert_used));
    }
}

/* Custom node. src: the experts' outputs [n_tok][n_used][n_embd], what choose_op wrote, and the
 * residual [n_tok][n_embd] or NULL. Threads take equal shares of the channels. */
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
        if (residual)
            memcpy(out + from,
                   (const float *)((const char *)residual->data + tok * residual->nb[1]) + from,
                   (size_t)(to - from) * sizeof *out);
        else
            memset(out + from, 0, (size_t)(to - from) * sizeof *out);
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

/* The residual plus the shared expert. */
static struct ggml_tensor *add_shared(const struct lk_net *net, struct ggml_context *ctx,
                                      const struct lk_layer *l, struct ggml_tensor *residual,
                                      struct ggml_tensor *x) {
    struct ggml_tensor *gate = l->experts.shared_gate;
    if (!gate) return lk_ffn_silu_gated(net, ctx, l, residual, x);
    gate = ggml_sigmoid(ctx, lk_linear(net, ctx, gate, NULL, NULL, x));
    return ggml_add(ctx, ggml_mul(ctx, lk_ffn_silu_gated(net, ctx, l, NULL, x), gate), residual);
}

/* What the down matrices of the chosen experts are multiplied by: x [n_tok][1][n_embd] ->
 * [n_tok][n_used][n_ff_expert]. */
static struct ggml_tensor *activate(const struct lk_net *net, struct ggml_context *ctx,
                                    const struct lk_experts *e, struct ggml_tensor *x,
                                    struct ggml_tensor *expert) {
    enum ggml_glu_op op =
        net->hp.expert_act == LK_EXPERT_GEGLU ? GGML_GLU_OP_GEGLU : GGML_GLU_OP_SWIGLU;
    if (e->gate_up) return ggml_glu(ctx, multiply(ctx, e->gate_up, NULL, x, expert), op, false);
    struct ggml_tensor *gate = multiply(ctx, e->gate, e->gate_b, x, expert),
                       *up = multiply(ctx, e->up, e->up_b, x, expert);
    return net->hp.expert_act == LK_EXPERT_SWIGLU_CLAMPED
               ? ggml_swiglu_oai(ctx, gate, up, 1.702f, 7.0f)
               : ggml_glu_split(ctx, gate, up, op);
}

/* ---- the same in ggml's operators, for devices without nodes of lowkey's own ---- */

/* The ids of the n largest of each row of x: contiguous [rows][n]. */
static struct ggml_tensor *largest(struct ggml_context *ctx, struct ggml_tensor *x, int64_t n) {
    return ggml_cont(ctx, ggml_argsort_top_k(ctx, x, (int)n));
}

/* rank [n_tok][n_expert], but -INFINITY for experts of groups that are not used (choose_groups). */
static struct ggml_tensor *mask_groups(const struct lk_hparams *hp, struct ggml_context *ctx,
                                       struct ggml_tensor *rank) {
    int64_t n_group = hp->n_group, size = hp->n_expert / n_group, n_tok = rank->ne[1],
            n_row = n_group * n_tok;
    struct ggml_tensor *best = largest(ctx, ggml_reshape_2d(ctx, rank, size, n_row), 2);
    best = ggml_get_rows(ctx, ggml_reshape_3d(ctx, rank, 1, size, n_row), best);
    struct ggml_tensor *sum = ggml_sum_rows(ctx, ggml_reshape_2d(ctx, best, 2, n_row)),
                       *group = largest(ctx, ggml_reshape_2d(ctx, sum, n_group, n_tok),
                                        hp->n_group_used),
                       *all = ggml_reshape_3d(ctx, rank, size, n_group, n_tok),
                       *none = ggml_fill(ctx, all, -INFINITY);
    all = ggml_set_rows(ctx, none, ggml_get_rows(ctx, all, group), group);
    return ggml_reshape_2d(ctx, all, hp->n_expert, n_tok);
}

/* The experts i32 [n_tok][n_used], and their weights [n_tok][n_used][1] (choose_op). */
static struct ggml_tensor *choose_nodes(const struct lk_hparams *hp, struct ggml_context *ctx,
                                        const struct lk_experts *e, struct ggml_tensor *logits,
                                        struct ggml_tensor **weight) {
    const float min_sum = 6.103515625e-5f;
    int64_t n_used = hp->n_expert_used, n_tok = logits->ne[1];
    struct ggml_tensor *share =
        hp->expert_sigmoid ? ggml_sigmoid(ctx, logits) : ggml_soft_max(ctx, logits);
    struct ggml_tensor *rank = share;
    if (e->bias) rank = ggml_add(ctx, rank, e->bias);
    if (hp->n_group > 1) rank = mask_groups(hp, ctx, rank);
    struct ggml_tensor *expert = largest(ctx, rank, n_used);
    struct ggml_tensor *w =
        ggml_get_rows(ctx, ggml_reshape_3d(ctx, share, 1, hp->n_expert, n_tok), expert);
    w = ggml_reshape_2d(ctx, w, n_used, n_tok);
    if (hp->expert_norm)
        w = ggml_div(ctx, w, ggml_clamp(ctx, ggml_sum_rows(ctx, w), min_sum, INFINITY));
    if (hp->expert_scale != 1) w = ggml_scale(ctx, w, hp->expert_scale);
    if (e->down_scale) {
        struct ggml_tensor *factor =
            ggml_get_rows(ctx, ggml_reshape_2d(ctx, e->down_scale, 1, hp->n_expert),
                          ggml_reshape_1d(ctx, expert, n_used * n_tok));
        w = ggml_mul(ctx, w, ggml_reshape_2d(ctx, factor, n_used, n_tok));
    }
    *weight = ggml_reshape_3d(ctx, w, 1, n_used, n_tok);
    return expert;
}

/* lk_experts_mix in ggml's operators. */
static struct ggml_tensor *mix_nodes(const struct lk_net *net, struct ggml_context *ctx,
                                     const struct lk_experts *e, struct ggml_tensor *residual,
                                     struct ggml_tensor *router_x, struct ggml_tensor *x) {
    int64_t n_tok = x->ne[1];
    struct ggml_tensor *weight,
        *logits = lk_linear(net, ctx, e->router, e->router_b, NULL, router_x),
        *expert = choose_nodes(&net->hp, ctx, e, logits, &weight);
    struct ggml_tensor *act =
        activate(net, ctx, e, ggml_reshape_3d(ctx, x, x->ne[0], 1, n_tok), expert);
    struct ggml_tensor *y = ggml_mul(ctx, multiply(ctx, e->down, e->down_b, act, expert), weight);
    y = ggml_sum_rows(ctx, ggml_cont(ctx, ggml_permute(ctx, y, 1, 0, 2, 3)));
    y = ggml_reshape_2d(ctx, y, x->ne[0], n_tok);
    return residual ? ggml_add(ctx, y, residual) : y;
}

struct ggml_tensor *lk_experts_mix(const struct lk_net *net, struct ggml_context *ctx,
                                   const struct lk_layer *l, struct ggml_tensor *residual,
                                   struct ggml_tensor *router_x, struct ggml_tensor *x) {
    const struct lk_experts *e = &l->experts;
    if (lk_net_is_remote(net, (int)(l - net->layer)))
        return mix_nodes(net, ctx, e, residual, router_x, x);
    int64_t n_tok = x->ne[1], n_used = net->hp.n_expert_used;
    struct ggml_tensor *scores[] = {lk_linear(net, ctx, e->router, e->router_b, NULL, router_x),
                                    e->bias, e->down_scale};
    struct ggml_tensor *chosen =
        ggml_custom_4d(ctx, GGML_TYPE_I32, 2 * n_used, n_tok, 1, 1, scores, 3, choose_op,
                       GGML_N_TASKS_MAX, (void *)(uintptr_t)&net->hp);
    struct ggml_tensor *expert = ggml_view_2d(ctx, chosen, n_used, n_tok, chosen->nb[1], 0);
    struct ggml_tensor *act =
        activate(net, ctx, e, ggml_reshape_3d(ctx, x, x->ne[0], 1, n_tok), expert);
    struct ggml_tensor *y = multiply(ctx, e->down, e->down_b, act, expert);
    struct ggml_tensor *parts[] = {y, chosen, residual};
    return ggml_custom_4d(ctx, GGML_TYPE_F32, y->ne[0], n_tok, 1, 1, parts, 3, sum_op,
                          GGML_N_TASKS_MAX, NULL);
}

struct ggml_tensor *lk_experts_ffn(const struct lk_net *net, struct ggml_context *ctx,
                                   const struct lk_layer *l, struct ggml_tensor *residual,
                                   struct ggml_tensor *x) {
    if (l->ffn_down) residual = add_shared(net, ctx, l, residual, x);
    return lk_experts_mix(net, ctx, l, residual, x, x);
}

struct ggml_tensor *lk_post_attn_experts(const struct lk_net *net, struct ggml_context *ctx,
                                         int layer, const struct lk_qkv *qkv,
                                         struct ggml_tensor *attn) {
    const struct lk_layer *l = &net->layer[layer];
    struct ggml_tensor *x = lk_add_to_residual(net, ctx, l->wo, l->bo, qkv->x, attn);
    return lk_experts_ffn(net, ctx, l, x, lk_rms_norm(ctx, x, l->ffn_norm, net->hp.norm_eps));
}

uint64_t lk_experts_width(const struct lk_hparams *hp) {
    uint64_t mix = hp->n_expert + hp->n_expert_used * (3ull * hp->n_ff_expert + hp->n_embd) +
                   3ull * hp->n_ff_shared,
             dense = hp->n_dense > 0 ? 3ull * hp->n_ff : 0;
    return dense > mix ? dense : mix;
}
