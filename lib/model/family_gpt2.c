/* GPT-2: learned positions, added to the embeddings. */
#include "model/blocks.h"
#include "model/family.h"

static lk_status load(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    lk_status status = lk_read_ln_eps(net, ld, err);
    if (status == LK_OK) status = lk_bind_ends(net, ld, true, err);
    if (status == LK_OK) {
        status = lk_bind(ld, &net->pos_embd, "position_embd.weight", -1, LK_USE_TABLE, LK_REQUIRED,
                         net->hp.n_embd, net->hp.n_ctx_train, err);
    }
    return status == LK_OK ? lk_bind_plain_layers(net, ld, err) : status;
}

static struct ggml_tensor *embed(const struct lk_net *net, struct ggml_context *ctx,
                                 struct ggml_tensor *tok, struct ggml_tensor *pos) {
    return ggml_add(ctx, lk_embed_tokens(net, ctx, tok, pos),
                    ggml_get_rows(ctx, net->pos_embd, pos));
}

const struct lk_family lk_family_gpt2 = {"gpt2", load, embed, lk_pre_ln, lk_post_gelu, lk_head_ln};
