/* Qwen 3: each q and k head is normed before RoPE. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/net.h"

static lk_status load_qwen3(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    lk_status status = lk_hparams_read_rope(&net->hp, &ld->reader, GGML_ROPE_TYPE_NEOX, err);
    if (!status) status = lk_hparams_read_rms_eps(&net->hp, &ld->reader, err);
    if (!status) status = lk_bind_embd_output(net, ld, false, err);
    if (!status) status = lk_bind_gated_layers(net, ld, err);
    return status ? status : lk_bind_qk_norms(net, ld, false, err);
}

const struct lk_family lk_family_qwen3 = {
    .arch = {"qwen3"},
    .load = load_qwen3,
    .embed = lk_embed_tokens,
    .pre = lk_pre_attn_rms,
    .post = lk_post_attn_silu,
    .norm = lk_norm_rms,
    .head = lk_head_rms,
};
