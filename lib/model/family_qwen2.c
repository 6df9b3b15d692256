/* Qwen 2 and 2.5: the Llama block with biases on q, k and v. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/net.h"

static lk_status load_qwen2(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    lk_status status = lk_hparams_read_rope(&net->hp, &ld->reader, GGML_ROPE_TYPE_NEOX, err);
    if (!status) status = lk_hparams_read_rms_eps(&net->hp, &ld->reader, err);
    if (!status) status = lk_bind_embd_output(net, ld, false, err);
    return status ? status : lk_bind_gated_layers(net, ld, err);
}

const struct lk_family lk_family_qwen2 = {
    .arch = {"qwen2"},
    .load = load_qwen2,
    .embed = lk_embed_tokens,
    .pre = lk_pre_attn_rms,
    .post = lk_post_attn_silu,
    .norm = lk_norm_rms,
    .head = lk_head_rms,
};
