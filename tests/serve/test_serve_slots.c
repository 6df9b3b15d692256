/* Saving, restoring and erasing of sessions by name: restored ones continue as before, foreign
 * files are refused, and names cannot leave the directory. */
#define _DEFAULT_SOURCE
#include "support_http.h"
#include "support_serve.h"
#include "support_session.h"
#include "test.h"

#include <sys/stat.h>
#include <unistd.h>

static const char question[] =
    "tell me all there is to know about the lives of foxes and of dogs, please";

static void save_restore_erase(void **state) {
    struct lk_server_opts opts = serve_options();
    opts.store_bytes = 0;
    struct lk_server *server = serve_start(&opts);
    json_t *first = chat(server, question, NULL, NULL, "{}"), *json;
    json_t *slots = wait_idle_slots(server, 1),
           *slot = json_array_get(json_object_get(slots, "slots"), 0);
    char path[100], file[2 * ROOM];
    struct stat info;
    int id = (int)json_integer_value(json_object_get(slot, "id"));
    snprintf(path, sizeof path, "/slots/%d?action=save", id);
    json = request_json(server, 200, "POST", path, "{\"filename\": \"my-chat.1\"}");
    join_path(file, session_dir, "my-chat.1");
    assert_int_equal(stat(file, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(json_integer_value(json_object_get(json, "n_written")), info.st_size);
    json_int_t n_saved = json_integer_value(json_object_get(json, "n_saved"));
    assert_int_equal(n_saved, json_integer_value(json_object_get(slot, "n_tok")));
    json_decref(json), json_decref(slots);
    json_t *kept = chat(server, question, first, "and cats", "{}");
    lk_server_stop(server);

    server = serve_start(&opts);
    json = request_json(server, 200, "POST", "/slots/7?action=restore",
                        "{\"filename\": \"my-chat.1\"}");
    assert_int_equal(json_integer_value(json_object_get(json, "n_restored")), n_saved);
    assert_int_equal(json_integer_value(json_object_get(json, "id_slot")), 7);
    assert_int_equal(json_integer_value(json_object_get(json, "n_read")), info.st_size);
    json_decref(json);
    json_t *after = chat(server, question, first, "and cats", "{}");
    assert_string_equal(prefix_source(after), "memory");
    expect_same_answer(after, kept);
    json_decref(request_json(server, 200, "POST", "/slots/7?action=restore",
                             "{\"filename\": \"my-chat.1\"}")); /* replaces the session */
    slots = wait_idle_slots(server, 1);
    assert_int_equal(json_integer_value(json_object_get(
                         json_array_get(json_object_get(slots, "slots"), 0), "n_tok")),
                     n_saved);
    json_decref(slots);
    json = request_json(server, 200, "POST", "/slots/7?action=erase", "");
    assert_int_equal(json_integer_value(json_object_get(json, "n_erased")), n_saved);
    json_decref(json);
    expect_error(server, 404, "/slots/7?action=erase", "", "slot_not_found");
    expect_error(server, 404, "/slots/7?action=save", "{\"filename\": \"x\"}", "slot_not_found");
    lk_server_stop(server);
    assert_int_equal(stored_files().n, 0);
    json_decref(first), json_decref(kept), json_decref(after);
}

/* The id that a client gives may be the one that the session would get anyway. */
static void restored_id_may_be_the_next_id(void **state) {
    struct lk_server_opts opts = serve_options();
    opts.store_bytes = 0;
    struct lk_server *server = serve_start(&opts);
    json_decref(complete(server, 1, ""));
    json_decref(
        request_json(server, 200, "POST", "/slots/1?action=save", "{\"filename\": \"trip\"}"));
    lk_server_stop(server);
    server = serve_start(&opts);
    for (int i = 0; i < 2; i++) {
        json_t *json = request_json(server, 200, "POST", "/slots/1?action=restore",
                                    "{\"filename\": \"trip\"}");
        assert_int_equal(json_integer_value(json_object_get(json, "id_slot")), 1);
        assert_true(json_integer_value(json_object_get(json, "n_restored")) > 0);
        json_decref(json);
        json_t *slots = wait_idle_slots(server, 1);
        assert_int_equal(json_integer_value(json_object_get(
                             json_array_get(json_object_get(slots, "slots"), 0), "id")),
                         1);
        json_decref(slots);
    }
    json_t *again = complete(server, 1, "");
    assert_string_equal(prefix_source(again), "memory");
    json_decref(again);
    lk_server_stop(server);
}

/* Erasing a session also removes its file from the store. */
static void erase_also_removes_stored_file(void **state) {
    struct lk_server_opts opts = serve_options();
    struct lk_server *server = serve_start(&opts);
    json_decref(complete(server, 1, ""));
    lk_server_stop(server);
    assert_int_equal(stored_files().n, 1);
    server = serve_start(&opts);
    json_t *json = complete(server, 1, "");
    assert_string_equal(prefix_source(json), "store");
    json_decref(json);
    json_decref(request_json(server, 200, "POST", "/slots/1?action=erase", "{}"));
    lk_server_stop(server);
    assert_int_equal(stored_files().n, 0);
}

/* The client gets the reason, the operator also the path. */
static void write_failure_reports_reason(void **state) {
    struct lk_server_opts opts = serve_options();
    struct lk_server *server = serve_start(&opts);
    char part[2 * ROOM];
    json_decref(complete(server, 1, ""));
    join_path(part, session_dir, "trip.new");
    assert_int_equal(mkdir(part, 0700), 0);
    n_note = 0;
    expect_error(server, 500, "/slots/1?action=save", "{\"filename\": \"trip\"}", "internal_error");
    json_t *json =
        request_json(server, 500, "POST", "/slots/1?action=save", "{\"filename\": \"trip\"}");
    assert_non_null(strstr(
        json_string_value(json_object_get(json_object_get(json, "error"), "message")), "irectory"));
    json_decref(json);
    assert_int_equal(n_note, 2);
    assert_non_null(strstr(last_note, part));
    lk_server_stop(server);
}

static void store_name_is_reserved(void **state) {
    struct lk_server_opts opts = serve_options();
    opts.store_bytes = 0;
    struct lk_server *server = serve_start(&opts);
    json_decref(complete(server, 1, ""));
    expect_error(server, 400, "/slots/1?action=save", "{\"filename\": \"store\"}", "invalid_value");
    lk_server_stop(server);
    opts.store_bytes = 1 << 20;
    lk_server_stop(serve_start(&opts));
}

static void write_named(const char *name, const uint8_t *data, size_t size) {
    char path[2 * ROOM];
    join_path(path, session_dir, name);
    assert_int_equal(write_file(path, data, size), 1);
}

/* Save a new session of n_tok tokens as session_dir/name. */
static void save_named(lk_model *with, const lk_recipe *recipe, const char *name, size_t n_tok) {
    char path[2 * ROOM];
    lk_session *session;
    int32_t tok[CTX];
    struct random r = {n_tok};
    lk_session_opts opts = {.n_ctx = 2 * CTX};
    for (size_t i = 0; i < CTX; i++)
        tok[i] = random_int(&r, 0, lk_model_get_info(with).n_vocab - 1);
    join_path(path, session_dir, name);
    assert_int_equal(lk_session_new(&session, with, recipe, &opts, NULL), LK_OK);
    assert_int_equal(lk_session_sync(session, tok, n_tok < CTX ? n_tok : CTX, NULL, NULL), LK_OK);
    if (n_tok > CTX)
        assert_int_equal(lk_session_eval(session, tok, n_tok - CTX, false, NULL), LK_OK);
    assert_int_equal(lk_session_save(session, NULL, path, NULL), LK_OK);
    lk_session_free(session);
}

static void session_names_are_checked(void **state) {
    static const char *const bad[] = {"../x",   "..",      ".",  "",       "/etc/passwd", "a/b",
                                      "./a",    ".hidden", "-x", "x.new",  "a b",         "\\u00e4",
                                      "a\\\\b", "a\\nb",   "~",  "%2e%2e", "store/x",     "a:b"};
    struct lk_server_opts opts = serve_options();
    struct lk_server *server = serve_start(&opts);
    json_decref(complete(server, 1, ""));
    static const char *const actions[] = {"/slots/1?action=save", "/slots/1?action=restore"};
    char body[ROOM], name[130];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        for (int k = 0; k < 2; k++) {
            snprintf(body, sizeof body, "{\"filename\": \"%s\"}", bad[i]);
            expect_error(server, 400, actions[k], body, "invalid_value");
        }
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = 0;
    for (int k = 0; k < 2; k++) {
        snprintf(body, sizeof body, "{\"filename\": \"%s\"}", name);
        expect_error(server, 400, actions[k], body, "invalid_value");
        expect_error(server, 400, actions[k], "{\"filename\": \"a\\u0000b\"}", "invalid_json");
        expect_error(server, 400, actions[k], "{\"filename\": \"\xff\"}", "invalid_json");
        expect_error(server, 400, actions[k], "{\"filename\": 5}", "invalid_type");
        expect_error(server, 400, actions[k], "{}", "missing_field");
        expect_error(server, 400, actions[k], "", "missing_field");
    }
    name[128] = 0; /* the maximum length */
    snprintf(body, sizeof body, "{\"filename\": \"%s\"}", name);
    json_decref(request_json(server, 200, "POST", actions[0], body));
    expect_error(server, 400, "/slots/1?action=load", "{\"filename\": \"x\"}", "invalid_value");
    expect_error(server, 400, "/slots/1", "{\"filename\": \"x\"}", "invalid_value");
    expect_error(server, 404, "/slots/99?action=save", "{\"filename\": \"x\"}", "slot_not_found");
    expect_error(server, 404, "/slots/1x?action=save", "{\"filename\": \"x\"}", "not_found");
    expect_error(server, 404, "/slots/99999999999?action=save", "{\"filename\": \"x\"}",
                 "slot_not_found");
    expect_error(server, 404, "/slots/1000001?action=restore", "{\"filename\": \"x\"}",
                 "slot_not_found");
    expect_error(server, 404, "/slots/-1?action=save", "{\"filename\": \"x\"}", "not_found");
    json_decref(request_json(server, 405, "GET", "/slots/1?action=save", ""));
    lk_server_stop(server);
    opts.session_dir = NULL;
    server = serve_start(&opts);
    expect_error(server, 501, "/slots/1?action=save", "{\"filename\": \"x\"}", "not_enabled");
    lk_server_stop(server);
}

static void foreign_sessions_are_not_restored(void **state) {
    struct lk_server_opts opts = serve_options();
    struct lk_server *server = serve_start(&opts);
    static const char restore[] = "/slots/1?action=restore";
    save_named(model, recipes[0], "good", 100);
    save_named(model, recipes[2], "recipe", 100);
    save_named(other_model, recipes[0], "model", 100);
    save_named(model, recipes[0], "long", CTX + 1);
    char path[2 * ROOM];
    size_t size;
    join_path(path, session_dir, "good");
    uint8_t *data = read_file(path, &size);
    write_named("half", data, size / 2);
    write_named("empty", data, 0);
    data[size - 50] ^= 1;
    write_named("damaged", data, size);
    free(data);
    expect_error(server, 404, restore, "{\"filename\": \"absent\"}", "session_not_found");
    expect_error(server, 400, restore, "{\"filename\": \"recipe\"}", "unsupported");
    expect_error(server, 400, restore, "{\"filename\": \"model\"}", "invalid_value");
    expect_error(server, 400, restore, "{\"filename\": \"long\"}", "context_length_exceeded");
    expect_error(server, 400, restore, "{\"filename\": \"half\"}", "invalid_value");
    expect_error(server, 400, restore, "{\"filename\": \"empty\"}", "invalid_value");
    expect_error(server, 400, restore, "{\"filename\": \"damaged\"}", "invalid_value");
    json_t *slots = request_json(server, 200, "GET", "/slots", "");
    assert_int_equal(json_array_size(json_object_get(slots, "slots")), 0);
    json_decref(slots);
    json_decref(request_json(server, 200, "POST", restore, "{\"filename\": \"good\"}"));
    lk_server_stop(server);
    opts.max_bytes = 1 << 12;
    server = serve_start(&opts);
    expect_error(server, 503, restore, "{\"filename\": \"good\"}", "overloaded");
    lk_server_stop(server);
}

/* Start a completion of a new prompt, which gets slot `id`, and save that slot as soon as it
 * exists. Returns the status of the save; *fd is the connection of the completion. */
static int save_while_busy(struct lk_server *server, int id, int *fd) {
    char body[128], request[600], path[64];
    snprintf(body, sizeof body,
             "{\"prompt\": \"%c another prompt\", \"max_tokens\": 450, \"stream\": true}",
             'a' + id);
    snprintf(request, sizeof request,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    snprintf(path, sizeof path, "/slots/%d?action=save", id);
    *fd = http_connect(lk_server_port(server));
    http_send(*fd, request, strlen(request));
    int status = 404;
    for (int i = 0; i < 20000 && status == 404; i++) {
        struct http_reply reply =
            http_request(lk_server_port(server), "POST", path, "", "{\"filename\": \"b\"}");
        status = reply.status;
        http_free(&reply);
    }
    return status;
}

/* A busy session cannot be saved. Others can be saved and restored meanwhile. */
static void busy_sessions_get_409(void **state) {
    struct lk_server_opts opts = serve_options();
    struct lk_server *server = serve_start(&opts);
    json_decref(complete(server, 1, ""));
    /* A completion may be over before the save if this process had to wait for the CPU. */
    int status = 200, fd = -1;
    for (int id = 2; id < 6 && status == 200; id++) {
        if (fd >= 0) close(fd);
        status = save_while_busy(server, id, &fd);
    }
    assert_int_equal(status, 409);
    json_decref(request_json(server, 200, "POST", "/slots/1?action=save", "{\"filename\": \"a\"}"));
    json_decref(
        request_json(server, 200, "POST", "/slots/1?action=restore", "{\"filename\": \"a\"}"));
    close(fd);
    lk_server_stop(server);
}

#define with_session_dir(test)                                                                     \
    cmocka_unit_test_setup_teardown(test, make_session_dir, remove_session_dir)

int main(void) {
    const struct CMUnitTest tests[] = {
        with_session_dir(save_restore_erase),
        with_session_dir(restored_id_may_be_the_next_id),
        with_session_dir(erase_also_removes_stored_file),
        with_session_dir(write_failure_reports_reason),
        with_session_dir(store_name_is_reserved),
        with_session_dir(session_names_are_checked),
        with_session_dir(foreign_sessions_are_not_restored),
        with_session_dir(busy_sessions_get_409),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
