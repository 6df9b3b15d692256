/* Q4_1 matrices as a Q4_0 part and offsets. */
#include "model/q4_1_split.h"

#include <string.h>

/* Bytes of a half float, of 32 codes, and of a block. */
enum { HALF = 2, CODES = 16, Q4_0 = HALF + CODES, Q4_1 = 2 * HALF + CODES };

void lk_q4_1_split_rows(const void *rows, int64_t n_in, int64_t n_out, void *q4_0,
                        uint16_t *offset) {
    const uint8_t *from = rows;
    uint8_t *to = q4_0;
    for (int64_t o = 0; o < n_out; o++)
        for (int64_t b = 0; b < n_in / LK_OFFSET_BLOCK; b++, from += Q4_1, to += Q4_0) {
            ggml_fp16_t d, m;
            memcpy(&d, from, HALF);
            memcpy(&m, from + HALF, HALF);
            memcpy(to, from, HALF);
            memcpy(to + HALF, from + 2 * HALF, CODES);
            offset[lk_offset_index(n_in, b, o)] =
                ggml_fp32_to_fp16(ggml_fp16_to_fp32(m) + 8 * ggml_fp16_to_fp32(d));
        }
}

void lk_q4_1_attach_offset(struct ggml_tensor *q4_0, struct ggml_tensor *offset) {
    q4_0->src[0] = offset;
}

struct ggml_tensor *lk_q4_1_offset(const struct ggml_tensor *matrix) {
    return matrix->op == GGML_OP_NONE ? matrix->src[0] : NULL;
}

/* Custom operator in place of y. src: y, x, offset and optionally residual. Threads divide the
 * tokens, or the tiles of outputs if there are few tokens. */
static void add_offset_op(struct ggml_tensor *sum, int thread, int n_thread, void *user) {
    const struct lk_kernels *kernels = user;
    const struct ggml_tensor *x = sum->src[1], *offset = sum->src[2], *residual = sum->src[3];
    int64_t n_tok = sum->ne[1], n_out = sum->ne[0], n_in = x->ne[0],
            n_tile = (n_out + LK_OFFSET_TILE - 1) / LK_OFFSET_TILE;
    bool by_token = n_tok >= 4 * n_thread;
    int64_t n = by_token ? n_tok : n_tile, first = n * thread / n_thread,
            last = n * (thread + 1) / n_thread;
    int64_t tok = by_token ? first : 0, tok_end = by_token ? last : n_tok;
    int64_t out = by_token ? 0 : first * LK_OFFSET_TILE,
            out_end = by_token || last == n_tile ? n_out : last * LK_OFFSET_TILE;
    if (tok == tok_end || out == out_end) return;
    kernels->add_offsets((const float *)x->data + tok * n_in, (int)(tok_end - tok), (int)n_in,
                         offset->data, (int)n_out, (int)out, (int)(out_end - out),
                         (float *)sum->data + tok * n_out);
    for (; residual && tok < tok_end; tok++) {
        float *y = (float *)sum->data + tok * n_out;
        const float *r = (const float *)residual->data + tok * n_out;
        for (int64_t o = out; o < out_end; o++) y[o] += r[o];
    }
}

struct ggml_tensor *lk_q4_1_add_offset(struct ggml_context *ctx, const struct lk_kernels *kernels,
                                       struct ggml_tensor *offset, struct ggml_tensor *x,
                                       struct ggml_tensor *residual, struct ggml_tensor *y) {
    if (!ggml_is_contiguous(x)) x = ggml_cont(ctx, x);
    if (residual && !ggml_is_contiguous(residual)) residual = ggml_cont(ctx, residual);
    struct ggml_tensor *parts[] = {x, offset, residual};
    return ggml_custom_inplace(ctx, y, parts, residual ? 3 : 2, add_offset_op, GGML_N_TASKS_MAX,
                               (void *)(uintptr_t)kernels);
}
