/* Endpoints of other servers: aliases, llama.cpp's own completions, fill-in-the-middle, embeddings,
 * and what vLLM's clients ask about the tokenizer. */
#include "lowkey_serve.h"
#include "support_http.h"
#include "support_model.h"
#include "support_serve.h"
#include "test.h"

static struct lk_server_opts options(void) {
    struct lk_server_opts o = serve_options();
    o.session_dir = NULL;
    return o;
}

static const char *text_at(const json_t *json, const char *field) {
    return json_string_value(json_object_get(json, field));
}

static json_int_t number_at(const json_t *json, const char *field) {
    const json_t *value = json_object_get(json, field);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

/* ---- other paths ---- */

static void paths_of_other_servers(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    static const char *const get[] = {"/models", "/v1/health", "/props", "/tokenizer_info"};
    static const struct {
        const char *path, *body;
    } post[] = {
        {"/completions", "{\"prompt\": \"x\", \"max_tokens\": 1}"},
        {"/chat/completions",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"max_tokens\": 1}"},
        {"/v1/completion", "{\"prompt\": \"x\", \"n_predict\": 1}"},
        {"/v1/tokenize", "{\"content\": \"x\"}"},
        {"/embeddings", "{\"input\": \"x\"}"},
    };
    size_t n_post = sizeof post / sizeof post[0];
    if (opts.n_rank > 1) n_post--; /* several ranks have no embeddings */
    for (size_t i = 0; i < sizeof get / sizeof get[0]; i++)
        json_decref(request_json(server, 200, "GET", get[i], ""));
    for (size_t i = 0; i < n_post; i++)
        json_decref(request_json(server, 200, "POST", post[i].path, post[i].body));
    struct http_reply icon = http_request(lk_server_port(server), "GET", "/favicon.ico", "", "");
    assert_int_equal(icon.status, 200);
    assert_non_null(strstr(icon.head, "image/"));
    assert_true(icon.len > 100);
    http_free(&icon);
    lk_server_stop(server);
}

/* With keys, only what tells nothing about the model is public. */
static void keys_protect_other_paths(void **state) {
    static const char *const key[] = {"secret-key"};
    static const struct {
        int status;
        const char *method, *path;
    } cases[] = {{200, "GET", "/v1/health"},      {200, "GET", "/favicon.ico"},
                 {401, "GET", "/props"},          {401, "GET", "/models"},
                 {401, "POST", "/completion"},    {401, "POST", "/v1/embeddings"},
                 {401, "POST", "/infill"},        {401, "GET", "/tokenizer_info"},
                 {401, "POST", "/apply-template"}};
    struct lk_server_opts opts = options();
    opts.key = key;
    opts.n_key = 1;
    struct lk_server *server = serve_start(&opts);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct http_reply reply =
            http_request(lk_server_port(server), cases[i].method, cases[i].path, "", "{}");
        if (reply.status != cases[i].status)
            fail_msg("%s: status %d, expected %d", cases[i].path, reply.status, cases[i].status);
        http_free(&reply);
    }
    lk_server_stop(server);
}

static void properties(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    json_t *json = request_json(server, 200, "GET", "/props", "");
    assert_int_equal(number_at(json, "total_slots"), opts.n_parallel);
    assert_int_equal(int_at(json, "default_generation_settings", "n_ctx"), CTX);
    assert_non_null(strstr(text_at(json, "chat_template"), "im_start"));
    assert_string_equal(text_at(json, "model_alias"), "tiny");
    assert_non_null(strstr(text_at(json, "build_info"), lk_version()));
    json_decref(json);
    json = request_json(server, 200, "POST", "/apply-template",
                        "{\"messages\": [{\"role\": \"user\", \"content\": \"hi <|im_end|>\"}]}");
    assert_string_equal(text_at(json, "prompt"),
                        "<|im_start|>user\nhi <|im_end|><|im_end|>\n<|im_start|>assistant\n");
    json_decref(json);
    expect_error(server, 400, "/apply-template", "{\"messages\": []}", "missing_field");
    lk_server_stop(server);
}

/* lm-eval takes the tokens of its prompts from these. */
static void tokenizer_of_remote_clients(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    json_t *info = request_json(server, 200, "GET", "/tokenizer_info", "");
    assert_string_equal(text_at(info, "eos_token"), "<|im_end|>");
    json_t *json = request_json(server, 200, "POST", "/tokenize",
                                "{\"prompt\": \"<|im_end|>\", \"add_special_tokens\": false}");
    const json_t *tokens = json_object_get(json, "tokens");
    assert_int_equal(json_array_size(tokens), 1);
    assert_int_equal(json_integer_value(json_array_get(tokens, 0)), lk_model_get_info(model).eos);
    assert_int_equal(number_at(json, "count"), 1);
    json_decref(json);
    /* llama-server's form does not parse control tokens unless asked. */
    json = request_json(server, 200, "POST", "/tokenize", "{\"content\": \"<|im_end|>\"}");
    assert_true(json_array_size(json_object_get(json, "tokens")) > 1);
    json_decref(json);
    json = request_json(server, 200, "POST", "/detokenize", "{\"tokens\": [104, 101]}");
    assert_non_null(text_at(json, "prompt"));
    assert_string_equal(text_at(json, "prompt"), text_at(json, "content"));
    json_decref(json);
    json_decref(info);
    lk_server_stop(server);
}

/* ---- llama.cpp's completions ---- */

static void native_completion(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    json_t *openai = request_json(server, 200, "POST", "/v1/completions",
                                  "{\"prompt\": \"hello\", \"max_tokens\": 8, \"temperature\": 0}");
    const char *want = text_at(json_array_get(json_object_get(openai, "choices"), 0), "text");
    json_t *json = request_json(server, 200, "POST", "/completion",
                                "{\"prompt\": \"hello\", \"n_predict\": 8, \"temperature\": 0, "
                                "\"n_probs\": 2, \"cache_prompt\": true}");
    assert_string_equal(text_at(json, "content"), want);
    assert_true(json_is_true(json_object_get(json, "stop")));
    assert_string_equal(text_at(json, "stop_type"), "limit");
    assert_int_equal(number_at(json, "tokens_predicted"), 8);
    assert_int_equal(number_at(json, "tokens_evaluated"), int_at(openai, "usage", "prompt_tokens"));
    assert_int_equal(int_at(json, "generation_settings", "n_predict"), 8);
    assert_int_equal(int_at(json, "timings", "predicted_n"), 8);
    const json_t *probs = json_object_get(json, "completion_probabilities");
    assert_int_equal(json_array_size(probs), 8);
    assert_int_equal(json_array_size(json_object_get(json_array_get(probs, 0), "top_logprobs")), 2);
    json_decref(json);

    /* The same as a stream, whose last event has "stop": true and no text. */
    struct http_reply reply = http_request(
        lk_server_port(server), "POST", "/completion", "",
        "{\"prompt\": \"hello\", \"n_predict\": 8, \"temperature\": 0, \"stream\": true}");
    char text[1000] = "", *rest = NULL;
    int n_stop = 0;
    for (char *line = strtok_r(reply.body, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        assert_memory_equal(line, "data: ", 6);
        assert_int_equal(n_stop, 0);
        json = json_loads(line + 6, 0, NULL);
        assert_non_null(json);
        strcat(text, text_at(json, "content"));
        n_stop += json_is_true(json_object_get(json, "stop"));
        if (n_stop) assert_int_equal(number_at(json, "tokens_predicted"), 8);
        json_decref(json);
    }
    assert_int_equal(n_stop, 1);
    assert_string_equal(text, want);
    http_free(&reply);
    json_decref(openai);

    /* n_predict 0 only prefills; the next request reuses the prompt. */
    static const char prompt[] = "a prompt that is prefilled before it is needed";
    char body[200];
    snprintf(body, sizeof body, "{\"prompt\": \"%s\", \"n_predict\": 0}", prompt);
    json = request_json(server, 200, "POST", "/completion", body);
    assert_int_equal(number_at(json, "tokens_predicted"), 0);
    json_decref(json);
    snprintf(body, sizeof body, "{\"prompt\": \"%s\", \"n_predict\": 1}", prompt);
    json = request_json(server, 200, "POST", "/completion", body);
    assert_int_equal(int_at(json, "timings", "prompt_n"), 0);
    json_decref(json);

    json = request_json(server, 200, "POST", "/completion",
                        "{\"prompt\": \"x\", \"n_predict\": 9, \"grammar\": \"root ::= \\\"abc\\\" "
                        "[x]*\", \"stop\": [\"zz\", \"c\"]}");
    assert_string_equal(text_at(json, "content"), "ab");
    assert_string_equal(text_at(json, "stop_type"), "word");
    assert_string_equal(text_at(json, "stopping_word"), "c");
    json_decref(json);
    expect_error(server, 400, "/completion", "{\"n_predict\": 1}", "missing_field");
    expect_error(server, 400, "/completion", "{\"prompt\": [\"a\", \"b\"]}", "invalid_value");
    expect_error(server, 400, "/completion", "{\"prompt\": \"a\", \"n\": 2}", "unsupported");
    lk_server_stop(server);
}

/* ---- fill in the middle ---- */

/* Control tokens of the vocabulary, as if the model had been trained with them. */
static void set_fim_tokens(struct gguf_context *gguf, void *user) {
    const uint32_t *tok = user;
    gguf_set_val_u32(gguf, "tokenizer.ggml.fim_pre_token_id", tok[0]);
    gguf_set_val_u32(gguf, "tokenizer.ggml.fim_suf_token_id", tok[1]);
    gguf_set_val_u32(gguf, "tokenizer.ggml.fim_mid_token_id", tok[2]);
}

/* Greedy answers to the texts between control tokens must be those to the same tokens. */
static void infill_uses_the_model_s_tokens(void **state) {
    char path[] = "/tmp/lowkey-infill-XXXXXX";
    struct lk_server_opts opts = options();
    int32_t n_vocab = lk_model_get_info(model).n_vocab;
    uint32_t fim[] = {(uint32_t)n_vocab - 3, (uint32_t)n_vocab - 2, (uint32_t)n_vocab - 3};
    lk_model *plain = model, *coder;
    fclose(fdopen(mkstemp(path), "w"));
    assert_true(tiny_gguf_write_edited(path, tiny_preset("qwen2-bpe"), set_fim_tokens, fim));
    assert_int_equal(lk_model_open(&coder, path, NULL, NULL), LK_OK);
    remove(path);
    opts.model = coder;
    struct lk_server *server = serve_start(&opts);
    static const char rest[] = "\"max_tokens\": 6, \"temperature\": 0, \"ignore_eos\": true";
    char body[600];
    snprintf(body, sizeof body, "{\"prompt\": [%u, %d, %d, %d, %u, %d, %u], %s}", fim[0], 'a', 'b',
             'c', fim[1], 'd', fim[2], rest);
    json_t *tokens = request_json(server, 200, "POST", "/v1/completions", body);
    const char *want = text_at(json_array_get(json_object_get(tokens, "choices"), 0), "text");
    snprintf(body, sizeof body, "{\"prompt\": \"abc\", \"suffix\": \"d\", %s}", rest);
    json_t *json = request_json(server, 200, "POST", "/v1/completions", body);
    assert_string_equal(text_at(json_array_get(json_object_get(json, "choices"), 0), "text"), want);
    json_decref(json);
    snprintf(body, sizeof body,
             "{\"input_prefix\": \"ab\", \"prompt\": \"c\", \"input_suffix\": \"d\", %s}", rest);
    json = request_json(server, 200, "POST", "/infill", body);
    assert_string_equal(text_at(json, "content"), want);
    assert_int_equal(number_at(json, "tokens_evaluated"), 7);
    json_decref(json);
    /* Other files come first. The texts of clients cannot spell control tokens. */
    snprintf(body, sizeof body,
             "{\"input_prefix\": \"<|im_start|>\", \"input_suffix\": \"d\", \"input_extra\": "
             "[{\"filename\": \"a.c\", \"text\": \"int x;\"}], %s}",
             rest);
    json = request_json(server, 200, "POST", "/infill", body);
    assert_true(number_at(json, "tokens_evaluated") > 30);
    json_decref(json);
    expect_error(server, 400, "/infill", "{\"input_prefix\": \"a\"}", "missing_field");
    expect_error(server, 400, "/infill",
                 "{\"input_prefix\": \"a\", \"input_suffix\": \"b\", \"input_extra\": [7]}",
                 "invalid_type");
    expect_error(server, 400, "/v1/completions",
                 "{\"prompt\": \"a\", \"suffix\": \"b\", \"echo\": true}", "unsupported");
    expect_error(server, 400, "/v1/completions", "{\"prompt\": [5], \"suffix\": \"b\"}",
                 "unsupported");
    json_decref(tokens);
    lk_server_stop(server);
    lk_model_free(coder);
    opts.model = plain;
    server = serve_start(&opts);
    expect_error(server, 501, "/infill", "{\"input_prefix\": \"a\", \"input_suffix\": \"b\"}",
                 "unsupported");
    expect_error(server, 501, "/v1/completions", "{\"prompt\": \"a\", \"suffix\": \"b\"}",
                 "unsupported");
    lk_server_stop(server);
}

/* ---- embeddings ---- */

static void library_embedding(const int32_t *tok, size_t n, lk_pooling pooling, float *out) {
    lk_session *session;
    lk_session_opts opts = {.n_ctx = CTX};
    assert_int_equal(lk_session_new(&session, model, recipes[0], &opts, NULL), LK_OK);
    assert_int_equal(lk_session_embed(session, tok, n, pooling, out, NULL), LK_OK);
    lk_session_free(session);
}

static void expect_embedding(const json_t *json, size_t i, const float *want, size_t n) {
    const json_t *item = json_array_get(json_object_get(json, "data"), i),
                 *values = json_object_get(item, "embedding");
    assert_int_equal(json_integer_value(json_object_get(item, "index")), i);
    assert_int_equal(json_array_size(values), n);
    for (size_t k = 0; k < n; k++)
        assert_true(fabs(json_number_value(json_array_get(values, k)) - (double)want[k]) < 1e-6);
}

static void embeddings_are_the_library_s(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    if (opts.n_rank > 1) {
        expect_error(server, 400, "/v1/embeddings", "{\"input\": \"x\"}", "unsupported");
        lk_server_stop(server);
        return;
    }
    size_t n_embd = (size_t)lk_model_get_info(model).n_embd;
    const int32_t tok[] = {5, 60, 7, 100, 9};
    float *want = malloc(2 * n_embd * sizeof *want), *last = want + n_embd;
    library_embedding(tok, 5, LK_POOLING_MEAN, want);
    library_embedding(tok, 5, LK_POOLING_LAST, last);
    json_t *json = request_json(server, 200, "POST", "/v1/embeddings",
                                "{\"input\": [[5, 60, 7, 100, 9], \"hello\", [5, 60, 7, 100, 9]]}");
    assert_int_equal(json_array_size(json_object_get(json, "data")), 3);
    expect_embedding(json, 0, want, n_embd);
    expect_embedding(json, 2, want, n_embd);
    assert_true(int_at(json, "usage", "prompt_tokens") > 11);
    assert_string_equal(text_at(json, "model"), "tiny");
    assert_non_null(strstr(text_at(json, "note"), "not trained for embeddings"));
    json_decref(json);
    json = request_json(server, 200, "POST", "/v1/embeddings",
                        "{\"input\": [5, 60, 7, 100, 9], \"pooling\": \"last\"}");
    expect_embedding(json, 0, last, n_embd);
    json_decref(json);
    /* Fewer dimensions are scaled to length 1 again. */
    json = request_json(server, 200, "POST", "/v1/embeddings",
                        "{\"input\": [5, 60, 7, 100, 9], \"dimensions\": 3}");
    double length = sqrt((double)want[0] * want[0] + want[1] * want[1] + want[2] * want[2]);
    for (size_t i = 0; i < 3; i++) want[i] = (float)(want[i] / length);
    expect_embedding(json, 0, want, 3);
    json_decref(json);
    /* base64 is of the same floats: 12 bytes are 16 characters. */
    json = request_json(server, 200, "POST", "/v1/embeddings",
                        "{\"input\": [5, 60, 7, 100, 9], \"dimensions\": 3, \"encoding_format\": "
                        "\"base64\"}");
    const char *text = text_at(json_array_get(json_object_get(json, "data"), 0), "embedding");
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned char bytes[12];
    assert_int_equal(strlen(text), 16);
    for (size_t i = 0; i < 16; i += 4) {
        unsigned group = 0;
        for (size_t k = 0; k < 4; k++)
            group = group << 6 | (unsigned)(strchr(digits, text[i + k]) - digits);
        for (size_t k = 0; k < 3; k++)
            bytes[i / 4 * 3 + k] = (unsigned char)(group >> (16 - 8 * k));
    }
    for (size_t i = 0; i < 3; i++) {
        float got;
        memcpy(&got, bytes + 4 * i, sizeof got);
        assert_true(fabsf(got - want[i]) < 1e-6f);
    }
    json_decref(json);
    json_decref(wait_idle_slots(server, 0)); /* nothing is kept */
    free(want);
    lk_server_stop(server);
}

static void invalid_embeddings_are_rejected(void **state) {
    static const struct {
        int status;
        const char *body, *code;
    } cases[] = {
        {400, "{}", "missing_field"},
        {400, "{\"input\": []}", "missing_field"},
        {400, "{\"input\": 5}", "invalid_type"},
        {400, "{\"input\": [[]]}", "invalid_value"},
        {400, "{\"input\": [999999]}", "invalid_value"},
        {400, "{\"input\": \"x\", \"encoding_format\": \"hex\"}", "invalid_value"},
        {400, "{\"input\": \"x\", \"pooling\": \"cls\"}", "invalid_value"},
        {400, "{\"input\": \"x\", \"dimensions\": 0}", "invalid_value"},
        {400, "{\"input\": \"x\", \"dimensions\": 100000}", "invalid_value"},
        {400, "{\"input\": \"x\", \"stream\": true}", "unsupported"},
    };
    struct lk_server_opts opts = options();
    if (opts.n_rank > 1) skip(); /* they are refused whatever they contain */
    struct lk_server *server = serve_start(&opts);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_error(server, cases[i].status, "/v1/embeddings", cases[i].body, cases[i].code);
    lk_server_stop(server);
    /* More texts than the queue has places are one job; their vectors are charged. */
    json_t *list = json_array();
    for (int i = 0; i < 200; i++) json_array_append_new(list, json_string("hello"));
    json_t *body = json_pack("{s:o}", "input", list);
    char *text = json_dumps(body, 0);
    opts.n_queue = 4;
    server = serve_start(&opts);
    json_t *json = request_json(server, 200, "POST", "/v1/embeddings", text);
    assert_int_equal(json_array_size(json_object_get(json, "data")), 200);
    json_decref(json);
    lk_server_stop(server);
    opts.request_bytes = 4 << 20;
    server = serve_start(&opts);
    expect_error(server, 413, "/v1/embeddings", text, "request_too_large");
    lk_server_stop(server);
    free(text);
    json_decref(body);
}

/* An answer ends with the context. */
static void answers_end_with_the_context(void **state) {
    static const char body[] = "{\"prompt\": \"hello\", \"n_predict\": 900, \"ignore_eos\": true, "
                               "\"temperature\": 0}";
    struct lk_server_opts opts = serve_options();
    opts.n_ctx = 512;
    opts.session_dir = NULL;
    struct lk_server *server = serve_start(&opts);
    json_t *json = request_json(server, 200, "POST", "/completion", body);
    json_int_t n = json_integer_value(json_object_get(json, "tokens_predicted"));
    assert_true(n > 400 && n < 512);
    assert_string_equal(json_string_value(json_object_get(json, "stop_type")), "limit");
    assert_true(json_is_false(json_object_get(json, "truncated")));
    json_decref(json);
    lk_server_stop(server);
}

/* ---- conversations that do not fit ---- */

/* A conversation of n questions with short answers. "hell" is a token, so four bytes are one, as in
 * most texts. */
static json_t *long_chat(int n, const char *last) {
    json_t *body =
               json_pack("{s:[{s:s, s:s}], s:i, s:i}", "messages", "role", "system", "content",
                         "Answer in few words, and never more.", "max_tokens", 4, "temperature", 0),
           *messages = json_object_get(body, "messages");
    for (int i = 0; i < n; i++) {
        char text[200];
        snprintf(text, sizeof text, "%d hellhellhellhellhellhellhellhellhellhellhellhellhellhell",
                 i);
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content",
                                                  i + 1 == n && last ? last : text));
        if (i + 1 < n)
            json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "assistant", "content",
                                                      "hellhellhellhellhellhellhellhellhellhell"));
    }
    return body;
}

static json_t *post_json(const struct lk_server *server, int status, const char *path,
                         json_t *body) {
    char *text = json_dumps(body, 0);
    json_t *reply = request_json(server, status, "POST", path, text);
    free(text);
    json_decref(body);
    return reply;
}

static json_int_t left_out(const json_t *reply) {
    return json_integer_value(json_object_get(reply, "left_out_messages"));
}

/* The oldest turns leave, the reply says so, and the next requests reuse what is left. */
static void old_turns_leave_a_full_context(void **state) {
    struct lk_server_opts opts = options();
    opts.n_ctx = 512;
    struct lk_server *server = serve_start(&opts);
    int n_cut = 0, n_reusing = 0;
    json_int_t before = 0;
    for (int n = 1; n < 60; n++) {
        json_t *reply = post_json(server, 200, "/v1/chat/completions", long_chat(n, NULL)),
               *timings = json_object_get(reply, "timings");
        json_int_t left = left_out(reply), n_reused = number_at(timings, "cache_n"),
                   n_prompt = n_reused + number_at(timings, "prompt_n");
        assert_true(left >= before && left % 2 == 0 && left < 2 * n && n_prompt < 512);
        if (left > before) assert_true(n_prompt > 512 / 3 && n_prompt < 512 * 7 / 8);
        n_cut += left > before;
        n_reusing += left > 0 && left == before && 2 * n_reused > n_prompt;
        before = left;
        json_decref(reply);
    }
    assert_true(n_cut >= 2 && n_cut < 20);
    assert_true(n_reusing >= 59 / 2);
    lk_server_stop(server);
}

static void all_chat_apis_leave_out_turns(void **state) {
    struct lk_server_opts opts = options();
    opts.n_ctx = 512;
    struct lk_server *server = serve_start(&opts);
    json_t *reply = post_json(server, 200, "/v1/messages", long_chat(40, NULL));
    assert_true(left_out(json_object_get(reply, "usage")) > 0);
    json_decref(reply);
    json_t *body = long_chat(40, NULL);
    json_object_set_new(body, "stream", json_false());
    reply = post_json(server, 200, "/api/chat", body);
    assert_true(left_out(reply) > 0);
    json_decref(reply);
    body = long_chat(40, NULL);
    json_object_set(body, "input", json_object_get(body, "messages"));
    json_object_del(body, "messages");
    json_object_del(body, "max_tokens");
    json_object_set_new(body, "max_output_tokens", json_integer(4));
    reply = post_json(server, 200, "/v1/responses", json_deep_copy(body));
    assert_true(left_out(json_object_get(reply, "usage")) > 0);
    assert_string_equal(text_at(reply, "truncation"), "auto");
    json_decref(reply);
    json_object_set_new(body, "truncation", json_string("disabled"));
    json_decref(post_json(server, 400, "/v1/responses", body));
    /* Agents read an error, and shorten the conversation themselves. */
    const char *agent_path[] = {"/v1/chat/completions", "/v1/messages"};
    for (int i = 0; i < 2; i++) {
        json_t *tool =
            i ? json_pack("{s:s, s:{s:s}}", "name", "f", "input_schema", "type", "object")
              : json_pack("{s:s, s:{s:s}}", "type", "function", "function", "name", "f");
        body = long_chat(40, NULL);
        json_object_set_new(body, "tools", json_pack("[o]", tool));
        json_decref(post_json(server, 400, agent_path[i], body));
    }
    /* Counts are of the whole conversation, and the newest message never leaves. */
    reply = post_json(server, 200, "/v1/messages/count_tokens", long_chat(60, NULL));
    assert_true(json_integer_value(json_object_get(reply, "input_tokens")) > opts.n_ctx);
    json_decref(reply);
    char *huge = calloc(1, 6001);
    for (int i = 0; i < 6000; i++) huge[i] = "ab c"[i % 4];
    json_decref(post_json(server, 400, "/v1/chat/completions", long_chat(3, huge)));
    free(huge);
    lk_server_stop(server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_of_other_servers),
        cmocka_unit_test(keys_protect_other_paths),
        cmocka_unit_test(properties),
        cmocka_unit_test(tokenizer_of_remote_clients),
        cmocka_unit_test(native_completion),
        cmocka_unit_test(infill_uses_the_model_s_tokens),
        cmocka_unit_test(embeddings_are_the_library_s),
        cmocka_unit_test(invalid_embeddings_are_rejected),
        cmocka_unit_test(answers_end_with_the_context),
        cmocka_unit_test(old_turns_leave_a_full_context),
        cmocka_unit_test(all_chat_apis_leave_out_turns),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
