/* Helpers for token sequences. */
#include "serve/tokens.h"

#include <string.h>

size_t lk_tokens_common_prefix(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b) {
    size_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n]) n++;
    return n;
}

void lk_tokens_common_text(const lk_model *model, const int32_t *a, size_t n_a, const int32_t *b,
                           size_t n_b, size_t *at_a, size_t *at_b) {
    size_t i = 0, j = 0, done_a = 0, done_b = 0; /* bytes of tokens i and j that were compared */
    *at_a = *at_b = 0;
    for (;;) {
        if (done_a == 0 && done_b == 0) {
            while (i < n_a && j < n_b && a[i] == b[j]) i++, j++;
            *at_a = i;
            *at_b = j;
        }
        if (i == n_a || j == n_b) return;
        size_t n_text_a, n_text_b;
        const char *text_a = lk_token_text(model, a[i], &n_text_a),
                   *text_b = lk_token_text(model, b[j], &n_text_b);
        if (lk_token_is_control(model, a[i]) || lk_token_is_control(model, b[j])) return;
        size_t left_a = n_text_a - done_a, left_b = n_text_b - done_b,
               n = left_a < left_b ? left_a : left_b;
        if (n == 0 || memcmp(text_a + done_a, text_b + done_b, n) != 0) return;
        done_a += n;
        done_b += n;
        if (done_a == n_text_a) i++, done_a = 0;
        if (done_b == n_text_b) j++, done_b = 0;
    }
}

void lk_token_append_marked(const lk_model *model, int32_t tok, struct lk_buf *out) {
    static const char mark = '\xFF', mark_end = '\xFE', neither = '\xFD';
    size_t len, start = out->len;
    const char *text = lk_token_text(model, tok, &len);
    if (lk_token_is_control(model, tok)) {
        lk_buf_append(out, &mark, 1);
        lk_buf_append(out, text, len);
        lk_buf_append(out, &mark_end, 1);
        return;
    }
    lk_buf_append(out, text, len);
    for (size_t i = start; i < out->len; i++)
        if (out->at[i] == mark || out->at[i] == mark_end) out->at[i] = neither;
}

/* Number of tokens that start every text, if tok[0..n_tok) starts with them. */
static size_t count_begin(const lk_model *model, const int32_t *tok, size_t n_tok) {
    int32_t *begin = NULL;
    size_t n = 0;
    if (!lk_tokenize(model, "", 0, LK_TOKENIZE_BEGIN, 0, &begin, &n, NULL) &&
        lk_tokens_common_prefix(begin, n, tok, n_tok) != n)
        n = 0;
    lk_tokens_free(begin);
    return n;
}

void lk_tokens_to_text(const lk_model *model, const int32_t *tok, size_t n_tok,
                       struct lk_buf *out) {
    for (size_t i = count_begin(model, tok, n_tok), len; i < n_tok; i++) {
        const char *text = lk_token_text(model, tok[i], &len);
        lk_buf_append(out, text, len);
    }
}

void lk_tokens_to_marked_text(const lk_model *model, const int32_t *tok, size_t n_tok,
                              struct lk_buf *out) {
    for (size_t i = count_begin(model, tok, n_tok); i < n_tok; i++)
        lk_token_append_marked(model, tok[i], out);
}

size_t lk_tokens_set_offsets(struct lk_logprob *lp, size_t n_tok, const lk_model *model,
                             const char *text, size_t len) {
    static const char invalid[] = "\xef\xbf\xbd"; /* stands for a byte in the text */
    size_t at = 0, n_char = 0;
    for (size_t i = 0; i < n_tok; i++) {
        size_t n, end = at;
        const char *tok = lk_token_text(model, lp[i].tok, &n);
        lp[i].offset = n_char;
        /* Some tokenizers put a space before the text. */
        if (at == 0 && n > 0 && *tok == ' ' && (len == 0 || *text != ' ')) tok++, n--;
        if (n <= len - at && memcmp(text + at, tok, n) == 0)
            end = at + n;
        else
            while (n-- > 0 && len - end >= 3 && memcmp(text + end, invalid, 3) == 0) end += 3;
        for (; at < end; at++) n_char += ((unsigned char)text[at] & 0xC0) != 0x80;
    }
    for (; at < len; at++) n_char += ((unsigned char)text[at] & 0xC0) != 0x80;
    return n_char;
}
