/* BLOOM: ALiBi instead of RoPE, layer norm after the embeddings. Trained with multi-head attention;
 * files whose KV heads were merged have fewer KV heads. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/net.h"

static lk_status load_bloom(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    int64_t n_embd = net->hp.n_embd;
    const struct lk_tensor_spec spec[] = {
        {&net->tok_norm, "token_embd_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        {&net->tok_norm_b, "token_embd_norm.bias", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
    };
    net->hp.alibi_max_bias = 8.0f; /* fixed by the architecture, not stored in files */
    lk_status status = lk_hparams_read_layer_norm_eps(&net->hp, &ld->reader, err);
    if (!status) status = lk_bind_embd_output(net, ld, true, err);
    if (!status) status = lk_bind(ld, spec, 2, -1, err);
    return status ? status : lk_bind_plain_layers(net, ld, err);
}

static struct ggml_tensor *embed_bloom(const struct lk_net *net, struct ggml_context *ctx,
                                       struct ggml_tensor *tok, struct ggml_tensor *pos) {
    return lk_layer_norm(ctx, lk_embed_tokens(net, ctx, tok, pos), net->tok_norm, net->tok_norm_b,
                         net->hp.norm_eps);
}

const struct lk_family lk_family_bloom = {
    .arch = {"bloom"},
    .load = load_bloom,
    .embed = embed_bloom,
    .pre = lk_pre_attn_ln,
    .post = lk_post_attn_gelu,
    .norm = lk_norm_ln,
    .head = lk_head_ln,
};
