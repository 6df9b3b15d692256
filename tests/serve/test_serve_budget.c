/* What a request may cost: memory of requests in work, the worker pool, shares of the queue and of
 * the places. */
#include "serve/budget.h"
#include "serve/json_field.h"
#include "serve/workers.h"
#include "support_http.h"
#include "support_serve.h"
#include "test.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static struct lk_server_opts options(void) {
    struct lk_server_opts o = serve_options();
    o.n_ctx = 512;
    o.session_dir = NULL;
    return o;
}

static void sleep_ms(long ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* ---- parts ---- */

static void charges_are_bounded(void **state) {
    static struct lk_metrics metrics;
    struct lk_budget budget;
    struct lk_api_error error;
    lk_budget_init(&budget, 1 << 20, &metrics);
    struct lk_charge large = {.budget = &budget}, other = {.budget = &budget}, small = other;
    assert_false(lk_charge_add(&large, 260 << 10, &error)); /* more than a quarter */
    assert_int_equal(error.status, 413);
    assert_true(lk_charge_add(&large, 100 << 10, &error));
    assert_true(lk_charge_add(&large, 150 << 10, &error));
    assert_int_equal(lk_budget_bytes(&budget), 250 << 10);
    assert_false(lk_charge_add(&other, 200 << 10, &error)); /* a quarter of the rest is 193 KiB */
    assert_int_equal(error.status, 503);
    assert_true(error.retry_s > 0);
    assert_true(lk_charge_add(&small, 10 << 10, &error));
    lk_charge_return(&large, 150 << 10);
    assert_true(lk_charge_add(&other, 200 << 10, &error));
    assert_false(lk_charge_add(&other, UINT64_MAX, &error));
    lk_charge_release(&large);
    lk_charge_release(&other);
    lk_charge_release(&small);
    assert_int_equal(lk_budget_bytes(&budget), 0);
    assert_int_equal(metrics.refused, 3);
}

/* Requests of one size cannot take what smaller ones need. */
static void many_large_requests_leave_room(void **state) {
    enum { N = 256 }; /* as many as there are connections */
    static struct lk_metrics metrics;
    static struct lk_charge charge[N];
    struct lk_budget budget;
    struct lk_api_error error;
    lk_budget_init(&budget, 256 << 20, &metrics);
    for (uint64_t size = 64 << 20; size >= 128 << 10; size /= 2)
        for (int i = 0; i < N; i++) {
            charge[i].budget = &budget;
            if (charge[i].bytes == 0) lk_charge_add(&charge[i], size, &error);
        }
    struct lk_charge small = {.budget = &budget};
    assert_true(lk_charge_add(&small, 32 << 10, &error));
    lk_charge_release(&small);
    for (int i = 0; i < N; i++) lk_charge_release(&charge[i]);
    assert_int_equal(lk_budget_bytes(&budget), 0);
}

/* Tasks that count how many of them run at the same time. */
struct load {
    atomic_int running, max_running, n_run, n_asked;
    bool large;
    bool stay; /* what the callers' keep_waiting returns */
    struct lk_workers *workers;
};

static void count_task(void *arg) {
    struct load *load = arg;
    int n = atomic_fetch_add(&load->running, 1) + 1, max = load->max_running;
    while (n > max && !atomic_compare_exchange_weak(&load->max_running, &max, n)) continue;
    sleep_ms(20);
    atomic_fetch_sub(&load->running, 1);
    load->n_run++;
}

static bool ask(void *arg) {
    struct load *load = arg;
    load->n_asked++;
    return load->stay;
}

static void *run_task(void *arg) {
    struct load *load = arg;
    return lk_workers_run(load->workers, load->large, count_task, load, ask, load) ? load : NULL;
}

static int run_tasks(struct load *load, int n) {
    pthread_t thread[32];
    int n_done = 0;
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, run_task, load), 0);
    for (int i = 0; i < n; i++) {
        void *result = NULL;
        pthread_join(thread[i], &result);
        n_done += result != NULL;
    }
    return n_done;
}

static void workers_bound_what_runs(void **state) {
    struct load load = {.stay = true};
    assert_int_equal(lk_workers_start(&load.workers, 2, NULL), LK_OK);
    assert_int_equal(run_tasks(&load, 20), 20);
    assert_int_equal(load.n_run, 20);
    assert_in_range(load.max_running, 1, 2);
    lk_workers_stop(load.workers);
}

/* Large tasks run on all threads but one. */
static void large_tasks_leave_a_thread(void **state) {
    struct load load = {.stay = true, .large = true};
    assert_int_equal(lk_workers_start(&load.workers, 2, NULL), LK_OK);
    assert_int_equal(run_tasks(&load, 10), 10);
    assert_int_equal(load.max_running, 1);
    lk_workers_stop(load.workers);
    assert_int_equal(lk_workers_start(&load.workers, 1, NULL), LK_OK); /* nothing to leave */
    assert_int_equal(run_tasks(&load, 2), 2);
    lk_workers_stop(load.workers);
}

static void waiting_tasks_can_be_dropped(void **state) {
    struct load load = {.stay = false}; /* asked every 0.25 s: 32 tasks of 20 ms take 0.32 s */
    assert_int_equal(lk_workers_start(&load.workers, 1, NULL), LK_OK);
    int n_done = run_tasks(&load, 32);
    assert_in_range(n_done, 1, 31);
    assert_int_equal(n_done, load.n_run);
    lk_workers_close(load.workers);
    assert_int_equal(run_tasks(&load, 1), 0);
    lk_workers_stop(load.workers);
}

/* The estimate must not be below what jansson allocates. */
static _Atomic size_t allocated;

static void *counting_malloc(size_t n) {
    size_t *p = malloc(n + sizeof *p);
    if (!p) return NULL;
    *p = n;
    allocated += n;
    return p + 1;
}

static void counting_free(void *p) {
    if (!p) return;
    allocated -= ((size_t *)p)[-1];
    free((size_t *)p - 1);
}

static void parsed_bytes_are_an_upper_bound(void **state) {
    static const char *const items[] = {"{}",
                                        "[]",
                                        "1",
                                        "\"\"",
                                        "null",
                                        "1.5",
                                        "\"abcdefghijklmnopqrstuvwxyz\"",
                                        "{\"a\":1}",
                                        "[[1],[2,3]]",
                                        "{\"a\":{\"b\":[1,2,{\"c\":null}]},\"key\":\"value\"}",
                                        "\"\\\"[{,:\\\\\""};
    json_set_alloc_funcs(counting_malloc, counting_free);
    for (size_t i = 0; i < sizeof items / sizeof items[0]; i++) {
        struct lk_buf text = {0};
        lk_buf_append_str(&text, "[");
        for (int k = 0; k < 1000; k++) lk_buf_printf(&text, "%s%s", k ? "," : "", items[i]);
        lk_buf_append_str(&text, "]");
        json_t *json = json_loadb(text.at, text.len, 0, NULL);
        assert_non_null(json);
        assert_in_range(allocated, 1, lk_json_parsed_bytes(text.at, text.len));
        json_decref(json);
        lk_buf_free(&text);
    }
    assert_int_equal(allocated, 0);
    json_set_alloc_funcs(malloc, free);
}

/* ---- requests ---- */

/* {"prompt": "x", "FIELD": [ITEM, ITEM, ...]}; owned. */
static char *repeat_item(const char *field, const char *item, int n) {
    struct lk_buf out = {0};
    lk_buf_printf(&out, "{\"prompt\": \"x\", \"%s\": [", field);
    for (int i = 0; i < n; i++) lk_buf_printf(&out, "%s%s", i ? "," : "", item);
    lk_buf_append_str(&out, "]}");
    return lk_buf_detach(&out);
}

/* A request returns its memory right after its reply. */
static void expect_nothing_held(const struct lk_server *server) {
    for (int i = 0; i < 200 && metric(server, "request_bytes") > 0; i++) sleep_ms(10);
    assert_int_equal(metric(server, "request_bytes"), 0);
}

static void expect_refused(const struct lk_server *server, int status, const char *path, char *body,
                           const char *code) {
    expect_error(server, status, path, body, code);
    free(body);
    expect_nothing_held(server);
}

static void expensive_requests_are_refused(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    expect_refused(server, 413, "/v1/completions", repeat_item("ignored", "{}", 60000),
                   "too_many_values");
    expect_refused(server, 400, "/detokenize", repeat_item("tokens", "1", (1 << 16) + 1),
                   "invalid_value");
    expect_refused(server, 400, "/v1/completions",
                   strdup("{\"prompt\": \"x\", \"n\": 16, \"logprobs\": 20, \"max_tokens\": 500}"),
                   "invalid_value");
    char stop[700], body[800];
    memset(stop, 'a', sizeof stop);
    stop[600] = 0;
    snprintf(body, sizeof body, "{\"prompt\": \"x\", \"stop\": \"%s\"}", stop);
    expect_refused(server, 400, "/v1/completions", strdup(body), "invalid_value");
    json_t *json = request_json(server, 200, "POST", "/v1/completions",
                                "{\"prompt\": \"x\", \"n\": 16, \"logprobs\": 20, "
                                "\"ignore_eos\": true}"); /* shortened instead */
    json_decref(json);
    lk_server_stop(server);
    opts.request_bytes = 1 << 20;
    server = serve_start(&opts);
    expect_refused(server, 413, "/v1/completions", repeat_item("ignored", "1", 20000),
                   "request_too_large");
    char *chat = malloc(30000); /* counting its tokens renders it, too */
    snprintf(chat, 30000, "{\"messages\": [{\"role\": \"user\", \"content\": \"%020000d\"}]}", 0);
    expect_refused(server, 413, "/v1/chat/completions/input_tokens", chat, "request_too_large");
    json_decref(complete(server, 1, ""));
    expect_nothing_held(server);
    lk_server_stop(server);
}

/* A limit itself is accepted, one more is refused. */
static void limits_are_exact(void **state) {
    static const struct {
        const char *path, *head, *item, *separator, *tail;
        int n;
    } row[] = {
        {"/detokenize", "{\"tokens\": [", "1", ",", "]}", 1 << 16},
        {"/v1/completions", "{\"max_tokens\": 1, \"prompt\": [", "\"x\"", ",", "]}", 64},
        {"/v1/completions", "{\"prompt\": \"x\", \"max_tokens\": 1, \"stop\": [", "\"zz\"", ",",
         "]}", 16},
        {"/v1/completions", "{\"prompt\": \"x\", \"max_tokens\": 1, \"stop\": \"", "a", "", "\"}",
         512},
        {"/v1/chat/completions",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"max_tokens\": 1, "
         "\"tool_choice\": \"none\", \"tools\": [",
         "{\"type\": \"function\", \"function\": {\"name\": \"f\"}}", ",", "]}", 128},
    };
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        for (int more = 0; more <= 1; more++) {
            struct lk_buf body = {0};
            lk_buf_append_str(&body, row[i].head);
            for (int k = 0; k < row[i].n + more; k++)
                lk_buf_printf(&body, "%s%s", k ? row[i].separator : "", row[i].item);
            lk_buf_append_str(&body, row[i].tail);
            json_decref(request_json(server, more ? 400 : 200, "POST", row[i].path, body.at));
            lk_buf_free(&body);
        }
    for (int n = 16; n <= 17; n++) {
        char body[80];
        snprintf(body, sizeof body, "{\"prompt\": \"x\", \"max_tokens\": 1, \"n\": %d}", n);
        json_decref(request_json(server, n > 16 ? 400 : 200, "POST", "/v1/completions", body));
    }
    lk_server_stop(server);
}

/* More answers than the queue holds are refused before a grammar is compiled or a sampler made. */
static void answers_are_counted_first(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = serve_start(&opts);
    expect_refused(server, 400, "/v1/completions",
                   strdup("{\"prompt\": [\"a\",\"b\",\"c\",\"d\",\"e\"], \"n\": 16, "
                          "\"logit_bias\": {\"99999\": 1}}"),
                   "invalid_value");
    json_t *json = request_json(server, 400, "POST", "/v1/completions",
                                "{\"prompt\": [\"a\",\"b\",\"c\",\"d\",\"e\"], \"n\": 16, "
                                "\"logit_bias\": {\"99999\": 1}}");
    const char *msg = json_string_value(json_object_get(json_object_get(json, "error"), "message"));
    assert_non_null(strstr(msg, "80 answers")); /* not the bias, which is checked later */
    json_decref(json);
    lk_server_stop(server);
}

/* ---- places ---- */

/* Send a completion and return the socket. `key` may be NULL. */
static int send_completion(const struct lk_server *server, const char *key, const char *body) {
    char text[1000];
    int fd = http_connect(lk_server_port(server)), small = 2048;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    snprintf(text, sizeof text,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s%s%s"
             "Content-Length: %zu\r\n\r\n%s",
             key ? "Authorization: Bearer " : "", key ? key : "", key ? "\r\n" : "", strlen(body),
             body);
    http_send(fd, text, strlen(text));
    return fd;
}

static json_int_t slots_number(const struct lk_server *server, const char *headers,
                               const char *field) {
    struct http_reply reply = http_request(lk_server_port(server), "GET", "/slots", headers, "");
    assert_int_equal(reply.status, 200);
    json_t *json = json_loads(reply.body, 0, NULL);
    json_int_t n = json_integer_value(json_object_get(json, field));
    json_decref(json);
    http_free(&reply);
    return n;
}

/* The logprobs make the stream large, so that the socket's buffers are soon full. */
static void unread_answers_give_their_places_up(void **state) {
    enum { N = 2 };
    struct lk_server_opts opts = options();
    opts.n_parallel = N;
    opts.queue_s = 30;
    struct lk_server *server = serve_start(&opts);
    int fd[N];
    for (int i = 0; i < N; i++)
        fd[i] = send_completion(server, NULL,
                                "{\"prompt\": \"x\", \"stream\": true, \"logprobs\": 20, "
                                "\"max_tokens\": 500, \"ignore_eos\": true}");
    int n_parked = 0;
    for (int i = 0; i < 600 && n_parked < N; i++) {
        n_parked = (int)slots_number(server, "", "parked");
        sleep_ms(50);
    }
    assert_int_equal(n_parked, N);
    json_decref(request_json(server, 200, "POST", "/v1/completions",
                             "{\"prompt\": \"y\", \"max_tokens\": 2}"));
    /* A parked answer goes on when its client reads, and is complete. */
    struct http_reply reply = http_read(fd[0]);
    assert_int_equal(reply.status, 200);
    assert_non_null(strstr(reply.body, "data: [DONE]"));
    http_free(&reply);
    close(fd[0]);
    close(fd[1]);
    lk_server_stop(server);
}

static const char *const two_keys[] = {"key-number-one", "key-number-two"};

static void one_key_does_not_hold_all_places(void **state) {
    struct lk_server_opts opts = options();
    opts.key = two_keys;
    opts.n_key = 2;
    opts.n_parallel = 2;
    struct lk_server *server = serve_start(&opts);
    int fd[3];
    for (int i = 0; i < 3; i++)
        fd[i] = send_completion(server, two_keys[0],
                                "{\"prompt\": \"x\", \"n\": 8, \"max_tokens\": 400, "
                                "\"ignore_eos\": true, \"seed\": 1}");
    static const char first[] = "Authorization: Bearer key-number-one\r\n",
                      second[] = "Authorization: Bearer key-number-two\r\n";
    for (int i = 0; i < 400 && slots_number(server, first, "waiting") < 20; i++) sleep_ms(10);
    assert_in_range(slots_number(server, first, "waiting"), 20, 24);
    struct http_reply reply = http_request(lk_server_port(server), "POST", "/v1/completions",
                                           second, "{\"prompt\": \"y\", \"max_tokens\": 1}");
    assert_int_equal(reply.status, 200);
    http_free(&reply);
    /* It was served while most answers of the other key were still waiting. */
    assert_in_range(slots_number(server, first, "waiting"), 8, 24);
    for (int i = 0; i < 3; i++) close(fd[i]);
    lk_server_stop(server);
}

static void expect_waiting(const struct lk_server *server, const char *headers, json_int_t n) {
    for (int i = 0; i < 400 && slots_number(server, headers, "waiting") != n; i++) sleep_ms(5);
    assert_int_equal(slots_number(server, headers, "waiting"), n);
}

/* A third client holds the only place, and two share the spare one. The first one's second answer
 * has waited longer, but it was served last: the second client's answer is there before. */
static void clients_take_turns(void **state) {
    static const char *const keys[] = {"key-number-one", "key-number-two", "key-number-three"};
    static const char headers[] = "Authorization: Bearer key-number-one\r\n";
    struct lk_server_opts opts = options();
    opts.key = keys;
    opts.n_key = 3;
    opts.n_parallel = 1;
    opts.n_ctx = 8192;
    struct lk_server *server = serve_start(&opts);
    int holder = send_completion(server, keys[2],
                                 "{\"prompt\": \"x\", \"n\": 8, \"max_tokens\": 8000, "
                                 "\"ignore_eos\": true}");
    expect_waiting(server, headers, 7);
    int first = send_completion(server, keys[0],
                                "{\"prompt\": \"y\", \"n\": 2, \"max_tokens\": 3000, "
                                "\"ignore_eos\": true}");
    expect_waiting(server, headers, 8);
    int second = send_completion(server, keys[1],
                                 "{\"prompt\": \"z\", \"max_tokens\": 200, \"ignore_eos\": true}");
    struct http_reply reply = http_read(second);
    assert_int_equal(reply.status, 200);
    http_free(&reply);
    struct pollfd at = {.fd = first, .events = POLLIN};
    assert_int_equal(poll(&at, 1, 0), 0); /* 3,000 tokens are left */
    close(holder), close(first), close(second);
    lk_server_stop(server);
}

/* A client that fills the queue loses its newest request to another client. */
static void a_full_queue_makes_room(void **state) {
    struct lk_server_opts opts = options();
    opts.key = two_keys;
    opts.n_key = 2;
    opts.n_parallel = 1;
    opts.n_queue = 8;
    opts.n_ctx = 8192; /* no answer ends before the queue is full */
    struct lk_server *server = serve_start(&opts);
    static const char body[] = "{\"prompt\": \"x\", \"n\": 4, \"max_tokens\": 8000, "
                               "\"ignore_eos\": true}";
    static const char *const headers[] = {"Authorization: Bearer key-number-one\r\n",
                                          "Authorization: Bearer key-number-two\r\n"};
    int fd[2];
    for (int i = 0; i < 2; i++) {
        size_t n_before = (size_t)slots_number(server, headers[0], "waiting");
        fd[i] = send_completion(server, two_keys[0], body);
        for (int k = 0; k < 400; k++) {
            if ((size_t)slots_number(server, headers[0], "waiting") > n_before) break;
            sleep_ms(10);
        }
    }
    struct http_reply reply =
        http_request(lk_server_port(server), "POST", "/v1/completions", headers[0], body);
    assert_int_equal(reply.status, 429); /* its own client has the most */
    http_free(&reply);
    reply = http_request(lk_server_port(server), "POST", "/v1/completions", headers[1],
                         "{\"prompt\": [\"y\", \"z\"], \"max_tokens\": 1}");
    assert_int_equal(reply.status, 200);
    assert_int_equal(slots_number(server, headers[0], "waiting"), 3); /* the first answer goes on */
    http_free(&reply);
    reply = http_read(fd[1]); /* the newest request of the first client */
    assert_int_equal(reply.status, 429);
    assert_non_null(strstr(reply.body, "queue_full"));
    http_free(&reply);
    close(fd[0]);
    close(fd[1]);
    lk_server_stop(server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(charges_are_bounded),
        cmocka_unit_test(many_large_requests_leave_room),
        cmocka_unit_test(workers_bound_what_runs),
        cmocka_unit_test(large_tasks_leave_a_thread),
        cmocka_unit_test(waiting_tasks_can_be_dropped),
        cmocka_unit_test(parsed_bytes_are_an_upper_bound),
        cmocka_unit_test(expensive_requests_are_refused),
        cmocka_unit_test(limits_are_exact),
        cmocka_unit_test(answers_are_counted_first),
        cmocka_unit_test(unread_answers_give_their_places_up),
        cmocka_unit_test(one_key_does_not_hold_all_places),
        cmocka_unit_test(clients_take_turns),
        cmocka_unit_test(a_full_queue_makes_room),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
