/* Haystacks: long texts in which something is hidden at a known place. */
#ifndef LK_EVAL_HAYSTACK_H
#define LK_EVAL_HAYSTACK_H

#include "eval/arena.h"

struct lk_haystack {
    const char **unit; /* [n_unit] sentences, without white space at their ends */
    size_t n_unit;
};

/* The sentences of a text (UTF-8), each on one line. They end after . ! or ? and what closes quotes
 * behind it, at an empty line, or after 600 bytes. LK_E_ARG for a text without any. */
lk_status lk_haystack_of(const char *text, size_t len, struct lk_arena *arena,
                         struct lk_haystack *out, lk_err *err);

/* Something hidden: it stands before the unit `before` of those written. */
struct lk_needle {
    size_t before;
    const char *text;
};

/* Write `n` units from `first` on, beginning again after the last, each followed by `between` but for
 * the last, with the needles [n_needle] among them; needle[i].before ascends and is at most n. */
void lk_haystack_write(const struct lk_haystack *haystack, size_t first, size_t n,
                       const struct lk_needle *needle, size_t n_needle, const char *between,
                       struct lk_string *out);

/* A haystack of one line of small talk that says nothing, as RULER's noise is. Static. */
struct lk_haystack lk_haystack_noise(void);

/* A name like "Torwick" that is no other of the same number's: `index` counts them, below 4096. */
const char *lk_made_up_name(uint32_t index, const char *ending, struct lk_arena *arena);

#endif
