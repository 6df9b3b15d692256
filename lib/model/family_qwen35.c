/* Qwen 3.5, 3.6 and Qwen3-Next: three of four layers are recurrent (a gated delta rule,
 * kernels/recurrence.h), the others have attention whose output is gated. Both have the same
 * feed-forward network: gated, or a mixture of experts with a gated shared expert. A layer that
 * predicts further tokens has attention. */
#include "model/bind_layers.h"
#include "model/blocks.h"
#include "model/experts.h"
#include "model/net.h"

#include "gguf.h"

#include <string.h>

enum { MAX_STATE_HEADS = 1024, MAX_CONV = 16 };

/* Which layers are recurrent: one flag per layer, or all but every n-th. */
static lk_status read_pattern(struct lk_hparams *hp, const struct lk_gguf_reader *r, lk_err *err) {
    int64_t id = lk_gguf_find_key(r, ".attention.recurrent_layers");
    int32_t interval = 4;
    lk_status status =
        lk_gguf_read_int(r, ".full_attention_interval", LK_OPTIONAL, 1, INT32_MAX, &interval, err);
    if (status) return status;
    for (int i = 0; i < hp->n_layer; i++) hp->is_recurrent[i] = (i + 1) % interval != 0;
    if (id < 0) return LK_OK;
    bool flags = gguf_get_kv_type(r->gguf, id) == GGUF_TYPE_ARRAY &&
                 gguf_get_arr_type(r->gguf, id) == GGUF_TYPE_BOOL &&
                 gguf_get_arr_n(r->gguf, id) >= (size_t)hp->n_layer;
    if (!flags)
        return lk_fail(err, LK_E_FORMAT, "key %s is not a list of %d flags",
                       gguf_get_key(r->gguf, id), hp->n_layer);
    const uint8_t *flag = gguf_get_arr_data(r->gguf, id);
    for (int i = 0; i < hp->n_layer; i++) hp->is_recurrent[i] = flag[i] != 0;
    return LK_OK;
}

static lk_status read_delta(struct lk_hparams *hp, const struct lk_gguf_reader *r, lk_err *err) {
    struct lk_recurrence_shape *d = &hp->recurrence;
    int32_t n_k = 0, n_v = 0, d_state = 0, n_conv = 0, inner = 0;
    lk_status status =
        lk_gguf_read_int(r, ".ssm.group_count", LK_REQUIRED, 1, MAX_STATE_HEADS, &n_k, err);
    if (!status)
        status =
            lk_gguf_read_int(r, ".ssm.time_step_rank", LK_REQUIRED, 1, MAX_STATE_HEADS, &n_v, err);
    if (!status)
        status =
            lk_gguf_read_int(r, ".ssm.state_size", LK_REQUIRED, 1, LK_MAX_D_STATE, &d_state, err);
    if (!status)
        status = lk_gguf_read_int(r, ".ssm.conv_kernel", LK_REQUIRED, 2, MAX_CONV, &n_conv, err);
    if (!status)
        status = lk_gguf_read_int(r, ".ssm.inner_size", LK_REQUIRED, 1, INT32_MAX, &inner, err);
    if (status) return status;
    if (n_v % n_k != 0 || d_state % 16 != 0 || inner != n_v * d_state)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "recurrent layers with %d key heads, %d value heads of %d channels and %d "
                       "inner channels are not supported",
                       n_k, n_v, d_state, inner);
    *d = (struct lk_recurrence_shape){.n_k_head = n_k,
                                      .n_v_head = n_v,
                                      .d_key = d_state,
                                      .d_value = d_state,
                                      .n_conv = n_conv,
                                      .norm_eps = hp->norm_eps};
    return LK_OK;
}

/* RoPE in three sections, for time, height and width. A text has only time, and then it is the
 * ordinary one, if the sections are all of it. */
static lk_status check_sections(const struct lk_hparams *hp, const struct lk_gguf_reader *r,
                                lk_err *err) {
    int64_t id = lk_gguf_find_key(r, ".rope.dimension_sections");
    if (id < 0) return lk_fail(err, LK_E_FORMAT, "the sections of RoPE are missing");
    bool list = gguf_get_kv_type(r->gguf, id) == GGUF_TYPE_ARRAY &&
                (gguf_get_arr_type(r->gguf, id) == GGUF_TYPE_INT32 ||
                 gguf_get_arr_type(r->gguf, id) == GGUF_TYPE_UINT32) &&
                gguf_get_arr_n(r->gguf, id) >= 3;
    if (!list) return lk_fail(err, LK_E_FORMAT, "the sections of RoPE are not a list of numbers");
    const int32_t *n = gguf_get_arr_data(r->gguf, id);
    bool covered = true;
    for (int pair = 0; pair < hp->n_rot / 2; pair++) covered &= pair / 3 < n[pair % 3];
    return covered ? LK_OK
                   : lk_fail(err, LK_E_UNSUPPORTED,
                             "the sections of RoPE, %d, %d and %d, do not cover %d channels", n[0],
                             n[1], n[2], hp->n_rot);
}

static lk_status bind_attention(struct lk_net *net, struct lk_loader *ld, int i, lk_err *err) {
    const struct lk_hparams *hp = &net->hp;
    struct lk_layer *l = &net->layer[i];
    int64_t n_embd = hp->n_embd, d = hp->d_head, n_q = hp->n_head * d, n_kv = hp->n_head_kv * d;
    const struct lk_tensor_spec spec[] = {
        {&l->wq, "blk.%d.attn_q.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, 2 * n_q},
        {&l->wk, "blk.%d.attn_k.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_kv},
        {&l->wv, "blk.%d.attn_v.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_kv},
        {&l->wo, "blk.%d.attn_output.weight", LK_USE_MATRIX, LK_REQUIRED, n_q, n_embd},
        {&l->q_norm, "blk.%d.attn_q_norm.weight", LK_USE_VECTOR, LK_REQUIRED, d, 1},
        {&l->k_norm, "blk.%d.attn_k_norm.weight", LK_USE_VECTOR, LK_REQUIRED, d, 1},
    };
    return lk_bind(ld, spec, sizeof spec / sizeof *spec, i, err);
}

static lk_status bind_recurrence(struct lk_net *net, struct lk_loader *ld, int i, lk_err *err) {
    const struct lk_recurrence_shape *d = &net->hp.recurrence;
    struct lk_layer *l = &net->layer[i];
    int64_t n_embd = net->hp.n_embd, channels = lk_recurrence_channels(d),
            n_value = (int64_t)d->n_v_head * d->d_value;
    const struct lk_tensor_spec spec[] = {
        {&l->wqkv, "blk.%d.attn_qkv.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, channels},
        {&l->w_gate, "blk.%d.attn_gate.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, n_value},
        {&l->conv, "blk.%d.ssm_conv1d.weight", LK_USE_VECTOR, LK_REQUIRED, d->n_conv, channels},
        {&l->decay_b, "blk.%d.ssm_dt.bias", LK_USE_VECTOR, LK_REQUIRED, d->n_v_head, 1},
        {&l->decay_scale, "blk.%d.ssm_a", LK_USE_VECTOR, LK_REQUIRED, d->n_v_head, 1},
        {&l->state_norm, "blk.%d.ssm_norm.weight", LK_USE_VECTOR, LK_REQUIRED, d->d_value, 1},
        {&l->wo, "blk.%d.ssm_out.weight", LK_USE_MATRIX, LK_REQUIRED, n_value, n_embd},
    };
    const struct lk_tensor_spec single[] = {
        {&l->w_beta, "blk.%d.ssm_beta.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, d->n_v_head},
        {&l->w_decay, "blk.%d.ssm_alpha.weight", LK_USE_MATRIX, LK_REQUIRED, n_embd, d->n_v_head},
    };
    const struct lk_tensor_spec joined = {&l->w_beta_decay, "blk.%d.ssm_ba.weight",
                                          LK_USE_MATRIX,    LK_REQUIRED,
                                          n_embd,           2 * d->n_v_head};
    lk_status status = lk_bind(ld, spec, sizeof spec / sizeof *spec, i, err);
    if (status) return status;
    return d->adjacent ? lk_bind(ld, &joined, 1, i, err) : lk_bind(ld, single, 2, i, err);
}

static lk_status bind_ffn(struct lk_net *net, struct lk_loader *ld, int i, lk_err *err) {
    if (net->hp.n_expert == 0) return lk_bind_gated_ffn(net, ld, i, err);
    lk_status status = lk_experts_bind(net, ld, i, LK_OPTIONAL, err);
    return status ? status : lk_experts_bind_shared(net, ld, i, true, err);
}

static lk_status bind_layer(struct lk_net *net, struct lk_loader *ld, int i, lk_err *err) {
    const struct lk_hparams *hp = &net->hp;
    struct lk_layer *l = &net->layer[i];
    int64_t n_embd = hp->n_embd;
    const struct lk_tensor_spec spec[] = {
        {&l->attn_norm, "blk.%d.attn_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
        {&l->ffn_norm, "blk.%d.post_attention_norm.weight", LK_USE_VECTOR, LK_REQUIRED, n_embd, 1},
    };
    lk_status status = lk_bind(ld, spec, 2, i, err);
    if (!status) status = bind_ffn(net, ld, i, err);
    if (status) return status;
    return hp->is_recurrent[i] ? bind_recurrence(net, ld, i, err) : bind_attention(net, ld, i, err);
}

static lk_status read_experts(struct lk_net *net, const struct lk_gguf_reader *r, lk_err *err) {
    struct lk_hparams *hp = &net->hp;
    lk_status status = lk_experts_require(hp, r, err);
    if (status) return status;
    if (lk_gguf_find_key(r, ".expert_feed_forward_length") < 0)
        hp->n_ff_expert = hp->n_ff / hp->n_expert_used;
    hp->n_ff_shared = hp->n_ff;
    return lk_gguf_read_int(r, ".expert_shared_feed_forward_length", LK_OPTIONAL, 1, 1 << 20,
                            &hp->n_ff_shared, err);
}

static lk_status load_qwen35(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    struct lk_hparams *hp = &net->hp;
    bool next = strcmp(net->arch, "qwen3next") == 0, dense = strcmp(net->arch, "qwen35") == 0;
    lk_status status = lk_bind_check_unchanged(ld, err);
    if (!status) status = lk_hparams_read_rope(hp, &ld->reader, GGML_ROPE_TYPE_NEOX, err);
    if (!status && !next) status = check_sections(hp, &ld->reader, err);
    if (!status) status = lk_hparams_read_rms_eps(hp, &ld->reader, err);
    if (!status) status = read_pattern(hp, &ld->reader, err);
    if (!status) status = read_delta(hp, &ld->reader, err);
    hp->recurrence.adjacent = next;
    if (!status && (!dense || hp->n_expert > 0)) status = read_experts(net, &ld->reader, err);
    if (!status) status = lk_bind_embd_output(net, ld, false, err);
    for (int i = 0; !status && i < hp->n_layer; i++) status = bind_layer(net, ld, i, err);
    return status;
}

/* Part `part` of the rows of x [n_tok][n_head][n_part][d]: contiguous [n_tok][n_head][d]. */
static struct ggml_tensor *part_of(struct ggml_context *ctx, struct ggml_tensor *x, int64_t d,
                                   int64_t n_head, int part, int n_part) {
    size_t head_bytes = (size_t)d * sizeof(float);
    return ggml_cont(ctx, ggml_view_3d(ctx, x, d, n_head, x->ne[1], (size_t)n_part * head_bytes,
                                       x->nb[1], (size_t)part * head_bytes));
}

/* Each head of q is followed by the gate of its output. */
static void project_attention(const struct lk_net *net, struct ggml_context *ctx, int layer,
                              struct ggml_tensor *x, struct ggml_tensor *pos, struct lk_qkv *out) {
    const struct lk_hparams *hp = &net->hp;
    const struct lk_layer *l = &net->layer[layer];
    int64_t d = hp->d_head, n_tok = x->ne[1];
    struct ggml_tensor *q = lk_linear(net, ctx, l->wq, NULL, NULL, x),
                       *k = lk_linear(net, ctx, l->wk, NULL, NULL, x),
                       *v = lk_linear(net, ctx, l->wv, NULL, NULL, x);
    k = ggml_reshape_3d(ctx, k, d, hp->n_head_kv, n_tok);
    out->q = lk_rms_norm(ctx, part_of(ctx, q, d, hp->n_head, 0, 2), l->q_norm, hp->norm_eps);
    out->q = lk_apply_rope(net, ctx, layer, out->q, pos);
    out->k = lk_apply_rope(net, ctx, layer, lk_rms_norm(ctx, k, l->k_norm, hp->norm_eps), pos);
    out->v = ggml_reshape_3d(ctx, v, d, hp->n_head_kv, n_tok);
    out->aux = ggml_reshape_2d(ctx, part_of(ctx, q, d, hp->n_head, 1, 2), d * hp->n_head, n_tok);
}

/* The projections to beta and decay. Qwen3-Next has one matrix for both: for each key head, the
 * rows of its value heads' beta, then those of their decay. */
static void project_beta_decay(const struct lk_net *net, struct ggml_context *ctx,
                               const struct lk_layer *l, struct ggml_tensor *x,
                               struct ggml_tensor **beta, struct ggml_tensor **decay) {
    const struct lk_recurrence_shape *d = &net->hp.recurrence;
    if (!d->adjacent) {
        *beta = lk_linear(net, ctx, l->w_beta, NULL, NULL, x);
        *decay = lk_linear(net, ctx, l->w_decay, NULL, NULL, x);
        return;
    }
    struct ggml_tensor *both = lk_linear(net, ctx, l->w_beta_decay, NULL, NULL, x);
    int n_each = d->n_v_head / d->n_k_head;
    *beta = part_of(ctx, both, n_each, d->n_k_head, 0, 2);
    *beta = ggml_reshape_2d(ctx, *beta, d->n_v_head, x->ne[1]);
    *decay = part_of(ctx, both, n_each, d->n_k_head, 1, 2);
    *decay = ggml_reshape_2d(ctx, *decay, d->n_v_head, x->ne[1]);
}

/* Gated DeltaNet: decay = -exp(A_log) softplus(W x + b), with -exp(A_log) in the file. */
static void project_recurrence(const struct lk_net *net, struct ggml_context *ctx, int layer,
                               struct ggml_tensor *x, struct lk_qkv *out) {
    const struct lk_layer *l = &net->layer[layer];
    struct ggml_tensor *beta, *decay;
    project_beta_decay(net, ctx, l, x, &beta, &decay);
    out->mixed = lk_linear(net, ctx, l->wqkv, NULL, NULL, x);
    decay = ggml_softplus(ctx, ggml_add(ctx, decay, l->decay_b));
    out->decay = ggml_mul(ctx, decay, l->decay_scale);
    out->beta = ggml_sigmoid(ctx, beta);
    out->aux = lk_linear(net, ctx, l->w_gate, NULL, NULL, x);
}

static struct lk_qkv pre_qwen35(const struct lk_net *net, struct ggml_context *ctx, int layer,
                                struct ggml_tensor *x, struct ggml_tensor *pos) {
    struct lk_qkv out = {.x = x};
    x = lk_rms_norm(ctx, x, net->layer[layer].attn_norm, net->hp.norm_eps);
    if (net->hp.is_recurrent[layer])
        project_recurrence(net, ctx, layer, x, &out);
    else
        project_attention(net, ctx, layer, x, pos, &out);
    return out;
}

static struct ggml_tensor *post_qwen35(const struct lk_net *net, struct ggml_context *ctx,
                                       int layer, const struct lk_qkv *qkv,
                                       struct ggml_tensor *attn) {
    const struct lk_hparams *hp = &net->hp;
    const struct lk_layer *l = &net->layer[layer];
    if (hp->is_recurrent[layer]) {
        int64_t n = attn->ne[0], n_tok = attn->ne[1];
        attn = ggml_reshape_3d(ctx, attn, hp->recurrence.d_value, hp->recurrence.n_v_head, n_tok);
        attn = lk_rms_norm(ctx, attn, l->state_norm, hp->norm_eps);
        attn = ggml_mul(ctx, ggml_reshape_2d(ctx, attn, n, n_tok), ggml_silu(ctx, qkv->aux));
    } else {
        attn = ggml_mul(ctx, attn, ggml_sigmoid(ctx, qkv->aux));
    }
    struct ggml_tensor *x = lk_linear(net, ctx, l->wo, NULL, qkv->x, attn);
    struct ggml_tensor *in = lk_rms_norm(ctx, x, l->ffn_norm, hp->norm_eps);
    return hp->n_expert > 0 ? lk_experts_ffn(net, ctx, l, x, in)
                            : lk_ffn_silu_gated(net, ctx, l, x, in);
}

const struct lk_family lk_family_qwen35 = {
    .arch = {"qwen35", "qwen35moe", "qwen3next"},
    .has_experts = true,
    .load = load_qwen35,
    .embed = lk_embed_tokens,
    .pre = pre_qwen35,
    .post = post_qwen35,
    .norm = lk_norm_rms,
    .head = lk_head_rms,
};
