/* Tokenizes text: plain, with control tokens, or marked. libllama tokenizes the fragments between
 * marks, as it does itself between the control tokens that it finds. Inputs on which it would
 * abort, overflow its stack, or use more time and memory than the caller allows are rejected. */
#include "token/tokenize.h"

#include "base/ascii.h"
#include "base/cxx_call.h"
#include "base/os.h"
#include "base/utf8.h"

#include "llama.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct tokenizer {
    const struct lk_vocab *vocab;
    const struct llama_vocab *llama;
    bool parse;         /* libllama looks for control tokens */
    size_t n_max;       /* 0: no limit */
    bool merges;        /* a tokenizer that merges characters */
    bool groups_digits; /* in groups of three from the right */
    int32_t absent;     /* a control token whose text is not in the fragment */
    int32_t *tok;       /* [n] of cap */
    size_t n, cap;
};

/* Length of the longest run that is all white space or all other bytes. */
static size_t longest_run(const char *text, size_t len) {
    size_t longest = 0, run = 0;
    bool was_space = false;
    for (size_t i = 0; i < len; i++) {
        bool space = lk_is_space(text[i]);
        run = space == was_space ? run + 1 : 1;
        was_space = space;
        if (run > longest) longest = run;
    }
    return longest;
}

/* ---- libllama ---- */

struct llama_call {
    const struct llama_vocab *vocab;
    const char *text;
    int32_t len, cap, n;
    int32_t *tok; /* [cap] */
    bool add, parse;
    lk_status status;
    lk_err err;
};

static void call_llama_tokenize(void *arg) {
    struct llama_call *c = arg;
    c->n = llama_tokenize(c->vocab, c->text, c->len, c->tok, c->cap, c->add, c->parse);
}

/* An exception must be caught on the thread that it is thrown on. */
static void catch_exceptions(void *arg) {
    struct llama_call *c = arg;
    c->status = lk_cxx_call(call_llama_tokenize, c, &c->err);
}

/* Some of libllama's pre-tokenizers use std::regex, which recurses once per character of a word, so
 * a long word overflows an ordinary stack. Texts with such words get a stack in proportion to their
 * longest run. */
static lk_status call_with_stack(struct llama_call *c, lk_err *err) {
    enum { SHORT_RUN = 1000, STACK_PER_BYTE = 2048, STACK_BASE = 8 << 20 };
    size_t run = longest_run(c->text, (size_t)c->len);
    if (run <= SHORT_RUN)
        catch_exceptions(c);
    else if (!lk_os_run_with_stack(catch_exceptions, c, STACK_BASE + run * STACK_PER_BYTE))
        return lk_fail(err, LK_E_NOMEM, "not enough memory to tokenize a word of %zu bytes", run);
    if (c->status == LK_E_NOMEM)
        return lk_fail(err, LK_E_NOMEM, "out of memory: cannot tokenize a text of %d bytes",
                       c->len);
    return c->status ? lk_fail(err, c->status, "%s", c->err.msg) : LK_OK;
}

/* Make room for n more tokens. */
static lk_status reserve(struct tokenizer *t, size_t n, lk_err *err) {
    if (t->cap - t->n >= n) return LK_OK;
    size_t cap = t->n + n > 2 * t->cap ? t->n + n : 2 * t->cap;
    int32_t *larger = realloc(t->tok, cap * sizeof *larger);
    if (!larger) return lk_fail(err, LK_E_NOMEM, "not enough memory for %zu tokens", cap);
    t->tok = larger;
    t->cap = cap;
    return LK_OK;
}

/* Append the tokens of text[0..len). `add`: with the tokens that the model expects around it. */
static lk_status append_tokens(struct tokenizer *t, const char *text, size_t len, bool add,
                               lk_err *err) {
    struct llama_call call = {
        .vocab = t->llama, .text = text, .len = (int32_t)len, .add = add, .parse = t->parse};
    size_t room = len + 8; /* each token covers at least one byte, except BOS and EOS */
    for (int attempt = 0; attempt < 2; attempt++) { /* normalization can lengthen a text */
        lk_status status = reserve(t, room, err);
        call.tok = t->tok + t->n;
        call.cap = (int32_t)(room < INT32_MAX ? room : INT32_MAX);
        if (!status) status = call_with_stack(&call, err);
        if (status) return status;
        if (call.n >= 0) {
            t->n += (size_t)call.n;
            return LK_OK;
        }
        if (call.n == INT32_MIN) break;
        room = (size_t)(-(int64_t)call.n);
    }
    return lk_fail(err, LK_E_FORMAT, "the text has too many tokens");
}

/* ---- plain text ---- */

/* Did merging characters of text[0..len) arrive at the text of a control token? libllama looks for
 * the token of a merged text among all tokens. The tokenizers besides BPE and SPM also produce a
 * control token for characters that they do not know; its text is then not in the text. */
static bool is_merged(struct tokenizer *t, int32_t id, const char *text, size_t len) {
    size_t n;
    const char *spelled = lk_vocab_token_text(t->vocab, id, &n);
    if (!((unsigned)llama_vocab_get_attr(t->llama, id) & LLAMA_TOKEN_ATTR_CONTROL)) return false;
    if (t->merges) return true;
    if (t->absent == id) return false;
    for (size_t i = 0; i + n <= len; i++)
        if (memcmp(text + i, spelled, n) == 0) return true;
    t->absent = id;
    return false;
}

/* Replace the control tokens among tok[first..n), the tokens of text[0..len), by tokens for the
 * bytes of their texts. */
static lk_status spell_control_tokens(struct tokenizer *t, size_t first, const char *text,
                                      size_t len, lk_err *err) {
    size_t n_more = 0, n;
    t->absent = -1;
    for (size_t i = first; i < t->n; i++)
        if (is_merged(t, t->tok[i], text, len)) {
            lk_vocab_token_text(t->vocab, t->tok[i], &n);
            n_more += n - 1;
        }
    lk_status status = reserve(t, n_more, err);
    if (status) return status;
    t->n += n_more;
    for (size_t from = t->n - n_more, to = t->n; from-- > first;) { /* backwards, in place */
        int32_t id = t->tok[from];
        const char *spelled = lk_vocab_token_text(t->vocab, id, &n);
        if (!is_merged(t, id, text, len)) {
            t->tok[--to] = id;
            continue;
        }
        while (n > 0) {
            t->tok[--to] = lk_vocab_byte_token(t->vocab, (unsigned char)spelled[--n]);
            if (t->tok[to] < 0)
                return lk_fail(err, LK_E_UNSUPPORTED,
                               "the text spells the control token %.100s, and the vocabulary has "
                               "no other tokens for it",
                               spelled);
        }
    }
    return LK_OK;
}

static lk_status too_many(const struct tokenizer *t, lk_err *err) {
    return lk_fail(err, LK_E_FULL, "the text has more than %zu tokens", t->n_max);
}

enum { PIECE = 64 << 10, MAX_RUN = 4 << 20 }; /* bytes; of a run if tokens are not limited */

/* Length of the first piece of a text that is longer: it ends before white space if there is some
 * near its end, and never within a character. */
static size_t piece_end(const char *text) {
    enum { NEAR = 4096 };
    size_t end = PIECE;
    while (end > PIECE - NEAR && !lk_is_space(text[end])) end--;
    if (end == PIECE - NEAR) end = PIECE;
    while (((unsigned char)text[end] & 0xC0) == 0x80) end--;
    return end;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* libllama splits a run of digits into groups of three from the right in quadratic time. Groups are
 * tokenized apart, so the run may be cut between two of them: bytes of text[0..n), a run of digits,
 * up to such a place. */
static size_t cut_digits(size_t n) {
    enum { MAX_DIGITS = 600 };
    return n <= MAX_DIGITS ? n : MAX_DIGITS - 3 + n % 3;
}

/* Bytes of the first piece of a text. A run that is all white space or has none is cut at fixed
 * places, counted from its start, so that a longer text has the same pieces; never within a
 * character. */
static size_t next_piece(const struct tokenizer *t, const char *text, size_t len) {
    const size_t max_run = t->n_max ? PIECE : MAX_RUN;
    size_t run = 0;
    for (size_t i = 0; i < len; i++) {
        bool was_space = i && lk_is_space(text[i - 1]);
        run = i && lk_is_space(text[i]) == was_space ? run + 1 : 1;
        if (run > max_run) {
            while (((unsigned char)text[i] & 0xC0) == 0x80) i--;
            return i;
        }
        if (!t->groups_digits || !is_digit(text[i]) || (i && is_digit(text[i - 1]))) continue;
        size_t n = 1;
        while (i + n < len && is_digit(text[i + n])) n++;
        size_t cut = cut_digits(n);
        if (cut < n) return i + cut;
    }
    return len;
}

/* Fail if the text certainly has more tokens than allowed. Time and memory depend on the number
 * allowed: tokens are counted in pieces. A cut adds a few tokens at most. */
static lk_status check_count(struct tokenizer *t, const char *text, size_t len, lk_err *err) {
    enum { SLACK = 16, BYTES_PER_TOKEN = 16, UNCOUNTED = 256 << 10 };
    size_t n_before = t->n, n_free = t->n < t->n_max ? t->n_max - t->n : 0, count = 0, slack = 0;
    if (len <= PIECE || (len / BYTES_PER_TOKEN <= n_free && len <= UNCOUNTED)) return LK_OK;
    while (len) {
        size_t n = len > PIECE ? piece_end(text) : len;
        size_t part = next_piece(t, text, n);
        if (part < n) n = part;
        lk_status status = append_tokens(t, text, n, false, err);
        if (status) return status;
        count += t->n - n_before;
        slack += SLACK;
        t->n = n_before;
        if (count > n_free + slack) return too_many(t, err);
        text += n;
        len -= n;
    }
    return LK_OK;
}

/* Append the tokens of a text without marks. */
static lk_status append_fragment(struct tokenizer *t, const char *text, size_t len, lk_err *err) {
    lk_status status = LK_OK;
    if (len == 0) return LK_OK;
    if (t->n_max) status = check_count(t, text, len, err);
    for (size_t n; !status && len; text += n, len -= n) {
        size_t first = t->n;
        n = next_piece(t, text, len);
        status = append_tokens(t, text, n, false, err);
        if (!status && !t->parse) status = spell_control_tokens(t, first, text, n, err);
        if (!status && t->n_max && t->n > t->n_max) status = too_many(t, err);
    }
    return status;
}

/* ---- marked text ---- */

static lk_status append_marked(struct tokenizer *t, const char *text, size_t len, lk_err *err) {
    const struct lk_control_tokens *tokens = lk_vocab_control_tokens(t->vocab);
    const char *at = text, *end = text + len;
    for (lk_status status = LK_OK; at < end;) {
        const char *mark = memchr(at, LK_MARK, (size_t)(end - at)), *last = mark ? mark : end;
        const char *stray = memchr(at, LK_MARK_END, (size_t)(last - at));
        const char *mark_end = mark ? memchr(mark, LK_MARK_END, (size_t)(end - mark)) : NULL;
        const struct lk_control_token *found = NULL;
        if (mark_end)
            found = lk_control_tokens_find(tokens, mark + 1, (size_t)(mark_end - mark - 1));
        if (stray || (mark && !found))
            return lk_fail(err, LK_E_FORMAT, "the mark at byte %zu marks no control token",
                           (size_t)((stray ? stray : mark) - text));
        while (found && found->lstrip && last > at && lk_is_space(last[-1])) last--;
        status = append_fragment(t, at, (size_t)(last - at), err);
        if (!status && found) status = reserve(t, 1, err);
        if (status || !found) return status;
        t->tok[t->n++] = found->id;
        at = mark_end + 1;
        while (found->rstrip && at < end && lk_is_space(*at)) at++;
    }
    return LK_OK;
}

/* ---- checks ---- */

/* Offset of the first byte that is neither UTF-8 nor, if these are allowed, a mark. */
static size_t valid_prefix(const char *text, size_t len, bool marked) {
    size_t at = 0;
    for (;;) {
        at += lk_utf8_valid_prefix(text + at, len - at);
        if (at == len || !marked || (unsigned char)text[at] < LK_MARK_END) return at;
        at++;
    }
}

static lk_status check_text(const char *text, size_t len, unsigned flags, lk_err *err) {
    const unsigned known = LK_TOKENIZE_BEGIN | LK_TOKENIZE_CONTROL | LK_TOKENIZE_MARKED;
    bool marked = (flags & LK_TOKENIZE_MARKED) != 0;
    if ((flags & ~known) || (marked && (flags & LK_TOKENIZE_CONTROL)))
        return lk_fail(err, LK_E_ARG, "unknown or contradictory flags to tokenize: 0x%x", flags);
    if (len > INT32_MAX / 2)
        return lk_fail(err, LK_E_ARG,
                       "a text of %zu bytes is too long; pass at most 1 GiB at a time", len);
    size_t valid = valid_prefix(text, len, marked);
    if (valid < len)
        return lk_fail(err, LK_E_FORMAT, "the text is not UTF-8: byte %zu is 0x%02X", valid,
                       (unsigned char)text[valid]);
    return LK_OK;
}

/* Append the tokens that the model expects around a text. libllama puts them around an empty one.
 * *n_end of them, 0 or 1, belong to the end. */
static lk_status append_edges(struct tokenizer *t, size_t *n_end, lk_err *err) {
    const struct llama_vocab *v = t->llama;
    /* libllama asserts that the tokens to add exist. */
    if ((llama_vocab_get_add_bos(v) && llama_vocab_bos(v) == LLAMA_TOKEN_NULL) ||
        (llama_vocab_get_add_eos(v) && llama_vocab_eos(v) == LLAMA_TOKEN_NULL))
        return LK_OK;
    lk_status status = append_tokens(t, "", 0, true, err);
    *n_end = t->n == 2 || (t->n == 1 && !llama_vocab_get_add_bos(v));
    return status;
}

lk_status lk_vocab_tokenize(const struct lk_vocab *vocab, const char *text, size_t len,
                            unsigned flags, size_t n_max, int32_t **tok, size_t *n_tok,
                            lk_err *err) {
    struct tokenizer t = {.vocab = vocab,
                          .llama = lk_vocab_llama(vocab),
                          .parse = (flags & LK_TOKENIZE_CONTROL) != 0,
                          .groups_digits = lk_vocab_groups_digits(vocab),
                          .n_max = n_max};
    size_t n_end = 0;
    if (!t.llama) return lk_fail(err, LK_E_UNSUPPORTED, "the model has no tokenizer");
    t.merges = llama_vocab_type(t.llama) == LLAMA_VOCAB_TYPE_SPM ||
               llama_vocab_type(t.llama) == LLAMA_VOCAB_TYPE_BPE;
    lk_status status = check_text(text, len, flags, err);
    if (!status) status = reserve(&t, 8, err);
    if (!status && (flags & LK_TOKENIZE_BEGIN)) status = append_edges(&t, &n_end, err);
    int32_t end = n_end ? t.tok[--t.n] : -1;
    if (!status)
        status = flags & LK_TOKENIZE_MARKED ? append_marked(&t, text, len, err)
                                            : append_fragment(&t, text, len, err);
    if (!status && n_end) status = reserve(&t, 1, err);
    if (!status && n_end) t.tok[t.n++] = end;
    if (!status && n_max && t.n > n_max) status = too_many(&t, err);
    if (status) {
        free(t.tok);
        return status;
    }
    *tok = t.tok;
    *n_tok = t.n;
    return LK_OK;
}
