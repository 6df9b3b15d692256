/* Falcon: attention and the feed-forward network run in parallel on the same normed input. The 40B
 * model has a separate norm for the input of attention. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/net.h"

static lk_status bind_falcon_layer(struct lk_net *net, struct lk_loader *ld, int i, lk_err *err) {
    int64_t n_embd = net->hp.n_embd, n_ff = net->hp.n_ff;
    struct lk_layer *l = &net->layer[i];
    const struct lk_tensor_spec norm[] = {
        {&l->attn_norm, "blk.%d.attn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        {&l->attn_norm_b, "blk.%d.attn_norm.bias", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        {&l->attn_norm_2, "blk.%d.attn_norm_2.weight", LK_USE_VECTOR, LK_OPTIONAL, n_embd, 1},
        {&l->attn_norm_2_b, "blk.%d.attn_norm_2.bias", LK_USE_VECTOR, LK_OPTIONAL, n_embd, 1},
    };
    const struct lk_tensor_spec ffn[] = {
        {&l->ffn_up, "blk.%d.ffn_up.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_ff},
        {&l->ffn_down, "blk.%d.ffn_down.weight", LK_USE_MATRIX, LK_REQUIRED, n_ff, n_embd},
    };
    lk_status status = lk_bind(ld, norm, 4, i, err);
    if (!status) status = lk_bind_attention(net, ld, i, true, LK_OPTIONAL, err);
    return status ? status : lk_bind(ld, ffn, 2, i, err);
}

static lk_status load_falcon(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    lk_status status = lk_hparams_read_rope(&net->hp, &ld->reader, GGML_ROPE_TYPE_NEOX, err);
    if (!status) status = lk_hparams_read_layer_norm_eps(&net->hp, &ld->reader, err);
    if (!status) status = lk_bind_embd_output(net, ld, true, err);
    for (int i = 0; !status && i < net->hp.n_layer; i++)
        status = bind_falcon_layer(net, ld, i, err);
    return status;
}

static struct lk_qkv pre_attn_falcon(const struct lk_net *net, struct ggml_context *ctx, int layer,
                                     struct ggml_tensor *x, struct ggml_tensor *pos) {
    const struct lk_layer *l = &net->layer[layer];
    float eps = net->hp.norm_eps;
    struct lk_qkv out = {.x = x, .aux = lk_layer_norm(ctx, x, l->attn_norm, l->attn_norm_b, eps)};
    struct ggml_tensor *in =
        l->attn_norm_2 ? lk_layer_norm(ctx, x, l->attn_norm_2, l->attn_norm_2_b, eps) : out.aux;
    lk_make_qkv(net, ctx, layer, in, pos, &out);
    return out;
}

static struct ggml_tensor *post_attn_falcon(const struct lk_net *net, struct ggml_context *ctx,
                                            int layer, const struct lk_qkv *qkv,
                                            struct ggml_tensor *attn) {
    const struct lk_layer *l = &net->layer[layer];
    return lk_ffn_gelu(net, ctx, l, lk_linear(net, ctx, l->wo, l->bo, qkv->x, attn), qkv->aux);
}

const struct lk_family lk_family_falcon = {
    .arch = {"falcon"},
    .load = load_falcon,
    .embed = lk_embed_tokens,
    .pre = pre_attn_falcon,
    .post = post_attn_falcon,
    .norm = lk_norm_ln,
    .head = lk_head_ln,
};
