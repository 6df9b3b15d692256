/* Formats conversations with libllama's template engine, as marked text.
 *
 * libllama returns one text, in which contents and template look alike. So it formats a
 * conversation whose contents are placeholders, and the contents are put in their places here. A
 * template may trim contents (which a white space in the placeholder shows), leave messages out,
 * change their order, and treat an empty content differently. */
#include "token/chat_format.h"

#include "base/cxx_call.h"
#include "base/utf8.h"

#include "llama.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A content: bytes of a message, without the white space that the template trims. */
struct content {
    const char *at;
    size_t len;
    bool trimmed;
    char placeholder[32]; /* a probe, a mark, the number of the message, the mark's end */
};

struct format {
    const char *template;
    const struct lk_control_tokens *tokens;
    const lk_message *msg;
    size_t n_msg;
    bool reply;
    struct content *content;          /* [n_msg] */
    struct llama_chat_message *given; /* [n_msg] to libllama */
};

/* ---- libllama ---- */

struct template_call {
    const struct format *f;
    char *out; /* [cap] */
    int32_t cap, len;
};

static void call_template(void *arg) {
    struct template_call *c = arg;
    c->len = llama_chat_apply_template(c->f->template, c->f->given, c->f->n_msg, c->f->reply,
                                       c->out, c->cap);
}

/* Format the given messages. *text is owned. */
static lk_status apply_template(const struct format *f, char **text, size_t *len, lk_err *err) {
    struct template_call call = {.f = f};
    lk_status status = lk_cxx_call(call_template, &call, err);
    if (status == LK_OK && call.len < 0)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "libllama does not support the model's chat template");
    if (status == LK_OK) {
        call.cap = call.len + 1;
        call.out = calloc((size_t)call.cap, 1);
        status = call.out ? lk_cxx_call(call_template, &call, err) : LK_E_NOMEM;
    }
    if (status != LK_OK) free(call.out);
    if (status == LK_E_NOMEM)
        return lk_fail(err, LK_E_NOMEM, "out of memory: cannot format a conversation");
    if (status != LK_OK) return status;
    *text = call.out;
    *len = (size_t)call.len;
    return LK_OK;
}

/* ---- contents ---- */

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static void trim(struct content *c) {
    while (c->len && is_space(*c->at)) c->at++, c->len--;
    while (c->len && is_space(c->at[c->len - 1])) c->len--;
}

static lk_status check_message(const lk_message *msg, size_t i, lk_err *err) {
    if (!msg->role || !msg->content)
        return lk_fail(err, LK_E_ARG, "message %zu has no role or no content", i);
    size_t n_role = strlen(msg->role), n_content = strlen(msg->content);
    if (lk_utf8_valid_prefix(msg->role, n_role) < n_role ||
        lk_utf8_valid_prefix(msg->content, n_content) < n_content)
        return lk_fail(err, LK_E_FORMAT, "message %zu is not UTF-8", i);
    return LK_OK;
}

/* The message whose placeholder is at text[0..len), and the placeholder's length; n_msg if there is
 * none. */
static size_t read_placeholder(const struct format *f, const char *text, size_t len, size_t *n) {
    size_t i = 0;
    for (*n = 1; *n < len && text[*n] >= '0' && text[*n] <= '9' && i < f->n_msg; ++*n)
        i = 10 * i + (size_t)(text[*n] - '0');
    bool is_whole = *n < len && (unsigned char)text[*n] == LK_MARK_END && i < f->n_msg;
    ++*n;
    return is_whole ? i : f->n_msg;
}

/* Trim the contents that the template trims, and give libllama the final placeholders. */
static lk_status trim_contents(struct format *f, lk_err *err) {
    static const char probe = '\v'; /* white space that no template writes */
    char *text = NULL;
    size_t len = 0, n;
    for (size_t i = 0; i < f->n_msg; i++) {
        struct content *c = &f->content[i];
        snprintf(c->placeholder, sizeof c->placeholder, "%c%c%zu%c", probe, (char)LK_MARK, i,
                 (char)LK_MARK_END);
        f->given[i] = (struct llama_chat_message){f->msg[i].role, c->placeholder};
        c->at = f->msg[i].content;
        c->len = strlen(c->at);
        c->trimmed = true;
    }
    lk_status status = apply_template(f, &text, &len, err);
    if (status != LK_OK) return status;
    for (size_t at = 1; at < len; at++) {
        if ((unsigned char)text[at] != LK_MARK || text[at - 1] != probe) continue;
        size_t i = read_placeholder(f, text + at, len - at, &n);
        if (i < f->n_msg) f->content[i].trimmed = false;
    }
    free(text);
    for (size_t i = 0; i < f->n_msg; i++) {
        struct content *c = &f->content[i];
        if (c->trimmed) trim(c);
        f->given[i].content = c->len ? c->placeholder + 1 : ""; /* without the probe */
    }
    return LK_OK;
}

/* Append the formatted text with contents in the places of their placeholders. */
static lk_status put_contents(const struct format *f, const char *text, size_t len,
                              struct lk_buf *out, lk_err *err) {
    while (len) {
        const char *mark = memchr(text, LK_MARK, len);
        size_t before = mark ? (size_t)(mark - text) : len, n = 0;
        lk_control_tokens_mark(f->tokens, text, before, out);
        text += before;
        len -= before;
        if (!mark) break;
        size_t i = read_placeholder(f, text, len, &n);
        if (i == f->n_msg)
            return lk_fail(err, LK_E_UNSUPPORTED, "the chat template changes contents");
        lk_buf_append(out, f->content[i].at, f->content[i].len);
        text += n;
        len -= n;
    }
    return LK_OK;
}

static lk_status format_conversation(struct format *f, struct lk_buf *out, lk_err *err) {
    char *text = NULL;
    size_t len = 0;
    lk_status status = trim_contents(f, err);
    if (status == LK_OK) status = apply_template(f, &text, &len, err);
    if (status == LK_OK) status = put_contents(f, text, len, out, err);
    free(text);
    return status;
}

lk_status lk_vocab_chat_format(const struct lk_vocab *vocab, const lk_message *msg, size_t n_msg,
                               bool reply, char **text, lk_err *err) {
    struct format f = {.template = lk_vocab_chat_template(vocab),
                       .tokens = lk_vocab_control_tokens(vocab),
                       .msg = msg,
                       .n_msg = n_msg,
                       .reply = reply};
    struct lk_buf out = {.max = INT32_MAX / 2};
    if (!f.template) return lk_fail(err, LK_E_UNSUPPORTED, "the model has no chat template");
    if (n_msg == 0) return lk_fail(err, LK_E_ARG, "a conversation needs at least one message");
    lk_status status = LK_OK;
    for (size_t i = 0; status == LK_OK && i < n_msg; i++) status = check_message(&msg[i], i, err);
    if (status != LK_OK) return status;
    f.content = calloc(n_msg, sizeof *f.content);
    f.given = calloc(n_msg, sizeof *f.given);
    lk_buf_append(&out, "", 0);
    if (f.content && f.given)
        status = format_conversation(&f, &out, err);
    else
        out.failed = true;
    if (status == LK_OK && out.failed)
        status =
            lk_fail(err, LK_E_NOMEM, "not enough memory for a conversation of %zu messages", n_msg);
    free(f.content);
    free(f.given);
    if (status != LK_OK) {
        lk_buf_free(&out);
        return status;
    }
    *text = lk_buf_detach(&out);
    return LK_OK;
}
