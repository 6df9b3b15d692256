/* Several models in one server: loaded when a request names one, unloaded when there is no room,
 * and their sessions come back from the store. */
#define _DEFAULT_SOURCE /* usleep */
#include "base/clock.h"
#include "support_http.h"
#include "support_serve.h"
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { N_MODEL = 3, BAD = 2, WEIGHTS = 3 << 20, CACHES = 2 << 20, EACH = WEIGHTS + CACHES };

static struct lk_model_entry entries[N_MODEL];
static _Atomic int n_open, most_open, load_ms;

static lk_status load(void *user, size_t i, lk_progress progress, void *progress_user,
                      struct lk_server_opts *o, lk_err *err) {
    for (int ms = 0; ms < load_ms; ms += 10) {
        if (!progress(progress_user, 0, 1)) return lk_fail(err, LK_E_CANCELLED, "cancelled");
        usleep(10000);
    }
    if (i == BAD) return lk_fail(err, LK_E_FORMAT, "/secret/bad.gguf: it is cut off");
    o->model = i == 0 ? model : other_model;
    o->id = entries[i].id;
    o->recipe = (const lk_recipe *const *)recipes;
    o->n_recipe = 2;
    o->n_ctx = CTX;
    if (++n_open > most_open) most_open = (int)n_open;
    return LK_OK;
}

static void unload(void *user, size_t i) { n_open--; }

/* A server whose models together need twice EACH, and may use `max`. */
static struct lk_server *start(uint64_t max, const struct lk_server_opts *base) {
    static const char *const id[N_MODEL] = {"one", "two", "bad"};
    struct lk_server_opts o = *base;
    for (size_t i = 0; i < N_MODEL; i++)
        entries[i] = (struct lk_model_entry){.id = id[i],
                                             .path = "/secret/bad.gguf",
                                             .info = lk_model_get_info(i ? other_model : model),
                                             .n_ctx = CTX,
                                             .weight_bytes = WEIGHTS,
                                             .cache_bytes = CACHES};
    o.model = NULL;
    o.id = NULL;
    o.n_recipe = 0;
    o.entry = entries;
    o.n_entry = N_MODEL;
    o.load = load;
    o.unload = unload;
    o.max_model_bytes = max;
    n_open = most_open = load_ms = 0;
    return serve_start(&o);
}

static json_t *ask(const struct lk_server *server, const char *name, int status) {
    char body[400];
    snprintf(body, sizeof body,
             "{\"model\": \"%s\", \"max_tokens\": 4, \"temperature\": 0, \"messages\": [{\"role\": "
             "\"user\", \"content\": \"the quick brown fox jumps over the lazy dog, and then "
             "it sleeps in the shade of the old tree until the evening comes\"}]}",
             name);
    return request_json(server, status, "POST", "/v1/chat/completions", body);
}

static const char *text_of(const json_t *answer) {
    const json_t *choice = json_array_get(json_object_get(answer, "choices"), 0);
    return json_string_value(json_object_get(json_object_get(choice, "message"), "content"));
}

/* A value of /metrics for one model. */
static uint64_t model_metric(const struct lk_server *server, const char *name, const char *id) {
    char key[200];
    snprintf(key, sizeof key, "lowkey_%s{model=\"%s\"} ", name, id);
    struct http_reply reply = http_request(lk_server_port(server), "GET", "/metrics", "", "");
    const char *at = strstr(reply.body, key);
    assert_non_null(at);
    uint64_t value = strtoull(at + strlen(key), NULL, 10);
    http_free(&reply);
    return value;
}

static const char *state_of(const struct lk_server *server, size_t i, json_t **list) {
    *list = request_json(server, 200, "GET", "/v1/models", "");
    return json_string_value(
        json_object_get(json_array_get(json_object_get(*list, "data"), i), "state"));
}

static void models_in_turn(void **state) {
    struct lk_server_opts base = serve_options();
    struct lk_server *server =
        start(EACH + EACH / 2, &base); /* two, in memory for one and a half */
    json_t *list;
    assert_string_equal(state_of(server, 0, &list), "not-loaded");
    assert_int_equal(json_array_size(json_object_get(list, "data")), N_MODEL);
    json_decref(list);
    json_t *one = ask(server, "one", 200);
    assert_string_equal(json_string_value(json_object_get(one, "model")), "one");
    assert_int_equal(reused_tokens(one), 0);
    assert_string_equal(state_of(server, 0, &list), "loaded");
    json_decref(list);
    json_t *two = ask(server, "two", 200);
    assert_int_equal(reused_tokens(two), 0);
    assert_int_equal(most_open, 1); /* there is no room for both */
    /* Back to the first one: its session comes from the store, and the answer is the same. */
    for (int i = 0; i < 2; i++) {
        json_t *again = ask(server, i ? "two:latest" : "one", 200);
        assert_true(reused_tokens(again) > 32);
        assert_string_equal(prefix_source(again), "store");
        assert_string_equal(text_of(again), text_of(i ? two : one));
        json_decref(again);
    }
    assert_int_equal(model_metric(server, "model_loads_total", "one"), 2);
    assert_int_equal(model_metric(server, "model_loads_total", "two"), 2);
    assert_int_equal(model_metric(server, "model_unloads_total", "one"), 2);
    assert_int_equal(model_metric(server, "model_unloads_total", "two"), 1);
    assert_int_equal(model_metric(server, "model_loaded_bytes", "one"), 0);
    assert_int_equal(model_metric(server, "model_loaded_bytes", "two"), WEIGHTS);
    json_t *health = request_json(server, 200, "GET", "/health", ""),
           *slots = request_json(server, 200, "GET", "/slots", "");
    assert_string_equal(json_string_value(json_array_get(json_object_get(health, "loaded"), 0)),
                        "two");
    const json_t *slot = json_array_get(json_object_get(slots, "slots"), 0);
    assert_string_equal(json_string_value(json_object_get(slot, "model")), "two");
    json_decref(one), json_decref(two), json_decref(health), json_decref(slots);
    assert_true(lk_server_stop(server));
    assert_int_equal(n_open, 0);
}

static void both_fit(void **state) {
    struct lk_server_opts base = serve_options();
    base.session_dir = NULL;
    struct lk_server *server = start(2 * EACH, &base);
    for (int i = 0; i < 4; i++) {
        json_t *answer = ask(server, i % 2 ? "two" : "one", 200);
        assert_int_equal(reused_tokens(answer) > 0, i >= 2);
        json_decref(answer);
    }
    assert_int_equal(n_open, 2);
    json_t *slots = wait_idle_slots(server, 2),
           *only = request_json(server, 200, "GET", "/slots?model=one", "");
    assert_int_equal(json_array_size(json_object_get(only, "slots")), 1);
    json_decref(slots), json_decref(only);
    assert_int_equal(model_metric(server, "model_unloads_total", "one"), 0);
    assert_true(lk_server_stop(server));
}

static void what_cannot_be_served(void **state) {
    struct lk_server_opts base = serve_options();
    struct lk_server *server = start(EACH - 1, &base);
    static const char message[] = "{\"model\": \"%s\", \"prompt\": \"a\", \"max_tokens\": 1}";
    char body[200];
    snprintf(body, sizeof body, message, "three");
    expect_error(server, 404, "/v1/completions", body, "model_not_found");
    json_decref(request_json(server, 404, "POST", "/api/generate", body)); /* in ollama's form */
    json_decref(request_json(server, 404, "GET", "/v1/models/three", ""));
    snprintf(body, sizeof body, message, "one");
    json_t *json = request_json(server, 400, "POST", "/v1/completions", body),
           *error = json_object_get(json, "error");
    assert_string_equal(json_string_value(json_object_get(error, "code")), "model_too_large");
    assert_string_equal(json_string_value(json_object_get(error, "message")),
                        "model 'one' needs 5 MiB, 2 of them for caches, but models may use 5 MiB "
                        "(--max-memory)");
    json_decref(json);
    expect_error(server, 400, "/v1/completions", "{\"model\": ", "invalid_json");
    lk_server_stop(server);

    server = start(EACH, &base);
    snprintf(body, sizeof body, message, "bad");
    json = request_json(server, 500, "POST", "/v1/completions", body);
    error = json_object_get(json, "error");
    assert_string_equal(json_string_value(json_object_get(error, "code")), "model_not_loaded");
    assert_string_equal(json_string_value(json_object_get(error, "message")),
                        "model 'bad' cannot be loaded: it is cut off");
    json_decref(json);
    json_decref(ask(server, "one", 200)); /* others are still served */
    lk_server_stop(server);
    assert_int_equal(n_open, 0);
}

struct asker {
    pthread_t thread;
    const struct lk_server *server;
    const char *name;
    int n;
};

static void *run_asker(void *user) {
    struct asker *a = user;
    for (int i = 0; i < a->n; i++) json_decref(ask(a->server, a->name, 200));
    return NULL;
}

/* Clients of both models at the same time, with room for one: all are answered. */
static void clients_alternate(void **state) {
    enum { N = 4 };
    struct lk_server_opts base = serve_options();
    struct asker asker[N];
    struct lk_server *server = start(EACH, &base);
    load_ms = 20;
    for (int i = 0; i < N; i++) {
        asker[i] = (struct asker){.server = server, .name = i % 2 ? "two" : "one", .n = 4};
        assert_int_equal(pthread_create(&asker[i].thread, NULL, run_asker, &asker[i]), 0);
    }
    for (int i = 0; i < N; i++) pthread_join(asker[i].thread, NULL);
    assert_int_equal(most_open, 1);
    assert_true(lk_server_stop(server));
}

/* Requests do not wait longer than load_s, and clients may leave; stopping ends a load. */
static void waiting_is_bounded(void **state) {
    struct lk_server_opts base = serve_options();
    base.load_s = 0.3;
    struct lk_server *server = start(EACH, &base);
    load_ms = 60000;
    json_t *json = ask(server, "one", 503), *error = json_object_get(json, "error");
    assert_string_equal(json_string_value(json_object_get(error, "code")), "model_loading");
    json_decref(json);
    double begin = lk_now();
    assert_true(lk_server_stop(server));
    assert_true(lk_now() - begin < 20);
}

/* keep_alive 0 unloads the model after the answer, or at once; a time unloads it later. */
static void keep_alive(void **state) {
    struct lk_server_opts base = serve_options();
    struct lk_server *server = start(2 * EACH, &base);
    static const char *const bodies[] = {
        "{\"model\": \"one\", \"prompt\": \"a\", \"stream\": false, \"keep_alive\": 0, "
        "\"options\": {\"num_predict\": 2}}",
        "{\"model\": \"one\", \"prompt\": \"a\", \"stream\": false, \"keep_alive\": \"300ms\", "
        "\"options\": {\"num_predict\": 2}}"};
    json_t *json, *list;
    for (size_t i = 0; i < 2; i++) {
        json_decref(request_json(server, 200, "POST", "/api/generate", bodies[i]));
        for (int k = 0; k < 500 && n_open; k++) usleep(20000);
        assert_int_equal(n_open, 0);
        assert_int_equal(model_metric(server, "model_unloads_total", "one"), i + 1);
    }
    json = request_json(server, 200, "POST", "/api/generate",
                        "{\"model\": \"one\", \"keep_alive\": -1}");
    assert_string_equal(json_string_value(json_object_get(json, "done_reason")), "load");
    json_decref(json);
    json = request_json(server, 200, "GET", "/api/ps", "");
    assert_int_equal(json_array_size(json_object_get(json, "models")), 1);
    json_decref(json);
    json = request_json(server, 200, "POST", "/api/chat",
                        "{\"model\": \"one\", \"messages\": [], \"keep_alive\": \"0\"}");
    assert_string_equal(json_string_value(json_object_get(json, "done_reason")), "unload");
    json_decref(json);
    for (int k = 0; k < 500 && n_open; k++) usleep(20000);
    assert_string_equal(state_of(server, 0, &list), "not-loaded");
    json_decref(list);
    json = request_json(server, 200, "GET", "/api/tags", "");
    assert_int_equal(json_array_size(json_object_get(json, "models")), N_MODEL);
    json_decref(json);
    for (int k = 0; k < 500 && metric(server, "request_bytes"); k++) usleep(20000);
    assert_int_equal(metric(server, "request_bytes"), 0);
    assert_true(lk_server_stop(server));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(models_in_turn, make_session_dir, remove_session_dir),
        cmocka_unit_test_setup_teardown(both_fit, make_session_dir, remove_session_dir),
        cmocka_unit_test_setup_teardown(what_cannot_be_served, make_session_dir,
                                        remove_session_dir),
        cmocka_unit_test_setup_teardown(clients_alternate, make_session_dir, remove_session_dir),
        cmocka_unit_test_setup_teardown(waiting_is_bounded, make_session_dir, remove_session_dir),
        cmocka_unit_test_setup_teardown(keep_alive, make_session_dir, remove_session_dir),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
