/* Formats conversations: rewrites the messages for the template, renders it, and marks the control
 * tokens in what the template itself wrote. */
#include "token/chat_format.h"

#include "base/utf8.h"
#include "lowkey_serve.h"
#include "template/chat_messages.h"
#include "template/chat_template.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct conversation {
    json_t *messages, *tools, *variables; /* owned; the last two may be NULL */
    bool reply, continue_last;
};

static void free_conversation(struct conversation *c) {
    json_decref(c->messages);
    json_decref(c->tools);
    json_decref(c->variables);
}

static lk_status no_memory(lk_err *err) {
    return lk_fail(err, LK_E_NOMEM, "out of memory: cannot format a conversation");
}

/* ---- marking ---- */

/* Append text[0..n) to `out`. Control tokens are marked in runs of the template's characters. */
static void mark_text(const struct lk_vocab *vocab, const lk_jinja_char *text, size_t n,
                      struct lk_buf *out) {
    struct lk_buf run = {0};
    for (size_t i = 0, end; i < n && !run.failed; i = end) {
        bool own = text[i] >> 8 == LK_FROM_TEMPLATE;
        char part[256];
        size_t n_part = 0;
        lk_buf_clear(&run);
        for (end = i; end < n && (text[end] >> 8 == LK_FROM_TEMPLATE) == own; end++) {
            part[n_part++] = (char)(text[end] & 0xFF);
            if (n_part < sizeof part) continue;
            lk_buf_append(&run, part, n_part);
            n_part = 0;
        }
        lk_buf_append(&run, part, n_part);
        if (own)
            lk_control_tokens_mark(lk_vocab_control_tokens(vocab), lk_buf_cstr(&run), run.len, out);
        else
            lk_buf_append(out, lk_buf_cstr(&run), run.len);
    }
    if (run.failed) out->failed = true;
    lk_buf_free(&run);
}

/* Templates write the token that starts a text. Tokenizing adds it too, so drop it. */
static void drop_bos(const struct lk_vocab *vocab, struct lk_buf *out) {
    int32_t bos = lk_vocab_bos(vocab);
    size_t len = 0;
    const char *text = bos >= 0 ? lk_vocab_token_text(vocab, bos, &len) : "";
    if (len == 0 || out->failed || out->len < len + 2 || (unsigned char)out->at[0] != LK_MARK)
        return;
    if (memcmp(out->at + 1, text, len) == 0 && (unsigned char)out->at[len + 1] == LK_MARK_END)
        lk_buf_consume(out, len + 2);
}

/* ---- rendering ---- */

static lk_status render(const struct lk_vocab *vocab, const struct lk_chat_template *t,
                        const struct conversation *c, struct lk_buf *out, lk_err *err) {
    struct lk_chat_input input = {c->messages, c->tools, c->variables, c->reply};
    lk_jinja_char *text = NULL;
    size_t n = 0, end = 0;
    lk_status status = lk_chat_messages_render(t, &input, &text, &n, err);
    if (status) return status;
    for (size_t i = 0; i < n; i++)
        if (text[i] >> 8 == LK_FROM_LAST) end = i + 1;
    if (c->continue_last && end == 0)
        status = lk_fail(err, LK_E_UNSUPPORTED,
                         "the model's chat template does not write the last message, so it cannot "
                         "be continued");
    if (!status) {
        mark_text(vocab, text, c->continue_last ? end : n, out);
        drop_bos(vocab, out);
    }
    free(text);
    return status;
}

/* The last message is the assistant's and is continued. Without a content it is a reply. */
static lk_status prepare_last(struct conversation *c, lk_err *err) {
    size_t n = json_array_size(c->messages);
    const json_t *last = n ? json_array_get(c->messages, n - 1) : NULL;
    const char *role = json_string_value(json_object_get(last, "role")),
               *content = json_string_value(json_object_get(last, "content"));
    if (!role || strcmp(role, "assistant") != 0 || !content ||
        json_array_size(json_object_get(last, "tool_calls")) > 0)
        return lk_fail(err, LK_E_ARG,
                       "only a last message of the assistant with a content can be continued");
    c->reply = false;
    if (*content) return LK_OK;
    json_array_remove(c->messages, n - 1);
    c->reply = true;
    c->continue_last = false;
    return LK_OK;
}

static lk_status format_conversation(const struct lk_vocab *vocab, struct conversation *c,
                                     char **text, lk_err *err) {
    const struct lk_chat_template *t = NULL;
    struct lk_buf out = {.max = INT32_MAX / 2};
    if (json_array_size(c->tools) == 0) {
        json_decref(c->tools);
        c->tools = NULL;
    }
    lk_status status = lk_vocab_chat_template(vocab, &t, err);
    if (!status && c->continue_last) status = prepare_last(c, err);
    lk_buf_append(&out, "", 0);
    if (!status) status = render(vocab, t, c, &out, err);
    if (!status && !out.failed && (*text = lk_buf_detach(&out))) return LK_OK;
    lk_buf_free(&out);
    return status ? status : no_memory(err);
}

/* ---- interface ---- */

static lk_status check_message(const lk_message *msg, size_t i, lk_err *err) {
    if (!msg->role || !msg->content)
        return lk_fail(err, LK_E_ARG, "message %zu has no role or no content", i);
    size_t n_role = strlen(msg->role), n_content = strlen(msg->content);
    if (lk_utf8_valid_prefix(msg->role, n_role) < n_role ||
        lk_utf8_valid_prefix(msg->content, n_content) < n_content)
        return lk_fail(err, LK_E_FORMAT, "message %zu is not UTF-8", i);
    return LK_OK;
}

lk_status lk_vocab_chat_format(const struct lk_vocab *vocab, const lk_message *msg, size_t n_msg,
                               bool reply, char **text, lk_err *err) {
    struct conversation c = {.messages = json_array(), .reply = reply};
    lk_status status = c.messages ? LK_OK : no_memory(err);
    for (size_t i = 0; !status && i < n_msg; i++) {
        status = check_message(&msg[i], i, err);
        if (!status &&
            json_array_append_new(c.messages, json_pack("{s:s, s:s}", "role", msg[i].role,
                                                        "content", msg[i].content)) != 0)
            status = no_memory(err);
    }
    if (!status) status = format_conversation(vocab, &c, text, err);
    free_conversation(&c);
    return status;
}

/* Parse the JSON of a field, or take none. */
static lk_status parse_json(const char *text, const char *field, bool is_array, json_t **out,
                            lk_err *err) {
    json_error_t why;
    if (!text) return LK_OK;
    *out = json_loads(text, 0, &why);
    if (!*out)
        return lk_fail(err, LK_E_FORMAT, "%s is not valid JSON: %.60s (line %d, column %d)", field,
                       why.text, why.line, why.column);
    if (is_array ? json_is_array(*out) : json_is_object(*out)) return LK_OK;
    return lk_fail(err, LK_E_ARG, "%s must be a JSON %s", field, is_array ? "array" : "object");
}

lk_status lk_vocab_chat_format_json(const struct lk_vocab *vocab, const lk_chat *chat, char **text,
                                    lk_err *err) {
    struct conversation c = {.reply = chat->reply, .continue_last = chat->continue_last};
    lk_status status = parse_json(chat->messages ? chat->messages : "[]", "the conversation", true,
                                  &c.messages, err);
    if (!status) status = parse_json(chat->tools, "the list of tools", true, &c.tools, err);
    if (!status)
        status = parse_json(chat->variables, "the template's variables", false, &c.variables, err);
    if (!status) status = format_conversation(vocab, &c, text, err);
    free_conversation(&c);
    return status;
}

/* ---- the words of a call ---- */

static const char tool_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"probe_name\", \"description\": \"d\", "
    "\"parameters\": {\"type\": \"object\", \"properties\": {}}}}]";
static const char question_text[] = "[{\"role\": \"user\", \"content\": \"q\"}]";
static const char call_text[] =
    "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"\", "
    "\"tool_calls\": [{\"id\": \"probe0123\", \"type\": \"function\", \"function\": {\"name\": "
    "\"probe_name\", \"arguments\": {\"probe_key\": \"v\"}}}]}]";

/* Copy text[0..n) without control tokens. False: it does not fit. */
static bool copy_words(char *out, size_t size, const char *text, size_t n) {
    size_t len = 0;
    bool in_mark = false;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == LK_MARK) in_mark = true;
        if (!in_mark && len + 1 < size) out[len++] = text[i];
        if (!in_mark && len + 1 >= size) return false;
        if (c == LK_MARK_END) in_mark = false;
    }
    out[len] = 0;
    if (strspn(out, " \n") == len) *out = 0;
    return true;
}

/* The last bytes of text[0..n), with control tokens, but without the marks around them. */
static void copy_opening(char *out, size_t size, const char *text, size_t n) {
    size_t len = 0, from = n;
    for (; from > 0 && len + 1 < size; from--) len += (unsigned char)text[from - 1] < LK_MARK_END;
    for (len = 0; from < n; from++)
        if ((unsigned char)text[from] < LK_MARK_END) out[len++] = text[from];
    out[len] = 0;
}

/* Find the JSON of the call in the text that the template writes for it. */
static bool find_call(const char *text, lk_call_words *words) {
    for (const char *at = text; (at = strchr(at, '{')); at++) {
        json_error_t why;
        json_t *json = json_loads(at, JSON_DISABLE_EOF_CHECK, &why);
        const char *name = json_string_value(json_object_get(json, "name"));
        bool found = name && strcmp(name, "probe_name") == 0;
        words->has_parameters = found && json_object_get(json, "parameters");
        found = found && (words->has_parameters || json_object_get(json, "arguments"));
        json_decref(json);
        if (!found) continue;
        const char *end = at + why.position, *mark = strchr(end, (char)LK_MARK);
        copy_opening(words->opening, sizeof words->opening, text, (size_t)(at - text));
        return copy_words(words->before, sizeof words->before, text, (size_t)(at - text)) &&
               copy_words(words->after, sizeof words->after, end,
                          mark ? (size_t)(mark - end) : strlen(end));
    }
    return false;
}

/* Bytes of a prompt that the text with a call has in common, up to the end of a word: <think> of
 * the prompt and <tool_call> start alike. */
static size_t count_common(const char *prompt, const char *called) {
    size_t n = 0;
    while (prompt[n] && prompt[n] == called[n]) n++;
    if (prompt[n] == 0) return n;
    while (n && called[n - 1] != '\n' && called[n - 1] != '>' && called[n - 1] != (char)LK_MARK_END)
        n--;
    return n;
}

lk_status lk_vocab_call_words(const struct lk_vocab *vocab, lk_call_words *words, lk_err *err) {
    static const lk_call_words tags = {
        .before = "<tool_call>\n", .after = "\n</tool_call>", .opening = "<tool_call>\n"};
    const struct lk_chat_template *t = NULL;
    const lk_chat question = {.messages = question_text, .tools = tool_text, .reply = true},
                  called = {.messages = call_text, .tools = tool_text};
    char *before = NULL, *all = NULL;
    lk_status status = lk_vocab_chat_template(vocab, &t, err);
    if (!status) status = lk_vocab_chat_format_json(vocab, &question, &before, err);
    if (!status) status = lk_vocab_chat_format_json(vocab, &called, &all, err);
    if (!status) {
        *words = (lk_call_words){.before = ""};
        const struct lk_chat_support support = lk_chat_template_support(t);
        const char *call = all + count_common(before, all);
        if (!support.calls && support.calls_text == LK_CALLS_TAGGED)
            *words = tags;
        else if (!find_call(call, words))
            *words = (lk_call_words){.before = ""}; /* the call alone */
        snprintf(words->sample, sizeof words->sample, "%s", call);
    }
    free(before);
    free(all);
    return status;
}
