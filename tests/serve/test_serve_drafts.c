/* A server that drafts: several answers at a time are those of a server that does not. */
#include "support_http.h"
#include "support_serve.h"
#include "test.h"

static struct lk_server *start(bool drafts, uint64_t max_bytes) {
    struct lk_server_opts o = serve_options();
    o.session_dir = NULL;
    o.drafts = drafts;
    if (max_bytes) o.max_bytes = max_bytes;
    return serve_start(&o);
}

/* Options of the requests, which run at the same time. */
static const char *const options[] = {
    "\"temperature\": 0, \"max_tokens\": 200",
    "\"temperature\": 0, \"max_tokens\": 150, \"kv\": \"f16\"",
    "\"temperature\": 2, \"top_k\": 2, \"repeat_penalty\": 1.5, \"seed\": 5, "
    "\"max_tokens\": 120, \"logprobs\": 2",
    "\"temperature\": 0, \"max_tokens\": 1",
    "\"temperature\": 0, \"max_tokens\": 2, \"kv\": \"f16\"",
    "\"temperature\": 2, \"top_k\": 3, \"repeat_penalty\": 2, \"seed\": 6, \"n\": 3, "
    "\"max_tokens\": 90",
    "\"temperature\": 0, \"max_tokens\": 180, \"stop\": [\"a\", \"e\"]",
    "\"temperature\": 2, \"repeat_penalty\": 1.2, \"seed\": 7, \"max_tokens\": 400, "
    "\"ignore_eos\": true",
};

enum { N = sizeof options / sizeof *options };

static const char words[] = "one two three one two three one two three four five one two";

static void ask_all(const struct lk_server *server, json_t *reply[N]) {
    int fd[N];
    for (int i = 0; i < N; i++) {
        char body[512], request[1024];
        snprintf(body, sizeof body, "{\"prompt\": \"%d %s\", %s}", i, words, options[i]);
        snprintf(request, sizeof request,
                 "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                 "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                 strlen(body), body);
        fd[i] = http_connect(lk_server_port(server));
        assert_true(fd[i] >= 0);
        http_send(fd[i], request, strlen(request));
    }
    for (int i = 0; i < N; i++) {
        struct http_reply r = http_read(fd[i]);
        if (r.status != 200) fail_msg("%s: %d %s", options[i], r.status, r.body);
        reply[i] = json_loads(r.body, 0, NULL);
        assert_non_null(reply[i]);
        http_free(&r);
    }
}

/* The texts, how they ended, and their numbers of tokens. */
static void expect_same_texts(const json_t *a, const json_t *b, const char *what) {
    const json_t *x = json_object_get(a, "choices"), *y = json_object_get(b, "choices");
    assert_int_equal(json_array_size(x), json_array_size(y));
    for (size_t i = 0; i < json_array_size(x); i++) {
        const json_t *one = json_array_get(x, i), *other = json_array_get(y, i);
        const char *p = json_string_value(json_object_get(one, "text")),
                   *q = json_string_value(json_object_get(other, "text"));
        if (strcmp(p, q) != 0) fail_msg("%s:\n%s\nwith drafts:\n%s", what, p, q);
        assert_true(json_equal(json_object_get(one, "finish_reason"),
                               json_object_get(other, "finish_reason")));
        const json_t *tokens = json_object_get(json_object_get(one, "logprobs"), "tokens");
        assert_true(!tokens == !json_object_get(json_object_get(other, "logprobs"), "tokens"));
        if (tokens)
            assert_true(
                json_equal(tokens, json_object_get(json_object_get(other, "logprobs"), "tokens")));
    }
    assert_int_equal(int_at(a, "usage", "completion_tokens"),
                     int_at(b, "usage", "completion_tokens"));
}

static void test_same_answers(void **state) {
    json_t *plain[N], *drafted[N];
    struct lk_server *a = start(false, 0), *b = start(true, 0);
    for (int round = 0; round < 3; round++) { /* the later ones find sessions in memory */
        ask_all(a, plain);
        ask_all(b, drafted);
        json_int_t n_drafted = 0;
        for (int i = 0; i < N; i++) {
            expect_same_texts(plain[i], drafted[i], options[i]);
            assert_null(json_object_get(json_object_get(plain[i], "timings"), "draft_n"));
            json_t *n = json_object_get(json_object_get(drafted[i], "timings"), "draft_n");
            if (n) {
                n_drafted += json_integer_value(n);
                assert_true(int_at(drafted[i], "timings", "draft_n_accepted") <=
                            json_integer_value(n));
            }
            json_decref(plain[i]);
            json_decref(drafted[i]);
        }
        assert_true(n_drafted > 0);
    }
    assert_int_equal(metric(a, "draft_tokens_total"), 0);
    uint64_t n_drafted = metric(b, "draft_tokens_total"),
             n_accepted = metric(b, "draft_accepted_total");
    print_message("%d drafts, %d right; %d steps instead of %d\n", (int)n_drafted, (int)n_accepted,
                  (int)metric(b, "decode_steps_total"), (int)metric(a, "decode_steps_total"));
    /* How many are tried depends on measured times: a loaded machine has fewer wrong ones. */
    assert_true(n_accepted > 100 && n_accepted < n_drafted);
    assert_int_equal(metric(a, "answer_tokens_total"), metric(b, "answer_tokens_total"));
    lk_server_stop(a);
    lk_server_stop(b);
}

/* The server's counters are the sums of what replies say. */
static void test_counters(void **state) {
    static const struct {
        const char *object, *field, *metric;
    } row[] = {{"usage", "prompt_tokens", "prompt_tokens_total"},
               {"timings", "cache_n", "reused_tokens_total"},
               {"usage", "completion_tokens", "answer_tokens_total"},
               {"timings", "draft_n", "draft_tokens_total"},
               {"timings", "draft_n_accepted", "draft_accepted_total"}};
    enum { N_ROW = sizeof row / sizeof *row };
    json_int_t sum[N_ROW] = {0};
    struct lk_server *server = start(true, 0);
    char body[256];
    snprintf(body, sizeof body, "{\"prompt\": \"%s\", \"temperature\": 0, \"max_tokens\": 30}",
             words);
    for (int i = 0; i < 2; i++) {
        json_t *reply = request_json(server, 200, "POST", "/v1/completions", body);
        for (int k = 0; k < N_ROW; k++) sum[k] += int_at(reply, row[k].object, row[k].field);
        assert_true(int_at(reply, "cache", "f16_bytes") > 0);
        json_decref(reply);
    }
    for (int k = 0; k < N_ROW; k++) {
        assert_true(sum[k] > 0);
        assert_int_equal(metric(server, row[k].metric), sum[k]);
    }
    lk_server_stop(server);
}

/* The session holds what it would hold without drafts, so the next turn of a chat finds it. */
static void test_chat_goes_on(void **state) {
    struct lk_server *a = start(false, 0), *b = start(true, 0);
    json_t *x = NULL, *y = NULL;
    for (int turn = 0; turn < 3; turn++) {
        json_t *p = chat(a, words, x, "two three one two three one", "{}"),
               *q = chat(b, words, y, "two three one two three one", "{}");
        assert_string_equal(
            json_string_value(json_object_get(
                json_object_get(json_array_get(json_object_get(p, "choices"), 0), "message"),
                "content")),
            json_string_value(json_object_get(
                json_object_get(json_array_get(json_object_get(q, "choices"), 0), "message"),
                "content")));
        assert_int_equal(reused_tokens(p), reused_tokens(q));
        json_decref(x), json_decref(y);
        x = p, y = q;
    }
    assert_true(reused_tokens(x) > 0);
    json_decref(x), json_decref(y);
    lk_server_stop(a);
    lk_server_stop(b);
}

/* A stream has the whole text, however slowly it is read. */
static void test_stream(void **state) {
    struct lk_server *server = start(true, 0);
    char body[512], text[4096];
    size_t len = 0;
    snprintf(body, sizeof body, "{\"prompt\": \"%s\", %s}", words, options[0]);
    json_t *whole = request_json(server, 200, "POST", "/v1/completions", body);
    snprintf(body, sizeof body, "{\"prompt\": \"%s\", \"stream\": true, %s}", words, options[0]);
    struct http_reply r = http_request(lk_server_port(server), "POST", "/v1/completions",
                                       "Content-Type: application/json\r\n", body);
    assert_int_equal(r.status, 200);
    char *rest = NULL;
    text[0] = 0;
    for (char *line = strtok_r(r.body, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_t *event = json_loads(line + 6, 0, NULL);
        const char *piece = json_string_value(
            json_object_get(json_array_get(json_object_get(event, "choices"), 0), "text"));
        if (piece) len += (size_t)snprintf(text + len, sizeof text - len, "%s", piece);
        json_decref(event);
    }
    assert_string_equal(text, json_string_value(json_object_get(
                                  json_array_get(json_object_get(whole, "choices"), 0), "text")));
    http_free(&r);
    json_decref(whole);
    lk_server_stop(server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_answers),
        cmocka_unit_test(test_counters),
        cmocka_unit_test(test_chat_goes_on),
        cmocka_unit_test(test_stream),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
