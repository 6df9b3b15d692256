/* Embeddings: libllama's pooled hidden states, for all families, and the errors. */
#include "lowkey_serve.h"
#include "support_model.h"
#include "support_oracle.h"
#include "test.h"

#include "llama.h"

#include <unistd.h>

enum { N_CTX = 640, N_TOK = 600 }; /* more than one chunk of the prefill */

/* libllama's embedding of tok[0..n), scaled to length 1. */
static void llama_embedding(struct llama_model *model, enum llama_pooling_type pooling,
                            const int32_t *tok, int n, float *out) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = N_CTX;
    params.n_threads = params.n_threads_batch = 1;
    params.embeddings = true;
    params.pooling_type = pooling;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_context *ctx = llama_init_from_model(model, params);
    assert_non_null(ctx);
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    batch.n_tokens = n;
    for (int i = 0; i < n; i++) {
        batch.token[i] = tok[i];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    assert_int_equal(llama_decode(ctx, batch), 0);
    const float *got = llama_get_embeddings_seq(ctx, 0);
    int n_embd = llama_model_n_embd(model);
    double length = 0;
    assert_non_null(got);
    for (int i = 0; i < n_embd; i++) length += (double)got[i] * got[i];
    for (int i = 0; i < n_embd; i++) out[i] = (float)(got[i] / sqrt(length));
    llama_batch_free(batch);
    llama_free(ctx);
}

/* Embeddings of the beginnings of a text, by both kinds of pooling. why: of a difference. */
static bool are_equal(const struct oracle *oracle, lk_session *session, const int32_t *tok,
                      int n_embd, char why[120]) {
    static const struct {
        lk_pooling ours;
        enum llama_pooling_type theirs;
    } kinds[] = {{LK_POOLING_MEAN, LLAMA_POOLING_TYPE_MEAN},
                 {LK_POOLING_LAST, LLAMA_POOLING_TYPE_LAST}};
    float *want = malloc((size_t)n_embd * sizeof *want),
          *got = malloc((size_t)n_embd * sizeof *got);
    bool equal = true;
    for (size_t k = 0; equal && k < 2; k++)
        for (int n = 37; equal && n <= N_TOK; n += N_TOK - 37) {
            llama_embedding(oracle->model, kinds[k].theirs, tok, n, want);
            assert_int_equal(lk_session_embed(session, tok, (size_t)n, kinds[k].ours, got, NULL),
                             LK_OK);
            assert_int_equal(lk_session_n_tok(session), 0);
            double dot = 0, length = 0, max = 0;
            for (int i = 0; i < n_embd; i++) {
                dot += (double)got[i] * want[i];
                length += (double)got[i] * got[i];
                max = fmax(max, fabs((double)got[i] - want[i]));
            }
            equal = fabs(length - 1) <= 1e-5 && dot >= 0.99999 && max <= 1e-3;
            snprintf(why, 120, "%d tokens, pooling %d: cosine %.6f, difference %.2g", n,
                     (int)kinds[k].ours, dot, max);
        }
    free(want);
    free(got);
    return equal;
}

/* If a router has two nearly equal scores for a token, lowkey and libllama may choose different
 * experts. So one of three texts has to be equal with mixtures. */
static void compare_with_llama(const struct tiny_spec *preset) {
    struct tiny_spec spec = *preset;
    char path[] = "/tmp/lowkey-embed-XXXXXX", why[120] = "";
    struct oracle oracle;
    lk_model *model;
    lk_recipe *recipe;
    int32_t tok[N_TOK];
    if (spec.n_ctx < N_CTX) spec.n_ctx = N_CTX;
    spec.type =
        GGML_TYPE_F32; /* with quantized weights, products of other shapes round otherwise */
    close(mkstemp(path));
    assert_true(tiny_gguf_write(path, &spec));
    assert_true(oracle_open(&oracle, path, NULL, N_CTX, GGML_TYPE_F16, GGML_TYPE_F16, false, 1));
    assert_int_equal(
        lk_model_open(&model, path, &(lk_model_opts){.n_threads = 1, .n_ctx = N_CTX}, NULL), LK_OK);
    unlink(path);
    int n_embd = lk_model_get_info(model).n_embd, n_text = spec.n_expert > 0 ? 3 : 1;
    lk_session *session = open_session(model, "best-4", N_CTX, &recipe);
    bool equal = false;
    for (int text = 0; !equal && text < n_text; text++) {
        random_tokens(tok, N_TOK, model, 2 + (uint64_t)text);
        equal = are_equal(&oracle, session, tok, n_embd, why);
    }
    if (!equal) fail_msg("%s, %s", spec.name, why);
    lk_session_free(session);
    lk_recipe_free(recipe);
    lk_model_free(model);
    oracle_close(&oracle, true);
}

static void embeddings_are_those_of_libllama(void **state) {
    for (const struct tiny_spec *spec = tiny_presets; spec->name; spec++) compare_with_llama(spec);
}

static void set_last(struct gguf_context *gguf, void *user) {
    gguf_set_val_u32(gguf, "qwen2.pooling_type", *(uint32_t *)user);
}

/* The file's pooling type is the default. */
static void file_decides_pooling(void **state) {
    uint32_t types[] = {LLAMA_POOLING_TYPE_LAST, LLAMA_POOLING_TYPE_RANK};
    for (size_t k = 0; k < 2; k++) {
        char path[] = "/tmp/lowkey-embed-XXXXXX";
        lk_model *model;
        lk_recipe *recipe;
        int32_t tok[20];
        float got[1024], want[1024];
        close(mkstemp(path));
        assert_true(tiny_gguf_write_edited(path, tiny_preset("qwen2"), set_last, &types[k]));
        assert_int_equal(lk_model_open(&model, path, NULL, NULL), LK_OK);
        unlink(path);
        int n_embd = lk_model_get_info(model).n_embd;
        assert_true(n_embd <= 1024);
        random_tokens(tok, 20, model, 2);
        lk_session *session = open_session(model, "f16", 64, &recipe);
        lk_status status = lk_session_embed(session, tok, 20, LK_POOLING_MODEL, got, NULL);
        assert_int_equal(status, k ? LK_E_UNSUPPORTED : LK_OK);
        assert_int_equal(lk_session_embed(session, tok, 20, LK_POOLING_LAST, want, NULL), LK_OK);
        if (!k) assert_memory_equal(got, want, (size_t)n_embd * sizeof *got);
        assert_int_equal(lk_session_embed(session, tok, 0, LK_POOLING_MEAN, got, NULL), LK_E_ARG);
        tok[3] = -1;
        assert_int_equal(lk_session_embed(session, tok, 20, LK_POOLING_MEAN, got, NULL), LK_E_ARG);
        lk_session_free(session);
        lk_recipe_free(recipe);
        lk_model_free(model);
    }
}

/* A session goes on as before after an embedding. */
static void session_is_usable_afterwards(void **state) {
    lk_recipe *recipe;
    int32_t tok[100];
    float out[1024];
    lk_model *model = open_preset("qwen2", 256, 1);
    int32_t n_vocab = lk_model_get_info(model).n_vocab;
    float *before = malloc((size_t)n_vocab * sizeof *before);
    lk_session *session = open_session(model, "best-3", 256, &recipe);
    random_tokens(tok, 100, model, 3);
    assert_int_equal(lk_session_sync(session, tok, 100, NULL, NULL), LK_OK);
    memcpy(before, lk_session_logits(session, -1), (size_t)n_vocab * sizeof *before);
    assert_int_equal(lk_session_embed(session, tok, 50, LK_POOLING_MEAN, out, NULL), LK_OK);
    assert_null(lk_session_logits(session, -1));
    assert_int_equal(lk_session_sync(session, tok, 100, NULL, NULL), LK_OK);
    assert_memory_equal(before, lk_session_logits(session, -1), (size_t)n_vocab * sizeof *before);
    free(before);
    lk_session_free(session);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embeddings_are_those_of_libllama),
        cmocka_unit_test(file_decides_pooling),
        cmocka_unit_test(session_is_usable_afterwards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
