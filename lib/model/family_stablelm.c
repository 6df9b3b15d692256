/* StableLM: layer norms, a gated feed-forward network, RoPE on a part of each head. The 12B model
 * has a layer norm for each q and k head, and its feed-forward network runs in parallel to
 * attention. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/net.h"

static lk_status bind_stablelm_layer(struct lk_net *net, struct lk_loader *ld, int i, lk_err *err) {
    const struct lk_hparams *hp = &net->hp;
    struct lk_layer *l = &net->layer[i];
    const struct lk_tensor_spec norm[] = {
        {&l->attn_norm, "blk.%d.attn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, hp->n_embd, 1},
        {&l->attn_norm_b, "blk.%d.attn_norm.bias", LK_USE_VECTOR, LK_REQUIRED, hp->n_embd, 1},
        {&l->ffn_norm, "blk.%d.ffn_norm.weight", LK_USE_VECTOR, LK_OPTIONAL, hp->n_embd, 1},
        {&l->ffn_norm_b, "blk.%d.ffn_norm.bias", LK_USE_VECTOR, LK_OPTIONAL, hp->n_embd, 1},
    };
    const struct lk_tensor_spec qk_norm[] = {
        {&l->q_norm, "blk.%d.attn_q_norm.weight", LK_USE_VECTOR, LK_OPTIONAL, hp->d_head,
         hp->n_head},
        {&l->k_norm, "blk.%d.attn_k_norm.weight", LK_USE_VECTOR, LK_OPTIONAL, hp->d_head,
         hp->n_head_kv},
    };
    lk_status status = lk_bind(ld, norm, 4, i, err);
    if (!status) status = lk_bind_attention(net, ld, i, false, LK_OPTIONAL, err);
    if (!status) status = lk_bind(ld, qk_norm, 2, i, err);
    return status ? status : lk_bind_gated_ffn(net, ld, i, err);
}

static lk_status load_stablelm(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    lk_status status = lk_hparams_read_rope(&net->hp, &ld->reader, GGML_ROPE_TYPE_NEOX, err);
    if (!status) status = lk_hparams_read_layer_norm_eps(&net->hp, &ld->reader, err);
    if (!status) status = lk_bind_embd_output(net, ld, true, err);
    for (int i = 0; !status && i < net->hp.n_layer; i++)
        status = bind_stablelm_layer(net, ld, i, err);
    return status;
}

static struct lk_qkv pre_attn_stablelm(const struct lk_net *net, struct ggml_context *ctx,
                                       int layer, struct ggml_tensor *x, struct ggml_tensor *pos) {
    const struct lk_layer *l = &net->layer[layer];
    struct lk_qkv out = {
        .x = x, .aux = lk_layer_norm(ctx, x, l->attn_norm, l->attn_norm_b, net->hp.norm_eps)};
    lk_make_qkv(net, ctx, layer, out.aux, pos, &out);
    return out;
}

static struct ggml_tensor *post_attn_stablelm(const struct lk_net *net, struct ggml_context *ctx,
                                              int layer, const struct lk_qkv *qkv,
                                              struct ggml_tensor *attn) {
    const struct lk_layer *l = &net->layer[layer];
    struct ggml_tensor *x = lk_linear(net, ctx, l->wo, l->bo, qkv->x, attn), *in = qkv->aux;
    if (l->ffn_norm) in = lk_layer_norm(ctx, x, l->ffn_norm, l->ffn_norm_b, net->hp.norm_eps);
    return lk_ffn_silu_gated(net, ctx, l, x, in);
}

const struct lk_family lk_family_stablelm = {
    .arch = {"stablelm"},
    .load = load_stablelm,
    .embed = lk_embed_tokens,
    .pre = pre_attn_stablelm,
    .post = post_attn_stablelm,
    .norm = lk_norm_ln,
    .head = lk_head_ln,
};
