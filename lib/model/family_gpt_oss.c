/* gpt-oss: experts with biases and a clamped SwiGLU, a sink in every softmax, and a sliding window
 * in every second layer. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/experts.h"
#include "model/net.h"

static lk_status bind_gpt_oss_layer(struct lk_net *net, struct lk_loader *ld, int i, lk_err *err) {
    int64_t n_embd = net->hp.n_embd;
    struct lk_layer *l = &net->layer[i];
    const struct lk_tensor_spec spec[] = {
        {&l->attn_norm, "blk.%d.attn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        {&l->ffn_norm, "blk.%d.post_attention_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        {&l->attn_sinks, "blk.%d.attn_sinks.weight", LK_USE_VECTOR, LK_REQUIRED, net->hp.n_head, 1},
    };
    lk_status status = lk_bind(ld, spec, 3, i, err);
    if (!status) status = lk_experts_bind(net, ld, i, LK_REQUIRED, err);
    return status ? status : lk_bind_attention(net, ld, i, false, LK_OPTIONAL, err);
}

static lk_status load_gpt_oss(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    struct lk_hparams *hp = &net->hp;
    hp->expert_act = LK_EXPERT_SWIGLU_CLAMPED;
    lk_status status = lk_experts_require(hp, &ld->reader, err);
    if (!status) status = lk_hparams_read_rope(hp, &ld->reader, GGML_ROPE_TYPE_NEOX, err);
    if (!status) status = lk_hparams_read_window(hp, &ld->reader, 2, err);
    if (!status) status = lk_hparams_read_rms_eps(hp, &ld->reader, err);
    if (!status) status = lk_bind_embd_output(net, ld, false, err);
    for (int i = 0; !status && i < hp->n_layer; i++) status = bind_gpt_oss_layer(net, ld, i, err);
    return status;
}

const struct lk_family lk_family_gpt_oss = {
    .arch = {"gpt-oss"},
    .has_experts = true,
    .load = load_gpt_oss,
    .embed = lk_embed_tokens,
    .pre = lk_pre_attn_rms,
    .post = lk_post_attn_experts,
    .norm = lk_norm_rms,
    .head = lk_head_rms,
};
