/* Splits texts into sentences, hides needles among them, and invents names. */
#include "eval/haystack.h"

#include "base/buf.h"

#include <string.h>

enum { MAX_SENTENCE = 600 }; /* bytes */

/* Bytes of quotes (straight or curly) and brackets at s, after a full stop. */
static size_t closer_length(const char *s, size_t len) {
    size_t i = 0;
    while (i < len) {
        if (strchr("\"')]_", s[i]) && s[i])
            i++;
        else if (len - i >= 3 &&
                 (memcmp(s + i, "\xe2\x80\x9d", 3) == 0 || memcmp(s + i, "\xe2\x80\x99", 3) == 0))
            i += 3;
        else
            break;
    }
    return i;
}

/* Whether the white space at s contains an empty line. */
static bool is_paragraph_end(const char *s, size_t len) {
    size_t n_line = 0;
    for (size_t i = 0; i < len && lk_is_space(s[i]); i++) n_line += s[i] == '\n';
    return n_line > 1;
}

/* Length of the sentence at s, which does not start with white space. */
static size_t sentence_length(const char *s, size_t len) {
    size_t last_space = 0;
    for (size_t i = 0; i < len; i++) {
        if (strchr(".!?", s[i]) && s[i]) {
            size_t end = i + 1 + closer_length(s + i + 1, len - i - 1);
            if (end == len || lk_is_space(s[end])) return end;
        }
        if (lk_is_space(s[i])) {
            if (is_paragraph_end(s + i, len - i)) return i;
            last_space = i;
        }
        if (i >= MAX_SENTENCE && last_space) return last_space;
        if (i >= MAX_SENTENCE && ((unsigned char)s[i] & 0xc0) != 0x80)
            return i; /* not inside a character */
    }
    return len;
}

/* A copy on one line: each run of white space becomes one space. */
static const char *join_lines(const char *s, size_t len, struct lk_arena *arena) {
    char *line = lk_arena_alloc(arena, len + 1);
    size_t n = 0;
    for (size_t i = 0; line && i < len; i++)
        if (!lk_is_space(s[i]))
            line[n++] = s[i];
        else if (n && line[n - 1] != ' ')
            line[n++] = ' ';
    while (n && line[n - 1] == ' ') line[--n] = 0;
    return line ? line : "";
}

/* Split the text into sentences, and return their number. unit NULL: only count them. */
static size_t split_sentences(const char *text, size_t len, const char **unit,
                              struct lk_arena *arena) {
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        if (lk_is_space(text[i])) {
            i++;
            continue;
        }
        size_t end = sentence_length(text + i, len - i);
        if (unit) unit[n] = join_lines(text + i, end, arena);
        n++;
        i += end;
    }
    return n;
}

lk_status lk_haystack_split(const char *text, size_t len, struct lk_arena *arena,
                            struct lk_haystack *out, lk_err *err) {
    size_t n = split_sentences(text, len, NULL, NULL);
    if (n == 0) return lk_fail(err, LK_E_ARG, "the text is empty; give a text with words");
    const char **unit = lk_arena_alloc(arena, n * sizeof *unit);
    if (unit) split_sentences(text, len, unit, arena);
    lk_status status = lk_arena_check(arena, err);
    if (!status) *out = (struct lk_haystack){unit, n};
    return status;
}

void lk_haystack_write(const struct lk_haystack *haystack, size_t first, size_t n,
                       const struct lk_needle *needle, size_t n_needle, const char *between,
                       struct lk_buf *out) {
    size_t next = 0;
    for (size_t i = 0; i <= n; i++) {
        for (; next < n_needle && needle[next].before == i; next++)
            lk_buf_printf(out, "%s%s", out->len ? between : "", needle[next].text);
        if (i < n)
            lk_buf_printf(out, "%s%s", out->len ? between : "",
                          haystack->unit[(first + i) % haystack->n_unit]);
    }
}

struct lk_haystack lk_haystack_noise(void) {
    static const char *unit[] = {
        "The rain has stopped and the road is dry. A door opens and closes. The kettle is on. "
        "Nothing else has changed since this morning."};
    return (struct lk_haystack){unit, 1};
}

const char *lk_invent_name(uint32_t index, const char *ending, struct lk_arena *arena) {
    static const char *const head[16] = {"Bar", "Cal", "Dor", "Fen", "Gar", "Hel", "Kes", "Lum",
                                         "Mar", "Nor", "Pel", "Ros", "Sil", "Tor", "Ul",  "Ver"};
    static const char *const middle[16] = {"a",  "ba", "de", "do", "fi", "ga", "lo", "mi",
                                           "na", "o",  "ra", "ri", "sa", "ta", "ve", "wi"};
    static const char *const tail[16] = {"b",  "d", "dr", "k",  "l", "ln", "m", "n",
                                         "nd", "r", "rd", "rt", "s", "st", "t", "x"};
    return lk_arena_printf(arena, "%s%s%s%s", head[index & 15], middle[index >> 4 & 15],
                           tail[index >> 8 & 15], ending);
}
