/* Formats items as prompts, tokenizes them, and scores answers. */
#include "eval/item.h"

#include "base/buf.h"
#include "base/ledger.h"
#include "eval/arena.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct lk_prompt_format lk_prompt_format_of(const lk_model *model) {
    lk_message msg = {"user", "."};
    char *text = NULL;
    bool chat = lk_chat_format(model, &msg, 1, true, &text, NULL) == LK_OK;
    lk_text_free(text);
    return (struct lk_prompt_format){model, chat};
}

/* A chat is marked text; any other text is plain. */
static unsigned tokenize_flags(const struct lk_prompt_format *format) {
    return LK_TOKENIZE_BEGIN | (format->chat ? LK_TOKENIZE_MARKED : 0);
}

/* The last turn of the user. */
static const char *last_question(const struct lk_item *item, struct lk_arena *arena) {
    if (!item->context) return item->question;
    return lk_arena_printf(arena, "%s\n\n%s", item->context, item->question);
}

static lk_status write_chat(struct lk_buf *out, const lk_model *model, const struct lk_item *item,
                            struct lk_arena *arena, lk_err *err) {
    size_t n = 2 * item->n_shot + 1;
    lk_message *msg = lk_arena_alloc(arena, n * sizeof *msg);
    if (!msg) return lk_arena_check(arena, err);
    for (size_t i = 0; i < item->n_shot; i++) {
        msg[2 * i] = (lk_message){"user", item->shot[i].question};
        msg[2 * i + 1] = (lk_message){
            "assistant", lk_arena_printf(arena, "%s%s", item->opening, item->shot[i].answer)};
    }
    msg[n - 1] = (lk_message){"user", last_question(item, arena)};
    char *text = NULL;
    lk_status status = lk_chat_format(model, msg, n, true, &text, err);
    if (status != LK_OK) return status;
    lk_buf_append_str(out, text);
    lk_buf_append_str(out, item->opening);
    lk_text_free(text);
    return lk_arena_check(arena, err);
}

/* The text of head and tail, appended to `out`. */
static lk_status write_prompt(struct lk_buf *out, const struct lk_prompt_format *format,
                              const struct lk_item *item, lk_err *err) {
    struct lk_ledger ledger = {0};
    struct lk_arena arena = {.ledger = &ledger};
    lk_status status = LK_OK;
    if (format->chat) {
        status = write_chat(out, format->model, item, &arena, err);
    } else {
        for (size_t i = 0; i < item->n_shot; i++)
            lk_buf_printf(out, "%s\n%s%s\n\n", item->shot[i].question, item->opening,
                          item->shot[i].answer);
        if (item->context) lk_buf_printf(out, "%s\n\n", item->context);
        lk_buf_printf(out, "%s\n%s", item->question, item->opening);
    }
    lk_arena_free(&arena);
    if (status == LK_OK && out->failed)
        status = lk_fail(err, LK_E_NOMEM, "no memory for the text of an item");
    return status;
}

lk_status lk_item_length(const struct lk_prompt_format *format, const struct lk_item *item,
                         size_t *n_tok, lk_err *err) {
    struct lk_buf text = {0};
    int32_t *tok = NULL;
    lk_status status = write_prompt(&text, format, item, err);
    if (status == LK_OK)
        status = lk_tokenize(format->model, lk_buf_cstr(&text), text.len, tokenize_flags(format), 0,
                             &tok, n_tok, err);
    lk_tokens_free(tok);
    lk_buf_free(&text);
    return status;
}

/* Offset of the last question in the text of an item. */
static size_t tail_start(const char *text, size_t len, const struct lk_item *item) {
    size_t n = strlen(item->question);
    for (size_t i = len; i-- > 0;)
        if (len - i >= n && memcmp(text + i, item->question, n) == 0) return i;
    return len; /* the template changed the question: only the opening is in the tail */
}

/* Count the tokens tok [n_tok] of a text that are also the first tokens of its first `len` bytes. A
 * token may extend beyond `len`. */
static lk_status common_tokens(const struct lk_prompt_format *format, const char *text, size_t len,
                               const int32_t *tok, size_t n_tok, size_t *n, lk_err *err) {
    int32_t *part = NULL;
    size_t n_part = 0;
    lk_status status =
        lk_tokenize(format->model, text, len, tokenize_flags(format), 0, &part, &n_part, err);
    for (*n = 0; status == LK_OK && *n < n_part && *n < n_tok && part[*n] == tok[*n];) ++*n;
    lk_tokens_free(part);
    return status;
}

lk_status lk_item_tokenize(const struct lk_prompt_format *format, const struct lk_item *item,
                           struct lk_item_tokens *out, lk_err *err) {
    struct lk_buf text = {0};
    int32_t *tok = NULL;
    size_t n_tok = 0, n_head = 0, n_given = 0;
    lk_status status = write_prompt(&text, format, item, err);
    size_t given_len = text.len,
           head_len = status == LK_OK ? tail_start(text.at, text.len, item) : 0;
    if (item->answer) lk_buf_append_str(&text, item->answer);
    if (status == LK_OK && text.failed)
        status = lk_fail(err, LK_E_NOMEM, "no memory for the text of an item");
    if (status == LK_OK)
        status = lk_tokenize(format->model, lk_buf_cstr(&text), text.len, tokenize_flags(format), 0,
                             &tok, &n_tok, err);
    if (status == LK_OK)
        status = common_tokens(format, text.at, head_len, tok, n_tok, &n_head, err);
    if (status == LK_OK)
        status = common_tokens(format, text.at, given_len, tok, n_tok, &n_given, err);
    lk_buf_free(&text);
    if (status == LK_OK && n_given < 2)
        status = lk_fail(err, LK_E_ARG, "item %s is empty", item->key);
    if (status != LK_OK) {
        lk_tokens_free(tok);
        return status;
    }
    if (n_head >= n_given) n_head = n_given - 1;
    if (n_head == 0) n_head = 1;
    *out = (struct lk_item_tokens){tok, n_head, n_given - n_head, n_tok - n_given};
    return LK_OK;
}

void lk_item_tokens_free(struct lk_item_tokens *tokens) {
    lk_tokens_free(tokens->tok);
    *tokens = (struct lk_item_tokens){0};
}

/* Whether the first `len` bytes of text contain `part`, ignoring the case of ASCII letters. */
static bool contains_text(const char *text, size_t len, const char *part) {
    size_t n = strlen(part);
    for (size_t i = 0; i + n <= len; i++)
        if (strncasecmp(text + i, part, n) == 0) return true;
    return false;
}

/* Length of the answer before the item's stop text. */
static size_t answer_length(const struct lk_item *item, const char *text) {
    const char *stop = item->stop ? strstr(text, item->stop) : NULL;
    return stop ? (size_t)(stop - text) : strlen(text);
}

double lk_item_score(const struct lk_item *item, const char *text) {
    size_t len = answer_length(item, text), n = 0;
    for (size_t i = 0; i < item->n_expect; i++) n += contains_text(text, len, item->expect[i]);
    if (item->match == LK_MATCH_ANY) return n > 0;
    return item->n_expect ? (double)n / item->n_expect : 0;
}
