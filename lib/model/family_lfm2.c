/* LFM2: most layers are short convolutions, whose input and output are gated. The others have
 * attention with norms of q and k. All have the same gated feed-forward network, or a mixture of
 * experts after the first layers. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/experts.h"
#include "model/net.h"

#include <string.h>

enum { MAX_HEADS = 1024, MAX_CONV = 16 };

/* Layers without KV heads are convolutions. */
static lk_status read_keys(struct lk_hparams *hp, const struct lk_gguf_reader *r, lk_err *err) {
    int32_t n_head_kv[LK_MAX_LAYERS], n_conv = 0, n_swa = 0;
    lk_status status = lk_hparams_read_rope(hp, r, GGML_ROPE_TYPE_NEOX, err);
    if (!status) status = lk_hparams_read_rms_eps(hp, r, err);
    if (!status)
        status = lk_gguf_read_int(r, ".attention.sliding_window", LK_OPTIONAL, 0, INT32_MAX, &n_swa,
                                  err);
    if (!status && n_swa > 0)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "attention has a sliding window of %d tokens, which is not supported for %s "
                       "models",
                       n_swa, r->arch);
    if (!status)
        status = lk_gguf_read_layers(r, ".attention.head_count_kv", LK_REQUIRED, 0, MAX_HEADS,
                                     hp->n_layer, n_head_kv, err);
    if (!status)
        status = lk_gguf_read_int(r, ".shortconv.l_cache", LK_REQUIRED, 2, MAX_CONV, &n_conv, err);
    for (int i = 0; !status && i < hp->n_layer; i++) hp->is_recurrent[i] = n_head_kv[i] == 0;
    hp->recurrence = (struct lk_recurrence_shape){
        .kind = LK_SHORT_CONV, .n_v_head = 1, .d_value = hp->n_embd, .n_conv = n_conv};
    return status;
}

static lk_status read_experts(struct lk_hparams *hp, const struct lk_gguf_reader *r, lk_err *err) {
    lk_status status = lk_experts_require(hp, r, err);
    if (!status) status = lk_experts_read_dense(hp, r, err);
    return status ? status : lk_experts_read_function(hp, r, LK_REQUIRED, err);
}

static lk_status bind_layer(struct lk_net *net, struct lk_loader *ld, int i, lk_err *err) {
    struct lk_layer *l = &net->layer[i];
    int64_t n_embd = net->hp.n_embd, d = net->hp.d_head;
    const struct lk_tensor_spec norm[] = {
        {&l->attn_norm, "blk.%d.attn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        {&l->ffn_norm, "blk.%d.ffn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        {&l->q_norm, "blk.%d.attn_q_norm.weight", LK_USE_VECTOR, LK_REQUIRED, d, 1},
        {&l->k_norm, "blk.%d.attn_k_norm.weight", LK_USE_VECTOR, LK_REQUIRED, d, 1},
    };
    const struct lk_tensor_spec conv[] = {
        {&l->conv, "blk.%d.shortconv.conv.weight", LK_USE_VECTOR, LK_REQUIRED,
         net->hp.recurrence.n_conv, n_embd},
        {&l->w_mixed, "blk.%d.shortconv.in_proj.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd,
         3 * n_embd},
        {&l->wo, "blk.%d.shortconv.out_proj.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_embd},
    };
    bool recurrent = net->hp.is_recurrent[i];
    lk_status status = lk_bind(ld, norm, recurrent ? 2 : 4, i, err);
    if (!status) status = lk_bind_gated_ffn(net, ld, i, err);
    if (!status && net->hp.n_expert > 0 && i >= net->hp.n_dense)
        status = lk_experts_bind_bias(net, ld, i, LK_REQUIRED, err);
    if (status) return status;
    return recurrent ? lk_bind(ld, conv, sizeof conv / sizeof *conv, i, err)
                     : lk_bind_attention(net, ld, i, false, LK_OPTIONAL, err);
}

static lk_status load_lfm2(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    bool dense = strcmp(net->arch, "lfm2") == 0 && net->hp.n_expert == 0;
    lk_status status = lk_bind_check_unchanged(ld, err);
    if (!status) status = read_keys(&net->hp, &ld->reader, err);
    if (!status && !dense) status = read_experts(&net->hp, &ld->reader, err);
    if (!status) status = lk_bind_embd_output(net, ld, false, err);
    for (int i = 0; !status && i < net->hp.n_layer; i++) status = bind_layer(net, ld, i, err);
    return status;
}

/* Three projections: the gate of the input, that of the output, and the input. */
static struct lk_qkv pre_lfm2(const struct lk_net *net, struct ggml_context *ctx, int layer,
                              struct ggml_tensor *x, struct ggml_tensor *pos) {
    const struct lk_layer *l = &net->layer[layer];
    int n = net->hp.n_embd;
    if (!net->hp.is_recurrent[layer]) return lk_pre_attn_rms(net, ctx, layer, x, pos);
    struct lk_qkv out = {.x = x};
    x = lk_rms_norm(ctx, x, l->attn_norm, net->hp.norm_eps);
    struct ggml_tensor *all = lk_linear(net, ctx, l->w_mixed, NULL, NULL, x), *part[3];
    for (int i = 0; i < 3; i++)
        part[i] = ggml_cont_2d(ctx, lk_view_heads(ctx, all, i, 1, n), n, all->ne[1]);
    out.mixed = ggml_mul(ctx, part[0], part[2]);
    out.aux = part[1];
    return out;
}

static struct ggml_tensor *post_lfm2(const struct lk_net *net, struct ggml_context *ctx, int layer,
                                     const struct lk_qkv *qkv, struct ggml_tensor *attn) {
    if (net->hp.is_recurrent[layer]) attn = ggml_mul(ctx, attn, qkv->aux);
    return net->layer[layer].experts.router ? lk_post_attn_experts(net, ctx, layer, qkv, attn)
                                            : lk_post_attn_silu(net, ctx, layer, qkv, attn);
}

const struct lk_family lk_family_lfm2 = {
    .arch = {"lfm2", "lfm2moe"},
    .has_experts = true,
    .layers_vary = true,
    .final_norm = "token_embd_norm.weight",
    .load = load_lfm2,
    .embed = lk_embed_tokens,
    .pre = pre_lfm2,
    .post = post_lfm2,
    .norm = lk_norm_rms,
    .head = lk_head_rms,
};
