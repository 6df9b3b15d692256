/* Recipes with latents, eviction policies and absorb are served like any other: texts continue from
 * the store and from files as from memory, and a prompt that is sent again is copied. */
#include "support_model.h"
#include "support_serve.h"
#include "test.h"

enum { FIRST = 300, SECOND = 340 };

static const char *const texts[] = {"best-1.9",
                                    "palu",
                                    "tale",
                                    "sink 4: f16; keep 40 by h2o: rot4; window 30: f16",
                                    "sink 4(shift): f16; body: none; window 60: f16",
                                    "keep 40 by tova: f16; window 16: f16; absorb less",
                                    "sink 4: f16; body: none; window 60: f16; absorb less",
                                    NULL};

/* The i-th recipe as the only one of a server. */
static struct lk_server_opts options_for(int i) {
    struct lk_server_opts opts = serve_options();
    lk_recipe_free(recipes[0]);
    recipes[0] = NULL;
    assert_int_equal(lk_recipe_parse(&recipes[0], texts[i], NULL), LK_OK);
    opts.n_recipe = 1;
    return opts;
}

/* Complete the first n tokens of a text. The answer to a part of it is one token, so that the
 * session holds that part only and a longer prompt continues it. */
static json_t *complete_text(const struct lk_server *server, int n) {
    char *body =
        make_tokens_body(n, n == FIRST ? "{\"max_tokens\": 1, \"temperature\": 0, \"logprobs\": 2}"
                                       : "{\"max_tokens\": 20, \"temperature\": 0, "
                                         "\"logprobs\": 2}");
    json_t *json = request_json(server, 200, "POST", "/v1/completions", body);
    free(body);
    return json;
}

static int only_slot(const struct lk_server *server) {
    json_t *slots = wait_idle_slots(server, 1);
    int id = (int)json_integer_value(
        json_object_get(json_array_get(json_object_get(slots, "slots"), 0), "id"));
    json_decref(slots);
    return id;
}

static void texts_continue(void **state) {
    for (int i = 0; texts[i]; i++) {
        struct lk_server_opts opts = options_for(i), memory = opts;
        char path[100];
        assert_int_equal(make_session_dir(state), 0);
        struct lk_server *server = serve_start(&opts);
        json_t *first = complete_text(server, FIRST);
        snprintf(path, sizeof path, "/slots/%d?action=save", only_slot(server));
        json_decref(request_json(server, 200, "POST", path, "{\"filename\": \"trip\"}"));
        lk_server_stop(server);
        if (stored_files().n != 1) fail_msg("%s was not stored: %s", texts[i], last_note);

        server = serve_start(&opts);
        json_t *after = complete_text(server, SECOND);
        if (strcmp(prefix_source(after), "store") != 0)
            fail_msg("%s: the prefix came from %s: %s", texts[i], prefix_source(after), last_note);
        lk_server_stop(server);

        memory.session_dir = NULL;
        server = serve_start(&memory);
        json_t *again = complete_text(server, FIRST), *kept = complete_text(server, SECOND);
        assert_string_equal(prefix_source(kept), "memory");
        expect_same_answer(first, again);
        expect_same_answer(after, kept);
        assert_int_equal(reused_tokens(after), reused_tokens(kept));
        lk_server_stop(server);

        opts.store_bytes = 0;
        server = serve_start(&opts);
        json_decref(request_json(server, 200, "POST", "/slots/7?action=restore",
                                 "{\"filename\": \"trip\"}"));
        json_t *restored = complete_text(server, SECOND);
        assert_string_equal(prefix_source(restored), "memory");
        expect_same_answer(restored, kept);
        lk_server_stop(server);
        json_decref(first), json_decref(after), json_decref(again), json_decref(kept);
        json_decref(restored);
        assert_int_equal(n_note, 0);
        remove_session_dir(state);
    }
}

/* With checkpoints a prompt that is sent again continues from its end. */
static void repeated_prompts_go_back(void **state) {
    for (int i = 0; texts[i]; i++) {
        struct lk_server_opts opts = options_for(i);
        opts.session_dir = NULL;
        struct lk_server *server = serve_start(&opts);
        json_t *first = complete_text(server, SECOND), *again = complete_text(server, SECOND);
        if (reused_tokens(again) != SECOND)
            fail_msg("%s: %d tokens were reused", texts[i], (int)reused_tokens(again));
        expect_same_answer(first, again);
        json_decref(first), json_decref(again);
        lk_server_stop(server);
        assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
    }
}

/* Without them the second request keeps a copy after the prompt, and the third one starts with
 * it. */
static void repeated_prompts_are_copied(void **state) {
    for (int i = 0; texts[i]; i++) {
        struct lk_server_opts opts = options_for(i);
        opts.session_dir = NULL;
        opts.n_checkpoint = 0;
        struct lk_server *server = serve_start(&opts);
        json_t *reply[3];
        for (int k = 0; k < 3; k++) {
            reply[k] = complete_text(server, SECOND);
            bool evicts = lk_recipe_evicts(recipes[0]); /* others are truncated if possible */
            if (k == 2 ? reused_tokens(reply[k]) < SECOND - !evicts
                       : evicts && reused_tokens(reply[k]))
                fail_msg("%s: request %d reused %d tokens", texts[i], k,
                         (int)reused_tokens(reply[k]));
            if (k == 2 || evicts) expect_same_answer(reply[k], reply[k ? k - 1 : 0]);
        }
        for (int k = 0; k < 3; k++) json_decref(reply[k]);
        lk_server_stop(server);
        assert_int_equal(lk_model_get_info(model).shared_bytes, 0);
    }
}

/* Files that were made with another sidecar are reported and not used. */
static void other_sidecars_are_ignored(void **state) {
    static const int needy[] = {0, 5};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(make_session_dir(state), 0);
        struct lk_server_opts opts = options_for(needy[i]);
        struct lk_server *server = serve_start(&opts);
        json_t *first = complete_text(server, FIRST);
        lk_server_stop(server);
        opts.model = other_model;
        server = serve_start(&opts);
        json_t *after = complete_text(server, SECOND);
        assert_string_equal(prefix_source(after), "nothing");
        if (n_note != 1 || !strstr(last_note, "another sidecar"))
            fail_msg("%d notes: %s", n_note, last_note);
        lk_server_stop(server);
        json_decref(first), json_decref(after);
        remove_session_dir(state);
    }
}

static int open_tiny_models(void **state) {
    model = open_with_sidecar("qwen2-bpe", CTX, 1, 5);
    other_model = open_with_sidecar("qwen2-bpe", CTX, 1, 6);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_continue),
        cmocka_unit_test(repeated_prompts_are_copied),
        cmocka_unit_test(repeated_prompts_go_back),
        cmocka_unit_test(other_sidecars_are_ignored),
    };
    return cmocka_run_group_tests(tests, open_tiny_models, close_models);
}
