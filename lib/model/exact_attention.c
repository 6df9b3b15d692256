/* Nodes of attention to exact rows, and whether a device has the operator. */
#include "model/exact_attention.h"

#include "base/cxx_call.h"

enum { N_TRY = 512, TRY_TENSORS = 32 }; /* rows and tokens of a node that a device is asked about */

size_t lk_exact_width(const struct lk_hparams *hp, struct lk_layer_heads heads, bool k) {
    if (hp->d_rope > 0) return k ? (size_t)(hp->d_head + hp->d_rope) : 0;
    return (size_t)heads.n_kv * heads.d;
}

/* Rows [first, end) of a tensor as heads of d channels. */
static struct ggml_tensor *view_heads(const struct lk_hparams *hp, struct ggml_context *ctx,
                                      struct lk_layer_heads heads, struct ggml_tensor *rows, int d,
                                      size_t first, size_t end) {
    size_t size = lk_exact_width(hp, heads, true) * sizeof(ggml_fp16_t);
    return ggml_view_3d(ctx, rows, d, (int64_t)(end - first), heads.n_kv, size,
                        (size_t)d * sizeof(ggml_fp16_t), first * size);
}

struct ggml_tensor *lk_exact_attention(const struct lk_hparams *hp, struct ggml_context *ctx,
                                       struct lk_layer_heads heads, struct ggml_tensor *q,
                                       struct ggml_tensor *k, struct ggml_tensor *v, size_t first,
                                       size_t end, struct ggml_tensor *mask,
                                       struct ggml_tensor *sinks) {
    struct ggml_tensor *keys = view_heads(hp, ctx, heads, k, heads.d + hp->d_rope, first, end),
                       *values = view_heads(hp, ctx, heads, v, heads.d, first, end),
                       *attn = ggml_flash_attn_ext(ctx, ggml_permute(ctx, q, 0, 2, 1, 3), keys,
                                                   values, mask, hp->attn_scale, hp->alibi_max_bias,
                                                   hp->attn_softcap);
    ggml_prec_set_acc(attn, GGML_PREC_F32);
    ggml_flash_attn_ext_add_sinks(attn, sinks);
    return ggml_reshape_2d(ctx, attn, (int64_t)heads.d * hp->n_head, q->ne[2]);
}

struct question {
    const struct lk_net *net;
    void *mem; /* of the tensors */
    size_t size;
    bool ok;
};

/* May throw. */
static void ask(void *arg) {
    struct question *a = arg;
    const struct lk_hparams *hp = &a->net->hp;
    ggml_backend_dev_t dev = ggml_backend_buft_get_device(a->net->device->buft);
    struct ggml_context *ctx = ggml_init(
        (struct ggml_init_params){.mem_size = a->size, .mem_buffer = a->mem, .no_alloc = true});
    a->ok = dev;
    for (int layer = 0, asked[2] = {0}; a->ok && layer < hp->n_layer; layer++) {
        if (hp->is_recurrent[layer] || asked[hp->is_swa[layer]]++) continue;
        struct lk_layer_heads heads = lk_hparams_heads(hp, layer);
        int64_t width = (int64_t)lk_exact_width(hp, heads, true);
        struct ggml_tensor *rows = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, width, N_TRY),
                           *q = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, heads.d + hp->d_rope,
                                                   hp->n_head, N_TRY),
                           *mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, N_TRY, N_TRY);
        struct ggml_tensor *attn = lk_exact_attention(hp, ctx, heads, q, rows, rows, 0, N_TRY, mask,
                                                      a->net->layer[layer].attn_sinks);
        a->ok = ggml_backend_dev_supports_op(dev, attn->view_src);
    }
    ggml_free(ctx);
}

const char *lk_exact_attention_refused(const struct lk_net *net, struct lk_ledger *ledger) {
    struct question a = {.net = net, .size = ggml_tensor_overhead() * TRY_TENSORS};
    if (!net->device) return NULL;
    if (!net->device->has_stream) return "commands for a cache cannot follow its own";
    a.mem = lk_alloc(ledger, LK_FOR_SCRATCH, a.size);
    if (a.mem) lk_cxx_call(ask, &a, NULL);
    lk_release(ledger, LK_FOR_SCRATCH, a.mem, a.size);
    return a.ok ? NULL : "ggml has no attention for its heads there";
}
