/* Shared prefixes: prefilled once, kept and copied. Answers do not depend on which copy they came
 * from, and the memory accounting is exact. */
#include "serve/server.h"
#include "serve/slot_prefill.h"
#include "support_http.h"
#include "support_model.h"
#include "test.h"

#include <jansson.h>

enum { CTX = 2048, N_SHARED = 700, N_OWN = 40, N_DECODE = 6 };

static lk_model *model;
enum { N_RECIPE = 4, EVICTS = 3 };
static lk_recipe *recipes[N_RECIPE];

static struct lk_server_opts options(void) {
    struct lk_server_opts o = lk_server_defaults();
    o.model = model;
    o.id = "tiny";
    o.recipe = (const lk_recipe *const *)recipes;
    o.n_recipe = N_RECIPE;
    o.port = 0;
    o.n_ctx = CTX;
    o.n_checkpoint = 0; /* a session with one is cut back instead of copied */
    return o;
}

static struct lk_server *start(const struct lk_server_opts *opts) {
    struct lk_server *server = NULL;
    lk_err err = {0};
    if (lk_server_start(&server, opts, &err)) fail_msg("%s", err.msg);
    return server;
}

/* Token i of a prompt. Prompts with the same `shared` have the first N_SHARED tokens in common. */
static int32_t token_at(int shared, int own, int i) {
    return i < N_SHARED ? 20 + (i * 7 + shared * 13 + i / 50) % 200
                        : 20 + (i * 11 + own * 17) % 200;
}

/* Complete a prompt of N_SHARED + n_own tokens. Returns the text, owned. *cached: reused tokens. */
static char *answer(const struct lk_server *server, const char *kv, int shared, int own, int n_own,
                    const char *more, long long *cached) {
    json_t *list = json_array();
    for (int i = 0; i < N_SHARED + n_own; i++)
        json_array_append_new(list, json_integer(token_at(shared, own, i)));
    char *tokens = json_dumps(list, JSON_COMPACT);
    size_t cap = strlen(tokens) + 300;
    char *body = malloc(cap);
    snprintf(body, cap,
             "{\"prompt\": %s, \"max_tokens\": %d, \"temperature\": 0, \"kv\": \"%s\"%s}", tokens,
             N_DECODE, kv, more);
    struct http_reply reply =
        http_request(lk_server_port(server), "POST", "/v1/completions", "", body);
    if (reply.status != 200) fail_msg("%d: %s", reply.status, reply.body);
    json_t *json = json_loadb(reply.body, reply.len, JSON_ALLOW_NUL, NULL);
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

static void expect_cached(const struct lk_server *server, const char *kv, int shared, int own,
                          int n_own, const char *more, long long expected) {
    long long cached;
    free(answer(server, kv, shared, own, n_own, more, &cached));
    if (cached != expected)
        fail_msg("%s, prompt %d.%d: %lld tokens were reused, expected %lld", kv, shared, own,
                 cached, expected);
}

/* The library's answer, with prefill in one part (n_first 0) or two. Owned. */
static char *library_answer(const lk_recipe *recipe, int shared, int own, int n_own,
                            size_t n_first) {
    lk_session *session;
    lk_sampler *sampler;
    lk_sampler_opts greedy = lk_sampler_chat();
    lk_session_opts opts = {.n_ctx = CTX};
    int32_t tok[CTX], next;
    size_t n_tok = N_SHARED + n_own, len = 0, cap = 1024;
    char *out = calloc(1, cap);
    greedy.temperature = 0;
    for (size_t i = 0; i < n_tok; i++) tok[i] = token_at(shared, own, (int)i);
    assert_int_equal(lk_session_new(&session, model, recipe, &opts, NULL), LK_OK);
    assert_int_equal(lk_sampler_new(&sampler, model, &greedy, NULL), LK_OK);
    if (n_first) assert_int_equal(lk_session_sync(session, tok, n_first, NULL, NULL), LK_OK);
    assert_int_equal(lk_session_sync(session, tok, n_tok, NULL, NULL), LK_OK);
    for (int i = 0; i < N_DECODE; i++) {
        assert_int_equal(lk_sampler_next(sampler, session, -1, &next, NULL), LK_OK);
        if (lk_token_ends(model, next)) break;
        size_t n_byte;
        const char *text = lk_token_text(model, next, &n_byte);
        assert_true(len + n_byte < cap);
        memcpy(out + len, text, n_byte + 1);
        len += n_byte;
        assert_int_equal(lk_session_eval(session, &next, 1, false, NULL), LK_OK);
    }
    lk_sampler_free(sampler);
    lk_session_free(session);
    return out;
}

/* Invalid bytes become U+FFFD, so compare the leading ASCII text. */
static void expect_same_ascii_text(const char *got, const char *want) {
    size_t same = 0;
    while (want[same] && (unsigned char)want[same] < 128) same++;
    if (strncmp(got, want, same) != 0) fail_msg("\"%s\", expected \"%s\"", got, want);
}

static json_t *get_slots(const struct lk_server *server) {
    struct http_reply reply = http_request(lk_server_port(server), "GET", "/slots", "", "");
    json_t *json = json_loadb(reply.body, reply.len, JSON_ALLOW_NUL, NULL);
    http_free(&reply);
    return json;
}

static int count_prefix_slots(const json_t *slots) {
    size_t i;
    int n = 0;
    const json_t *slot;
    json_array_foreach(json_object_get(slots, "slots"), i, slot) n +=
        json_is_true(json_object_get(slot, "prefix"));
    return n;
}

/* The second request keeps the prefix, and the third one copies it. */
static void shared_prefix_is_prefilled_once(void **state) {
    struct lk_server_opts opts = options();
    for (int k = 0; k < 2; k++) {
        struct lk_server *server = start(&opts);
        const char *kv = lk_recipe_text(recipes[k]);
        long long cached;
        expect_cached(server, kv, 1, 1, N_OWN, "", 0);
        expect_cached(server, kv, 1, 2, N_OWN, "", 0);
        char *want = library_answer(recipes[k], 1, 3, N_OWN, N_SHARED),
             *got = answer(server, kv, 1, 3, N_OWN, "", &cached);
        assert_int_equal(cached, N_SHARED);
        expect_same_ascii_text(got, want);
        free(got), free(want);
        expect_cached(server, kv, 1, 4, N_OWN + 30, "", N_SHARED);
        expect_cached(server, kv, 1, 5, N_OWN, ", \"cache_prompt\": false", 0);
        expect_cached(server, kv, 2, 1, N_OWN, "", 0); /* another prefix */
        expect_cached(server, kv, 2, 2, N_OWN, ", \"cache_prompt\": false", 0);
        json_t *slots = get_slots(server);
        assert_int_equal(count_prefix_slots(slots), 1);
        assert_true(json_integer_value(json_object_get(slots, "shared_bytes")) > 0);
        json_decref(slots);
        expect_cached(server, kv, 2, 3, N_OWN, "", 0);
        expect_cached(server, kv, 2, 4, N_OWN, "", N_SHARED);
        slots = get_slots(server);
        assert_int_equal(count_prefix_slots(slots), 2);
        json_decref(slots);
        struct http_reply reply = http_request(lk_server_port(server), "GET", "/metrics", "", "");
        char line[80];
        snprintf(line, sizeof line, "lowkey_copied_tokens_total %d\n", 3 * N_SHARED);
        if (!strstr(reply.body, line)) fail_msg("not in /metrics: %s", line);
        http_free(&reply);
        lk_server_stop(server);
        assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
    }
}

/* A prompt that another one extends, sent repeatedly: from the second time nothing is prefilled. A
 * recipe that evicts shares whole prompts, too. */
static void repeated_prompt_is_not_prefilled(void **state) {
    struct lk_server_opts opts = options();
    for (int k = 0; k <= EVICTS; k += EVICTS) {
        struct lk_server *server = start(&opts);
        long long cached;
        const char *kv = lk_recipe_text(recipes[k]);
        char *first = answer(server, kv, 3, 1, N_OWN, ", \"cache_prompt\": false", &cached);
        expect_cached(server, kv, 3, 1, N_OWN + 300, ", \"cache_prompt\": false", 0);
        for (int i = 0; i < 3; i++) {
            char *again = answer(server, kv, 3, 1, N_OWN, "", &cached);
            expect_same_ascii_text(again, first);
            free(again);
            if (i) assert_int_equal(cached, N_SHARED + N_OWN);
        }
        free(first);
        lk_server_stop(server);
    }
}

/* An f16 cache can be truncated in a copy, so the original conversation can continue. */
static void f16_copy_is_truncated(void **state) {
    struct lk_server_opts opts = options();
    struct lk_server *server = start(&opts);
    long long cached;
    expect_cached(server, "f16", 4, 1, 400, "", 0);
    char *want = library_answer(recipes[2], 4, 2, N_OWN, 0),
         *got = answer(server, "f16", 4, 2, N_OWN, "", &cached);
    assert_int_equal(cached, N_SHARED);
    expect_same_ascii_text(got, want);
    free(got), free(want);
    expect_cached(server, "f16", 4, 1, 600, "",
                  N_SHARED + 400); /* its prompt, but not the same answer */
    json_t *slots = get_slots(server);
    assert_int_equal(count_prefix_slots(slots), 0);
    json_decref(slots);
    lk_server_stop(server);
    assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
}

/* Memory stays within the limit; kept prefixes are evicted like other sessions. */
static void memory_limit_is_enforced(void **state) {
    struct lk_server_opts opts = options();
    lk_plan plan;
    lk_session_opts plan_opts = {.n_ctx = N_SHARED + N_OWN + N_DECODE};
    assert_int_equal(lk_plan_make(model, recipes[0], &plan_opts, &plan, NULL), LK_OK);
    for (int times = 1; times < 6; times++) {
        opts.max_bytes = (plan.peak_bytes - plan.weight_bytes) * (uint64_t)(4 + times) / 4;
        struct lk_server *server = start(&opts);
        for (int i = 0; i < 14; i++) {
            long long cached;
            free(answer(server, lk_recipe_text(recipes[0]), i / 5, i, N_OWN,
                        i % 3 ? "" : ", \"n\": 3", &cached));
            json_t *slots = get_slots(server);
            uint64_t bytes = (uint64_t)json_integer_value(json_object_get(slots, "bytes"));
            if (bytes > opts.max_bytes)
                fail_msg("%llu bytes are used, %llu are allowed", (unsigned long long)bytes,
                         (unsigned long long)opts.max_bytes);
            json_decref(slots);
        }
        lk_server_stop(server);
        assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
    }
}

/* A session that a prompt cannot copy, because both exceed the limit, is evicted for it. */
static void memory_limit_forbids_a_copy(void **state) {
    enum { F16 = 2, N_LONG = 400 };
    struct lk_server_opts opts = options();
    lk_plan plan;
    lk_session_opts plan_opts = {.n_ctx = N_SHARED + N_LONG + N_DECODE};
    assert_int_equal(lk_plan_make(model, recipes[F16], &plan_opts, &plan, NULL), LK_OK);
    opts.max_bytes = (plan.peak_bytes - plan.weight_bytes) * 21 / 20;
    opts.queue_s = 20;
    struct lk_server *server = start(&opts);
    expect_cached(server, "f16", 4, 1, N_LONG, "", 0);
    expect_cached(server, "f16", 4, 2, N_OWN, "", 0);
    lk_server_stop(server);
}

/* ---- chats, without a server ---- */

/* A slot continues a chat if its own tokens and those of the rest fit the context. */
static void a_chat_that_does_not_fit_is_not_continued(void **state) {
    struct lk_server_opts opts = options();
    opts.n_ctx = 8;
    struct lk_slots slots = {.opts = &opts};
    struct lk_slot *slot;
    struct lk_completion completion = {.request = {.chat = true}};
    int32_t other = 1;
    struct lk_prompt prompt = {.text = "abcd", .tok = &other, .n_tok = 1};
    struct lk_job job = {.completion = &completion, .prompt = &prompt};
    assert_int_equal(lk_slots_add(&slots, 0, &slot, NULL), LK_OK);
    lk_buf_append_str(&slot->text, "ab");
    slot->n_tok = 6;
    assert_null(lk_slots_match(&slots, &job));
    slot->n_tok = 5;
    assert_ptr_equal(lk_slots_match(&slots, &job), slot);
    assert_int_equal(job.n_tok, 7);
    free(job.tok);
    lk_slots_free(&slots);
}

/* Of slots with the prompt's text in other tokens, the one that holds the most of it. */
static void the_longest_text_is_continued(void **state) {
    enum { N_WORD = 40, F16 = 2 };
    struct lk_server_opts opts = options();
    struct lk_slots slots = {.opts = &opts};
    struct lk_completion completion = {.request = {.chat = true, .recipe = F16, .reuse = true}};
    int32_t *word;
    size_t n_word;
    struct lk_prompt prompt = {.tok = calloc(N_WORD, sizeof *prompt.tok), .n_tok = N_WORD};
    struct lk_job job = {.completion = &completion, .prompt = &prompt};
    assert_int_equal(lk_tokenize(model, "hell", 4, 0, 9, &word, &n_word, NULL), LK_OK);
    assert_int_equal(n_word, 1);
    for (int i = 0; i < N_WORD; i++) prompt.tok[i] = *word;
    lk_tokens_free(word);
    for (size_t n = 30; n >= 20; n -= 10) { /* words, a token for each of their letters */
        struct lk_slot *slot;
        assert_int_equal(lk_slots_add(&slots, F16, &slot, NULL), LK_OK);
        for (; slot->n_tok < 4 * n; slot->n_tok++) {
            int32_t *letter;
            size_t n_letter;
            assert_int_equal(
                lk_tokenize(model, "hell" + slot->n_tok % 4, 1, 0, 9, &letter, &n_letter, NULL),
                LK_OK);
            slot->tok[slot->n_tok] = *letter;
            lk_tokens_free(letter);
        }
        assert_int_equal(lk_session_sync(slot->session, slot->tok, slot->n_tok, NULL, NULL), LK_OK);
    }
    struct lk_slot_source source = lk_shared_prefix_choose(&slots, &job);
    assert_ptr_equal(source.reuse, slots.slot[0]);
    assert_int_equal(job.n_tok, 4 * 30 + N_WORD - 30);
    free(job.tok);
    free(prompt.tok);
    lk_slots_free(&slots);
}

static int open_model(void **state) {
    static const char *const texts[N_RECIPE] = {"best-3", "best-2", "f16", "h2o"};
    model = open_preset("qwen2-bpe", CTX, 1);
    for (int i = 0; i < N_RECIPE; i++)
        if (lk_recipe_parse(&recipes[i], texts[i], NULL) != LK_OK) return -1;
    return 0;
}

static int close_model(void **state) {
    lk_model_free(model);
    for (int i = 0; i < N_RECIPE; i++) lk_recipe_free(recipes[i]);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_prefix_is_prefilled_once),
        cmocka_unit_test(repeated_prompt_is_not_prefilled),
        cmocka_unit_test(f16_copy_is_truncated),
        cmocka_unit_test(memory_limit_is_enforced),
        cmocka_unit_test(memory_limit_forbids_a_copy),
        cmocka_unit_test(a_chat_that_does_not_fit_is_not_continued),
        cmocka_unit_test(the_longest_text_is_continued),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
