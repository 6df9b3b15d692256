/* Separates thoughts from answers. */
#include "serve/thoughts.h"

#include "base/ascii.h"

#include <string.h>

static const struct lk_thought_form forms[] = {
    {.marker = "<|start|>assistant", .has_messages = true},
    {.marker = "<|channel>", .open = "<|channel>thought", .close = "<channel|>", .anywhere = true},
    {.marker = "[THINK]", .open = "[THINK]", .close = "[/THINK]", .anywhere = true},
    {.marker = "<response>",
     .open = "<think>",
     .close = "</think>",
     .answer_open = "<response>",
     .answer_close = "</response>"},
    {.marker = NULL, .open = "<think>", .close = "</think>"},
};

const struct lk_thought_form *lk_thought_form_of(const char *template) {
    const struct lk_thought_form *form = forms;
    while (form->marker && !(template && strstr(template, form->marker))) form++;
    return form;
}

const char *lk_thought_form_end(const struct lk_thought_form *form) {
    return form->has_messages ? "<|end|><|start|>assistant<|channel|>final<|message|>"
                              : form->close;
}

bool lk_thought_form_is_in(const struct lk_thought_form *form, const char *template) {
    return form->marker ||
           (template && (strstr(template, form->open) || strstr(template, form->close)));
}

/* ---- words ---- */

static size_t count_space(const char *text, size_t len) {
    size_t n = 0;
    while (n < len && lk_is_space(text[n])) n++;
    return n;
}

/* Bytes of text[0..len) without white space at the end. */
static size_t trimmed(const char *text, size_t len) {
    while (len > 0 && lk_is_space(text[len - 1])) len--;
    return len;
}

enum match { NO, PART, YES };

/* Does text[0..len) start with the word? PART: it is the beginning of the word. */
static enum match match_word(const char *text, size_t len, const char *word) {
    size_t n = strlen(word);
    if (memcmp(text, word, n < len ? n : len) != 0) return NO;
    return len >= n ? YES : PART;
}

/* The first of the words in text[0..len): its offset and which. A word that the end cuts off
 * counts, with *which NULL. `len` if there is none. */
static size_t find_word(const char *text, size_t len, const char *const *words,
                        const char **which) {
    *which = NULL;
    for (size_t i = 0; i < len; i++) {
        bool is_part = false;
        for (const char *const *word = words; *word; word++) {
            if (**word != text[i]) continue;
            enum match match = match_word(text + i, len - i, *word);
            if (match == YES) *which = *word;
            if (match == YES) return i;
            is_part |= match == PART;
        }
        if (is_part) return i;
    }
    return len;
}

/* Does a prompt end with the word? Marks of control tokens do not count, nor does white space if
 * `loose`. */
static bool ends_with(const char *prompt, const char *word, bool loose) {
    size_t n = strlen(word), len = strlen(prompt);
    if (loose)
        while (len > 0 && (lk_is_space(prompt[len - 1]) || (unsigned char)prompt[len - 1] >= 0xFE))
            len--;
    for (; len > 0 && n > 0; len--) {
        if ((unsigned char)prompt[len - 1] >= 0xFE) continue;
        if (prompt[len - 1] != word[n - 1]) return false;
        n--;
    }
    return n == 0;
}

/* ---- output ---- */

struct out {
    struct lk_buf *thoughts, *answer;
};

/* Return the first n held bytes. Messages on the same side get an empty line between them. */
static void emit(struct lk_thoughts *t, const struct out *out, size_t n) {
    bool inside = t->state == LK_THOUGHTS_INSIDE;
    bool *has_text = inside ? &t->has_thoughts : &t->has_answer;
    struct lk_buf *to = inside ? out->thoughts : out->answer;
    if (n == 0) return;
    if (!t->has_piece && *has_text && (inside || (t->form && t->form->has_messages)) &&
        t->state != LK_THOUGHTS_MESSAGE)
        lk_buf_append_str(to, "\n\n");
    t->has_piece = *has_text = true;
    lk_buf_append(to, t->held.at, n);
    lk_buf_consume(&t->held, n);
}

static void enter(struct lk_thoughts *t, int state) {
    t->state = state;
    t->has_piece = false;
    t->n_space = 0;
}

/* ---- words around thoughts ---- */

/* These return false if more text is needed. White space that is held back is not scanned again. */

/* After much white space no thoughts start, so that it can be sent. */
static bool scan_start(struct lk_thoughts *t, bool is_end) {
    enum { MAX_SPACE = 64 };
    const char *text = t->held.at;
    size_t space = t->n_space + count_space(text + t->n_space, t->held.len - t->n_space);
    size_t len = t->held.len - space;
    t->n_space = space;
    const char *const words[] = {t->form->open, t->was_opened ? t->form->close : NULL};
    for (size_t i = 0; i < 2 && words[i] && space <= MAX_SPACE; i++) {
        enum match match = match_word(text + space, len, words[i]);
        if (match == PART && !is_end) return false;
        if (match != YES) continue;
        lk_buf_consume(&t->held, space + strlen(words[i]));
        enter(t, i == 0 ? LK_THOUGHTS_INSIDE : LK_THOUGHTS_AFTER);
        return true;
    }
    enter(t, LK_THOUGHTS_ANSWER);
    return true;
}

/* White space at both ends of thoughts is dropped. */
static bool scan_inside(struct lk_thoughts *t, const struct out *out, bool is_end) {
    const char *const words[] = {t->form->close, NULL};
    const char *found;
    if (!t->has_piece) lk_buf_consume(&t->held, count_space(t->held.at, t->held.len));
    const char *text = t->held.at + t->n_space;
    size_t n = find_word(text, t->held.len - t->n_space, words, &found);
    if (is_end && !found) n = t->held.len - t->n_space;
    size_t shown = trimmed(text, n);
    if (shown) shown += t->n_space;
    n += t->n_space;
    emit(t, out, shown);
    t->n_space = n - shown;
    if (!found) return false;
    lk_buf_consume(&t->held, n - shown + strlen(found));
    enter(t, LK_THOUGHTS_AFTER);
    return true;
}

static bool scan_after(struct lk_thoughts *t, bool is_end) {
    lk_buf_consume(&t->held, count_space(t->held.at, t->held.len));
    if (t->held.len == 0) return false;
    const char *word = t->form->answer_open;
    enum match match = word ? match_word(t->held.at, t->held.len, word) : NO;
    if (match == PART && !is_end) return false;
    if (match == YES) {
        lk_buf_consume(&t->held, strlen(word));
        t->in_answer_words = true;
    }
    enter(t, LK_THOUGHTS_ANSWER);
    return true;
}

static bool scan_answer(struct lk_thoughts *t, const struct out *out, bool is_end) {
    const char *words[3] = {NULL}, *found;
    size_t n_word = 0;
    if (t->form->anywhere) words[n_word++] = t->form->open;
    if (t->in_answer_words) words[n_word++] = t->form->answer_close;
    size_t n = find_word(t->held.at, t->held.len, words, &found);
    emit(t, out, is_end && !found ? t->held.len : n);
    if (!found) return false;
    lk_buf_consume(&t->held, strlen(found));
    if (found == t->form->open) enter(t, LK_THOUGHTS_INSIDE);
    return true;
}

/* ---- messages of gpt-oss ---- */

static const char start_word[] = "<|start|>", channel_word[] = "<|channel|>",
                  message_word[] = "<|message|>", to_word[] = " to=";

/* Is the word in text[0..len)? */
static const char *find_in(const char *text, size_t len, const char *word) {
    const char *const words[] = {word, NULL};
    const char *found;
    size_t at = find_word(text, len, words, &found);
    return found ? text + at : NULL;
}

/* A header: where the message is from and to, its channel and type, up to <|message|>. Anything
 * else is a message to the user without a header. */
static bool scan_header(struct lk_thoughts *t, const struct out *out, bool is_end) {
    enum { MAX_HEADER = 256 };
    const char *const first[] = {start_word, channel_word, to_word};
    enum match best = NO;
    for (size_t i = 0; i < 3; i++) {
        enum match match = match_word(t->held.at, t->held.len, first[i]);
        if (match > best) best = match;
    }
    const char *end = find_in(t->held.at, t->held.len, message_word);
    size_t n = end ? (size_t)(end - t->held.at) : t->held.len;
    if (best != NO && !end && n <= MAX_HEADER && !is_end) return false;
    if (best != YES || !end || n > MAX_HEADER) {
        /* after a call: its arguments may contain the word that seemed to end it */
        enter(t, t->after_call ? LK_THOUGHTS_MESSAGE : LK_THOUGHTS_ANSWER);
        /* its first byte, so that it is not taken for the end of a message */
        emit(t, out, best == YES);
        return true;
    }
    const char *channel = find_in(t->held.at, n, channel_word);
    size_t n_channel = channel ? n - (size_t)(channel - t->held.at) - strlen(channel_word) : 0;
    if (find_in(t->held.at, n, to_word)) {
        enter(t, LK_THOUGHTS_MESSAGE);
        if (match_word(t->held.at, n, to_word) == YES) {
            lk_buf_append_str(out->answer, start_word);
            lk_buf_append_str(out->answer, "assistant");
        }
        emit(t, out, n + strlen(message_word));
        return true;
    }
    bool inside =
        channel && match_word(channel + strlen(channel_word), n_channel, "analysis") == YES;
    lk_buf_consume(&t->held, n + strlen(message_word));
    enter(t, inside ? LK_THOUGHTS_INSIDE : LK_THOUGHTS_ANSWER);
    return true;
}

/* The text of a message up to its end. A call also keeps the word at its end. */
static bool scan_message(struct lk_thoughts *t, const struct out *out, bool is_end) {
    static const char *const ends[] = {"<|end|>",  "<|call|>",   "<|return|>",
                                       start_word, channel_word, NULL};
    const char *found;
    size_t n = find_word(t->held.at, t->held.len, ends, &found);
    if (is_end && !found) n = t->held.len;
    bool is_header = found == start_word || found == channel_word;
    if (t->state == LK_THOUGHTS_MESSAGE && found && !is_header) n += strlen(found);
    bool is_kept = t->state == LK_THOUGHTS_MESSAGE || is_header;
    t->after_call = t->state == LK_THOUGHTS_MESSAGE;
    emit(t, out, n);
    if (!found) return false;
    if (!is_kept) lk_buf_consume(&t->held, strlen(found));
    enter(t, LK_THOUGHTS_START);
    return true;
}

/* ---- interface ---- */

void lk_thoughts_init(struct lk_thoughts *t, const struct lk_thought_form *form, const char *prompt,
                      bool constrained) {
    *t = (struct lk_thoughts){.form = form};
    if (!form) return;
    if (form->has_messages) {
        if (!ends_with(prompt, "<|start|>assistant", false)) t->state = LK_THOUGHTS_ANSWER;
    } else if (ends_with(prompt, form->open, true)) {
        t->was_opened = constrained;
        if (!constrained) t->state = LK_THOUGHTS_INSIDE;
    }
}

static void scan(struct lk_thoughts *t, const struct out *out, bool is_end) {
    bool goes_on = true;
    while (goes_on && t->held.len > 0 && !t->held.failed) {
        if (!t->form) {
            emit(t, out, t->held.len);
        } else if (t->form->has_messages) {
            goes_on = t->state == LK_THOUGHTS_START ? scan_header(t, out, is_end)
                                                    : scan_message(t, out, is_end);
        } else if (t->state == LK_THOUGHTS_START) {
            goes_on = scan_start(t, is_end);
        } else if (t->state == LK_THOUGHTS_INSIDE) {
            goes_on = scan_inside(t, out, is_end);
        } else {
            goes_on =
                t->state == LK_THOUGHTS_AFTER ? scan_after(t, is_end) : scan_answer(t, out, is_end);
        }
    }
    if (t->held.failed) out->answer->failed = true;
}

void lk_thoughts_push(struct lk_thoughts *t, const char *text, size_t len, struct lk_buf *thoughts,
                      struct lk_buf *answer) {
    lk_buf_append(&t->held, text, len);
    scan(t, &(struct out){thoughts, answer}, false);
}

void lk_thoughts_finish(struct lk_thoughts *t, struct lk_buf *thoughts, struct lk_buf *answer) {
    scan(t, &(struct out){thoughts, answer}, true);
}

void lk_thoughts_free(struct lk_thoughts *t) { lk_buf_free(&t->held); }

/* ---- budgets ---- */

int32_t lk_thought_budget_next(struct lk_thought_budget *b) {
    if (!b->is_on) return -1;
    if (b->n_forced == b->n_end) b->n_forced = 0; /* thoughts that start again */
    if (b->n_forced == 0 && (b->n_left > 0 || b->split.state != LK_THOUGHTS_INSIDE)) return -1;
    return b->end[b->n_forced++];
}

bool lk_thought_budget_is_inside(const struct lk_thought_budget *b) {
    return b->is_on && b->split.state == LK_THOUGHTS_INSIDE;
}

void lk_thought_budget_push(struct lk_thought_budget *b, const char *text, size_t len) {
    struct lk_buf dropped = {0};
    if (!b->is_on) return;
    bool was_inside = b->split.state == LK_THOUGHTS_INSIDE;
    if (was_inside && b->n_left > 0) b->n_left--;
    lk_thoughts_push(&b->split, text, len, &dropped, &dropped);
    lk_buf_free(&dropped);
}
