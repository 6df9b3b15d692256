/* Binds the groups of tensors that several families share. */
#include "model/bind_layers.h"

#include "model/experts.h"

#include "gguf.h"

lk_status lk_bind_embd_output(struct lk_net *net, struct lk_loader *ld, bool norm_bias,
                              lk_err *err) {
    int64_t n_embd = net->hp.n_embd, n_vocab = net->hp.n_vocab;
    const char *norm = net->family->final_norm ? net->family->final_norm : "output_norm.weight";
    bool tied = gguf_find_tensor(ld->reader.gguf, "output.weight") < 0;
    const struct lk_tensor_spec spec[] = {
        {&net->tok_embd, "token_embd.weight", LK_USE_TABLE, LK_REQUIRED, n_embd, n_vocab},
        {&net->output, tied ? "token_embd.weight" : "output.weight", LK_USE_MATRIX, LK_REQUIRED,
         n_embd, n_vocab},
        {&net->output_b, "output.bias", LK_USE_VECTOR, LK_OPTIONAL, n_vocab, 1},
        {&net->output_norm, norm, LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        {&net->output_norm_b, "output_norm.bias", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
    };
    return lk_bind(ld, spec, norm_bias ? 5 : 4, -1, err);
}

/* The adapter of a layer's weight, or NULL. */
static const struct lk_adapter *find_adapter(const struct lk_loader *ld, int layer,
                                             enum lk_adapted which) {
    const struct lk_adapter *adapter = ld->opts.adapter;
    if (adapter) adapter += layer * LK_N_ADAPTED + which;
    return adapter && adapter->rank ? adapter : NULL;
}

/* Add a layer's adapters to the projections that were bound since n_bind was `first`, and to W_O.
 * A matrix with the rows of q, k and v gets a segment for each. */
static void add_adapters(struct lk_net *net, struct lk_loader *ld, int layer, size_t first) {
    struct lk_layer *l = &net->layer[layer];
    int64_t n_kv = (int64_t)net->hp.n_head_kv * net->hp.d_head;
    const struct lk_row_segment q = {(int64_t)net->hp.n_head * net->hp.d_head,
                                     find_adapter(ld, layer, LK_ADAPT_Q)},
                                k = {n_kv, find_adapter(ld, layer, LK_ADAPT_K)},
                                v = {n_kv, find_adapter(ld, layer, LK_ADAPT_V)},
                                o = {net->hp.n_embd, find_adapter(ld, layer, LK_ADAPT_O)};
    for (size_t i = first; i < ld->n_bind; i++) {
        struct lk_bind *b = &ld->bind[i];
        if (b->dst == &l->wqkv && (q.adapter || k.adapter || v.adapter)) {
            b->segment[0] = q;
            b->segment[1] = k;
            b->segment[2] = v;
            b->n_segment = 3;
            continue;
        }
        const struct lk_row_segment *own = b->dst == &l->wq   ? &q
                                           : b->dst == &l->wk ? &k
                                           : b->dst == &l->wv ? &v
                                           : b->dst == &l->wo ? &o
                                                              : NULL;
        if (!own || !own->adapter) continue;
        b->segment[0] = *own;
        b->n_segment = 1;
    }
}

lk_status lk_bind_attention(struct lk_net *net, struct lk_loader *ld, int layer, bool fused,
                            enum lk_need bias, lk_err *err) {
    const struct lk_hparams *hp = &net->hp;
    struct lk_layer *l = &net->layer[layer];
    int64_t n_embd = hp->n_embd, n_q = (int64_t)hp->n_head * hp->d_head,
            n_kv = (int64_t)hp->n_head_kv * hp->d_head;
    const struct lk_tensor_spec fused_form[] = {
        {&l->wqkv, "blk.%d.attn_qkv.weight", LK_USE_MATRIX, fused ? LK_REQUIRED : LK_OPTIONAL,
         n_embd, n_q + 2 * n_kv},
        {&l->bqkv, "blk.%d.attn_qkv.bias", LK_USE_VECTOR, fused ? bias : LK_OPTIONAL,
         n_q + 2 * n_kv, 1},
        {&l->wo, "blk.%d.attn_output.weight", LK_USE_MATRIX, LK_REQUIRED, n_q, n_embd},
        {&l->bo, "blk.%d.attn_output.bias", LK_USE_VECTOR, bias, n_embd, 1},
    };
    const struct lk_tensor_spec separate_form[] = {
        {&l->wq, "blk.%d.attn_q.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_q},
        {&l->wk, "blk.%d.attn_k.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_kv},
        {&l->wv, "blk.%d.attn_v.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_kv},
        {&l->bq, "blk.%d.attn_q.bias", LK_USE_VECTOR, bias, n_q, 1},
        {&l->bk, "blk.%d.attn_k.bias", LK_USE_VECTOR, bias, n_kv, 1},
        {&l->bv, "blk.%d.attn_v.bias", LK_USE_VECTOR, bias, n_kv, 1},
    };
    size_t before = ld->n_bind;
    lk_status status = lk_bind(ld, fused_form, 1, layer, err);
    bool has_fused = ld->n_bind > before;
    if (!status)
        status = lk_bind(ld, fused_form + (has_fused ? 1 : 2), has_fused ? 3 : 2, layer, err);
    size_t separate = ld->n_bind;
    if (!status && !has_fused) status = lk_bind(ld, separate_form, 6, layer, err);
    add_adapters(net, ld, layer, before);
    if (!has_fused) lk_bind_concat(ld, &l->wqkv, &l->bqkv, separate, 3);
    return status;
}

/* Add an adapter of a feed-forward layer to the tensor for `dst`, bound since `first`. */
static void add_ffn_adapter(struct lk_loader *ld, int layer, enum lk_ffn_adapted which,
                            struct ggml_tensor **dst, int64_t n_row, size_t first) {
    const struct lk_adapter *adapter = ld->opts.ffn_adapter;
    if (adapter) adapter += layer * LK_N_FFN_ADAPTED + (int)which;
    if (!adapter || !adapter->rank) return;
    for (size_t i = first; i < ld->n_bind; i++) {
        struct lk_bind *b = &ld->bind[i];
        if (b->dst != dst) continue;
        b->segment[0] = (struct lk_row_segment){n_row, adapter};
        b->n_segment = 1;
        ld->n_ffn_adapted++;
    }
}

lk_status lk_bind_dense_ffn(struct lk_net *net, struct lk_loader *ld, int layer, lk_err *err) {
    int64_t n_embd = net->hp.n_embd, n_ff = net->hp.n_ff;
    struct lk_layer *l = &net->layer[layer];
    const struct lk_tensor_spec down[] = {
        {&l->ffn_down, "blk.%d.ffn_down.weight", LK_USE_MATRIX, LK_REQUIRED, n_ff, n_embd},
        {&l->ffn_down_b, "blk.%d.ffn_down.bias", LK_USE_VECTOR, LK_OPTIONAL, n_embd, 1},
    };
    const struct lk_tensor_spec gate[] = {
        {&l->ffn_gate, "blk.%d.ffn_gate.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_ff},
        {&l->ffn_up, "blk.%d.ffn_up.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_ff},
        {&l->ffn_gate_b, "blk.%d.ffn_gate.bias", LK_USE_VECTOR, LK_OPTIONAL, n_ff, 1},
        {&l->ffn_up_b, "blk.%d.ffn_up.bias", LK_USE_VECTOR, LK_OPTIONAL, n_ff, 1},
    };
    size_t before = ld->n_bind;
    lk_status status = lk_bind(ld, gate, 4, layer, err);
    add_ffn_adapter(ld, layer, LK_ADAPT_GATE, &l->ffn_gate, n_ff, before);
    add_ffn_adapter(ld, layer, LK_ADAPT_UP, &l->ffn_up, n_ff, before);
    lk_bind_concat(ld, &l->ffn_gate_up, &l->ffn_gate_up_b, before, 2);
    if (!status) status = lk_bind(ld, down, 2, layer, err);
    add_ffn_adapter(ld, layer, LK_ADAPT_DOWN, &l->ffn_down, n_embd, before);
    return status;
}

lk_status lk_bind_gated_ffn(struct lk_net *net, struct lk_loader *ld, int layer, lk_err *err) {
    return net->hp.n_expert > 0 && layer >= net->hp.n_dense
               ? lk_experts_bind(net, ld, layer, LK_OPTIONAL, err)
               : lk_bind_dense_ffn(net, ld, layer, err);
}

lk_status lk_bind_gated_layers(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    int64_t n_embd = net->hp.n_embd;
    for (int i = 0; i < net->hp.n_layer; i++) {
        struct lk_layer *l = &net->layer[i];
        const struct lk_tensor_spec norm[] = {
            {&l->attn_norm, "blk.%d.attn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
            {&l->ffn_norm, "blk.%d.ffn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        };
        lk_status status = lk_bind(ld, norm, 2, i, err);
        if (!status) status = lk_bind_gated_ffn(net, ld, i, err);
        if (!status) status = lk_bind_attention(net, ld, i, false, LK_OPTIONAL, err);
        if (status) return status;
    }
    return LK_OK;
}

lk_status lk_bind_post_norms(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
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

lk_status lk_bind_rope_factors(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    struct lk_hparams *hp = &net->hp;
    struct ggml_tensor **all = &net->rope_factors, **unused = &net->rope_factors_unused;
    int32_t n_ctx = ld->opts.n_ctx > 0 ? ld->opts.n_ctx : hp->n_ctx_train;
    bool is_long = n_ctx > hp->n_ctx_orig;
    const struct lk_tensor_spec spec[] = {
        {all, "rope_freqs.weight", LK_USE_VECTOR, LK_OPTIONAL, hp->n_rot / 2, 1},
        {is_long ? all : unused, "rope_factors_long.weight", LK_USE_VECTOR, LK_OPTIONAL,
         hp->n_rot / 2, 1},
        {is_long ? unused : all, "rope_factors_short.weight", LK_USE_VECTOR, LK_OPTIONAL,
         hp->n_rot / 2, 1},
    };
    size_t before = ld->n_bind;
    lk_status status = lk_bind(ld, spec, 1, -1, err);
    if (status || ld->n_bind > before) return status;
    status = lk_bind(ld, spec + 1, 2, -1, err);
    if (ld->n_bind > before && !is_long) hp->n_ctx_rope = hp->n_ctx_orig;
    return status;
}

lk_status lk_bind_plain_layers(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    int64_t n_embd = net->hp.n_embd, n_ff = net->hp.n_ff;
    for (int i = 0; i < net->hp.n_layer; i++) {
        struct lk_layer *l = &net->layer[i];
        const struct lk_tensor_spec spec[] = {
            {&l->attn_norm, "blk.%d.attn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
            {&l->attn_norm_b, "blk.%d.attn_norm.bias", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
            {&l->ffn_norm, "blk.%d.ffn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
            {&l->ffn_norm_b, "blk.%d.ffn_norm.bias", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
            {&l->ffn_up, "blk.%d.ffn_up.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_ff},
            {&l->ffn_up_b, "blk.%d.ffn_up.bias", LK_USE_VECTOR, LK_REQUIRED, n_ff, 1},
            {&l->ffn_down, "blk.%d.ffn_down.weight", LK_USE_MATRIX, LK_REQUIRED, n_ff, n_embd},
            {&l->ffn_down_b, "blk.%d.ffn_down.bias", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        };
        lk_status status = lk_bind(ld, spec, sizeof spec / sizeof *spec, i, err);
        if (!status) status = lk_bind_attention(net, ld, i, true, LK_REQUIRED, err);
        if (status) return status;
    }
    return LK_OK;
}

lk_status lk_bind_check_unchanged(const struct lk_loader *ld, lk_err *err) {
    if (!ld->opts.adapter) return LK_OK;
    return lk_fail(err, LK_E_UNSUPPORTED,
                   "adapters, and sidecars that change weights, are not supported for %s models; "
                   "open the model "
                   "without",
                   ld->reader.arch);
}

lk_status lk_bind_qk_norms(struct lk_net *net, struct lk_loader *ld, bool whole, lk_err *err) {
    int64_t n_q = (int64_t)net->hp.d_head * (whole ? net->hp.n_head : 1),
            n_k = (int64_t)net->hp.d_head * (whole ? net->hp.n_head_kv : 1);
    lk_status status = LK_OK;
    for (int i = 0; !status && i < net->hp.n_layer; i++) {
        const struct lk_tensor_spec spec[] = {
            {&net->layer[i].q_norm, "blk.%d.attn_q_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_q,
             1},
            {&net->layer[i].k_norm, "blk.%d.attn_k_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_k,
             1},
        };
        status = lk_bind(ld, spec, 2, i, err);
    }
    return status;
}
