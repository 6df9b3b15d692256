/* Compares every family's graph with libllama's forward pass on the same file. */
#include "base/log.h"
#include "model/net.h"
#include "model/q4_1_split.h"
#include "test.h"
#include "tiny_gguf.h"

#include "ggml-alloc.h"
#include "ggml-cpu.h"
#include "llama.h"

#include <unistd.h>

enum { N_TOK = 48, N_CTX = 256 }; /* context of both, which decides about LongRoPE */

/* ---- lowkey's forward pass, with plain attention ---- */

/* Causal mask [n][n] for ggml_soft_max_ext: -infinity if the query cannot see the key, else 0, or
 * minus the distance for ALiBi. */
static void fill_mask(float *mask, int n, int window, bool alibi) {
    for (int q = 0; q < n; q++) {
        for (int k = 0; k < n; k++) {
            bool sees = k <= q && (window == 0 || q - k < window);
            mask[q * n + k] = !sees ? -INFINITY : alibi ? (float)(k - q) : 0;
        }
    }
}

static struct ggml_tensor *build_attention(const struct lk_net *net, struct ggml_context *ctx,
                                           int layer, const struct lk_qkv *p,
                                           struct ggml_tensor *mask) {
    struct ggml_tensor *k = net->hp.d_rope > 0 ? ggml_concat(ctx, p->v, p->k, 0) : p->k;
    struct ggml_tensor *q = ggml_permute(ctx, p->q, 0, 2, 1, 3);
    k = ggml_permute(ctx, k, 0, 2, 1, 3);
    struct ggml_tensor *v = ggml_cont(ctx, ggml_permute(ctx, p->v, 1, 2, 0, 3));
    struct ggml_tensor *s = ggml_mul_mat(ctx, k, q);
    float scale = net->hp.attn_scale, cap = net->hp.attn_softcap;
    if (cap > 0) {
        s = ggml_scale(ctx, ggml_tanh(ctx, ggml_scale(ctx, s, scale / cap)), cap);
        scale = 1;
    }
    s = ggml_soft_max_ext(ctx, s, mask, scale, net->hp.alibi_max_bias);
    ggml_soft_max_add_sinks(s, net->layer[layer].attn_sinks);
    struct ggml_tensor *out = ggml_permute(ctx, ggml_mul_mat(ctx, v, s), 0, 2, 1, 3);
    return ggml_cont_2d(ctx, out, p->v->ne[0] * p->q->ne[1], p->q->ne[2]);
}

static void check_qkv(const struct lk_net *net, int layer, const struct lk_qkv *p, int n) {
    const struct ggml_tensor *all[] = {p->q, p->k, p->v};
    struct lk_layer_heads heads = lk_hparams_heads(&net->hp, layer);
    int rope = net->hp.d_rope, d[] = {heads.d + rope, rope > 0 ? rope : heads.d, heads.d};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(all[i]->type, GGML_TYPE_F32);
        assert_true(ggml_is_contiguous(all[i]));
        assert_int_equal(all[i]->ne[0], d[i]);
        assert_int_equal(all[i]->ne[1], i == 0 ? net->hp.n_head : heads.n_kv);
        assert_int_equal(all[i]->ne[2], n);
    }
}

/* Logits [n][n_vocab], owned: free(). */
static float *lowkey_forward(const struct lk_net *net, const int32_t *tok, int n) {
    size_t n_nodes = (size_t)net->hp.n_layer * (LK_LAYER_NODES + 16) + 64;
    size_t mem = n_nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_nodes, false);
    struct ggml_context *ctx =
        ggml_init((struct ggml_init_params){.mem_size = mem, .no_alloc = true});
    struct ggml_tensor *t = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n),
                       *pos = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n);
    struct ggml_tensor *full = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n, n),
                       *near = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n, n);
    struct ggml_tensor *inputs[] = {t, pos, full, near};
    for (int i = 0; i < 4; i++) ggml_set_input(inputs[i]);
    struct ggml_cgraph *graph = ggml_new_graph_custom(ctx, n_nodes, false);
    struct ggml_tensor *x = net->family->embed(net, ctx, t, pos);
    struct lk_qkv stored[2] = {0}; /* of the last layers without and with a window */
    for (int i = 0; i < net->hp.n_layer; i++) {
        struct lk_qkv p = net->family->pre(net, ctx, i, x, pos), *kv = &stored[net->hp.is_swa[i]];
        if (net->family->token_input) p.tok = net->family->token_input(net, ctx, i, t);
        if (!lk_hparams_shares(&net->hp, i)) *kv = p;
        p.k = kv->k, p.v = kv->v;
        check_qkv(net, i, &p, n);
        x = net->family->post(net, ctx, i, &p,
                              build_attention(net, ctx, i, &p, net->hp.is_swa[i] ? near : full));
    }
    x = net->family->head(net, ctx, x);
    ggml_set_output(x);
    for (int i = 0; i < 4; i++) ggml_build_forward_expand(graph, inputs[i]);
    ggml_build_forward_expand(graph, x);

    ggml_backend_t cpu = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(cpu, 2);
    ggml_gallocr_t galloc = ggml_gallocr_new(ggml_backend_get_default_buffer_type(cpu));
    assert_true(ggml_gallocr_alloc_graph(galloc, graph));
    memcpy(t->data, tok, (size_t)n * sizeof *tok);
    for (int i = 0; i < n; i++) ((int32_t *)pos->data)[i] = i;
    fill_mask(full->data, n, 0, net->hp.alibi_max_bias > 0);
    fill_mask(near->data, n, net->hp.n_swa, net->hp.alibi_max_bias > 0);
    assert_int_equal(ggml_backend_graph_compute(cpu, graph), GGML_STATUS_SUCCESS);
    float *logits = malloc(ggml_nbytes(x));
    ggml_backend_tensor_get(x, logits, 0, ggml_nbytes(x));
    ggml_gallocr_free(galloc);
    ggml_backend_free(cpu);
    ggml_free(ctx);
    return logits;
}

/* ---- libllama's forward pass ---- */

static float *llama_forward(const char *path, bool repack, const int32_t *tok, int n, int n_vocab) {
    struct llama_model_params mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    mp.use_extra_bufts = repack;
    struct llama_model *model = llama_model_load_from_file(path, mp);
    assert_non_null(model);
    assert_int_equal(llama_vocab_n_tokens(llama_model_get_vocab(model)), n_vocab);
    struct llama_context_params cp = llama_context_default_params();
    cp.n_ctx = cp.n_batch = cp.n_ubatch = N_CTX;
    cp.type_k = cp.type_v = GGML_TYPE_F32;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    cp.n_threads = cp.n_threads_batch = 2;
    struct llama_context *ctx = llama_init_from_model(model, cp);
    assert_non_null(ctx);
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    for (int i = 0; i < n; i++) {
        batch.token[i] = tok[i];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = true;
    }
    batch.n_tokens = n;
    assert_int_equal(llama_decode(ctx, batch), 0);
    float *logits = malloc((size_t)n * (size_t)n_vocab * sizeof *logits);
    for (int i = 0; i < n; i++)
        memcpy(logits + (size_t)i * (size_t)n_vocab, llama_get_logits_ith(ctx, i),
               (size_t)n_vocab * sizeof *logits);
    llama_batch_free(batch);
    llama_free(ctx);
    llama_model_free(model);
    return logits;
}

/* ---- comparison ---- */

/* sum (a - b)^2 / sum (b - mean b)^2 */
static double centred_error(const float *a, const float *b, size_t n) {
    double mean = 0, error = 0, power = 0;
    for (size_t i = 0; i < n; i++) mean += b[i] / (double)n;
    for (size_t i = 0; i < n; i++) {
        error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        power += (b[i] - mean) * (b[i] - mean);
    }
    assert_true(power / (double)n > 1e-2); /* constant logits would prove nothing */
    return error / power;
}

static void temp_path(char out[256], const char *name) {
    const char *dir = getenv("TMPDIR");
    snprintf(out, 256, "%s/lowkey-%s-%d.gguf", dir ? dir : "/tmp", name, (int)getpid());
}

static struct lk_net *open_ok(const char *path, const struct lk_net_opts *opts,
                              struct lk_ledger *ledger) {
    struct lk_net *net = NULL;
    lk_err err = {0};
    lk_status status = lk_net_open(&net, path, opts, ledger, &err);
    if (status != LK_OK) fail_msg("%s: %s: %s", path, lk_status_name(status), err.msg);
    return net;
}

static void assert_ledger_empty(const struct lk_ledger *ledger) {
    for (int i = 0; i < LK_N_PURPOSE; i++) assert_int_equal(lk_ledger_bytes(ledger, i), 0);
}

/* NMSE between lowkey's logits for the file `path` and libllama's for the file `oracle`. */
static double compare_logits(const char *path, const struct lk_net_opts *opts, const char *oracle,
                             int n, const char *label) {
    struct lk_ledger ledger = {0};
    struct lk_net_opts own = opts ? *opts : (struct lk_net_opts){0};
    own.n_ctx = N_CTX;
    struct lk_net *net = open_ok(path, &own, &ledger);
    int32_t tok[N_CTX];
    uint32_t state = 12345;
    for (int i = 0; i < n; i++)
        tok[i] = (int32_t)((state = state * 1664525 + 1013904223) >> 8) % net->hp.n_vocab;
    /* libllama aborts on a CPU with AMX if it has repacked the matrices of heads. */
    bool repack = (!opts || !opts->no_repack) && net->hp.d_rope == 0;
    float *ours = lowkey_forward(net, tok, n),
          *theirs = llama_forward(oracle, repack, tok, n, net->hp.n_vocab);
    double error = centred_error(ours, theirs, (size_t)n * (size_t)net->hp.n_vocab);
    print_message("%-22s nmse %.2e  (weights held: %llu bytes)\n", label, error,
                  (unsigned long long)net->weight_bytes);
    assert_int_equal(net->weight_bytes, lk_ledger_bytes(&ledger, LK_FOR_WEIGHTS));
    free(ours);
    free(theirs);
    lk_net_free(net, &ledger);
    assert_ledger_empty(&ledger);
    return error;
}

/* Write a copy of the model with every tensor as f32: the reference for weights that are
 * dequantized at load. */
static bool write_f32_copy(const char *from, const char *to) {
    struct ggml_context *in = NULL;
    struct gguf_context *src = gguf_init_from_file(from, (struct gguf_init_params){.ctx = &in});
    if (!src) return false;
    struct gguf_context *dst = gguf_init_empty();
    gguf_set_kv(dst, src);
    size_t bytes = 1 << 20;
    for (struct ggml_tensor *t = ggml_get_first_tensor(in); t; t = ggml_get_next_tensor(in, t)) {
        bytes += (size_t)ggml_nelements(t) * sizeof(float) + ggml_tensor_overhead() + 64;
    }
    struct ggml_context *out = ggml_init((struct ggml_init_params){.mem_size = bytes});
    for (int64_t i = 0; i < gguf_get_n_tensors(src); i++) {
        struct ggml_tensor *t = ggml_get_tensor(in, gguf_get_tensor_name(src, i));
        struct ggml_tensor *f = ggml_new_tensor(out, GGML_TYPE_F32, ggml_n_dims(t), t->ne);
        if (t->type == GGML_TYPE_F32)
            memcpy(f->data, t->data, ggml_nbytes(t));
        else
            ggml_get_type_traits(t->type)->to_float(t->data, f->data, ggml_nelements(t));
        ggml_set_name(f, t->name);
        gguf_add_tensor(dst, f);
    }
    bool ok = gguf_write_to_file(dst, to, false);
    ggml_free(out);
    ggml_free(in);
    gguf_free(dst);
    gguf_free(src);
    return ok;
}

/* Activations are quantized to 8 bits, which amplifies differences in rounding. So repacked
 * products get a loose limit. The file's own layout and dequantized weights get a strict one. */
static void check_quantized(const char *path, const char *name, int n, double repacked_limit) {
    char label[64], oracle[256];
    const struct lk_net_opts as_is = {.no_repack = true, .no_mmap = true}, f32 = {.f32 = true};
    assert_true(compare_logits(path, NULL, path, n, name) <= repacked_limit);
    snprintf(label, sizeof label, "%s, as it is", name);
    assert_true(compare_logits(path, &as_is, path, n, label) <= 1e-5);
    snprintf(label, sizeof label, "%s, f32", name);
    temp_path(oracle, "oracle");
    if (write_f32_copy(path, oracle))
        assert_true(compare_logits(path, &f32, oracle, n, label) <= 1e-5);
    else
        fail_msg("cannot write %s", oracle);
    unlink(oracle);
}

/* Split matrices (model/q4_1_split.h) hold the same weights, so their error against exact products
 * is about that of the file's own layout. Both quantize activations to 8 bits. Without mixtures of
 * experts: their routers turn small differences into large ones. */
static void split_matrices_are_as_exact(void **state) {
    char path[256], oracle[256], label[64];
    temp_path(path, "parts");
    temp_path(oracle, "oracle");
    for (const struct tiny_spec *s = tiny_presets; s->name; s++) {
        struct tiny_spec spec = *s;
        bool plain = !s->n_v_head && !s->n_conv && !s->n_expert;
        if (!plain || (s->type != GGML_TYPE_F32 && s->type != GGML_TYPE_Q4_1)) continue;
        spec.type = GGML_TYPE_Q4_1;
        assert_true(tiny_gguf_write(path, &spec) && write_f32_copy(path, oracle));
        snprintf(label, sizeof label, "%s, Q4_1 and f32", s->name);
        double whole = compare_logits(path, &(struct lk_net_opts){.no_repack = true}, oracle, N_TOK,
                                      label),
               parts = compare_logits(path, NULL, oracle, N_TOK, "  split");
        unlink(path), unlink(oracle);
        assert_true(parts <= 1.5 * whole);
    }
}

static void split_keeps_the_weights(void **state) {
    enum { N_IN = 3 * LK_OFFSET_BLOCK, N_OUT = 37 };
    static float w[N_OUT * N_IN], whole[N_OUT][N_IN], part[N_OUT][N_IN];
    uint8_t rows[N_OUT * N_IN], q4_0[N_OUT * N_IN];
    uint16_t offset[2 * LK_OFFSET_TILE * 3];
    assert_true(lk_offset_count(N_IN, N_OUT) == sizeof offset / sizeof *offset);
    for (int i = 0; i < N_OUT * N_IN; i++)
        w[i] = sinf((float)(i * i)) * expf((float)(i % 7) - 3) + (float)(i % 5);
    ggml_quantize_chunk(GGML_TYPE_Q4_1, w, rows, 0, N_OUT, N_IN, NULL);
    lk_q4_1_split_rows(rows, N_IN, N_OUT, q4_0, offset);
    ggml_get_type_traits(GGML_TYPE_Q4_1)->to_float(rows, whole[0], N_OUT * N_IN);
    ggml_get_type_traits(GGML_TYPE_Q4_0)->to_float(q4_0, part[0], N_OUT * N_IN);
    for (int o = 0; o < N_OUT; o++)
        for (int i = 0; i < N_IN; i++) {
            float add = ggml_fp16_to_fp32(offset[lk_offset_index(N_IN, i / LK_OFFSET_BLOCK, o)]);
            assert_true(fabsf(part[o][i] + add - whole[o][i]) <= fabsf(add) / 2048 + 1e-6f);
        }
}

static void families_agree_with_libllama(void **state) {
    for (const struct tiny_spec *s = tiny_presets; s->name; s++) {
        char path[256];
        if (s->n_v_head || s->n_conv)
            continue; /* recurrent layers need a session: tests/engine/test_engine.c */
        /* The weights of experts are rounded in another order than libllama's. GELU reads its input
         * in half precision, which turns some of these differences into larger ones. */
        double limit = s->n_expert && strcmp(s->arch, "gemma4") == 0 ? 1e-8 : 1e-9;
        temp_path(path, s->name);
        assert_true(tiny_gguf_write(path, s));
        if (s->type == GGML_TYPE_F32)
            assert_true(compare_logits(path, NULL, path, N_TOK, s->name) <= limit);
        else
            check_quantized(path, s->name, N_TOK, 1e-3);
        unlink(path);
    }
}

/* ---- real models, if present ---- */

static bool model_path(char out[512], const char *file) {
    const char *dir = getenv("LOWKEY_MODELS"), *home = getenv("HOME");
    if (dir)
        snprintf(out, 512, "%s/%s", dir, file);
    else
        snprintf(out, 512, "%s/.cache/lowkey/models/%s", home ? home : "", file);
    return access(out, R_OK) == 0;
}

/* `big`: the f32 copy needs gigabytes of disk, so it is made only with LOWKEY_SLOW_TESTS. */
static void check_real(const char *file, const char *name, bool big) {
    char path[512];
    if (!model_path(path, file)) skip();
    if (!big || getenv("LOWKEY_SLOW_TESTS")) {
        check_quantized(path, name, N_TOK, 5e-2);
    } else {
        assert_true(compare_logits(path, &(struct lk_net_opts){.no_repack = true}, path, N_TOK,
                                   name) <= 1e-5);
    }
}

static void smollm2_agrees(void **state) {
    check_real("SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2", false);
}

static void qwen25_agrees(void **state) {
    check_real("Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf", "Qwen2.5", true);
}

static void gemma3_agrees(void **state) { check_real("gemma-3-270m.Q4_K_M.gguf", "Gemma 3", true); }

int main(void) {
    lk_redirect_logs();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_agree_with_libllama),
        cmocka_unit_test(split_keeps_the_weights),
        cmocka_unit_test(split_matrices_are_as_exact),
        cmocka_unit_test(smollm2_agrees),
        cmocka_unit_test(qwen25_agrees),
        cmocka_unit_test(gemma3_agrees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
