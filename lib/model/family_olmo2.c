/* OLMo 2 and 3: norms after attention and after the feed-forward network instead of before, and
 * norms over all of q and all of k. OLMo 3 has a sliding window in three of four layers, whose RoPE
 * is not scaled. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/net.h"

static lk_status load_olmo2(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    struct lk_hparams *hp = &net->hp;
    lk_status status = lk_hparams_read_rope(hp, &ld->reader, GGML_ROPE_TYPE_NEOX, err);
    if (!status) status = lk_hparams_read_window(hp, &ld->reader, 4, err);
    hp->rope[1] = (struct lk_rope_args){.base = hp->rope[0].base, .scale = 1, .attn_factor = 1};
    if (!status) status = lk_hparams_read_rms_eps(hp, &ld->reader, err);
    if (!status) status = lk_bind_embd_output(net, ld, false, err);
    for (int i = 0; !status && i < hp->n_layer; i++) {
        status = lk_bind_gated_ffn(net, ld, i, err);
        if (!status) status = lk_bind_attention(net, ld, i, false, LK_OPTIONAL, err);
    }
    if (!status) status = lk_bind_qk_norms(net, ld, true, err);
    return status ? status : lk_bind_post_norms(net, ld, err);
}

const struct lk_family lk_family_olmo2 = {
    .arch = {"olmo2"},
    .load = load_olmo2,
    .embed = lk_embed_tokens,
    .pre = lk_pre_attn_rms,
    .post = lk_post_attn_silu_normed,
    .norm = lk_norm_rms,
    .head = lk_head_rms,
};
