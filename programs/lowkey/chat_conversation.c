/* Keeps the messages of a chat and their tokens in step. */
#include "chat_conversation.h"

#include "base/err.h"
#include "serve/turns.h"
#include "text.h"
#include "xalloc.h"

#include <stdlib.h>
#include <string.h>

/* ---- messages ---- */

static const char *static_role(const char *role) {
    return strcmp(role, "system") == 0 ? "system"
           : strcmp(role, "user") == 0 ? "user"
                                       : "assistant";
}

void chat_conversation_add(struct chat_conversation *c, const char *role, const char *content) {
    c->msg = xrealloc(c->msg, (c->n_msg + 1) * sizeof *c->msg);
    c->end = xrealloc(c->end, (c->n_msg + 1) * sizeof *c->end);
    c->end[c->n_msg] = 0;
    c->msg[c->n_msg++] = (lk_message){static_role(role), xasprintf("%s", content)};
}

bool chat_conversation_last_is(const struct chat_conversation *c, const char *role) {
    return c->n_msg && strcmp(c->msg[c->n_msg - 1].role, role) == 0;
}

size_t chat_conversation_n_questions(const struct chat_conversation *c) {
    size_t n = 0;
    for (size_t i = 0; i < c->n_msg; i++) n += strcmp(c->msg[i].role, "user") == 0;
    return n;
}

const char *chat_conversation_system(const struct chat_conversation *c) {
    return c->n_msg && strcmp(c->msg[0].role, "system") == 0 ? c->msg[0].content : NULL;
}

static void drop_message(struct chat_conversation *c) { free((char *)c->msg[--c->n_msg].content); }

static void drop_tokens(struct chat_conversation *c) {
    free(c->tok);
    c->tok = NULL;
    c->n_tok = c->n_unknown = c->n_question = 0;
    c->cut = false;
    lk_buf_free(&c->formatted);
    for (size_t i = 0; i < c->n_msg; i++) c->end[i] = 0;
}

void chat_conversation_set_system(struct chat_conversation *c, const char *content) {
    bool present = chat_conversation_system(c) != NULL;
    if (present) free((char *)c->msg[0].content);
    if (present && !*content) {
        memmove(c->msg, c->msg + 1, --c->n_msg * sizeof *c->msg);
    } else if (present) {
        c->msg[0].content = xasprintf("%s", content);
    } else if (*content) {
        chat_conversation_add(c, "system", content);
        lk_message system = c->msg[c->n_msg - 1];
        memmove(c->msg + 1, c->msg, (c->n_msg - 1) * sizeof *c->msg);
        c->msg[0] = system;
    }
    drop_tokens(c);
}

void chat_conversation_clear(struct chat_conversation *c) {
    size_t n_kept = chat_conversation_system(c) != NULL;
    while (c->n_msg > n_kept) drop_message(c);
    drop_tokens(c);
}

void chat_conversation_free(struct chat_conversation *c) {
    while (c->n_msg) drop_message(c);
    drop_tokens(c);
    free(c->msg);
    free(c->end);
    c->msg = NULL;
    c->end = NULL;
}

/* ---- tokens ---- */

static void add_tokens(struct chat_conversation *c, const int32_t *tok, size_t n) {
    c->tok = xrealloc(c->tok, (c->n_tok + n) * sizeof *c->tok);
    if (n) memcpy(c->tok + c->n_tok, tok, n * sizeof *tok);
    c->n_tok += n;
}

size_t chat_token_limit(size_t len, size_t n_free) {
    enum { MAX_BYTES_PER_TOKEN = 16 }; /* on average, of any text */
    return len / MAX_BYTES_PER_TOKEN > n_free ? n_free : 0;
}

/* Append the tokens of marked text if it `continues` the formatted text; otherwise replace all
 * tokens. */
static lk_status tokenize_turn(struct chat_conversation *c, const char *text, bool continues,
                               size_t n_max, size_t *n_needed, lk_err *err) {
    const unsigned flags = LK_TOKENIZE_MARKED | (continues ? 0 : LK_TOKENIZE_BEGIN);
    const size_t len = strlen(text), n_before = continues ? c->n_tok : 0;
    size_t n_free = n_max > n_before ? n_max - n_before : 1, n = 0;
    int32_t *tok = NULL;
    lk_status status =
        lk_tokenize(c->model, text, len, flags, chat_token_limit(len, n_free), &tok, &n, err);
    *n_needed = status ? 0 : n_before + n;
    if (!status && *n_needed > n_max) status = lk_fail(err, LK_E_FULL, "the context is too short");
    if (!status) {
        if (!continues) drop_tokens(c);
        add_tokens(c, tok, n);
    }
    lk_tokens_free(tok);
    return status;
}

lk_status format_next_turn(const lk_model *model, const char *content, char **text, lk_err *err) {
    /* Format a placeholder turn, alone and with the new turn after it: the difference is what the
     * template writes between an answer and the next one. */
    static const char answer[] = "b";
    lk_message msg[] = {{"user", "a"}, {"assistant", answer}, {"user", content}};
    char *first = NULL, *all = NULL;
    lk_status status = lk_chat_format(model, msg, 1, true, &first, err);
    if (!status) status = lk_chat_format(model, msg, 3, true, &all, err);
    size_t len = status ? 0 : strlen(first), n_answer = sizeof answer - 1;
    if (!status && strncmp(all, first, len) == 0 && strncmp(all + len, answer, n_answer) == 0)
        *text = xasprintf("%s", all + len + n_answer);
    else if (!status)
        status =
            lk_fail(err, LK_E_ARG, "this model's chat template cannot continue a saved session");
    lk_text_free(first);
    lk_text_free(all);
    return status;
}

lk_status chat_conversation_ask(struct chat_conversation *c, const char *content, size_t n_max,
                                size_t *n_needed, lk_err *err) {
    char *text = NULL;
    bool was_cut = c->cut;
    *n_needed = 0;
    chat_conversation_add(c, "user", content);
    lk_status status = c->n_unknown ? format_next_turn(c->model, content, &text, err)
                                    : lk_chat_format(c->model, c->msg, c->n_msg, true, &text, err);
    if (!status) {
        size_t len = c->n_unknown ? 0 : c->formatted.len;
        bool continues = c->n_unknown || (len && strncmp(text, c->formatted.at, len) == 0);
        status = tokenize_turn(c, text + (continues ? len : 0), continues, n_max, n_needed, err);
    }
    if (status) {
        drop_message(c);
        c->cut = was_cut;
    } else {
        c->formatted.len = 0;
        xbuf_add(&c->formatted, text, strlen(text));
        c->n_question = c->formatted.len;
        c->end[c->n_msg - 1] = c->n_tok;
        c->cut = false;
    }
    lk_text_free(text);
    return status;
}

/* Ask `content` in a conversation without messages [head, cut), as if it were a new one. */
static lk_status ask_without(struct chat_conversation *c, size_t head, size_t cut,
                             const char *content, size_t n_max, lk_err *err) {
    struct chat_conversation rest = {.model = c->model};
    size_t n_needed;
    for (size_t i = 0; i < c->n_msg; i++)
        if (i < head || i >= cut) chat_conversation_add(&rest, c->msg[i].role, c->msg[i].content);
    lk_status status = chat_conversation_ask(&rest, content, n_max, &n_needed, err);
    struct chat_conversation drop = status ? rest : *c;
    if (!status) *c = rest;
    chat_conversation_free(&drop);
    return status;
}

lk_status chat_conversation_ask_shorter(struct chat_conversation *c, const char *content,
                                        size_t n_ctx, size_t *n_left_out, lk_err *err) {
    size_t n = c->n_msg + 1, cut = 0;
    struct lk_turn_message *m = xmalloc(n * sizeof *m);
    for (size_t i = 0; i < c->n_msg; i++)
        m[i] = (struct lk_turn_message){c->msg[i].role, strlen(c->msg[i].content)};
    m[c->n_msg] = (struct lk_turn_message){"user", strlen(content)};
    size_t head = lk_turns_head(m, n);
    lk_status status = lk_fail(err, LK_E_FULL, "the context is too short");
    while (status == LK_E_FULL && c->n_unknown == 0 &&
           (cut = lk_turns_next_cut(m, n, n_ctx, cut)) != 0)
        status = ask_without(c, head, cut, content, n_ctx - 1, err);
    *n_left_out = cut > head ? cut - head : 0;
    free(m);
    return status;
}

const struct lk_thought_form *chat_conversation_form(const struct chat_conversation *c) {
    return lk_thought_form_of(lk_model_chat_template(c->model));
}

/* The content of a message with the answer. Templates find thoughts in it and leave them out; only
 * that of gpt-oss refuses them. */
static const char *answer_content(const struct chat_conversation *c, const struct answer *answer) {
    return chat_conversation_form(c)->has_messages ? answer->text.at : answer->shown.at;
}

void chat_conversation_answer(struct chat_conversation *c, const struct answer *answer) {
    const char *content = answer_content(c, answer);
    if (chat_conversation_last_is(c, "assistant")) {
        lk_message *last = &c->msg[c->n_msg - 1];
        char *longer = xasprintf("%s%s", last->content, content);
        free((char *)last->content);
        last->content = longer;
    } else {
        chat_conversation_add(c, "assistant", content);
    }
    xbuf_add(&c->formatted, answer->shown.at, answer->shown.len);
    add_tokens(c, answer->tok, answer->n_tok);
    c->end[c->n_msg - 1] = c->n_tok;
    c->cut = answer->stop != STOP_ENDED;
}

/* ---- changing the past ---- */

void chat_conversation_drop_last(struct chat_conversation *c) {
    size_t n_unknown = c->n_unknown;
    drop_message(c);
    size_t n_tok = c->n_msg ? c->end[c->n_msg - 1] : 0;
    if (n_tok == 0) n_tok = n_unknown;
    if (n_tok == 0 || n_tok > c->n_tok)
        drop_tokens(c);
    else
        c->n_tok = n_tok;
    c->cut = false;
    chat_conversation_format(c);
}

void chat_conversation_format(struct chat_conversation *c) {
    bool answered = chat_conversation_last_is(c, "assistant");
    char *text = NULL;
    c->formatted.len = 0;
    if (c->n_tok == 0 || c->n_unknown) return;
    bool formatted = c->n_msg > answered && c->end[c->n_msg - 1] == c->n_tok &&
                     !lk_chat_format(c->model, c->msg, c->n_msg - answered, true, &text, NULL);
    if (formatted) {
        xbuf_add(&c->formatted, text, strlen(text));
        c->n_question = c->formatted.len;
        if (answered) {
            const char *answer = c->msg[c->n_msg - 1].content;
            xbuf_add(&c->formatted, answer, strlen(answer));
        }
    } else {
        drop_tokens(c);
    }
    lk_text_free(text);
}

/* ---- documents ---- */

bool chat_documents_add(struct chat_documents *documents, const char *path, size_t max) {
    struct lk_buf text;
    const char *slash = strrchr(path, '/');
    if (read_text_file(path, "/file", max, &text)) return false;
    size_t n = documents->n + 1;
    documents->item = xrealloc(documents->item, n * sizeof *documents->item);
    documents->item[documents->n++] = (struct chat_document){
        .name = xasprintf("%s", slash && slash[1] ? slash + 1 : path), .text = text};
    return true;
}

/* The number of backticks of a fence around `text`: more than any run of them in it, at least 3. */
static size_t fence_length(const char *text) {
    size_t longest = 2;
    while ((text = strchr(text, '`'))) {
        size_t n = strspn(text, "`");
        if (n > longest) longest = n;
        text += n;
    }
    return longest + 1;
}

static void add_fence(struct lk_buf *out, size_t n) {
    while (n--) xbuf_add(out, "`", 1);
    xbuf_add(out, "\n", 1);
}

char *chat_documents_message(const struct chat_documents *documents, const char *question) {
    struct lk_buf out = {0};
    for (size_t i = 0; i < documents->n; i++) {
        const struct chat_document *document = &documents->item[i];
        const char *text = document->text.at;
        size_t n = document->text.len, fence = fence_length(text);
        xbuf_add(&out, document->name, strlen(document->name));
        xbuf_add(&out, ":\n", 2);
        add_fence(&out, fence);
        xbuf_add(&out, text, n);
        if (n && text[n - 1] != '\n') xbuf_add(&out, "\n", 1);
        add_fence(&out, fence);
        xbuf_add(&out, "\n", 1);
    }
    xbuf_add(&out, question, strlen(question));
    return out.at;
}

void chat_documents_drop_last(struct chat_documents *documents) {
    struct chat_document *last = &documents->item[--documents->n];
    free(last->name);
    lk_buf_free(&last->text);
}

void chat_documents_clear(struct chat_documents *documents) {
    while (documents->n) chat_documents_drop_last(documents);
    free(documents->item);
    documents->item = NULL;
}
