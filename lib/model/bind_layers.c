#include "model/blocks.h"

#include "gguf.h"

/* One tensor of a list. */
struct want {
    struct ggml_tensor **slot;
    const char *name;
    enum lk_use use;
    enum lk_need need;
    int64_t ne0, ne1;
};

static lk_status bind_all(struct lk_loader *ld, const struct want *want, size_t n, int layer,
                          lk_err *err) {
    lk_status status = LK_OK;
    for (size_t i = 0; status == LK_OK && i < n; i++) {
        const struct want *w = &want[i];
        status = lk_bind(ld, w->slot, w->name, layer, w->use, w->need, w->ne0, w->ne1, err);
    }
    return status;
}

lk_status lk_bind_ends(struct lk_net *net, struct lk_loader *ld, bool norm_bias, lk_err *err) {
    int64_t n_embd = net->hp.n_embd, n_vocab = net->hp.n_vocab;
    bool tied = gguf_find_tensor(ld->reader.gguf, "output.weight") < 0;
    const struct want want[] = {
        {&net->tok_embd, "token_embd.weight", LK_USE_TABLE, LK_REQUIRED, n_embd, n_vocab},
        {&net->output, tied ? "token_embd.weight" : "output.weight", LK_USE_MATRIX, LK_REQUIRED,
         n_embd, n_vocab},
        {&net->output_b, "output.bias", LK_USE_VECTOR, LK_OPTIONAL, n_vocab, 1},
        {&net->output_norm, "output_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        {&net->output_norm_b, "output_norm.bias", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
    };
    return bind_all(ld, want, norm_bias ? 5 : 4, -1, err);
}

lk_status lk_bind_attention(struct lk_net *net, struct lk_loader *ld, int layer, bool fused,
                            enum lk_need bias, lk_err *err) {
    const struct lk_hparams *hp = &net->hp;
    struct lk_layer *l = &net->layer[layer];
    int64_t n_embd = hp->n_embd, n_q = (int64_t)hp->n_head * hp->d_head,
            n_kv = (int64_t)hp->n_head_kv * hp->d_head;
    const struct want together[] = {
        {&l->wqkv, "blk.%d.attn_qkv.weight", LK_USE_MATRIX, fused ? LK_REQUIRED : LK_OPTIONAL,
         n_embd, n_q + 2 * n_kv},
        {&l->bqkv, "blk.%d.attn_qkv.bias", LK_USE_VECTOR, fused ? bias : LK_OPTIONAL,
         n_q + 2 * n_kv, 1},
        {&l->wo, "blk.%d.attn_output.weight", LK_USE_MATRIX, LK_REQUIRED, n_q, n_embd},
        {&l->bo, "blk.%d.attn_output.bias", LK_USE_VECTOR, bias, n_embd, 1},
    };
    const struct want apart[] = {
        {&l->wq, "blk.%d.attn_q.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_q},
        {&l->wk, "blk.%d.attn_k.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_kv},
        {&l->wv, "blk.%d.attn_v.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_kv},
        {&l->bq, "blk.%d.attn_q.bias", LK_USE_VECTOR, bias, n_q, 1},
        {&l->bk, "blk.%d.attn_k.bias", LK_USE_VECTOR, bias, n_kv, 1},
        {&l->bv, "blk.%d.attn_v.bias", LK_USE_VECTOR, bias, n_kv, 1},
    };
    size_t before = ld->n_bind;
    lk_status status = bind_all(ld, together, 1, layer, err);
    bool has_fused = ld->n_bind > before;
    if (status == LK_OK)
        status = bind_all(ld, together + (has_fused ? 1 : 2), has_fused ? 3 : 2, layer, err);
    if (status != LK_OK || has_fused) return status;
    before = ld->n_bind;
    status = bind_all(ld, apart, 6, layer, err);
    lk_bind_join(ld, &l->wqkv, &l->bqkv, before, 3);
    return status;
}

lk_status lk_bind_gated_layers(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    int64_t n_embd = net->hp.n_embd, n_ff = net->hp.n_ff;
    for (int i = 0; i < net->hp.n_layer; i++) {
        struct lk_layer *l = &net->layer[i];
        const struct want norm[] = {
            {&l->attn_norm, "blk.%d.attn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
            {&l->ffn_norm, "blk.%d.ffn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        };
        const struct want down[] = {
            {&l->ffn_down, "blk.%d.ffn_down.weight", LK_USE_MATRIX, LK_REQUIRED, n_ff, n_embd},
            {&l->ffn_down_b, "blk.%d.ffn_down.bias", LK_USE_VECTOR, LK_OPTIONAL, n_embd, 1},
        };
        const struct want gate[] = {
            {&l->ffn_gate, "blk.%d.ffn_gate.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_ff},
            {&l->ffn_up, "blk.%d.ffn_up.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_ff},
            {&l->ffn_gate_b, "blk.%d.ffn_gate.bias", LK_USE_VECTOR, LK_OPTIONAL, n_ff, 1},
            {&l->ffn_up_b, "blk.%d.ffn_up.bias", LK_USE_VECTOR, LK_OPTIONAL, n_ff, 1},
        };
        lk_status status = bind_all(ld, norm, 2, i, err);
        size_t before = ld->n_bind;
        if (status == LK_OK) status = bind_all(ld, gate, 4, i, err);
        lk_bind_join(ld, &l->ffn_gate_up, &l->ffn_gate_up_b, before, 2);
        if (status == LK_OK) status = bind_all(ld, down, 2, i, err);
        if (status == LK_OK) status = lk_bind_attention(net, ld, i, false, LK_OPTIONAL, err);
        if (status != LK_OK) return status;
    }
    return LK_OK;
}

lk_status lk_bind_plain_layers(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    int64_t n_embd = net->hp.n_embd, n_ff = net->hp.n_ff;
    for (int i = 0; i < net->hp.n_layer; i++) {
        struct lk_layer *l = &net->layer[i];
        const struct want want[] = {
            {&l->attn_norm, "blk.%d.attn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
            {&l->attn_norm_b, "blk.%d.attn_norm.bias", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
            {&l->ffn_norm, "blk.%d.ffn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
            {&l->ffn_norm_b, "blk.%d.ffn_norm.bias", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
            {&l->ffn_up, "blk.%d.ffn_up.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_ff},
            {&l->ffn_up_b, "blk.%d.ffn_up.bias", LK_USE_VECTOR, LK_REQUIRED, n_ff, 1},
            {&l->ffn_down, "blk.%d.ffn_down.weight", LK_USE_MATRIX, LK_REQUIRED, n_ff, n_embd},
            {&l->ffn_down_b, "blk.%d.ffn_down.bias", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        };
        lk_status status = bind_all(ld, want, sizeof want / sizeof want[0], i, err);
        if (status == LK_OK) status = lk_bind_attention(net, ld, i, true, LK_REQUIRED, err);
        if (status != LK_OK) return status;
    }
    return LK_OK;
}

lk_status lk_bind_qk_norms(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    lk_status status = LK_OK;
    for (int i = 0; status == LK_OK && i < net->hp.n_layer; i++) {
        const struct want want[] = {
            {&net->layer[i].q_norm, "blk.%d.attn_q_norm.weight", LK_USE_VECTOR, LK_REQUIRED,
             net->hp.d_head, 1},
            {&net->layer[i].k_norm, "blk.%d.attn_k_norm.weight", LK_USE_VECTOR, LK_REQUIRED,
             net->hp.d_head, 1},
        };
        status = bind_all(ld, want, 2, i, err);
    }
    return status;
}

static lk_status read_eps(struct lk_net *net, struct lk_loader *ld, const char *key, lk_err *err) {
    lk_status status = lk_read_float(&ld->reader, key, LK_REQUIRED, &net->hp.norm_eps, err);
    if (status == LK_OK && !(net->hp.norm_eps >= 0)) {
        return lk_fail(err, LK_E_FORMAT, "key %s%s is negative", ld->reader.arch,
                       key); /* ggml asserts on it */
    }
    return status;
}

lk_status lk_read_rms_eps(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    return read_eps(net, ld, ".attention.layer_norm_rms_epsilon", err);
}

lk_status lk_read_ln_eps(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    return read_eps(net, ld, ".attention.layer_norm_epsilon", err);
}
