/* Helpers for token sequences. */
#include "serve/tokens.h"

#include <string.h>

size_t lk_tokens_common_prefix(const int32_t *a, size_t n_a, const int32_t *b, size_t n_b) {
    size_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n]) n++;
    return n;
}

void lk_tokens_to_text(const lk_model *model, const int32_t *tok, size_t n_tok,
                       struct lk_buf *out) {
    int32_t *bos = NULL; /* the tokens that start every text */
    size_t n_bos = 0, i = 0;
    if (lk_tokenize(model, "", 0, true, &bos, &n_bos, NULL) == LK_OK &&
        lk_tokens_common_prefix(bos, n_bos, tok, n_tok) == n_bos)
        i = n_bos;
    lk_tokens_free(bos);
    for (; i < n_tok; i++) {
        char text[512];
        size_t len = lk_token_text(model, tok[i], text, sizeof text);
        lk_buf_append(out, text, len);
    }
}

int32_t *lk_tokenize_continuation(const lk_model *model, const char *text, size_t *n_tok) {
    int32_t *bos = NULL, *tok = NULL;
    size_t n_bos = 0, n = 0;
    if (lk_tokenize(model, "", 0, true, &bos, &n_bos, NULL) == LK_OK &&
        lk_tokenize(model, text, strlen(text), true, &tok, &n, NULL) == LK_OK) {
        if (n >= n_bos && memcmp(tok, bos, n_bos * sizeof *tok) == 0) {
            n -= n_bos;
            memmove(tok, tok + n_bos, n * sizeof *tok);
        }
        *n_tok = n;
    }
    lk_tokens_free(bos);
    return tok;
}
