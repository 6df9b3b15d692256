/* Scanner of recipe texts, and suggestions for unknown names. */
#include "recipe/recipe_scan.h"

#include "base/ascii.h"
#include "base/closest.h"
#include "codec/added.h"
#include "recipe/presets.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- names that people try, and the search for the closest one ---- */

/* Of equally close names the first is taken. */
static const char *const codec_name[] = {
    "f16",  "int8", "kivi4",  "kivi2", "rot8",  "rot7",  "rot6",  "rot5",  "rot4",  "rot3",
    "rot2", "rot1", "latent", "asym4", "asym3", "asym2", "asym8", "asym5", "asym6", "asym7"};

static const char *const keyword[] = {
    "sink",   "body",   "keep",    "all",   "recent",   "window", "residual", "layers", "heads",
    "absorb", "eager",  "read",    "none",  "shift",    "first",  "last",     "less",   "mean",
    "nomean", "sigma",  "nosigma", "lloyd", "uniform",  "g32",    "g64",      "g128",   "context",
    "random", "newest", "h2o",     "tova",  "hadamard", "trellis"};

/* Cache types of llama.cpp, vLLM and others. Sizes and errors: docs/results/quality.md. */
static const struct {
    const char *name, *advice;
} cache_type[] = {
    {"f32", "f16 is the most exact cache here"},
    {"bf16", "use f16"},
    {"fp16", "use f16"},
    {"auto", "use f16 for an exact cache, best-4 for a small one"},
    {"q8_0", "selective has about its size; best-4 has half of it, with a KL of 0.001 to 0.002"},
    {"q8", "selective has about the size of q8_0; best-4 has half of it"},
    {"fp8", "selective has about its size; best-4 has half of it"},
    {"fp8_e4m3", "selective has about its size; best-4 has half of it"},
    {"fp8_e5m2", "selective has about its size; best-4 has half of it"},
    {"q6_0", "best-4 is smaller and has a smaller error than q5_1"},
    {"q5_1", "best-4 is smaller and has a smaller error"},
    {"q5_0", "best-4 is smaller"},
    {"q5", "best-4 is smaller and has a smaller error than q5_1"},
    {"q4_1", "best-4 has about its size"},
    {"q4_0", "best-4 has about its size and a much smaller error"},
    {"q4", "best-4 has about the size of q4_0 and a much smaller error"},
    {"q4_k", "best-4 has about its size"},
    {"iq4_nl", "best-4 has about its size"},
    {"int4", "best-4 has about its size"},
    {"fp4", "best-4 has about its size"},
    {"nvfp4", "best-4 has about its size"},
    {"turbo4", "best-4 has about its size"},
    {"q3_k", "best-3 has about its size"},
    {"turbo3", "best-3 has about its size"},
    {"int3", "best-3 has about its size"},
    {"q2_k", "best-2 has about its size"},
    {"turbo2", "best-2 has about its size"},
    {"int2", "best-2 has about its size"},
    {"kivi", "use kivi-4 or kivi-2"},
    {"atom", "use atom-4"},
    {"best", "use best-4, best-3 or best-2"},
    {"default", "use best-4"},
    {"none", "use f16"},
    {"snapkv", "use h2o or tova"},
    {"streamingllm", "use streaming"},
};

enum {
    N_CODEC = sizeof codec_name / sizeof codec_name[0],
    N_KEYWORD = sizeof keyword / sizeof keyword[0],
    N_CACHE_TYPE = sizeof cache_type / sizeof cache_type[0],
};

static void offer_codecs(struct lk_closest *close) {
    const lk_codec_ops *ops;
    for (size_t i = 0; i < N_CODEC; i++) lk_closest_offer(close, codec_name[i]);
    for (size_t i = 0; (ops = lk_added_codec(i)); i++) lk_closest_offer(close, ops->example);
}

lk_status lk_recipe_fail_name(const struct lk_scan *scan, const char *name, size_t len) {
    char text[64];
    struct lk_closest close = {.word = name, .len = len};
    lk_printable(text, name, len);
    for (size_t i = 0; i < N_CACHE_TYPE; i++)
        if (strncasecmp(cache_type[i].name, name, len) == 0 && !cache_type[i].name[len])
            return lk_fail(scan->err, LK_E_FORMAT, "'%s' is not a recipe: %s", text,
                           cache_type[i].advice);
    lk_preset preset;
    for (size_t i = 0; lk_recipe_preset(i, &preset); i++) lk_closest_offer(&close, preset.name);
    for (size_t i = 0; lk_recipe_tuned(i, &preset); i++) lk_closest_offer(&close, preset.name);
    offer_codecs(&close);
    if (close.name)
        return lk_fail(scan->err, LK_E_FORMAT, "'%s' is not a recipe: did you mean %s?", text,
                       close.name);
    return lk_fail(scan->err, LK_E_FORMAT,
                   "'%s' is not a recipe: neither a preset, such as best-4, nor a codec, such as "
                   "rot4",
                   text);
}

/* The word of the grammar that is closest to word[0..len), NULL if none is close or if it is such a
 * word. Static. */
static const char *recipe_closest_word(const char *word, size_t len) {
    struct lk_closest close = {.word = word, .len = len};
    offer_codecs(&close);
    for (size_t i = 0; i < N_KEYWORD; i++) lk_closest_offer(&close, keyword[i]);
    return close.name && close.distance > 0 ? close.name : NULL;
}

/* ---- scanner of recipe texts ---- */

/* Recipes are ASCII. <ctype.h> depends on the locale and on the sign of char. */
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/* Skip white space and comments from `at`. Returns their end, and sets *line_end if they contain a
 * line break. */
static size_t skip_blank(const char *text, size_t len, size_t at, bool *line_end) {
    while (at < len) {
        if (text[at] == '#') {
            while (at < len && text[at] != '\n') at++;
        } else if (lk_is_space(text[at])) {
            if (text[at] == '\n') *line_end = true;
            at++;
        } else {
            break;
        }
    }
    return at;
}

bool lk_scan_skip_blank(struct lk_scan *scan) {
    bool line_end = false;
    scan->at = skip_blank(scan->text, scan->len, scan->at, &line_end);
    return line_end;
}

size_t lk_scan_next(struct lk_scan *scan) {
    lk_scan_skip_blank(scan);
    return scan->at;
}

bool lk_scan_at_end(struct lk_scan *scan) { return lk_scan_next(scan) == scan->len; }

void lk_scan_word(struct lk_scan *scan, char word[LK_WORD_MAX]) {
    size_t n = 0, first = lk_scan_next(scan);
    for (; scan->at < scan->len; scan->at++) {
        char c = scan->text[scan->at];
        if (!is_letter(c) && !(lk_is_digit(c) && scan->at > first)) break;
        if (n < LK_WORD_MAX - 1) word[n++] = lk_to_lower(c);
    }
    word[n] = 0;
}

void lk_scan_peek(struct lk_scan *scan, char word[LK_WORD_MAX]) {
    size_t at = lk_scan_next(scan);
    lk_scan_word(scan, word);
    scan->at = at;
}

bool lk_scan_accept(struct lk_scan *scan, char sign) {
    bool line_end = false;
    size_t at = skip_blank(scan->text, scan->len, scan->at, &line_end);
    if (at == scan->len || scan->text[at] != sign) return false;
    scan->at = at + 1;
    return true;
}

bool lk_scan_number(struct lk_scan *scan, int64_t *thousandths) {
    const int64_t max = 1000000000000;
    size_t at = lk_scan_next(scan);
    int64_t value = 0;
    if (at == scan->len || !lk_is_digit(scan->text[at])) return false;
    for (; at < scan->len && lk_is_digit(scan->text[at]); at++) {
        value = value * 10 + (scan->text[at] - '0');
        if (value > max) value = max;
    }
    value *= 1000;
    if (at + 1 < scan->len && scan->text[at] == '.' && lk_is_digit(scan->text[at + 1])) {
        at++;
        for (int64_t unit = 100; at < scan->len && lk_is_digit(scan->text[at]) && unit;
             at++, unit /= 10)
            value += unit * (scan->text[at] - '0');
    }
    scan->at = at;
    *thousandths = value > max ? max : value;
    return true;
}

/* Describe the text at `at`, for "found ...". Returns the word of the grammar that it probably is,
 * or NULL. */
static const char *describe_found(const struct lk_scan *scan, size_t at, char *buf, size_t cap) {
    enum { MAX_FOUND = 20 };
    if (at >= scan->len) {
        snprintf(buf, cap, "the end");
        return NULL;
    }
    const char *c = scan->text + at;
    size_t n = 0;
    while (at + n < scan->len && n < MAX_FOUND && (is_letter(c[n]) || lk_is_digit(c[n]))) n++;
    if (n > 0)
        snprintf(buf, cap, "'%.*s%s'", (int)n, c, n == MAX_FOUND ? "..." : "");
    else if (*c > ' ' && *c < 127)
        snprintf(buf, cap, "'%c'", *c);
    else
        snprintf(buf, cap, "byte 0x%02x", (unsigned char)*c);
    return n > 0 && is_letter(c[0]) ? recipe_closest_word(c, n) : NULL;
}

/* Print the text around `at` as one line of ASCII, with >> before that place. */
static void print_excerpt(const struct lk_scan *scan, size_t at, char *buf, size_t cap) {
    enum { BEFORE = 24, AFTER = 20 };
    size_t from = at > BEFORE ? at - BEFORE : 0;
    size_t to = scan->len - at > AFTER ? at + AFTER : scan->len;
    size_t n = (size_t)snprintf(buf, cap, "%s", from ? "..." : "");
    for (size_t i = from; i <= to && n + 8 < cap; i++) {
        if (i == at) n += (size_t)snprintf(buf + n, cap - n, ">>");
        if (i == to) break;
        char c = scan->text[i];
        buf[n++] = lk_is_space(c) ? ' ' : c < ' ' || c > '~' ? '?' : c;
    }
    snprintf(buf + n, cap - n, "%s", to < scan->len ? "..." : "");
}

lk_status lk_scan_fail(const struct lk_scan *scan, size_t at, bool found, const char *format, ...) {
    char what[300], found_text[40] = "", excerpt[100], place[48];
    const char *meant = NULL;
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);

    bool line_end = false;
    if (found) at = skip_blank(scan->text, scan->len, at, &line_end);
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at && i < scan->len; i++) {
        bool continuation = ((unsigned char)scan->text[i] & 0xc0) == 0x80; /* of a UTF-8 sequence */
        column += !continuation;
        if (scan->text[i] == '\n') {
            line++;
            column = 1;
        }
    }
    if (memchr(scan->text, '\n', scan->len))
        snprintf(place, sizeof place, "line %zu, column %zu", line, column);
    else
        snprintf(place, sizeof place, "column %zu", column);
    if (found) meant = describe_found(scan, at, found_text, sizeof found_text);
    print_excerpt(scan, at, excerpt, sizeof excerpt);
    if (meant)
        return lk_fail(scan->err, LK_E_FORMAT, "recipe, %s: found %s, did you mean '%s'?: \"%s\"",
                       place, found_text, meant, excerpt);
    return lk_fail(scan->err, LK_E_FORMAT, "recipe, %s: %s%s%s: \"%s\"", place, what,
                   found ? ", found " : "", found_text, excerpt);
}

size_t lk_scan_normalize(const char *text, size_t from, size_t to, char *out) {
    size_t n = 0;
    while (from < to) {
        bool line_end = false;
        size_t next = skip_blank(text, to, from, &line_end);
        if (next == from)
            out[n++] = text[from++];
        else if (n > 0 && next < to)
            out[n++] = ' ';
        if (next > from) from = next;
    }
    return n;
}
