/* What clients of other servers expect: any model name, names of hosts, streams that start at
 * once. */
#include "support_http.h"
#include "support_serve.h"
#include "test.h"

#include <sys/socket.h>
#include <unistd.h>

static struct lk_server_opts options(void) {
    struct lk_server_opts o = serve_options();
    o.session_dir = NULL;
    return o;
}

static const char *text_at(const json_t *json, const char *field) {
    return json_string_value(json_object_get(json, field));
}

/* ---- names ---- */

static const char other_name[] = "{\"model\": \"gpt-4o\", \"prompt\": \"x\", \"max_tokens\": 1}";

static void any_model_name_is_answered(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    json_t *json = request_json(server, 200, "POST", "/v1/completions", other_name);
    assert_string_equal(text_at(json, "model"), "tiny");
    json_decref(json);
    json = request_json(server, 200, "GET", "/v1/models/gpt-4o", "");
    assert_string_equal(text_at(json, "id"), "tiny");
    json_decref(json);
    lk_server_stop(server);
}

static void strict_model_accepts_only_its_names(void **state) {
    static const char *const alias[] = {"second", "org/third"};
    struct lk_server_opts opts = options();
    opts.strict_model = true;
    opts.alias = alias;
    opts.n_alias = 2;
    struct lk_server *server = serve_start(&opts);
    expect_error(server, 404, "/v1/completions", other_name, "model_not_found");
    json_decref(request_json(server, 404, "GET", "/v1/models/gpt-4o", ""));
    json_t *json = request_json(server, 200, "POST", "/v1/completions",
                                "{\"model\": \"org/third\", \"prompt\": \"x\", \"max_tokens\": 1}");
    assert_string_equal(text_at(json, "model"), "tiny");
    json_decref(json);
    json = request_json(server, 200, "GET", "/v1/models", "");
    const json_t *list = json_object_get(json, "data");
    assert_int_equal(json_array_size(list), 3);
    assert_string_equal(text_at(json_array_get(list, 0), "id"), "tiny");
    assert_string_equal(text_at(json_array_get(list, 2), "id"), "org/third");
    json_decref(json);
    json_decref(request_json(server, 200, "GET", "/v1/models/second", ""));
    lk_server_stop(server);
}

static int status_for_host(const struct lk_server *server, const char *host) {
    char request[200];
    int fd = http_connect(lk_server_port(server));
    assert_true(fd >= 0);
    snprintf(request, sizeof request,
             "GET /v1/models HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host);
    http_send(fd, request, strlen(request));
    struct http_reply reply = http_read(fd);
    int status = reply.status;
    http_free(&reply);
    return status;
}

/* Docker's name of the host is admitted only if the operator says so. */
static void hosts_are_admitted_by_name(void **state) {
    static const char *const host[] = {"host.docker.internal", "box"};
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    assert_int_equal(status_for_host(server, "host.docker.internal:8080"), 403);
    lk_server_stop(server);
    opts.allowed_host = host;
    opts.n_allowed_host = 2;
    server = serve_start(&opts);
    assert_int_equal(status_for_host(server, "host.docker.internal:8080"), 200);
    assert_int_equal(status_for_host(server, "BOX"), 200);
    assert_int_equal(status_for_host(server, "host.docker.internal.evil.com"), 403);
    assert_int_equal(status_for_host(server, "evil.com"), 403);
    lk_server_stop(server);
}

/* ---- streams ---- */

/* POST a streaming request and leave the connection open. */
static int start_stream(const struct lk_server *server, const char *path, const char *body) {
    char request[600];
    int fd = http_connect(lk_server_port(server)), small = 2048;
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    snprintf(request, sizeof request,
             "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
             "Content-Length: %zu\r\n\r\n%s",
             path, strlen(body), body);
    http_send(fd, request, strlen(request));
    return fd;
}

/* Receive until `text` appears. Fails after 20 seconds or at the end. */
static void expect_text(int fd, char *got, size_t cap, const char *text) {
    struct timeval limit = {.tv_sec = 20};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    size_t len = strlen(got);
    while (!strstr(got, text)) {
        ssize_t n = recv(fd, got + len, cap - 1 - len, 0);
        if (n <= 0) fail_msg("'%s' did not come, but: %s", text, got);
        len += (size_t)n;
        got[len] = 0;
    }
}

/* A stream that waits in the queue has sent its headers and a sign of life in its API's form; an
 * error is then an event of that form. */
static void queued_streams_start_at_once(void **state) {
    /* One request holds the memory because no client reads its answer, and a second one waits. */
    struct lk_server_opts opts = options();
    static char got[1 << 16];
    enum { LONG = 4096 }; /* tokens; more events than sockets and the server hold */
    opts.queue_s = 6;
    opts.n_ctx = LONG;
    lk_plan plan;
    lk_session_opts whole = {.n_ctx = LONG};
    assert_int_equal(lk_plan_make(model, recipes[0], &whole, &plan, NULL), LK_OK);
    opts.max_bytes = (plan.cache_bytes + plan.scratch_bytes) * 3 / 2;
    struct lk_server *server = serve_start(&opts);
    int holder = start_stream(server, "/v1/completions",
                              "{\"prompt\": \"x\", \"max_tokens\": -1, \"ignore_eos\": true, "
                              "\"stream\": true, \"logprobs\": 20, \"n\": 1}");
    got[0] = 0;
    expect_text(holder, got, sizeof got, "data: ");
    int fd = start_stream(server, "/v1/completions",
                          "{\"prompt\": \"y\", \"max_tokens\": -1, \"stream\": true}");
    got[0] = 0;
    expect_text(fd, got, sizeof got, "\r\n\r\n");
    assert_non_null(strstr(got, "200 OK"));
    assert_null(strstr(got, "data: "));
    static const struct {
        const char *path, *body, *sign;
    } other[] = {{"/v1/messages",
                  "{\"messages\": [{\"role\": \"user\", \"content\": \"y\"}], \"max_tokens\": "
                  "4000, \"stream\": true}",
                  "\"ping\""},
                 {"/api/generate", "{\"prompt\": \"y\", \"raw\": true}", "\"response\":\"\""},
                 {"/api/chat", "{\"messages\": [{\"role\": \"user\", \"content\": \"y\"}]}",
                  "\"content\":\"\""}};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        static char text[1 << 12];
        int waiting = start_stream(server, other[i].path, other[i].body);
        text[0] = 0;
        expect_text(waiting, text, sizeof text, other[i].sign);
        close(waiting);
    }
    expect_text(fd, got, sizeof got, ": queued\n\n");
    expect_text(fd, got, sizeof got, "data: {\"error\":{");
    assert_non_null(strstr(got, "overloaded"));
    close(fd);
    assert_true(lk_server_stop(server)); /* does not wait for a client that does not read */
    close(holder);
}

/* ---- the log ---- */

static char log_text[4096];

/* Called before the connection of a request closes, so the client's end of file is later. */
static void record_log(void *user, const char *line) {
    strncat(log_text, line, sizeof log_text - strlen(log_text) - 2);
    strcat(log_text, "\n");
}

/* Each line names the client, the tokens that were read and written, and their speeds. */
static void log_has_tokens_and_speeds(void **state) {
    struct lk_server_opts opts = options();
    opts.log = record_log;
    log_text[0] = 0;
    struct lk_server *server = serve_start(&opts);
    for (int stream = 0; stream < 2; stream++) {
        char body[200];
        snprintf(body, sizeof body,
                 "{\"prompt\": [5, 6, 7, 8], \"max_tokens\": 3, \"ignore_eos\": true, "
                 "\"kv\": \"f16\", \"stream\": %s}",
                 stream ? "true" : "false");
        struct http_reply reply =
            http_request(lk_server_port(server), "POST", "/v1/completions", "", body);
        assert_int_equal(reply.status, 200);
        http_free(&reply);
    }
    struct http_reply icon = http_request(lk_server_port(server), "GET", "/favicon.ico", "", "");
    assert_int_equal(icon.status, 200);
    http_free(&icon);
    lk_server_stop(server);
    const char *first = strstr(log_text, "127.0.0.1 POST /v1/completions 200 ");
    assert_non_null(first);
    assert_non_null(strstr(first, ", prefill 4 tokens "));
    assert_non_null(strstr(first, "/s, decode 3 "));
    assert_non_null(strstr(first, "/s, first after "));
    const char *second = strstr(strchr(first, '\n'), "127.0.0.1 POST /v1/completions 200 ");
    assert_non_null(second);
    if (!strstr(second, " more reused) ")) fail_msg("nothing was reused: %s", log_text);
    assert_non_null(strstr(second, "decode 3 "));
    assert_non_null(strstr(log_text, "127.0.0.1 GET /favicon.ico 200 "));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_model_name_is_answered),
        cmocka_unit_test(strict_model_accepts_only_its_names),
        cmocka_unit_test(hosts_are_admitted_by_name),
        cmocka_unit_test(queued_streams_start_at_once),
        cmocka_unit_test(log_has_tokens_and_speeds),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
