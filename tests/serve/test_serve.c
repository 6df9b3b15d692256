/* The server over loopback with a tiny model: completions, session reuse, info endpoints. */
#include "base/clock.h"
#include "support_http.h"
#include "support_serve.h"
#include "test.h"

#include <sys/socket.h>

/* Options of a server without a session directory. */
static struct lk_server_opts options(void) {
    struct lk_server_opts o = serve_options();
    o.n_ctx = 256;
    o.session_dir = NULL;
    return o;
}

static const char *string_at(const json_t *json, const char *list, const char *field) {
    return json_string_value(
        json_object_get(json_array_get(json_object_get(json, list), 0), field));
}

/* ---- completions ---- */

/* The library's greedy answer to a prompt. */
static void library_answer(const char *prompt, size_t n, char *out, size_t cap) {
    lk_session *session;
    lk_sampler *sampler;
    lk_sampler_opts greedy = lk_sampler_chat();
    lk_session_opts opts = {.n_ctx = 256};
    int32_t *tok, next;
    size_t n_tok, len = 0;
    greedy.temperature = 0;
    assert_int_equal(
        lk_tokenize(model, prompt, strlen(prompt), LK_TOKENIZE_BEGIN, 0, &tok, &n_tok, NULL),
        LK_OK);
    assert_int_equal(lk_session_new(&session, model, recipes[0], &opts, NULL), LK_OK);
    assert_int_equal(lk_sampler_new(&sampler, model, &greedy, NULL), LK_OK);
    assert_int_equal(lk_session_sync(session, tok, n_tok, NULL, NULL), LK_OK);
    out[0] = 0;
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(lk_sampler_next(sampler, session, -1, &next, NULL), LK_OK);
        if (lk_token_ends(model, next)) break;
        size_t n_byte;
        const char *text = lk_token_text(model, next, &n_byte);
        assert_true(len + n_byte < cap);
        memcpy(out + len, text, n_byte + 1);
        len += n_byte;
        assert_int_equal(lk_session_eval(session, &next, 1, false, NULL), LK_OK);
    }
    lk_sampler_free(sampler);
    lk_session_free(session);
    lk_tokens_free(tok);
}

static void completion_matches_library(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    char want[1024];
    library_answer("hello world", 12, want, sizeof want);
    json_t *json =
        request_json(server, 200, "POST", "/v1/completions",
                     "{\"prompt\": \"hello world\", \"max_tokens\": 12, \"temperature\": 0}");
    /* Invalid bytes become U+FFFD, so compare the leading ASCII text. */
    const char *got = string_at(json, "choices", "text");
    size_t same = 0;
    while (want[same] && (unsigned char)want[same] < 128) same++;
    assert_memory_equal(got, want, same);
    assert_string_equal(json_string_value(json_object_get(json, "object")), "text_completion");
    assert_true(int_at(json, "usage", "completion_tokens") <= 12 &&
                int_at(json, "usage", "completion_tokens") > 0);
    assert_int_equal(int_at(json, "usage", "total_tokens"),
                     int_at(json, "usage", "prompt_tokens") +
                         int_at(json, "usage", "completion_tokens"));
    assert_true(int_at(json, "cache", "cache_bytes") > 0);
    json_decref(json);
    lk_server_stop(server);
}

/* Join the text of all chunks, and check the form of each one. Returns their number. */
static int join_stream(char *body, char *out, size_t cap, const char *object) {
    int n = 0;
    size_t len = 0;
    bool done = false;
    char *rest = NULL;
    out[0] = 0;
    for (char *line = strtok_r(body, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        assert_false(done);
        assert_memory_equal(line, "data: ", 6);
        done = strcmp(line + 6, "[DONE]") == 0;
        if (done) continue;
        json_t *json = json_loads(line + 6, 0, NULL);
        assert_non_null(json);
        assert_string_equal(json_string_value(json_object_get(json, "object")), object);
        const json_t *choice = json_array_get(json_object_get(json, "choices"), 0);
        const char *text = json_string_value(json_object_get(choice, "text"));
        if (!text)
            text = json_string_value(json_object_get(json_object_get(choice, "delta"), "content"));
        if (text) len += (size_t)snprintf(out + len, cap - len, "%s", text);
        json_decref(json);
        n++;
    }
    assert_true(done);
    return n;
}

static void stream_matches_whole_response(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    char text[4096];
    json_t *whole =
        request_json(server, 200, "POST", "/v1/completions",
                     "{\"prompt\": \"one two\", \"max_tokens\": 20, \"temperature\": 0}");
    struct http_reply reply = http_request(
        lk_server_port(server), "POST", "/v1/completions", "",
        "{\"prompt\": \"one two\", \"max_tokens\": 20, \"temperature\": 0, \"stream\": true}");
    assert_int_equal(reply.status, 200);
    assert_non_null(strstr(reply.head, "text/event-stream"));
    assert_true(join_stream(reply.body, text, sizeof text, "text_completion") > 1);
    assert_string_equal(text, string_at(whole, "choices", "text"));
    http_free(&reply);
    json_decref(whole);

    reply =
        http_request(lk_server_port(server), "POST", "/v1/chat/completions", "",
                     "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"max_tokens\": "
                     "8, \"stream\": true, \"return_progress\": true, \"stream_options\": "
                     "{\"include_usage\": true}}");
    assert_int_equal(reply.status, 200);
    assert_non_null(strstr(reply.body, "\"usage\""));
    assert_non_null(strstr(reply.body, "\"prompt_progress\""));
    join_stream(reply.body, text, sizeof text, "chat.completion.chunk");
    http_free(&reply);
    lk_server_stop(server);
}

/* A stream that the server's end interrupts ends with an error in the form of its API. */
static void stop_ends_streams_with_errors(void **state) {
    static const struct {
        const char *path, *body, *error;
    } apis[] = {
        {"/v1/completions",
         "{\"prompt\": \"x\", \"max_tokens\": 12000, \"ignore_eos\": true, \"stream\": true}",
         "data: {\"error\":{"},
        {"/v1/responses",
         "{\"input\": \"x\", \"max_output_tokens\": 12000, \"ignore_eos\": true, \"stream\": true}",
         "event: response.failed\n"},
        {"/v1/messages",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"max_tokens\": 12000, "
         "\"ignore_eos\": true, \"stream\": true}",
         "event: error\n"},
        {"/api/generate",
         "{\"model\": \"tiny\", \"prompt\": \"x\", \"options\": {\"num_predict\": 12000}, "
         "\"ignore_eos\": true, \"stream\": true}",
         "{\"error\":"},
    };
    for (size_t i = 0; i < sizeof apis / sizeof *apis; i++) {
        struct lk_server_opts opts = options();
        opts.n_ctx = 12500;
        struct lk_server *server = serve_start(&opts);
        char head[200], first[1];
        int fd = http_connect(lk_server_port(server));
        snprintf(head, sizeof head,
                 "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", apis[i].path,
                 strlen(apis[i].body));
        http_send(fd, head, strlen(head));
        http_send(fd, apis[i].body, strlen(apis[i].body));
        assert_int_equal(recv(fd, first, 1, MSG_PEEK), 1); /* the answer has begun */
        lk_server_stop(server);
        struct http_reply reply = http_read(fd);
        assert_int_equal(reply.status, 200);
        if (!strstr(reply.body, apis[i].error))
            fail_msg("%s: %s", apis[i].path,
                     reply.len > 400 ? reply.body + reply.len - 400 : reply.body);
        http_free(&reply);
    }
}

static void multiple_choices_and_logprobs(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    json_t *json = request_json(server, 200, "POST", "/v1/completions",
                                "{\"prompt\": [\"a\", [5, 6, 7]], \"n\": 3, \"max_tokens\": 5, "
                                "\"logprobs\": 4, \"seed\": 1}");
    const json_t *choices = json_object_get(json, "choices"), *choice;
    size_t i;
    assert_int_equal(json_array_size(choices), 6);
    json_array_foreach(choices, i, choice) {
        const json_t *lists = json_object_get(choice, "logprobs"),
                     *values = json_object_get(lists, "token_logprobs");
        assert_int_equal(json_integer_value(json_object_get(choice, "index")), i);
        assert_int_equal(json_array_size(values),
                         json_array_size(json_object_get(lists, "tokens")));
        for (size_t k = 0; k < json_array_size(values); k++)
            assert_true(json_real_value(json_array_get(values, k)) <= 1e-4);
    }
    json_decref(json);
    json = request_json(
        server, 200, "POST", "/v1/chat/completions",
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", "
        "\"text\": \"x\"}]}], \"max_tokens\": 3, \"logprobs\": true, \"top_logprobs\": "
        "2, \"temperature\": 0}");
    const json_t *content = json_object_get(
        json_object_get(json_array_get(json_object_get(json, "choices"), 0), "logprobs"),
        "content");
    json_array_foreach(content, i, choice) {
        const json_t *top = json_object_get(choice, "top_logprobs");
        assert_int_equal(json_array_size(top), 2);
        /* Greedy: the sampled token is the most probable one. */
        assert_true(json_real_value(json_object_get(choice, "logprob")) ==
                    json_real_value(json_object_get(json_array_get(top, 0), "logprob")));
    }
    json_decref(json);
    lk_server_stop(server);
}

/* Choices of one prompt start with copies of one cache, so greedy ones are equal. */
static void choices_share_one_prefill(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    json_t *json =
        request_json(server, 200, "POST", "/v1/completions",
                     "{\"prompt\": \"the quick brown fox jumps over the lazy dog\", \"n\": "
                     "4, \"max_tokens\": 16, \"temperature\": 0}");
    const json_t *choices = json_object_get(json, "choices");
    for (size_t i = 1; i < 4; i++)
        assert_string_equal(json_string_value(json_object_get(json_array_get(choices, i), "text")),
                            json_string_value(json_object_get(json_array_get(choices, 0), "text")));
    /* They were decoded as a batch: one step for all of them. */
    struct http_reply reply = http_request(lk_server_port(server), "GET", "/metrics", "", "");
    const char *steps = strstr(reply.body, "\nlowkey_decode_steps_total ");
    assert_non_null(steps);
    assert_in_range(atoi(steps + strlen("\nlowkey_decode_steps_total ")), 1, 20);
    http_free(&reply);
    json_decref(json);
    lk_server_stop(server);
}

static void stop_strings_are_removed(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    json_t *json = request_json(server, 200, "POST", "/v1/completions",
                                "{\"prompt\": \"abc\", \"max_tokens\": 30, \"temperature\": 0}");
    const char *whole = string_at(json, "choices", "text");
    assert_true(strlen(whole) > 4);
    /* Use two ASCII characters from the middle as the stop string. */
    size_t at = strlen(whole) / 2;
    while (at > 1 && ((unsigned char)whole[at] >= 128 || (unsigned char)whole[at - 1] >= 128)) at--;
    char stop[3] = {whole[at - 1], whole[at], 0};
    json_t *body = json_pack("{s:s, s:i, s:i, s:[s]}", "prompt", "abc", "max_tokens", 30,
                             "temperature", 0, "stop", stop);
    char *text = json_dumps(body, 0);
    json_t *cut = request_json(server, 200, "POST", "/v1/completions", text);
    size_t first = (size_t)(strstr(whole, stop) - whole);
    assert_int_equal(strlen(string_at(cut, "choices", "text")), first);
    assert_memory_equal(string_at(cut, "choices", "text"), whole, first);
    assert_string_equal(string_at(cut, "choices", "finish_reason"), "stop");
    free(text);
    json_decref(body);
    json_decref(cut);
    json_decref(json);
    lk_server_stop(server);
}

static void json_schema_constrains_answer(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    /* A random model produces any text, so the schema must bound the answer. */
    json_t *json = request_json(
        server, 200, "POST", "/v1/chat/completions",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"max_tokens\": 200, \"seed\": "
        "5, \"response_format\": {\"type\": \"json_schema\", "
        "\"json_schema\": {\"name\": \"a\", \"schema\": {\"type\": \"object\", \"properties\": "
        "{\"kind\": {\"enum\": [\"cat\", \"dog\"]}, \"good\": {\"type\": \"boolean\"}, "
        "\"name\": {\"type\": \"string\", \"maxLength\": 4}}, \"required\": [\"kind\", \"good\", "
        "\"name\"], \"additionalProperties\": false}}}}");
    const json_t *message =
        json_object_get(json_array_get(json_object_get(json, "choices"), 0), "message");
    json_t *said = json_loads(json_string_value(json_object_get(message, "content")), 0, NULL);
    assert_true(json_is_object(said) && json_object_size(said) == 3);
    const char *kind = json_string_value(json_object_get(said, "kind"));
    assert_true(strcmp(kind, "cat") == 0 || strcmp(kind, "dog") == 0);
    assert_true(json_is_boolean(json_object_get(said, "good")));
    json_decref(said);
    json_decref(json);
    lk_server_stop(server);
}

/* Two alternatives that start alike and contain each other: a parser that keeps a stack for every
 * alternative has twice as many with every level. */
static void ambiguous_schema_costs_little(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    double start = lk_process_cpu_seconds();
    json_decref(request_json(
        server, 200, "POST", "/v1/completions",
        "{\"prompt\": \"x\", \"max_tokens\": 100, \"json_schema\": {\"$ref\": \"#/$defs/s\", "
        "\"$defs\": {\"s\": {\"anyOf\": [{\"type\": \"null\"}, "
        "{\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#/$defs/s\"}}, "
        "\"required\": [\"a\"], \"additionalProperties\": false},"
        "{\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#/$defs/s\"}, \"b\": "
        "{\"type\": \"null\"}}, \"required\": [\"a\", \"b\"], \"additionalProperties\": false}"
        "]}}}}"));
    assert_true(lk_process_cpu_seconds() - start < 5);
    lk_server_stop(server);
}

static void grammar_constrains_answer(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    json_t *json = request_json(server, 200, "POST", "/v1/completions",
                                "{\"prompt\": \"x\", \"grammar\": \"root ::= \\\"ab\\\" "
                                "[cd]{2} \\\"!\\\"\"}");
    const char *text = json_string_value(
        json_object_get(json_array_get(json_object_get(json, "choices"), 0), "text"));
    assert_int_equal(strlen(text), 5);
    assert_int_equal(strspn(text, "ab"), 2);
    assert_int_equal(strspn(text + 2, "cd"), 2);
    json_decref(json);
    expect_error(server, 400, "/v1/completions", "{\"prompt\": \"x\", \"grammar\": \"root ::= [\"}",
                 "invalid_value");
    expect_error(server, 400, "/v1/completions",
                 "{\"prompt\": \"x\", \"grammar\": \"root ::= \\\"a\\\"\", \"json_schema\": "
                 "{\"type\": \"null\"}}",
                 "invalid_value");
    lk_server_stop(server);
}

/* Complete a prompt with a large bias on every token that ends an answer. */
static json_t *complete_with_eos_bias(const struct lk_server *server, bool ignore) {
    json_t *bias = json_object();
    for (int i = 0, n = lk_model_get_info(model).n_vocab; i < n; i++) {
        char key[20];
        snprintf(key, sizeof key, "%d", i);
        if (lk_token_ends(model, i)) json_object_set_new(bias, key, json_integer(100));
    }
    assert_true(json_object_size(bias) > 0);
    json_t *body = json_pack("{s:s, s:i, s:o, s:b}", "prompt", "a b", "max_tokens", 7, "logit_bias",
                             bias, "ignore_eos", ignore);
    char *text = json_dumps(body, 0);
    json_t *json = request_json(server, 200, "POST", "/v1/completions", text);
    free(text);
    json_decref(body);
    return json;
}

static void logit_bias_and_ignore_eos(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    json_t *json =
               request_json(server, 200, "POST", "/v1/completions",
                            "{\"prompt\": \"a b\", \"max_tokens\": 3, \"logit_bias\": [[40, 100]], "
                            "\"logprobs\": 0}"),
           *tokens;
    const char *text = lk_token_text(model, 40, &(size_t){0});
    tokens = json_object_get(
        json_object_get(json_array_get(json_object_get(json, "choices"), 0), "logprobs"), "tokens");
    assert_int_equal(json_array_size(tokens), 3);
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(json_string_value(json_array_get(tokens, i)), text);
    json_decref(json);
    for (int ignore = 0; ignore < 2; ignore++) {
        json = complete_with_eos_bias(server, ignore);
        assert_string_equal(
            json_string_value(json_object_get(json_array_get(json_object_get(json, "choices"), 0),
                                              "finish_reason")),
            ignore ? "length" : "stop");
        assert_int_equal(int_at(json, "usage", "completion_tokens"), ignore ? 7 : 0);
        json_decref(json);
    }
    lk_server_stop(server);
}

/* ---- reuse ---- */

/* A chat with a system prompt of 60 words and a question of n words. Returns the reply. */
static json_t *ask_about_document(const struct lk_server *server, const char *word, int n) {
    char document[800] = "", question[2000] = "";
    for (int i = 0; i < 60; i++) snprintf(document + strlen(document), 20, "the word %d. ", i);
    for (int i = 0; i < n; i++) snprintf(question + strlen(question), 20, "%s %d? ", word, i);
    json_t *body =
        json_pack("{s:[{s:s,s:s}, {s:s,s:s}], s:i, s:i}", "messages", "role", "system", "content",
                  document, "role", "user", "content", question, "max_tokens", 2, "temperature", 0);
    char *text = json_dumps(body, 0);
    json_t *reply = request_json(server, 200, "POST", "/v1/chat/completions", text);
    free(text);
    json_decref(body);
    return reply;
}

/* Another question about the same document: only the question is prefilled, although the recipe
 * cannot be cut back that far. */
static void chat_goes_back_to_its_question(void **state) {
    struct lk_server_opts opts = options();
    opts.n_ctx = 2048;
    for (int with = 0; with < 2; with++) {
        opts.n_checkpoint = with ? 4 : 0;
        struct lk_server *server = serve_start(&opts);
        json_t *tiny = ask_about_document(server, "what", 1),
               *first = ask_about_document(server, "what", 60),
               *second = ask_about_document(server, "where", 60);
        json_int_t n = int_at(second, "usage", "prompt_tokens"),
                   n_question = n - int_at(tiny, "usage", "prompt_tokens"),
                   n_evaluated = int_at(second, "timings", "prompt_n");
        assert_true(n_question > 140); /* longer than the window */
        if (with && (n_evaluated < n_question || n_evaluated > n_question + 40))
            fail_msg("%d tokens were evaluated, the question has %d", (int)n_evaluated,
                     (int)n_question);
        if (!with) assert_int_equal(n_evaluated, n);
        json_decref(tiny), json_decref(first), json_decref(second);
        lk_server_stop(server);
    }
}

static void chat_reuses_session(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    json_t *first =
        request_json(server, 200, "POST", "/v1/chat/completions",
                     "{\"messages\": [{\"role\": \"user\", \"content\": \"hello there\"}], "
                     "\"max_tokens\": 10, \"temperature\": 0}");
    assert_int_equal(
        int_at(json_object_get(first, "usage"), "prompt_tokens_details", "cached_tokens"), 0);
    json_t *message =
        json_object_get(json_array_get(json_object_get(first, "choices"), 0), "message");
    json_t *body = json_pack("{s:[{s:s,s:s}, O, {s:s,s:s}], s:i, s:i}", "messages", "role", "user",
                             "content", "hello there", message, "role", "user", "content",
                             "and then", "max_tokens", 5, "temperature", 0);
    char *text = json_dumps(body, 0);
    json_t *second = request_json(server, 200, "POST", "/v1/chat/completions", text);
    json_int_t reused =
        int_at(json_object_get(second, "usage"), "prompt_tokens_details", "cached_tokens");
    json_int_t before = int_at(first, "usage", "prompt_tokens");
    if (reused < before) fail_msg("%d of %d prompt tokens were reused", (int)reused, (int)before);
    json_t *slots = request_json(server, 200, "GET", "/slots", "");
    assert_int_equal(json_array_size(json_object_get(slots, "slots")), 1);
    json_decref(slots);
    free(text);
    json_decref(body);
    json_decref(second);
    json_decref(first);
    lk_server_stop(server);
}

/* There is memory for about two sessions: the least recently used one is evicted. */
static void idle_sessions_are_evicted(void **state) {
    struct lk_server_opts opts = options();
    lk_plan plan;
    assert_int_equal(lk_plan_make(model, recipes[0], &(lk_session_opts){.n_ctx = 200}, &plan, NULL),
                     LK_OK);
    opts.max_bytes = 3 * (plan.peak_bytes - plan.weight_bytes);
    struct lk_server *server = serve_start(&opts);
    for (int i = 0; i < 12; i++) {
        char body[200];
        snprintf(body, sizeof body, "{\"prompt\": \"%c%c%c%c%c%c%c%c prompt\", \"max_tokens\": 4}",
                 'a' + i, 'b' + i, 'c' + i, 'd' + i, 'a' + i, 'a' + i, 'a' + i, 'a' + i);
        json_decref(request_json(server, 200, "POST", "/v1/completions", body));
        json_t *slots = request_json(server, 200, "GET", "/slots", "");
        assert_true(json_integer_value(json_object_get(slots, "bytes")) <=
                    json_integer_value(json_object_get(slots, "max_bytes")));
        json_decref(slots);
    }
    lk_server_stop(server);
}

/* ---- other endpoints ---- */

static void info_endpoints(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    json_t *json = request_json(server, 200, "GET", "/v1/models", "");
    assert_string_equal(string_at(json, "data", "id"), "tiny");
    json_decref(json);
    json_decref(request_json(server, 200, "GET", "/v1/models/tiny", ""));
    json_decref(request_json(server, 200, "GET", "/v1/models/other", ""));
    json = request_json(server, 200, "POST", "/tokenize", "{\"content\": \"hello\"}");
    json_t *body = json_pack("{s:O}", "tokens", json_object_get(json, "tokens"));
    char *text = json_dumps(body, 0);
    json_t *back = request_json(server, 200, "POST", "/detokenize", text);
    assert_string_equal(json_string_value(json_object_get(back, "content")), "hello");
    free(text);
    json_decref(back);
    json_decref(body);
    json_decref(json);
    json_decref(request_json(server, 200, "POST", "/v1/completions",
                             "{\"prompt\": \"x\", \"max_tokens\": 3, \"kv\": \"f16\"}"));
    struct http_reply reply = http_request(lk_server_port(server), "GET", "/metrics", "", "");
    assert_non_null(strstr(reply.body, "lowkey_answer_tokens_total 3\n"));
    http_free(&reply);
    lk_server_stop(server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completion_matches_library),
        cmocka_unit_test(stream_matches_whole_response),
        cmocka_unit_test(stop_ends_streams_with_errors),
        cmocka_unit_test(multiple_choices_and_logprobs),
        cmocka_unit_test(choices_share_one_prefill),
        cmocka_unit_test(stop_strings_are_removed),
        cmocka_unit_test(json_schema_constrains_answer),
        cmocka_unit_test(ambiguous_schema_costs_little),
        cmocka_unit_test(grammar_constrains_answer),
        cmocka_unit_test(logit_bias_and_ignore_eos),
        cmocka_unit_test(chat_goes_back_to_its_question),
        cmocka_unit_test(chat_reuses_session),
        cmocka_unit_test(idle_sessions_are_evicted),
        cmocka_unit_test(info_endpoints),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
