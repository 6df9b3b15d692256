/* Prompts are read exactly, whatever their length, and a prefill that is cut short goes on with the
 * next request. */
#define _DEFAULT_SOURCE /* usleep */
#include "support_http.h"
#include "support_serve.h"
#include "test.h"

#include <unistd.h>

enum { LONG_CTX = 12100, LONG = 12000, MIDDLE = 3072 };

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_are_exact), cmocka_unit_test(prefills_go_on),
        cmocka_unit_test(memory_is_short), cmocka_unit_test(through_the_cache)};
    return cmocka_run_group_tests(tests, open_models, close_models);
}
