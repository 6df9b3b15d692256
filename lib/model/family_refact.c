/* Refact: the Llama block with ALiBi instead of RoPE. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/net.h"

static lk_status load_refact(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    net->hp.alibi_max_bias = 8.0f; /* fixed by the architecture, not stored in files */
    lk_status status = lk_hparams_read_rms_eps(&net->hp, &ld->reader, err);
    if (!status) status = lk_bind_embd_output(net, ld, false, err);
    return status ? status : lk_bind_gated_layers(net, ld, err);
}

const struct lk_family lk_family_refact = {
    .arch = {"refact"},
    .load = load_refact,
    .embed = lk_embed_tokens,
    .pre = lk_pre_attn_rms,
    .post = lk_post_attn_silu,
    .norm = lk_norm_rms,
    .head = lk_head_rms,
};
