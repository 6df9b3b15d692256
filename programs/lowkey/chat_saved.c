/* Saves and loads conversations. */
#include "chat_saved.h"

#include "base/atomic_file.h"
#include "common.h"
#include "output.h"
#include "text.h"
#include "xalloc.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_CHAT_FILE = 1024 * 1024 * 1024 };

static char *messages_path(const char *path) { return xasprintf("%s.chat", path); }

/* Which of the two files exist? */
static int find_files(const char *path, bool *cache, bool *messages) {
    char *name = messages_path(path);
    lk_err err = {0};
    lk_status status = lk_file_exists(cache, path, &err);
    if (!status) status = lk_file_exists(messages, name, &err);
    free(name);
    return status ? print_lk_error(&err) : STATUS_OK;
}

int chat_saved_exists(const char *path, bool *exists) {
    bool cache = false, messages = false;
    int status = find_files(path, &cache, &messages);
    *exists = cache || messages;
    return status;
}

int chat_saved_recipe(const char *path, lk_recipe **out) {
    lk_err err = {0};
    bool cache, messages;
    *out = NULL;
    int status = find_files(path, &cache, &messages);
    if (status || !cache) return status;
    return lk_session_file_recipe(out, path, &err) ? print_lk_error(&err) : STATUS_OK;
}

int chat_saved_replaceable(const char *path, bool *exists) {
    lk_recipe *recipe = NULL;
    lk_err err = {0};
    bool cache = false, messages = false;
    int status = find_files(path, &cache, &messages);
    *exists = cache || messages;
    if (status || !cache) return status;
    lk_status unknown = lk_session_file_recipe(&recipe, path, &err);
    lk_recipe_free(recipe);
    if (unknown == LK_E_FORMAT)
        return print_error("%s is not a saved session, and is never replaced; choose another name",
                           path);
    return unknown ? print_lk_error(&err) : STATUS_OK;
}

/* ---- writing ---- */

static json_t *messages_json(const struct chat_conversation *c, size_t n_answers) {
    json_t *msg = json_array(), *tok = json_array();
    for (size_t i = 0; i < c->n_msg; i++)
        json_array_append_new(msg, json_pack("{s:s s:s s:I}", "role", c->msg[i].role, "content",
                                             c->msg[i].content, "end", (json_int_t)c->end[i]));
    for (size_t i = 0; i < c->n_tok; i++) json_array_append_new(tok, json_integer(c->tok[i]));
    return json_pack(
        "{s:i s:I s:b s:I s:I s:o s:o}", "lowkey_chat", 1, "answers", (json_int_t)n_answers, "cut",
        c->cut, "unknown_tokens", (json_int_t)c->n_unknown, "vocabulary",
        (json_int_t)lk_model_get_info(c->model).n_vocab, "messages", msg, "tokens", tok);
}

static int write_messages(const char *path, const struct chat_conversation *c, size_t n_answers) {
    char *name = messages_path(path);
    struct lk_atomic_file file;
    lk_err err = {0};
    lk_status status = lk_atomic_file_open(&file, name, &err);
    if (!status) {
        json_t *json = messages_json(c, n_answers);
        bool written = json && json_dumpf(json, file.file, JSON_COMPACT) == 0;
        json_decref(json);
        if (!written) status = lk_fail(&err, LK_E_IO, "cannot write %s", name);
        status = lk_atomic_file_close(&file, status, &err);
    }
    free(name);
    return status ? print_lk_error(&err) : STATUS_OK;
}

/* Drop what the session holds beyond the conversation, for example after /undo. */
static lk_status drop_other_tokens(const struct chat_conversation *c, lk_session *session,
                                   lk_err *err) {
    size_t n = lk_session_n_tok(session);
    bool is_prefix = n <= c->n_tok && (n == 0 || memcmp(lk_session_tokens(session), c->tok,
                                                        n * sizeof *c->tok) == 0);
    if (is_prefix) return LK_OK;
    if (c->n_tok) return lk_session_sync(session, c->tok, c->n_tok, NULL, err);
    lk_session_clear(session);
    return LK_OK;
}

int chat_saved_write(const char *path, const struct chat_conversation *c, lk_session *session,
                     size_t n_answers) {
    lk_err err = {0};
    int status = write_messages(path, c, n_answers);
    if (status) return status;
    lk_status saved = drop_other_tokens(c, session, &err);
    if (!saved && lk_session_n_tok(session) > 0) {
        saved = lk_session_save(session, NULL, path, &err);
    } else if (!saved && unlink(path) != 0 && errno != ENOENT) {
        /* An older cache would be loaded as the conversation. */
        saved = lk_fail(&err, LK_E_IO, "cannot remove %s: %s", path, strerror(errno));
    }
    return saved ? print_lk_error(&err) : STATUS_OK;
}

/* ---- reading ---- */

static bool read_integer(const json_t *object, const char *name, size_t max, size_t *out) {
    const json_t *value = json_object_get(object, name);
    json_int_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < 0 || (uint64_t)n > max) return false;
    *out = (size_t)n;
    return true;
}

static bool parse_tokens(const json_t *json, struct chat_conversation *c) {
    const json_t *tok = json_object_get(json, "tokens"), *item;
    const int32_t n_vocab = lk_model_get_info(c->model).n_vocab;
    size_t i;
    if (!json_is_array(tok)) return false;
    c->tok = xmalloc(json_array_size(tok) * sizeof *c->tok);
    json_array_foreach(tok, i, item) {
        json_int_t id = json_integer_value(item);
        if (!json_is_integer(item) || id < 0 || id >= n_vocab) return false;
        c->tok[c->n_tok++] = (int32_t)id;
    }
    return true;
}

static bool read_messages(const json_t *json, struct chat_conversation *c) {
    const json_t *list = json_object_get(json, "messages"), *item;
    size_t i, end = 0;
    if (!json_is_array(list)) return false;
    json_array_foreach(list, i, item) {
        const char *role = json_string_value(json_object_get(item, "role")),
                   *content = json_string_value(json_object_get(item, "content"));
        bool known = role && (strcmp(role, "user") == 0 || strcmp(role, "assistant") == 0 ||
                              (i == 0 && strcmp(role, "system") == 0));
        if (!known || !content || !read_integer(item, "end", c->n_tok, &end)) return false;
        chat_conversation_add(c, role, content);
        c->end[i] = end;
    }
    return true;
}

/* Read NAME.chat into the empty conversation `c`. */
static int parse_messages(const char *path, struct chat_conversation *c, size_t *n_answers) {
    struct lk_buf text;
    size_t n_vocab = 0, version = 0;
    char *name = messages_path(path);
    int status = read_text_file(name, "--session", MAX_CHAT_FILE, &text);
    if (status) {
        free(name);
        return status;
    }
    json_t *json = json_loadb(text.at, text.len, 0, NULL);
    bool good = read_integer(json, "lowkey_chat", 1, &version) && version == 1 &&
                read_integer(json, "answers", UINT32_MAX, n_answers) &&
                read_integer(json, "vocabulary", INT32_MAX, &n_vocab);
    if (good && n_vocab != (size_t)lk_model_get_info(c->model).n_vocab)
        status = print_error("%s: saved with a model of another vocabulary", name);
    else if (!good || !parse_tokens(json, c) || !read_messages(json, c) ||
             !read_integer(json, "unknown_tokens", c->n_tok, &c->n_unknown))
        status = print_error("%s: damaged, or not a conversation", name);
    if (!status) {
        c->cut = json_is_true(json_object_get(json, "cut"));
        chat_conversation_format(c);
    }
    json_decref(json);
    lk_buf_free(&text);
    free(name);
    return status;
}

/* Take the tokens of NAME if they go on after those of NAME.chat, which `run --session` writes. */
static void take_longer_session(struct chat_conversation *c, const int32_t *tok, size_t n) {
    if (n <= c->n_tok || (c->n_tok && memcmp(tok, c->tok, c->n_tok * sizeof *tok) != 0)) return;
    const lk_model *model = c->model;
    chat_conversation_free(c);
    *c = (struct chat_conversation){.model = model, .n_tok = n, .n_unknown = n};
    c->tok = xmalloc(n * sizeof *tok);
    memcpy(c->tok, tok, n * sizeof *tok);
}

static int load_cache(const char *path, struct chat_conversation *c, lk_session *session,
                      const lk_recipe *recipe, bool *cached) {
    lk_recipe *saved = NULL;
    int32_t *tok = NULL;
    size_t n = 0;
    lk_err err = {0};
    lk_status status = lk_session_file_recipe(&saved, path, &err);
    if (!status) status = lk_session_file_tokens(c->model, path, &tok, &n, &err);
    *cached = !status && strcmp(lk_recipe_text(saved), lk_recipe_text(recipe)) == 0;
    if (*cached) status = lk_session_load(session, NULL, path, &err);
    if (!status) take_longer_session(c, tok, n);
    lk_tokens_free(tok);
    lk_recipe_free(saved);
    return status ? print_lk_error(&err) : STATUS_OK;
}

int chat_saved_read(const char *path, struct chat_conversation *c, lk_session *session,
                    const lk_recipe *recipe, size_t *n_answers, bool *cached) {
    struct chat_conversation loaded = {.model = c->model};
    bool cache = false, messages = false;
    size_t n = 0;
    *cached = false;
    int status = find_files(path, &cache, &messages);
    if (!status && !cache && !messages) return print_error("%s does not exist", path);
    if (!status && messages) status = parse_messages(path, &loaded, &n);
    if (!status && cache) status = load_cache(path, &loaded, session, recipe, cached);
    if (status) {
        chat_conversation_free(&loaded);
        return status;
    }
    if (!*cached) lk_session_clear(session);
    chat_conversation_free(c);
    *c = loaded;
    *n_answers = n;
    return STATUS_OK;
}
