/* Places in the server: deadlines of connections, places for newcomers, checks before the body,
 * strict headers, half-closed clients. */
#define _DEFAULT_SOURCE /* usleep */
#include "base/clock.h"
#include "support_http.h"
#include "support_serve.h"
#include "test.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

static struct lk_server_opts options(void) {
    struct lk_server_opts o = serve_options();
    o.session_dir = NULL;
    return o;
}

/* Send text on a new connection. */
static int open_with(const struct lk_server *server, const char *text) {
    int fd = http_connect(lk_server_port(server));
    assert_true(fd >= 0);
    http_send(fd, text, strlen(text));
    return fd;
}

/* Status of the reply to exactly these bytes; 0: none. */
static int status_of(const struct lk_server *server, const char *text) {
    int fd = open_with(server, text);
    struct http_reply reply = http_read(fd);
    int status = reply.status;
    http_free(&reply);
    close(fd);
    return status;
}

/* Seconds until the server closes the connection, while `byte` is sent every 50 ms (0: none). */
static double seconds_to_close(int fd, char byte, double max) {
    double start = lk_now();
    while (lk_now() - start < max) {
        char got[256];
        struct pollfd at = {.fd = fd, .events = POLLIN};
        if (poll(&at, 1, 50) > 0 && recv(fd, got, sizeof got, MSG_DONTWAIT) <= 0) break;
        if (byte) http_send(fd, &byte, 1);
    }
    close(fd);
    return lk_now() - start;
}

/* ---- deadlines ---- */

/* A client that keeps sending single bytes is shut down all the same. */
static void slow_requests_are_shut_down(void **state) {
    struct lk_server_opts opts = options();
    opts.header_s = 0.6;
    opts.body_s = 0.4;
    opts.idle_s = 0.5;
    struct lk_server *server = serve_start(&opts);
    static const struct {
        const char *text;
        char byte;
    } cases[] = {
        {"", 0},
        {"GET /he", 'a'},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: ", 'a'},
        {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n{", ' '},
        {"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n{", ' '},
        {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{",
         '\r'},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 0}, /* idle afterwards */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double seconds = seconds_to_close(open_with(server, cases[i].text), cases[i].byte, 20);
        if (seconds > 10) fail_msg("connection %zu is still open", i);
        if (seconds < 0.35 && cases[i].byte != '\r') fail_msg("connection %zu was closed", i);
    }
    lk_server_stop(server);
}

/* A body may take longer than body_s if enough bytes arrive. */
static void steady_bodies_are_received(void **state) {
    struct lk_server_opts opts = options();
    opts.body_s = 0.3;
    struct lk_server *server = serve_start(&opts);
    enum { PART = 100000, N_PART = 12 };
    char head[200], *part = malloc(PART);
    memset(part, ' ', PART);
    snprintf(head, sizeof head,
             "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: "
             "%d\r\n\r\n{\"content\": \"x\"",
             PART * N_PART + 16);
    int fd = open_with(server, head);
    for (int i = 0; i < N_PART; i++) {
        http_send(fd, part, PART);
        usleep(100000);
    }
    http_send(fd, "}", 1);
    struct http_reply reply = http_read(fd);
    assert_int_equal(reply.status, 200);
    http_free(&reply);
    close(fd);
    free(part);
    lk_server_stop(server);
}

/* A client that reads nothing of its stream is shut down. */
static void unread_streams_are_shut_down(void **state) {
    struct lk_server_opts opts = options();
    opts.send_s = 0.5;
    struct lk_server *server = serve_start(&opts);
    static const char body[] =
        "{\"prompt\": \"x\", \"n\": 8, \"max_tokens\": 900, \"stream\": true, "
        "\"ignore_eos\": true, \"logprobs\": 5}";
    char text[400];
    int small = 2048, fd = http_connect(lk_server_port(server));
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    snprintf(text, sizeof text,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    http_send(fd, text, strlen(text));
    uint64_t gone = 0;
    for (int i = 0; i < 400 && !gone; i++) {
        usleep(50000);
        gone = metric(server, "clients_gone_total");
    }
    assert_int_equal(gone, 1);
    close(fd);
    lk_server_stop(server);
}

/* ---- places ---- */

static const char get_health[] =
    "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/* Connections that are idle or slow hold all places, and honest clients still get answers. */
static void newcomers_get_places(void **state) {
    enum { N = 8, N_HELD = 150 };
    static const char *const starts[] = {
        "", "GET / HTTP/1.1\r\nHost: loc",
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n{",
        "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"};
    struct lk_server_opts opts = options();
    opts.n_connection = N;
    struct lk_server *server = serve_start(&opts);
    for (size_t i = 0; i < sizeof starts / sizeof starts[0]; i++) {
        int fd[N_HELD];
        for (int k = 0; k < N_HELD; k++) fd[k] = open_with(server, starts[i]);
        for (int k = 0; k < 20; k++) {
            int status = status_of(server, get_health);
            if (status != 200) fail_msg("start %zu: client %d got %d", i, k, status);
        }
        for (int k = 0; k < N_HELD; k++) close(fd[k]);
    }
    lk_server_stop(server);
}

/* Connections that get an answer keep their places, and newcomers get 503. */
static void working_connections_stay(void **state) {
    enum { N = 2 };
    struct lk_server_opts opts = options();
    opts.n_ctx = 30000;
    opts.n_connection = N;
    struct lk_server *server = serve_start(&opts);
    static const char body[] = "{\"prompt\": \"x\", \"max_tokens\": 29000, \"stream\": true, "
                               "\"ignore_eos\": true}";
    char text[400], got[100];
    int fd[N];
    snprintf(text, sizeof text,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    for (int i = 0; i < N; i++) {
        fd[i] = open_with(server, text);
        assert_true(recv(fd[i], got, sizeof got, 0) > 0);
    }
    for (int i = 0; i < 20; i++) assert_int_equal(status_of(server, get_health), 503);
    for (int i = 0; i < N; i++) {
        assert_true(recv(fd[i], got, sizeof got, 0) > 0);
        close(fd[i]);
    }
    lk_server_stop(server);
}

/* Descriptors are reused at once by another thread while connections are shut down. None of its
 * own sockets may be hit. */
static _Atomic bool ending;

static void *use_descriptors(void *arg) {
    size_t n_hit = 0;
    while (!ending) {
        int pair[2];
        char byte = 'x';
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) continue;
        for (int i = 0; i < 20; i++)
            if (send(pair[0], &byte, 1, MSG_NOSIGNAL) != 1 || read(pair[1], &byte, 1) != 1) n_hit++;
        close(pair[0]);
        close(pair[1]);
    }
    return (void *)n_hit;
}

static void reused_descriptors_are_not_shut(void **state) {
    struct lk_server_opts opts = options();
    opts.n_connection = 2;
    opts.header_s = 0.05;
    struct lk_server *server = serve_start(&opts);
    pthread_t thread;
    void *n_hit;
    ending = false;
    assert_int_equal(pthread_create(&thread, NULL, use_descriptors, NULL), 0);
    for (int i = 0; i < 1500; i++) {
        int fd = open_with(server, i % 3 ? "GET " : "");
        if (i % 2) http_send(fd, get_health, strlen(get_health));
        if (i % 7 == 0) usleep(1000);
        close(fd);
    }
    ending = true;
    pthread_join(thread, &n_hit);
    assert_null(n_hit);
    assert_int_equal(status_of(server, get_health), 200);
    lk_server_stop(server);
}

/* ---- checks before the body ---- */

/* The reply comes before a large body is sent, or else the body is not kept. */
static void requests_are_refused_by_their_headers(void **state) {
    static const char *const keys[] = {"secret-key"};
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\n\r\n", 401},
        {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
         "secret-kex\r\nTransfer-Encoding: chunked\r\n\r\n",
         401},
        {"POST /what HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\nAuthorization: "
         "Bearer secret-key\r\n\r\n",
         404},
        {"POST /slots HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8000000\r\nAuthorization: "
         "Bearer secret-key\r\n\r\n",
         405},
        {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: "
         "100-continue\r\n\r\n",
         401},
        {"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: "
         "2\r\n\r\n{}",
         401},
    };
    struct lk_server_opts opts = options();
    opts.key = keys;
    opts.n_key = 1;
    opts.body_s = 600;
    struct lk_server *server = serve_start(&opts);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double start = lk_now();
        int status = status_of(server, cases[i].text);
        if (status != cases[i].status) fail_msg("request %zu: status %d", i, status);
        if (lk_now() - start > 100) fail_msg("request %zu waited for the body", i);
    }
    lk_server_stop(server);
}

static void ambiguous_requests_are_rejected(void **state) {
#define POST "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n"
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n", 400},
        {"GET /slots HTTP/1.1\r\nHost : evil.example\r\nHost: localhost\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A\t: b\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: b\rc\r\n\r\n", 400},
        {POST "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400},
        {POST "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", 400},
        {POST "Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400},
        {POST "Transfer-Encoding: xchunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400},
        {"GET /health HTTP/1.0\r\n\r\n", 200},
    };
#undef POST
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int status = status_of(server, cases[i].text);
        if (status != cases[i].status) fail_msg("request %zu: status %d", i, status);
    }
    lk_server_stop(server);
}

/* ---- half-closed clients ---- */

/* Send a completion, close the sending side, and read everything. Owned. */
static char *half_closed_reply(const struct lk_server *server, const char *version,
                               const char *body) {
    char text[600], *got = calloc(1, 1 << 20);
    size_t len = 0;
    snprintf(text, sizeof text,
             "POST /v1/completions HTTP/%s\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
             version, strlen(body), body);
    int fd = open_with(server, text);
    shutdown(fd, SHUT_WR);
    for (ssize_t n; (n = recv(fd, got + len, (1 << 20) - 1 - len, 0)) > 0;) len += (size_t)n;
    close(fd);
    return got;
}

static void half_closed_clients_get_answers(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
    char *got = half_closed_reply(server, "1.1", "{\"prompt\": \"x\", \"max_tokens\": 300}");
    size_t skip = strncmp(got, interim, strlen(interim)) == 0 ? strlen(interim) : 0;
    assert_memory_equal(got + skip, "HTTP/1.1 200 ", 13);
    assert_non_null(strstr(got, "\"finish_reason\""));
    free(got);
    got = half_closed_reply(server, "1.1",
                            "{\"prompt\": \"x\", \"max_tokens\": 300, \"stream\": true}");
    assert_non_null(strstr(got, "data: [DONE]"));
    free(got);
    lk_server_stop(server);
}

/* A client that closed its connection during a long prefill is noticed. */
static void gone_clients_are_noticed(void **state) {
    struct lk_server_opts opts = options();
    opts.n_ctx = 30100;
    struct lk_server *server = serve_start(&opts);
    char *body = make_tokens_body(30000, "{}"), head[200];
    snprintf(head, sizeof head,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n",
             strlen(body));
    int fd = open_with(server, head);
    http_send(fd, body, strlen(body));
    free(body);
    usleep(300000);
    close(fd);
    uint64_t gone = 0;
    for (int i = 0; i < 200 && !gone; i++) {
        usleep(50000);
        gone = metric(server, "clients_gone_total");
    }
    assert_int_equal(gone, 1);
    lk_server_stop(server);
}

/* ---- numbers of sessions ---- */

static void restored_ids_do_not_hide_later_sessions(void **state) {
    struct lk_server_opts opts = serve_options();
    struct lk_server *server = serve_start(&opts);
    json_decref(complete(server, 1, ""));
    json_decref(request_json(server, 200, "POST", "/slots/1?action=save", "{\"filename\": \"a\"}"));
    json_decref(request_json(server, 200, "POST", "/slots/1000000?action=restore",
                             "{\"filename\": \"a\"}"));
    json_decref(complete(server, 2, ""));
    json_t *slots = wait_idle_slots(server, 3), *slot;
    size_t i;
    json_array_foreach(json_object_get(slots, "slots"), i, slot) {
        char path[100];
        snprintf(path, sizeof path, "/slots/%lld?action=save",
                 (long long)json_integer_value(json_object_get(slot, "id")));
        json_decref(request_json(server, 200, "POST", path, "{\"filename\": \"b\"}"));
    }
    json_decref(slots);
    lk_server_stop(server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slow_requests_are_shut_down),
        cmocka_unit_test(steady_bodies_are_received),
        cmocka_unit_test(unread_streams_are_shut_down),
        cmocka_unit_test(newcomers_get_places),
        cmocka_unit_test(working_connections_stay),
        cmocka_unit_test(reused_descriptors_are_not_shut),
        cmocka_unit_test(requests_are_refused_by_their_headers),
        cmocka_unit_test(ambiguous_requests_are_rejected),
        cmocka_unit_test(half_closed_clients_get_answers),
        cmocka_unit_test(gone_clients_are_noticed),
        cmocka_unit_test_setup_teardown(restored_ids_do_not_hide_later_sessions, make_session_dir,
                                        remove_session_dir),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
