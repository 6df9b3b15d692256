/* Requests that begin alike: the beginning is read once, kept, and shared; nobody's answer depends on whose
 * copy it came from, and what is counted is what is held. */
#include "serve/prefix.h"
#include "serve/serve.h"
#include "support_http.h"
#include "support_model.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CTX = 2048, BEGIN = 700, REST = 40, N_MADE = 6 };

static lk_model *model;
static lk_recipe *recipes[3];

static struct lk_serve_opts options(void) {
    struct lk_serve_opts o = lk_serve_defaults();
    o.model = model;
    o.id = "tiny";
    o.recipe = (const lk_recipe *const *)recipes;
    o.n_recipe = 3;
    o.port = 0;
    o.n_ctx = CTX;
    return o;
}

static struct lk_server *start(const struct lk_serve_opts *opts) {
    struct lk_server *server = NULL;
    lk_err err = {0};
    if (lk_server_start(&server, opts, &err)) fail_msg("%s", err.msg);
    return server;
}

/* The token at a place of a text; texts with the same `begin` have BEGIN tokens in common, at most. */
static int32_t token_at(int begin, int rest, int i) {
    return i < BEGIN ? 20 + (i * 7 + begin * 13 + i / 50) % 200 : 20 + (i * 11 + rest * 17) % 200;
}

/* Ask for an answer to BEGIN + n_rest tokens; *cached: those that were not read. The answer's text, to be freed. */
static char *answer(const struct lk_server *server, const char *kv, int begin, int rest, int n_rest,
                    const char *more, long long *cached) {
    json_t *list = json_array();
    for (int i = 0; i < BEGIN + n_rest; i++)
        json_array_append_new(list, json_integer(token_at(begin, rest, i)));
    char *tokens = json_dumps(list, JSON_COMPACT);
    size_t cap = strlen(tokens) + 300;
    char *body = malloc(cap);
    snprintf(body, cap,
             "{\"prompt\": %s, \"max_tokens\": %d, \"temperature\": 0, \"kv\": \"%s\"%s}", tokens,
             N_MADE, kv, more);
    struct http_reply reply = http_ask(lk_server_port(server), "POST", "/v1/completions", "", body);
    if (reply.status != 200) fail_msg("%d: %s", reply.status, reply.body);
    json_t *json = json_loadb(reply.body, reply.len, 0, NULL);
    *cached = json_integer_value(json_object_get(
        json_object_get(json_object_get(json, "usage"), "prompt_tokens_details"), "cached_tokens"));
    char *text = strdup(json_string_value(
        json_object_get(json_array_get(json_object_get(json, "choices"), 0), "text")));
    json_decref(json);
    json_decref(list);
    http_free(&reply);
    free(tokens), free(body);
    return text;
}

static void asks(const struct lk_server *server, const char *kv, int begin, int rest, int n_rest,
                 const char *more, long long expected) {
    long long cached;
    free(answer(server, kv, begin, rest, n_rest, more, &cached));
    if (cached != expected)
        fail_msg("%s, text %d.%d: %lld tokens were not read again, not %lld", kv, begin, rest,
                 cached, expected);
}

/* What the library makes of the text, read in one part (n_first 0) or two. To be freed. */
static char *expected_text(const lk_recipe *recipe, int begin, int rest, int n_rest,
                           size_t n_first) {
    lk_session *session;
    lk_sampler *sampler;
    lk_sampler_opts greedy = lk_sampler_defaults();
    lk_session_opts opts = {.n_ctx = CTX};
    int32_t tok[CTX], next;
    size_t n_tok = BEGIN + n_rest, len = 0, cap = 1024;
    char *out = calloc(1, cap);
    greedy.temperature = 0;
    for (size_t i = 0; i < n_tok; i++) tok[i] = token_at(begin, rest, (int)i);
    assert_int_equal(lk_session_new(&session, model, recipe, &opts, NULL), LK_OK);
    assert_int_equal(lk_sampler_new(&sampler, model, &greedy, NULL), LK_OK);
    if (n_first) assert_int_equal(lk_session_sync(session, tok, n_first, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_sync(session, tok, n_tok, NULL, NULL), LK_OK);
    for (int i = 0; i < N_MADE; i++) {
        assert_int_equal(lk_sampler_next(sampler, session, &next, NULL), LK_OK);
        if (lk_token_ends(model, next)) break;
        len += lk_token_text(model, next, out + len, cap - len);
        assert_int_equal(lk_session_eval(session, &next, 1, false, NULL), LK_OK);
    }
    lk_sampler_free(sampler);
    lk_session_free(session);
    return out;
}

/* Bytes that are no character come as U+FFFD: up to there the texts are the same. */
static void same_text(const char *got, const char *want) {
    size_t same = 0;
    while (want[same] && (unsigned char)want[same] < 128) same++;
    if (strncmp(got, want, same) != 0) fail_msg("\"%s\", not \"%s\"", got, want);
}

static json_t *slots_of(const struct lk_server *server) {
    struct http_reply reply = http_ask(lk_server_port(server), "GET", "/slots", "", "");
    json_t *json = json_loadb(reply.body, reply.len, 0, NULL);
    http_free(&reply);
    return json;
}

static int count_kept(const json_t *slots) {
    size_t i;
    int n = 0;
    const json_t *slot;
    json_array_foreach(json_object_get(slots, "slots"), i, slot) n +=
        json_is_true(json_object_get(slot, "prefix"));
    return n;
}

/* The second request pays for the third; those with the same prompt read nothing. */
static void beginnings_are_read_once(void **state) {
    (void)state;
    struct lk_serve_opts opts = options();
    for (int k = 0; k < 2; k++) {
        struct lk_server *server = start(&opts);
        const char *kv = lk_recipe_text(recipes[k]);
        long long cached;
        asks(server, kv, 1, 1, REST, "", 0);
        asks(server, kv, 1, 2, REST, "", 0);
        char *want = expected_text(recipes[k], 1, 3, REST, BEGIN),
             *got = answer(server, kv, 1, 3, REST, "", &cached);
        assert_int_equal(cached, BEGIN);
        same_text(got, want);
        free(got), free(want);
        asks(server, kv, 1, 4, REST + 30, "", BEGIN);
        asks(server, kv, 1, 5, REST, ", \"cache_prompt\": false", 0);
        asks(server, kv, 2, 1, REST, "", 0); /* another beginning */
        asks(server, kv, 2, 2, REST, ", \"cache_prompt\": false", 0);
        json_t *slots = slots_of(server);
        assert_int_equal(count_kept(slots), 1);
        assert_true(json_integer_value(json_object_get(slots, "shared_bytes")) > 0);
        json_decref(slots);
        asks(server, kv, 2, 3, REST, "", 0);
        asks(server, kv, 2, 4, REST, "", BEGIN);
        slots = slots_of(server);
        assert_int_equal(count_kept(slots), 2);
        json_decref(slots);
        struct http_reply reply = http_ask(lk_server_port(server), "GET", "/metrics", "", "");
        char line[80];
        snprintf(line, sizeof line, "lowkey_copied_tokens_total %d\n", 3 * BEGIN);
        if (!strstr(reply.body, line)) fail_msg("not in /metrics: %s", line);
        http_free(&reply);
        lk_server_stop(server);
        assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
    }
}

/* A prompt that another one goes on from, asked again and again: read twice, then not at all. */
static void the_same_prompt_is_not_read_again(void **state) {
    (void)state;
    struct lk_serve_opts opts = options();
    struct lk_server *server = start(&opts);
    long long cached;
    const char *kv = lk_recipe_text(recipes[0]);
    char *first = answer(server, kv, 3, 1, REST, ", \"cache_prompt\": false", &cached);
    asks(server, kv, 3, 1, REST + 300, ", \"cache_prompt\": false", 0);
    for (int i = 0; i < 3; i++) {
        char *again = answer(server, kv, 3, 1, REST, "", &cached);
        same_text(again, first);
        free(again);
        if (i) assert_int_equal(cached, BEGIN + REST);
    }
    free(first);
    lk_server_stop(server);
}

/* A full cache is cut back, in a copy: the conversation that it was made of still goes on. */
static void a_full_cache_is_cut_back_in_a_copy(void **state) {
    (void)state;
    struct lk_serve_opts opts = options();
    struct lk_server *server = start(&opts);
    long long cached;
    asks(server, "f16", 4, 1, 400, "", 0);
    char *want = expected_text(recipes[2], 4, 2, REST, 0),
         *got = answer(server, "f16", 4, 2, REST, "", &cached);
    assert_int_equal(cached, BEGIN);
    same_text(got, want);
    free(got), free(want);
    asks(server, "f16", 4, 1, 600, "", BEGIN + 400); /* its prompt, and not the same answer */
    json_t *slots = slots_of(server);
    assert_int_equal(count_kept(slots), 0);
    json_decref(slots);
    lk_server_stop(server);
    assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
}

/* Whatever is asked, what all hold stays within the limit; what was kept goes when it is longest unused. */
static void the_limit_holds(void **state) {
    (void)state;
    struct lk_serve_opts opts = options();
    lk_plan plan;
    assert_int_equal(lk_plan_make(model, recipes[0], BEGIN + REST + N_MADE, false, &plan, NULL),
                     LK_OK);
    for (int times = 1; times < 6; times++) {
        opts.max_bytes = (plan.peak_bytes - plan.weight_bytes) * (uint64_t)(4 + times) / 4;
        struct lk_server *server = start(&opts);
        for (int i = 0; i < 14; i++) {
            long long cached;
            free(answer(server, lk_recipe_text(recipes[0]), i / 5, i, REST,
                        i % 3 ? "" : ", \"n\": 3", &cached));
            json_t *slots = slots_of(server);
            uint64_t bytes = (uint64_t)json_integer_value(json_object_get(slots, "bytes"));
            if (bytes > opts.max_bytes)
                fail_msg("%llu bytes are held, %llu allowed", (unsigned long long)bytes,
                         (unsigned long long)opts.max_bytes);
            json_decref(slots);
        }
        lk_server_stop(server);
        assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
    }
}

static int open_model(void **state) {
    (void)state;
    static const char *const texts[] = {"best-3", "best-2", "f16"};
    model = open_preset("qwen2-bpe", CTX, 1);
    for (int i = 0; i < 3; i++)
        if (lk_recipe_parse(&recipes[i], texts[i], NULL) != LK_OK) return -1;
    return 0;
}

static int close_model(void **state) {
    (void)state;
    lk_model_free(model);
    for (int i = 0; i < 3; i++) lk_recipe_free(recipes[i]);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beginnings_are_read_once),
        cmocka_unit_test(the_same_prompt_is_not_read_again),
        cmocka_unit_test(a_full_cache_is_cut_back_in_a_copy),
        cmocka_unit_test(the_limit_holds),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
