/* Helpers for token sequences. */
#include "serve/tokens.h"

#include <string.h>

size_t lk_tokens_common_prefix(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b) {
    size_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n]) n++;
    return n;
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
    if (lk_tokenize(model, "", 0, LK_TOKENIZE_BEGIN, 0, &begin, &n, NULL) == LK_OK &&
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
