/* Finds control tokens by their text, and marks them in text. */
#include "token/control_tokens.h"

#include "llama.h"

#include <stdlib.h>
#include <string.h>

/* The longest first, then by text. */
static int compare_tokens(const void *a, const void *b) {
    const struct lk_control_token *x = a, *y = b;
    if (x->len != y->len) return x->len > y->len ? -1 : 1;
    return memcmp(x->text, y->text, x->len);
}

bool lk_control_tokens_init(struct lk_control_tokens *tokens, const struct llama_vocab *vocab,
                            int32_t n_vocab) {
    const unsigned control = LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN,
                   found = control | LLAMA_TOKEN_ATTR_USER_DEFINED;
    size_t n = 0;
    *tokens = (struct lk_control_tokens){0};
    for (int32_t id = 0; id < n_vocab; id++)
        n += ((unsigned)llama_vocab_get_attr(vocab, id) & found) != 0;
    tokens->at = malloc((n + 1) * sizeof *tokens->at);
    if (!tokens->at) return false;
    for (int32_t id = 0; id < n_vocab; id++) {
        unsigned attr = (unsigned)llama_vocab_get_attr(vocab, id);
        const char *text = llama_vocab_get_text(vocab, id);
        if (!(attr & found) || !*text) continue;
        tokens->starts[(unsigned char)*text] = true;
        tokens->at[tokens->n++] =
            (struct lk_control_token){.text = text,
                                      .len = strlen(text),
                                      .id = id,
                                      .is_control = (attr & control) != 0,
                                      .lstrip = (attr & LLAMA_TOKEN_ATTR_LSTRIP) != 0,
                                      .rstrip = (attr & LLAMA_TOKEN_ATTR_RSTRIP) != 0};
    }
    qsort(tokens->at, tokens->n, sizeof *tokens->at, compare_tokens);
    return true;
}

void lk_control_tokens_free(struct lk_control_tokens *tokens) {
    free(tokens->at);
    *tokens = (struct lk_control_tokens){0};
}

/* The token of at[0..n), all of one length, with this text. */
static const struct lk_control_token *find_in(const struct lk_control_token *at, size_t n,
                                              const char *text, size_t len) {
    struct lk_control_token key = {.text = text, .len = len};
    return bsearch(&key, at, n, sizeof *at, compare_tokens);
}

const struct lk_control_token *lk_control_tokens_find(const struct lk_control_tokens *tokens,
                                                      const char *text, size_t len) {
    const struct lk_control_token *found = find_in(tokens->at, tokens->n, text, len);
    return found && found->is_control ? found : NULL;
}

/* What is known of a byte of the text: it belongs to a token that was found, and a control token
 * starts or ends with it. */
enum { COVERED = 1, CONTROL_START = 2, CONTROL_END = 4 };

/* Cover all places of text[0..len) where one of at[0..n), tokens of one length, is found. */
static void cover_tokens(const struct lk_control_tokens *tokens, const struct lk_control_token *at,
                         size_t n, const char *text, size_t len, unsigned char *cover) {
    size_t n_byte = at->len;
    for (size_t i = 0; i + n_byte <= len; i++) {
        if (!tokens->starts[(unsigned char)text[i]]) continue;
        const struct lk_control_token *found = find_in(at, n, text + i, n_byte);
        bool is_free = found != NULL;
        for (size_t k = 0; is_free && k < n_byte; k++) is_free = cover[i + k] == 0;
        if (!is_free) continue;
        memset(cover + i, COVERED, n_byte);
        if (found->is_control) {
            cover[i] |= CONTROL_START;
            cover[i + n_byte - 1] |= CONTROL_END;
        }
        i += n_byte - 1;
    }
}

void lk_control_tokens_mark(const struct lk_control_tokens *tokens, const char *text, size_t len,
                            struct lk_buf *out) {
    const char mark = (char)LK_MARK, end = (char)LK_MARK_END;
    unsigned char *cover = calloc(len + 1, 1);
    if (!cover) out->failed = true;
    for (size_t i = 0, n; cover && i < tokens->n; i += n) {
        for (n = 1; i + n < tokens->n && tokens->at[i + n].len == tokens->at[i].len;) n++;
        cover_tokens(tokens, tokens->at + i, n, text, len, cover);
    }
    for (size_t i = 0; cover && i < len; i++) {
        if (cover[i] & CONTROL_START) lk_buf_append(out, &mark, 1);
        lk_buf_append(out, text + i, 1);
        if (cover[i] & CONTROL_END) lk_buf_append(out, &end, 1);
    }
    free(cover);
}
