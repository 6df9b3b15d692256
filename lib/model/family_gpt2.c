/* GPT-2: learned position embeddings, added to the token embeddings. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/net.h"

static lk_status load_gpt2(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    const struct lk_tensor_spec pos_embd = {&net->pos_embd, "position_embd.weight",
                                            LK_USE_TABLE,   LK_REQUIRED,
                                            net->hp.n_embd, net->hp.n_ctx_train};
    lk_status status = lk_hparams_read_layer_norm_eps(&net->hp, &ld->reader, err);
    if (!status) status = lk_bind_embd_output(net, ld, true, err);
    if (!status) status = lk_bind(ld, &pos_embd, 1, -1, err);
    return status ? status : lk_bind_plain_layers(net, ld, err);
}

static struct ggml_tensor *embed_gpt2(const struct lk_net *net, struct ggml_context *ctx,
                                      struct ggml_tensor *tok, struct ggml_tensor *pos) {
    return ggml_add(ctx, lk_embed_tokens(net, ctx, tok, pos),
                    ggml_get_rows(ctx, net->pos_embd, pos));
}

const struct lk_family lk_family_gpt2 = {
    .arch = {"gpt2"},
    .load = load_gpt2,
    .embed = embed_gpt2,
    .pre = lk_pre_attn_ln,
    .post = lk_post_attn_gelu,
    .norm = lk_norm_ln,
    .head = lk_head_ln,
};
