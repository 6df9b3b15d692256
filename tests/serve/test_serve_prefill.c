/* Prompts are read exactly, whatever their length, and a prefill that is cut short goes on with the
 * next request. */
#define _DEFAULT_SOURCE /* usleep */
#include "support_http.h"
#include "support_model.h"
#include "support_serve.h"
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

/* Long enough to be cut short. AddressSanitizer makes attention several times as slow. */
#ifdef __SANITIZE_ADDRESS__
enum { LONG = 6000 };
#else
enum { LONG = 12000 };
#endif
enum { LONG_CTX = LONG + 100, MIDDLE = 3072 };

static const char greedy[] = "{\"temperature\": 0, \"logprobs\": 3, \"max_tokens\": 8}";

static char last_log[1024];

static void keep_log(void *user, const char *text) {
    (void)user;
    if (strstr(text, "cut short") || strstr(text, "through the cache"))
        snprintf(last_log, sizeof last_log, "%s", text);
}

static struct lk_server_opts long_options(void) {
    struct lk_server_opts opts = serve_options();
    opts.n_ctx = LONG_CTX;
    opts.session_dir = NULL;
    opts.log = keep_log;
    last_log[0] = 0;
    return opts;
}

/* Complete a prompt of n tokens with `more` fields. */
static json_t *complete_tokens(const struct lk_server *server, int n, const char *more) {
    char *body = make_tokens_body(n, more);
    json_t *json = request_json(server, 200, "POST", "/v1/completions", body);
    free(body);
    return json;
}

/* A prompt of n tokens. Others with another `first` token have no prefix in common with it. */
static json_t *complete_other(const struct lk_server *server, int n, int first) {
    json_t *prompt = json_array(), *body = json_pack("{s:o}", "prompt", prompt);
    for (int i = 0; i < n; i++) json_array_append_new(prompt, json_integer(first + i % 5));
    char *more = json_dumps(body, JSON_COMPACT);
    json_t *json = complete_tokens(server, n, more);
    free(more);
    json_decref(body);
    return json;
}

/* Start a prefill and leave. Returns /slots afterwards, which has n sessions. */
static json_t *cut_short(const struct lk_server *server, int n_tok, size_t n) {
    close(start_prefill(server, n_tok));
    return wait_idle_slots(server, n);
}

/* The slot in `slots` whose prefill was cut short, or NULL. */
static const json_t *partial_slot(const json_t *slots) {
    size_t k;
    const json_t *slot;
    json_array_foreach(json_object_get(slots, "slots"), k,
                       slot) if (json_integer_value(json_object_get(slot, "n_prompt")) >
                                 0) return slot;
    return NULL;
}

/* The predictions after a long prompt equal the library's after an exact prefill. */
static void prompts_are_exact(void **state) {
    struct lk_server_opts opts = long_options();
    struct lk_server *server = serve_start(&opts);
    json_t *json = complete_tokens(server, MIDDLE, greedy),
           *alone = complete_tokens(
               server, MIDDLE,
               "{\"temperature\": 0, \"logprobs\": 3, \"max_tokens\": 8, \"cache_prompt\": false}");
    expect_same_answer(json, alone);
    int32_t tok[MIDDLE], n_vocab = lk_model_get_info(model).n_vocab;
    for (int i = 0; i < MIDDLE; i++) tok[i] = 10 + i * 7 % (n_vocab - 20);
    lk_session *session;
    lk_session_opts plain = {.n_ctx = MIDDLE};
    lk_token_logprob top;
    assert_int_equal(lk_session_new(&session, model, recipes[0], &plain, NULL), LK_OK);
    assert_int_equal(lk_session_sync(session, tok, MIDDLE, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_logprobs(session, -1, 0, NULL, &top, 1, NULL), LK_OK);
    const json_t *choice = json_array_get(json_object_get(json, "choices"), 0),
                 *values = json_object_get(json_object_get(choice, "logprobs"), "token_logprobs");
    assert_true((float)json_real_value(json_array_get(values, 0)) == top.logprob);
    lk_session_free(session);
    json_decref(json), json_decref(alone);
    lk_server_stop(server);
}

/* A prompt whose client has left is sent again: it goes on, with the same answer as without a
 * break; so does a longer prompt. */
static void prefills_go_on(void **state) {
    struct lk_server_opts opts = long_options();
    struct lk_server *server = serve_start(&opts);
    json_t *whole = complete_tokens(server, LONG, greedy);
    assert_int_equal(reused_tokens(whole), 0);
    lk_server_stop(server);
    server = serve_start(&opts);
    json_t *slots = cut_short(server, LONG, 1);
    const json_t *slot = partial_slot(slots);
    assert_non_null(slot);
    json_int_t n_done = json_integer_value(json_object_get(slot, "n_processed"));
    assert_int_equal(json_integer_value(json_object_get(slot, "n_prompt")), LONG);
    assert_int_equal(json_integer_value(json_object_get(slot, "n_tok")), 0);
    assert_in_range(n_done, 1, LONG - 1);
    assert_non_null(strstr(last_log, "cut short"));
    json_t *again = complete_tokens(server, LONG, greedy);
    assert_int_equal(reused_tokens(again), n_done);
    assert_string_equal(prefix_source(again), "memory");
    expect_same_answer(whole, again);
    lk_server_stop(server);
    json_decref(whole), json_decref(again), json_decref(slots);

    server = serve_start(&opts);
    slots = cut_short(server, LONG, 1);
    again = complete_tokens(server, LONG + 40, greedy);
    assert_true(reused_tokens(again) > 0);
    json_decref(again), json_decref(slots);
    lk_server_stop(server);

    /* A request that shares nothing with others leaves it alone. */
    server = serve_start(&opts);
    slots = cut_short(server, LONG, 1);
    json_t *alone = complete_tokens(server, LONG, "{\"cache_prompt\": false}");
    again = complete_tokens(server, LONG, greedy);
    assert_int_equal(reused_tokens(alone), 0);
    assert_true(reused_tokens(again) > 0);
    json_decref(alone), json_decref(again), json_decref(slots);
    lk_server_stop(server);
}

/* Bytes that a prefill of n tokens needs. */
static uint64_t planned_bytes(int n, bool chunked) {
    lk_session_opts opts = {.n_ctx = n, .chunked_prefill = chunked};
    lk_plan plan;
    assert_int_equal(lk_plan_make(model, recipes[0], &opts, &plan, NULL), LK_OK);
    return plan.peak_bytes - plan.weight_bytes;
}

/* If memory is short, a prefill that was cut short goes before older sessions. */
static void memory_is_short(void **state) {
    struct lk_server_opts opts = long_options();
    opts.max_bytes = planned_bytes(LONG, false) * 9 / 8;
    struct lk_server *server = serve_start(&opts);
    json_decref(complete_other(server, 100, 20));
    json_t *slots = cut_short(server, LONG, 2);
    assert_non_null(partial_slot(slots));
    json_decref(slots);
    json_decref(complete_other(server, 50, 30)); /* there is room for a short one */
    slots = wait_idle_slots(server, 3);
    assert_non_null(partial_slot(slots));
    json_decref(slots);
    json_decref(complete_other(server, LONG - 50, 40));
    slots = wait_idle_slots(server, 3);
    assert_null(partial_slot(slots));
    json_decref(slots);
    lk_server_stop(server);
    /* Once it is complete, it goes after them. */
    server = serve_start(&opts);
    json_decref(complete_other(server, 100, 20));
    json_decref(cut_short(server, LONG, 2));
    json_decref(complete_tokens(server, LONG, greedy));
    json_decref(complete_other(server, LONG - 50, 40));
    json_decref(wait_idle_slots(server, 1));
    lk_server_stop(server);
}

/* Without memory for an exact prefill, a prompt is read through the cache, and the log says so. */
static void through_the_cache(void **state) {
    struct lk_server_opts opts = long_options();
    opts.max_bytes = (planned_bytes(LONG, false) + planned_bytes(LONG, true)) / 2;
    struct lk_server *server = serve_start(&opts);
    json_decref(complete_tokens(server, LONG, "{}"));
    assert_non_null(strstr(last_log, "through the cache"));
    last_log[0] = 0;
    json_decref(complete_other(server, MIDDLE, 20));
    assert_string_equal(last_log, "");
    lk_server_stop(server);
}

/* ---- several prompts at a time ---- */

/* The slot in `slots` that prefills a prompt of n_tok tokens, or NULL. */
static const json_t *prefill_of(const json_t *slots, int n_tok) {
    size_t k;
    const json_t *slot;
    json_array_foreach(json_object_get(slots, "slots"), k, slot) {
        const char *is = json_string_value(json_object_get(slot, "state"));
        if (strcmp(is, "prefill") == 0 &&
            json_integer_value(json_object_get(slot, "n_prompt")) == n_tok)
            return slot;
    }
    return NULL;
}

/* Read a stream that start_prefill began, to its end. */
static void read_to_end(int fd) {
    static const char end[] = "[DONE]";
    char got[4096 + sizeof end] = {0};
    size_t n_kept = 0;
    while (!strstr(got, end)) {
        ssize_t n = read(fd, got + n_kept, 4096);
        assert_true(n > 0);
        got[n_kept + (size_t)n] = 0;
        if (strstr(got, end)) break;
        size_t len = n_kept + (size_t)n;
        n_kept = len < sizeof end ? len : sizeof end;
        memmove(got, got + len - n_kept, n_kept + 1);
    }
    close(fd);
}

/* A short prompt is answered while a long one is prefilled, and the long one has the same answer as
 * alone. A prompt that is not much shorter waits. */
static void short_prompts_do_not_wait(void **state) {
    enum { SHORT = 300, TOO_LONG = LONG - 500 };
    struct lk_server_opts opts = long_options();
    struct lk_server *server = serve_start(&opts);
    json_t *whole = complete_tokens(server, LONG, greedy);
    lk_server_stop(server);
    server = serve_start(&opts);
    int fd = start_prefill(server, LONG);
    json_t *title = complete_other(server, SHORT, 20), *slots = NULL;
    for (int i = 0; i < 100 && json_array_size(json_object_get(slots, "slots")) < 2; i++) {
        json_decref(slots);
        slots = request_json(server, 200, "GET", "/slots", "");
    }
    const json_t *slot = prefill_of(slots, LONG);
    assert_non_null(slot);
    assert_in_range(json_integer_value(json_object_get(slot, "n_processed")), 1, LONG - 1);
    json_decref(title), json_decref(slots);
    json_decref(complete_other(server, TOO_LONG, 40));
    slots = request_json(server, 200, "GET", "/slots", "");
    assert_null(prefill_of(slots, LONG));
    read_to_end(fd);
    json_t *again = complete_tokens(server, LONG, greedy);
    assert_int_equal(reused_tokens(again), LONG);
    expect_same_answer(whole, again);
    json_decref(whole), json_decref(again), json_decref(slots);
    lk_server_stop(server);
}

/* Clients that ask for short prompts without a pause. */
struct flood {
    const struct lk_server *server;
    _Atomic int n_answer, next;
    _Atomic bool ends;
};

enum { FLOOD_TOKENS = 200, N_FLOOD = 3, N_DEEP_LAYER = 16, DEEP_LONG = 3000 };

static void ask_short(struct flood *f) {
    char body[16 * FLOOD_TOKENS], *at = body;
    int first = 20 + atomic_fetch_add(&f->next, 1) % 200;
    at += sprintf(at, "{\"max_tokens\": 1, \"cache_prompt\": false, \"prompt\": [%d", first);
    for (int i = 1; i < FLOOD_TOKENS; i++) at += sprintf(at, ",%d", first + i % 5);
    sprintf(at, "]}");
    json_decref(request_json(f->server, 200, "POST", "/v1/completions", body));
    f->n_answer++;
}

static void *ask_without_pause(void *user) {
    struct flood *f = user;
    while (!f->ends) ask_short(f);
    return NULL;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* An answer gets as many steps as slices have passed, while they take at most half of the time. */
static void answers_go_on_during_long_chunks(void **state) {
    struct lk_server_opts opts = long_options();
    opts.slice_s = 1e-4;
    struct lk_server *server = serve_start(&opts);
    static const char body[] = "{\"prompt\": \"x\", \"max_tokens\": 4000, \"ignore_eos\": true}";
    char head[200];
    int fd = http_connect(lk_server_port(server)), n_chunk = (LONG + 511) / 512;
    snprintf(head, sizeof head,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n",
             strlen(body));
    http_send(fd, head, strlen(head));
    http_send(fd, body, strlen(body));
    while (metric(server, "answer_tokens_total") == 0) usleep(1000);
    uint64_t n = metric(server, "answer_tokens_total");
    json_decref(complete_tokens(server, LONG, "{}"));
    n = metric(server, "answer_tokens_total") - n;
    assert_true(n > 4 * (uint64_t)n_chunk * (uint64_t)lk_model_get_info(model).n_layer);
    close(fd);
    lk_server_stop(server);
}

/* Short prompts that never end leave half of the time to a long one. A deep model has many chunks,
 * and after each of them there is a short one that waits. */
static void long_prompts_do_not_starve(void **state) {
    struct lk_server_opts opts = long_options();
    if (opts.n_rank > 1) skip(); /* the model of its own is in one process */
    struct tiny_spec spec = *tiny_preset("qwen2-bpe");
    lk_model_opts model_opts = {.n_threads = 1};
    spec.n_layer = N_DEEP_LAYER;
    opts.model = open_tiny(&spec, &model_opts);
    struct lk_server *server = serve_start(&opts);
    struct flood flood = {.server = server};
    pthread_t thread[N_FLOOD];
    double start = now();
    read_to_end(start_prefill(server, DEEP_LONG));
    double long_s = now() - start;
    ask_short(&flood);
    start = now();
    for (int i = 0; i < 10; i++) ask_short(&flood);
    double short_s = (now() - start) / 10;
    lk_server_stop(server);
    flood.server = server = serve_start(&opts);
    flood.n_answer = 0;
    int fd = start_prefill(server, DEEP_LONG);
    for (int i = 0; i < N_FLOOD; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, ask_without_pause, &flood), 0);
    read_to_end(fd);
    int n_short = flood.n_answer;
    flood.ends = true;
    for (int i = 0; i < N_FLOOD; i++) pthread_join(thread[i], NULL);
    assert_true(n_short > 2); /* they are answered, and take about as long as the long one */
    assert_true(n_short * short_s < 2 * long_s + 3 * short_s);
    lk_server_stop(server);
    lk_model_free(opts.model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(prompts_are_exact),
                                       cmocka_unit_test(prefills_go_on),
                                       cmocka_unit_test(memory_is_short),
                                       cmocka_unit_test(through_the_cache),
                                       cmocka_unit_test(short_prompts_do_not_wait),
                                       cmocka_unit_test(answers_go_on_during_long_chunks),
                                       cmocka_unit_test(long_prompts_do_not_starve)};
    return cmocka_run_group_tests(tests, open_models, close_models);
}
