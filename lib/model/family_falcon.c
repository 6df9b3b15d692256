/* Falcon: attention and the feed-forward network run side by side on the normed input. The 40B model norms
 * attention's input separately. */
#include "model/blocks.h"
#include "model/family.h"

static lk_status bind_layer(struct lk_net *net, struct lk_loader *ld, int i, lk_err *err) {
    int64_t n_embd = net->hp.n_embd, n_ff = net->hp.n_ff;
    struct lk_layer *l = &net->layer[i];
    lk_status status = lk_bind(ld, &l->attn_norm, "blk.%d.attn_norm.weight", i, LK_USE_VECTOR,
                               LK_REQUIRED, n_embd, 1, err);
    if (status == LK_OK)
        status = lk_bind(ld, &l->attn_norm_b, "blk.%d.attn_norm.bias", i, LK_USE_VECTOR,
                         LK_REQUIRED, n_embd, 1, err);
    if (status == LK_OK)
        status = lk_bind(ld, &l->attn_norm_2, "blk.%d.attn_norm_2.weight", i, LK_USE_VECTOR,
                         LK_OPTIONAL, n_embd, 1, err);
    if (status == LK_OK)
        status = lk_bind(ld, &l->attn_norm_2_b, "blk.%d.attn_norm_2.bias", i, LK_USE_VECTOR,
                         LK_OPTIONAL, n_embd, 1, err);
    if (status == LK_OK) status = lk_bind_attention(net, ld, i, true, LK_OPTIONAL, err);
    if (status == LK_OK)
        status = lk_bind(ld, &l->ffn_up, "blk.%d.ffn_up.weight", i, LK_USE_MATRIX, LK_REQUIRED,
                         n_embd, n_ff, err);
    if (status == LK_OK)
        status = lk_bind(ld, &l->ffn_down, "blk.%d.ffn_down.weight", i, LK_USE_MATRIX, LK_REQUIRED,
                         n_ff, n_embd, err);
    return status;
}

static lk_status load(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    lk_status status = lk_hparams_read_rope(&net->hp, &ld->reader, GGML_ROPE_TYPE_NEOX, err);
    if (status == LK_OK) status = lk_read_ln_eps(net, ld, err);
    if (status == LK_OK) status = lk_bind_ends(net, ld, true, err);
    for (int i = 0; status == LK_OK && i < net->hp.n_layer; i++)
        status = bind_layer(net, ld, i, err);
    return status;
}

static struct lk_pre pre(const struct lk_net *net, struct ggml_context *ctx, int layer,
                         struct ggml_tensor *x, struct ggml_tensor *pos) {
    const struct lk_layer *l = &net->layer[layer];
    float eps = net->hp.norm_eps;
    struct lk_pre out = {.x = x, .aux = lk_layer_norm(ctx, x, l->attn_norm, l->attn_norm_b, eps)};
    struct ggml_tensor *in =
        l->attn_norm_2 ? lk_layer_norm(ctx, x, l->attn_norm_2, l->attn_norm_2_b, eps) : out.aux;
    lk_make_qkv(net, ctx, layer, in, pos, &out);
    return out;
}

static struct ggml_tensor *post(const struct lk_net *net, struct ggml_context *ctx, int layer,
                                const struct lk_pre *pre, struct ggml_tensor *attn) {
    const struct lk_layer *l = &net->layer[layer];
    return lk_ffn_gelu(net, ctx, l, lk_linear(net, ctx, l->wo, l->bo, pre->x, attn), pre->aux);
}

const struct lk_family lk_family_falcon = {"falcon", load, lk_embed_tokens, pre, post, lk_head_ln};
