/* The bytes of all tokens of a vocabulary, sorted, for testing them against a grammar. */
#ifndef LK_TOKEN_TOKEN_BYTES_H
#define LK_TOKEN_TOKEN_BYTES_H

#include "base/err.h"
#include "base/ledger.h"

/* Entries are the tokens that have a text. They are sorted by their bytes, so that tokens with a
 * common prefix follow each other. */
struct lk_token_bytes {
    struct lk_ledger ledger;
    uint32_t n_vocab, n; /* tokens, entries */
    int32_t *tok;        /* [n] */
    uint32_t *start;     /* [n + 1] in bytes[] */
    uint16_t *n_shared;  /* [n] length of the prefix that an entry shares with the one before */
    uint32_t *entry;     /* [n_vocab] of a token, or LK_NO_ENTRY */
    char *bytes;         /* in the order of the entries */
    uint32_t longest;    /* bytes of the longest entry */
};

enum { LK_MAX_TOKEN_BYTES = UINT16_MAX }; /* of an entry; longer tokens have none */
static const uint32_t LK_NO_ENTRY = UINT32_MAX;

/* Sort the texts of n_vocab tokens: token i has len[i] bytes, none if len[i] is 0. The texts are
 * copied. *out is owned: lk_token_bytes_free. LK_E_NOMEM. */
lk_status lk_token_bytes_new(struct lk_token_bytes **out, const char *const *text,
                             const size_t *len, uint32_t n_vocab, lk_err *err);
void lk_token_bytes_free(struct lk_token_bytes *tokens);

#endif
