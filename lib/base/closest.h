/* "Did you mean": the name that a misspelled word is closest to. */
#ifndef LK_BASE_CLOSEST_H
#define LK_BASE_CLOSEST_H

#include <stddef.h>

/* The search for one word. Set `word` and `len`, then offer names; `name` is the best one so far,
 * NULL if none is close enough. */
struct lk_closest {
    const char *word; /* [len] */
    size_t len;
    const char *name;
    unsigned distance;
};

/* Offer a name, which must live as long as the result is used. It replaces the best one if it needs
 * fewer edits: letters inserted, dropped, replaced or exchanged with their neighbor. Upper and
 * lower case are the same. At most one edit per three letters is accepted. */
void lk_closest_offer(struct lk_closest *search, const char *name);

#endif
