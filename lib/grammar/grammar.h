/* A compiled GBNF grammar over the bytes of UTF-8 text.
 *
 * It is immutable, and shared by counting references. Its size is in proportion to its text,
 * because repetitions are not expanded: a symbol says how often it is repeated.
 *
 *   rule[]    rule 0 stands for "root", the others for named rules and groups in parentheses
 *     alt[]       the alternatives of a rule: each the index of its first symbol
 *       symbol[]      the symbols of an alternative, then END; symbol 0 is END too */
#ifndef LK_TOKEN_GRAMMAR_H
#define LK_TOKEN_GRAMMAR_H

#include "base/err.h"
#include "base/ledger.h"

enum lk_symbol_kind {
    LK_SYMBOL_END,   /* of an alternative */
    LK_SYMBOL_RANGE, /* one byte, from value & 255 to value >> 8 */
    LK_SYMBOL_SET,   /* one byte of set[value] */
    LK_SYMBOL_RULE,  /* what rule[value] matches */
};

struct lk_symbol {
    uint32_t kind : 2, value : 30;
    uint32_t repeat; /* index in repeat[]; 0: exactly once */
};

struct lk_repeat {
    uint32_t min, max; /* max 0: no limit */
};

struct lk_byte_set {
    uint64_t word[4]; /* bit b & 63 of word b >> 6 for byte b */
};

struct lk_rule {
    uint32_t first_alt, n_alt; /* alternatives that match no finite text are left out */
    bool nullable;             /* matches the empty text */
};

struct lk_grammar {
    atomic_uint n_owner;
    struct lk_ledger ledger;
    uint32_t n_rule, n_alt, n_symbol, n_repeat, n_set;
    struct lk_rule *rule;
    uint32_t *alt;
    struct lk_symbol *symbol;
    struct lk_repeat *repeat;
    struct lk_byte_set *set;
    uint8_t class_of[256]; /* no symbol distinguishes two bytes of the same class */
    uint32_t n_class;
};

/* Compile GBNF as libllama reads it, with these differences: token references are rejected with
 * LK_E_UNSUPPORTED; left recursion is allowed; {m,n} is exact up to 65,536; "." and negated classes
 * do not match U+0000; texts match only if they are valid UTF-8. LK_E_FORMAT names the line and the
 * column. At most 128 KiB of text and 200 nested parentheses. *out is owned: lk_grammar_free. */
lk_status lk_grammar_new(struct lk_grammar **out, const char *text, lk_err *err);

/* One more owner, who calls lk_grammar_free. */
struct lk_grammar *lk_grammar_share(struct lk_grammar *grammar);
void lk_grammar_free(struct lk_grammar *grammar);

/* Bytes of memory, counted once for all owners. */
size_t lk_grammar_bytes(const struct lk_grammar *grammar);

static inline bool lk_byte_set_has(const struct lk_byte_set *set, uint8_t byte) {
    return set->word[byte >> 6] >> (byte & 63) & 1;
}

#endif
