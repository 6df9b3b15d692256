/* Qwen 3: each head of q and k is normed before its rotation. */
#include "model/blocks.h"
#include "model/family.h"

static lk_status load(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    lk_status status = lk_hparams_read_rope(&net->hp, &ld->reader, GGML_ROPE_TYPE_NEOX, err);
    if (status == LK_OK) status = lk_read_rms_eps(net, ld, err);
    if (status == LK_OK) status = lk_bind_ends(net, ld, false, err);
    if (status == LK_OK) status = lk_bind_gated_layers(net, ld, err);
    return status == LK_OK ? lk_bind_qk_norms(net, ld, err) : status;
}

const struct lk_family lk_family_qwen3 = {"qwen3",    load,         lk_embed_tokens,
                                          lk_pre_rms, lk_post_silu, lk_head_rms};
