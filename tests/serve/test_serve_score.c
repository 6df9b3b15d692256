/* Log-probabilities of prompts (echo with logprobs), and the limits of answers. */
#include "lowkey_serve.h"
#include "support_serve.h"
#include "test.h"

enum { N_TOK = 300 }; /* long enough that best-4 quantizes rows */

static struct lk_server_opts options(void) {
    struct lk_server_opts o = serve_options();
    o.session_dir = NULL;
    return o;
}

static int32_t prompt_token(size_t i) { return (int32_t)(3 + i * 7919 % 250); }

static json_t *prompt_tokens(size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(prompt_token(i)));
    return list;
}

/* POST to /v1/completions; releases `body`. */
static json_t *request_score(const struct lk_server *server, json_t *body) {
    char *text = json_dumps(body, 0);
    json_t *json = request_json(server, 200, "POST", "/v1/completions", text);
    free(text);
    json_decref(body);
    return json;
}

static json_t *logprobs_of(const json_t *json, size_t choice, const char *list) {
    return json_object_get(
        json_object_get(json_array_get(json_object_get(json, "choices"), choice), "logprobs"),
        list);
}

/* What `lowkey perplexity` computes: steps of 32 tokens through the cache. */
static void library_logprobs(const lk_recipe *recipe, size_t n, float *out) {
    enum { STEP = 32 };
    lk_session *session;
    int32_t tok[N_TOK];
    lk_session_opts opts = {.n_ctx = CTX};
    for (size_t i = 0; i < n; i++) tok[i] = prompt_token(i);
    assert_int_equal(lk_session_new(&session, model, recipe, &opts, NULL), LK_OK);
    for (size_t at = 0; at < n; at += STEP) {
        size_t n_step = n - at < STEP ? n - at : STEP;
        assert_int_equal(lk_session_eval(session, tok + at, n_step, true, NULL), LK_OK);
        for (size_t i = 0; i < n_step && at + i + 1 < n; i++)
            assert_int_equal(lk_session_logprobs(session, (int32_t)i, tok[at + i + 1],
                                                 &out[at + i + 1], NULL, 0, NULL),
                             LK_OK);
    }
    lk_session_free(session);
}

static void prompt_is_scored_as_by_the_library(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    float want[2][N_TOK];
    for (size_t k = 0; k < 2; k++) {
        library_logprobs(recipes[k], N_TOK, want[k]);
        json_t *json = request_score(
            server, json_pack("{s:o, s:b, s:i, s:i, s:s}", "prompt", prompt_tokens(N_TOK), "echo",
                              1, "logprobs", 2, "max_tokens", 0, "kv", lk_recipe_text(recipes[k])));
        const json_t *values = logprobs_of(json, 0, "token_logprobs"),
                     *top = logprobs_of(json, 0, "top_logprobs");
        assert_int_equal(json_array_size(values), N_TOK);
        assert_int_equal(json_array_size(top), N_TOK);
        assert_int_equal(json_array_size(logprobs_of(json, 0, "tokens")), N_TOK);
        assert_true(json_is_null(json_array_get(values, 0)));
        assert_true(json_is_null(json_array_get(top, 0)));
        for (size_t i = 1; i < N_TOK; i++) {
            const json_t *best;
            const char *text;
            double value = json_real_value(json_array_get(values, i)), max = -INFINITY;
            assert_true(value == (double)want[k][i]);
            json_object_foreach((json_t *)json_array_get(top, i), text, best) max =
                fmax(max, json_real_value(best));
            assert_true(max >= value);
        }
        assert_int_equal(int_at(json, "usage", "prompt_tokens"), N_TOK);
        assert_int_equal(int_at(json, "usage", "completion_tokens"), 0);
        json_decref(json);
    }
    /* The recipe must matter, or the test would not notice if the cache were not used. */
    assert_true(memcmp(want[0] + 200, want[1] + 200, 100 * sizeof(float)) != 0);
    /* The large buffers of these sessions are not kept. */
    json_decref(wait_idle_slots(server, 0));
    lk_server_stop(server);
}

/* The tokens are the text at their offsets, those of the answer included. */
static void offsets_point_into_the_text(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    json_t *json = request_score(server, json_pack("{s:[s, s], s:b, s:i, s:i, s:i, s:{s:i}}",
                                                   "prompt", "hello w\xc3\xb6rld", "b", "echo", 1,
                                                   "logprobs", 0, "max_tokens", 3, "temperature", 0,
                                                   "logit_bias", "100", 100));
    for (size_t choice = 0; choice < 2; choice++) {
        const char *text = json_string_value(
            json_object_get(json_array_get(json_object_get(json, "choices"), choice), "text"));
        const json_t *tokens = logprobs_of(json, choice, "tokens"),
                     *offsets = logprobs_of(json, choice, "text_offset");
        size_t n = json_array_size(tokens), n_char = 0, n_prompt = n - 3;
        assert_int_equal(json_array_size(offsets), n);
        assert_true(json_is_null(json_array_get(logprobs_of(json, choice, "token_logprobs"), 0)));
        assert_string_equal(json_string_value(json_array_get(tokens, n - 1)),
                            json_string_value(json_array_get(tokens, n_prompt)));
        for (const char *c = text; *c; c++) n_char += ((unsigned char)*c & 0xC0) != 0x80;
        assert_int_equal(json_integer_value(json_array_get(offsets, n_prompt)), n_char - 3);
        for (size_t i = 1; i < n; i++)
            assert_true(json_integer_value(json_array_get(offsets, i)) >=
                        json_integer_value(json_array_get(offsets, i - 1)));
    }
    json_decref(json);
    lk_server_stop(server);
}

/* A token that ends the answer is listed after the prompt's: clients that leave out the last token
 * of the list, such as lm-eval with max_tokens 1, must not leave out one of the prompt. */
static void end_token_is_listed(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    char eos[12];
    snprintf(eos, sizeof eos, "%d", lk_model_get_info(model).eos);
    json_t *json =
        request_score(server, json_pack("{s:o, s:b, s:i, s:i, s:{s:i}, s:i}", "prompt",
                                        prompt_tokens(5), "echo", 1, "logprobs", 1, "max_tokens", 1,
                                        "logit_bias", eos, 100, "temperature", 0));
    assert_int_equal(json_array_size(logprobs_of(json, 0, "token_logprobs")), 6);
    assert_int_equal(int_at(json, "usage", "completion_tokens"), 0);
    json_decref(json);
    lk_server_stop(server);
}

static void several_choices_share_one_score(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    json_t *json = request_score(server, json_pack("{s:[o, o], s:i, s:b, s:i, s:i}", "prompt",
                                                   prompt_tokens(40), prompt_tokens(50), "n", 2,
                                                   "echo", 1, "logprobs", 1, "max_tokens", 2));
    for (size_t i = 0; i < 4; i++) {
        const json_t *values = logprobs_of(json, i, "token_logprobs");
        assert_in_range(json_array_size(values), i < 2 ? 40 : 50, i < 2 ? 42 : 52);
        for (size_t k = 1; k < 40; k++)
            assert_true(json_equal(json_array_get(values, k),
                                   json_array_get(logprobs_of(json, 0, "token_logprobs"), k)));
    }
    json_decref(json);
    lk_server_stop(server);
}

/* -1 means unlimited. 0 needs an echo; a prompt may then fill the whole context. */
static void limits_of_answers(void **state) {
    struct lk_server_opts opts = options();
    opts.n_ctx = 64;
    struct lk_server *server = serve_start(&opts);
    static const char *const fields[] = {"max_tokens", "n_predict"};
    for (size_t i = 0; i < 2; i++) {
        json_t *json =
            request_score(server, json_pack("{s:o, s:i, s:b}", "prompt", prompt_tokens(8),
                                            fields[i], -1, "ignore_eos", 1));
        assert_int_equal(int_at(json, "usage", "completion_tokens"), 64 - 8);
        json_decref(json);
    }
    json_t *json =
        request_score(server, json_pack("{s:o, s:b, s:i, s:i}", "prompt", prompt_tokens(64), "echo",
                                        1, "logprobs", 1, "max_tokens", 0));
    assert_int_equal(json_array_size(logprobs_of(json, 0, "tokens")), 64);
    json_decref(json);
    json = request_score(server,
                         json_pack("{s:s, s:b, s:i}", "prompt", "abc", "echo", 1, "max_tokens", 0));
    assert_string_equal(json_string_value(json_object_get(
                            json_array_get(json_object_get(json, "choices"), 0), "text")),
                        "abc");
    json_decref(json);
    expect_error(server, 400, "/v1/completions", "{\"prompt\": \"abc\", \"max_tokens\": 0}",
                 "invalid_value");
    lk_server_stop(server);
}

/* Scores are charged before they are computed. */
static void scores_are_charged(void **state) {
    struct lk_server_opts opts = options();
    opts.request_bytes = 1 << 20;
    struct lk_server *server = serve_start(&opts);
    json_t *body = json_pack("{s:o, s:b, s:i, s:i}", "prompt", prompt_tokens(200), "echo", 1,
                             "logprobs", 20, "max_tokens", 0);
    char *text = json_dumps(body, 0);
    expect_error(server, 413, "/v1/completions", text, "request_too_large");
    free(text);
    json_decref(body);
    lk_server_stop(server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompt_is_scored_as_by_the_library),
        cmocka_unit_test(offsets_point_into_the_text),
        cmocka_unit_test(end_token_is_listed),
        cmocka_unit_test(several_choices_share_one_score),
        cmocka_unit_test(limits_of_answers),
        cmocka_unit_test(scores_are_charged),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
