#include "conversation.h"

#include "say.h"

#include <stdlib.h>
#include <string.h>

void conversation_add(struct conversation *c, const char *role, const char *content) {
    c->msg = must_grow(c->msg, (c->n_msg + 1) * sizeof *c->msg);
    c->msg[c->n_msg++] = (lk_message){role, must_print("%s", content)};
}

static void drop_last(struct conversation *c) { free((char *)c->msg[--c->n_msg].content); }

static void drop_tokens(struct conversation *c) {
    free(c->tok);
    free(c->done.at);
    c->tok = NULL;
    c->n_tok = 0;
    c->done = (struct text){0};
}

void conversation_reset(struct conversation *c) {
    size_t keep = c->n_msg && strcmp(c->msg[0].role, "system") == 0;
    while (c->n_msg > keep) drop_last(c);
    drop_tokens(c);
}

void conversation_free(struct conversation *c) {
    while (c->n_msg) drop_last(c);
    drop_tokens(c);
    free(c->msg);
    c->msg = NULL;
}

static void add_tokens(struct conversation *c, const int32_t *tok, size_t n) {
    c->tok = must_grow(c->tok, (c->n_tok + n) * sizeof *c->tok);
    if (n) memcpy(c->tok + c->n_tok, tok, n * sizeof *tok);
    c->n_tok += n;
}

/* Tokens of `text`; `more`: it continues a text, so it has no begin token. */
static lk_status tokenize(struct conversation *c, const char *text, bool more, lk_err *err) {
    int32_t *tok = NULL, *begin = NULL;
    size_t n = 0, n_begin = 0;
    lk_status status = more ? lk_tokenize(c->model, "", 0, true, &begin, &n_begin, err) : LK_OK;
    if (!status) status = lk_tokenize(c->model, text, strlen(text), true, &tok, &n, err);
    if (!status) {
        size_t skip =
            n_begin && n >= n_begin && memcmp(tok, begin, n_begin * sizeof *tok) == 0 ? n_begin : 0;
        if (!more) drop_tokens(c);
        add_tokens(c, tok + skip, n - skip);
    }
    lk_tokens_free(begin);
    lk_tokens_free(tok);
    return status;
}

lk_status conversation_ask(struct conversation *c, const char *content, lk_err *err) {
    char *text = NULL;
    conversation_add(c, "user", content);
    lk_status status = lk_chat_format(c->model, c->msg, c->n_msg, true, &text, err);
    if (!status) {
        bool more = c->done.len && strncmp(text, c->done.at, c->done.len) == 0;
        status = tokenize(c, text + (more ? c->done.len : 0), more, err);
    }
    if (status) {
        drop_last(c);
    } else {
        c->done.len = 0;
        text_add(&c->done, text, strlen(text));
    }
    lk_text_free(text);
    return status;
}

void conversation_answer(struct conversation *c, const struct answer *answer) {
    if (!answer) {
        /* The tokens before the question are not kept apart; the next question makes them again. */
        drop_last(c);
        drop_tokens(c);
        return;
    }
    conversation_add(c, "assistant", answer->shown.at);
    text_add(&c->done, answer->shown.at, answer->shown.len);
    add_tokens(c, answer->tok, answer->n_tok);
}
