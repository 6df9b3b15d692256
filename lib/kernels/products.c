/* Products of quantized weights in plain C. */
#include "kernels/products.h"

#include "codec/f16.h"
#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

void lk_quantize_inputs_plain(const float *x, int n_in, struct lk_input_block *out, size_t stride) {
    for (int b = 0; b < n_in / LK_PRODUCT_BLOCK; b++, x += LK_PRODUCT_BLOCK, out += stride) {
        float max = 0, top = -INFINITY;
        for (int i = 0; i < LK_PRODUCT_BLOCK; i++) {
            if (fabsf(x[i]) > max) max = fabsf(x[i]);
            if (x[i] > top) top = x[i];
        }
        /* The largest number becomes -127, as in ggml. */
        float to_code = max == 0 ? 0 : (top == max ? -127.0f : 127.0f) / max;
        *out = (struct lk_input_block){.step = max == 0 ? 0 : 1 / to_code};
        for (int i = 0; i < LK_PRODUCT_BLOCK; i++) {
            int code = (int)lrintf(x[i] * to_code);
            out->code[i] = (int8_t)code;
            out->sum16[i / 16] = (int16_t)(out->sum16[i / 16] + code);
            out->sum32[i / 32] = (int16_t)(out->sum32[i / 32] + code);
        }
    }
}

void lk_quantize_short_plain(const float *x, int n_in, struct lk_short_block *out, size_t stride) {
    for (int b = 0; b < n_in / LK_PRODUCT_SHORT; b++, x += LK_PRODUCT_SHORT, out += stride) {
        float max = 0;
        for (int i = 0; i < LK_PRODUCT_SHORT; i++)
            if (fabsf(x[i]) > max) max = fabsf(x[i]);
        float to_code = max == 0 ? 0 : 127.0f / max;
        *out = (struct lk_short_block){.step = lk_f16_to_f32(lk_f32_to_f16(max / 127.0f))};
        for (int i = 0; i < LK_PRODUCT_SHORT; i++) {
            int code = (int)lrintf(x[i] * to_code);
            out->code[i] = (int8_t)code;
            out->sum += code;
        }
        out->total = out->step * (float)out->sum;
    }
}

/* The sum of products of n codes. */
static int32_t dot(const uint8_t *weight, const int8_t *x, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; i++) sum += weight[i] * x[i];
    return sum;
}

static float load_f16(const uint8_t *at) {
    uint16_t half;
    memcpy(&half, at, sizeof half);
    return lk_f16_to_f32(half);
}

static float multiply_q4_k(const struct lk_product *p, int output, int tok) {
    enum { HALVES = 8 * sizeof(uint16_t), PART = 12, CODES = 2 * HALVES + 8 * PART };
    int n_block = p->n_in / LK_PRODUCT_BLOCK, row = output % 8;
    float sum = 0;
    for (int b = 0; b < n_block; b++) {
        const uint8_t *w =
            (const uint8_t *)p->weights + ((size_t)(output / 8) * n_block + b) * LK_Q4_K_BY_8_BYTES;
        const struct lk_input_block *x =
            (const struct lk_input_block *)p->x + (size_t)b * p->n_tok + tok;
        int32_t part = 0, part_min = 0;
        for (int s = 0; s < 8; s++) {
            uint8_t scale[8], min[8], code[32];
            lk_q4_k_by_8_scales(w + 2 * HALVES + s * PART, scale, min);
            for (int i = 0; i < 32; i++) {
                uint8_t byte = w[CODES + (s / 2 * 4 + i / 8) * 64 + row * 8 + i % 8];
                code[i] = s % 2 ? byte >> 4 : byte & 15;
            }
            part += scale[row] * dot(code, x->code + 32 * s, 32);
            part_min += min[row] * x->sum32[s];
        }
        sum = fmaf(-(float)part_min, load_f16(w + HALVES + row * sizeof(uint16_t)) * x->step, sum);
        sum = fmaf((float)part, load_f16(w + row * sizeof(uint16_t)) * x->step, sum);
    }
    return sum;
}

/* Code i of a block of Q6_K. */
static uint8_t q6_k_code(const uint8_t *block, int i) {
    int half = i / 128, at = i % 32, quarter = i % 128 / 32;
    uint8_t low = block[64 * half + 32 * (quarter % 2) + at],
            high = block[128 + 32 * half + at] >> 2 * quarter & 3;
    return (uint8_t)((quarter < 2 ? low & 15 : low >> 4) | high << 4);
}

static float multiply_q6_k(const struct lk_product *p, int output, int tok) {
    enum { SCALES = 192, D = SCALES + 16, MIDDLE = 32 };
    int n_block = p->n_in / LK_PRODUCT_BLOCK;
    float sum = 0;
    for (int b = 0; b < n_block; b++) {
        const uint8_t *w =
            (const uint8_t *)p->weights + ((size_t)output * n_block + b) * LK_Q6_K_BYTES;
        const struct lk_input_block *x =
            (const struct lk_input_block *)p->x + (size_t)b * p->n_tok + tok;
        int32_t part = 0;
        for (int s = 0; s < 16; s++) {
            uint8_t code[16];
            for (int i = 0; i < 16; i++) code[i] = q6_k_code(w, 16 * s + i);
            part +=
                (int8_t)w[SCALES + s] * (dot(code, x->code + 16 * s, 16) - MIDDLE * x->sum16[s]);
        }
        sum = fmaf((float)part, load_f16(w + D) * x->step, sum);
    }
    return sum;
}

/* Weight i of a block of 32, and *d, of an output. */
static int short_weight(const struct lk_product *p, int output, int b, int i, float *d) {
    enum { D = sizeof(uint16_t), HIGH = sizeof(uint32_t), DS = 8 * D };
    size_t n_block = (size_t)p->n_in / LK_PRODUCT_SHORT, row = (size_t)output * n_block + (size_t)b,
           row8 = (size_t)output / 8 * n_block + (size_t)b, in8 = (size_t)output % 8;
    const uint8_t *w = p->weights;
    if (p->layout == LK_Q4_0_BY_8) {
        w += row8 * LK_Q4_0_BY_8_BYTES;
        uint8_t byte = w[DS + 64 * (i % 16 / 8) + 8 * in8 + i % 8];
        *d = load_f16(w + D * in8);
        return ((i < 16 ? byte & 15 : byte >> 4) ^ 8) - 8;
    }
    w += row * (p->layout == LK_Q8_0_ROWS ? LK_Q8_0_BYTES : LK_Q5_0_BYTES);
    *d = load_f16(w);
    if (p->layout == LK_Q8_0_ROWS) return (int8_t)w[D + i];
    uint8_t low = w[D + HIGH + i % 16], high = w[D + i / 8] >> i % 8 & 1;
    return ((i < 16 ? low & 15 : low >> 4) | high << 4) - 16;
}

static float multiply_short(const struct lk_product *p, int output, int tok) {
    float sum = 0, d = 0;
    for (int b = 0; b < p->n_in / LK_PRODUCT_SHORT; b++) {
        const struct lk_short_block *x =
            (const struct lk_short_block *)p->x + (size_t)b * p->n_tok + tok;
        int32_t whole = 0;
        for (int i = 0; i < LK_PRODUCT_SHORT; i++)
            whole += short_weight(p, output, b, i, &d) * x->code[i];
        sum = fmaf((float)whole, d * x->step, sum);
        if (p->offset)
            sum =
                fmaf(lk_f16_to_f32(p->offset[lk_offset_index(p->n_in, b, output)]), x->total, sum);
    }
    return sum;
}

void lk_multiply_plain(const struct lk_product *p, int first, int n) {
    for (int tok = 0; tok < p->n_tok; tok++)
        for (int o = first; o < first + n; o++) {
            size_t at = (size_t)tok * p->n_out + o;
            p->y[at] = p->layout == LK_Q4_K_BY_8   ? multiply_q4_k(p, o, tok)
                       : p->layout == LK_Q6_K_ROWS ? multiply_q6_k(p, o, tok)
                                                   : multiply_short(p, o, tok);
            if (p->residual) p->y[at] += p->residual[at];
        }
}
