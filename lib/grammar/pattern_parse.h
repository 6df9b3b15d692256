/* Parses regular expressions into a tree. */
#ifndef LK_TOKEN_PATTERN_PARSE_H
#define LK_TOKEN_PATTERN_PARSE_H

#include "base/err.h"

#include <stdint.h>

enum {
    LK_PATTERN_MAX = 4096, /* bytes of an expression */
    LK_PATTERN_MAX_NODE = LK_PATTERN_MAX + 8,
    LK_PATTERN_MAX_RANGE = 2 * LK_PATTERN_MAX + 64,
    LK_PATTERN_MAX_CODE = 0x10ffff,
    LK_PATTERN_NO_LIMIT = 1 << 28, /* of a length or a repetition; sums of two fit in an int */
};

enum lk_pattern_kind {
    LK_PATTERN_CLASS,
    LK_PATTERN_SEQUENCE,
    LK_PATTERN_CHOICE,
    LK_PATTERN_REPEAT,
};

/* Children are linked: the first one in `child`, the others by `next`. 0 is none. */
struct lk_pattern_node {
    enum lk_pattern_kind kind;
    int child, next;
    int first_range, n_range; /* CLASS: ranges of code points, sorted and apart */
    int min, max;             /* REPEAT: how often */
    int min_len, max_len;     /* code points of its texts; set for CLASS, else by who converts */
};

struct lk_code_range {
    uint32_t lo, hi;
};

struct lk_pattern_tree {
    struct lk_pattern_node node[LK_PATTERN_MAX_NODE]; /* node 0 is not used */
    struct lk_code_range range[LK_PATTERN_MAX_RANGE];
    int n_node, n_range, root;
    bool plain; /* the texts are not inside a JSON string */
};

/* Parse an expression of at most LK_PATTERN_MAX bytes. LK_E_FORMAT, LK_E_UNSUPPORTED. */
lk_status lk_pattern_parse(struct lk_pattern_tree *tree, const char *pattern, lk_err *err);

#endif
