/* Qwen 3 with experts: the block of Qwen 3, and a mixture of experts in every layer. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/experts.h"
#include "model/net.h"

static lk_status load_qwen3moe(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    struct lk_hparams *hp = &net->hp;
    lk_status status = lk_experts_require(hp, &ld->reader, err);
    if (status) return status;
    if (lk_gguf_find_key(&ld->reader, ".expert_feed_forward_length") < 0)
        hp->n_ff_expert = hp->n_ff / hp->n_expert_used;
    status = lk_hparams_read_rope(hp, &ld->reader, GGML_ROPE_TYPE_NEOX, err);
    if (!status) status = lk_hparams_read_rms_eps(hp, &ld->reader, err);
    if (!status) status = lk_bind_embd_output(net, ld, false, err);
    if (!status) status = lk_bind_gated_layers(net, ld, err);
    return status ? status : lk_bind_qk_norms(net, ld, false, err);
}

const struct lk_family lk_family_qwen3moe = {
    .arch = {"qwen3moe"},
    .has_experts = true,
    .load = load_qwen3moe,
    .embed = lk_embed_tokens,
    .pre = lk_pre_attn_rms,
    .post = lk_post_attn_experts,
    .norm = lk_norm_rms,
    .head = lk_head_rms,
};
