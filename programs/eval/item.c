#include "eval/item.h"

#include "base/ledger.h"
#include "eval/arena.h"
#include "eval/rouge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct lk_reader lk_reader_of(const lk_model *model) {
    lk_message msg = {"user", "."};
    char *text = NULL;
    bool chat = lk_chat_format(model, &msg, 1, true, &text, NULL) == LK_OK;
    lk_text_free(text);
    return (struct lk_reader){model, chat};
}

/* The last turn of the user. */
static const char *last_question(const struct lk_item *item, struct lk_arena *arena) {
    return item->context ? lk_arena_print(arena, "%s\n\n%s", item->context, item->question)
                         : item->question;
}

static void write_plain(struct lk_string *out, const struct lk_item *item) {
    for (size_t i = 0; i < item->n_shot; i++)
        lk_string_print(out, "%s\n%s%s\n\n", item->shot[i].question, item->opening,
                        item->shot[i].answer);
    lk_string_print(out, "%s\n%s", last_question(item, out->arena), item->opening);
}

static lk_status write_chat(struct lk_string *out, const lk_model *model,
                            const struct lk_item *item, lk_err *err) {
    size_t n = 2 * item->n_shot + 1;
    lk_message *msg = lk_arena_take(out->arena, n * sizeof *msg);
    if (!msg) return lk_arena_check(out->arena, err);
    for (size_t i = 0; i < item->n_shot; i++) {
        msg[2 * i] = (lk_message){"user", item->shot[i].question};
        msg[2 * i + 1] = (lk_message){
            "assistant", lk_arena_print(out->arena, "%s%s", item->opening, item->shot[i].answer)};
    }
    msg[n - 1] = (lk_message){"user", last_question(item, out->arena)};
    char *text = NULL;
    lk_status status = lk_chat_format(model, msg, n, true, &text, err);
    if (status != LK_OK) return status;
    lk_string_print(out, "%s%s", text, item->opening);
    lk_text_free(text);
    return LK_OK;
}

/* The text of head and tail. */
static lk_status write_item(struct lk_string *out, const struct lk_reader *reader,
                            const struct lk_item *item, lk_err *err) {
    lk_status status = LK_OK;
    if (reader->chat)
        status = write_chat(out, reader->model, item, err);
    else
        write_plain(out, item);
    return status == LK_OK ? lk_arena_check(out->arena, err) : status;
}

lk_status lk_item_length(const struct lk_reader *reader, const struct lk_item *item, size_t *n_tok,
                         lk_err *err) {
    struct lk_ledger ledger = {0};
    struct lk_arena arena = {.ledger = &ledger};
    struct lk_string text = {.arena = &arena};
    int32_t *tok = NULL;
    lk_status status = write_item(&text, reader, item, err);
    if (status == LK_OK)
        status =
            lk_tokenize(reader->model, lk_string_text(&text), text.len, true, &tok, n_tok, err);
    lk_tokens_free(tok);
    lk_arena_free(&arena);
    return status;
}

/* Where the last question begins in the text of the item. */
static size_t tail_begin(const char *text, size_t len, const struct lk_item *item) {
    size_t n = strlen(item->question);
    for (size_t i = len; i-- > 0;)
        if (len - i >= n && memcmp(text + i, item->question, n) == 0) return i;
    return len; /* a template that changes the text: the opening alone is the tail's part */
}

/* Tokens that all of text and its first `len` bytes begin with: a token may reach across the cut. */
static lk_status common_tokens(const lk_model *model, const char *text, size_t len,
                               const int32_t *tok, size_t n_tok, size_t *n, lk_err *err) {
    int32_t *part = NULL;
    size_t n_part = 0;
    lk_status status = lk_tokenize(model, text, len, true, &part, &n_part, err);
    for (*n = 0; status == LK_OK && *n < n_part && *n < n_tok && part[*n] == tok[*n];) ++*n;
    lk_tokens_free(part);
    return status;
}

lk_status lk_item_tokenize(const struct lk_reader *reader, const struct lk_item *item,
                           struct lk_item_tokens *out, lk_err *err) {
    struct lk_ledger ledger = {0};
    struct lk_arena arena = {.ledger = &ledger};
    struct lk_string text = {.arena = &arena};
    int32_t *tok = NULL;
    size_t n_tok = 0, n_head = 0, n_given = 0;
    lk_status status = write_item(&text, reader, item, err);
    size_t given = text.len, head = status == LK_OK ? tail_begin(text.at, text.len, item) : 0;
    if (item->answer) lk_string_print(&text, "%s", item->answer);
    if (status == LK_OK) status = lk_arena_check(&arena, err);
    if (status == LK_OK)
        status =
            lk_tokenize(reader->model, lk_string_text(&text), text.len, true, &tok, &n_tok, err);
    if (status == LK_OK)
        status = common_tokens(reader->model, text.at, head, tok, n_tok, &n_head, err);
    if (status == LK_OK)
        status = common_tokens(reader->model, text.at, given, tok, n_tok, &n_given, err);
    lk_arena_free(&arena);
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

/* Does the first `len` bytes of text hold `part`, letter case (of ASCII) aside? */
static bool holds(const char *text, size_t len, const char *part) {
    size_t n = strlen(part);
    for (size_t i = 0; i + n <= len; i++)
        if (strncasecmp(text + i, part, n) == 0) return true;
    return false;
}

static size_t answer_length(const struct lk_item *item, const char *text) {
    const char *stop = item->stop ? strstr(text, item->stop) : NULL;
    return stop ? (size_t)(stop - text) : strlen(text);
}

bool lk_item_stops(const struct lk_item *item, const char *text) {
    return item->stop && strstr(text, item->stop);
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Length of the number at s, 0 where none begins: -?[0-9]+(,[0-9]+)*(\.[0-9]+)? */
static size_t number_at(const char *s) {
    size_t i = *s == '-';
    if (!is_digit(s[i])) return 0;
    while (is_digit(s[i]) || (s[i] == ',' && is_digit(s[i + 1]))) i++;
    if (s[i] == '.' && is_digit(s[i + 1]))
        for (i++; is_digit(s[i]);) i++;
    return i;
}

static double number_value(const char *s, size_t len) {
    char plain[64];
    size_t n = 0;
    for (size_t i = 0; i < len && n + 1 < sizeof plain; i++)
        if (s[i] != ',') plain[n++] = s[i];
    plain[n] = 0;
    return strtod(plain, NULL);
}

bool lk_answer_number(const char *text, double *out) {
    const char *mark = strstr(text, "####");
    bool found = false;
    for (const char *s = mark ? mark : text; *s;) {
        size_t len = number_at(s);
        if (len) {
            *out = number_value(s, len);
            found = true;
            if (mark) break;
        }
        s += len ? len : 1;
    }
    return found;
}

static double share(const struct lk_item *item, const char *text, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < item->n_expect; i++) n += holds(text, len, item->expect[i]);
    if (item->match == LK_MATCH_ANY) return n > 0;
    return item->n_expect ? (double)n / item->n_expect : 0;
}

static double same_number(const struct lk_item *item, const char *text) {
    double given, right;
    return lk_answer_number(text, &given) && lk_answer_number(item->expect[0], &right) &&
           fabs(given - right) <= 1e-9 * fabs(right);
}

lk_status lk_item_score(const struct lk_item *item, const char *text,
                        struct lk_score scores[LK_MAX_SCORES], size_t *n, lk_err *err) {
    struct lk_ledger ledger = {0};
    struct lk_arena arena = {.ledger = &ledger};
    struct lk_rouge rouge;
    size_t len = answer_length(item, text);
    const char *answer = lk_arena_copy(&arena, text, len);
    lk_status status = lk_arena_check(&arena, err);
    if (status == LK_OK && item->match == LK_MATCH_ROUGE)
        status = lk_rouge(item->expect[0], answer, &rouge, err);
    if (status == LK_OK && item->match == LK_MATCH_ROUGE) {
        scores[0] = (struct lk_score){"rouge1", rouge.r1.f};
        scores[1] = (struct lk_score){"rouge2", rouge.r2.f};
        scores[2] = (struct lk_score){"rougeL", rouge.l.f};
    } else if (status == LK_OK && item->match == LK_MATCH_NUMBER) {
        scores[0] = (struct lk_score){"exact_match", same_number(item, answer)};
    } else if (status == LK_OK) {
        scores[0] = (struct lk_score){"score", share(item, answer, len)};
    }
    if (status == LK_OK) *n = item->match == LK_MATCH_ROUGE ? 3 : 1;
    lk_arena_free(&arena);
    return status;
}
