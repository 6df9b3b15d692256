/* An arena: texts and lists that live and go together, such as the items of a task.
 *
 * Its memory is the ledger's. A failure is remembered, and what is taken after it is empty, so that
 * whoever builds a text from many pieces asks once, at the end, whether all of them were there. */
#ifndef LK_EVAL_ARENA_H
#define LK_EVAL_ARENA_H

#include "base/err.h"

#include <stdbool.h>

struct lk_ledger;

struct lk_arena {
    struct lk_ledger *ledger;
    struct lk_chunk *last; /* chunks are a list, the newest first */
    bool failed;           /* memory was refused */
};

/* Zeroed memory of `size` bytes for any type, until lk_arena_free. NULL: no memory. */
void *lk_arena_take(struct lk_arena *arena, size_t size);

/* A copy of `len` bytes with a zero after them, and a text in printf's manner. "": no memory. */
const char *lk_arena_copy(struct lk_arena *arena, const char *bytes, size_t len);
const char *lk_arena_print(struct lk_arena *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Room for one more in a list of n things of `size` bytes, with room for *cap (0: no list yet). Returns the
 * list, which moved where it had to grow; what it outgrew stays in the arena. NULL: no memory. */
void *lk_arena_list(struct lk_arena *arena, void *list, size_t n, size_t *cap, size_t size);

/* LK_E_NOMEM where anything failed since the arena was empty. */
lk_status lk_arena_check(const struct lk_arena *arena, lk_err *err);

/* Give everything back; the arena is empty and can be used again. */
void lk_arena_free(struct lk_arena *arena);

/* A text that grows in an arena; zero terminated once something was added. */
struct lk_string {
    struct lk_arena *arena;
    char *at;
    size_t len, cap;
};

void lk_string_add(struct lk_string *string, const char *bytes, size_t len);
void lk_string_print(struct lk_string *string, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The text itself, "" where there is none. */
const char *lk_string_text(const struct lk_string *string);

#endif
