/* Gemma 4: layers with a sliding window and layers with full attention have heads of different
 * sizes, and the last layers attend to K and V of earlier ones. V is normed. A layer without W_V
 * uses W_K for both. Layers may add embeddings of their own of each token, and may have a mixture
 * of experts next to the dense network. Otherwise as Gemma 3. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/experts.h"
#include "model/net.h"

#include "gguf.h"

#include <math.h>

enum { MAX_HEADS = 1024, MAX_D_HEAD = 512, MAX_FF = 1 << 20, MAX_LAYER_EMBD = 1 << 14 };

/* ---- keys ---- */

/* KV heads per layer: one number for layers with a window, and one for the others. */
static lk_status read_kv_heads(struct lk_hparams *hp, const struct lk_gguf_reader *r, lk_err *err) {
    int32_t each[LK_MAX_LAYERS], *of_kind[2] = {&hp->n_head_kv, &hp->n_head_kv_swa};
    bool found[2] = {false, false};
    for (int i = 0; i < hp->n_layer; i++) each[i] = hp->n_head_kv;
    lk_status status = lk_gguf_read_layers(r, ".attention.head_count_kv", LK_OPTIONAL, 1, MAX_HEADS,
                                           hp->n_layer, each, err);
    for (int i = 0; !status && i < hp->n_layer; i++) {
        int kind = hp->is_swa[i] != 0;
        if (found[kind] && *of_kind[kind] != each[i])
            return lk_fail(err, LK_E_UNSUPPORTED,
                           "layer %d has %d KV heads, and others with the same window %d", i,
                           each[i], *of_kind[kind]);
        *of_kind[kind] = each[i];
        found[kind] = true;
        if (hp->n_head % each[i] != 0)
            return lk_fail(err, LK_E_FORMAT,
                           "%d query heads are not a multiple of %d key-value heads", hp->n_head,
                           each[i]);
    }
    return status;
}

/* Heads and RoPE of the layers with a window. */
static lk_status read_swa_heads(struct lk_hparams *hp, const struct lk_gguf_reader *r,
                                lk_err *err) {
    int32_t d_value = 0;
    lk_status status = lk_gguf_read_int(r, ".attention.key_length_swa", LK_REQUIRED, 16, MAX_D_HEAD,
                                        &hp->d_head_swa, err);
    if (!status)
        status = lk_gguf_read_int(r, ".attention.value_length_swa", LK_REQUIRED, 16, MAX_D_HEAD,
                                  &d_value, err);
    if (!status && (d_value != hp->d_head_swa || d_value % 16 != 0))
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "heads with a window have keys of %d and values of %d channels; equal "
                       "multiples of 16 are supported",
                       hp->d_head_swa, d_value);
    hp->n_rot_swa = hp->n_rot;
    if (!status)
        status = lk_gguf_read_int(r, ".rope.dimension_count_swa", LK_OPTIONAL, 2, MAX_D_HEAD,
                                  &hp->n_rot_swa, err);
    if (!status && (hp->n_rot_swa > hp->d_head_swa || hp->n_rot_swa % 2 != 0))
        return lk_fail(err, LK_E_FORMAT, "RoPE over %d of %d channels is not possible",
                       hp->n_rot_swa, hp->d_head_swa);
    return status ? status : read_kv_heads(hp, r, err);
}

/* The layers that share K and V attend to those of the last two layers before them: one with a
 * window, and then one without. */
static lk_status read_shared(struct lk_hparams *hp, const struct lk_gguf_reader *r, lk_err *err) {
    lk_status status = lk_gguf_read_int(r, ".attention.shared_kv_layers", LK_OPTIONAL, 0,
                                        hp->n_layer - 1, &hp->n_shared, err);
    int first = hp->n_layer - hp->n_shared;
    if (status || hp->n_shared == 0) return status;
    if (first < 2 || !hp->is_swa[first - 2] || hp->is_swa[first - 1])
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "%d layers share K and V, but the two layers before them are not one with a "
                       "sliding window and one without",
                       hp->n_shared);
    return LK_OK;
}

static lk_status read_keys(struct lk_hparams *hp, const struct lk_gguf_reader *r, lk_err *err) {
    lk_status status = lk_hparams_read_rope(hp, r, GGML_ROPE_TYPE_NEOX, err);
    hp->norms_v = true;
    hp->expert_act = LK_EXPERT_GEGLU;
    hp->n_ff_shared = hp->n_ff;
    hp->attn_scale = 1.0f;
    hp->logit_softcap = 30.0f; /* unless the file has another */
    hp->embd_scale = sqrtf((float)hp->n_embd);
    hp->rope[1].base = hp->rope[0].base;
    if (!status) status = lk_hparams_read_window(hp, r, 0, err);
    if (!status && (hp->n_swa == 0 || lk_gguf_find_key(r, ".attention.sliding_window_pattern") < 0))
        return lk_fail(err, LK_E_FORMAT,
                       "the file has no keys %s.attention.sliding_window and "
                       "sliding_window_pattern",
                       r->arch);
    if (!status) status = read_swa_heads(hp, r, err);
    if (!status) status = read_shared(hp, r, err);
    if (!status)
        status = lk_gguf_read_int(r, ".embedding_length_per_layer_input", LK_REQUIRED, 0,
                                  MAX_LAYER_EMBD, &hp->n_embd_layer, err);
    if (!status)
        status =
            lk_gguf_read_float(r, ".final_logit_softcapping", LK_OPTIONAL, &hp->logit_softcap, err);
    return status ? status : lk_hparams_read_rms_eps(hp, r, err);
}

/* ---- tensors ---- */

static lk_status bind_attention(struct lk_net *net, struct lk_loader *ld, int i, lk_err *err) {
    const struct lk_hparams *hp = &net->hp;
    struct lk_layer *l = &net->layer[i];
    struct lk_layer_heads heads = lk_hparams_heads(hp, i);
    int64_t n_embd = hp->n_embd, n_q = (int64_t)hp->n_head * heads.d,
            n_kv = (int64_t)heads.n_kv * heads.d;
    const struct lk_tensor_spec spec[] = {
        {&l->wo, "blk.%d.attn_output.weight", LK_USE_MATRIX, LK_REQUIRED, n_q, n_embd},
        {&l->q_norm, "blk.%d.attn_q_norm.weight", LK_USE_VECTOR, LK_REQUIRED, heads.d, 1},
        {&l->k_norm, "blk.%d.attn_k_norm.weight", LK_USE_VECTOR, LK_REQUIRED, heads.d, 1},
    };
    const struct lk_tensor_spec projection[] = {
        {&l->wq, "blk.%d.attn_q.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_q},
        {&l->wk, "blk.%d.attn_k.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_kv},
        {&l->wv, "blk.%d.attn_v.weight", LK_USE_MATRIX, LK_OPTIONAL, n_embd, n_kv},
    };
    bool shares = lk_hparams_shares(hp, i);
    lk_status status = lk_bind(ld, spec, shares ? 2 : 3, i, err);
    size_t before = ld->n_bind;
    if (!status) status = lk_bind(ld, projection, shares ? 1 : 3, i, err);
    if (!shares) lk_bind_concat(ld, &l->wqkv, &l->bqkv, before, ld->n_bind - before);
    return status;
}

static lk_status bind_ffn(struct lk_net *net, struct lk_loader *ld, int i, int64_t n_ff,
                          lk_err *err) {
    struct lk_layer *l = &net->layer[i];
    int64_t n_embd = net->hp.n_embd, n = net->hp.n_embd_layer;
    const struct lk_tensor_spec gate[] = {
        {&l->ffn_gate, "blk.%d.ffn_gate.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_ff},
        {&l->ffn_up, "blk.%d.ffn_up.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_ff},
    };
    const struct lk_tensor_spec rest[] = {
        {&l->attn_norm, "blk.%d.attn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        {&l->ffn_norm, "blk.%d.ffn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        {&l->ffn_down, "blk.%d.ffn_down.weight", LK_USE_MATRIX, LK_REQUIRED, n_ff, n_embd},
        {&l->out_scale, "blk.%d.layer_output_scale.weight", LK_USE_VECTOR, LK_OPTIONAL, 1, 1},
        {&l->tok_gate, "blk.%d.inp_gate.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n},
        {&l->tok_up, "blk.%d.proj.weight", LK_USE_MATRIX, LK_REQUIRED, n, n_embd},
        {&l->tok_post_norm, "blk.%d.post_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
    };
    size_t before = ld->n_bind;
    lk_status status = lk_bind(ld, gate, 2, i, err);
    lk_bind_concat(ld, &l->ffn_gate_up, &l->ffn_gate_up_b, before, 2);
    return status ? status : lk_bind(ld, rest, n > 0 ? 7 : 4, i, err);
}

static lk_status bind_experts(struct lk_net *net, struct lk_loader *ld, int i, lk_err *err) {
    struct lk_experts *e = &net->layer[i].experts;
    int64_t n_embd = net->hp.n_embd;
    const struct lk_tensor_spec spec[] = {
        {&e->router_scale, "blk.%d.ffn_gate_inp.scale", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        {&e->norm, "blk.%d.pre_ffw_norm_2.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        {&e->post_norm, "blk.%d.post_ffw_norm_2.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        {&e->dense_post_norm, "blk.%d.post_ffw_norm_1.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd,
         1},
        {&e->down_scale, "blk.%d.ffn_down_exps.scale", LK_USE_VECTOR, LK_OPTIONAL, net->hp.n_expert,
         1},
    };
    lk_status status = lk_experts_bind(net, ld, i, LK_OPTIONAL, err);
    return status ? status : lk_bind(ld, spec, sizeof spec / sizeof *spec, i, err);
}

/* Embeddings of the layers, and their projection: layers use parts of its rows, like a table's. */
static lk_status bind_model(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    const struct lk_hparams *hp = &net->hp;
    int64_t n = hp->n_embd_layer, n_all = n * hp->n_layer;
    const struct lk_tensor_spec embd[] = {
        {&net->layer_embd, "per_layer_token_embd.weight", LK_USE_TABLE, LK_REQUIRED, n_all,
         hp->n_vocab},
        {&net->layer_proj, "per_layer_model_proj.weight", LK_USE_TABLE, LK_REQUIRED, hp->n_embd,
         n_all},
        {&net->layer_proj_norm, "per_layer_proj_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n, 1},
    };
    const struct lk_tensor_spec rope = {&net->rope_factors, "rope_freqs.weight", LK_USE_VECTOR,
                                        LK_REQUIRED,        hp->d_head / 2,      1};
    bool all_swa = true;
    for (int i = 0; i < hp->n_layer; i++) all_swa &= hp->is_swa[i] != 0;
    lk_status status = lk_bind_embd_output(net, ld, false, err);
    if (!status && !all_swa) status = lk_bind(ld, &rope, 1, -1, err);
    if (status || n == 0) return status;
    int64_t id = gguf_find_tensor(ld->reader.gguf, "per_layer_token_embd.weight"),
            block = id < 0 ? 1 : ggml_blck_size(gguf_get_tensor_type(ld->reader.gguf, id));
    if (n % block != 0)
        return lk_fail(
            err, LK_E_UNSUPPORTED,
            "layers have embeddings of %lld channels, which blocks of %lld do not divide",
            (long long)n, (long long)block);
    return lk_bind(ld, embd, 3, -1, err);
}

static lk_status load_gemma4(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    int32_t n_ff[LK_MAX_LAYERS];
    lk_status status = lk_bind_check_unchanged(ld, err);
    if (!status) status = read_keys(&net->hp, &ld->reader, err);
    if (!status)
        status = lk_gguf_read_layers(&ld->reader, ".feed_forward_length", LK_REQUIRED, 1, MAX_FF,
                                     net->hp.n_layer, n_ff, err);
    if (!status) status = bind_model(net, ld, err);
    for (int i = 0; !status && i < net->hp.n_layer; i++) {
        status = bind_attention(net, ld, i, err);
        if (!status) status = bind_ffn(net, ld, i, n_ff[i], err);
        if (!status && net->hp.n_expert > 0) status = bind_experts(net, ld, i, err);
    }
    return status ? status : lk_bind_post_norms(net, ld, err);
}

/* ---- graphs ---- */

/* The layer's own embedding of the tokens [n_tok][n] plus the projection of their embeddings
 * [n_tok][n_embd], one as strong as the other. */
static struct ggml_tensor *add_projection(const struct lk_net *net, struct ggml_context *ctx,
                                          int layer, struct ggml_tensor *own,
                                          struct ggml_tensor *embd) {
    bool there = lk_net_on_device(net, layer);
    struct ggml_tensor *proj = there ? net->layer_proj_on_device : net->layer_proj,
                       *norm = there ? net->layer_proj_norm_on_device : net->layer_proj_norm;
    int64_t n = net->hp.n_embd_layer;
    proj = ggml_view_2d(ctx, proj, proj->ne[0], n, proj->nb[1], (size_t)(layer * n) * proj->nb[1]);
    struct ggml_tensor *x = ggml_mul_mat(ctx, proj, embd);
    x = ggml_scale(ctx, x, 1.0f / sqrtf((float)net->hp.n_embd));
    x = lk_rms_norm(ctx, x, norm, net->hp.norm_eps);
    return ggml_scale(ctx, ggml_add(ctx, x, own), sqrtf(0.5f));
}

/* Of a layer on a device [n_tok][n + n_embd]: both embeddings, for layer_input. */
static struct ggml_tensor *token_input(const struct lk_net *net, struct ggml_context *ctx,
                                       int layer, struct ggml_tensor *tok) {
    struct ggml_tensor *table = net->layer_embd;
    int64_t n = net->hp.n_embd_layer;
    if (n == 0) return NULL;
    table = ggml_view_2d(ctx, table, n, table->ne[1], table->nb[1],
                         (size_t)layer * ggml_row_size(table->type, n));
    struct ggml_tensor *own = ggml_scale(ctx, ggml_get_rows(ctx, table, tok), sqrtf((float)n)),
                       *embd = lk_embed_tokens(net, ctx, tok, NULL);
    return lk_net_on_device(net, layer) ? ggml_concat(ctx, own, embd, 0)
                                        : add_projection(net, ctx, layer, own, embd);
}

/* What a layer adds of the tokens [n_tok][n], from token_input's result. */
static struct ggml_tensor *layer_input(const struct lk_net *net, struct ggml_context *ctx,
                                       int layer, struct ggml_tensor *tok) {
    int64_t n = net->hp.n_embd_layer, n_tok = tok->ne[1];
    if (!lk_net_on_device(net, layer)) return tok;
    struct ggml_tensor *own = ggml_view_2d(ctx, tok, n, n_tok, tok->nb[1], 0),
                       *embd = ggml_view_2d(ctx, tok, tok->ne[0] - n, n_tok, tok->nb[1],
                                            (size_t)n * sizeof(float));
    return add_projection(net, ctx, layer, own, ggml_cont(ctx, embd));
}

static struct lk_qkv pre_gemma4(const struct lk_net *net, struct ggml_context *ctx, int layer,
                                struct ggml_tensor *x, struct ggml_tensor *pos) {
    const struct lk_hparams *hp = &net->hp;
    const struct lk_layer *l = &net->layer[layer];
    struct lk_layer_heads heads = lk_hparams_heads(hp, layer);
    int d = heads.d, n_q = hp->n_head, n_kv = heads.n_kv;
    struct ggml_tensor *q, *k = NULL, *v = NULL;
    struct lk_qkv out = {.x = x};
    x = lk_rms_norm(ctx, x, l->attn_norm, hp->norm_eps);
    if (l->wqkv) {
        struct ggml_tensor *all = lk_linear(net, ctx, l->wqkv, NULL, NULL, x);
        bool has_v = all->ne[0] == (int64_t)(n_q + 2 * n_kv) * d;
        q = lk_view_heads(ctx, all, 0, n_q, d);
        k = lk_view_heads(ctx, all, n_q, n_kv, d);
        v = lk_view_heads(ctx, all, has_v ? n_q + n_kv : n_q, n_kv, d);
    } else {
        q = lk_view_heads(ctx, lk_linear(net, ctx, l->wq, NULL, NULL, x), 0, n_q, d);
        if (l->wk) k = lk_view_heads(ctx, lk_linear(net, ctx, l->wk, NULL, NULL, x), 0, n_kv, d);
        v = l->wv ? lk_view_heads(ctx, lk_linear(net, ctx, l->wv, NULL, NULL, x), 0, n_kv, d) : k;
    }
    out.q = lk_apply_rope(net, ctx, layer, lk_rms_norm(ctx, q, l->q_norm, hp->norm_eps), pos);
    if (lk_hparams_shares(hp, layer)) return out;
    out.k = lk_apply_rope(net, ctx, layer, lk_rms_norm(ctx, k, l->k_norm, hp->norm_eps), pos);
    out.v = ggml_rms_norm(ctx, v, hp->norm_eps);
    return out;
}

/* The norm of x, plus residual. */
static struct ggml_tensor *add_normed(const struct lk_net *net, struct ggml_context *ctx,
                                      struct ggml_tensor *x, struct ggml_tensor *norm,
                                      struct ggml_tensor *residual) {
    return ggml_add(ctx, lk_rms_norm(ctx, x, norm, net->hp.norm_eps), residual);
}

/* The dense network plus the experts. Both, and the router, have the same input x, which each
 * multiplies by its own factors after the norm. */
static struct ggml_tensor *ffn_with_experts(const struct lk_net *net, struct ggml_context *ctx,
                                            const struct lk_layer *l, struct ggml_tensor *x) {
    const struct lk_experts *e = &l->experts;
    struct ggml_tensor *normed = ggml_rms_norm(ctx, x, net->hp.norm_eps),
                       *router_x = ggml_scale(ctx, ggml_mul(ctx, normed, e->router_scale),
                                              1.0f / sqrtf((float)net->hp.n_embd));
    struct ggml_tensor *dense =
        lk_ffn_gelu_gated(net, ctx, l, NULL, ggml_mul(ctx, normed, l->ffn_norm));
    struct ggml_tensor *mix =
        lk_experts_mix(net, ctx, l, NULL, router_x, ggml_mul(ctx, normed, e->norm));
    return add_normed(net, ctx, mix, e->post_norm,
                      lk_rms_norm(ctx, dense, e->dense_post_norm, net->hp.norm_eps));
}

static struct ggml_tensor *post_gemma4(const struct lk_net *net, struct ggml_context *ctx,
                                       int layer, const struct lk_qkv *qkv,
                                       struct ggml_tensor *attn) {
    const struct lk_layer *l = &net->layer[layer];
    struct ggml_tensor *x = lk_linear(net, ctx, l->wo, NULL, NULL, attn);
    x = add_normed(net, ctx, x, l->attn_post_norm, qkv->x);
    struct ggml_tensor *ffn =
        l->experts.router ? ffn_with_experts(net, ctx, l, x)
                          : lk_ffn_gelu_gated(net, ctx, l, NULL,
                                              lk_rms_norm(ctx, x, l->ffn_norm, net->hp.norm_eps));
    x = add_normed(net, ctx, ffn, l->ffn_post_norm, x);
    if (qkv->tok) {
        struct ggml_tensor *gate = ggml_gelu(ctx, lk_linear(net, ctx, l->tok_gate, NULL, NULL, x));
        gate = ggml_mul(ctx, gate, layer_input(net, ctx, layer, qkv->tok));
        struct ggml_tensor *own = lk_linear(net, ctx, l->tok_up, NULL, NULL, gate);
        x = add_normed(net, ctx, own, l->tok_post_norm, x);
    }
    return l->out_scale ? ggml_mul(ctx, x, l->out_scale) : x;
}

const struct lk_family lk_family_gemma4 = {
    .arch = {"gemma4"},
    .has_experts = true,
    .layers_vary = true,
    .load = load_gemma4,
    .embed = lk_embed_tokens,
    .token_input = token_input,
    .pre = pre_gemma4,
    .post = post_gemma4,
    .norm = lk_norm_rms,
    .head = lk_head_rms,
};
