/* Products with many tokens (model/many_tokens.h) against ggml's. */
#include "kernels/kernels.h"
#include "model/many_tokens.h"
#include "model/q4_1_split.h"
#include "test.h"

#include "ggml-alloc.h"
#include "ggml-cpu.h"

static uint32_t state = 1;
static float uniform(void) {
    state = state * 1664525 + 1013904223;
    return (float)(state >> 8) / (1 << 23) - 1;
}

/* ggml's buffer type of that name, or the usual one. */
static ggml_backend_buffer_type_t find_type(bool repacked) {
    ggml_backend_dev_t dev = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    ggml_backend_dev_get_extra_bufts_t get =
        (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(dev), "ggml_backend_dev_get_extra_bufts");
    if (!repacked) return ggml_backend_cpu_buffer_type();
    for (ggml_backend_buffer_type_t *list = get ? get(dev) : NULL; list && *list; list++)
        if (strcmp(ggml_backend_buft_name(*list), "CPU_REPACK") == 0) return *list;
    return NULL;
}

static struct ggml_context *new_context(void) {
    return ggml_init((struct ggml_init_params){.mem_size = 1 << 20, .no_alloc = true});
}

/* The offsets of w in `weights`, and their part of the product as ggml computes it: rows of f32
 * with the offset of each block in all its inputs. */
static struct ggml_tensor *new_offsets(struct ggml_context *weights, struct ggml_tensor *w,
                                       struct ggml_tensor **rows) {
    struct ggml_tensor *offset =
        ggml_new_tensor_1d(weights, GGML_TYPE_F16, (int64_t)lk_offset_count(w->ne[0], w->ne[1]));
    *rows = ggml_new_tensor_2d(weights, GGML_TYPE_F32, w->ne[0], w->ne[1]);
    return offset;
}

static void set_offsets(struct ggml_tensor *offset, struct ggml_tensor *rows) {
    int64_t n_in = rows->ne[0];
    for (int64_t o = 0; o < rows->ne[1]; o++)
        for (int64_t i = 0; i < n_in; i++) {
            ggml_fp16_t *at =
                (ggml_fp16_t *)offset->data + lk_offset_index(n_in, i / LK_OFFSET_BLOCK, o);
            if (i % LK_OFFSET_BLOCK == 0) *at = ggml_fp32_to_fp16(uniform());
            ((float *)rows->data)[o * n_in + i] = ggml_fp16_to_fp32(*at);
        }
}

/* The maximum difference of both products, relative to the root mean square; < 0: lowkey leaves the
 * product to ggml. more: with a residual, and with offsets of Q4_0. Inputs are then whole numbers:
 * they have no rounding error, and ggml's f32 part has none either. */
static double compare(const struct lk_net *net, enum ggml_type type, int n_in, int n_out, int n_tok,
                      bool more) {
    ggml_backend_t cpu = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(cpu, 2);
    struct ggml_context *weights = new_context(), *ctx = new_context();
    struct ggml_tensor *w = ggml_new_tensor_2d(weights, type, n_in, n_out), *rows = NULL;
    struct ggml_context *plain = new_context();
    struct ggml_tensor *offset =
        more && type == GGML_TYPE_Q4_0 ? new_offsets(plain, w, &rows) : NULL;
    ggml_backend_buffer_t plain_buffer = offset ? ggml_backend_alloc_ctx_tensors(plain, cpu) : NULL;
    if (offset) set_offsets(offset, rows);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors_from_buft(
        weights, find_type(type == GGML_TYPE_Q4_K || type == GGML_TYPE_Q4_0));
    float *f = malloc((size_t)n_in * (size_t)(n_out > n_tok ? n_out : n_tok) * sizeof *f);
    void *q = malloc(ggml_nbytes(w));
    for (int i = 0; i < n_in * n_out; i++) f[i] = uniform();
    ggml_quantize_chunk(type, f, q, 0, n_out, n_in, NULL);
    ggml_backend_tensor_set(w, q, 0, ggml_nbytes(w));

    struct ggml_tensor *x = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_in, n_tok),
                       *residual = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_out, n_tok),
                       *expect = ggml_mul_mat(ctx, w, x);
    if (offset) expect = ggml_add(ctx, expect, ggml_mul_mat(ctx, rows, x));
    if (more) expect = ggml_add(ctx, expect, residual);
    if (offset) lk_q4_1_attach_offset(w, offset);
    struct ggml_tensor *y = lk_many_tokens(net, ctx, w, more ? residual : NULL, x);
    struct ggml_cgraph *graph = ggml_new_graph(ctx);
    assert_int_equal(lk_many_tokens_bytes(net, w, n_tok), y ? ggml_nbytes(y->src[1]) : 0);
    ggml_set_input(x), ggml_set_input(residual);
    ggml_set_output(expect);
    ggml_build_forward_expand(graph, expect);
    if (y) ggml_set_output(y), ggml_build_forward_expand(graph, y);
    ggml_backend_buffer_t scratch = ggml_backend_alloc_ctx_tensors(ctx, cpu);
    for (int i = 0; i < n_in * n_tok; i++) {
        f[i] = 3 * uniform();
        if (more) f[i] = i % 32 == 0 ? 127 : roundf(30 * f[i]);
    }
    ggml_backend_tensor_set(x, f, 0, ggml_nbytes(x));
    for (int i = 0; i < n_out * n_tok; i++) ((float *)residual->data)[i] = 100 * uniform();
    assert_true(ggml_backend_graph_compute(cpu, graph) == GGML_STATUS_SUCCESS);
    double max = 0, squares = 0;
    for (int64_t i = 0; y && i < ggml_nelements(y); i++) {
        double a = ((float *)y->data)[i], b = ((float *)expect->data)[i];
        max = fmax(max, fabs(a - b));
        squares += b * b;
    }
    double result = y ? max / sqrt(squares / (double)ggml_nelements(y)) : -1;
    free(f), free(q);
    ggml_backend_buffer_free(scratch), ggml_backend_buffer_free(buffer);
    if (plain_buffer) ggml_backend_buffer_free(plain_buffer);
    ggml_free(ctx), ggml_free(weights), ggml_free(plain);
    ggml_backend_free(cpu);
    return result;
}

static struct lk_net new_net(void) {
    struct lk_net net = {.kernels = lk_kernels_choose(NULL)};
    if (!net.kernels->multiply) skip();
    ggml_backend_buffer_type_t type = find_type(true);
    if (type && lk_knows_repacked(type)) net.repacked = type;
    return net;
}

/* Both programs round the inputs in the same way, and their sums differ by rounding only. ggml
 * subtracts two large sums for Q4_K. */
static void blocks_of_256_agree(void **unused) {
    static const int tokens[] = {8, 13, 16, 17, 18, 19, 20, 33, 64, 193, 256, 511};
    struct lk_net net = new_net();
    assert_non_null(net.repacked); /* the build's own ggml has the layout */
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        for (int n_out = 16; n_out <= 176; n_out += 80) {
            int n_in = 256 * (1 + (int)i);
            double q4 = compare(&net, GGML_TYPE_Q4_K, n_in, n_out, tokens[i], false),
                   q6 = compare(&net, GGML_TYPE_Q6_K, n_in, n_out, tokens[i], i % 2);
            if (q4 < 0 || q4 > 1e-5 || q6 < 0 || q6 > 3e-6)
                fail_msg("%d inputs, %d outputs: Q4_K %g, Q6_K %g", n_in, n_out, q4, q6);
        }
}

static void blocks_of_32_agree(void **unused) {
    struct lk_net net = new_net();
    for (int n_tok = 4; n_tok < 40; n_tok += 5)
        for (int n_in = 32; n_in <= 1056; n_in += 128) {
            double q8 = compare(&net, GGML_TYPE_Q8_0, n_in, 48, n_tok, n_tok % 2),
                   q5 = compare(&net, GGML_TYPE_Q5_0, n_in, 48, n_tok, n_tok % 2),
                   q4 = compare(&net, GGML_TYPE_Q4_0, n_in, 48, n_tok, false),
                   q4_1 = compare(&net, GGML_TYPE_Q4_0, n_in, 48, n_tok, true);
            if (q8 < 0 || q8 > 3e-6 || q5 < 0 || q5 > 3e-6 || q4 < 0 || q4 > 3e-6 || q4_1 < 0 ||
                q4_1 > 3e-6)
                fail_msg("%d inputs: Q8_0 %g, Q5_0 %g, Q4_0 %g, with offsets %g", n_in, q8, q5, q4,
                         q4_1);
        }
}

static void others_are_left_to_ggml(void **unused) {
    struct lk_net net = new_net();
    assert_true(compare(&net, GGML_TYPE_Q4_K, 256, 24, 32, false) < 0); /* outputs */
    assert_true(compare(&net, GGML_TYPE_Q4_K, 256, 32, 7, false) < 0);  /* few tokens */
    assert_true(compare(&net, GGML_TYPE_Q8_0, 256, 32, 3, false) < 0);
    assert_true(compare(&net, GGML_TYPE_Q5_1, 256, 32, 32, false) < 0);
    net.repacked = NULL; /* an unknown layout */
    assert_true(compare(&net, GGML_TYPE_Q4_K, 256, 32, 32, false) < 0);
    assert_false(lk_knows_repacked(ggml_backend_cpu_buffer_type()));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_of_256_agree),
        cmocka_unit_test(blocks_of_32_agree),
        cmocka_unit_test(others_are_left_to_ggml),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
