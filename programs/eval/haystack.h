/* Haystacks: long texts with something hidden at a known place. */
#ifndef LK_EVAL_HAYSTACK_H
#define LK_EVAL_HAYSTACK_H

#include "eval/arena.h"

struct lk_haystack {
    const char **unit; /* [n_unit] sentences, without white space at either end */
    size_t n_unit;
};

/* Split a text (UTF-8) into sentences, each on one line. A sentence ends after . ! or ? with any
 * closing quotes and brackets, at an empty line, or after 600 bytes. LK_E_ARG if the text is
 * blank. */
lk_status lk_haystack_split(const char *text, size_t len, struct lk_arena *arena,
                            struct lk_haystack *out, lk_err *err);

/* A hidden text. It is inserted before the unit with index `before`. */
struct lk_needle {
    size_t before;
    const char *text;
};

/* Append n units to `out`, starting at unit `first` and wrapping around after the last, with the
 * needles [n_needle] inserted. `between` separates units and needles. needle[i].before is in
 * ascending order and n at most. */
void lk_haystack_write(const struct lk_haystack *haystack, size_t first, size_t n,
                       const struct lk_needle *needle, size_t n_needle, const char *between,
                       struct lk_buf *out);

/* A haystack of one line of small talk without information, like RULER's noise. Static. */
struct lk_haystack lk_haystack_noise(void);

/* An invented name such as "Torwick". Indices 0 to 4095 give different names. */
const char *lk_invent_name(uint32_t index, const char *ending, struct lk_arena *arena);

/* Whether c is white space in ASCII, whatever the locale. */
static inline bool lk_is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

#endif
