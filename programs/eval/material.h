/* What items are made of: memory that is freed together, random numbers, texts that hide something,
 * and rows of data sets. */
#ifndef LK_EVAL_MATERIAL_H
#define LK_EVAL_MATERIAL_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct lk_buf;
struct lk_ledger;

/* ---- arenas: strings and lists that are freed together, such as the items of a task ----
 *
 * The ledger counts its memory. A failed allocation is remembered, and later ones fail too, so a
 * caller that builds an item from many pieces checks once, at the end (lk_arena_check). */

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

/* ---- random numbers ----
 *
 * The same seed gives the same items on every machine. */

struct lk_rng {
    uint64_t state;
};

/* The generator of one item: the index-th of the task (or other purpose) `name`, with the user's
 * seed. */
struct lk_rng lk_rng_seed(uint64_t seed, const char *name, uint64_t index);

/* A number from 0 to n - 1, n > 0. */
size_t lk_rng_below(struct lk_rng *rng, size_t n);

/* Fill order [n] with a random permutation of 0 to n - 1. */
void lk_rng_permutation(struct lk_rng *rng, uint32_t *order, size_t n);

/* ---- haystacks: long texts with something hidden at a known place ---- */

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

/* ---- JSON lines: a file with one JSON object per line; empty lines are skipped ---- */

/* A row and its place in the file. Errors about it start with "PATH:LINE: ". */
struct lk_jsonl_row {
    const json_t *json; /* an object; borrowed during the callback */
    const char *path;
    size_t line; /* from 1 */
};

/* Called for every row. A status other than LK_OK ends the reading and is returned. */
typedef lk_status (*lk_jsonl_row_fn)(void *user, const struct lk_jsonl_row *row, lk_err *err);

/* Read all rows. LK_E_IO if the file cannot be read, LK_E_FORMAT if a line is not an object. */
lk_status lk_jsonl_read(const char *path, lk_jsonl_row_fn on_row, void *user, lk_err *err);

/* The string in a field of the row; borrowed like the row. LK_E_FORMAT if it is missing or has
 * another type. */
lk_status lk_jsonl_string(const struct lk_jsonl_row *row, const char *name, const char **out,
                          lk_err *err);

/* Like lk_jsonl_string, for an array. */
lk_status lk_jsonl_array(const struct lk_jsonl_row *row, const char *name, const json_t **out,
                         lk_err *err);

#endif
