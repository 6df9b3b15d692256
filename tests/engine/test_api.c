/* Public functions that embedders call around evaluation: token texts, special tokens, default
 * options, log-probabilities, cancellation, log messages. */
#include "engine/prefill.h"
#include "lowkey_serve.h"
#include "support_model.h"
#include "test.h"
#include "tiny_gguf.h"

#include "ggml.h"

#include <pthread.h>
#include <unistd.h>

/* ---- tokens ---- */

static void test_token_text(void **state) {
    lk_model *model = open_preset("llama-spm", 0, 1);
    int32_t n_vocab = lk_model_get_info(model).n_vocab;
    size_t longest = 0, len;
    for (int32_t tok = 0; tok < n_vocab; tok++) {
        const char *text = lk_token_text(model, tok, &len);
        if (len > longest) longest = len;
        assert_int_equal(text[len], 0);
        assert_ptr_equal(lk_token_text(model, tok, &len), text);
        bool is_control = strcmp(text, "<s>") == 0 || strcmp(text, "</s>") == 0 ||
                          strcmp(text, "<unk>") == 0 || strncmp(text, "<|im_", 5) == 0;
        assert_int_equal(lk_token_is_control(model, tok), is_control);
    }
    assert_int_equal(longest, strlen("<|im_start|>"));
    assert_string_equal(lk_token_text(model, -1, &len), "");
    assert_int_equal(len, 0);
    assert_string_equal(lk_token_text(model, n_vocab, &len), "");
    assert_false(lk_token_is_control(model, -1) || lk_token_is_control(model, n_vocab));
    lk_model_free(model);
}

static void test_special_tokens(void **state) {
    lk_model *model = open_preset("llama-spm", 0, 1);
    lk_model_info info = lk_model_get_info(model);
    int32_t *tok;
    size_t n_tok;
    assert_int_equal(lk_tokenize(model, "", 0, LK_TOKENIZE_BEGIN, 0, &tok, &n_tok, NULL), LK_OK);
    if (n_tok > 0) assert_int_equal(tok[0], info.bos);
    assert_in_range(info.bos, 0, info.n_vocab - 1);
    assert_in_range(info.eos, 0, info.n_vocab - 1);
    assert_true(lk_token_ends(model, info.eos));
    assert_true(info.eot == -1 || lk_token_ends(model, info.eot));
    lk_tokens_free(tok);
    lk_model_free(model);
    model = open_preset("llama", 0, 1); /* no tokenizer */
    info = lk_model_get_info(model);
    assert_int_equal(info.bos, -1);
    assert_int_equal(info.eos, -1);
    assert_int_equal(info.eot, -1);
    lk_model_free(model);
}

/* ---- options ---- */

static int32_t sample(lk_model *model, const lk_session *session, const lk_sampler_opts *opts) {
    lk_sampler *sampler;
    lk_err err = {0};
    int32_t tok;
    if (lk_sampler_new(&sampler, model, opts, &err) != LK_OK) fail_msg("%s", err.msg);
    if (lk_sampler_next(sampler, session, -1, &tok, &err) != LK_OK) fail_msg("%s", err.msg);
    lk_sampler_free(sampler);
    return tok;
}

/* NULL and zeroed options mean the same, for every handle. */
/* Every quantization of a model has the same identity, and no other model has. */
static void test_identity(void **state) {
    struct tiny_spec spec = *tiny_preset("llama");
    uint64_t identity[4];
    for (int i = 0; i < 4; i++) {
        char path[] = "/tmp/lowkey-identity-XXXXXX";
        const lk_model_opts opts = {.n_threads = 1, .header_only = i == 2};
        lk_model *model = NULL;
        close(mkstemp(path));
        spec.type = i == 1 ? GGML_TYPE_Q8_0 : GGML_TYPE_F32;
        if (i == 3) spec.seed++;
        assert_true(tiny_gguf_write(path, &spec));
        assert_int_equal(lk_model_open(&model, path, &opts, NULL), LK_OK);
        identity[i] = lk_model_get_info(model).identity;
        assert_false(lk_model_tuned(model, 0, &(lk_preset){0}));
        lk_model_free(model);
        unlink(path);
    }
    assert_true(identity[0] != 0 && identity[0] == identity[1] && identity[0] == identity[2]);
    assert_true(identity[0] != identity[3]);
}

static void test_zero_is_default(void **state) {
    lk_model *model = open_preset("llama", 0, 1);
    lk_recipe *recipe;
    lk_session *a, *b;
    lk_session_opts zero = {0};
    int32_t tok[8], n_vocab = lk_model_get_info(model).n_vocab, best = 0;
    random_tokens(tok, 8, model, 1);
    assert_int_equal(lk_recipe_parse(&recipe, "f16", NULL), LK_OK);
    assert_int_equal(lk_session_new(&a, model, recipe, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_new(&b, model, recipe, &zero, NULL), LK_OK);
    assert_int_equal(a->opts.n_ctx, lk_model_get_info(model).n_ctx_train);
    assert_int_equal(b->opts.n_ctx, a->opts.n_ctx);
    assert_int_equal(lk_session_sync(a, tok, 8, NULL, NULL), LK_OK);
    const float *logits = lk_session_logits(a, -1);
    for (int32_t i = 1; i < n_vocab; i++)
        if (logits[i] > logits[best]) best = i;
    assert_int_equal(sample(model, a, NULL), best);
    assert_int_equal(sample(model, a, &(lk_sampler_opts){0}), best);
    lk_sampler_opts penalty = {.repeat_last_n = -1, .repeat_penalty = 2};
    assert_int_equal(sample(model, a, &penalty), best);

    /* With a temperature and no other filter, more than one token is chosen. */
    bool others = false;
    for (uint32_t seed = 0; seed < 50; seed++)
        others |= sample(model, a, &(lk_sampler_opts){.temperature = 100, .seed = seed}) != best;
    assert_true(others);
    lk_sampler_opts bad = {.repeat_last_n = -2};
    lk_sampler *sampler;
    assert_int_equal(lk_sampler_new(&sampler, model, &bad, NULL), LK_E_ARG);
    lk_sampler_opts chat = lk_sampler_chat();
    assert_true(chat.temperature > 0 && chat.top_k == 40 && chat.seed == 0 && !chat.grammar);
    lk_session_free(a), lk_session_free(b);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* ---- log-probabilities ---- */

static void test_logprobs(void **state) {
    lk_model *model = open_preset("llama", 0, 1);
    int32_t n_vocab = lk_model_get_info(model).n_vocab, tok[6];
    lk_recipe *recipe;
    lk_session *s = open_session(model, "f16", 20, &recipe);
    lk_token_logprob *top = malloc((size_t)n_vocab * sizeof *top);
    float logprob = 7;
    random_tokens(tok, 6, model, 2);
    assert_int_equal(lk_session_logprobs(s, -1, 0, &logprob, NULL, 0, NULL), LK_E_ARG);
    assert_int_equal(lk_session_eval(s, tok, 6, true, NULL), LK_OK);
    for (int i = 0; i < 6; i++) {
        const float *logits = lk_session_logits(s, i);
        double sum = 0, all = 0;
        for (int32_t t = 0; t < n_vocab; t++) sum += exp(logits[t]);
        assert_int_equal(lk_session_logprobs(s, i, tok[i], &logprob, top, (size_t)n_vocab, NULL),
                         LK_OK);
        assert_float_equal(logprob, logits[tok[i]] - log(sum), 1e-4);
        bool *seen = calloc((size_t)n_vocab, sizeof *seen);
        for (int32_t k = 0; k < n_vocab; k++) {
            assert_false(seen[top[k].tok]);
            seen[top[k].tok] = true;
            assert_float_equal(top[k].logprob, logits[top[k].tok] - log(sum), 1e-4);
            if (k > 0) assert_true(top[k].logprob <= top[k - 1].logprob);
            all += exp(top[k].logprob);
        }
        assert_float_equal(all, 1, 1e-4);
        free(seen);
    }
    lk_token_logprob few[3];
    assert_int_equal(lk_session_logprobs(s, -1, -1, NULL, few, 3, NULL), LK_OK);
    assert_memory_equal(few, top, sizeof few);
    assert_int_equal(lk_session_logprobs(s, 6, 0, &logprob, NULL, 0, NULL), LK_E_ARG);
    assert_int_equal(lk_session_logprobs(s, 0, n_vocab, &logprob, NULL, 0, NULL), LK_E_ARG);
    assert_int_equal(lk_session_logprobs(s, 0, -1, &logprob, NULL, 0, NULL), LK_E_ARG);
    assert_int_equal(lk_session_logprobs(s, 0, 0, NULL, top, (size_t)n_vocab + 1, NULL), LK_E_ARG);

    /* Equal logits: the lower id comes first. */
    for (int32_t t = 0; t < n_vocab; t++) s->logits[(size_t)5 * n_vocab + t] = t == 9 ? 1 : 0;
    assert_int_equal(lk_session_logprobs(s, -1, 0, NULL, few, 3, NULL), LK_OK);
    assert_true(few[0].tok == 9 && few[1].tok == 0 && few[2].tok == 1);
    free(top);
    lk_session_free(s);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* ---- cancellation ---- */

static void test_cancel(void **state) {
    enum { N = 60 };
    lk_model *model = open_preset("llama", 0, 1);
    int32_t tok[N];
    random_tokens(tok, N, model, 3);
    lk_recipe *recipe;
    lk_session *s = open_session(model, "f16", N, &recipe), *other;
    lk_err err = {0};
    size_t row = (size_t)lk_model_get_info(model).n_vocab * sizeof(float);
    float *before = malloc(row);
    assert_int_equal(lk_session_sync(s, tok, 20, NULL, NULL), LK_OK);
    memcpy(before, lk_session_logits(s, -1), row);

    /* The next evaluation ends by it, once, and changes nothing. */
    lk_session_cancel(s);
    assert_int_equal(lk_session_eval(s, tok + 20, 1, false, &err), LK_E_CANCELLED);
    assert_int_equal(err.code, LK_E_CANCELLED);
    assert_int_equal(lk_session_n_tok(s), 20);
    assert_memory_equal(lk_session_logits(s, -1), before, row);
    lk_session_cancel(s);
    assert_int_equal(lk_session_sync(s, tok, 40, NULL, NULL), LK_E_CANCELLED);
    assert_int_equal(lk_session_n_tok(s), 20);
    assert_int_equal(lk_session_eval(s, tok + 20, 1, false, NULL), LK_OK);

    /* An exact prefill that is cancelled leaves the session empty; so does a group of them. */
    lk_session_clear(s);
    lk_session_cancel(s);
    assert_int_equal(lk_session_sync(s, tok, 20, NULL, NULL), LK_E_CANCELLED);
    assert_int_equal(lk_session_n_tok(s), 0);
    assert_null(lk_session_logits(s, -1));
    assert_int_equal(lk_session_new(&other, model, recipe, NULL, NULL), LK_OK);
    lk_session_cancel(s);
    assert_int_equal(lk_prefill_all((lk_session *[]){s, other}, 2, tok, 20, NULL), LK_E_CANCELLED);
    assert_int_equal(lk_session_n_tok(other), 0);

    /* In a batch only the cancelled session is left out. lk_session_clear forgets a
     * cancellation. */
    lk_batch *batch;
    assert_int_equal(lk_batch_new(&batch, model, NULL), LK_OK);
    lk_batch_entry item[2] = {{.session = s, .tok = tok, .n_tok = 2},
                              {.session = other, .tok = tok, .n_tok = 2}};
    lk_session_cancel(s);
    assert_int_equal(lk_batch_eval(batch, item, 2, NULL), LK_OK);
    assert_int_equal(item[0].err.code, LK_E_CANCELLED);
    assert_int_equal(item[1].err.code, LK_OK);
    assert_int_equal(lk_session_n_tok(s), 0);
    assert_int_equal(lk_session_n_tok(other), 2);
    lk_session_cancel(s);
    lk_session_clear(s);
    assert_int_equal(lk_session_sync(s, tok, N, NULL, NULL), LK_OK);

    /* A call that is wrong anyway does not use the cancellation up. */
    lk_session_clear(s);
    lk_session_cancel(s);
    assert_int_equal(lk_session_eval(s, tok, 0, false, NULL), LK_E_ARG);
    assert_int_equal(lk_session_eval(s, tok, 1, false, NULL), LK_E_CANCELLED);
    lk_batch_free(batch);
    free(before);
    lk_session_free(s), lk_session_free(other);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* What a progress callback of a prefill sees, and when it cancels. */
struct cancel_later {
    lk_session *session;
    uint64_t n_call, cancel_at;
    pthread_t thread;
};

static void *cancel_from_thread(void *session) {
    lk_session_cancel(session);
    return NULL;
}

static bool count_progress(void *user, uint64_t done, uint64_t total) {
    struct cancel_later *c = user;
    assert_true(done <= total);
    if (++c->n_call != c->cancel_at) return true;
    assert_int_equal(pthread_create(&c->thread, NULL, cancel_from_thread, c->session), 0);
    assert_int_equal(pthread_join(c->thread, NULL), 0);
    return true;
}

/* From another thread, between the layers of an exact prefill and between the chunks of another. */
static void test_cancel_while_running(void **state) {
    enum { N = 2 * LK_EVAL_MAX + 10 };
    lk_model *model = open_preset("llama", 2048, 1);
    int32_t *tok = malloc(N * sizeof *tok);
    random_tokens(tok, N, model, 4);
    lk_recipe *recipe;
    assert_int_equal(lk_recipe_parse(&recipe, "best-3", NULL), LK_OK);
    for (int chunked = 0; chunked < 2; chunked++) {
        struct cancel_later c = {.cancel_at = 2};
        lk_session_opts opts = {
            .n_ctx = N, .chunked_prefill = chunked, .progress = count_progress, .user = &c};
        assert_int_equal(lk_session_new(&c.session, model, recipe, &opts, NULL), LK_OK);
        assert_int_equal(lk_session_sync(c.session, tok, N, NULL, NULL), LK_E_CANCELLED);
        assert_int_equal(c.n_call, 2); /* nothing was computed afterwards */
        assert_int_equal(lk_session_n_tok(c.session), chunked ? 2 * LK_EVAL_MAX : 0);
        size_t n_reused;
        assert_int_equal(lk_session_sync(c.session, tok, N, &n_reused, NULL), LK_OK);
        /* Two chunks: of all layers, or of the first one. */
        int n_layer = lk_model_get_info(model).n_layer;
        assert_int_equal(n_reused, 2 * LK_EVAL_MAX / (chunked ? 1 : n_layer));
        lk_session_free(c.session);
    }
    free(tok);
    lk_recipe_free(recipe);
    lk_model_free(model);
}

/* ---- log messages ---- */

struct log_seen {
    int n;
    lk_log_level last;
};

static void count_messages(void *user, lk_log_level level, const char *text) {
    struct log_seen *seen = user;
    assert_non_null(text);
    assert_in_range(level, LK_LOG_DEBUG, LK_LOG_ERROR);
    seen->n++;
    seen->last = level;
}

static void test_log_callback(void **state) {
    struct log_seen seen = {0};
    lk_set_log_callback(count_messages, &seen);
    lk_model_free(open_preset("llama-spm", 0, 1));
    assert_true(seen.n > 0);
    ggml_log_callback forward;
    void *user;
    ggml_log_get(&forward, &user);
    forward(GGML_LOG_LEVEL_ERROR, "one ", user);
    assert_int_equal(seen.last, LK_LOG_ERROR);
    forward(GGML_LOG_LEVEL_CONT, "line", user);
    assert_int_equal(seen.last, LK_LOG_ERROR);
    forward(GGML_LOG_LEVEL_WARN, "another", user);
    assert_int_equal(seen.last, LK_LOG_WARN);
    int n = seen.n;
    lk_set_log_callback(NULL, NULL);
    lk_model_free(open_preset("llama-spm", 0, 1));
    assert_int_equal(seen.n, n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_token_text),      cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_zero_is_default), cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_cancel),          cmocka_unit_test(test_cancel_while_running),
        cmocka_unit_test(test_log_callback),    cmocka_unit_test(test_identity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
