/* Llama 2 and 3, Mistral, Mixtral, SmolLM and other models with the same block. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/experts.h"
#include "model/net.h"

static lk_status load_llama(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    lk_status status = lk_hparams_read_rope(&net->hp, &ld->reader, GGML_ROPE_TYPE_NORMAL, err);
    if (!status) status = lk_hparams_read_rms_eps(&net->hp, &ld->reader, err);
    if (!status) status = lk_bind_embd_output(net, ld, false, err);
    if (!status) status = lk_bind_rope_factors(net, ld, err);
    return status ? status : lk_bind_gated_layers(net, ld, err);
}

static struct ggml_tensor *post_attn_llama(const struct lk_net *net, struct ggml_context *ctx,
                                           int layer, const struct lk_qkv *qkv,
                                           struct ggml_tensor *attn) {
    return net->hp.n_expert > 0 ? lk_post_attn_experts(net, ctx, layer, qkv, attn)
                                : lk_post_attn_silu(net, ctx, layer, qkv, attn);
}

const struct lk_family lk_family_llama = {
    .arch = {"llama"},
    .has_experts = true,
    .load = load_llama,
    .embed = lk_embed_tokens,
    .pre = lk_pre_attn_rms,
    .post = post_attn_llama,
    .norm = lk_norm_rms,
    .head = lk_head_rms,
};
