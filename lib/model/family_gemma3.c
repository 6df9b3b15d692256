/* Gemma 3: sliding-window attention in five of six layers, with a separate RoPE base for them.
 * Extra norms after attention and after the feed-forward network. Scaled embeddings. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/net.h"

#include <math.h>

static lk_status load_gemma3(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    struct lk_hparams *hp = &net->hp;
    lk_status status = lk_hparams_read_rope(hp, &ld->reader, GGML_ROPE_TYPE_NEOX, err);
    hp->rope[1].base = 10000.0f;
    hp->rope[1].scale = 1.0f;
    if (!status) status = lk_hparams_read_window(hp, &ld->reader, 6, err);
    if (!status)
        status = lk_gguf_read_float(&ld->reader, ".final_logit_softcapping", LK_OPTIONAL,
                                    &hp->logit_softcap, err);
    if (!status) status = lk_hparams_read_rms_eps(&net->hp, &ld->reader, err);
    hp->embd_scale = sqrtf((float)hp->n_embd);
    if (hp->n_layer == 62)
        hp->attn_scale = 1.0f / sqrtf((float)(hp->n_embd / hp->n_head)); /* only the 27B model */
    if (!status) status = lk_bind_embd_output(net, ld, false, err);
    if (!status) status = lk_bind_gated_layers(net, ld, err);
    if (!status) status = lk_bind_qk_norms(net, ld, false, err);
    return status ? status : lk_bind_post_norms(net, ld, err);
}

const struct lk_family lk_family_gemma3 = {
    .arch = {"gemma3"},
    .load = load_gemma3,
    .embed = lk_embed_tokens,
    .pre = lk_pre_attn_rms,
    .post = lk_post_attn_gelu_normed,
    .norm = lk_norm_rms,
    .head = lk_head_rms,
};
