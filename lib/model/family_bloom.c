/* BLOOM: ALiBi instead of rotations, normed embeddings. Multi-head attention as it was trained; with fewer KV heads
 * where they were merged. */
#include "model/blocks.h"
#include "model/family.h"

static lk_status load(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    int64_t n_embd = net->hp.n_embd;
    net->hp.alibi_max_bias = 8.0f; /* of the architecture; files do not carry it */
    lk_status status = lk_read_ln_eps(net, ld, err);
    if (status == LK_OK) status = lk_bind_ends(net, ld, true, err);
    if (status == LK_OK)
        status = lk_bind(ld, &net->tok_norm, "token_embd_norm.weight", -1, LK_USE_VECTOR,
                         LK_REQUIRED, n_embd, 1, err);
    if (status == LK_OK)
        status = lk_bind(ld, &net->tok_norm_b, "token_embd_norm.bias", -1, LK_USE_VECTOR,
                         LK_REQUIRED, n_embd, 1, err);
    return status == LK_OK ? lk_bind_plain_layers(net, ld, err) : status;
}

static struct ggml_tensor *embed(const struct lk_net *net, struct ggml_context *ctx,
                                 struct ggml_tensor *tok, struct ggml_tensor *pos) {
    return lk_layer_norm(ctx, lk_embed_tokens(net, ctx, tok, pos), net->tok_norm, net->tok_norm_b,
                         net->hp.norm_eps);
}

const struct lk_family lk_family_bloom = {"bloom",   load,         embed,
                                          lk_pre_ln, lk_post_gelu, lk_head_ln};
