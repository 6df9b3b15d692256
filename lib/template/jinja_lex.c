/* The lexer of the template engine. */
#include "template/jinja_lex.h"

#include <string.h>

struct lexer {
    struct lk_jinja_heap *heap;
    const char *at, *end;
    size_t line;
    struct lk_jinja_token *token; /* [n] */
    size_t n, cap;
    bool line_start;   /* the text before was trimmed up to the start of a line */
    bool strip_next;   /* "-" of the tag before: drop white space */
    bool drop_newline; /* the tag before was a block or a comment */
};

static void push_token(struct lexer *l, enum lk_jinja_lexeme kind, const char *at, size_t len) {
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 256;
        struct lk_jinja_token *token = lk_jinja_alloc(l->heap, cap * sizeof *token);
        if (l->n) memcpy(token, l->token, l->n * sizeof *token);
        l->token = token;
        l->cap = cap;
    }
    lk_jinja_work(l->heap, 1);
    l->token[l->n++] = (struct lk_jinja_token){.kind = kind, .line = l->line, .at = at, .len = len};
}

static bool is_blank(char c) { return c == ' ' || c == '\t'; }

static bool is_white(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* The start of the next tag, or the end. */
static const char *find_tag(const char *at, const char *end) {
    for (; at + 1 < end; at++)
        if (*at == '{' && (at[1] == '{' || at[1] == '%' || at[1] == '#')) return at;
    return end;
}

/* Push the text from l->at to the tag at `tag`, or to the end, trimmed on both sides. */
static void push_text(struct lexer *l, const char *tag) {
    const char *from = l->at, *to = tag;
    bool is_block = tag + 2 < l->end && tag[1] != '{';
    char sign = tag + 2 < l->end ? tag[2] : 0;
    bool at_line_start = l->line_start;
    if (l->strip_next) {
        while (from < to && is_white(*from)) from++;
    } else if (l->drop_newline && from < to && *from == '\n') {
        from++;
        at_line_start = true;
    }
    if (tag < l->end && sign == '-') {
        while (to > from && is_white(to[-1])) to--;
    } else if (tag < l->end && is_block && sign != '+') {
        const char *start = to;
        while (start > from && is_blank(start[-1])) start--;
        if (start > from ? start[-1] == '\n' : at_line_start) to = start;
    }
    if (to > from) push_token(l, LK_LEX_TEXT, from, (size_t)(to - from));
    for (const char *c = l->at; c < tag; c++) l->line += *c == '\n';
    l->at = tag;
}

/* The tag ended with this sign before its closing brackets. */
static void end_tag(struct lexer *l, char sign, bool is_block) {
    l->strip_next = sign == '-';
    l->drop_newline = is_block && sign != '+';
    l->line_start = false;
}

static void skip_comment(struct lexer *l) {
    const char *at = l->at + 2;
    for (; at + 1 < l->end && !(at[0] == '#' && at[1] == '}'); at++) l->line += *at == '\n';
    if (at + 1 >= l->end) lk_jinja_fail(l->heap, LK_E_FORMAT, "a comment has no end");
    char sign = at > l->at + 2 ? at[-1] : 0;
    l->at = at + 2;
    end_tag(l, sign, true);
}

static void lex_string(struct lexer *l) {
    char quote = *l->at++;
    const char *start = l->at;
    for (; l->at < l->end && *l->at != quote; l->at++) {
        l->line += *l->at == '\n';
        if (*l->at == '\\' && l->at + 1 < l->end) l->at++;
    }
    if (l->at >= l->end) lk_jinja_fail(l->heap, LK_E_FORMAT, "a string has no end");
    push_token(l, LK_LEX_STRING, start, (size_t)(l->at - start));
    l->at++;
}

static void lex_number(struct lexer *l) {
    const char *start = l->at;
    while (l->at < l->end && (is_digit(*l->at) || *l->at == '_')) l->at++;
    if (l->at + 1 < l->end && *l->at == '.' && is_digit(l->at[1]))
        for (l->at++; l->at < l->end && is_digit(*l->at);) l->at++;
    push_token(l, LK_LEX_NUMBER, start, (size_t)(l->at - start));
}

static void lex_operator(struct lexer *l) {
    static const char *const pairs[] = {"==", "!=", "<=", ">=", "**", "//"};
    size_t n = 1;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (l->end - l->at >= 2 && memcmp(l->at, pairs[i], 2) == 0) n = 2;
    if (n == 1 && !strchr("+-*/%~<>=.,:|()[]{}", *l->at))
        lk_jinja_fail(l->heap, LK_E_FORMAT, "unexpected character '%c'",
                      *l->at >= ' ' && *l->at < 0x7F ? *l->at : '?');
    push_token(l, LK_LEX_OPERATOR, l->at, n);
    l->at += n;
}

/* Is the tag's end here? Its sign, if it has one, is in *sign. */
static bool at_end_of_tag(const struct lexer *l, bool is_block, int depth, char *sign) {
    const char *at = l->at;
    *sign = 0;
    if (at < l->end && (*at == '-' || (*at == '+' && is_block))) *sign = *at++;
    if (l->end - at < 2 || (depth > 0 && !*sign && !is_block)) return false;
    return at[0] == (is_block ? '%' : '}') && at[1] == '}';
}

static void lex_tag(struct lexer *l) {
    bool is_block = l->at[1] == '%';
    int depth = 0; /* of braces, whose "}}" does not end a tag */
    char sign;
    push_token(l, is_block ? LK_LEX_BLOCK : LK_LEX_OUTPUT, l->at, 2);
    l->at += 2;
    if (l->at < l->end && (*l->at == '-' || (*l->at == '+' && is_block))) l->at++;
    for (;;) {
        while (l->at < l->end && is_white(*l->at)) l->line += *l->at++ == '\n';
        l->heap->line = l->line;
        if (l->at >= l->end) lk_jinja_fail(l->heap, LK_E_FORMAT, "a tag has no end");
        if (at_end_of_tag(l, is_block, depth, &sign)) break;
        if (*l->at == '{') depth++;
        if (*l->at == '}') depth--;
        if (*l->at == '"' || *l->at == '\'') {
            lex_string(l);
        } else if (is_digit(*l->at)) {
            lex_number(l);
        } else if (is_letter(*l->at)) {
            const char *start = l->at;
            while (l->at < l->end && (is_letter(*l->at) || is_digit(*l->at))) l->at++;
            push_token(l, LK_LEX_NAME, start, (size_t)(l->at - start));
        } else {
            lex_operator(l);
        }
    }
    push_token(l, is_block ? LK_LEX_BLOCK_END : LK_LEX_OUTPUT_END, l->at, 2);
    l->at += sign ? 3 : 2;
    end_tag(l, sign, is_block);
}

struct lk_jinja_token *lk_jinja_lex(struct lk_jinja_heap *heap, const char *text, size_t len) {
    struct lexer l = {.heap = heap, .at = text, .end = text + len, .line = 1, .line_start = true};
    if (len && text[len - 1] == '\n') l.end--; /* as Jinja does */
    while (l.at < l.end) {
        heap->line = l.line;
        push_text(&l, find_tag(l.at, l.end));
        if (l.at >= l.end) break;
        if (l.at[1] == '#')
            skip_comment(&l);
        else
            lex_tag(&l);
    }
    push_token(&l, LK_LEX_END, l.at, 0);
    return l.token;
}

/* ---- strings ---- */

static size_t encode_utf8(uint32_t c, char *out) {
    if (c < 0x80) return out[0] = (char)c, 1;
    if (c < 0x800) return out[0] = (char)(0xC0 | c >> 6), out[1] = (char)(0x80 | (c & 0x3F)), 2;
    if (c >= 0xD800 && c < 0xE000) c = 0xFFFD;
    out[0] = (char)(0xE0 | c >> 12);
    out[1] = (char)(0x80 | (c >> 6 & 0x3F));
    out[2] = (char)(0x80 | (c & 0x3F));
    return 3;
}

/* The value of n hexadecimal digits at text[0..len), or -1. */
static long read_hex(const char *text, size_t len, size_t n) {
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    long value = 0;
    if (len < n) return -1;
    for (size_t i = 0; i < n; i++) {
        const char *digit = text[i] ? strchr(digits, text[i]) : NULL;
        if (!digit) return -1;
        value = 16 * value + (digit - digits) % 16;
    }
    return value;
}

struct lk_jinja_text lk_jinja_unescape(struct lk_jinja_heap *heap,
                                       const struct lk_jinja_token *token) {
    static const char letters[] = "nrtbfav0\\\'\"", meaning[] = "\n\r\t\b\f\a\v\0\\\'\"";
    char *out = lk_jinja_alloc(heap, token->len + 1);
    size_t n = 0;
    for (size_t i = 0; i < token->len; i++) {
        const char *rest = token->at + i + 2;
        size_t n_rest = i + 2 < token->len ? token->len - i - 2 : 0;
        char c = token->at[i], next = i + 1 < token->len ? token->at[i + 1] : 0;
        const char *letter = next ? memchr(letters, next, sizeof letters - 1) : NULL;
        long code = -1;
        if (c == '\\' && next == 'u') code = read_hex(rest, n_rest, 4);
        if (c == '\\' && next == 'x') code = read_hex(rest, n_rest, 2);
        if (code >= 0) {
            n += encode_utf8((uint32_t)code, out + n);
            i += next == 'u' ? 5 : 3;
        } else if (c == '\\' && letter) {
            out[n++] = meaning[letter - letters];
            i++;
        } else if (c == '\\' && next == '\n') {
            i++;
        } else {
            out[n++] = c;
        }
    }
    return lk_jinja_text_of(heap, out, n, LK_FROM_TEMPLATE);
}
