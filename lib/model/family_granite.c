/* Granite 3 and 4 (dense): the Llama block, with factors for the embeddings, for what layers add to
 * the residual, for scores and for logits. Some models do not rotate q and k. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/family.h"

static lk_status load_granite(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    struct lk_hparams *hp = &net->hp;
    const struct lk_gguf_reader *r = &ld->reader;
    float divisor = 0;
    bool rotates = true;
    lk_status status = lk_hparams_read_rope(hp, r, GGML_ROPE_TYPE_NORMAL, err);
    if (!status)
        status = lk_gguf_read_bool(r, ".rope.scaling.finetuned", LK_OPTIONAL, &rotates, err);
    if (!status) status = lk_hparams_read_scale(r, ".embedding_scale", &hp->embd_scale, err);
    if (!status) status = lk_hparams_read_scale(r, ".residual_scale", &hp->residual_scale, err);
    if (!status) status = lk_hparams_read_scale(r, ".attention.scale", &hp->attn_scale, err);
    if (!status) status = lk_hparams_read_scale(r, ".logit_scale", &divisor, err);
    if (!status && divisor == 0)
        status = lk_fail(err, LK_E_FORMAT, "the file has no key granite.logit_scale, or it is 0");
    if (!status) status = lk_hparams_read_rms_eps(hp, r, err);
    if (status) return status;
    hp->logit_scale = 1.0f / divisor;
    status = lk_bind_embd_output(net, ld, false, err);
    if (!status) status = lk_bind_rope_factors(net, ld, err);
    if (!rotates) hp->rope_mode = -1;
    return status ? status : lk_bind_gated_layers(net, ld, err);
}

const struct lk_family lk_family_granite = {
    .arch = {"granite"},
    .load = load_granite,
    .embed = lk_embed_tokens,
    .pre = lk_pre_attn_rms,
    .post = lk_post_attn_silu,
    .norm = lk_norm_rms,
    .head = lk_head_rms,
};
