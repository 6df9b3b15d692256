/* Mistral 3 and Ministral 3: the Llama block, with YaRN. Beyond the original context, queries may
 * be scaled by their position. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/net.h"

static lk_status load_mistral3(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    struct lk_hparams *hp = &net->hp;
    const struct lk_gguf_reader *r = &ld->reader;
    lk_status status = lk_hparams_read_rope(hp, r, GGML_ROPE_TYPE_NORMAL, err);
    if (!status)
        status =
            lk_gguf_read_float(r, ".attention.temperature_scale", LK_OPTIONAL, &hp->attn_temp, err);
    if (!status) status = lk_hparams_read_rms_eps(hp, r, err);
    if (!status) status = lk_bind_embd_output(net, ld, false, err);
    if (!status) status = lk_bind_rope_factors(net, ld, err);
    return status ? status : lk_bind_gated_layers(net, ld, err);
}

const struct lk_family lk_family_mistral3 = {
    .arch = {"mistral3"},
    .load = load_mistral3,
    .embed = lk_embed_tokens,
    .pre = lk_pre_attn_rms,
    .post = lk_post_attn_silu,
    .norm = lk_norm_rms,
    .head = lk_head_rms,
};
