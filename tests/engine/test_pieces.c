/* Passes in pieces: the layers of a device are computed apart from the attention between them. Here
 * the device is ggml's CPU backend, which reads the same weights, so all logits must have the bits
 * that one graph gives. */
#include "engine/session_state.h"
#include "lowkey_draft.h"
#include "lowkey_serve.h"
#include "model/ggml_device.h"
#include "support_model.h"
#include "test.h"

enum { N_CTX = 640, PROMPT = 530, N_TOK = 600 }; /* more than one chunk of a prefill */

/* Let the layers from `first` on be computed by the device. */
static void use_device(lk_model *model, struct lk_ggml_device *device, int first) {
    *device = (struct lk_ggml_device){
        .name = "test", .backend = ggml_backend_cpu_init(), .buft = ggml_backend_cpu_buffer_type()};
    assert_non_null(device->backend);
    ggml_backend_cpu_set_n_threads(device->backend, 2);
    model->net->device = device;
    model->net->first_on_device = first;
    model->net->rope_factors_on_device = model->net->rope_factors;
}

static void drop_device(lk_model *model, struct lk_ggml_device *device) {
    model->net->device = NULL;
    ggml_backend_free(device->backend);
    for (int i = 0; i < LK_N_PURPOSE; i++)
        assert_int_equal(lk_ledger_bytes(&device->ledger, (enum lk_purpose)i), 0);
}

/* What a session computes. */
struct results {
    float *logits; /* [n][n_vocab] */
    int n;
    float embedding[4096];
};

static void keep(struct results *r, const lk_session *s, int n_row, int n_vocab) {
    for (int i = 0; i < n_row; i++)
        memcpy(r->logits + (size_t)r->n++ * n_vocab, lk_session_logits(s, i),
               (size_t)n_vocab * sizeof *r->logits);
}

/* A prompt, steps of one and of several tokens, drafts that are dropped, a batch of two sessions,
 * and an embedding. */
static void compute(lk_model *model, const char *recipe_text, const int32_t *tok, int n_ctx,
                    struct results *r) {
    int n_vocab = lk_model_get_info(model).n_vocab, at = n_ctx > N_TOK ? PROMPT : n_ctx / 2;
    lk_recipe *recipe[2];
    lk_session *s = open_session(model, recipe_text, n_ctx, &recipe[0]),
               *t = open_session(model, recipe_text, n_ctx, &recipe[1]);
    lk_batch *batch = NULL;
    lk_err err = {0};
    r->n = 0;
    r->logits = malloc(16 * (size_t)n_vocab * sizeof *r->logits);
    if (lk_session_sync(s, tok, (size_t)at, NULL, &err)) fail_msg("%s", err.msg);
    keep(r, s, 1, n_vocab);
    for (int i = 0; i < 2; i++, at++) {
        assert_int_equal(lk_session_eval(s, tok + at, 1, false, NULL), LK_OK);
        keep(r, s, 1, n_vocab);
    }
    assert_int_equal(lk_session_eval(s, tok + at, 3, true, NULL), LK_OK);
    keep(r, s, 3, n_vocab);
    lk_status cut = lk_session_truncate(s, (size_t)at + 1, NULL);
    at += cut ? 3 : 1;
    assert_int_equal(lk_session_sync(t, tok, 9, NULL, NULL), LK_OK);
    assert_int_equal(lk_batch_new(&batch, model, NULL), LK_OK);
    lk_batch_entry entry[] = {{.session = s, .tok = tok + at, .n_tok = 1},
                              {.session = t, .tok = tok + 9, .n_tok = 2, .all = true}};
    if (lk_batch_eval(batch, entry, 2, &err)) fail_msg("%s", err.msg);
    keep(r, s, 1, n_vocab);
    keep(r, t, 2, n_vocab);
    assert_true(lk_model_get_info(model).n_embd <= 4096);
    if (lk_session_embed(s, tok, 33, LK_POOLING_MEAN, r->embedding, &err)) fail_msg("%s", err.msg);
    lk_batch_free(batch);
    lk_session_free(s), lk_session_free(t);
    lk_recipe_free(recipe[0]), lk_recipe_free(recipe[1]);
}

static void pieces_have_the_same_bits(void **state) {
    static const char *const recipe[] = {"best-3", "f16", "keep 40 by h2o: k=f16 v=f16"};
    (void)state;
    for (const struct tiny_spec *spec = tiny_presets; spec->name; spec++) {
        lk_model_opts opts = {.n_threads = 2, .n_ctx = N_CTX};
        int n_ctx = spec->n_ctx > 0 && spec->n_ctx < N_CTX ? spec->n_ctx : N_CTX;
        if (spec->n_ctx > 0 && spec->n_ctx < N_CTX) opts.n_ctx = spec->n_ctx;
        lk_model *model = open_tiny(spec, &opts);
        int n_vocab = lk_model_get_info(model).n_vocab;
        size_t which = (size_t)(spec - tiny_presets) % 3;
        int32_t tok[N_CTX];
        random_tokens(tok, N_CTX, model, 7);
        lk_recipe *parsed = NULL;
        lk_session *probe = NULL;
        assert_int_equal(lk_recipe_parse(&parsed, recipe[which], NULL), LK_OK);
        if (lk_session_new(&probe, model, parsed, NULL, NULL)) which = 1; /* not for this family */
        lk_session_free(probe);
        lk_recipe_free(parsed);
        struct results plain = {0};
        compute(model, recipe[which], tok, n_ctx, &plain);
        for (int part = 0; part < 2; part++) {
            struct lk_ggml_device device;
            struct results pieces = {0};
            use_device(model, &device, part ? spec->n_layer / 2 : 0);
            compute(model, recipe[which], tok, n_ctx, &pieces);
            drop_device(model, &device);
            assert_int_equal(pieces.n, plain.n);
            for (int i = 0; i < plain.n; i++)
                if (memcmp(pieces.logits + (size_t)i * n_vocab, plain.logits + (size_t)i * n_vocab,
                           (size_t)n_vocab * sizeof(float)) != 0)
                    fail_msg("%s, %s, first layer on the device %d: logits %d differ", spec->name,
                             recipe[which], part ? spec->n_layer / 2 : 0, i);
            assert_memory_equal(pieces.embedding, plain.embedding, sizeof plain.embedding);
            free(pieces.logits);
        }
        free(plain.logits);
        lk_model_free(model);
    }
}

/* Slots of shared memory are used again: a pass of many layers needs no more than one of few. */
static void pieces_share_memory(void **state) {
    size_t bytes[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct tiny_spec spec = *tiny_preset("llama");
        spec.n_layer = i ? 12 : 4;
        lk_model_opts opts = {.n_threads = 2, .n_ctx = 64};
        lk_model *model = open_tiny(&spec, &opts);
        struct lk_ggml_device device;
        use_device(model, &device, 0);
        lk_recipe *recipe;
        lk_session *s = open_session(model, "f16", 64, &recipe);
        int32_t tok[1] = {1};
        assert_int_equal(lk_session_eval(s, tok, 1, false, NULL), LK_OK);
        bytes[i] = lk_ledger_bytes(&device.ledger, LK_FOR_SCRATCH);
        assert_true(bytes[i] > 0);
        lk_session_free(s);
        lk_recipe_free(recipe);
        drop_device(model, &device);
        lk_model_free(model);
    }
    assert_int_equal(bytes[0], bytes[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_have_the_same_bits),
        cmocka_unit_test(pieces_share_memory),
    };
    return cmocka_run_group_tests_name("pieces", tests, NULL, NULL);
}
