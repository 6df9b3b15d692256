/* Nodes of recurrent layers for devices, and whether a device has the operators. */
#include "model/recurrence_nodes.h"

#include "base/cxx_call.h"

#include <math.h>

enum { F = sizeof(float) };

static size_t conv_bytes(const struct lk_recurrence_shape *s) {
    return lk_recurrence_conv_floats(s) * F;
}

struct lk_recurrence_input lk_recurrence_input_of(const struct lk_recurrence_shape *s,
                                                  const struct lk_qkv *pre) {
    struct lk_recurrence_input in = {.mixed = pre->mixed};
    if (s->kind == LK_STATE_SPACE) in.gate[0] = pre->step;
    if (s->kind == LK_DELTA_RULE) in.gate[0] = pre->decay, in.gate[1] = pre->beta;
    return in;
}

/* The convolution, its bias, and SiLU unless LK_SHORT_CONV: [n_tok][channels]. */
static struct ggml_tensor *convolve(const struct lk_recurrence_shape *s, const struct lk_layer *l,
                                    struct ggml_context *ctx, struct ggml_cgraph *graph,
                                    struct ggml_tensor *mixed,
                                    const struct lk_recurrence_states *at) {
    int64_t channels = lk_recurrence_channels(s), n_tok = mixed->ne[1], n_old = s->n_conv - 1;
    size_t row = (size_t)n_old * F;
    struct ggml_tensor *old = ggml_view_2d(ctx, at->from, n_old, channels, row, at->from_at),
                       *to = ggml_view_2d(ctx, at->to, n_old, channels, row, at->to_at),
                       *all = ggml_concat(ctx, old, ggml_transpose(ctx, mixed), 0),
                       *last =
                           ggml_view_2d(ctx, all, n_old, channels, all->nb[1], (size_t)n_tok * F),
                       *y = ggml_ssm_conv(ctx, all, l->conv);
    ggml_build_forward_expand(graph, ggml_cpy(ctx, last, to));
    if (l->conv_b) y = ggml_add(ctx, y, l->conv_b);
    return s->kind == LK_SHORT_CONV ? y : ggml_silu(ctx, y);
}

/* S of all heads in the tensor of a state. */
static struct ggml_tensor *heads_of(const struct lk_recurrence_shape *s, struct ggml_context *ctx,
                                    struct ggml_tensor *state, size_t at) {
    size_t row = (size_t)s->d_key * F, head = row * s->d_value;
    return ggml_view_4d(ctx, state, s->d_key, s->d_value, s->n_v_head, 1, row, head,
                        head * s->n_v_head, at + conv_bytes(s));
}

/* The operators leave the output of n_tok tokens, then S. Keep the latter. */
static void keep_heads(const struct lk_recurrence_shape *s, struct ggml_context *ctx,
                       struct ggml_cgraph *graph, struct ggml_tensor *result, int64_t n_tok,
                       const struct lk_recurrence_states *at) {
    int64_t n_out = (int64_t)s->n_v_head * s->d_value, n = n_out * s->d_key;
    struct ggml_tensor *heads = ggml_view_1d(ctx, result, n, (size_t)(n_out * n_tok) * F),
                       *to = ggml_view_1d(ctx, at->to, n, at->to_at + conv_bytes(s));
    ggml_build_forward_expand(graph, ggml_cpy(ctx, heads, to));
}

/* q or k of all value heads: keys [n_tok][2 n_k_head][d_key] from head `first` on. ggml's operator
 * lets value head h have the key head h mod n_k_head. */
static struct ggml_tensor *keys_of(const struct lk_recurrence_shape *s, struct ggml_context *ctx,
                                   struct ggml_tensor *keys, int first) {
    int64_t d = s->d_key, n_k = s->n_k_head, n_v = s->n_v_head, n_tok = keys->ne[2];
    size_t at = (size_t)first * keys->nb[1];
    if (!s->adjacent || n_k == n_v)
        return ggml_view_3d(ctx, keys, d, n_k, n_tok, keys->nb[1], keys->nb[2], at);
    struct ggml_tensor *x =
        ggml_view_4d(ctx, keys, d, 1, n_k, n_tok, keys->nb[1], keys->nb[1], keys->nb[2], at);
    return ggml_reshape_3d(ctx, ggml_repeat_4d(ctx, x, d, n_v / n_k, n_k, n_tok), d, n_v, n_tok);
}

/* y: the convolved projections. x / sqrt(|x|^2 + eps) is a norm of mean squares, scaled. The
 * operator scales q by 1 / sqrt(d_key). */
static struct ggml_tensor *delta_rule(const struct lk_recurrence_shape *s, struct ggml_context *ctx,
                                      struct ggml_tensor *y, const struct lk_recurrence_input *in,
                                      struct ggml_tensor *heads) {
    int64_t d = s->d_key, n_k = s->n_k_head, n_v = s->n_v_head, n_tok = y->ne[1];
    struct ggml_tensor *keys = ggml_view_3d(ctx, y, d, 2 * n_k, n_tok, (size_t)d * F, y->nb[1], 0);
    keys = ggml_rms_norm(ctx, keys, s->norm_eps / (float)d);
    keys = ggml_scale(ctx, keys, 1 / sqrtf((float)d));
    struct ggml_tensor *q = keys_of(s, ctx, keys, 0), *k = keys_of(s, ctx, keys, s->n_k_head),
                       *v = ggml_view_3d(ctx, y, d, n_v, n_tok, (size_t)d * F, y->nb[1],
                                         (size_t)(2 * n_k * d) * F),
                       *decay = ggml_reshape_3d(ctx, in->gate[0], 1, n_v, n_tok),
                       *beta = ggml_reshape_3d(ctx, in->gate[1], 1, n_v, n_tok);
    return ggml_gated_delta_net(ctx, q, k, v, decay, beta, heads, 1);
}

/* Rows of y from channel `first` on, as n_head heads of d channels. */
static struct ggml_tensor *part_of(struct ggml_context *ctx, struct ggml_tensor *y, int64_t d,
                                   int64_t n_head, int64_t first) {
    return ggml_view_4d(ctx, y, d, n_head, y->ne[1], 1, (size_t)d * F, y->nb[1], ggml_nbytes(y),
                        (size_t)first * F);
}

struct ggml_tensor *lk_recurrence_there(const struct lk_recurrence_shape *s,
                                        const struct lk_layer *l, struct ggml_context *ctx,
                                        struct ggml_cgraph *graph,
                                        const struct lk_recurrence_input *in,
                                        const struct lk_recurrence_states *at) {
    int64_t n_tok = in->mixed->ne[1], n_v = s->n_v_head, n_k = s->n_k_head,
            n_out = n_v * s->d_value;
    struct ggml_tensor *y = convolve(s, l, ctx, graph, in->mixed, at), *result;
    if (s->kind == LK_SHORT_CONV) return ggml_reshape_2d(ctx, y, n_out, n_tok);
    struct ggml_tensor *heads = heads_of(s, ctx, at->from, at->from_at);
    if (s->kind == LK_DELTA_RULE) {
        result = delta_rule(s, ctx, y, in, heads);
        keep_heads(s, ctx, graph, result, n_tok, at);
        return ggml_view_2d(ctx, result, n_out, n_tok, (size_t)n_out * F, 0);
    }
    struct ggml_tensor *x = part_of(ctx, y, s->d_value, n_v, 0),
                       *k = part_of(ctx, y, s->d_key, n_k, n_out),
                       *q = part_of(ctx, y, s->d_key, n_k, n_out + n_k * s->d_key);
    result = ggml_ssm_scan(ctx, heads, x, in->gate[0], l->decay_scale, k, q, at->zero, 1);
    keep_heads(s, ctx, graph, result, n_tok, at);
    struct ggml_tensor *out = ggml_view_3d(ctx, result, s->d_value, n_v, n_tok,
                                           (size_t)s->d_value * F, (size_t)n_out * F, 0);
    out = ggml_add(ctx, out, ggml_mul(ctx, x, l->skip));
    return ggml_reshape_2d(ctx, out, n_out, n_tok);
}

/* ---- both forms of a state ---- */

/* Transpose n matrices of n_row rows of n_col floats. */
static void transpose(const float *from, float *to, int n, int n_row, int n_col) {
    for (int i = 0; i < n; i++) {
        size_t at = (size_t)i * n_row * n_col;
        for (int row = 0; row < n_row; row++)
            for (int col = 0; col < n_col; col++)
                to[at + (size_t)col * n_row + row] = from[at + (size_t)row * n_col + col];
    }
}

static int head_count(const struct lk_recurrence_shape *s) {
    return s->kind == LK_SHORT_CONV ? 0 : s->n_v_head;
}

void lk_recurrence_from_there(const struct lk_recurrence_shape *s, const float *from, float *to) {
    size_t n_conv = lk_recurrence_conv_floats(s);
    transpose(from, to, 1, lk_recurrence_channels(s), s->n_conv - 1);
    transpose(from + n_conv, to + n_conv, head_count(s), s->d_value, s->d_key);
}

void lk_recurrence_to_there(const struct lk_recurrence_shape *s, const float *from, float *to) {
    size_t n_conv = lk_recurrence_conv_floats(s);
    transpose(from, to, 1, s->n_conv - 1, lk_recurrence_channels(s));
    transpose(from + n_conv, to + n_conv, head_count(s), s->d_key, s->d_value);
}

/* ---- which layers ---- */

int lk_recurrence_count_there(const struct lk_net *net) {
    int n = 0;
    for (int layer = 0; layer < net->hp.n_layer; layer++) n += lk_net_recurs_there(net, layer);
    return n;
}

int lk_recurrence_run_there(const struct lk_net *net) {
    int longest = 0;
    for (int layer = 0, n = 0; layer < net->hp.n_layer; layer++) {
        n = lk_net_recurs_there(net, layer) ? n + 1 : 0;
        if (n > longest) longest = n;
    }
    return longest;
}

/* ---- asking a device ---- */

enum { N_TRY = 4 }; /* tokens of the nodes that a device is asked about */

struct question {
    const struct lk_recurrence_shape *shape;
    ggml_backend_dev_t dev;
    void *mem; /* of the tensors and the graph */
    size_t size;
    bool ok;
};

/* May throw. */
static void ask(void *arg) {
    struct question *a = arg;
    const struct lk_recurrence_shape *s = a->shape;
    int64_t channels = lk_recurrence_channels(s), n_v = s->n_v_head;
    enum ggml_type type = GGML_TYPE_F32;
    struct ggml_context *ctx = ggml_init(
        (struct ggml_init_params){.mem_size = a->size, .mem_buffer = a->mem, .no_alloc = true});
    struct ggml_cgraph *graph = ggml_new_graph_custom(ctx, LK_RECURRENCE_NODES, false);
    struct lk_layer l = {.conv = ggml_new_tensor_2d(ctx, type, s->n_conv, channels),
                         .conv_b = ggml_new_tensor_1d(ctx, type, channels),
                         .skip = ggml_new_tensor_2d(ctx, type, 1, n_v),
                         .decay_scale = ggml_new_tensor_2d(ctx, type, 1, n_v)};
    struct lk_recurrence_input in = {.mixed = ggml_new_tensor_2d(ctx, type, channels, N_TRY)};
    for (int i = 0; i < 2; i++) in.gate[i] = ggml_new_tensor_2d(ctx, type, n_v, N_TRY);
    struct lk_recurrence_states states = {.zero = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 1)};
    states.from = states.to = ggml_new_tensor_1d(ctx, type, (int64_t)lk_recurrence_state_floats(s));
    struct ggml_tensor *out = lk_recurrence_there(s, &l, ctx, graph, &in, &states);
    ggml_build_forward_expand(graph, out);
    a->ok = a->dev;
    for (int i = 0; a->ok && i < ggml_graph_n_nodes(graph); i++)
        a->ok = ggml_backend_dev_supports_op(a->dev, ggml_graph_node(graph, i));
    ggml_free(ctx);
}

/* Sizes that ggml's CUDA backend has, and does not tell. */
static bool has_sizes(const struct lk_recurrence_shape *s) {
    int n = s->n_conv, d = s->d_value;
    bool conv = (n >= 3 && n <= 5) || n == 9 || n == 15;
    return conv && (s->kind != LK_DELTA_RULE || d == 16 || d == 32 || d == 64 || d == 128);
}

const char *lk_recurrence_refused(const struct lk_recurrence_shape *shape,
                                  const struct lk_ggml_device *device, struct lk_ledger *ledger) {
    struct question a = {.shape = shape,
                         .dev = ggml_backend_buft_get_device(device->buft),
                         .size = ggml_tensor_overhead() * (2 * LK_RECURRENCE_NODES) +
                                 ggml_graph_overhead_custom(LK_RECURRENCE_NODES, false)};
    a.mem = has_sizes(shape) ? lk_alloc(ledger, LK_FOR_SCRATCH, a.size) : NULL;
    if (a.mem) lk_cxx_call(ask, &a, NULL);
    lk_release(ledger, LK_FOR_SCRATCH, a.mem, a.size);
    return a.ok ? NULL : "ggml has no operators for its recurrences there";
}
