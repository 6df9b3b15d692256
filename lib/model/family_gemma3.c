/* Gemma 3: sliding-window attention in five of six layers, with a separate RoPE base for them.
 * Extra norms after attention and after the feed-forward network. Scaled embeddings. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/family.h"

#include "gguf.h"

#include <math.h>

/* Which layers use the sliding window: either a period p (the last of each p layers has full
 * attention) or one flag per layer. */
static lk_status read_swa_pattern(struct lk_net *net, const struct lk_gguf_reader *r, lk_err *err) {
    static const char key[] = ".attention.sliding_window_pattern";
    struct lk_hparams *hp = &net->hp;
    int64_t id = lk_gguf_find_key(r, key);
    if (id >= 0 && gguf_get_kv_type(r->gguf, id) == GGUF_TYPE_ARRAY) {
        enum gguf_type type = gguf_get_arr_type(r->gguf, id);
        bool wide = type == GGUF_TYPE_UINT32 || type == GGUF_TYPE_INT32;
        if ((!wide && type != GGUF_TYPE_BOOL) ||
            gguf_get_arr_n(r->gguf, id) != (size_t)hp->n_layer) {
            return lk_fail(err, LK_E_FORMAT, "key %s is not a list of %d flags",
                           gguf_get_key(r->gguf, id), hp->n_layer);
        }
        const void *data = gguf_get_arr_data(r->gguf, id);
        for (int i = 0; i < hp->n_layer; i++) {
            hp->is_swa[i] =
                wide ? ((const uint32_t *)data)[i] != 0 : ((const uint8_t *)data)[i] != 0;
        }
        return LK_OK;
    }
    int32_t period = 6;
    lk_status status = lk_gguf_read_int(r, key, LK_OPTIONAL, 0, INT32_MAX, &period, err);
    for (int i = 0; !status && i < hp->n_layer; i++)
        hp->is_swa[i] = period == 0 || i % period < period - 1;
    return status;
}

static lk_status read_sliding_window(struct lk_net *net, const struct lk_gguf_reader *r,
                                     lk_err *err) {
    struct lk_hparams *hp = &net->hp;
    lk_status status = lk_gguf_read_int(r, ".attention.sliding_window", LK_OPTIONAL, 0, INT32_MAX,
                                        &hp->n_swa, err);
    if (status || hp->n_swa == 0) return status;
    status = lk_gguf_read_float(r, ".rope.freq_base_swa", LK_OPTIONAL, &hp->rope_base_swa, err);
    if (!status && !(hp->rope_base_swa > 0))
        return lk_fail(err, LK_E_FORMAT,
                       "the rope base of sliding-window layers is %g, expected a positive "
                       "number",
                       hp->rope_base_swa);
    return status ? status : read_swa_pattern(net, r, err);
}

static lk_status bind_post_norms(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    int64_t n_embd = net->hp.n_embd;
    lk_status status = LK_OK;
    for (int i = 0; !status && i < net->hp.n_layer; i++) {
        struct lk_layer *l = &net->layer[i];
        const struct lk_tensor_spec spec[] = {
            {&l->attn_post_norm, "blk.%d.post_attention_norm.weight", LK_USE_VECTOR, LK_REQUIRED,
             n_embd, 1},
            {&l->ffn_post_norm, "blk.%d.post_ffw_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd,
             1},
        };
        status = lk_bind(ld, spec, 2, i, err);
    }
    return status;
}

static lk_status load_gemma3(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    struct lk_hparams *hp = &net->hp;
    lk_status status = lk_hparams_read_rope(hp, &ld->reader, GGML_ROPE_TYPE_NEOX, err);
    if (!status) status = read_sliding_window(net, &ld->reader, err);
    if (!status)
        status = lk_gguf_read_float(&ld->reader, ".final_logit_softcapping", LK_OPTIONAL,
                                    &hp->logit_softcap, err);
    if (!status) status = lk_hparams_read_rms_eps(&net->hp, &ld->reader, err);
    hp->embd_scale = sqrtf((float)hp->n_embd);
    if (hp->n_layer == 62)
        hp->attn_scale = 1.0f / sqrtf((float)(hp->n_embd / hp->n_head)); /* only the 27B model */
    if (!status) status = lk_bind_embd_output(net, ld, false, err);
    if (!status) status = lk_bind_gated_layers(net, ld, err);
    if (!status) status = lk_bind_qk_norms(net, ld, err);
    return status ? status : bind_post_norms(net, ld, err);
}

static struct ggml_tensor *post_attn_gemma3(const struct lk_net *net, struct ggml_context *ctx,
                                            int layer, const struct lk_qkv *qkv,
                                            struct ggml_tensor *attn) {
    const struct lk_layer *l = &net->layer[layer];
    float eps = net->hp.norm_eps;
    struct ggml_tensor *x = ggml_add(
        ctx,
        lk_rms_norm(ctx, lk_linear(net, ctx, l->wo, l->bo, NULL, attn), l->attn_post_norm, eps),
        qkv->x);
    struct ggml_tensor *ffn =
        lk_ffn_gelu_gated(net, ctx, l, NULL, lk_rms_norm(ctx, x, l->ffn_norm, eps));
    return ggml_add(ctx, lk_rms_norm(ctx, ffn, l->ffn_post_norm, eps), x);
}

const struct lk_family lk_family_gemma3 = {
    .arch = "gemma3",
    .load = load_gemma3,
    .embed = lk_embed_tokens,
    .pre = lk_pre_attn_rms,
    .post = post_attn_gemma3,
    .norm = lk_norm_rms,
    .head = lk_head_rms,
};
