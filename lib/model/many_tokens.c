/* Products with many tokens. Two nodes: one rounds the inputs, and one multiplies. */
#include "model/many_tokens.h"

#include "kernels/kernels.h"
#include "model/q4_1_split.h"

#include "ggml-alloc.h"

#include <string.h>

enum { MIN_TOK = 8, MIN_SHORT_TOK = 4 }; /* with fewer tokens ggml is faster */

/* ---- ggml's layout ---- */

/* Blocks of 8 outputs as ggml stores them, repacked: kernels/products.h. */
static void repack_q4_0(const uint8_t *block, uint8_t *out) {
    enum { BLOCK = 18, D = 2 };
    for (int row = 0; row < 8; row++) {
        memcpy(out + D * row, block + row * BLOCK, D);
        for (int i = 0; i < 16; i++)
            out[8 * D + 64 * (i / 8) + 8 * row + i % 8] = block[row * BLOCK + D + i] ^ 0x88;
    }
}

static void repack_q4_k(const uint8_t *block, uint8_t *out) {
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

/* Whether ggml stores random blocks of 8 outputs in this buffer as `repack` does. */
static bool knows_layout(ggml_backend_buffer_type_t buffer_type, enum ggml_type type, int n_in,
                         size_t n_byte, void (*repack)(const uint8_t *block, uint8_t *out)) {
    enum { OUTPUTS = 8 };
    uint8_t block[LK_Q4_K_BY_8_BYTES], expected[LK_Q4_K_BY_8_BYTES];
    struct ggml_context *ctx = ggml_init(
        (struct ggml_init_params){.mem_size = 2 * ggml_tensor_overhead(), .no_alloc = true});
    if (!ctx) return false;
    struct ggml_tensor *w = ggml_new_tensor_2d(ctx, type, n_in, OUTPUTS);
    uint32_t state = 1;
    for (size_t i = 0; i < n_byte; i++) block[i] = (uint8_t)((state = state * 1664525 + 1) >> 24);
    repack(block, expected);
    ggml_backend_buffer_t buffer = ggml_nbytes(w) == n_byte
                                       ? ggml_backend_alloc_ctx_tensors_from_buft(ctx, buffer_type)
                                       : NULL;
    bool same = false;
    if (buffer && w->data && ggml_backend_buffer_get_size(buffer) >= n_byte) {
        ggml_backend_tensor_set(w, block, 0, n_byte);
        same = memcmp(w->data, expected, n_byte) == 0;
    }
    if (buffer) ggml_backend_buffer_free(buffer);
    ggml_free(ctx);
    return same;
}

bool lk_knows_repacked(ggml_backend_buffer_type_t type) {
    return knows_layout(type, GGML_TYPE_Q4_K, LK_PRODUCT_BLOCK, LK_Q4_K_BY_8_BYTES, repack_q4_k) &&
           knows_layout(type, GGML_TYPE_Q4_0, LK_PRODUCT_SHORT, LK_Q4_0_BY_8_BYTES, repack_q4_0);
}

/* ---- nodes ---- */

/* Tokens [*first, *end) of a thread. */
static void share(int64_t n_tok, int thread, int n_thread, int64_t *first, int64_t *end) {
    *first = n_tok * thread / n_thread;
    *end = n_tok * (thread + 1) / n_thread;
}

static const float *row_of(const struct ggml_tensor *x, int64_t tok) {
    return (const float *)((const char *)x->data + tok * x->nb[1]);
}

/* dst: blocks [n_in / inputs of a block][n_tok]. src: x. */
static void quantize_op(struct ggml_tensor *dst, int thread, int n_thread, void *user) {
    const struct lk_kernels *kernels = user;
    const struct ggml_tensor *x = dst->src[0];
    int64_t tok, end, n_tok = x->ne[1];
    share(n_tok, thread, n_thread, &tok, &end);
    for (struct lk_input_block *out = dst->data; tok < end; tok++)
        kernels->quantize_inputs(row_of(x, tok), (int)x->ne[0], out + tok, (size_t)n_tok);
}

static void quantize_short_op(struct ggml_tensor *dst, int thread, int n_thread, void *user) {
    const struct lk_kernels *kernels = user;
    const struct ggml_tensor *x = dst->src[0];
    int64_t tok, end, n_tok = x->ne[1];
    share(n_tok, thread, n_thread, &tok, &end);
    for (struct lk_short_block *out = dst->data; tok < end; tok++)
        kernels->quantize_short(row_of(x, tok), (int)x->ne[0], out + tok, (size_t)n_tok);
}

/* The kernels' layout of a matrix on the CPU; false if there is none. */
static bool find_layout(const struct lk_net *net, const struct ggml_tensor *weight,
                        enum lk_weights_layout *out) {
    if (!weight->buffer) return false;
    if (weight->type == GGML_TYPE_Q4_K || weight->type == GGML_TYPE_Q4_0) {
        *out = weight->type == GGML_TYPE_Q4_K ? LK_Q4_K_BY_8 : LK_Q4_0_BY_8;
        return net->repacked && ggml_backend_buffer_get_type(weight->buffer) == net->repacked;
    }
    static const struct {
        enum ggml_type type;
        enum lk_weights_layout layout;
        size_t bytes; /* of a block */
    } rows[] = {{GGML_TYPE_Q6_K, LK_Q6_K_ROWS, LK_Q6_K_BYTES},
                {GGML_TYPE_Q8_0, LK_Q8_0_ROWS, LK_Q8_0_BYTES},
                {GGML_TYPE_Q5_0, LK_Q5_0_ROWS, LK_Q5_0_BYTES}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (weight->type != rows[i].type) continue;
        *out = rows[i].layout;
        return ggml_backend_buffer_is_host(weight->buffer) && weight->nb[0] == rows[i].bytes;
    }
    return false;
}

/* dst: [n_tok][n_out]. src: weight, blocks of x, and optionally residual. Threads take turns with
 * the outputs. */
static void multiply_op(struct ggml_tensor *dst, int thread, int n_thread, void *user) {
    enum { OUTPUTS = 2 * LK_PRODUCT_OUTPUTS };
    const struct lk_net *net = user;
    const struct ggml_tensor *weight = dst->src[0], *residual = dst->src[2],
                             *offset = lk_q4_1_offset(weight);
    struct lk_product product = {.n_in = (int)weight->ne[0],
                                 .n_out = (int)weight->ne[1],
                                 .weights = weight->data,
                                 .n_tok = (int)dst->ne[1],
                                 .x = dst->src[1]->data,
                                 .y = dst->data,
                                 .offset = offset ? offset->data : NULL,
                                 .residual = residual ? residual->data : NULL};
    find_layout(net, weight, &product.layout);
    for (int first = thread * OUTPUTS; first < product.n_out; first += n_thread * OUTPUTS) {
        int left = product.n_out - first;
        net->kernels->multiply(&product, first, left < OUTPUTS ? left : OUTPUTS);
    }
}

static int64_t input_bytes(enum lk_weights_layout layout, int64_t n_in, int64_t n_tok) {
    int block = lk_product_block(layout);
    size_t bytes =
        block == LK_PRODUCT_SHORT ? sizeof(struct lk_short_block) : sizeof(struct lk_input_block);
    return n_in / block * n_tok * (int64_t)bytes;
}

static bool is_faster(const struct lk_net *net, const struct ggml_tensor *weight, int64_t n_tok,
                      enum lk_weights_layout *layout) {
    if (!net->kernels->multiply || net->ggml_products || ggml_n_dims(weight) != 2 ||
        !find_layout(net, weight, layout))
        return false;
    int block = lk_product_block(*layout);
    return n_tok >= (block == LK_PRODUCT_SHORT ? MIN_SHORT_TOK : MIN_TOK) &&
           weight->ne[0] % block == 0 && weight->ne[1] % LK_PRODUCT_OUTPUTS == 0;
}

struct ggml_tensor *lk_many_tokens(const struct lk_net *net, struct ggml_context *ctx,
                                   struct ggml_tensor *weight, struct ggml_tensor *residual,
                                   struct ggml_tensor *x) {
    enum lk_weights_layout layout;
    if (ggml_n_dims(x) > 2 || x->nb[0] != sizeof(float) ||
        !is_faster(net, weight, x->ne[1], &layout))
        return NULL;
    struct ggml_tensor *blocks = ggml_custom_4d(
        ctx, GGML_TYPE_I8, input_bytes(layout, x->ne[0], x->ne[1]), 1, 1, 1, &x, 1,
        lk_product_block(layout) == LK_PRODUCT_SHORT ? quantize_short_op : quantize_op,
        GGML_N_TASKS_MAX, (void *)(uintptr_t)net->kernels);
    if (residual && !ggml_is_contiguous(residual)) residual = ggml_cont(ctx, residual);
    struct ggml_tensor *parts[] = {weight, blocks, residual};
    return ggml_custom_4d(ctx, GGML_TYPE_F32, weight->ne[1], x->ne[1], 1, 1, parts,
                          residual ? 3 : 2, multiply_op, GGML_N_TASKS_MAX, (void *)(uintptr_t)net);
}

uint64_t lk_many_tokens_bytes(const struct lk_net *net, const struct ggml_tensor *weight,
                              int64_t n_tok) {
    enum lk_weights_layout layout;
    return is_faster(net, weight, n_tok, &layout)
               ? (uint64_t)input_bytes(layout, weight->ne[0], n_tok)
               : 0;
}
