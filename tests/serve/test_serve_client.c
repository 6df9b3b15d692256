/* The API as clients see it: queue, access from web pages, seeds, logprobs, errors at start. */
#define _DEFAULT_SOURCE /* usleep */
#include "serve/openai_chat.h"
#include "serve/scheduler.h"
#include "support_http.h"
#include "support_model.h"
#include "support_serve.h"
#include "test.h"

#include <time.h>
#include <unistd.h>

enum { LONG_PROMPT = 12000 }; /* tokens; its prefill takes a while */

static struct lk_server_opts options(void) {
    struct lk_server_opts o = serve_options();
    o.session_dir = NULL;
    return o;
}

/* ---- the queue ---- */

static void full_queue_gets_429(void **state) {
    struct lk_server_opts opts = options();
    opts.n_ctx = LONG_PROMPT + 100;
    opts.n_parallel = 1;
    opts.n_queue = 2;
    struct lk_server *server = serve_start(&opts);
    int reading = start_prefill(server, LONG_PROMPT),
        waiting = http_connect(lk_server_port(server));
    static const char two[] = "{\"prompt\": \"x\", \"n\": 2}";
    char text[300];
    snprintf(text, sizeof text,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(two), two);
    http_send(waiting, text, strlen(text));
    for (json_int_t n = 0; n < 2; usleep(1000)) {
        json_t *slots = request_json(server, 200, "GET", "/slots", "");
        n = json_integer_value(json_object_get(slots, "waiting"));
        json_decref(slots);
    }
    struct http_reply reply =
        http_request(lk_server_port(server), "POST", "/v1/completions", "", "{\"prompt\": \"x\"}");
    assert_int_equal(reply.status, 429);
    assert_non_null(strstr(reply.head, "Retry-After"));
    http_free(&reply);
    /* A request that can never fit gets no Retry-After. */
    reply = http_request(lk_server_port(server), "POST", "/v1/completions", "",
                         "{\"prompt\": \"x\", \"n\": 3}");
    assert_int_equal(reply.status, 400);
    assert_null(strstr(reply.head, "Retry-After"));
    http_free(&reply);
    close(reading), close(waiting);
    lk_server_stop(server);
}

/* With a queue time of 0 a job starts immediately or is refused. */
static void zero_queue_time_admits_immediate_jobs(void **state) {
    struct lk_server_opts opts = options();
    opts.n_parallel = 1;
    opts.queue_s = 0;
    struct lk_server *server = serve_start(&opts);
    for (int i = 0; i < 20; i++) json_decref(complete(server, i, ""));
    expect_error(server, 503, "/v1/completions", "{\"prompt\": \"x\", \"n\": 2}", "overloaded");
    json_decref(complete(server, 20, ""));
    lk_server_stop(server);
}

/* A closed scheduler must not use CPU time. */
static void closed_scheduler_is_idle(void **state) {
    struct lk_server_opts opts = options();
    static struct lk_metrics metrics;
    struct lk_scheduler *scheduler = NULL;
    struct timespec before, after;
    assert_int_equal(lk_scheduler_start(&scheduler, &opts, &metrics, NULL), LK_OK);
    lk_scheduler_close(scheduler);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    usleep(300000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    lk_scheduler_stop(scheduler);
    assert_in_range(
        (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000, 0, 100);
}

/* ---- access ---- */

static int status_for_host(const struct lk_server *server, const char *host) {
    char text[300];
    int fd = http_connect(lk_server_port(server));
    snprintf(text, sizeof text, "GET /slots HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n",
             host);
    http_send(fd, text, strlen(text));
    struct http_reply reply = http_read(fd);
    int status = reply.status;
    http_free(&reply);
    close(fd);
    return status;
}

/* Without keys, names that another site may have pointed here (DNS rebinding) are rejected. */
static void foreign_hosts_are_rejected(void **state) {
    static const char *const good[] = {"localhost",        "LocalHost:80", "127.0.0.1:8080",
                                       "192.168.7.9:8080", "[::1]",        "[fe80::1]:8080"};
    static const char *const bad[] = {"evil.example",
                                      "evil.example:8080",
                                      "localhost.evil.example",
                                      "127.0.0.1.evil.example",
                                      "1.2.3.4.5",
                                      "[evil.example]",
                                      "[::1",
                                      "[::1]evil",
                                      "[::1]:80x",
                                      "localhost:evil.example",
                                      "[",
                                      ":8080",
                                      ("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                                       "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                                       "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")};
    static const char *const keys[] = {"key"}, *const hosts[] = {"127.0.0.1", "0.0.0.0"};
    struct lk_server_opts opts = options();
    for (int i = 0; i < 2; i++) {
        opts.host = hosts[i];
        struct lk_server *server = serve_start(&opts);
        for (size_t k = 0; k < sizeof good / sizeof good[0]; k++)
            if (status_for_host(server, good[k]) != 200)
                fail_msg("%s is rejected at %s", good[k], hosts[i]);
        for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++)
            if (status_for_host(server, bad[k]) != 403)
                fail_msg("%s is accepted at %s", bad[k], hosts[i]);
        lk_server_stop(server);
    }
    opts.key = keys;
    opts.n_key = 1;
    struct lk_server *server = serve_start(&opts);
    assert_int_equal(status_for_host(server, "evil.example"), 401);
    lk_server_stop(server);
}

static void expect_preflight(const struct lk_server *server, const char *headers,
                             const char *allowed) {
    char line[200];
    struct http_reply reply =
        http_request(lk_server_port(server), "OPTIONS", "/v1/chat/completions", headers, "");
    assert_int_equal(reply.status, 204);
    snprintf(line, sizeof line, "\r\nAccess-Control-Allow-Headers: %s\r\n", allowed);
    if (!strstr(reply.head, line)) fail_msg("%s: %s", headers, reply.head);
    assert_non_null(strstr(reply.head, "\r\nAccess-Control-Allow-Origin: https://app.example\r\n"));
    assert_non_null(
        strstr(reply.head, "\r\nAccess-Control-Expose-Headers: Retry-After, X-Lowkey-Ignored\r\n"));
    http_free(&reply);
}

/* Clients in a browser send custom headers. */
static void cors_allows_requested_headers(void **state) {
    static const char usual[] = "Authorization, Content-Type";
    struct lk_server_opts opts = options();
    opts.origin = "https://app.example";
    struct lk_server *server = serve_start(&opts);
    expect_preflight(server, "Origin: https://app.example\r\n", usual);
    expect_preflight(
        server, "Access-Control-Request-Headers: authorization,content-type,x-stainless-os\r\n",
        "authorization,content-type,x-stainless-os");
    expect_preflight(server, "Access-Control-Request-Headers: a\"b\r\n", usual);
    expect_preflight(server, "Access-Control-Request-Headers: x: y\r\n", usual);
    lk_server_stop(server);
}

/* The sampler accepts the grammar of a forced tool call, even if names look like grammar rules. */
static void forced_tool_call_has_valid_grammar(void **state) {
    static const char body[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tool_choice\": \"required\", "
        "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"a \\\"root ::= \", "
        "\"parameters\": {\"$defs\": {\"City\": {\"type\": \"string\"}}, \"type\": \"object\", "
        "\"properties\": {\"root ::= \": {\"$ref\": \"#/$defs/City\"}}}}}]}";
    struct lk_server_opts opts = options();
    struct lk_request request;
    struct lk_api_error error;
    lk_sampler *sampler = NULL;
    lk_err err = {0};
    if (!lk_openai_chat_parse(&request, &opts, body, strlen(body), &error))
        fail_msg("%s", error.msg);
    if (lk_sampler_new(&sampler, model, &request.sampling, &err))
        fail_msg("%s: %s", err.msg, request.grammar);
    lk_sampler_free(sampler);
    lk_request_free(&request);
}

/* ---- completions ---- */

static const char *text_of(const json_t *answer, size_t i) {
    return json_string_value(
        json_object_get(json_array_get(json_object_get(answer, "choices"), i), "text"));
}

/* Includes seeds that a sampler treats as "no seed", and their neighbors. */
static void seed_makes_answers_repeatable(void **state) {
    static const char *const seeds[] = {"-1", "4294967295", "4294967294", "9223372036854775807"};
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        char body[300];
        snprintf(
            body, sizeof body,
            "{\"prompt\": \"x\", \"n\": 3, \"max_tokens\": 20, \"temperature\": 2, \"top_k\": 0, "
            "\"min_p\": 0, \"frequency_penalty\": 2, \"cache_prompt\": false, \"seed\": %s}",
            seeds[i]);
        json_t *first = request_json(server, 200, "POST", "/v1/completions", body),
               *again = request_json(server, 200, "POST", "/v1/completions", body);
        expect_same_answer(first, again);
        assert_string_not_equal(text_of(first, 0), text_of(first, 1));
        json_decref(first), json_decref(again);
    }
    lk_server_stop(server);
}

static json_t *logprobs_of(const json_t *answer) {
    return json_object_get(json_array_get(json_object_get(answer, "choices"), 0), "logprobs");
}

/* Join the text of a stream. Returns the offsets of its tokens. */
static json_t *streamed_offsets(char *body, char *text, size_t cap) {
    json_t *all = json_array();
    size_t len = 0;
    char *rest = NULL;
    for (char *line = strtok_r(body, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_t *chunk = json_loads(line + strlen("data: "), 0, NULL);
        if (!chunk) continue;
        len += (size_t)snprintf(text + len, cap - len, "%s", text_of(chunk, 0));
        json_array_extend(all, json_object_get(logprobs_of(chunk), "text_offset"));
        json_decref(chunk);
    }
    return all;
}

/* The sampled token is always listed in top_logprobs. Offsets count characters, also in streams. */
static void completion_logprobs_and_offsets(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    static const char fields[] =
        "\"prompt\": \"x\", \"max_tokens\": 40, \"temperature\": 2, \"top_k\": 0, \"min_p\": 0, "
        "\"frequency_penalty\": 2, \"seed\": 3, \"cache_prompt\": false, \"logprobs\": 1";
    char body[400], text[4096] = "";
    snprintf(body, sizeof body, "{%s}", fields);
    json_t *whole = request_json(server, 200, "POST", "/v1/completions", body),
           *lists = logprobs_of(whole);
    json_t *tokens = json_object_get(lists, "tokens"),
           *tops = json_object_get(lists, "top_logprobs"),
           *offsets = json_object_get(lists, "text_offset");
    size_t n = json_array_size(tokens), n_other = 0, n_char = 0;
    assert_true(n > 0 && json_array_size(offsets) == n);
    for (size_t i = 0; i < n; i++) {
        const json_t *top = json_array_get(tops, i);
        assert_true(
            json_is_number(json_object_get(top, json_string_value(json_array_get(tokens, i)))));
        n_other += json_object_size(top) == 2;
    }
    assert_true(n_other > 0);
    for (const char *c = text_of(whole, 0); *c; c++) n_char += ((unsigned char)*c & 0xC0) != 0x80;
    assert_true(json_integer_value(json_array_get(offsets, n - 1)) <= (json_int_t)n_char);
    assert_true(strlen(text_of(whole, 0)) > n_char); /* contains multi-byte characters */
    snprintf(body, sizeof body, "{%s, \"stream\": true}", fields);
    struct http_reply reply =
        http_request(lk_server_port(server), "POST", "/v1/completions", "", body);
    json_t *streamed = streamed_offsets(reply.body, text, sizeof text);
    assert_string_equal(text, text_of(whole, 0));
    assert_true(json_equal(streamed, offsets));
    http_free(&reply);
    json_decref(streamed), json_decref(whole);
    lk_server_stop(server);
}

/* A prompt given as tokens is echoed as their text. */
static void token_prompts_are_echoed(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    json_t *tokens =
        request_json(server, 200, "POST", "/tokenize", "{\"content\": \"hello world\"}");
    json_t *body = json_pack("{s:[O, s], s:i, s:b}", "prompt", json_object_get(tokens, "tokens"),
                             "bye", "max_tokens", 2, "echo", 1);
    char *text = json_dumps(body, 0);
    json_t *json = request_json(server, 200, "POST", "/v1/completions", text);
    assert_memory_equal(text_of(json, 0), "hello world", 11);
    assert_memory_equal(text_of(json, 1), "bye", 3);
    free(text);
    json_decref(body), json_decref(json), json_decref(tokens);
    /* These tokens may have no text at all. */
    json_decref(request_json(server, 200, "POST", "/v1/completions",
                             "{\"prompt\": [5, 200, 6, 255], \"max_tokens\": 1, \"echo\": true}"));
    lk_server_stop(server);
}

/* ---- start ---- */

static void expect_start_fails(const struct lk_server_opts *opts, const char *why) {
    struct lk_server *server = NULL;
    lk_err err = {0};
    assert_int_not_equal(lk_server_start(&server, opts, &err), LK_OK);
    assert_null(server);
    if (!strstr(err.msg, why)) fail_msg("%s: %s", why, err.msg);
}

/* A recipe that would fail every request is reported at start. */
static void recipes_are_checked_at_start(void **state) {
    static const char *const lacking[] = {"best-1.9",
                                          "sink 4: f16; body: none; window 16: f16; absorb less"};
    struct lk_server_opts opts = options();
    for (size_t i = 0; i < sizeof lacking / sizeof lacking[0]; i++) {
        lk_recipe *recipe = NULL;
        assert_int_equal(lk_recipe_parse(&recipe, lacking[i], NULL), LK_OK);
        const lk_recipe *const both[] = {recipes[0], recipe};
        opts.recipe = both;
        expect_start_fails(&opts, "sidecar");
        lk_recipe_free(recipe);
    }
    opts = options();
    opts.model = open_preset("gpt2", 0, 1);
    expect_start_fails(&opts, "learned positions");
    lk_model_free(opts.model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_queue_gets_429),
        cmocka_unit_test(zero_queue_time_admits_immediate_jobs),
        cmocka_unit_test(closed_scheduler_is_idle),
        cmocka_unit_test(foreign_hosts_are_rejected),
        cmocka_unit_test(cors_allows_requested_headers),
        cmocka_unit_test(forced_tool_call_has_valid_grammar),
        cmocka_unit_test(seed_makes_answers_repeatable),
        cmocka_unit_test(completion_logprobs_and_offsets),
        cmocka_unit_test(token_prompts_are_echoed),
        cmocka_unit_test(recipes_are_checked_at_start),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
