/* The store: sessions continue from disk as from memory, invalid and foreign files are ignored,
 * limits hold, and killed servers leave complete files. */
#define _DEFAULT_SOURCE /* usleep, utimensat */
#include "support_http.h"
#include "support_serve.h"
#include "support_session.h"
#include "test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LONG_CTX = 12100 };

static const char question[] =
    "tell me all there is to know about the lives of foxes and of dogs, please";

/* ---- stored sessions ---- */

static void chat_continues_after_restart(void **state) {
    struct lk_server_opts opts = serve_options();
    struct lk_server *server = serve_start(&opts);
    json_t *first = chat(server, question, NULL, NULL, "{}");
    assert_string_equal(prefix_source(first), "nothing");
    assert_int_equal(stored_files().n, 0);
    lk_server_stop(server);
    assert_int_equal(stored_files().n, 1);

    server = serve_start(&opts);
    json_t *after = chat(server, question, first, "and cats", "{}");
    assert_string_equal(prefix_source(after), "store");
    assert_true(reused_tokens(after) >= int_at(first, "usage", "prompt_tokens"));
    assert_int_equal(metric(server, "store_hits_total"), 1);
    assert_int_equal(metric(server, "session_loads_total"), 1);
    assert_true(metric(server, "session_loaded_bytes_total") == metric(server, "store_bytes"));
    lk_server_stop(server);
    /* The longer conversation has replaced the shorter one. */
    assert_int_equal(stored_files().n, 1);

    opts.session_dir = NULL;
    server = serve_start(&opts);
    json_t *again = chat(server, question, NULL, NULL, "{}"),
           *kept = chat(server, question, again, "and cats", "{}");
    assert_string_equal(prefix_source(kept), "memory");
    expect_same_answer(first, again);
    expect_same_answer(after, kept);
    assert_int_equal(reused_tokens(after), reused_tokens(kept));
    lk_server_stop(server);
    json_decref(first), json_decref(after), json_decref(again), json_decref(kept);
}

/* A session that several conversations continued is kept next to them. */
static void shared_session_file_stays(void **state) {
    struct lk_server_opts opts = serve_options();
    opts.n_checkpoint = 0; /* the session of the first one would be cut back */
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

/* Complete a prompt of n tokens. */
static json_t *complete_tokens(const struct lk_server *server, int n) {
    char *body = make_tokens_body(n, "{}");
    json_t *json = request_json(server, 200, "POST", "/v1/completions", body);
    free(body);
    return json;
}

/* Load a stored file. Returns the number of its tokens. */
static int stored_tokens(const char *name) {
    char path[2 * ROOM];
    lk_session *session;
    lk_session_opts opts = {.n_ctx = LONG_CTX};
    lk_err err = {0};
    join_path(path, store_dir, name);
    assert_int_equal(lk_session_new(&session, model, recipes[0], &opts, NULL), LK_OK);
    if (lk_session_load(session, NULL, path, &err) != LK_OK) fail_msg("%s", err.msg);
    int n = (int)lk_session_n_tok(session);
    lk_session_free(session);
    return n;
}

/* A server that is stopped during prefill stores the tokens processed so far. */
static void cancelled_prefill_keeps_its_tokens(void **state) {
    enum {
        FIRST = 100,
        PORTION = 512,
        ALL = 12000, /* too many to process before the stop */
        MORE = 20
    };
    struct lk_server_opts opts = serve_options();
    opts.n_ctx = LONG_CTX;
    struct lk_server *server = serve_start(&opts);
    json_decref(complete_tokens(server, FIRST));
    int fd = start_prefill(server, ALL);
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
}

/* A first prefill that is cut short goes on after a restart, also a second time, with the same
 * answer as without a break. Several ranks drop it, and say so. */
static void cancelled_first_prefill_goes_on(void **state) {
    enum { ALL = 12000 };
    struct lk_server_opts opts = serve_options();
    opts.n_ctx = LONG_CTX;
    struct lk_server *server = serve_start(&opts);
    int fd = start_prefill(server, ALL);
    lk_server_stop(server);
    close(fd);
    if (opts.n_rank > 1) {
        assert_int_equal(stored_files().n, 0);
        assert_int_equal(n_note, 1);
        assert_non_null(
            strstr(last_note, "a prefill of 12000 tokens that was cut short is dropped"));
        return;
    }
    struct listing first = stored_files();
    assert_int_equal(first.n, 1);
    server = serve_start(&opts);
    fd = start_prefill(server, ALL);
    lk_server_stop(server);
    close(fd);
    struct listing second = stored_files();
    assert_int_equal(second.n, 1); /* the second file replaces the first one */
    server = serve_start(&opts);
    char *body = make_tokens_body(ALL, "{\"logprobs\": 3}");
    json_t *json = request_json(server, 200, "POST", "/v1/completions", body);
    assert_string_equal(prefix_source(json), "store");
    assert_in_range(reused_tokens(json), 1, ALL - 1);
    lk_server_stop(server);
    assert_int_equal(stored_files().n, 1);
    assert_int_equal(stored_tokens(stored_files().name[0]), ALL);
    assert_int_equal(n_note, 0);
    opts.session_dir = NULL;
    server = serve_start(&opts);
    json_t *alone = request_json(server, 200, "POST", "/v1/completions", body);
    expect_same_answer(alone, json);
    lk_server_stop(server);
    json_decref(json), json_decref(alone);
    free(body);
}

/* A prefill that was cut short is evicted to disk, and goes on from there. */
static void evicted_prefill_goes_on(void **state) {
    enum { ALL = 12000 };
    struct lk_server_opts opts = serve_options();
    lk_session_opts session = {.n_ctx = ALL};
    lk_plan plan;
    if (opts.n_rank > 1) skip(); /* several ranks drop it */
    assert_int_equal(lk_plan_make(model, recipes[0], &session, &plan, NULL), LK_OK);
    opts.n_ctx = LONG_CTX;
    opts.max_bytes = (plan.peak_bytes - plan.weight_bytes) * 9 / 8;
    struct lk_server *server = serve_start(&opts);
    close(start_prefill(server, ALL));
    json_decref(wait_idle_slots(server, 1));
    json_t *more = json_pack("{s:[i]}", "prompt", 20);
    for (int i = 1; i < ALL - 50; i++)
        json_array_append_new(json_object_get(more, "prompt"), json_integer(20 + i % 5));
    char *text = json_dumps(more, 0), *other = make_tokens_body(ALL, text);
    json_decref(request_json(server, 200, "POST", "/v1/completions", other));
    assert_int_equal(stored_files().n, 1);
    char *body = make_tokens_body(ALL, "{}");
    json_t *json = request_json(server, 200, "POST", "/v1/completions", body);
    assert_string_equal(prefix_source(json), "store");
    assert_true(reused_tokens(json) > 0);
    lk_server_stop(server);
    json_decref(json), json_decref(more);
    free(text), free(other), free(body);
}

/* A prefill that exceeds the time limit keeps its tokens, so that the next tries go on. */
static void late_prefill_goes_on(void **state) {
    (void)state;
    enum { ALL = 12000, LATE = 4000, CHUNK = 512 };
    /* Each try reads a chunk of a layer at least. There are few, because a server with this limit
     * also closes connections whose request takes as long to arrive. */
    const int n_layer = lk_model_get_info(model).n_layer;
    struct lk_server_opts opts = serve_options();
    opts.n_ctx = LONG_CTX;
    opts.time_s = 0.01;
    opts.store_bytes = 0;
    struct lk_server *server = serve_start(&opts);
    char *body = make_tokens_body(LATE, "{}");
    struct http_reply reply = {0};
    for (int tries = 0; tries <= n_layer * (LATE / CHUNK + 1) && reply.status != 200; tries++) {
        http_free(&reply);
        reply = http_request(lk_server_port(server), "POST", "/v1/completions", "", body);
        if (reply.status != 200 && !strstr(reply.body, "\"time_limit\""))
            fail_msg("%d: %s", reply.status, reply.body);
        json_decref(wait_idle_slots(server, 1));
    }
    assert_int_equal(reply.status, 200);
    json_t *json = json_loadb(reply.body, reply.len, JSON_ALLOW_NUL, NULL);
    assert_in_range(reused_tokens(json), LATE - 2 * CHUNK, LATE);
    json_decref(json);
    http_free(&reply);
    /* A stream has all the time it needs for its prompt, and then for its answer. */
    opts.time_s = 0.05;
    lk_server_stop(server);
    server = serve_start(&opts);
    free(body);
    json_t *more = json_pack("{s:b}", "stream", 1);
    char *text = json_dumps(more, 0);
    body = make_tokens_body(ALL, text);
    reply = http_request(lk_server_port(server), "POST", "/v1/completions", "", body);
    assert_non_null(strstr(reply.body, "\"text\""));
    assert_null(strstr(reply.body, "time_limit"));
    http_free(&reply);
    json_decref(more);
    free(text);
    free(body);
    lk_server_stop(server);
}

/* Complete a prompt of 300 shared tokens and 12 of its own. */
static json_t *complete_shared_prefix(const struct lk_server *server, int which) {
    json_t *prompt = json_array();
    int n_vocab = lk_model_get_info(model).n_vocab;
    for (int i = 0; i < 300; i++)
        json_array_append_new(prompt, json_integer(10 + i * 7 % (n_vocab - 20)));
    for (int i = 0; i < 12; i++)
        json_array_append_new(prompt, json_integer(10 + (which * 31 + i * 3) % (n_vocab - 20)));
    json_t *body =
        json_pack("{s:o, s:i, s:i}", "prompt", prompt, "max_tokens", 4, "temperature", 0);
    char *text = json_dumps(body, 0);
    json_t *json = request_json(server, 200, "POST", "/v1/completions", text);
    free(text);
    json_decref(body);
    return json;
}

/* A shared prefix is found after every restart, whichever prompts continued it. */
static void shared_prefix_file_stays(void **state) {
    struct lk_server_opts opts = serve_options();
    struct lk_server *server = serve_start(&opts);
    json_decref(complete_shared_prefix(server, 1));
    json_decref(complete_shared_prefix(server, 2));
    lk_server_stop(server);
    for (int i = 3; i < 6; i++) {
        server = serve_start(&opts);
        json_t *json = complete_shared_prefix(server, i);
        assert_string_equal(prefix_source(json), "store");
        assert_in_range(reused_tokens(json), 256, 311);
        json_decref(json);
        lk_server_stop(server);
    }
}

/* The same prompt again: the stored session is truncated. */
static void same_prompt_after_restart(void **state) {
    struct lk_server_opts opts = serve_options();
    struct lk_server *server = serve_start(&opts);
    json_t *first = complete(server, 1, ", \"logprobs\": 3");
    lk_server_stop(server);
    server = serve_start(&opts);
    json_t *second = complete(server, 1, ", \"logprobs\": 3");
    assert_string_equal(prefix_source(second), "store");
    /* The file has a checkpoint at the end of the prompt, with its logits. */
    assert_int_equal(reused_tokens(second), int_at(second, "usage", "prompt_tokens"));
    lk_server_stop(server);
    json_decref(first), json_decref(second);
}

/* There is memory for about two sessions: evicted ones are loaded again. */
static void evicted_sessions_are_reloaded(void **state) {
    struct lk_server_opts opts = serve_options();
    lk_plan plan;
    assert_int_equal(lk_plan_make(model, recipes[0], &(lk_session_opts){.n_ctx = 100}, &plan, NULL),
                     LK_OK);
    opts.max_bytes = 3 * (plan.peak_bytes - plan.weight_bytes);
    struct lk_server *server = serve_start(&opts);
    for (int i = 0; i < 12; i++) json_decref(complete(server, i, ""));
    json_t *slots = NULL;
    int n_evicted = 0;
    bool equal = false;
    for (int i = 0; i < 1000 && !equal; i++) { /* an eviction may be in progress */
        if (slots) usleep(20000);
        json_decref(slots);
        slots = request_json(server, 200, "GET", "/slots", "");
        n_evicted = 12 - (int)json_array_size(json_object_get(slots, "slots"));
        equal = stored_files().n == n_evicted &&
                (int)metric(server, "session_saves_total") == n_evicted &&
                (int)metric(server, "store_sessions") == n_evicted;
    }
    assert_true(equal);
    assert_true(n_evicted > 0);
    assert_true(json_integer_value(json_object_get(slots, "bytes")) <=
                json_integer_value(json_object_get(slots, "max_bytes")));
    json_decref(slots);
    json_t *again = complete(server, 0, "");
    assert_string_equal(prefix_source(again), "store");
    json_decref(again);
    again = complete(server, 11, "");
    assert_string_equal(prefix_source(again), "memory");
    json_decref(again);
    lk_server_stop(server);
}

static void store_limit_is_enforced(void **state) {
    struct lk_server_opts opts = serve_options();
    if (opts.n_rank > 2) skip(); /* partly filled blocks on each rank are most of the estimates */
    struct lk_server *server = serve_start(&opts);
    json_decref(complete(server, 0, ""));
    lk_server_stop(server);
    uint64_t one = stored_files().bytes;
    assert_true(one > 0);
    /* The estimate of a file's size is a little too large. */
    opts.store_bytes = 3 * one + (1 << 18) + (1 << 16);
    char path[2 * ROOM];
    /* Other files are not touched, and not counted. */
    join_path(path, store_dir, "0123456789abcdef.txt");
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
    /* A lower limit also applies to existing files. A session that exceeds it is reported. */
    opts.store_bytes = one / 2;
    n_note = 0;
    server = serve_start(&opts);
    assert_int_equal(stored_files().n, 1);
    json_decref(complete(server, 3, ""));
    lk_server_stop(server);
    assert_int_equal(stored_files().n, 1);
    assert_int_equal(n_note, 1);
    opts.store_bytes = 0;
    server = serve_start(&opts);
    json_decref(complete(server, 3, ""));
    lk_server_stop(server);
    assert_int_equal(stored_files().n, 1);
}

static void private_requests_are_not_stored(void **state) {
    struct lk_server_opts opts = serve_options();
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

/* Replace a stored file by `data`, and expect the same answer as without a file. `at_start`: the
 * problem is reported at start, otherwise when the file is loaded. */
static void expect_file_ignored(const char *path, const uint8_t *data, size_t size,
                                const json_t *right, const char *what, bool at_start) {
    struct lk_server_opts opts = serve_options();
    assert_int_equal(write_file(path, data, size), 1);
    n_note = 0;
    struct lk_server *server = serve_start(&opts);
    if (n_note != at_start) fail_msg("%s: %d notes at the start: %s", what, n_note, last_note);
    json_t *json = complete(server, 1, ", \"logprobs\": 3");
    if (strcmp(prefix_source(json), "nothing") != 0)
        fail_msg("%s: the prefix came from %s", what, prefix_source(json));
    expect_same_answer(json, right);
    if (n_note != 1) fail_msg("%s: %d notes: %s", what, n_note, last_note);
    json_decref(json);
    json = complete(server, 2, ""); /* it is reported only once */
    assert_int_equal(n_note, 1);
    json_decref(json);
    lk_server_stop(server);
    struct listing l = stored_files();
    assert_int_equal(l.n, 3); /* it was not removed */
    for (int i = 0; i < l.n; i++) {
        char file[2 * ROOM];
        join_path(file, store_dir, l.name[i]);
        if (strcmp(file, path) != 0) unlink(file);
    }
}

static void invalid_and_foreign_files_are_ignored(void **state) {
    struct lk_server_opts opts = serve_options();
    struct lk_server *server = serve_start(&opts);
    json_t *right = complete(server, 1, ", \"logprobs\": 3");
    lk_server_stop(server);
    struct listing l = stored_files();
    assert_int_equal(l.n, 1);
    char path[2 * ROOM];
    size_t size;
    join_path(path, store_dir, l.name[0]);
    uint8_t *data = read_file(path, &size), *changed = malloc(size + 1);
    assert_non_null(data);
    memcpy(changed, data, size);
    changed[size - 100] ^= 1; /* in the rows: detected at load */
    expect_file_ignored(path, changed, size, right, "changed row", false);
    memcpy(changed, data, size);
    changed[30] ^= 1;
    expect_file_ignored(path, changed, size, right, "changed header", true);
    expect_file_ignored(path, data, size / 2, right, "truncated file", true);
    expect_file_ignored(path, data, 0, right, "empty file", true);
    expect_file_ignored(path, (const uint8_t *)"no session", 10, right, "text file", true);
    /* A server with another model stores in the same directory. */
    struct lk_server_opts foreign = serve_options();
    unlink(path);
    foreign.model = other_model;
    server = serve_start(&foreign);
    json_decref(complete(server, 1, ""));
    lk_server_stop(server);
    l = stored_files();
    assert_int_equal(l.n, 1);
    join_path(path, store_dir, l.name[0]);
    free(data);
    data = read_file(path, &size);
    expect_file_ignored(path, data, size, right, "file of another model", true);
    free(data), free(changed);
    json_decref(right);
}

/* A name like a stored session's may be a symlink or a directory. */
static void symlinks_are_not_followed(void **state) {
    struct lk_server_opts opts = serve_options();
    struct lk_server *server = serve_start(&opts);
    json_decref(complete(server, 1, ""));
    lk_server_stop(server);
    struct listing l = stored_files();
    char from[2 * ROOM], to[2 * ROOM];
    join_path(from, store_dir, l.name[0]);
    join_path(to, session_dir, "elsewhere");
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(symlink(to, from), 0);
    join_path(from, store_dir, "0123456789abcdef.session");
    assert_int_equal(mkdir(from, 0700), 0);
    server = serve_start(&opts);
    json_t *json = complete(server, 1, "");
    assert_string_equal(prefix_source(json), "nothing");
    expect_error(server, 400, "/slots/1?action=restore", "{\"filename\": \"store\"}",
                 "invalid_value");
    json_decref(json);
    join_path(from, session_dir, "link");
    assert_int_equal(symlink(to, from), 0);
    expect_error(server, 400, "/slots/1?action=restore", "{\"filename\": \"link\"}",
                 "invalid_value");
    expect_error(server, 400, "/slots/1?action=save", "{\"filename\": \"link\"}", "invalid_value");
    json_decref(request_json(server, 200, "POST", "/slots/1?action=restore",
                             "{\"filename\": \"elsewhere\"}"));
    lk_server_stop(server);
}

static void servers_share_a_directory(void **state) {
    struct lk_server_opts opts = serve_options();
    struct lk_server *a = serve_start(&opts), *b = serve_start(&opts);
    for (int i = 0; i < 3; i++)
        json_decref(complete(a, i, "")), json_decref(complete(b, i + 2, ""));
    lk_server_stop(a);
    lk_server_stop(b);
    assert_int_equal(stored_files().n, 5); /* a prompt that both processed is stored once */
    a = serve_start(&opts), b = serve_start(&opts);
    struct listing l = stored_files();
    for (int i = 0; i < l.n; i++) { /* remove some while the servers run */
        char path[2 * ROOM];
        join_path(path, store_dir, l.name[i]);
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

static void session_directory_is_checked(void **state) {
    struct lk_server_opts opts = serve_options();
    struct lk_server *server = NULL;
    lk_err err = {0};
    assert_int_equal(chmod(session_dir, 0777), 0);
    assert_int_equal(lk_server_start(&server, &opts, &err), LK_E_ARG);
    assert_non_null(strstr(err.msg, "other users can write"));
    assert_int_equal(chmod(session_dir, 0755), 0);
    opts.session_dir = "/proc/nowhere/sessions";
    assert_int_equal(lk_server_start(&server, &opts, &err), LK_E_IO);
    opts.session_dir = "/dev/null";
    assert_int_equal(lk_server_start(&server, &opts, &err), LK_E_IO);
}

/* ---- killed servers ---- */

/* Start a server in a child process. Its memory limit makes it store a session per request. */
static pid_t fork_server(int *port) {
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        struct lk_server_opts opts = serve_options();
        struct lk_server *server = NULL;
        lk_plan plan;
        bool good =
            lk_plan_make(model, recipes[0], &(lk_session_opts){.n_ctx = 100}, &plan, NULL) == LK_OK;
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

static void killed_server_leaves_complete_files(void **state) {
    enum { KILLS = 12 };
    struct random r = {7};
    int n_temporary = 0;
    if (serve_options().n_rank > 1) skip(); /* a child process has no threads */
    for (int k = 0; k < KILLS; k++) {
        int port;
        pid_t child = fork_server(&port);
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
            struct http_reply reply = http_request(port, "POST", "/v1/completions", "", body);
            bool killed = reply.status == 0;
            http_free(&reply);
            if (killed) break;
        }
        assert_int_equal(waitpid(child, NULL, 0), child);
        assert_int_equal(waitpid(killer, NULL, 0), killer);
        random_u32(&r);
        struct listing l = stored_files();
        n_temporary = l.n_temporary;    /* of all runs: they are too young to be removed */
        for (int i = 0; i < l.n; i++) { /* every complete file can be loaded */
            char path[2 * ROOM];
            assert_true(stored_tokens(l.name[i]) > 0);
            join_path(path, store_dir, l.name[i]);
            unlink(path);
        }
    }
    print_message("%d kills left %d temporary files\n", KILLS, n_temporary);
    char part[2 * ROOM]; /* temporary files are removed when they are old */
    join_path(part, store_dir, "0123456789abcdef.session.new");
    assert_int_equal(write_file(part, (const uint8_t *)"part", 4), 1);
    assert_int_equal(chmod(part, 0600), 0);
    struct lk_server_opts opts = serve_options();
    lk_server_stop(serve_start(&opts));
    assert_int_equal(access(part, F_OK), 0);
    struct timespec old[2] = {{.tv_sec = time(NULL) - 100}, {.tv_sec = time(NULL) - 100}};
    assert_int_equal(utimensat(AT_FDCWD, part, old, 0), 0);
    lk_server_stop(serve_start(&opts));
    assert_int_not_equal(access(part, F_OK), 0);
}

#define with_session_dir(test)                                                                     \
    cmocka_unit_test_setup_teardown(test, make_session_dir, remove_session_dir)

int main(void) {
    const struct CMUnitTest tests[] = {
        /* Forks, so it must run before other threads exist. */
        with_session_dir(killed_server_leaves_complete_files),
        with_session_dir(chat_continues_after_restart),
        with_session_dir(shared_session_file_stays),
        with_session_dir(cancelled_prefill_keeps_its_tokens),
        with_session_dir(cancelled_first_prefill_goes_on),
        with_session_dir(evicted_prefill_goes_on),
        with_session_dir(late_prefill_goes_on),
        with_session_dir(shared_prefix_file_stays),
        with_session_dir(same_prompt_after_restart),
        with_session_dir(evicted_sessions_are_reloaded),
        with_session_dir(store_limit_is_enforced),
        with_session_dir(private_requests_are_not_stored),
        with_session_dir(invalid_and_foreign_files_are_ignored),
        with_session_dir(symlinks_are_not_followed),
        with_session_dir(servers_share_a_directory),
        with_session_dir(session_directory_is_checked),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
