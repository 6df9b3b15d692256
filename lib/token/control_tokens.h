/* The tokens of a vocabulary that are found by their text before anything else is tokenized:
 * control tokens, and user-defined ones.
 *
 * Marked text is UTF-8 in which some control tokens are marked as such:
 *
 *     0xFF <|im_start|> 0xFE user \n hello 0xFF <|im_end|> 0xFE \n
 *
 * Neither byte occurs in UTF-8. The same text without these bytes is plain text. */
#ifndef LK_TOKEN_CONTROL_TOKENS_H
#define LK_TOKEN_CONTROL_TOKENS_H

#include "base/buf.h"

#include <stdint.h>

enum { LK_MARK = 0xFF, LK_MARK_END = 0xFE };

struct llama_vocab;

struct lk_control_token {
    const char *text; /* [len] not zero-terminated */
    size_t len;
    int32_t id;
    bool is_control;     /* else user-defined */
    bool lstrip, rstrip; /* drops the white space before it, after it */
};

struct lk_control_tokens {
    struct lk_control_token *at; /* [n] the longest first, then by text */
    size_t n;
    bool starts[256]; /* the first bytes of their texts */
};

/* Collect the tokens of a vocabulary. Texts are borrowed from it. False: out of memory. */
bool lk_control_tokens_init(struct lk_control_tokens *tokens, const struct llama_vocab *vocab,
                            int32_t n_vocab);
void lk_control_tokens_free(struct lk_control_tokens *tokens);

/* The control token with exactly this text; NULL if there is none. */
const struct lk_control_token *lk_control_tokens_find(const struct lk_control_tokens *tokens,
                                                      const char *text, size_t len);

/* Append text[0..len) to `out` and mark the control tokens that libllama would find in it: longer
 * tokens are found first, and a user-defined token may cover the text of a shorter control
 * token. */
void lk_control_tokens_mark(const struct lk_control_tokens *tokens, const char *text, size_t len,
                            struct lk_buf *out);

#endif
