/* LoRA adapters in llama.cpp's form: logits are libllama's with the same adapter, and files that do
 * not fit are refused. */
#include "engine/session_state.h"
#include "support_model.h"
#include "support_oracle.h"
#include "test.h"
#include "tiny_gguf.h"

#include "ggml.h"

#include <math.h>
#include <unistd.h>

enum { N_TOK = 40, RANK = 4, N_CTX = 128, ROOM = 64, MANY = 8000 };

static char model_path[] = "/tmp/lowkey-adapted-XXXXXX", lora_path[] = "/tmp/lowkey-lora-XXXXXX";

static const struct tiny_spec *find_spec(const char *name) {
    for (const struct tiny_spec *spec = tiny_presets; spec->name; spec++)
        if (strcmp(spec->name, name) == 0) return spec;
    fail_msg("no tiny model %s", name);
    return NULL;
}

/* What is wrong with an adapter. */
enum damage {
    NONE,
    NO_B,
    WRONG_SHAPE,
    OTHER_TENSOR,
    OTHER_NUMBER,
    TOO_MANY,
    NOT_FINITE,
    NO_TYPE,
    HIGH_RANK,
    TOO_HIGH_RANK,
};

static void add_tensor(struct gguf_context *gguf, struct ggml_context *ctx, const char *name,
                       enum ggml_type type, int64_t n_in, int64_t n_out, uint32_t *seed,
                       enum damage damage) {
    struct ggml_tensor *t = ggml_new_tensor_2d(ctx, type, n_in, n_out);
    ggml_set_name(t, name);
    for (int64_t i = 0; i < n_in * n_out; i++) {
        *seed = *seed * 1664525 + 1013904223;
        float x =
            ((float)(*seed >> 8) / (1 << 24) - 0.5f) * 0.15f; /* updates are smaller than weights */
        if (damage == NOT_FINITE && i == 0) x = INFINITY;
        if (type == GGML_TYPE_F32)
            ((float *)t->data)[i] = x;
        else
            ((ggml_fp16_t *)t->data)[i] = ggml_fp32_to_fp16(x);
    }
    gguf_add_tensor(gguf, t);
}

/* Write an adapter of all layers' weights `names` for the model. */
static void write_adapter(const lk_model *model, const char *const *names, enum ggml_type type,
                          enum damage damage) {
    const struct lk_hparams *hp = &model->net->hp;
    struct ggml_context *ctx = ggml_init((struct ggml_init_params){.mem_size = 64 << 20});
    struct gguf_context *gguf = gguf_init_empty();
    uint32_t seed = 7;
    int64_t rank = RANK;
    if (damage == HIGH_RANK || damage == TOO_HIGH_RANK)
        rank = LK_MAX_ADAPTER_RANK + (damage == TOO_HIGH_RANK);
    gguf_set_val_str(gguf, "general.type", damage == NO_TYPE ? "model" : "adapter");
    gguf_set_val_str(gguf, "general.architecture", lk_model_get_info(model).arch);
    gguf_set_val_str(gguf, "adapter.type", "lora");
    gguf_set_val_f32(gguf, "adapter.lora.alpha", 6);
    for (int layer = 0; layer < hp->n_layer; layer++)
        for (const char *const *name = names; *name; name++) {
            bool down = strcmp(*name, "ffn_down") == 0, ffn = strncmp(*name, "ffn", 3) == 0,
                 out = strcmp(*name, "attn_output") == 0, q = strcmp(*name, "attn_q") == 0;
            int64_t n_in = hp->n_embd,
                    n_out = (int64_t)hp->d_head * (q ? hp->n_head : hp->n_head_kv);
            char at[ROOM];
            if (out) n_in = (int64_t)hp->n_head * hp->d_head, n_out = hp->n_embd;
            if (ffn) n_in = down ? hp->n_ff : hp->n_embd, n_out = down ? hp->n_embd : hp->n_ff;
            if (damage == WRONG_SHAPE) n_out += 32;
            snprintf(at, sizeof at, "blk.%d.%s.weight.lora_a", layer, *name);
            add_tensor(gguf, ctx, at, type, n_in, rank, &seed, damage);
            snprintf(at, sizeof at, "blk.%d.%s.weight.lora_b", layer, *name);
            if (damage != NO_B) add_tensor(gguf, ctx, at, type, rank, n_out, &seed, NONE);
        }
    if (damage == OTHER_TENSOR)
        add_tensor(gguf, ctx, "output.weight.lora_a", type, hp->n_embd, RANK, &seed, NONE);
    if (damage == OTHER_NUMBER)
        add_tensor(gguf, ctx, "blk.01.attn_q.weight.lora_a", type, hp->n_embd, RANK, &seed, NONE);
    for (int i = 0; damage == TOO_MANY && i < MANY; i++) {
        char at[ROOM];
        snprintf(at, sizeof at, "blk.%d.attn_k.weight.lora_a", i);
        add_tensor(gguf, ctx, at, type, 1, 1, &seed, NONE);
    }
    assert_true(gguf_write_to_file(gguf, lora_path, false));
    gguf_free(gguf);
    ggml_free(ctx);
}

static const char *const all_names[] = {"attn_q",   "attn_k", "attn_v",   "attn_output",
                                        "ffn_gate", "ffn_up", "ffn_down", NULL};
static const char *const few_names[] = {"attn_q", "attn_v", NULL}; /* the default of PEFT */

static lk_model *open_adapted(float scale, lk_err *err) {
    lk_model_opts opts = {
        .n_threads = 2, .n_ctx = N_CTX, .lora = scale ? lora_path : NULL, .lora_scale = scale};
    lk_model *model = NULL;
    lk_model_open(&model, model_path, &opts, err);
    return model;
}

/* Logits of N_TOK tokens with the recipe f16. */
static float *eval_all(lk_model *model, const int32_t *tok, int n_vocab) {
    lk_recipe *recipe = NULL;
    lk_session *session = NULL;
    lk_session_opts opts = {.n_ctx = N_CTX};
    lk_err err = {0};
    float *out = malloc((size_t)N_TOK * n_vocab * sizeof *out);
    assert_int_equal(lk_recipe_parse(&recipe, "f16", &err), LK_OK);
    assert_int_equal(lk_session_new(&session, model, recipe, &opts, &err), LK_OK);
    assert_int_equal(lk_session_eval(session, tok, N_TOK, true, &err), LK_OK);
    for (int i = 0; i < N_TOK; i++)
        memcpy(out + (size_t)i * n_vocab, lk_session_logits(session, i), n_vocab * sizeof *out);
    lk_session_free(session);
    lk_recipe_free(recipe);
    return out;
}

static void compare_with_libllama(const char *const *names, enum ggml_type type, float scale) {
    lk_err err = {0};
    int32_t tok[N_TOK];
    lk_model *plain = open_adapted(0, &err);
    assert_non_null(plain);
    int n_vocab = lk_model_get_info(plain).n_vocab;
    size_t n = (size_t)N_TOK * n_vocab;
    write_adapter(plain, names, type, NONE);
    lk_model *adapted = open_adapted(scale, &err);
    if (!adapted) fail_msg("%s", err.msg);
    assert_true(lk_model_get_info(adapted).is_adapted);
    for (int i = 0; i < N_TOK; i++) tok[i] = (i * 37 + 5) % n_vocab;
    float *ours = eval_all(adapted, tok, n_vocab), *without = eval_all(plain, tok, n_vocab);

    struct oracle oracle;
    assert_true(
        oracle_open(&oracle, model_path, NULL, N_CTX, GGML_TYPE_F16, GGML_TYPE_F16, false, 1));
    struct llama_adapter_lora *lora = llama_adapter_lora_init(oracle.model, lora_path);
    assert_non_null(lora);
    assert_int_equal(llama_set_adapters_lora(oracle.ctx, &lora, 1, &scale), 0);
    const float *theirs = oracle_eval(&oracle, tok, N_TOK, 0);
    assert_non_null(theirs);
    double error = nmse(ours, theirs, n), change = nmse(without, theirs, n);
    print_message("nmse %.2g, changed by %.2g\n", error, change);
    if (error > 1e-5 || change < 1000 * error)
        fail_msg("nmse %g from libllama's logits, which the adapter changes by %g", error, change);
    oracle_close(&oracle, true);
    free(ours), free(without);
    lk_model_free(adapted);
    lk_model_free(plain);
}

static void logits_are_libllamas(void **state) {
    static const char *const presets[] = {"llama", "qwen2"};
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        assert_true(tiny_gguf_write(model_path, find_spec(presets[i])));
        compare_with_libllama(all_names, GGML_TYPE_F32, 1);
        compare_with_libllama(few_names, GGML_TYPE_F16, 0.5f);
        compare_with_libllama(few_names, GGML_TYPE_F32, -1);
    }
}

static void unfit_files_are_refused(void **state) {
    static const struct {
        enum damage damage;
        lk_status status;
        const char *words;
    } cases[] = {{NO_B, LK_E_FORMAT, "but not the other factor"},
                 {WRONG_SHAPE, LK_E_FORMAT, "this model's weight has"},
                 {OTHER_TENSOR, LK_E_UNSUPPORTED, "it has output.weight.lora_a"},
                 {OTHER_NUMBER, LK_E_UNSUPPORTED, "it has blk.01.attn_q"},
                 {TOO_MANY, LK_E_FORMAT, "tensors; an adapter of this model has"},
                 {NOT_FINITE, LK_E_FORMAT, "not finite"},
                 {NO_TYPE, LK_E_FORMAT, "not a LoRA adapter"},
                 {TOO_HIGH_RANK, LK_E_FORMAT, "4097"}};
    lk_err err = {0};
    assert_true(tiny_gguf_write(model_path, find_spec("llama")));
    lk_model *plain = open_adapted(0, &err);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_adapter(plain, few_names, GGML_TYPE_F32, cases[i].damage);
        assert_null(open_adapted(1, &err));
        assert_int_equal(err.code, cases[i].status);
        if (!strstr(err.msg, cases[i].words)) fail_msg("%s", err.msg);
    }
    write_adapter(plain, few_names, GGML_TYPE_F32, HIGH_RANK); /* the highest that fits */
    lk_model *adapted = open_adapted(1, &err);
    if (!adapted) fail_msg("%s", err.msg);
    lk_model_free(adapted);
    unlink(lora_path);
    assert_null(open_adapted(1, &err));
    assert_int_equal(err.code, LK_E_IO);
    lk_model_free(plain);
}

/* Saved sessions belong to the weights with the adapter. */
static void sessions_know_the_adapter(void **state) {
    lk_err err = {0};
    assert_true(tiny_gguf_write(model_path, find_spec("llama")));
    lk_model *plain = open_adapted(0, &err);
    write_adapter(plain, few_names, GGML_TYPE_F32, NONE);
    lk_model *one = open_adapted(1, &err), *half = open_adapted(0.5f, &err);
    assert_non_null(one);
    assert_non_null(half);
    assert_true(one->net->fingerprint != plain->net->fingerprint);
    assert_true(one->net->fingerprint != half->net->fingerprint);
    assert_true(lk_model_get_info(one).identity == lk_model_get_info(plain).identity);
    lk_model_free(half);
    lk_model_free(one);
    lk_model_free(plain);
}

static int make_paths(void **state) {
    close(mkstemp(model_path));
    close(mkstemp(lora_path));
    return 0;
}

static int remove_paths(void **state) {
    unlink(model_path);
    unlink(lora_path);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_libllamas),
        cmocka_unit_test(unfit_files_are_refused),
        cmocka_unit_test(sessions_know_the_adapter),
    };
    return cmocka_run_group_tests(tests, make_paths, remove_paths);
}
