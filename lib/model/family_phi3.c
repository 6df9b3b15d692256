/* Phi 3 and 4: q, k, v and the two halves of the gated network are one matrix each. LongRoPE. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/net.h"

static lk_status bind_phi3_layer(struct lk_net *net, struct lk_loader *ld, int i, lk_err *err) {
    int64_t n_embd = net->hp.n_embd, n_ff = net->hp.n_ff;
    struct lk_layer *l = &net->layer[i];
    const struct lk_tensor_spec spec[] = {
        {&l->attn_norm, "blk.%d.attn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        {&l->ffn_norm, "blk.%d.ffn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        {&l->ffn_gate_up, "blk.%d.ffn_up.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, 2 * n_ff},
        {&l->ffn_down, "blk.%d.ffn_down.weight", LK_USE_MATRIX, LK_REQUIRED, n_ff, n_embd},
    };
    lk_status status = lk_bind(ld, spec, 4, i, err);
    return status ? status : lk_bind_attention(net, ld, i, false, LK_OPTIONAL, err);
}

static lk_status load_phi3(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    lk_status status = lk_hparams_read_rope(&net->hp, &ld->reader, GGML_ROPE_TYPE_NEOX, err);
    if (!status) status = lk_hparams_read_rms_eps(&net->hp, &ld->reader, err);
    if (!status) status = lk_bind_embd_output(net, ld, false, err);
    if (!status) status = lk_bind_rope_factors(net, ld, err);
    for (int i = 0; !status && i < net->hp.n_layer; i++) status = bind_phi3_layer(net, ld, i, err);
    return status;
}

/* Files may have a sliding window of the model's training. Like libllama, attention is full: the
 * files do not say which layers had it. */
const struct lk_family lk_family_phi3 = {
    .arch = {"phi3"},
    .load = load_phi3,
    .embed = lk_embed_tokens,
    .pre = lk_pre_attn_rms,
    .post = lk_post_attn_silu,
    .norm = lk_norm_rms,
    .head = lk_head_rms,
};
