/* Llama 2 and 3, Mistral, SmolLM and other models with the same block. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/family.h"

static lk_status load_llama(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    /* Llama 3.1 divides each RoPE frequency by its own factor, the same in all layers. */
    struct lk_tensor_spec rope_factors = {
        &net->rope_factors, "rope_freqs.weight", LK_USE_VECTOR, LK_OPTIONAL, 0, 1};
    lk_status status = lk_hparams_read_rope(&net->hp, &ld->reader, GGML_ROPE_TYPE_NORMAL, err);
    if (!status) status = lk_hparams_read_rms_eps(&net->hp, &ld->reader, err);
    if (!status) status = lk_bind_embd_output(net, ld, false, err);
    rope_factors.ne0 = net->hp.n_rot / 2;
    if (!status) status = lk_bind(ld, &rope_factors, 1, -1, err);
    return status ? status : lk_bind_gated_layers(net, ld, err);
}

const struct lk_family lk_family_llama = {
    .arch = "llama",
    .load = load_llama,
    .embed = lk_embed_tokens,
    .pre = lk_pre_attn_rms,
    .post = lk_post_attn_silu,
    .norm = lk_norm_rms,
    .head = lk_head_rms,
};
