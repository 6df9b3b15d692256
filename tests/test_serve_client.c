/* What clients are promised: who waits and who is refused, which pages may ask, fields that are honoured or refused by
 * name, and what answers say of their tokens. */
#define _DEFAULT_SOURCE /* usleep */
#include "support_serve.h"

#include "support.h"
#include "support_http.h"

#include "serve/scheduler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { LONG_PROMPT = 12000 }; /* tokens: read for a while */

static struct lk_serve_opts options(void) {
    struct lk_serve_opts o = serve_options();
    o.session_dir = NULL;
    return o;
}

/* ---- waiting -------------------------------------------------------------------------------------- */

static void a_full_queue_is_told(void **state) {
    (void)state;
    struct lk_serve_opts opts = options();
    opts.n_ctx = LONG_PROMPT + 100;
    opts.n_parallel = 1;
    opts.n_queue = 2;
    struct lk_server *server = serve_start(&opts);
    int reading = begin_reading(server, LONG_PROMPT), waiting = http_connect(lk_server_port(server));
    static const char two[] = "{\"prompt\": \"x\", \"n\": 2}";
    char text[300];
    snprintf(text, sizeof text, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s", strlen(two), two);
    http_send(waiting, text, strlen(text));
    for (json_int_t n = 0; n < 2; usleep(1000)) {
        json_t *slots = ask_json(server, 200, "GET", "/slots", "");
        n = json_integer_value(json_object_get(slots, "waiting"));
        json_decref(slots);
    }
    struct http_reply reply = http_ask(lk_server_port(server), "POST", "/v1/completions", "", "{\"prompt\": \"x\"}");
    assert_int_equal(reply.status, 429);
    assert_non_null(strstr(reply.head, "Retry-After"));
    http_free(&reply);
    /* What can never wait is not told to come again. */
    reply = http_ask(lk_server_port(server), "POST", "/v1/completions", "", "{\"prompt\": \"x\", \"n\": 3}");
    assert_int_equal(reply.status, 400);
    assert_null(strstr(reply.head, "Retry-After"));
    http_free(&reply);
    close(reading), close(waiting);
    lk_server_stop(server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_queue_is_told),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
