/* A server with a tiny model and a temporary session directory. */
#define _DEFAULT_SOURCE /* mkdtemp, usleep */
#include "support_serve.h"

#include "support_http.h"
#include "support_model.h"
#include "support_ranks.h"
#include "test.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

lk_model *model, *other_model;
lk_recipe *recipes[3];
char session_dir[ROOM], store_dir[ROOM + 16], last_note[1024];
_Atomic int n_note;

/* LOWKEY_TEST_RANKS=N: the server has N ranks, which are threads. */
static struct ranks *ranks;
static lk_cluster *cluster;

/* ---- session directory and server ---- */

void record_note(void *user, const char *line) {
    snprintf(last_note, sizeof last_note, "%s", line);
    n_note++;
}

struct lk_server_opts serve_options(void) {
    struct lk_server_opts o = lk_server_defaults();
    o.model = model;
    o.n_rank = lk_cluster_n_peer(cluster);
    o.id = "tiny";
    o.recipe = (const lk_recipe *const *)recipes;
    o.n_recipe = 2;
    o.port = 0;
    o.n_ctx = CTX;
    o.session_dir = session_dir;
    o.store_bytes = 64u << 20;
    o.note = record_note;
    o.seed = 1;
    return o;
}

struct lk_server *serve_start(const struct lk_server_opts *opts) {
    struct lk_server *server = NULL;
    lk_err err = {0};
    if (lk_server_start(&server, opts, &err)) fail_msg("%s", err.msg);
    return server;
}

void join_path(char *out, const char *dir, const char *name) {
    snprintf(out, 2 * ROOM, "%.500s/%.300s", dir, name);
}

int make_session_dir(void **state) {
    const char *tmp = getenv("TMPDIR");
    snprintf(session_dir, sizeof session_dir, "%.200s/lowkey-disk-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(session_dir)) return -1;
    join_path(store_dir, session_dir, "store");
    n_note = 0;
    return 0;
}

static void remove_dir(const char *dir) {
    DIR *d = opendir(dir);
    for (struct dirent *file; d && (file = readdir(d));) {
        char path[2 * ROOM];
        join_path(path, dir, file->d_name);
        if (strcmp(file->d_name, ".") != 0 && strcmp(file->d_name, "..") != 0 && unlink(path) != 0)
            rmdir(path);
    }
    if (d) closedir(d);
    rmdir(dir);
}

int remove_session_dir(void **state) {
    remove_dir(store_dir);
    remove_dir(session_dir);
    return 0;
}

struct listing stored_files(void) {
    struct listing l = {0};
    DIR *d = opendir(store_dir);
    for (struct dirent *file; d && (file = readdir(d));) {
        char path[2 * ROOM];
        struct stat info;
        size_t len = strlen(file->d_name);
        join_path(path, store_dir, file->d_name);
        if (lstat(path, &info) != 0 || !S_ISREG(info.st_mode)) continue;
        assert_int_equal(info.st_mode & 0777, 0600);
        if (len > 4 && strcmp(file->d_name + len - 4, ".new") == 0) {
            l.n_temporary++;
            continue;
        }
        assert_true(l.n < 64);
        snprintf(l.name[l.n++], sizeof l.name[0], "%s", file->d_name);
        l.bytes += (uint64_t)info.st_size;
    }
    if (d) closedir(d);
    return l;
}

/* ---- requests ---- */

json_t *request_json(const struct lk_server *server, int status, const char *method,
                     const char *path, const char *body) {
    struct http_reply reply = http_request(lk_server_port(server), method, path, "", body);
    if (reply.status != status)
        fail_msg("%s %s %.300s: status %d, expected %d: %.300s", method, path, body, reply.status,
                 status, reply.body);
    json_t *json = json_loadb(reply.body, reply.len, JSON_ALLOW_NUL, NULL);
    assert_non_null(json);
    http_free(&reply);
    return json;
}

void expect_error(const struct lk_server *server, int status, const char *path, const char *body,
                  const char *code) {
    json_t *json = request_json(server, status, "POST", path, body),
           *error = json_object_get(json, "error");
    const char *message = json_string_value(json_object_get(error, "message")),
               *got = json_string_value(json_object_get(error, "code"));
    assert_true(message && *message && json_is_string(json_object_get(error, "type")));
    if (*session_dir && strstr(message, session_dir))
        fail_msg("the message reveals the session directory: %s", message);
    if (!got || strcmp(got, code) != 0)
        fail_msg("%s %.200s: code %s (%s), expected %s", path, body, got, message, code);
    json_decref(json);
}

json_int_t int_at(const json_t *json, const char *object, const char *field) {
    return json_integer_value(json_object_get(json_object_get(json, object), field));
}

json_int_t reused_tokens(const json_t *response) {
    return int_at(json_object_get(response, "usage"), "prompt_tokens_details", "cached_tokens");
}

const char *prefix_source(const json_t *response) {
    return json_string_value(json_object_get(json_object_get(response, "cache"), "prefix"));
}

uint64_t metric(const struct lk_server *server, const char *name) {
    struct http_reply reply = http_request(lk_server_port(server), "GET", "/metrics", "", "");
    char line[200];
    snprintf(line, sizeof line, "\nlowkey_%s ", name);
    const char *at = strstr(reply.body, line);
    if (!at) fail_msg("metric %s is missing", name);
    uint64_t value = strtoull(at + strlen(line), NULL, 10);
    http_free(&reply);
    return value;
}

json_t *wait_idle_slots(const struct lk_server *server, size_t n) {
    for (int i = 0; i < 100; i++) {
        json_t *slots = request_json(server, 200, "GET", "/slots", ""), *slot;
        size_t k, n_idle = 0;
        json_array_foreach(json_object_get(slots, "slots"), k, slot) n_idle +=
            strcmp(json_string_value(json_object_get(slot, "state")), "idle") == 0;
        if (n_idle == n && json_array_size(json_object_get(slots, "slots")) == n) return slots;
        json_decref(slots);
        usleep(20000);
    }
    fail_msg("there are not %zu sessions, all idle", n);
    return NULL;
}

static char *make_chat_body(const char *first, const json_t *response, const char *second,
                            const char *more) {
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", first);
    if (response) {
        json_array_append(
            messages,
            json_object_get(json_array_get(json_object_get(response, "choices"), 0), "message"));
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", second));
    }
    json_t *body = json_pack("{s:o, s:i, s:i, s:b, s:i}", "messages", messages, "max_tokens", 24,
                             "temperature", 0, "logprobs", 1, "top_logprobs", 3);
    json_t *extra = json_loads(more, 0, NULL);
    assert_non_null(extra);
    json_object_update(body, extra);
    char *text = json_dumps(body, 0);
    json_decref(extra);
    json_decref(body);
    return text;
}

json_t *chat(const struct lk_server *server, const char *first, const json_t *response,
             const char *second, const char *more) {
    char *body = make_chat_body(first, response, second, more);
    json_t *json = request_json(server, 200, "POST", "/v1/chat/completions", body);
    free(body);
    return json;
}

json_t *complete(const struct lk_server *server, int i, const char *more) {
    char body[400];
    snprintf(body, sizeof body,
             "{\"prompt\": \"%c%c number %d of many prompts that are all different from each "
             "other\", \"max_tokens\": 4, \"temperature\": 0%s}",
             'a' + i % 26, 'z' - i % 26, i, more);
    return request_json(server, 200, "POST", "/v1/completions", body);
}

char *make_tokens_body(int n, const char *more) {
    json_t *prompt = json_array(),
           *body = json_pack("{s:o, s:i}", "prompt", prompt, "max_tokens", 1),
           *extra = json_loads(more, 0, NULL);
    int n_vocab = lk_model_get_info(model).n_vocab;
    for (int i = 0; i < n; i++)
        json_array_append_new(prompt, json_integer(10 + i * 7 % (n_vocab - 20)));
    json_object_update(body, extra);
    char *text = json_dumps(body, JSON_COMPACT);
    json_decref(extra);
    json_decref(body);
    return text;
}

int start_prefill(const struct lk_server *server, int n_tok) {
    char *body = make_tokens_body(n_tok, "{\"stream\": true, \"return_progress\": true}"),
         head[200], got[8192];
    int fd = http_connect(lk_server_port(server));
    size_t len = 0;
    snprintf(head, sizeof head,
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n",
             strlen(body));
    http_send(fd, head, strlen(head));
    http_send(fd, body, strlen(body));
    free(body);
    for (got[0] = 0; !strstr(got, "prompt_progress"); got[len] = 0) {
        ssize_t n = read(fd, got + len, sizeof got - 1 - len);
        assert_true(n > 0);
        len += (size_t)n;
    }
    return fd;
}

void expect_same_answer(const json_t *a, const json_t *b) {
    char *x = json_dumps(json_object_get(a, "choices"), JSON_SORT_KEYS),
         *y = json_dumps(json_object_get(b, "choices"), JSON_SORT_KEYS);
    if (strcmp(x, y) != 0) fail_msg("responses differ:\n%.600s\n%.600s", x, y);
    free(x), free(y);
}

/* ---- models ---- */

static void start_ranks(void) {
    const char *n = getenv("LOWKEY_TEST_RANKS");
    if (n && atoi(n) > 1) ranks = ranks_start(atoi(n), &cluster);
}

int open_models(void **state) {
    static const char *const names[] = {"best-4", "f16", "best-2"};
    struct tiny_spec spec = *tiny_preset("qwen2-bpe");
    lk_model_opts opts = {.n_threads = 1};
    start_ranks();
    model = open_tiny_cluster(&spec, &opts, cluster);
    spec.seed++;
    other_model = open_tiny(&spec, &opts);
    for (int i = 0; i < 3; i++)
        if (lk_recipe_parse(&recipes[i], names[i], NULL) != LK_OK) return -1;
    return 0;
}

int close_models(void **state) {
    lk_err err = {0};
    lk_model_free(model);
    lk_model_free(other_model);
    for (int i = 0; i < 3; i++) lk_recipe_free(recipes[i]);
    if (ranks && ranks_end(ranks, &err) != LK_OK) fail_msg("%s", err.msg);
    ranks = NULL;
    cluster = NULL;
    return 0;
}
