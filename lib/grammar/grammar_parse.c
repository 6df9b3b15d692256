/* A recursive descent parser for GBNF.
 *
 *   grammar       rule*                               rule          name "::=" alternatives newline
 *   alternatives  sequence ("|" sequence)*            sequence      (item repetition*)*
 *   item          name | "literal" | [class] | . | (alternatives)
 *   repetition    * | + | ? | {m} | {m,} | {m,n}
 *
 * Inside parentheses and after "::=" and "|" a newline is white space. Code points become UTF-8
 * bytes, and classes with code points of several bytes become rules. Recursion is bounded by
 * MAX_NESTING. */
#include "grammar/grammar_parse.h"

#include "base/ascii.h"
#include "base/hash.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Splits ranges of code points where their encodings stop being a product of byte ranges. */

static int encode(uint32_t code, uint8_t out[4]) {
    static const uint8_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    if (code < 0x80) {
        out[0] = (uint8_t)code;
        return 1;
    }
    int n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, code >>= 6) out[i] = (uint8_t)(0x80 | (code & 0x3f));
    out[0] = (uint8_t)(lead[n] | code);
    return n;
}

/* The last code point of the longest range that starts at lo, ends at or before hi, and is one
 * sequence. */
static uint32_t sequence_end(uint32_t lo, uint32_t hi) {
    static const uint32_t last[] = {0x7f, 0x7ff, 0xffff}; /* of 1, 2 and 3 bytes */
    for (int i = 0; i < 3; i++)
        if (lo <= last[i] && hi > last[i]) hi = last[i];
    if (hi < 0x80) return hi;
    for (int bits = 18; bits > 0; bits -= 6) { /* the bits of the last 3, 2 and 1 bytes */
        uint32_t mask = (1u << bits) - 1;
        if ((lo & ~mask) == (hi & ~mask)) continue; /* the bytes before are equal */
        if (lo & mask)
            hi = lo | mask; /* first complete the block in which lo starts */
        else if ((hi & mask) != mask)
            hi = (hi & ~mask) - 1; /* whole blocks first, then the rest */
    }
    return hi;
}

int lk_utf8_ranges(uint32_t lo, uint32_t hi, struct lk_utf8_sequence out[LK_MAX_UTF8_SEQUENCES]) {
    int n = 0;
    while (lo <= hi && n < LK_MAX_UTF8_SEQUENCES) {
        if (lo >= 0xd800 && lo <= 0xdfff) {
            lo = 0xe000;
            continue;
        }
        uint32_t end = sequence_end(lo, lo < 0xd800 && hi >= 0xd800 ? 0xd7ff : hi);
        out[n].n = encode(lo, out[n].lo);
        encode(end, out[n].hi);
        n++;
        lo = end + 1;
    }
    return n;
}

enum {
    MAX_TEXT = 1 << 17,
    MAX_NESTING = 200,
    MAX_REPEAT = 1 << 16,
    MAX_CODE = 0x10ffff,
};

/* Named rules are found by a hash table of rule numbers + 1, with room for every name that fits in
 * the text. */
struct name {
    const char *at; /* of the first use; NULL: a rule without a name */
    size_t len;
    bool defined;
};

struct code_range {
    uint32_t lo, hi;
};

struct parser {
    const char *text, *at, *end;
    struct lk_grammar_draft *draft;
    struct lk_buf name;    /* struct name [n_rule] */
    struct lk_buf pending; /* struct lk_symbol: of sequences that are not complete yet */
    struct lk_buf alts;    /* uint32_t: alternatives of rules that are not complete yet */
    struct lk_buf ranges;  /* struct code_range: of the class that is read */
    uint32_t *table;       /* [n_table] a power of two */
    size_t n_table;
    struct lk_ledger ledger; /* of the table */
    int nesting;
    lk_status status; /* of the first error */
    lk_err *err;
};

#define COUNT(buf, type) ((uint32_t)((buf)->len / sizeof(type)))

static void append(struct lk_buf *buf, const void *data, size_t size) {
    lk_buf_append(buf, data, size);
}

/* ---- errors ---- */

/* Set the status and a message that names the position of `at`. Returns false. */
static bool fail_at(struct parser *p, const char *at, lk_status status, const char *what) {
    int line = 1, column = 1;
    for (const char *c = p->text; c < at; c++) {
        column += (*c & 0xc0) != 0x80; /* count code points */
        if (*c == '\n') {
            line++;
            column = 1;
        }
    }
    if (!p->status)
        p->status = lk_fail(p->err, status, "grammar, line %d, column %d: %s", line, column, what);
    return false;
}

/* "expected X, found Y". */
static bool fail_expected(struct parser *p, const char *what) {
    char found[16] = "the end", text[160];
    if (p->at < p->end) {
        int n = lk_utf8_decode(p->at, (size_t)(p->end - p->at), NULL);
        if (*p->at == '\n' || *p->at == '\r')
            snprintf(found, sizeof found, "a new line");
        else if ((unsigned char)*p->at < 0x20)
            snprintf(found, sizeof found, "byte 0x%02x", (unsigned char)*p->at);
        else
            snprintf(found, sizeof found, "'%.*s'", n > 0 ? n : 1, p->at);
    }
    snprintf(text, sizeof text, "expected %s, found %s", what, found);
    return fail_at(p, p->at, LK_E_FORMAT, text);
}

static bool fail_no_memory(struct parser *p) {
    if (!p->status) p->status = lk_fail(p->err, LK_E_NOMEM, "not enough memory for a grammar");
    return false;
}

/* ---- words ---- */

static void skip_space(struct parser *p, bool newline) {
    for (; p->at < p->end; p->at++) {
        if (*p->at == '#') {
            while (p->at + 1 < p->end && p->at[1] != '\n' && p->at[1] != '\r') p->at++;
        } else if (*p->at != ' ' && *p->at != '\t' &&
                   !(newline && (*p->at == '\n' || *p->at == '\r'))) {
            return;
        }
    }
}

static bool is_name_byte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
}

/* The number of a new rule. */
static uint32_t add_rule(struct parser *p, const char *name, size_t len) {
    append(&p->draft->rule, &(struct lk_rule){0}, sizeof(struct lk_rule));
    append(&p->name, &(struct name){name, len, false}, sizeof(struct name));
    return COUNT(&p->name, struct name) - 1;
}

static struct name *name_of(struct parser *p, uint32_t rule) {
    return (struct name *)(void *)p->name.at + rule;
}

/* The rule of a name, which is made when it is first used. */
static uint32_t rule_of(struct parser *p, const char *name, size_t len) {
    size_t slot = lk_fnv1a(LK_FNV1A_INIT, name, len) & (p->n_table - 1);
    for (; p->table[slot]; slot = (slot + 1) & (p->n_table - 1)) {
        const struct name *n = name_of(p, p->table[slot] - 1);
        if (n->len == len && memcmp(n->at, name, len) == 0) return p->table[slot] - 1;
    }
    uint32_t rule = add_rule(p, name, len);
    p->table[slot] = rule + 1;
    return rule;
}

/* The hexadecimal number of `digits` digits at p->at. */
static bool read_hex(struct parser *p, int digits, uint32_t *code) {
    *code = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        int digit = p->at < p->end ? lk_hex_digit(*p->at) : -1;
        if (digit < 0) return fail_expected(p, "a hexadecimal digit");
        *code = *code << 4 | (uint32_t)digit;
    }
    return true;
}

/* A character of a literal or a class, or an escape. */
static bool read_code(struct parser *p, uint32_t *code) {
    const char *start = p->at;
    if (*p->at != '\\') {
        int n = lk_utf8_decode(p->at, (size_t)(p->end - p->at), code);
        p->at += n > 0 ? n : 0;
        return n > 0 || fail_at(p, start, LK_E_FORMAT, "the text is not UTF-8");
    }
    p->at += 2;
    switch (p->at <= p->end ? p->at[-1] : 0) {
    case 'x':
        if (!read_hex(p, 2, code)) return false;
        break;
    case 'u':
        if (!read_hex(p, 4, code)) return false;
        break;
    case 'U':
        if (!read_hex(p, 8, code)) return false;
        break;
    case 't': *code = '\t'; break;
    case 'r': *code = '\r'; break;
    case 'n': *code = '\n'; break;
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-': *code = (unsigned char)p->at[-1]; break;
    default:
        p->at = start + 1;
        return fail_expected(p, "one of x u U t r n \\ \" [ ] - in an escape");
    }
    return *code <= MAX_CODE || fail_at(p, start, LK_E_FORMAT, "not a Unicode code point");
}

/* ---- symbols ---- */

static void add_symbol(struct parser *p, enum lk_symbol_kind kind, uint32_t value) {
    struct lk_symbol symbol = {.kind = kind, .value = value & 0x3fffffff};
    append(&p->pending, &symbol, sizeof symbol);
}

/* Move the pending symbols from `first` on to an alternative of the rule that is being read. */
static void end_sequence(struct parser *p, uint32_t first) {
    struct lk_buf *out = &p->draft->symbol;
    uint32_t at = COUNT(out, struct lk_symbol);
    append(&p->alts, &at, sizeof at);
    size_t from = first * sizeof(struct lk_symbol);
    append(out, lk_buf_cstr(&p->pending) + from, p->pending.len - from);
    append(out, &(struct lk_symbol){.kind = LK_SYMBOL_END}, sizeof(struct lk_symbol));
    p->pending.len = from;
}

/* The alternatives from `first` on belong to `rule`. */
static void end_rule(struct parser *p, uint32_t rule, uint32_t first) {
    struct lk_buf *out = &p->draft->alt;
    struct lk_rule *r = (struct lk_rule *)(void *)p->draft->rule.at;
    if (p->name.failed || p->draft->rule.failed || p->alts.failed) return;
    r[rule].first_alt = COUNT(out, uint32_t);
    r[rule].n_alt = COUNT(&p->alts, uint32_t) - first;
    append(out, lk_buf_cstr(&p->alts) + first * sizeof(uint32_t), r[rule].n_alt * sizeof(uint32_t));
    p->alts.len = first * sizeof(uint32_t);
}

static void add_bytes(struct parser *p, const struct lk_byte_set *set) {
    int lo = 0, hi = 255;
    while (lo < 256 && !lk_byte_set_has(set, (uint8_t)lo)) lo++;
    while (hi > lo && !lk_byte_set_has(set, (uint8_t)hi)) hi--;
    for (int b = lo; b <= hi; b++) {
        if (lk_byte_set_has(set, (uint8_t)b)) continue;
        add_symbol(p, LK_SYMBOL_SET, COUNT(&p->draft->set, *set));
        append(&p->draft->set, set, sizeof *set);
        return;
    }
    add_symbol(p, LK_SYMBOL_RANGE, (uint32_t)(lo | hi << 8));
}

static int compare_ranges(const void *a, const void *b) {
    const struct code_range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Sort and merge the ranges of a class; replace them by what is not in them if `negated`. */
static void normalize_ranges(struct lk_buf *ranges, bool negated) {
    struct code_range *r = (struct code_range *)(void *)ranges->at;
    uint32_t n = COUNT(ranges, *r), kept = 0;
    if (n) qsort(r, n, sizeof *r, compare_ranges);
    for (uint32_t i = 0; i < n; i++) {
        if (kept && r[i].lo <= r[kept - 1].hi + 1)
            r[kept - 1].hi = r[i].hi > r[kept - 1].hi ? r[i].hi : r[kept - 1].hi;
        else
            r[kept++] = r[i];
    }
    if (negated) { /* the gaps, in place: gap i ends before range i. U+0000 is never in a gap */
        uint32_t next = 1, n_gap = 0;
        for (uint32_t i = 0; i < kept; i++) {
            struct code_range range = r[i];
            if (range.lo > next) r[n_gap++] = (struct code_range){next, range.lo - 1};
            next = range.hi + 1 > next ? range.hi + 1 : next;
        }
        ranges->len = n_gap * sizeof *r;
        if (next <= MAX_CODE)
            append(ranges, &(struct code_range){next, MAX_CODE}, sizeof(struct code_range));
        return;
    }
    ranges->len = kept * sizeof *r;
}

/* One symbol for the class p->ranges: bytes, or a rule with sequences of bytes. */
static void add_class(struct parser *p) {
    struct lk_byte_set ascii = {{0}};
    struct lk_utf8_sequence seq[LK_MAX_UTF8_SEQUENCES];
    uint32_t first_alt = COUNT(&p->alts, uint32_t), first = COUNT(&p->pending, struct lk_symbol);
    bool any_ascii = false;
    const struct code_range *r = (const struct code_range *)(const void *)p->ranges.at;
    for (uint32_t i = 0; i < COUNT(&p->ranges, *r); i++) {
        int n = lk_utf8_ranges(r[i].lo, r[i].hi, seq);
        for (int k = 0; k < n; k++) {
            if (seq[k].n == 1) {
                any_ascii = true;
                for (int b = seq[k].lo[0]; b <= seq[k].hi[0]; b++)
                    ascii.word[b >> 6] |= 1ull << (b & 63);
                continue;
            }
            for (int j = 0; j < seq[k].n; j++) /* both ends have n bytes */
                /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult) */
                add_symbol(p, LK_SYMBOL_RANGE, (uint32_t)(seq[k].lo[j] | seq[k].hi[j] << 8));
            end_sequence(p, first);
        }
    }
    if (any_ascii) add_bytes(p, &ascii);
    if (any_ascii && COUNT(&p->alts, uint32_t) == first_alt) return;
    if (any_ascii) end_sequence(p, first);
    uint32_t rule = add_rule(p, NULL, 0);
    end_rule(p, rule, first_alt);
    add_symbol(p, LK_SYMBOL_RULE, rule);
}

/* ---- items ---- */

static bool read_literal(struct parser *p) {
    const char *start = p->at++;
    while (p->at < p->end && *p->at != '"') {
        const char *at = p->at;
        uint32_t code;
        struct lk_utf8_sequence seq[LK_MAX_UTF8_SEQUENCES];
        if (!read_code(p, &code)) return false;
        if (lk_utf8_ranges(code, code, seq) != 1)
            return fail_at(p, at, LK_E_FORMAT, "a surrogate is not a character");
        for (int i = 0; i < seq[0].n; i++)
            add_symbol(p, LK_SYMBOL_RANGE, (uint32_t)(seq[0].lo[i] | seq[0].lo[i] << 8));
    }
    if (p->at >= p->end)
        return fail_at(p, start, LK_E_FORMAT, "this literal has no closing quotation mark");
    p->at++;
    return true;
}

static bool read_class(struct parser *p) {
    const char *start = p->at++;
    bool negated = p->at < p->end && *p->at == '^';
    p->at += negated;
    p->ranges.len = 0;
    while (p->at < p->end && *p->at != ']') {
        const char *at = p->at;
        struct code_range range = {0};
        if (!read_code(p, &range.lo)) return false;
        range.hi = range.lo;
        if (p->end - p->at >= 2 && p->at[0] == '-' && p->at[1] != ']') {
            p->at++;
            if (!read_code(p, &range.hi)) return false;
        }
        if (range.hi < range.lo)
            return fail_at(p, at, LK_E_FORMAT, "this range ends before it begins");
        append(&p->ranges, &range, sizeof range);
    }
    if (p->at >= p->end) return fail_at(p, start, LK_E_FORMAT, "this class has no closing bracket");
    p->at++;
    if (p->ranges.len == 0) return fail_at(p, start, LK_E_FORMAT, "this class is empty");
    if (p->ranges.failed) return fail_no_memory(p);
    normalize_ranges(&p->ranges, negated);
    add_class(p);
    return true;
}

static bool read_any(struct parser *p) {
    p->at++;
    p->ranges.len = 0;
    append(&p->ranges, &(struct code_range){1, MAX_CODE}, sizeof(struct code_range));
    if (p->ranges.failed) return fail_no_memory(p);
    add_class(p);
    return true;
}

static bool read_alternatives(struct parser *p, uint32_t rule, bool nested);

static bool read_group(struct parser *p) {
    if (++p->nesting > MAX_NESTING)
        return fail_at(p, p->at, LK_E_FORMAT, "parentheses are nested deeper than 200 levels");
    p->at++;
    skip_space(p, true);
    uint32_t rule = add_rule(p, NULL, 0);
    if (!read_alternatives(p, rule, true)) return false;
    if (p->at >= p->end || *p->at != ')')
        return fail_expected(p, "a symbol, a repetition, '|' or ')'");
    p->at++;
    p->nesting--;
    add_symbol(p, LK_SYMBOL_RULE, rule);
    return true;
}

/* A decimal number up to MAX_REPEAT. */
static bool read_count(struct parser *p, bool newline, uint32_t *count) {
    const char *start = p->at;
    *count = 0;
    for (; p->at < p->end && lk_is_digit(*p->at); p->at++) {
        *count = *count * 10 + (uint32_t)(*p->at - '0');
        if (*count > MAX_REPEAT)
            return fail_at(p, start, LK_E_FORMAT, "at most 65536 repetitions are supported");
    }
    if (p->at == start) return fail_expected(p, "a number");
    skip_space(p, newline);
    return true;
}

/* "{m}", "{m,}" or "{m,n}". *max is 0 without a limit, and *none is true for "{0}". */
static bool read_braces(struct parser *p, bool newline, struct lk_repeat *repeat, bool *none) {
    const char *start = p->at++;
    skip_space(p, newline);
    if (!read_count(p, newline, &repeat->min)) return false;
    repeat->max = repeat->min;
    bool limited = true;
    if (p->at < p->end && *p->at == ',') {
        p->at++;
        skip_space(p, newline);
        limited = p->at < p->end && lk_is_digit(*p->at);
        repeat->max = 0;
        if (limited && !read_count(p, newline, &repeat->max)) return false;
    }
    if (p->at >= p->end || *p->at != '}') return fail_expected(p, "',' or '}' of a repetition");
    p->at++;
    if (limited && repeat->max < repeat->min)
        return fail_at(p, start, LK_E_FORMAT,
                       "the maximum of this repetition is below its minimum");
    *none = limited && repeat->max == 0;
    return true;
}

/* A repetition of the pending symbols from `item` on. */
static bool read_repetition(struct parser *p, uint32_t item, bool newline) {
    struct lk_repeat repeat = {*p->at == '+', *p->at == '?'};
    bool none = false;
    if (*p->at == '{') {
        if (!read_braces(p, newline, &repeat, &none)) return false;
    } else {
        p->at++;
    }
    if (none) {
        p->pending.len = item * sizeof(struct lk_symbol);
        return true;
    }
    if (p->pending.failed) return fail_no_memory(p);
    const struct lk_symbol *last = (const struct lk_symbol *)(const void *)p->pending.at + item;
    if (COUNT(&p->pending, *last) - item != 1 || last->repeat) { /* make one symbol of it */
        uint32_t first_alt = COUNT(&p->alts, uint32_t), rule = add_rule(p, NULL, 0);
        end_sequence(p, item);
        end_rule(p, rule, first_alt);
        add_symbol(p, LK_SYMBOL_RULE, rule);
        if (p->pending.failed) return fail_no_memory(p);
    }
    ((struct lk_symbol *)(void *)p->pending.at)[item].repeat =
        COUNT(&p->draft->repeat, struct lk_repeat);
    append(&p->draft->repeat, &repeat, sizeof repeat);
    return true;
}

/* Symbols up to something that belongs to no sequence. */
static bool read_sequence(struct parser *p, bool nested) {
    bool has_item = false;
    for (uint32_t item = 0; p->at < p->end; skip_space(p, nested)) {
        char c = *p->at;
        bool good = true;
        if (c == '*' || c == '+' || c == '?' || c == '{') {
            if (!has_item) return fail_expected(p, "something to repeat");
            if (!read_repetition(p, item, nested)) return false;
            continue;
        }
        item = COUNT(&p->pending, struct lk_symbol);
        has_item = true;
        if (c == '"') {
            good = read_literal(p);
        } else if (c == '[') {
            good = read_class(p);
        } else if (c == '.') {
            good = read_any(p);
        } else if (c == '(') {
            good = read_group(p);
        } else if (is_name_byte(c)) {
            const char *name = p->at;
            while (p->at < p->end && is_name_byte(*p->at)) p->at++;
            add_symbol(p, LK_SYMBOL_RULE, rule_of(p, name, (size_t)(p->at - name)));
        } else if (c == '<' || c == '!') {
            return fail_at(p, p->at, LK_E_UNSUPPORTED,
                           "references to tokens are not supported; write the text of the token");
        } else {
            return true;
        }
        if (!good) return false;
        if (p->name.failed) return fail_no_memory(p);
    }
    return true;
}

static bool read_alternatives(struct parser *p, uint32_t rule, bool nested) {
    uint32_t first = COUNT(&p->alts, uint32_t);
    for (;;) {
        uint32_t begin = COUNT(&p->pending, struct lk_symbol);
        if (!read_sequence(p, nested)) return false;
        end_sequence(p, begin);
        if (p->at >= p->end || *p->at != '|') break;
        p->at++;
        skip_space(p, true);
    }
    end_rule(p, rule, first);
    return true;
}

static bool read_rule(struct parser *p) {
    const char *name = p->at;
    while (p->at < p->end && is_name_byte(*p->at)) p->at++;
    if (p->at == name) return fail_expected(p, "the name of a rule");
    uint32_t rule = rule_of(p, name, (size_t)(p->at - name));
    if (p->name.failed) return fail_no_memory(p);
    name_of(p, rule)->defined = true;
    skip_space(p, false);
    if (p->end - p->at < 3 || memcmp(p->at, "::=", 3) != 0)
        return fail_expected(p, "'::=' after the name of a rule");
    p->at += 3;
    skip_space(p, true);
    if (!read_alternatives(p, rule, false)) return false;
    if (p->at < p->end && *p->at != '\n' && *p->at != '\r')
        return fail_expected(p, "a symbol, a repetition, '|' or the end of the rule");
    skip_space(p, true);
    return true;
}

/* All rules, after rule 0, which matches "root". */
static bool read_grammar(struct parser *p) {
    struct lk_grammar_draft *draft = p->draft;
    append(&draft->symbol, &(struct lk_symbol){.kind = LK_SYMBOL_END}, sizeof(struct lk_symbol));
    append(&draft->repeat, &(struct lk_repeat){1, 1}, sizeof(struct lk_repeat));
    uint32_t start = add_rule(p, NULL, 0), root = rule_of(p, "root", 4);
    add_symbol(p, LK_SYMBOL_RULE, root);
    end_sequence(p, 0);
    end_rule(p, start, 0);
    if (p->name.failed) return fail_no_memory(p);
    skip_space(p, true);
    while (p->at < p->end)
        if (!read_rule(p)) return false;
    for (uint32_t i = 0; i < COUNT(&p->name, struct name); i++) {
        const struct name *n = name_of(p, i);
        char text[100];
        if (!n->at || n->defined) continue;
        if (i == root) return fail_at(p, p->text, LK_E_FORMAT, "there is no rule named root");
        snprintf(text, sizeof text, "there is no rule named '%.*s'", n->len < 60 ? (int)n->len : 60,
                 n->at);
        return fail_at(p, n->at, LK_E_FORMAT, text);
    }
    return true;
}

lk_status lk_grammar_parse(struct lk_grammar_draft *draft, const char *text, lk_err *err) {
    size_t len = strlen(text);
    if (len > MAX_TEXT)
        return lk_fail(err, LK_E_FORMAT, "the grammar has %zu bytes, at most %d are supported", len,
                       MAX_TEXT);
    struct parser p = {.text = text, .at = text, .end = text + len, .draft = draft, .err = err};
    p.n_table = 64;
    while (p.n_table < len + 2) p.n_table *= 2; /* a name and its separator take two bytes */
    p.table = lk_alloc(&p.ledger, LK_FOR_OTHER, p.n_table * sizeof *p.table);
    if (!p.table)
        fail_no_memory(&p);
    else
        read_grammar(&p);
    if (draft->rule.failed || draft->alt.failed || draft->symbol.failed || draft->repeat.failed ||
        draft->set.failed || p.pending.failed || p.alts.failed || p.ranges.failed)
        fail_no_memory(&p);
    lk_buf_free(&p.name);
    lk_buf_free(&p.pending);
    lk_buf_free(&p.alts);
    lk_buf_free(&p.ranges);
    lk_release(&p.ledger, LK_FOR_OTHER, p.table, p.n_table * sizeof *p.table);
    return p.status;
}

void lk_grammar_draft_free(struct lk_grammar_draft *draft) {
    lk_buf_free(&draft->rule);
    lk_buf_free(&draft->alt);
    lk_buf_free(&draft->symbol);
    lk_buf_free(&draft->repeat);
    lk_buf_free(&draft->set);
}
