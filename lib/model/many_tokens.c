/* Products with many tokens. Two nodes: one rounds the inputs, and one multiplies. */
#include "model/many_tokens.h"

#include "kernels/kernels.h"

#include "ggml-alloc.h"

#include <string.h>

enum { MIN_TOK = 16 };

/* ---- ggml's layout ---- */

/* Blocks of 8 outputs as ggml stores them, repacked: kernels/products.h. */
static void repack(const uint8_t *block, uint8_t *out) {
    enum { BLOCK = 144, D = 2, SCALES = 4, CODES = 16 };
    memset(out, 0, LK_Q4_K_BY_8_BYTES);
    for (int row = 0; row < 8; row++) {
        memcpy(out + D * row, block + row * BLOCK, D);
        memcpy(out + 8 * D + D * row, block + row * BLOCK + D, D);
        for (int piece = 0; piece < 16; piece++)
            memcpy(out + 128 + 64 * piece + 8 * row, block + row * BLOCK + CODES + 8 * piece, 8);
    }
    for (int s = 0; s < 8; s++) {
        uint8_t *to = out + 16 * D + 12 * s;
        for (int row = 0; row < 8; row++) {
            const uint8_t *from = block + row * BLOCK + SCALES;
            int scale = s < 4 ? from[s] & 63 : (from[s + 4] & 15) | (from[s - 4] >> 6) << 4,
                min = s < 4 ? from[s + 4] & 63 : from[s + 4] >> 4 | (from[s] >> 6) << 4;
            if (row < 4) {
                to[row] |= (uint8_t)scale;
                to[4 + row] |= (uint8_t)min;
            } else {
                to[row - 4] |= (uint8_t)(scale >> 4 << 6);
                to[row] |= (uint8_t)(min >> 4 << 6);
                to[4 + row] |= (uint8_t)((scale & 15) | (min & 15) << 4);
            }
        }
    }
}

bool lk_knows_repacked(ggml_backend_buffer_type_t type) {
    enum { OUTPUTS = 8, BYTES = 1152 };
    uint8_t block[BYTES], expected[LK_Q4_K_BY_8_BYTES];
    _Static_assert((int)BYTES == (int)LK_Q4_K_BY_8_BYTES, "repacking keeps the size");
    struct ggml_context *ctx = ggml_init(
        (struct ggml_init_params){.mem_size = 2 * ggml_tensor_overhead(), .no_alloc = true});
    if (!ctx) return false;
    struct ggml_tensor *w = ggml_new_tensor_2d(ctx, GGML_TYPE_Q4_K, LK_PRODUCT_BLOCK, OUTPUTS);
    uint32_t state = 1;
    for (int i = 0; i < BYTES; i++) block[i] = (uint8_t)((state = state * 1664525 + 1) >> 24);
    repack(block, expected);
    ggml_backend_buffer_t buffer =
        ggml_nbytes(w) == BYTES ? ggml_backend_alloc_ctx_tensors_from_buft(ctx, type) : NULL;
    bool same = false;
    if (buffer && w->data && ggml_backend_buffer_get_size(buffer) >= BYTES) {
        ggml_backend_tensor_set(w, block, 0, BYTES);
        same = memcmp(w->data, expected, BYTES) == 0;
    }
    if (buffer) ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    return same;
}

/* ---- nodes ---- */

/* dst: blocks [n_in / 256][n_tok]. src: x. */
static void quantize_op(struct ggml_tensor *dst, int thread, int n_thread, void *user) {
    const struct lk_kernels *kernels = user;
    const struct ggml_tensor *x = dst->src[0];
    int64_t n_tok = x->ne[1];
    struct lk_input_block *out = dst->data;
    for (int64_t tok = n_tok * thread / n_thread; tok < n_tok * (thread + 1) / n_thread; tok++)
        kernels->quantize_inputs((const float *)((const char *)x->data + tok * x->nb[1]),
                                 (int)x->ne[0], out + tok, (size_t)n_tok);
}

/* The kernels' layout of a matrix on the CPU; false if there is none. */
static bool find_layout(const struct lk_net *net, const struct ggml_tensor *weight,
                        enum lk_weights_layout *out) {
    if (!weight->buffer) return false;
    if (weight->type == GGML_TYPE_Q4_K) {
        *out = LK_Q4_K_BY_8;
        return net->repacked && ggml_backend_buffer_get_type(weight->buffer) == net->repacked;
    }
    *out = LK_Q6_K_ROWS;
    return weight->type == GGML_TYPE_Q6_K && ggml_backend_buffer_is_host(weight->buffer) &&
           weight->nb[0] == LK_Q6_K_BYTES;
}

/* dst: [n_tok][n_out]. src: weight, blocks of x. Threads take turns with the outputs. */
static void multiply_op(struct ggml_tensor *dst, int thread, int n_thread, void *user) {
    enum { OUTPUTS = 2 * LK_PRODUCT_OUTPUTS };
    const struct lk_net *net = user;
    const struct ggml_tensor *weight = dst->src[0];
    struct lk_product product = {.n_in = (int)weight->ne[0],
                                 .n_out = (int)weight->ne[1],
                                 .weights = weight->data,
                                 .n_tok = (int)dst->ne[1],
                                 .x = dst->src[1]->data,
                                 .y = dst->data};
    find_layout(net, weight, &product.layout);
    for (int first = thread * OUTPUTS; first < product.n_out; first += n_thread * OUTPUTS) {
        int left = product.n_out - first;
        net->kernels->multiply(&product, first, left < OUTPUTS ? left : OUTPUTS);
    }
}

static int64_t input_bytes(int64_t n_in, int64_t n_tok) {
    return n_in / LK_PRODUCT_BLOCK * n_tok * (int64_t)sizeof(struct lk_input_block);
}

static bool is_faster(const struct lk_net *net, const struct ggml_tensor *weight, int64_t n_tok) {
    enum lk_weights_layout layout;
    return net->kernels->multiply && !net->ggml_products && n_tok >= MIN_TOK &&
           ggml_n_dims(weight) == 2 && weight->ne[0] % LK_PRODUCT_BLOCK == 0 &&
           weight->ne[1] % LK_PRODUCT_OUTPUTS == 0 && find_layout(net, weight, &layout);
}

struct ggml_tensor *lk_many_tokens(const struct lk_net *net, struct ggml_context *ctx,
                                   struct ggml_tensor *weight, struct ggml_tensor *x) {
    if (ggml_n_dims(x) > 2 || x->nb[0] != sizeof(float) || !is_faster(net, weight, x->ne[1]))
        return NULL;
    struct ggml_tensor *blocks =
        ggml_custom_4d(ctx, GGML_TYPE_I8, input_bytes(x->ne[0], x->ne[1]), 1, 1, 1, &x, 1,
                       quantize_op, GGML_N_TASKS_MAX, (void *)(uintptr_t)net->kernels);
    struct ggml_tensor *parts[] = {weight, blocks};
    return ggml_custom_4d(ctx, GGML_TYPE_F32, weight->ne[1], x->ne[1], 1, 1, parts, 2, multiply_op,
                          GGML_N_TASKS_MAX, (void *)(uintptr_t)net);
}

uint64_t lk_many_tokens_bytes(const struct lk_net *net, const struct ggml_tensor *weight,
                              int64_t n_tok) {
    return is_faster(net, weight, n_tok) ? (uint64_t)input_bytes(weight->ne[0], n_tok) : 0;
}
