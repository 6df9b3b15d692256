/* Granite 3 and 4: the Llama block, with factors for the embeddings, for what layers add to the
 * residual, for scores and for logits. Some models do not rotate q and k. The feed-forward network
 * may be a mixture of experts with a shared one. In hybrids, most layers are state space models
 * (Mamba-2, kernels/recurrence.h) instead of attention. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/experts.h"
#include "model/net.h"

#include <string.h>

enum { MAX_HEADS = 1024, MAX_GROUPS = 64, MAX_CONV = 16, MAX_D_HEAD = 1024 };

/* ---- keys ---- */

static lk_status read_factors(struct lk_hparams *hp, const struct lk_gguf_reader *r, lk_err *err) {
    float divisor = 0;
    lk_status status = lk_hparams_read_scale(r, ".embedding_scale", &hp->embd_scale, err);
    if (!status) status = lk_hparams_read_scale(r, ".residual_scale", &hp->residual_scale, err);
    if (!status) status = lk_hparams_read_scale(r, ".attention.scale", &hp->attn_scale, err);
    if (!status) status = lk_hparams_read_scale(r, ".logit_scale", &divisor, err);
    if (!status && divisor == 0)
        return lk_fail(err, LK_E_FORMAT, "the file has no key %s.logit_scale, or it is 0", r->arch);
    hp->logit_scale = 1.0f / divisor;
    return status;
}

/* The factor of the residual is one of the experts' weights. */
static lk_status read_experts(struct lk_hparams *hp, const struct lk_gguf_reader *r, lk_err *err) {
    hp->expert_scale = hp->residual_scale;
    return lk_gguf_read_int(r, ".expert_shared_feed_forward_length", LK_OPTIONAL, 0, 1 << 20,
                            &hp->n_ff_shared, err);
}

/* Layers without KV heads are state space models. */
static lk_status read_state_space(struct lk_hparams *hp, const struct lk_gguf_reader *r,
                                  lk_err *err) {
    int32_t n_head_kv[LK_MAX_LAYERS], n_conv = 0, d_inner = 0, d_state = 0, n_head = 0, n_group = 0;
    lk_status status = lk_gguf_read_layers(r, ".attention.head_count_kv", LK_REQUIRED, 0, MAX_HEADS,
                                           hp->n_layer, n_head_kv, err);
    if (!status)
        status = lk_gguf_read_int(r, ".ssm.conv_kernel", LK_REQUIRED, 2, MAX_CONV, &n_conv, err);
    if (!status)
        status = lk_gguf_read_int(r, ".ssm.inner_size", LK_REQUIRED, 16, MAX_HEADS * MAX_D_HEAD,
                                  &d_inner, err);
    if (!status)
        status =
            lk_gguf_read_int(r, ".ssm.state_size", LK_REQUIRED, 1, LK_MAX_D_STATE, &d_state, err);
    if (!status)
        status =
            lk_gguf_read_int(r, ".ssm.time_step_rank", LK_REQUIRED, 1, MAX_HEADS, &n_head, err);
    if (!status)
        status = lk_gguf_read_int(r, ".ssm.group_count", LK_REQUIRED, 1, MAX_GROUPS, &n_group, err);
    if (status) return status;
    if (d_inner % (16 * n_head) != 0 || d_inner / n_head > MAX_D_HEAD || n_head % n_group != 0)
        return lk_fail(
            err, LK_E_UNSUPPORTED,
            "state space layers with %d inner channels, %d heads and %d groups are not "
            "supported: heads have multiples of 16 channels up to %d, and groups equally "
            "many heads",
            d_inner, n_head, n_group, MAX_D_HEAD);
    for (int i = 0; i < hp->n_layer; i++) hp->is_recurrent[i] = n_head_kv[i] == 0;
    hp->recurrence = (struct lk_recurrence_shape){.kind = LK_STATE_SPACE,
                                                  .n_k_head = n_group,
                                                  .n_v_head = n_head,
                                                  .d_key = d_state,
                                                  .d_value = d_inner / n_head,
                                                  .n_conv = n_conv,
                                                  .adjacent = true};
    return LK_OK;
}

/* ---- tensors ---- */

/* The rows of w_mixed are the gate of the output, a row of projections, and decays. */
static lk_status bind_state_space(struct lk_net *net, struct lk_loader *ld, int i, lk_err *err) {
    const struct lk_recurrence_shape *s = &net->hp.recurrence;
    struct lk_layer *l = &net->layer[i];
    int64_t n_embd = net->hp.n_embd, channels = lk_recurrence_channels(s),
            n_value = (int64_t)s->n_v_head * s->d_value;
    const struct lk_tensor_spec spec[] = {
        {&l->w_mixed, "blk.%d.ssm_in.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd,
         n_value + channels + s->n_v_head},
        {&l->conv, "blk.%d.ssm_conv1d.weight", LK_USE_VECTOR, LK_REQUIRED, s->n_conv, channels},
        {&l->conv_b, "blk.%d.ssm_conv1d.bias", LK_USE_VECTOR, LK_OPTIONAL, channels, 1},
        {&l->decay_b, "blk.%d.ssm_dt.bias", LK_USE_VECTOR, LK_REQUIRED, s->n_v_head, 1},
        {&l->decay_scale, "blk.%d.ssm_a", LK_USE_VECTOR, LK_REQUIRED, 1, s->n_v_head},
        {&l->skip, "blk.%d.ssm_d", LK_USE_VECTOR, LK_REQUIRED, 1, s->n_v_head},
        {&l->state_norm, "blk.%d.ssm_norm.weight", LK_USE_VECTOR, LK_REQUIRED,
         n_value / s->n_k_head, s->n_k_head},
        {&l->wo, "blk.%d.ssm_out.weight", LK_USE_MATRIX, LK_REQUIRED, n_value, n_embd},
    };
    return lk_bind(ld, spec, sizeof spec / sizeof *spec, i, err);
}

static lk_status bind_layer(struct lk_net *net, struct lk_loader *ld, int i, lk_err *err) {
    struct lk_layer *l = &net->layer[i];
    int64_t n_embd = net->hp.n_embd;
    const struct lk_tensor_spec norm[] = {
        {&l->attn_norm, "blk.%d.attn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        {&l->ffn_norm, "blk.%d.ffn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
    };
    lk_status status = lk_bind(ld, norm, 2, i, err);
    if (!status) status = lk_bind_gated_ffn(net, ld, i, err);
    if (!status && net->hp.n_expert > 0 && net->hp.n_ff_shared > 0)
        status = lk_experts_bind_shared(net, ld, i, false, err);
    if (status) return status;
    return net->hp.is_recurrent[i] ? bind_state_space(net, ld, i, err)
                                   : lk_bind_attention(net, ld, i, false, LK_OPTIONAL, err);
}

static lk_status load_granite(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    struct lk_hparams *hp = &net->hp;
    const struct lk_gguf_reader *r = &ld->reader;
    bool rotates = true, hybrid = strcmp(net->arch, "granitehybrid") == 0;
    lk_status status = hybrid ? lk_bind_check_unchanged(ld, err) : LK_OK;
    if (!status && strcmp(net->arch, "granitemoe") == 0) status = lk_experts_require(hp, r, err);
    if (!status) status = lk_hparams_read_rope(hp, r, GGML_ROPE_TYPE_NORMAL, err);
    if (!status)
        status = lk_gguf_read_bool(r, ".rope.scaling.finetuned", LK_OPTIONAL, &rotates, err);
    if (!status) status = read_factors(hp, r, err);
    if (!status && hp->n_expert > 0) status = read_experts(hp, r, err);
    if (!status && hybrid) status = read_state_space(hp, r, err);
    if (!status) status = lk_hparams_read_rms_eps(hp, r, err);
    if (!status) status = lk_bind_embd_output(net, ld, false, err);
    if (!status) status = lk_bind_rope_factors(net, ld, err);
    if (!rotates) hp->rope_mode = -1;
    for (int i = 0; !status && i < hp->n_layer; i++) status = bind_layer(net, ld, i, err);
    return status;
}

/* ---- graphs ---- */

/* Channels [first, first + n) of the rows of x: contiguous [n_tok][n]. */
static struct ggml_tensor *channels_of(struct ggml_context *ctx, struct ggml_tensor *x,
                                       int64_t first, int64_t n) {
    x = ggml_view_2d(ctx, x, n, x->ne[1], x->nb[1], (size_t)first * sizeof(float));
    return ggml_is_contiguous(x) ? x : ggml_cont(ctx, x);
}

/* Delta = softplus(W x + b), and decay = -exp(A_log) Delta, with -exp(A_log) in the file. */
static struct lk_qkv pre_granite(const struct lk_net *net, struct ggml_context *ctx, int layer,
                                 struct ggml_tensor *x, struct ggml_tensor *pos) {
    const struct lk_recurrence_shape *s = &net->hp.recurrence;
    const struct lk_layer *l = &net->layer[layer];
    if (!net->hp.is_recurrent[layer]) return lk_pre_attn_rms(net, ctx, layer, x, pos);
    int64_t n_value = (int64_t)s->n_v_head * s->d_value, channels = lk_recurrence_channels(s);
    struct lk_qkv out = {.x = x};
    x = lk_rms_norm(ctx, x, l->attn_norm, net->hp.norm_eps);
    x = lk_linear(net, ctx, l->w_mixed, NULL, NULL, x);
    out.aux = channels_of(ctx, x, 0, n_value);
    out.mixed = channels_of(ctx, x, n_value, channels);
    x = channels_of(ctx, x, n_value + channels, s->n_v_head);
    out.step = ggml_add(ctx, x, l->decay_b);
    out.beta = ggml_softplus(ctx, out.step);
    out.decay = ggml_mul(ctx, out.beta, ggml_reshape_1d(ctx, l->decay_scale, s->n_v_head));
    return out;
}

static struct ggml_tensor *post_granite(const struct lk_net *net, struct ggml_context *ctx,
                                        int layer, const struct lk_qkv *qkv,
                                        struct ggml_tensor *attn) {
    const struct lk_layer *l = &net->layer[layer];
    if (net->hp.is_recurrent[layer]) {
        int64_t n = attn->ne[0], n_tok = attn->ne[1], n_group = net->hp.recurrence.n_k_head;
        attn = ggml_glu_split(ctx, qkv->aux, attn, GGML_GLU_OP_SWIGLU);
        attn = ggml_reshape_3d(ctx, attn, n / n_group, n_group, n_tok);
        attn = lk_rms_norm(ctx, attn, l->state_norm, net->hp.norm_eps);
        attn = ggml_reshape_2d(ctx, attn, n, n_tok);
    }
    return l->experts.router ? lk_post_attn_experts(net, ctx, layer, qkv, attn)
                             : lk_post_attn_silu(net, ctx, layer, qkv, attn);
}

const struct lk_family lk_family_granite = {
    .arch = {"granite", "granitemoe", "granitehybrid"},
    .has_experts = true,
    .layers_vary = true,
    .load = load_granite,
    .embed = lk_embed_tokens,
    .pre = pre_granite,
    .post = post_granite,
    .norm = lk_norm_rms,
    .head = lk_head_rms,
};
