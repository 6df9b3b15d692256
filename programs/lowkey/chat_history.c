/* Keeps the messages of a chat and their tokens in step. */
#include "chat_history.h"

#include "xalloc.h"

#include <stdlib.h>
#include <string.h>

void chat_history_add(struct chat_history *h, const char *role, const char *content) {
    h->msg = xrealloc(h->msg, (h->n_msg + 1) * sizeof *h->msg);
    h->msg[h->n_msg++] = (lk_message){role, xasprintf("%s", content)};
}

static void drop_last_message(struct chat_history *h) { free((char *)h->msg[--h->n_msg].content); }

static void drop_tokens(struct chat_history *h) {
    free(h->tok);
    h->tok = NULL;
    h->n_tok = 0;
    lk_buf_free(&h->formatted);
}

void chat_history_reset(struct chat_history *h) {
    size_t n_kept = h->n_msg && strcmp(h->msg[0].role, "system") == 0;
    while (h->n_msg > n_kept) drop_last_message(h);
    drop_tokens(h);
}

void chat_history_free(struct chat_history *h) {
    while (h->n_msg) drop_last_message(h);
    drop_tokens(h);
    free(h->msg);
    h->msg = NULL;
}

static void add_tokens(struct chat_history *h, const int32_t *tok, size_t n) {
    h->tok = xrealloc(h->tok, (h->n_tok + n) * sizeof *h->tok);
    if (n) memcpy(h->tok + h->n_tok, tok, n * sizeof *tok);
    h->n_tok += n;
}

/* Append the tokens of marked text if it `continues` the formatted text; otherwise replace all
 * tokens. */
static lk_status tokenize_turn(struct chat_history *h, const char *text, bool continues,
                               lk_err *err) {
    const unsigned flags = LK_TOKENIZE_MARKED | (continues ? 0 : LK_TOKENIZE_BEGIN);
    int32_t *tok = NULL;
    size_t n = 0;
    lk_status status = lk_tokenize(h->model, text, strlen(text), flags, 0, &tok, &n, err);
    if (!status) {
        if (!continues) drop_tokens(h);
        add_tokens(h, tok, n);
    }
    lk_tokens_free(tok);
    return status;
}

lk_status chat_history_add_question(struct chat_history *h, const char *content, lk_err *err) {
    char *text = NULL;
    chat_history_add(h, "user", content);
    lk_status status = lk_chat_format(h->model, h->msg, h->n_msg, true, &text, err);
    if (!status) {
        size_t len = h->formatted.len;
        bool continues = len && strncmp(text, h->formatted.at, len) == 0;
        status = tokenize_turn(h, text + (continues ? len : 0), continues, err);
    }
    if (status) {
        drop_last_message(h);
    } else {
        h->formatted.len = 0;
        xbuf_add(&h->formatted, text, strlen(text));
    }
    lk_text_free(text);
    return status;
}

void chat_history_drop_question(struct chat_history *h) {
    drop_last_message(h);
    drop_tokens(h); /* the next question tokenizes the earlier turns again */
}

void chat_history_add_answer(struct chat_history *h, const struct answer *answer) {
    chat_history_add(h, "assistant", answer->shown.at);
    xbuf_add(&h->formatted, answer->shown.at, answer->shown.len);
    add_tokens(h, answer->tok, answer->n_tok);
}
