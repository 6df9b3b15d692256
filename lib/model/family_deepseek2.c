/* DeepSeek V2 and V3, and others with multi-head latent attention (MLA).
 *
 * A token's row is a latent and a rotary part, the same for all heads. A head's key is [W_UK
 * latent, rotary part] and its value W_UV latent. Both matrices are applied around attention
 * instead:
 *
 *   q = [q_nope, q_rope] -> [W_UK^T q_nope, RoPE(q_rope)]     multiplied with [latent, rotary part]
 *   attention's sum of latents -> W_UV -> W_O
 *
 * So attention has one KV head. Its values are the latents, and its keys contain them (struct
 * lk_hparams.d_rope). The first layers have a gated feed-forward network, the others a
 * mixture of experts with a shared one. Layers that predict further tokens are ignored. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/experts.h"
#include "model/net.h"

#include <math.h>

static lk_status read_experts(struct lk_hparams *hp, const struct lk_gguf_reader *r, lk_err *err) {
    int32_t n_shared = 0;
    hp->expert_norm = false;
    /* GLM 4.7 Flash: its files do not say so. */
    hp->expert_sigmoid = (hp->n_layer == 47 || hp->n_layer == 48) && hp->n_vocab == 154880;
    lk_status status = lk_experts_read_dense(hp, r, err);
    if (!status && hp->n_expert == 0 && hp->n_dense < hp->n_layer)
        return lk_fail(err, LK_E_FORMAT,
                       "only %d of %d layers have a dense network, but there is no key "
                       "%s.expert_count",
                       hp->n_dense, hp->n_layer, r->arch);
    if (status || hp->n_expert == 0) return status;
    status = lk_gguf_read_int(r, ".expert_shared_count", LK_REQUIRED, 0, 64, &n_shared, err);
    if (!status)
        status = lk_gguf_read_bool(r, ".expert_weights_norm", LK_OPTIONAL, &hp->expert_norm, err);
    if (!status) status = lk_hparams_read_scale(r, ".expert_weights_scale", &hp->expert_scale, err);
    if (!status) status = lk_experts_read_function(hp, r, LK_OPTIONAL, err);
    hp->n_ff_shared = n_shared * hp->n_ff_expert;
    return status;
}

/* RoPE of the rotary part. YaRN multiplies scores by a power of the length's logarithm, instead of
 * q and k. Files have a tenth of its factor. */
static lk_status read_rope(struct lk_hparams *hp, const struct lk_gguf_reader *r, lk_err *err) {
    float log_mul = 0, attn_factor = 1, temperature = 0;
    struct lk_rope_args *rope = &hp->rope[0];
    lk_status status = lk_hparams_read_rope(hp, r, GGML_ROPE_TYPE_NORMAL, err);
    if (!status)
        status =
            lk_gguf_read_float(r, ".rope.scaling.yarn_log_multiplier", LK_OPTIONAL, &log_mul, err);
    if (!status)
        status = lk_gguf_read_float(r, ".rope.scaling.attn_factor", LK_OPTIONAL, &attn_factor, err);
    if (!status)
        status =
            lk_gguf_read_float(r, ".attention.temperature_scale", LK_OPTIONAL, &temperature, err);
    if (status) return status;
    if (temperature != 0)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "key %s.attention.temperature_scale is not supported for %s models", r->arch,
                       r->arch);
    if (hp->n_rot != hp->d_rope)
        return lk_fail(err, LK_E_FORMAT,
                       "RoPE over %d channels does not match the %d rotary channels of keys",
                       hp->n_rot, hp->d_rope);
    float longer = 0.1f * logf(1.0f / rope->scale);
    if (rope->ext_factor != 0 && log_mul != 0) rope->attn_factor = attn_factor / (1.0f + longer);
    float magnitude = rope->attn_factor * (1.0f + longer) * (1.0f + 10.0f * log_mul * longer);
    hp->attn_scale = magnitude * magnitude / sqrtf((float)(hp->d_nope + hp->d_rope));
    hp->rope[1] = *rope;
    return LK_OK;
}

static lk_status bind_attention(struct lk_net *net, struct lk_loader *ld, int i, int32_t q_rank,
                                lk_err *err) {
    const struct lk_hparams *hp = &net->hp;
    struct lk_layer *l = &net->layer[i];
    int64_t n_embd = hp->n_embd, rank = hp->d_head, n_q = hp->n_head * (hp->d_nope + hp->d_rope);
    const struct lk_tensor_spec spec[] = {
        {&l->attn_norm, "blk.%d.attn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        {&l->wkv_a, "blk.%d.attn_kv_a_mqa.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd,
         rank + hp->d_rope},
        {&l->kv_a_norm, "blk.%d.attn_kv_a_norm.weight", LK_USE_VECTOR, LK_REQUIRED, rank, 1},
        {&l->wk_b, "blk.%d.attn_k_b.weight", LK_USE_HEADS, LK_REQUIRED, hp->d_nope, rank},
        {&l->wv_b, "blk.%d.attn_v_b.weight", LK_USE_HEADS, LK_REQUIRED, rank, hp->d_value},
        {&l->wo, "blk.%d.attn_output.weight", LK_USE_MATRIX, LK_REQUIRED, hp->n_head * hp->d_value,
         n_embd},
        {&l->ffn_norm, "blk.%d.ffn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
    };
    const struct lk_tensor_spec direct = {
        &l->wq, "blk.%d.attn_q.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_q};
    const struct lk_tensor_spec compressed[] = {
        {&l->wq_a, "blk.%d.attn_q_a.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, q_rank},
        {&l->q_norm, "blk.%d.attn_q_a_norm.weight", LK_USE_VECTOR, LK_REQUIRED, q_rank, 1},
        {&l->wq, "blk.%d.attn_q_b.weight", LK_USE_MATRIX, LK_REQUIRED, q_rank, n_q},
    };
    lk_status status = lk_bind(ld, spec, sizeof spec / sizeof *spec, i, err);
    if (status) return status;
    return q_rank > 0 ? lk_bind(ld, compressed, 3, i, err) : lk_bind(ld, &direct, 1, i, err);
}

static lk_status bind_ffn(struct lk_net *net, struct lk_loader *ld, int i, lk_err *err) {
    lk_status status = lk_bind_gated_ffn(net, ld, i, err);
    if (status || i < net->hp.n_dense) return status;
    status = lk_experts_bind_bias(net, ld, i, LK_OPTIONAL, err);
    if (status || net->hp.n_ff_shared == 0) return status;
    return lk_experts_bind_shared(net, ld, i, false, err);
}

static lk_status load_deepseek2(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    struct lk_hparams *hp = &net->hp;
    int32_t q_rank = 0;
    lk_status status = lk_bind_check_unchanged(ld, err);
    if (!status) status = read_rope(hp, &ld->reader, err);
    if (!status) status = lk_hparams_read_rms_eps(hp, &ld->reader, err);
    if (!status) status = read_experts(hp, &ld->reader, err);
    if (!status)
        status = lk_gguf_read_int(&ld->reader, ".attention.q_lora_rank", LK_OPTIONAL, 1, 1 << 17,
                                  &q_rank, err);
    if (!status) status = lk_bind_embd_output(net, ld, false, err);
    for (int i = 0; !status && i < hp->n_layer; i++) {
        status = bind_attention(net, ld, i, q_rank, err);
        if (!status) status = bind_ffn(net, ld, i, err);
    }
    return status;
}

/* Channels [first, first + n) of each row of x [..][..][d]. */
static struct ggml_tensor *channels(struct ggml_context *ctx, struct ggml_tensor *x, int first,
                                    int n) {
    return ggml_view_3d(ctx, x, n, x->ne[1], x->ne[2], x->nb[1], x->nb[2],
                        (size_t)first * sizeof(float));
}

/* Multiply each head's rows by its matrix: x [n_tok][n_head][n_in] -> [n_tok][n_head][n_out], a
 * view. */
static struct ggml_tensor *multiply_heads(struct ggml_context *ctx, struct ggml_tensor *weight,
                                          struct ggml_tensor *x) {
    x = ggml_mul_mat(ctx, weight, ggml_permute(ctx, x, 0, 2, 1, 3));
    return ggml_permute(ctx, x, 0, 2, 1, 3);
}

static struct lk_qkv pre_deepseek2(const struct lk_net *net, struct ggml_context *ctx, int layer,
                                   struct ggml_tensor *x, struct ggml_tensor *pos) {
    const struct lk_hparams *hp = &net->hp;
    const struct lk_layer *l = &net->layer[layer];
    struct lk_qkv out = {.x = x};
    int64_t n_tok = x->ne[1];
    x = lk_rms_norm(ctx, x, l->attn_norm, hp->norm_eps);
    struct ggml_tensor *q = x;
    if (l->wq_a)
        q = lk_rms_norm(ctx, lk_linear(net, ctx, l->wq_a, NULL, NULL, x), l->q_norm, hp->norm_eps);
    q = lk_linear(net, ctx, l->wq, NULL, NULL, q);
    q = ggml_reshape_3d(ctx, q, hp->d_nope + hp->d_rope, hp->n_head, n_tok);
    struct ggml_tensor *rotary = channels(ctx, q, hp->d_nope, hp->d_rope);
    out.q = ggml_concat(ctx, multiply_heads(ctx, l->wk_b, channels(ctx, q, 0, hp->d_nope)),
                        lk_apply_rope(net, ctx, layer, rotary, pos), 0);

    struct ggml_tensor *kv = lk_linear(net, ctx, l->wkv_a, NULL, NULL, x);
    kv = ggml_reshape_3d(ctx, kv, hp->d_head + hp->d_rope, 1, n_tok);
    out.v = lk_rms_norm(ctx, channels(ctx, kv, 0, hp->d_head), l->kv_a_norm, hp->norm_eps);
    out.k = lk_apply_rope(net, ctx, layer, channels(ctx, kv, hp->d_head, hp->d_rope), pos);
    return out;
}

static struct ggml_tensor *post_deepseek2(const struct lk_net *net, struct ggml_context *ctx,
                                          int layer, const struct lk_qkv *qkv,
                                          struct ggml_tensor *attn) {
    const struct lk_hparams *hp = &net->hp;
    const struct lk_layer *l = &net->layer[layer];
    int64_t n_tok = attn->ne[1];
    attn = ggml_reshape_3d(ctx, attn, hp->d_head, hp->n_head, n_tok);
    attn = ggml_cont_2d(ctx, multiply_heads(ctx, l->wv_b, attn), hp->n_head * hp->d_value, n_tok);
    struct ggml_tensor *x = lk_linear(net, ctx, l->wo, NULL, qkv->x, attn);
    struct ggml_tensor *in = lk_rms_norm(ctx, x, l->ffn_norm, hp->norm_eps);
    return l->experts.router ? lk_experts_ffn(net, ctx, l, x, in)
                             : lk_ffn_silu_gated(net, ctx, l, x, in);
}

const struct lk_family lk_family_deepseek2 = {
    .arch = {"deepseek2"},
    .has_experts = true,
    .has_latents = true,
    .load = load_deepseek2,
    .embed = lk_embed_tokens,
    .pre = pre_deepseek2,
    .post = post_deepseek2,
    .norm = lk_norm_rms,
    .head = lk_head_rms,
};
