/* A recursive descent parser for regular expressions. */
#include "grammar/pattern_parse.h"

#include "base/ascii.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NESTING = 40, MAX_REPEAT = 1 << 16 };

struct parser {
    const char *at, *text;
    struct lk_pattern_node *node;
    struct lk_code_range *range;
    int n_node, n_range, nesting;
    bool starts, ends; /* anchors of the alternative that was read */
    lk_status status;
    lk_err *err;
};

/* ---- errors: set the status, return 0 ---- */

static int fail(struct parser *p, lk_status status, const char *what) {
    if (!p->status)
        p->status = lk_fail(p->err, status, "%s at byte %zu of the expression", what,
                            (size_t)(p->at - p->text) + 1);
    return 0;
}

static int unsupported(struct parser *p, const char *what) {
    return fail(p, LK_E_UNSUPPORTED, what);
}

static int invalid(struct parser *p, const char *what) { return fail(p, LK_E_FORMAT, what); }

/* ---- nodes ---- */

static int new_node(struct parser *p, struct lk_pattern_node node) {
    if (p->n_node >= LK_PATTERN_MAX_NODE) return unsupported(p, "too many parts");
    p->node[p->n_node] = node;
    return p->n_node++;
}

static void add_range(struct parser *p, int class, uint32_t lo, uint32_t hi) {
    if (p->n_range >= LK_PATTERN_MAX_RANGE) {
        unsupported(p, "too many ranges");
        return;
    }
    p->range[p->n_range++] = (struct lk_code_range){lo, hi};
    p->node[class].n_range++;
}

static int new_class(struct parser *p) {
    return new_node(
        p, (struct lk_pattern_node){
               .kind = LK_PATTERN_CLASS, .first_range = p->n_range, .min_len = 1, .max_len = 1});
}

static int compare_ranges(const void *a, const void *b) {
    const struct lk_code_range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Sort the ranges of a class and join those that overlap or touch. */
static void normalize(struct parser *p, int class) {
    struct lk_pattern_node *c = &p->node[class];
    struct lk_code_range *r = p->range + c->first_range;
    int n = 0;
    qsort(r, (size_t)c->n_range, sizeof *r, compare_ranges);
    for (int i = 0; i < c->n_range; i++) {
        if (n && r[i].lo <= r[n - 1].hi + 1)
            r[n - 1].hi = r[i].hi > r[n - 1].hi ? r[i].hi : r[n - 1].hi;
        else
            r[n++] = r[i];
    }
    c->n_range = n;
    p->n_range = c->first_range + n;
}

/* Replace a class by its complement. The class is the last one. */
static void negate(struct parser *p, int class) {
    normalize(p, class);
    int first = p->node[class].first_range, n = p->node[class].n_range;
    uint32_t next = 0;
    p->node[class].first_range = p->n_range;
    p->node[class].n_range = 0;
    for (int i = 0; i < n; i++) {
        struct lk_code_range r = p->range[first + i];
        if (r.lo > next) add_range(p, class, next, r.lo - 1);
        next = r.hi + 1;
    }
    if (next <= LK_PATTERN_MAX_CODE) add_range(p, class, next, LK_PATTERN_MAX_CODE);
}

/* ---- classes and characters ---- */

static uint32_t read_code(struct parser *p) {
    uint32_t code = 0;
    int n = lk_utf8_decode(p->at, strlen(p->at), &code);
    p->at += n > 0 ? n : 1;
    return code;
}

static bool read_hex(struct parser *p, int digits, uint32_t *code) {
    uint64_t number;
    if (!lk_read_hex(p->at, digits, &number))
        return invalid(p, "an escape without its hexadecimal digits");
    *code = (uint32_t)number;
    p->at += digits;
    return true;
}

/* Add the ranges of \d, \w or \s, or of their complements. False: it is none of these. */
static bool add_named_class(struct parser *p, int class, char name) {
    static const struct lk_code_range digit[] = {{'0', '9'}},
                                      word[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                                      space[] = {{'\t', '\r'},     {' ', ' '},
                                                 {0xa0, 0xa0},     {0x1680, 0x1680},
                                                 {0x2000, 0x200a}, {0x2028, 0x2029},
                                                 {0x202f, 0x202f}, {0x205f, 0x205f},
                                                 {0x3000, 0x3000}, {0xfeff, 0xfeff}};
    char lower = (char)(name | 0x20);
    const struct lk_code_range *r = lower == 'd' ? digit : lower == 'w' ? word : space;
    int n = lower == 'd' ? 1 : lower == 'w' ? 4 : 10;
    uint32_t next = 0;
    if (lower != 'd' && lower != 'w' && lower != 's') return false;
    for (int i = 0; i < n; i++) {
        if (name == lower) {
            add_range(p, class, r[i].lo, r[i].hi);
        } else {
            add_range(p, class, next, r[i].lo - 1);
            next = r[i].hi + 1;
        }
    }
    if (name != lower) add_range(p, class, next, LK_PATTERN_MAX_CODE);
    return true;
}

/* The code point of an escape that stands for one; p->at is behind the backslash. */
static bool read_escape(struct parser *p, uint32_t *code) {
    static const char names[] = "tnvfr0", codes[] = "\t\n\v\f\r";
    char c = *p->at;
    const char *name = c ? strchr(names, c) : NULL;
    if (!c) return invalid(p, "a backslash without a character");
    if (c == 'x' || c == 'u') {
        p->at++;
        return read_hex(p, c == 'x' ? 2 : 4, code);
    }
    if (name && !(c == '0' && lk_is_digit(p->at[1]))) {
        *code = (unsigned char)codes[name - names];
        p->at++;
        return true;
    }
    if (lk_is_digit(c)) return unsupported(p, "a back reference");
    if (c == 'b' || c == 'B') return unsupported(p, "a word boundary");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return unsupported(p, "this escape");
    *code = read_code(p);
    return true;
}

/* One side of a range in [...], or a whole named class: *code is then -1. */
static bool read_class_item(struct parser *p, int class, int64_t *code) {
    uint32_t one;
    if (*p->at != '\\') {
        *code = read_code(p);
        return true;
    }
    p->at++;
    if (*p->at && add_named_class(p, class, *p->at)) {
        p->at++;
        *code = -1;
        return true;
    }
    if (*p->at == 'b' || *p->at == '-') { /* in a class: backspace, and a hyphen */
        *code = *p->at++ == 'b' ? '\b' : '-';
        return true;
    }
    if (!read_escape(p, &one)) return false;
    *code = one;
    return true;
}

/* [...]; p->at is behind the bracket. */
static int parse_class(struct parser *p) {
    int class = new_class(p);
    bool negated = *p->at == '^';
    if (negated) p->at++;
    while (class && *p->at != ']' && !p->status) {
        int64_t lo, hi;
        if (!*p->at) return invalid(p, "a class without its ]");
        if (!read_class_item(p, class, &lo)) return 0;
        hi = lo;
        if (lo >= 0 && p->at[0] == '-' && p->at[1] && p->at[1] != ']') {
            p->at++;
            if (!read_class_item(p, class, &hi)) return 0;
            if (hi < lo) return invalid(p, "a range whose end is before its start");
        }
        if (lo >= 0) add_range(p, class, (uint32_t)lo, (uint32_t)hi);
    }
    if (!class || p->status) return 0;
    p->at++;
    if (negated)
        negate(p, class);
    else
        normalize(p, class);
    return class;
}

static int parse_dot(struct parser *p) {
    int class = new_class(p);
    if (!class) return 0;
    add_range(p, class, '\n', '\n');
    add_range(p, class, '\r', '\r');
    add_range(p, class, 0x2028, 0x2029);
    negate(p, class);
    return class;
}

/* ---- the expression ---- */

static int parse_choice(struct parser *p, bool outermost);

/* (...); p->at is behind the parenthesis. */
static int parse_group(struct parser *p) {
    if (*p->at == '?') {
        bool named = p->at[1] == '<' && p->at[2] != '=' && p->at[2] != '!';
        if (p->at[1] != ':' && !named) return unsupported(p, "look-around or a flag");
        p->at += 2;
        if (named) {
            p->at += strcspn(p->at, ">");
            if (!*p->at++) return p->at--, invalid(p, "a group without the end of its name");
        }
    }
    if (p->nesting >= MAX_NESTING) return unsupported(p, "too many nested groups");
    p->nesting++;
    int node = parse_choice(p, false);
    p->nesting--;
    if (!node) return 0;
    if (*p->at != ')') return invalid(p, "a group without its )");
    p->at++;
    return node;
}

static int parse_atom(struct parser *p) {
    uint32_t code;
    char c = *p->at;
    if (c == '^' || c == '$') return unsupported(p, "an anchor inside the expression");
    if (c == '*' || c == '+' || c == '?') return invalid(p, "a repetition of nothing");
    if (c == '(' || c == '[' || c == '.') p->at++;
    if (c == '(') return parse_group(p);
    if (c == '[') return parse_class(p);
    if (c == '.') return parse_dot(p);
    int class = new_class(p);
    if (!class) return 0;
    if (c == '\\') {
        p->at++;
        if (*p->at && add_named_class(p, class, *p->at)) {
            p->at++;
            normalize(p, class);
            return class;
        }
        if (!read_escape(p, &code)) return 0;
    } else {
        code = read_code(p);
    }
    add_range(p, class, code, code);
    return class;
}

/* {m}, {m,} or {m,n}. False: it is none of these, so the brace is a character. */
static bool read_braces(struct parser *p, int *min, int *max) {
    int n = 0, m, k;
    if (sscanf(p->at, "{%6d}%n", &m, &n) == 1 && n) {
        *min = *max = m;
    } else if (n = 0, sscanf(p->at, "{%6d,%6d}%n", &m, &k, &n) == 2 && n) {
        *min = m;
        *max = k;
    } else if (n = 0, sscanf(p->at, "{%6d,}%n", &m, &n) == 1 && n) {
        *min = m;
        *max = LK_PATTERN_NO_LIMIT;
    }
    if (n && lk_is_digit(p->at[1])) {
        p->at += n;
        return true;
    }
    return false;
}

static bool read_repetition(struct parser *p, int *min, int *max) {
    char c = *p->at;
    if (c == '{') {
        if (!read_braces(p, min, max)) return false;
    } else if (c == '*' || c == '+' || c == '?') {
        *min = c == '+';
        *max = c == '?' ? 1 : LK_PATTERN_NO_LIMIT;
        p->at++;
    } else {
        return false;
    }
    if (*p->at == '?') p->at++; /* lazy: the same texts */
    return true;
}

static int parse_item(struct parser *p) {
    int min = 0, max = 0, node = parse_atom(p);
    if (!node || !read_repetition(p, &min, &max)) return node;
    if (max < min) return invalid(p, "a repetition whose maximum is less than its minimum");
    if (min > MAX_REPEAT || (max != LK_PATTERN_NO_LIMIT && max > MAX_REPEAT))
        return unsupported(p, "more than 65536 repetitions");
    if (*p->at == '*' || *p->at == '+') return invalid(p, "a repetition of a repetition");
    return new_node(p, (struct lk_pattern_node){
                           .kind = LK_PATTERN_REPEAT, .child = node, .min = min, .max = max});
}

static int parse_sequence(struct parser *p) {
    int sequence = new_node(p, (struct lk_pattern_node){.kind = LK_PATTERN_SEQUENCE}), last = 0;
    bool starts = *p->at == '^' && p->nesting == 0, ends = false;
    if (starts) p->at++;
    while (sequence && *p->at && *p->at != '|' && *p->at != ')') {
        if (*p->at == '$' && p->nesting == 0 && (p->at[1] == 0 || p->at[1] == '|')) {
            p->at++;
            ends = true;
            break;
        }
        int item = parse_item(p);
        if (!item) return 0;
        if (last)
            p->node[last].next = item;
        else
            p->node[sequence].child = item;
        last = item;
    }
    p->starts = starts;
    p->ends = ends;
    return sequence;
}

/* Anything, before or after what an expression without an anchor matches. */
static int any_text(struct parser *p) {
    int class = new_class(p);
    if (!class) return 0;
    add_range(p, class, 0, LK_PATTERN_MAX_CODE);
    return new_node(p, (struct lk_pattern_node){
                           .kind = LK_PATTERN_REPEAT, .child = class, .max = LK_PATTERN_NO_LIMIT});
}

static bool add_any_text(struct parser *p, int sequence) {
    if (!p->starts) {
        int any = any_text(p);
        if (!any) return false;
        p->node[any].next = p->node[sequence].child;
        p->node[sequence].child = any;
    }
    if (!p->ends) {
        int any = any_text(p), last = p->node[sequence].child;
        if (!any) return false;
        while (last && p->node[last].next) last = p->node[last].next;
        if (last)
            p->node[last].next = any;
        else
            p->node[sequence].child = any;
    }
    return true;
}

static int parse_choice(struct parser *p, bool outermost) {
    int choice = new_node(p, (struct lk_pattern_node){.kind = LK_PATTERN_CHOICE}), last = 0;
    for (bool more = choice != 0; more; more = *p->at == '|' && p->at++) {
        int sequence = parse_sequence(p);
        if (!sequence || (outermost && !add_any_text(p, sequence))) return 0;
        if (last)
            p->node[last].next = sequence;
        else
            p->node[choice].child = sequence;
        last = sequence;
    }
    return choice;
}

lk_status lk_pattern_parse(struct lk_pattern_tree *tree, const char *pattern, lk_err *err) {
    struct parser p = {.at = pattern,
                       .text = pattern,
                       .node = tree->node,
                       .range = tree->range,
                       .n_node = 1,
                       .err = err};
    int root = parse_choice(&p, true);
    if (root && *p.at) root = invalid(&p, "a ) without its (");
    if (!root && !p.status) p.status = LK_E_FORMAT;
    tree->n_node = p.n_node;
    tree->n_range = p.n_range;
    tree->root = root;
    return p.status;
}
