/* Gemma 2: scores and logits are capped, and every second layer has a sliding window. Norms before
 * and after attention and the feed-forward network, and scaled embeddings, as in Gemma 3. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/net.h"

#include <math.h>

static lk_status load_gemma2(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    struct lk_hparams *hp = &net->hp;
    const struct lk_gguf_reader *r = &ld->reader;
    hp->n_swa = 4096; /* these three are defaults of the architecture */
    hp->attn_softcap = 50.0f;
    hp->logit_softcap = 30.0f;
    hp->embd_scale = sqrtf((float)hp->n_embd);
    if (hp->n_layer == 46)
        hp->attn_scale = 1.0f / sqrtf((float)(hp->n_embd / hp->n_head)); /* only the 27B model */
    lk_status status = lk_hparams_read_rope(hp, r, GGML_ROPE_TYPE_NEOX, err);
    if (!status) status = lk_hparams_read_window(hp, r, 2, err);
    if (!status)
        status = lk_hparams_read_scale(r, ".attn_logit_softcapping", &hp->attn_softcap, err);
    if (!status)
        status = lk_hparams_read_scale(r, ".final_logit_softcapping", &hp->logit_softcap, err);
    if (!status) status = lk_hparams_read_rms_eps(hp, r, err);
    if (!status) status = lk_bind_embd_output(net, ld, false, err);
    if (!status) status = lk_bind_gated_layers(net, ld, err);
    return status ? status : lk_bind_post_norms(net, ld, err);
}

const struct lk_family lk_family_gemma2 = {
    .arch = {"gemma2"},
    .load = load_gemma2,
    .embed = lk_embed_tokens,
    .pre = lk_pre_attn_rms,
    .post = lk_post_attn_gelu_normed,
    .norm = lk_norm_rms,
    .head = lk_head_rms,
};
