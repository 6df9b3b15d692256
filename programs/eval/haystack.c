#include "eval/haystack.h"

#include <string.h>

enum { LONGEST = 600 };

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* Bytes of what closes a sentence after its full stop: quotes and brackets, also curly quotes. */
static size_t closers(const char *s, size_t len) {
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

/* Is there an empty line at s? */
static bool is_gap(const char *s, size_t len) {
    size_t n_line = 0;
    for (size_t i = 0; i < len && is_space(s[i]); i++) n_line += s[i] == '\n';
    return n_line > 1;
}

/* Length of the sentence at s, which does not begin with white space. */
static size_t sentence(const char *s, size_t len) {
    size_t last_space = 0;
    for (size_t i = 0; i < len; i++) {
        if (strchr(".!?", s[i]) && s[i]) {
            size_t end = i + 1 + closers(s + i + 1, len - i - 1);
            if (end == len || is_space(s[end])) return end;
        }
        if (is_space(s[i])) {
            if (is_gap(s + i, len - i)) return i;
            last_space = i;
        }
        if (i >= LONGEST && last_space) return last_space;
        if (i >= LONGEST && ((unsigned char)s[i] & 0xc0) != 0x80) return i; /* between characters */
    }
    return len;
}

/* A copy on one line: white space of any kind and length becomes one space. */
static const char *on_one_line(const char *s, size_t len, struct lk_arena *arena) {
    char *line = lk_arena_take(arena, len + 1);
    size_t n = 0;
    for (size_t i = 0; line && i < len; i++)
        if (!is_space(s[i]))
            line[n++] = s[i];
        else if (n && line[n - 1] != ' ')
            line[n++] = ' ';
    while (n && line[n - 1] == ' ') line[--n] = 0;
    return line ? line : "";
}

/* Cut the text into sentences; unit NULL: count them only. */
static size_t cut(const char *text, size_t len, const char **unit, struct lk_arena *arena) {
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        if (is_space(text[i])) {
            i++;
            continue;
        }
        size_t end = sentence(text + i, len - i);
        if (unit) unit[n] = on_one_line(text + i, end, arena);
        n++;
        i += end;
    }
    return n;
}

lk_status lk_haystack_of(const char *text, size_t len, struct lk_arena *arena,
                         struct lk_haystack *out, lk_err *err) {
    size_t n = cut(text, len, NULL, NULL);
    if (n == 0) return lk_fail(err, LK_E_ARG, "the text is empty; give one with words in it");
    const char **unit = lk_arena_take(arena, n * sizeof *unit);
    if (unit) cut(text, len, unit, arena);
    lk_status status = lk_arena_check(arena, err);
    if (status == LK_OK) *out = (struct lk_haystack){unit, n};
    return status;
}

void lk_haystack_write(const struct lk_haystack *haystack, size_t first, size_t n,
                       const struct lk_needle *needle, size_t n_needle, const char *between,
                       struct lk_string *out) {
    size_t hidden = 0;
    for (size_t i = 0; i <= n; i++) {
        for (; hidden < n_needle && needle[hidden].before == i; hidden++)
            lk_string_print(out, "%s%s", out->len ? between : "", needle[hidden].text);
        if (i < n)
            lk_string_print(out, "%s%s", out->len ? between : "",
                            haystack->unit[(first + i) % haystack->n_unit]);
    }
}

struct lk_haystack lk_haystack_noise(void) {
    static const char *unit[] = {
        "The rain has stopped and the road is dry. A door opens and closes. The kettle is on. "
        "Nothing else has changed since this morning."};
    return (struct lk_haystack){unit, 1};
}

const char *lk_made_up_name(uint32_t index, const char *ending, struct lk_arena *arena) {
    static const char *const head[16] = {"Bar", "Cal", "Dor", "Fen", "Gar", "Hel", "Kes", "Lum",
                                         "Mar", "Nor", "Pel", "Ros", "Sil", "Tor", "Ul",  "Ver"};
    static const char *const middle[16] = {"a",  "ba", "de", "do", "fi", "ga", "lo", "mi",
                                           "na", "o",  "ra", "ri", "sa", "ta", "ve", "wi"};
    static const char *const tail[16] = {"b",  "d", "dr", "k",  "l", "ln", "m", "n",
                                         "nd", "r", "rd", "rt", "s", "st", "t", "x"};
    return lk_arena_print(arena, "%s%s%s%s", head[index & 15], middle[index >> 4 & 15],
                          tail[index >> 8 & 15], ending);
}
