/* Sessions that the server stores by itself: what is stored goes on as what stayed in memory, what is damaged or
 * foreign is passed over, limits hold, and killed servers leave whole files. */
#define _DEFAULT_SOURCE /* usleep, utimensat */
#include "support.h"
#include "support_http.h"
#include "support_serve.h"
#include "support_session.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { LONG_CTX = 12100 };

static const char question[] =
    "tell me all there is to know about the lives of foxes and of dogs, please";

/* ---- stored by the server ---- */

static void a_chat_goes_on_after_a_restart(void **state) {
    (void)state;
    struct lk_serve_opts opts = serve_options();
    struct lk_server *server = serve_start(&opts);
    json_t *first = chat(server, question, NULL, NULL, "{}");
    assert_string_equal(prefix_source(first), "nothing");
    assert_int_equal(stored_files().n, 0);
    lk_server_stop(server);
    assert_int_equal(stored_files().n, 1);

    server = serve_start(&opts);
    json_t *after = chat(server, question, first, "and cats", "{}");
    assert_string_equal(prefix_source(after), "store");
    assert_true(reused_tokens(after) >= number_at(first, "usage", "prompt_tokens"));
    assert_int_equal(metric(server, "store_hits_total"), 1);
    assert_int_equal(metric(server, "session_loads_total"), 1);
    assert_true(metric(server, "session_loaded_bytes_total") == metric(server, "store_bytes"));
    lk_server_stop(server);
    assert_int_equal(stored_files().n,
                     1); /* the longer conversation took the place of the shorter */

    opts.session_dir = NULL;
    server = serve_start(&opts);
    json_t *again = chat(server, question, NULL, NULL, "{}"),
           *kept = chat(server, question, again, "and cats", "{}");
    assert_string_equal(prefix_source(kept), "memory");
    same_answer(first, again);
    same_answer(after, kept);
    assert_int_equal(reused_tokens(after), reused_tokens(kept));
    lk_server_stop(server);
    json_decref(first), json_decref(after), json_decref(again), json_decref(kept);
}

/* A beginning from which several conversations have gone on stays beside them. */
static void what_several_go_on_from_stays(void **state) {
    (void)state;
    struct lk_serve_opts opts = serve_options();
    struct lk_server *server = serve_start(&opts);
    json_t *first = chat(server, question, NULL, NULL, "{}");
    lk_server_stop(server);
    server = serve_start(&opts);
    json_t *one = chat(server, question, first, "and cats", "{\"max_tokens\": 100}"),
           *other = chat(server, question, first, "what of the wolves", "{}");
    assert_string_equal(prefix_source(one), "store");
    assert_string_equal(prefix_source(other), "store");
    lk_server_stop(server);
    assert_int_equal(stored_files().n, 3);
    json_decref(first), json_decref(one), json_decref(other);
}

/* The answer to a prompt of n tokens. */
static json_t *complete_tokens(const struct lk_server *server, int n) {
    char *body = tokens_body(n, "{}");
    json_t *json = ask_json(server, 200, "POST", "/v1/completions", body);
    free(body);
    return json;
}

/* How many tokens a file in the store holds, which is to load. */
static int stored_tokens(const char *name) {
    char path[2 * ROOM];
    lk_session *session;
    lk_session_opts opts = {.n_ctx = LONG_CTX};
    lk_err err = {0};
    in_folder(path, store, name);
    assert_int_equal(lk_session_new(&session, model, recipes[0], &opts, NULL), LK_OK);
    if (lk_session_load(session, NULL, path, &err) != LK_OK) fail_msg("%s", err.msg);
    int n = (int)lk_session_n_tok(session);
    lk_session_free(session);
    return n;
}

/* A server that is ended while a prompt is read keeps the conversation, and what it has read since. */
static void a_reading_that_ends_early_keeps_what_was_read(void **state) {
    (void)state;
    enum {
        FIRST = 100,
        PORTION = 512,
        ALL = 12000,
        MORE = 20
    }; /* nobody waits until all is read */
    struct lk_serve_opts opts = serve_options();
    opts.n_ctx = LONG_CTX;
    struct lk_server *server = serve_start(&opts);
    json_decref(complete_tokens(server, FIRST));
    int fd = begin_reading(server, ALL);
    lk_server_stop(server);
    close(fd);
    struct listing l = stored_files();
    assert_int_equal(l.n, 1);
    int n_read = stored_tokens(l.name[0]);
    assert_in_range(n_read, FIRST + PORTION, ALL - 1);
    server = serve_start(&opts);
    json_t *json = complete_tokens(server, n_read + MORE);
    assert_string_equal(prefix_source(json), "store");
    assert_int_equal(reused_tokens(json), n_read);
    json_decref(json);
    lk_server_stop(server);
    opts.time_s = 0.1; /* nothing is left of a session that had nothing before */
    opts.store_bytes = 0;
    server = serve_start(&opts);
    char *body = tokens_body(ALL, "{}");
    refused(server, 503, "/v1/completions", body, "time_limit");
    json_decref(idle_slots(server, 0));
    free(body);
    lk_server_stop(server);
}

/* A prompt of 300 tokens that all have in common, and 12 of its own. */
static json_t *complete_alike(const struct lk_server *server, int which) {
    json_t *prompt = json_array();
    int n_vocab = lk_model_get_info(model).n_vocab;
    for (int i = 0; i < 300; i++)
        json_array_append_new(prompt, json_integer(10 + i * 7 % (n_vocab - 20)));
    for (int i = 0; i < 12; i++)
        json_array_append_new(prompt, json_integer(10 + (which * 31 + i * 3) % (n_vocab - 20)));
    json_t *body =
        json_pack("{s:o, s:i, s:i}", "prompt", prompt, "max_tokens", 4, "temperature", 0);
    char *text = json_dumps(body, 0);
    json_t *json = ask_json(server, 200, "POST", "/v1/completions", text);
    free(text);
    json_decref(body);
    return json;
}

/* What requests have in common is found after every restart, whatever went on from it. */
static void what_requests_share_stays(void **state) {
    (void)state;
    struct lk_serve_opts opts = serve_options();
    struct lk_server *server = serve_start(&opts);
    json_decref(complete_alike(server, 1));
    json_decref(complete_alike(server, 2));
    lk_server_stop(server);
    for (int i = 3; i < 6; i++) {
        server = serve_start(&opts);
        json_t *json = complete_alike(server, i);
        assert_string_equal(prefix_source(json), "store");
        assert_in_range(reused_tokens(json), 256, 311);
        json_decref(json);
        lk_server_stop(server);
    }
}

/* The same prompt once more: its end is cut off what was stored, where the cache can be cut. */
static void the_same_prompt_after_a_restart(void **state) {
    (void)state;
    struct lk_serve_opts opts = serve_options();
    struct lk_server *server = serve_start(&opts);
    json_t *first = complete(server, 1, ", \"logprobs\": 3");
    lk_server_stop(server);
    server = serve_start(&opts);
    json_t *second = complete(server, 1, ", \"logprobs\": 3");
    assert_string_equal(prefix_source(second), "store");
    assert_int_equal(reused_tokens(second), number_at(second, "usage", "prompt_tokens") - 1);
    lk_server_stop(server);
    json_decref(first), json_decref(second);
}

/* Room for the caches of about two sessions: those that have to leave are found again. */
static void what_leaves_memory_is_found_again(void **state) {
    (void)state;
    struct lk_serve_opts opts = serve_options();
    lk_plan plan;
    assert_int_equal(lk_plan_make(model, recipes[0], 100, false, &plan, NULL), LK_OK);
    opts.max_bytes = 3 * (plan.peak_bytes - plan.weight_bytes);
    struct lk_server *server = serve_start(&opts);
    for (int i = 0; i < 12; i++) json_decref(complete(server, i, ""));
    json_t *slots = ask_json(server, 200, "GET", "/slots", "");
    for (int i = 0;
         i < 1000 && 12 - (int)json_array_size(json_object_get(slots, "slots")) != stored_files().n;
         i++) { /* what is told may be of before */
        json_decref(slots);
        usleep(20000);
        slots = ask_json(server, 200, "GET", "/slots", "");
    }
    assert_true(json_array_size(json_object_get(slots, "slots")) < 12);
    assert_true(json_integer_value(json_object_get(slots, "bytes")) <=
                json_integer_value(json_object_get(slots, "max_bytes")));
    int n_left = 12 - (int)json_array_size(json_object_get(slots, "slots"));
    assert_int_equal(stored_files().n, n_left);
    assert_int_equal(metric(server, "session_saves_total"), n_left);
    assert_int_equal(metric(server, "store_sessions"), n_left);
    json_decref(slots);
    json_t *again = complete(server, 0, "");
    assert_string_equal(prefix_source(again), "store");
    json_decref(again);
    again = complete(server, 11, "");
    assert_string_equal(prefix_source(again), "memory");
    json_decref(again);
    lk_server_stop(server);
}

static void the_limit_is_kept(void **state) {
    (void)state;
    struct lk_serve_opts opts = serve_options();
    struct lk_server *server = serve_start(&opts);
    json_decref(complete(server, 0, ""));
    lk_server_stop(server);
    uint64_t one = stored_files().bytes;
    assert_true(one > 0);
    opts.store_bytes =
        3 * one + (1 << 18) + (1 << 16); /* a file is planned a little larger than it becomes */
    char path[2 * ROOM];
    in_folder(path, store, "0123456789abcdef.txt"); /* others' files are not touched, nor counted */
    assert_int_equal(write_file(path, (const uint8_t *)"x", 1), 1);
    assert_int_equal(chmod(path, 0600), 0);
    server = serve_start(&opts);
    for (int i = 1; i < 9; i++) json_decref(complete(server, i, ""));
    lk_server_stop(server);
    struct listing l = stored_files();
    assert_true(l.bytes - 1 <= opts.store_bytes);
    assert_in_range(l.n - 1, 2, 3);
    assert_int_equal(access(path, F_OK), 0);
    server = serve_start(&opts);
    json_t *newest = complete(server, 8, ""), *oldest = complete(server, 0, "");
    assert_string_equal(prefix_source(newest), "store");
    assert_string_equal(prefix_source(oldest), "nothing");
    json_decref(newest), json_decref(oldest);
    lk_server_stop(server);
    opts.store_bytes =
        one / 2; /* what is there already is held to it too; one that is too large is told */
    n_notes = 0;
    server = serve_start(&opts);
    assert_int_equal(stored_files().n, 1);
    json_decref(complete(server, 3, ""));
    lk_server_stop(server);
    assert_int_equal(stored_files().n, 1);
    assert_int_equal(n_notes, 1);
    opts.store_bytes = 0; /* none at all */
    server = serve_start(&opts);
    json_decref(complete(server, 3, ""));
    lk_server_stop(server);
    assert_int_equal(stored_files().n, 1);
}

static void private_requests_leave_no_trace(void **state) {
    (void)state;
    struct lk_serve_opts opts = serve_options();
    struct lk_server *server = serve_start(&opts);
    json_decref(complete(server, 1, ", \"cache_prompt\": false"));
    lk_server_stop(server);
    assert_int_equal(stored_files().n, 0);
    server = serve_start(&opts);
    json_decref(complete(server, 1, ""));
    lk_server_stop(server);
    assert_int_equal(stored_files().n, 1);
    server = serve_start(&opts);
    json_t *json = complete(server, 1, ", \"cache_prompt\": false");
    assert_string_equal(prefix_source(json), "nothing");
    assert_int_equal(reused_tokens(json), 0);
    assert_int_equal(metric(server, "session_loads_total"), 0);
    assert_int_equal(metric(server, "store_hits_total") + metric(server, "store_misses_total"), 0);
    json_decref(json);
    lk_server_stop(server);
    assert_int_equal(stored_files().n, 1);
}

/* Change a file, and see that its prompt is answered as if there were none. */
static void expect_passed_over(const char *path, const uint8_t *data, size_t size,
                               const json_t *right, const char *what, bool at_start) {
    struct lk_serve_opts opts = serve_options();
    assert_int_equal(write_file(path, data, size), 1);
    n_notes = 0;
    struct lk_server *server = serve_start(&opts);
    if (n_notes != at_start) fail_msg("%s: %d notes at the start: %s", what, n_notes, last_note);
    json_t *json = complete(server, 1, ", \"logprobs\": 3");
    if (strcmp(prefix_source(json), "nothing") != 0)
        fail_msg("%s: the prefix came from %s", what, prefix_source(json));
    same_answer(json, right);
    if (n_notes != 1) fail_msg("%s: %d notes: %s", what, n_notes, last_note);
    json_decref(json);
    json = complete(server, 2, ""); /* and once is enough */
    assert_int_equal(n_notes, 1);
    json_decref(json);
    lk_server_stop(server);
    struct listing l = stored_files();
    assert_int_equal(l.n, 3); /* nobody removed it */
    for (int i = 0; i < l.n; i++) {
        char file[2 * ROOM];
        in_folder(file, store, l.name[i]);
        if (strcmp(file, path) != 0) unlink(file);
    }
}

static void damaged_and_foreign_files_are_passed_over(void **state) {
    (void)state;
    struct lk_serve_opts opts = serve_options();
    struct lk_server *server = serve_start(&opts);
    json_t *right = complete(server, 1, ", \"logprobs\": 3");
    lk_server_stop(server);
    struct listing l = stored_files();
    assert_int_equal(l.n, 1);
    char path[2 * ROOM];
    size_t size;
    in_folder(path, store, l.name[0]);
    uint8_t *data = read_file(path, &size), *changed = malloc(size + 1);
    assert_non_null(data);
    memcpy(changed, data, size);
    changed[size - 100] ^= 1; /* in the rows: found when it is loaded */
    expect_passed_over(path, changed, size, right, "a changed row", false);
    memcpy(changed, data, size);
    changed[30] ^= 1;
    expect_passed_over(path, changed, size, right, "a changed header", true);
    expect_passed_over(path, data, size / 2, right, "half a file", true);
    expect_passed_over(path, data, 0, right, "an empty file", true);
    expect_passed_over(path, (const uint8_t *)"no session", 10, right, "a text", true);
    struct lk_serve_opts foreign =
        serve_options(); /* another model's server stores in the same folder */
    unlink(path);
    foreign.model = other_model;
    server = serve_start(&foreign);
    json_decref(complete(server, 1, ""));
    lk_server_stop(server);
    l = stored_files();
    assert_int_equal(l.n, 1);
    in_folder(path, store, l.name[0]);
    free(data);
    data = read_file(path, &size);
    expect_passed_over(path, data, size, right, "another model's", true);
    free(data), free(changed);
    json_decref(right);
}

/* A name like those of stored sessions may lead elsewhere, or to no file. */
static void links_are_not_followed(void **state) {
    (void)state;
    struct lk_serve_opts opts = serve_options();
    struct lk_server *server = serve_start(&opts);
    json_decref(complete(server, 1, ""));
    lk_server_stop(server);
    struct listing l = stored_files();
    char from[2 * ROOM], to[2 * ROOM];
    in_folder(from, store, l.name[0]);
    in_folder(to, dir, "elsewhere");
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(symlink(to, from), 0);
    in_folder(from, store, "0123456789abcdef.session");
    assert_int_equal(mkdir(from, 0700), 0);
    server = serve_start(&opts);
    json_t *json = complete(server, 1, "");
    assert_string_equal(prefix_source(json), "nothing");
    refused(server, 400, "/slots/1?action=restore", "{\"filename\": \"store\"}", "invalid_value");
    json_decref(json);
    in_folder(from, dir, "link");
    assert_int_equal(symlink(to, from), 0);
    refused(server, 400, "/slots/1?action=restore", "{\"filename\": \"link\"}", "invalid_value");
    refused(server, 400, "/slots/1?action=save", "{\"filename\": \"link\"}", "invalid_value");
    json_decref(
        ask_json(server, 200, "POST", "/slots/1?action=restore", "{\"filename\": \"elsewhere\"}"));
    lk_server_stop(server);
}

static void servers_share_a_folder(void **state) {
    (void)state;
    struct lk_serve_opts opts = serve_options();
    struct lk_server *a = serve_start(&opts), *b = serve_start(&opts);
    for (int i = 0; i < 3; i++)
        json_decref(complete(a, i, "")), json_decref(complete(b, i + 2, ""));
    lk_server_stop(a);
    lk_server_stop(b);
    assert_int_equal(stored_files().n, 5); /* what both had read is there once */
    a = serve_start(&opts), b = serve_start(&opts);
    struct listing l = stored_files();
    for (int i = 0; i < l.n; i++) { /* taken away behind their backs */
        char path[2 * ROOM];
        in_folder(path, store, l.name[i]);
        if (i % 2) unlink(path);
    }
    int n_found = 0;
    for (int i = 0; i < 5; i++) {
        json_t *json = complete(i % 2 ? a : b, i, "");
        n_found += strcmp(prefix_source(json), "store") == 0;
        json_decref(json);
    }
    assert_int_equal(n_found, 3);
    lk_server_stop(a);
    lk_server_stop(b);
}

static void folders_are_checked(void **state) {
    (void)state;
    struct lk_serve_opts opts = serve_options();
    struct lk_server *server = NULL;
    lk_err err = {0};
    assert_int_equal(chmod(dir, 0777), 0);
    assert_int_equal(lk_server_start(&server, &opts, &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "others may write"));
    assert_int_equal(chmod(dir, 0755), 0);
    opts.session_dir = "/proc/nowhere/sessions";
    assert_int_equal(lk_server_start(&server, &opts, &err), LK_E_IO);
    opts.session_dir = "/dev/null";
    assert_int_equal(lk_server_start(&server, &opts, &err), LK_E_IO);
}

/* ---- killed ---- */

/* A server in a process of its own, which stores a session for every request. */
static pid_t start_apart(int *port) {
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        struct lk_serve_opts opts = serve_options();
        struct lk_server *server = NULL;
        lk_plan plan;
        bool good = lk_plan_make(model, recipes[0], 100, false, &plan, NULL) == LK_OK;
        opts.max_bytes =
            plan.peak_bytes - plan.weight_bytes + (plan.peak_bytes - plan.weight_bytes) / 2;
        opts.note = NULL;
        if (good && lk_server_start(&server, &opts, NULL) == LK_OK)
            *port = lk_server_port(server);
        else
            *port = 0;
        if (write(pipes[1], port, sizeof *port) != sizeof *port) _exit(1);
        for (;;) pause();
    }
    assert_true(child > 0);
    close(pipes[1]);
    assert_int_equal(read(pipes[0], port, sizeof *port), sizeof *port);
    close(pipes[0]);
    assert_true(*port > 0);
    return child;
}

static void killed_servers_leave_whole_files(void **state) {
    (void)state;
    enum { KILLS = 12 };
    struct random r = {7};
    int n_part = 0;
    for (int k = 0; k < KILLS; k++) {
        int port;
        pid_t child = start_apart(&port);
        pid_t killer = fork();
        if (killer == 0) {
            usleep((useconds_t)(20000 + random_int(&r, 0, 120000) + k * 1000));
            kill(child, SIGKILL);
            _exit(0);
        }
        for (int i = 0; i < 200; i++) {
            char body[200];
            snprintf(body, sizeof body,
                     "{\"prompt\": \"run %d prompt %d, which is long enough to be stored on the "
                     "disk\", \"max_tokens\": 2}",
                     k, i);
            struct http_reply reply = http_ask(port, "POST", "/v1/completions", "", body);
            bool gone = reply.status == 0;
            http_free(&reply);
            if (gone) break;
        }
        assert_int_equal(waitpid(child, NULL, 0), child);
        assert_int_equal(waitpid(killer, NULL, 0), killer);
        random_u32(&r);
        struct listing l = stored_files();
        n_part = l.n_part;              /* of all runs: nobody removes them yet */
        for (int i = 0; i < l.n; i++) { /* every file that has its name can be loaded */
            char path[2 * ROOM];
            assert_true(stored_tokens(l.name[i]) > 0);
            in_folder(path, store, l.name[i]);
            unlink(path);
        }
    }
    print_message("%d parts were left by %d kills\n", n_part, KILLS);
    char part[2 * ROOM]; /* parts are swept away when they are old */
    in_folder(part, store, "0123456789abcdef.session.new");
    assert_int_equal(write_file(part, (const uint8_t *)"part", 4), 1);
    assert_int_equal(chmod(part, 0600), 0);
    struct lk_serve_opts opts = serve_options();
    lk_server_stop(serve_start(&opts));
    assert_int_equal(access(part, F_OK), 0);
    struct timespec old[2] = {{.tv_sec = time(NULL) - 100}, {.tv_sec = time(NULL) - 100}};
    assert_int_equal(utimensat(AT_FDCWD, part, old, 0), 0);
    lk_server_stop(serve_start(&opts));
    assert_int_not_equal(access(part, F_OK), 0);
}

#define in_new_folder(test) cmocka_unit_test_setup_teardown(test, new_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        in_new_folder(
            killed_servers_leave_whole_files), /* forks: before there were other threads */
        in_new_folder(a_chat_goes_on_after_a_restart),
        in_new_folder(what_several_go_on_from_stays),
        in_new_folder(a_reading_that_ends_early_keeps_what_was_read),
        in_new_folder(what_requests_share_stays),
        in_new_folder(the_same_prompt_after_a_restart),
        in_new_folder(what_leaves_memory_is_found_again),
        in_new_folder(the_limit_is_kept),
        in_new_folder(private_requests_leave_no_trace),
        in_new_folder(damaged_and_foreign_files_are_passed_over),
        in_new_folder(links_are_not_followed),
        in_new_folder(servers_share_a_folder),
        in_new_folder(folders_are_checked),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
