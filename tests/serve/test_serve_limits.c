/* What the server rejects and survives: invalid requests, limits, access, misbehaving clients. */
#include "support_http.h"
#include "support_serve.h"
#include "test.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

/* Options of a server without a session directory. */
static struct lk_server_opts options(void) {
    struct lk_server_opts o = serve_options();
    o.n_ctx = 256;
    o.session_dir = NULL;
    return o;
}

static void sleep_ms(long ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* ---- errors ---- */

static void invalid_requests_are_rejected(void **state) {
    static const struct {
        int status;
        const char *path, *body, *code;
    } cases[] = {
        {400, "/v1/completions", "", "invalid_json"},
        {400, "/v1/completions", "[1, 2]", "invalid_json"},
        {400, "/v1/completions", "{\"prompt\": \"x\"", "invalid_json"},
        {400, "/v1/completions", "{\"prompt\": \"\\q\"}", "invalid_json"},
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
         "invalid_value"},
        {400, "/v1/completions", "{\"prompt\": \"x\", \"max_tokens\": 1.5}", "invalid_type"},
        {400, "/v1/completions", "{\"prompt\": \"x\", \"temperature\": -1}", "invalid_value"},
        {400, "/v1/completions", "{\"prompt\": \"x\", \"temperature\": \"hot\"}", "invalid_type"},
        {400, "/v1/completions", "{\"prompt\": \"x\", \"stream\": 1}", "invalid_type"},
        {400, "/v1/completions", "{\"prompt\": \"x\", \"stop\": [5]}", "invalid_type"},
        {400, "/v1/completions", "{\"prompt\": \"x\", \"logit_bias\": {\"99999\": 5}}",
         "invalid_value"},
        {501, "/v1/completions", "{\"prompt\": \"x\", \"suffix\": \"y\"}", "unsupported"},
        {400, "/v1/completions", "{\"prompt\": \"x\", \"kv\": \"f32\"}", "invalid_value"},
        {400, "/v1/completions",
         "{\"prompt\": \"x\", \"echo\": true, \"logprobs\": 1, \"stream\": true}", "unsupported"},
        {400, "/v1/completions", "{\"prompt\": \"x\", \"max_tokens\": -2}", "invalid_value"},
        {400, "/v1/completions", "{\"prompt\": \"x\", \"model\": 7}", "invalid_type"},
        {400, "/v1/chat/completions",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"suffix\": \"y\"}",
         "unsupported"},
        {400, "/v1/chat/completions",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"n_probs\": 2}",
         "unsupported"},
        {400, "/v1/chat/completions", "{\"messages\": [7]}", "invalid_type"},
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
         "\"pattern\": \"(?=a)\"}}}}",
         "unsupported_schema"},
        {404, "/v1/nothing", "{}", "not_found"},
        {404, "/../../etc/passwd", "", "not_found"},
        {404, "/%2e%2e/%2e%2e/etc/passwd", "", "not_found"},
        {405, "//slots/", "", "method_not_allowed"},
        {405, "/slots", "{}", "method_not_allowed"},
        {400, "/detokenize", "{\"tokens\": [1, 99999]}", "invalid_value"},
        {400, "/tokenize", "{\"content\": 4}", "invalid_type"},
    };
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        expect_error(server, cases[i].status, cases[i].path, cases[i].body, cases[i].code);
    char *large = malloc(4000);
    memset(large, 'a', 3999);
    large[3999] = 0;
    json_t *body = json_pack("{s:s}", "prompt", large);
    char *text = json_dumps(body, 0);
    expect_error(server, 400, "/v1/completions", text, "context_length_exceeded");
    free(text);
    free(large);
    json_decref(body);
    lk_server_stop(server);
}

static void limits_are_enforced(void **state) {
    struct lk_server_opts opts = options();
    opts.max_body = 1000;
    opts.max_bytes = 1 << 16;
    opts.n_queue = 2;
    struct lk_server *server = serve_start(&opts);
    char large[3000];
    memset(large, ' ', sizeof large);
    large[sizeof large - 1] = 0;
    expect_error(server, 413, "/v1/completions", large, "body_too_large");
    expect_error(server, 413, "/v1/completions", "{\"prompt\": \"x\"}", "cache_limit_exceeded");
    /* With "Expect: 100-continue" the body need not be sent. */
    int fd = http_connect(lk_server_port(server));
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
    expect_error(server, 400, "/v1/completions", "{\"prompt\": \"x\", \"n\": 3}",
                 "invalid_value"); /* more than the queue holds */
    lk_server_stop(server);
}

/* Otherwise the system would give requests to either of them at random. */
static void one_server_per_port(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts), *second = NULL;
    lk_err err = {0};
    opts.port = lk_server_port(server);
    assert_int_equal(lk_server_start(&second, &opts, &err), LK_E_IO);
    assert_non_null(strstr(err.msg, "is another server running there?"));
    lk_server_stop(server);
    assert_int_equal(lk_server_start(&second, &opts, &err), LK_OK); /* the port is free again */
    lk_server_stop(second);
}

static void keys_and_origins_are_checked(void **state) {
    static const char *const keys[] = {"first-key", "second"};
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    int port = lk_server_port(server);
    static const struct {
        const char *headers;
        int status;
    } origins[] = {{"", 200}, {"Origin: http://evil.example\r\n", 403}, {"Origin: null\r\n", 403}};
    for (size_t i = 0; i < 3; i++) {
        struct http_reply reply = http_request(port, "GET", "/slots", origins[i].headers, "");
        assert_int_equal(reply.status, origins[i].status);
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
        reply = http_request(lk_server_port(server), "GET", tries[i].path, tries[i].headers, "");
        if (reply.status != tries[i].status)
            fail_msg("%s %s: %d", tries[i].path, tries[i].headers, reply.status);
        http_free(&reply);
    }
    lk_server_stop(server);
}

/* ---- misbehaving clients ---- */

static bool slots_are_idle(const struct lk_server *server) {
    json_t *json = request_json(server, 200, "GET", "/slots", "");
    const json_t *slot;
    size_t i;
    bool idle = json_integer_value(json_object_get(json, "waiting")) == 0;
    json_array_foreach(json_object_get(json, "slots"), i, slot) idle =
        idle && strcmp(json_string_value(json_object_get(slot, "state")), "idle") == 0;
    json_decref(json);
    return idle;
}

/* Snapshots may be 0.1 s old, and a request may not have been received yet. So require that all
 * slots stay idle for a while. */
static void expect_slots_idle(const struct lk_server *server) {
    int n_idle = 0;
    for (int i = 0; i < 400 && n_idle < 8; i++) {
        n_idle = slots_are_idle(server) ? n_idle + 1 : 0;
        sleep_ms(50);
    }
    assert_int_equal(n_idle, 8);
}

static void send_completion(int fd, const char *body) {
    char text[2000];
    snprintf(text, sizeof text,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    http_send(fd, text, strlen(text));
}

static void disconnect_ends_jobs(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    static const char *const bodies[] = {
        "{\"prompt\": \"x\", \"n\": 16, \"max_tokens\": 200, \"stream\": true}",
        "{\"prompt\": \"x\", \"n\": 16, \"max_tokens\": 200}"};
    for (int i = 0; i < 6; i++) {
        int fd = http_connect(lk_server_port(server));
        send_completion(fd, bodies[i % 2]);
        sleep_ms(i * 10);
        close(fd);
    }
    expect_slots_idle(server);
    lk_server_stop(server);
}

/* Some clients do not read their response, some stop in the middle of the request. */
static void slow_clients_do_not_block_others(void **state) {
    struct lk_server_opts opts = options();
    opts.time_s = 2;
    struct lk_server *server = serve_start(&opts);
    int fd[8];
    for (int i = 0; i < 8; i++) {
        fd[i] = http_connect(lk_server_port(server));
        if (i < 6)
            send_completion(fd[i], "{\"prompt\": \"x\", \"max_tokens\": 200, \"stream\": true}");
        else
            http_send(fd[i], "POST /v1/completions HTTP/1.1\r\nContent-Le", 42);
    }
    json_decref(request_json(server, 200, "POST", "/v1/completions",
                             "{\"prompt\": \"y\", \"max_tokens\": 20}"));
    expect_slots_idle(server);
    for (int i = 0; i < 8; i++) close(fd[i]);
    lk_server_stop(server);
}

static void server_survives_garbage(void **state) {
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
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        int fd = http_connect(lk_server_port(server));
        http_send(fd, texts[i], strlen(texts[i]));
        sleep_ms(20);
        close(fd);
        json_decref(request_json(server, 200, "GET", "/health", ""));
    }
    expect_slots_idle(server);
    lk_server_stop(server);
}

static void *long_request_thread(void *port) {
    struct http_reply *reply = malloc(sizeof *reply);
    *reply = http_request(*(int *)port, "POST", "/v1/completions", "",
                          "{\"prompt\": \"x\", \"n\": 16, \"max_tokens\": 250}");
    return reply;
}

/* The client of a server that is stopped gets an error, or its answer. */
static void stop_during_work(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    int port = lk_server_port(server);
    pthread_t thread;
    void *result;
    assert_int_equal(pthread_create(&thread, NULL, long_request_thread, &port), 0);
    sleep_ms(30);
    lk_server_stop(server);
    pthread_join(thread, &result);
    struct http_reply *reply = result;
    assert_true(reply->status == 503 || reply->status == 200 || reply->status == 0);
    http_free(reply);
    free(reply);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(invalid_requests_are_rejected),
        cmocka_unit_test(limits_are_enforced),
        cmocka_unit_test(one_server_per_port),
        cmocka_unit_test(keys_and_origins_are_checked),
        cmocka_unit_test(disconnect_ends_jobs),
        cmocka_unit_test(slow_clients_do_not_block_others),
        cmocka_unit_test(server_survives_garbage),
        cmocka_unit_test(stop_during_work),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
