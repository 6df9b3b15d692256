/* SmolLM 3: the Llama block, but every fourth layer does not rotate q and k. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/net.h"

static lk_status load_smollm3(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    struct lk_hparams *hp = &net->hp;
    for (int i = 0; i < hp->n_layer; i++) hp->no_rope[i] = i % 4 == 3;
    lk_status status = lk_hparams_read_rope(hp, &ld->reader, GGML_ROPE_TYPE_NORMAL, err);
    if (!status)
        status = lk_hparams_read_scale(&ld->reader, ".attention.scale", &hp->attn_scale, err);
    if (!status) status = lk_hparams_read_rms_eps(hp, &ld->reader, err);
    if (!status) status = lk_bind_embd_output(net, ld, false, err);
    return status ? status : lk_bind_gated_layers(net, ld, err);
}

const struct lk_family lk_family_smollm3 = {
    .arch = {"smollm3"},
    .load = load_smollm3,
    .embed = lk_embed_tokens,
    .pre = lk_pre_attn_rms,
    .post = lk_post_attn_silu,
    .norm = lk_norm_rms,
    .head = lk_head_rms,
};
