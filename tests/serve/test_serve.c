/* The server over loopback, with a tiny model: what it answers, what it refuses, and what it outlives. */
#include "support_http.h"
#include "support_serve.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* A server that stores no sessions. */
static struct lk_serve_opts options(void) {
    struct lk_serve_opts o = serve_options();
    o.n_ctx = 256;
    o.session_dir = NULL;
    return o;
}

static void pause_ms(long ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static const char *text_at(const json_t *json, const char *list, const char *field) {
    return json_string_value(
        json_object_get(json_array_get(json_object_get(json, list), 0), field));
}

/* ---- answers ---- */

/* What the library makes of a prompt, greedily. */
static void expected_text(const char *prompt, size_t n, char *out, size_t cap) {
    lk_session *session;
    lk_sampler *sampler;
    lk_sampler_opts greedy = lk_sampler_defaults();
    lk_session_opts opts = {.n_ctx = 256};
    int32_t *tok, next;
    size_t n_tok, len = 0;
    greedy.temperature = 0;
    assert_int_equal(lk_tokenize(model, prompt, strlen(prompt), true, &tok, &n_tok, NULL), LK_OK);
    assert_int_equal(lk_session_new(&session, model, recipes[0], &opts, NULL), LK_OK);
    assert_int_equal(lk_sampler_new(&sampler, model, &greedy, NULL), LK_OK);
    assert_int_equal(lk_session_sync(session, tok, n_tok, NULL, NULL), LK_OK);
    out[0] = 0;
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(lk_sampler_next(sampler, session, &next, NULL), LK_OK);
        if (lk_token_ends(model, next)) break;
        len += lk_token_text(model, next, out + len, cap - len);
        assert_int_equal(lk_session_eval(session, &next, 1, false, NULL), LK_OK);
    }
    lk_sampler_free(sampler);
    lk_session_free(session);
    lk_tokens_free(tok);
}

static void completes_as_the_library_does(void **state) {
    (void)state;
    struct lk_serve_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    char want[1024];
    expected_text("hello world", 12, want, sizeof want);
    json_t *json =
        ask_json(server, 200, "POST", "/v1/completions",
                 "{\"prompt\": \"hello world\", \"max_tokens\": 12, \"temperature\": 0}");
    /* Bytes that are no character come as U+FFFD; the beginning shows that it is the same text. */
    const char *got = text_at(json, "choices", "text");
    size_t same = 0;
    while (want[same] && (unsigned char)want[same] < 128) same++;
    assert_memory_equal(got, want, same);
    assert_string_equal(json_string_value(json_object_get(json, "object")), "text_completion");
    assert_true(number_at(json, "usage", "completion_tokens") <= 12 &&
                number_at(json, "usage", "completion_tokens") > 0);
    assert_int_equal(number_at(json, "usage", "total_tokens"),
                     number_at(json, "usage", "prompt_tokens") +
                         number_at(json, "usage", "completion_tokens"));
    assert_true(number_at(json, "cache", "cache_bytes") > 0);
    json_decref(json);
    lk_server_stop(server);
}

/* Put a stream's deltas together; checks the form of each event. Returns the number of events. */
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

static void streams_the_same_text(void **state) {
    (void)state;
    struct lk_serve_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    char text[4096];
    json_t *whole = ask_json(server, 200, "POST", "/v1/completions",
                             "{\"prompt\": \"one two\", \"max_tokens\": 20, \"temperature\": 0}");
    struct http_reply reply = http_ask(
        lk_server_port(server), "POST", "/v1/completions", "",
        "{\"prompt\": \"one two\", \"max_tokens\": 20, \"temperature\": 0, \"stream\": true}");
    assert_int_equal(reply.status, 200);
    assert_non_null(strstr(reply.head, "text/event-stream"));
    assert_true(join_stream(reply.body, text, sizeof text, "text_completion") > 1);
    assert_string_equal(text, text_at(whole, "choices", "text"));
    http_free(&reply);
    json_decref(whole);

    reply = http_ask(lk_server_port(server), "POST", "/v1/chat/completions", "",
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

static void several_answers_and_logarithms(void **state) {
    (void)state;
    struct lk_serve_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    json_t *json = ask_json(server, 200, "POST", "/v1/completions",
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
    json = ask_json(server, 200, "POST", "/v1/chat/completions",
                    "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", "
                    "\"text\": \"x\"}]}], \"max_tokens\": 3, \"logprobs\": true, \"top_logprobs\": "
                    "2, \"temperature\": 0}");
    const json_t *content = json_object_get(
        json_object_get(json_array_get(json_object_get(json, "choices"), 0), "logprobs"),
        "content");
    json_array_foreach(content, i, choice) {
        const json_t *top = json_object_get(choice, "top_logprobs");
        assert_int_equal(json_array_size(top), 2);
        /* Greedy: what was chosen is the most probable. */
        assert_true(json_real_value(json_object_get(choice, "logprob")) ==
                    json_real_value(json_object_get(json_array_get(top, 0), "logprob")));
    }
    json_decref(json);
    lk_server_stop(server);
}

/* Answers to the same prompt begin with copies of one cache: greedily they are the same. */
static void copies_give_the_same_answer(void **state) {
    (void)state;
    struct lk_serve_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    json_t *json = ask_json(server, 200, "POST", "/v1/completions",
                            "{\"prompt\": \"the quick brown fox jumps over the lazy dog\", \"n\": "
                            "4, \"max_tokens\": 16, \"temperature\": 0}");
    const json_t *choices = json_object_get(json, "choices");
    for (size_t i = 1; i < 4; i++)
        assert_string_equal(json_string_value(json_object_get(json_array_get(choices, i), "text")),
                            json_string_value(json_object_get(json_array_get(choices, 0), "text")));
    /* They were made together: a step for all, not one for each. */
    struct http_reply reply = http_ask(lk_server_port(server), "GET", "/metrics", "", "");
    const char *steps = strstr(reply.body, "\nlowkey_decode_steps_total ");
    assert_non_null(steps);
    assert_in_range(atoi(steps + strlen("\nlowkey_decode_steps_total ")), 1, 20);
    http_free(&reply);
    json_decref(json);
    lk_server_stop(server);
}

static void stop_strings_are_cut(void **state) {
    (void)state;
    struct lk_serve_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    json_t *json = ask_json(server, 200, "POST", "/v1/completions",
                            "{\"prompt\": \"abc\", \"max_tokens\": 30, \"temperature\": 0}");
    const char *whole = text_at(json, "choices", "text");
    assert_true(strlen(whole) > 4);
    /* Two bytes from the middle as a stop string: of whole characters, so that they can be said in JSON. */
    size_t at = strlen(whole) / 2;
    while (at > 1 && ((unsigned char)whole[at] >= 128 || (unsigned char)whole[at - 1] >= 128)) at--;
    char stop[3] = {whole[at - 1], whole[at], 0};
    json_t *body = json_pack("{s:s, s:i, s:i, s:[s]}", "prompt", "abc", "max_tokens", 30,
                             "temperature", 0, "stop", stop);
    char *text = json_dumps(body, 0);
    json_t *cut = ask_json(server, 200, "POST", "/v1/completions", text);
    size_t first = (size_t)(strstr(whole, stop) - whole);
    assert_int_equal(strlen(text_at(cut, "choices", "text")), first);
    assert_memory_equal(text_at(cut, "choices", "text"), whole, first);
    assert_string_equal(text_at(cut, "choices", "finish_reason"), "stop");
    free(text);
    json_decref(body);
    json_decref(cut);
    json_decref(json);
    lk_server_stop(server);
}

static void schemas_hold(void **state) {
    (void)state;
    struct lk_serve_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    /* A random model says anything, so only what is bounded ends. */
    json_t *json = ask_json(
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

/* One of two objects that begin alike, and hold such objects: the ways to go on double with every level. */
static void schemas_that_double_end(void **state) {
    (void)state;
    struct lk_serve_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    refused(server, 400, "/v1/completions",
            "{\"prompt\": \"x\", \"json_schema\": {\"$ref\": \"#/$defs/s\", \"$defs\": {\"s\": "
            "{\"anyOf\": ["
            "{\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#/$defs/s\"}}, "
            "\"required\": [\"a\"], \"additionalProperties\": false},"
            "{\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#/$defs/s\"}, \"b\": "
            "{\"type\": \"null\"}}, \"required\": [\"a\", \"b\"], \"additionalProperties\": false}"
            "]}}}}",
            "invalid_value");
    json_decref(complete(server, 1, ""));
    lk_server_stop(server);
}

/* The answer to a prompt with every token that ends an answer made likely. */
static json_t *likely_to_end(const struct lk_server *server, bool ignore) {
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
    json_t *json = ask_json(server, 200, "POST", "/v1/completions", text);
    free(text);
    json_decref(body);
    return json;
}

static void biases_choose_tokens_and_ends(void **state) {
    (void)state;
    struct lk_serve_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    json_t *json = ask_json(server, 200, "POST", "/v1/completions",
                            "{\"prompt\": \"a b\", \"max_tokens\": 3, \"logit_bias\": [[40, 100]], "
                            "\"logprobs\": 0}"),
           *tokens;
    char text[64];
    lk_token_text(model, 40, text, sizeof text);
    tokens = json_object_get(
        json_object_get(json_array_get(json_object_get(json, "choices"), 0), "logprobs"), "tokens");
    assert_int_equal(json_array_size(tokens), 3);
    for (size_t i = 0; i < 3; i++)
        assert_string_equal(json_string_value(json_array_get(tokens, i)), text);
    json_decref(json);
    for (int ignore = 0; ignore < 2; ignore++) {
        json = likely_to_end(server, ignore);
        assert_string_equal(
            json_string_value(json_object_get(json_array_get(json_object_get(json, "choices"), 0),
                                              "finish_reason")),
            ignore ? "length" : "stop");
        assert_int_equal(number_at(json, "usage", "completion_tokens"), ignore ? 7 : 0);
        json_decref(json);
    }
    lk_server_stop(server);
}

/* ---- reuse ---- */

static void a_chat_goes_on_without_reading_again(void **state) {
    (void)state;
    struct lk_serve_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    json_t *first = ask_json(server, 200, "POST", "/v1/chat/completions",
                             "{\"messages\": [{\"role\": \"user\", \"content\": \"hello there\"}], "
                             "\"max_tokens\": 10, \"temperature\": 0}");
    assert_int_equal(
        number_at(json_object_get(first, "usage"), "prompt_tokens_details", "cached_tokens"), 0);
    json_t *message =
        json_object_get(json_array_get(json_object_get(first, "choices"), 0), "message");
    json_t *body = json_pack("{s:[{s:s,s:s}, O, {s:s,s:s}], s:i, s:i}", "messages", "role", "user",
                             "content", "hello there", message, "role", "user", "content",
                             "and then", "max_tokens", 5, "temperature", 0);
    char *text = json_dumps(body, 0);
    json_t *second = ask_json(server, 200, "POST", "/v1/chat/completions", text);
    json_int_t reused =
        number_at(json_object_get(second, "usage"), "prompt_tokens_details", "cached_tokens");
    json_int_t before = number_at(first, "usage", "prompt_tokens");
    if (reused < before) fail_msg("%d tokens reused of %d", (int)reused, (int)before);
    json_t *slots = ask_json(server, 200, "GET", "/slots", "");
    assert_int_equal(json_array_size(json_object_get(slots, "slots")), 1);
    json_decref(slots);
    free(text);
    json_decref(body);
    json_decref(second);
    json_decref(first);
    lk_server_stop(server);
}

/* Room for the caches of about two sessions: the one longest unused goes. */
static void idle_sessions_make_room(void **state) {
    (void)state;
    struct lk_serve_opts opts = options();
    lk_plan plan;
    assert_int_equal(lk_plan_make(model, recipes[0], 200, false, &plan, NULL), LK_OK);
    opts.max_bytes = 3 * (plan.peak_bytes - plan.weight_bytes);
    struct lk_server *server = serve_start(&opts);
    for (int i = 0; i < 12; i++) {
        char body[200];
        snprintf(body, sizeof body, "{\"prompt\": \"%c%c%c%c%c%c%c%c prompt\", \"max_tokens\": 4}",
                 'a' + i, 'b' + i, 'c' + i, 'd' + i, 'a' + i, 'a' + i, 'a' + i, 'a' + i);
        json_decref(ask_json(server, 200, "POST", "/v1/completions", body));
        json_t *slots = ask_json(server, 200, "GET", "/slots", "");
        assert_true(json_integer_value(json_object_get(slots, "bytes")) <=
                    json_integer_value(json_object_get(slots, "max_bytes")));
        json_decref(slots);
    }
    lk_server_stop(server);
}

/* ---- refusals ---- */

static void refuses_what_it_cannot_do(void **state) {
    (void)state;
    static const struct {
        int status;
        const char *path, *body, *code;
    } cases[] = {
        {400, "/v1/completions", "", "invalid_json"},
        {400, "/v1/completions", "[1, 2]", "invalid_json"},
        {400, "/v1/completions", "{\"prompt\": \"x\"", "invalid_json"},
        {400, "/v1/completions", "{\"prompt\": \"\\ud800\"}", "invalid_json"},
        {400, "/v1/completions", "{\"prompt\": \"\xff\"}", "invalid_json"},
        {400, "/v1/completions", "{\"prompt\": \"a\\u0000b\"}", "invalid_json"},
        {400, "/v1/completions", "{}", "missing_field"},
        {400, "/v1/completions", "{\"prompt\": 5}", "invalid_type"},
        {400, "/v1/completions", "{\"prompt\": \"\"}", "invalid_value"},
        {400, "/v1/completions", "{\"prompt\": [[]]}", "invalid_value"},
        {400, "/v1/completions", "{\"prompt\": [99999]}", "invalid_value"},
        {400, "/v1/completions", "{\"prompt\": [-1]}", "invalid_type"},
        {400, "/v1/completions", "{\"prompt\": [1, \"x\"]}", "invalid_type"},
        {400, "/v1/completions", "{\"prompt\": \"x\", \"max_tokens\": 0}", "invalid_value"},
        {400, "/v1/completions", "{\"prompt\": \"x\", \"max_tokens\": 1e300}", "invalid_value"},
        {400, "/v1/completions", "{\"prompt\": \"x\", \"max_tokens\": 99999999999999999999999}",
         "invalid_json"},
        {400, "/v1/completions", "{\"prompt\": \"x\", \"max_tokens\": 1.5}", "invalid_type"},
        {400, "/v1/completions", "{\"prompt\": \"x\", \"temperature\": -1}", "invalid_value"},
        {400, "/v1/completions", "{\"prompt\": \"x\", \"temperature\": \"hot\"}", "invalid_type"},
        {400, "/v1/completions", "{\"prompt\": \"x\", \"stream\": 1}", "invalid_type"},
        {400, "/v1/completions", "{\"prompt\": \"x\", \"stop\": [\"\"]}", "invalid_type"},
        {400, "/v1/completions", "{\"prompt\": \"x\", \"logit_bias\": {\"99999\": 5}}",
         "invalid_value"},
        {400, "/v1/completions", "{\"prompt\": \"x\", \"suffix\": \"y\"}", "unsupported"},
        {400, "/v1/completions", "{\"prompt\": \"x\", \"kv\": \"f32\"}", "invalid_value"},
        {400, "/v1/completions", "{\"prompt\": \"x\", \"echo\": true, \"logprobs\": 1}",
         "unsupported"},
        {404, "/v1/completions", "{\"prompt\": \"x\", \"model\": \"gpt\"}", "model_not_found"},
        {400, "/v1/chat/completions",
         "{\"messages\": [{\"role\": \"wizard\", \"content\": \"x\"}]}", "invalid_value"},
        {400, "/v1/chat/completions", "{\"messages\": [{\"role\": \"user\"}]}", "invalid_type"},
        {400, "/v1/chat/completions", "{\"messages\": [7]}", "invalid_type"},
        {400, "/v1/chat/completions",
         "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}",
         "unsupported"},
        {400, "/v1/chat/completions",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"top_logprobs\": 3}",
         "invalid_value"},
        {400, "/v1/chat/completions",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"stream_options\": "
         "{\"include_usage\": true}}",
         "invalid_value"},
        {400, "/v1/chat/completions",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"response_format\": "
         "{\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"type\": \"string\", "
         "\"pattern\": \"a\"}}}}",
         "unsupported_schema"},
        {404, "/v1/nothing", "{}", "not_found"},
        {404, "/../../etc/passwd", "", "not_found"},
        {404, "/%2e%2e/%2e%2e/etc/passwd", "", "not_found"},
        {404, "//slots/", "", "not_found"},
        {405, "/slots", "{}", "method_not_allowed"},
        {400, "/detokenize", "{\"tokens\": [1, 99999]}", "invalid_value"},
        {400, "/tokenize", "{\"content\": 4}", "invalid_type"},
    };
    struct lk_serve_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        refused(server, cases[i].status, cases[i].path, cases[i].body, cases[i].code);
    char *large = malloc(4000);
    memset(large, 'a', 3999);
    large[3999] = 0;
    json_t *body = json_pack("{s:s}", "prompt", large);
    char *text = json_dumps(body, 0);
    refused(server, 400, "/v1/completions", text, "context_length_exceeded");
    free(text);
    free(large);
    json_decref(body);
    lk_server_stop(server);
}

static void holds_its_limits(void **state) {
    (void)state;
    struct lk_serve_opts opts = options();
    opts.max_body = 1000;
    opts.max_bytes = 1 << 16;
    opts.n_queue = 2;
    struct lk_server *server = serve_start(&opts);
    char large[3000];
    memset(large, ' ', sizeof large);
    large[sizeof large - 1] = 0;
    refused(server, 413, "/v1/completions", large, "body_too_large");
    refused(server, 413, "/v1/completions", "{\"prompt\": \"x\"}", "cache_limit_exceeded");
    int fd = http_connect(lk_server_port(server)); /* who asks before sending need not send */
    static const char announced[] =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nExpect: "
        "100-continue\r\nContent-Length: 5000\r\n\r\n";
    http_send(fd, announced, strlen(announced));
    struct http_reply reply = http_read(fd);
    assert_int_equal(reply.status, 413);
    http_free(&reply);
    close(fd);
    lk_server_stop(server);
    opts.max_bytes = 1 << 30;
    server = serve_start(&opts);
    refused(server, 400, "/v1/completions", "{\"prompt\": \"x\", \"n\": 3}",
            "invalid_value"); /* it would never fit */
    lk_server_stop(server);
}

static void guards_its_door(void **state) {
    (void)state;
    static const char *const keys[] = {"first-key", "second"};
    struct lk_serve_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    int port = lk_server_port(server);
    static const struct {
        const char *headers;
        int status;
    } doors[] = {{"", 200}, {"Origin: http://evil.example\r\n", 403}, {"Origin: null\r\n", 403}};
    for (size_t i = 0; i < 3; i++) {
        struct http_reply reply = http_ask(port, "GET", "/slots", doors[i].headers, "");
        assert_int_equal(reply.status, doors[i].status);
        http_free(&reply);
    }
    int fd = http_connect(port);
    static const char rebound[] =
        "GET /slots HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    http_send(fd, rebound, strlen(rebound));
    struct http_reply reply = http_read(fd);
    assert_int_equal(reply.status, 403);
    http_free(&reply);
    close(fd);
    lk_server_stop(server);

    opts.key = keys;
    opts.n_key = 2;
    server = serve_start(&opts);
    static const struct {
        const char *path, *headers;
        int status;
    } tries[] = {{"/slots", "", 401},
                 {"/slots", "Authorization: Bearer first-key\r\n", 200},
                 {"/slots", "Authorization: Bearer second\r\n", 200},
                 {"/slots", "Authorization: Bearer first-ke\r\n", 401},
                 {"/slots", "Authorization: Bearer first-keyy\r\n", 401},
                 {"/slots", "Authorization: Bearer \r\n", 401},
                 {"/slots", "Authorization: Basic first-key\r\n", 401},
                 {"/nothing", "", 401},
                 {"/health", "", 200},
                 {"/", "", 200}};
    for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
        reply = http_ask(lk_server_port(server), "GET", tries[i].path, tries[i].headers, "");
        if (reply.status != tries[i].status)
            fail_msg("%s %s: %d", tries[i].path, tries[i].headers, reply.status);
        http_free(&reply);
    }
    lk_server_stop(server);
}

/* ---- bad clients ---- */

static bool all_idle(const struct lk_server *server) {
    json_t *json = ask_json(server, 200, "GET", "/slots", "");
    const json_t *slot;
    size_t i;
    bool idle = json_integer_value(json_object_get(json, "waiting")) == 0;
    json_array_foreach(json_object_get(json, "slots"), i, slot) idle =
        idle && strcmp(json_string_value(json_object_get(slot, "state")), "idle") == 0;
    json_decref(json);
    return idle;
}

/* What is shown may be a tenth of a second old, and a request may not have been read yet: idle is who stays so. */
static void expect_idle(const struct lk_server *server) {
    int calm = 0;
    for (int i = 0; i < 400 && calm < 8; i++) {
        calm = all_idle(server) ? calm + 1 : 0;
        pause_ms(50);
    }
    assert_int_equal(calm, 8);
}

static void begin_request(int fd, const char *body) {
    char text[2000];
    snprintf(text, sizeof text,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    http_send(fd, text, strlen(text));
}

static void clients_that_leave_end_their_work(void **state) {
    (void)state;
    struct lk_serve_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    static const char *const bodies[] = {
        "{\"prompt\": \"x\", \"n\": 16, \"max_tokens\": 200, \"stream\": true}",
        "{\"prompt\": \"x\", \"n\": 16, \"max_tokens\": 200}"};
    for (int i = 0; i < 6; i++) {
        int fd = http_connect(lk_server_port(server));
        begin_request(fd, bodies[i % 2]);
        pause_ms(i * 10);
        close(fd);
    }
    expect_idle(server);
    lk_server_stop(server);
}

/* Some do not read what they asked for, some stop in the middle of a request; others are served. */
static void slow_clients_hold_up_nobody(void **state) {
    (void)state;
    struct lk_serve_opts opts = options();
    opts.time_s = 2;
    struct lk_server *server = serve_start(&opts);
    int fd[8];
    for (int i = 0; i < 8; i++) {
        fd[i] = http_connect(lk_server_port(server));
        if (i < 6)
            begin_request(fd[i], "{\"prompt\": \"x\", \"max_tokens\": 200, \"stream\": true}");
        else
            http_send(fd[i], "POST /v1/completions HTTP/1.1\r\nContent-Le", 42);
    }
    json_decref(ask_json(server, 200, "POST", "/v1/completions",
                         "{\"prompt\": \"y\", \"max_tokens\": 20}"));
    expect_idle(server);
    for (int i = 0; i < 8; i++) close(fd[i]);
    lk_server_stop(server);
}

static void garbage_is_outlived(void **state) {
    (void)state;
    static const char *const texts[] = {
        "\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n{}",
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
        "99999999999999999999999\r\n\r\n{}",
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
        "chunked\r\n\r\nzz\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "GET /%00%ff%zz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        "\xff\xfe\xfd HTTP/1.1\r\n\r\n"};
    struct lk_serve_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        int fd = http_connect(lk_server_port(server));
        http_send(fd, texts[i], strlen(texts[i]));
        pause_ms(20);
        close(fd);
        json_decref(ask_json(server, 200, "GET", "/health", ""));
    }
    expect_idle(server);
    lk_server_stop(server);
}

/* A server that is ended in the middle of work tells its clients. */
static void *ask_long(void *port) {
    struct http_reply *reply = malloc(sizeof *reply);
    *reply = http_ask(*(int *)port, "POST", "/v1/completions", "",
                      "{\"prompt\": \"x\", \"n\": 16, \"max_tokens\": 250}");
    return reply;
}

static void ends_in_the_middle_of_work(void **state) {
    (void)state;
    struct lk_serve_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    int port = lk_server_port(server);
    pthread_t thread;
    void *result;
    assert_int_equal(pthread_create(&thread, NULL, ask_long, &port), 0);
    pause_ms(30);
    lk_server_stop(server);
    pthread_join(thread, &result);
    struct http_reply *reply = result;
    assert_true(reply->status == 503 || reply->status == 200 || reply->status == 0);
    http_free(reply);
    free(reply);
}

static void tells_what_it_is(void **state) {
    (void)state;
    struct lk_serve_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    json_t *json = ask_json(server, 200, "GET", "/v1/models", "");
    assert_string_equal(text_at(json, "data", "id"), "tiny");
    json_decref(json);
    json_decref(ask_json(server, 200, "GET", "/v1/models/tiny", ""));
    json_decref(ask_json(server, 404, "GET", "/v1/models/other", ""));
    json = ask_json(server, 200, "POST", "/tokenize", "{\"content\": \"hello\"}");
    json_t *body = json_pack("{s:O}", "tokens", json_object_get(json, "tokens"));
    char *text = json_dumps(body, 0);
    json_t *back = ask_json(server, 200, "POST", "/detokenize", text);
    assert_string_equal(json_string_value(json_object_get(back, "content")), "hello");
    free(text);
    json_decref(back);
    json_decref(body);
    json_decref(json);
    json_decref(ask_json(server, 200, "POST", "/v1/completions",
                         "{\"prompt\": \"x\", \"max_tokens\": 3, \"kv\": \"f16\"}"));
    struct http_reply reply = http_ask(lk_server_port(server), "GET", "/metrics", "", "");
    assert_non_null(strstr(reply.body, "lowkey_answer_tokens_total 3\n"));
    http_free(&reply);
    lk_server_stop(server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completes_as_the_library_does),
        cmocka_unit_test(streams_the_same_text),
        cmocka_unit_test(several_answers_and_logarithms),
        cmocka_unit_test(copies_give_the_same_answer),
        cmocka_unit_test(stop_strings_are_cut),
        cmocka_unit_test(schemas_hold),
        cmocka_unit_test(schemas_that_double_end),
        cmocka_unit_test(biases_choose_tokens_and_ends),
        cmocka_unit_test(a_chat_goes_on_without_reading_again),
        cmocka_unit_test(idle_sessions_make_room),
        cmocka_unit_test(refuses_what_it_cannot_do),
        cmocka_unit_test(holds_its_limits),
        cmocka_unit_test(guards_its_door),
        cmocka_unit_test(clients_that_leave_end_their_work),
        cmocka_unit_test(slow_clients_hold_up_nobody),
        cmocka_unit_test(garbage_is_outlived),
        cmocka_unit_test(ends_in_the_middle_of_work),
        cmocka_unit_test(tells_what_it_is),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
