/* An arena: strings and lists that are freed together, such as the items of a task.
 *
 * The ledger counts its memory. A failed allocation is remembered, and later ones fail too, so a
 * caller that builds an item from many pieces checks once, at the end (lk_arena_check). */
#ifndef LK_EVAL_ARENA_H
#define LK_EVAL_ARENA_H

#include "base/err.h"

#include <stdbool.h>

struct lk_buf;
struct lk_ledger;

struct lk_arena {
    struct lk_ledger *ledger;
    struct lk_arena_chunk *last; /* linked list of chunks, newest first */
    bool failed;                 /* an allocation failed */
};

/* Allocate `size` zeroed bytes, aligned for any type. They live until lk_arena_free. NULL if there
 * is no memory. */
void *lk_arena_alloc(struct lk_arena *arena, size_t size);

/* A zero-terminated copy of `len` bytes. "" if there is no memory. */
const char *lk_arena_copy(struct lk_arena *arena, const char *bytes, size_t len);

/* A printf-formatted string. "" if there is no memory. */
const char *lk_arena_printf(struct lk_arena *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Copy the contents of `buf` into the arena and free `buf`. "" if there is no memory; a failure of
 * `buf` becomes one of the arena. */
const char *lk_arena_take_buf(struct lk_arena *arena, struct lk_buf *buf);

/* Make room for one more element in a list of n elements of `size` bytes, with room for *cap (0: no
 * list yet). Returns the list, which may have moved; the arena keeps the old memory until it is
 * freed. NULL if there is no memory. */
void *lk_arena_grow(struct lk_arena *arena, void *list, size_t n, size_t *cap, size_t size);

/* LK_E_NOMEM if an allocation failed since the arena was empty. */
lk_status lk_arena_check(const struct lk_arena *arena, lk_err *err);

/* Free all memory. The arena is empty afterwards and can be used again. */
void lk_arena_free(struct lk_arena *arena);

#endif
