/* Products of quantized weights (kernels/products.h): every table against plain C, bit for bit,
 * over odd numbers of tokens and blocks. */
#include "codec/f16.h"
#include "kernels/kernels.h"
#include "test.h"

enum { MAX_TOK = 392, MAX_BLOCK = 5, MAX_IN = MAX_BLOCK * LK_PRODUCT_BLOCK, MAX_OUT = 80 };

static float x[MAX_TOK * MAX_IN], y[MAX_TOK * MAX_OUT], expect[MAX_TOK * MAX_OUT];
enum { SHORTS = MAX_IN / LK_PRODUCT_SHORT };
static union {
    struct lk_input_block input[MAX_TOK * MAX_BLOCK];
    struct lk_short_block brief[MAX_TOK * SHORTS];
} blocks, plain;
static uint8_t weights[MAX_OUT * MAX_IN / LK_PRODUCT_SHORT * LK_Q8_0_BYTES];
static uint16_t offset[(MAX_OUT + LK_OFFSET_TILE) * MAX_IN / LK_OFFSET_BLOCK];
static float residual[MAX_TOK * MAX_OUT];
static uint32_t state = 1;

static uint32_t random_bits(void) { return (state = state * 1664525 + 1013904223) >> 8; }
static float uniform(void) { return (float)random_bits() / (1 << 23) - 1; }

static void put_f16(uint8_t *at) {
    uint16_t half = lk_f32_to_f16(0.01f * uniform());
    memcpy(at, &half, sizeof half);
}

/* Any bytes are codes and scales; only the numbers in f16 must be finite. */
static void make_weights(enum lk_weights_layout layout, int n_block, int n_out) {
    for (size_t i = 0; i < sizeof weights; i++) weights[i] = (uint8_t)random_bits();
    for (size_t i = 0; i < (size_t)n_block * (size_t)n_out; i++) {
        if (layout == LK_Q4_K_BY_8)
            for (int half = 0; half < 2; half++)
                put_f16(weights + i / 8 * LK_Q4_K_BY_8_BYTES + 16 * half + 2 * (i % 8));
        if (layout == LK_Q6_K_ROWS) put_f16(weights + i * LK_Q6_K_BYTES + 208);
        if (layout == LK_Q8_0_ROWS) put_f16(weights + i * LK_Q8_0_BYTES);
        if (layout == LK_Q5_0_ROWS) put_f16(weights + i * LK_Q5_0_BYTES);
        if (layout == LK_Q4_0_BY_8) put_f16(weights + i / 8 * LK_Q4_0_BY_8_BYTES + 2 * (i % 8));
    }
}

static void make_inputs(int n_tok, int n_in) {
    for (int i = 0; i < n_tok * n_in; i++) x[i] = 3 * uniform();
    for (int i = 0; i < LK_PRODUCT_BLOCK && i < n_in && n_tok > 2; i++)
        x[2 * n_in + i] = 0;                              /* a block of zeros */
    if (n_tok > 3) x[3 * n_in] = 4, x[3 * n_in + 9] = -4; /* both are the largest */
}

/* more: with offsets, where the layout has them, and a residual */
static void check(const struct lk_kernels *kernels, enum lk_weights_layout layout, int n_tok,
                  int n_block, int n_out, bool more) {
    int n_in = n_block * lk_product_block(layout);
    bool is_short = lk_product_block(layout) == LK_PRODUCT_SHORT;
    make_weights(layout, n_block, n_out);
    make_inputs(n_tok, n_in);
    memset(&blocks, 0, sizeof blocks);
    for (int t = 0; t < n_tok; t++) {
        const float *row = x + t * n_in;
        if (is_short) {
            lk_quantize_short_plain(row, n_in, plain.brief + t, (size_t)n_tok);
            kernels->quantize_short(row, n_in, blocks.brief + t, (size_t)n_tok);
        } else {
            lk_quantize_inputs_plain(row, n_in, plain.input + t, (size_t)n_tok);
            kernels->quantize_inputs(row, n_in, blocks.input + t, (size_t)n_tok);
        }
    }
    size_t bytes = is_short ? sizeof *blocks.brief : sizeof *blocks.input;
    assert_memory_equal(&blocks, &plain, bytes * (size_t)(n_tok * n_block));
    struct lk_product product = {.layout = layout,
                                 .n_in = n_in,
                                 .n_out = n_out,
                                 .weights = weights,
                                 .n_tok = n_tok,
                                 .x = &plain,
                                 .y = expect,
                                 .offset = more && is_short ? offset : NULL,
                                 .residual = more ? residual : NULL};
    lk_multiply_plain(&product, 0, n_out);
    product.y = y;
    for (int i = 0; i < n_tok * n_out; i++) y[i] = NAN;
    kernels->multiply(&product, 0, 16);
    if (n_out > 16) kernels->multiply(&product, 16, n_out - 16);
    for (int i = 0; i < n_tok * n_out; i++)
        if (memcmp(&y[i], &expect[i], sizeof *y) != 0)
            fail_msg(
                "%s, layout %d, %d tokens, %d blocks, %d outputs%s: token %d, output %d is %.9g, "
                "not %.9g",
                kernels->name, (int)layout, n_tok, n_block, n_out, more ? ", more" : "", i / n_out,
                i % n_out, (double)y[i], (double)expect[i]);
}

static void tables_agree(void **unused) {
    static const char *const tables[] = {"avx2", "avxvnni", "avx512", "avx512vbmi", "amx", "neon"};
    static const int tokens[] = {1,  2,  3,  4,   5,   6,   7,   12,     15,
                                 16, 17, 31, 191, 383, 384, 385, MAX_TOK};
    static const enum lk_weights_layout layouts[] = {LK_Q4_K_BY_8, LK_Q6_K_ROWS, LK_Q8_0_ROWS,
                                                     LK_Q5_0_ROWS, LK_Q4_0_BY_8};
    enum { N_LAYOUT = sizeof layouts / sizeof *layouts };
    int n = 0;
    for (size_t i = 0; i < sizeof offset / sizeof *offset; i++)
        offset[i] = lk_f32_to_f16(0.02f * uniform());
    for (int i = 0; i < MAX_TOK * MAX_OUT; i++) residual[i] = uniform();
    for (size_t table = 0; table < sizeof tables / sizeof *tables; table++) {
        const struct lk_kernels *kernels = lk_kernels_choose(tables[table]);
        if (!kernels || !kernels->multiply) continue;
        for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++)
            for (int layout = 0; layout < N_LAYOUT; layout++, n++) {
                int more = LK_PRODUCT_BLOCK / lk_product_block(layouts[layout]);
                check(kernels, layouts[layout], tokens[t], 1 + (int)t % (more * MAX_BLOCK),
                      16 * (1 + (int)t % (MAX_OUT / 16)), t % 2);
                check(kernels, layouts[layout], tokens[t], more * MAX_BLOCK, 48, t % 2 == 0);
            }
    }
    if (n == 0) skip();
}

/* Plain C against sums of what the codes stand for. */
static void plain_multiplies(void **unused) {
    enum { N_TOK = 6, N_OUT = 16 };
    make_weights(LK_Q6_K_ROWS, 2, N_OUT);
    make_inputs(N_TOK, 2 * LK_PRODUCT_BLOCK);
    for (int t = 0; t < N_TOK; t++)
        lk_quantize_inputs_plain(x + t * 2 * LK_PRODUCT_BLOCK, 2 * LK_PRODUCT_BLOCK,
                                 plain.input + t, N_TOK);
    struct lk_product product = {.layout = LK_Q6_K_ROWS,
                                 .n_in = 2 * LK_PRODUCT_BLOCK,
                                 .n_out = N_OUT,
                                 .weights = weights,
                                 .n_tok = N_TOK,
                                 .x = &plain,
                                 .y = y};
    lk_multiply_plain(&product, 0, N_OUT);
    for (int t = 0; t < N_TOK; t++)
        for (int o = 0; o < N_OUT; o++) {
            double sum = 0, size = 0;
            for (int i = 0; i < 2 * LK_PRODUCT_BLOCK; i++) {
                const uint8_t *w = weights + (size_t)(2 * o + i / 256) * LK_Q6_K_BYTES;
                int at = i % 256, in_half = at % 128;
                int low = w[64 * (at / 128) + in_half % 64] >> (in_half < 64 ? 0 : 4) & 15,
                    high = w[128 + 32 * (at / 128) + at % 32] >> 2 * (in_half / 32) & 3;
                uint16_t d;
                memcpy(&d, w + 208, sizeof d);
                double weight =
                           lk_f16_to_f32(d) * (int8_t)w[192 + at / 16] * ((low | high << 4) - 32),
                       input = x[t * 2 * LK_PRODUCT_BLOCK + i];
                sum += weight * input;
                size += fabs(weight * plain.input[i / 256 * N_TOK + t].step);
            }
            assert_true(fabs(y[t * N_OUT + o] - sum) <= 0.5 * size + 1e-6);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_agree),
        cmocka_unit_test(plain_multiplies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
