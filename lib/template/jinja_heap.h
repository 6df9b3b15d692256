/* Memory, work and errors of one use of the template engine.
 *
 * A template comes from a model's file, so everything that it does is bounded: bytes, steps, and
 * the depth of what is nested. All memory of a use is freed at once. An error leaves the engine
 * with longjmp: only lk_jinja_parse and lk_jinja_render call setjmp, and nothing between them and
 * an error owns anything but this heap. */
#ifndef LK_TOKEN_JINJA_HEAP_H
#define LK_TOKEN_JINJA_HEAP_H

#include "base/err.h"

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

enum { LK_JINJA_MAX_DEPTH = 256 };

struct lk_jinja_block;

struct lk_jinja_heap {
    struct lk_jinja_block *block; /* the newest; they are linked */
    struct lk_jinja_block *spare; /* an unused one, or NULL; not in n_byte */
    size_t n_byte, max_byte;
    uint64_t n_step, max_step;
    int depth;
    uint64_t n_change; /* changes of objects that may be older than a mark */
    size_t line;       /* of the template, for errors */
    jmp_buf on_error;
    lk_status status;
    char error[200];
};

/* A place to go back to: what was allocated later is freed. */
struct lk_jinja_mark {
    struct lk_jinja_block *block;
    size_t used;
};

void lk_jinja_heap_init(struct lk_jinja_heap *heap, size_t max_byte, uint64_t max_step);
void lk_jinja_heap_free(struct lk_jinja_heap *heap);

/* End this use with an error. LK_E_FORMAT: the template is wrong, or raised an exception. */
_Noreturn void lk_jinja_fail(struct lk_jinja_heap *heap, lk_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Memory, aligned for any value, not cleared. Never NULL. */
void *lk_jinja_alloc(struct lk_jinja_heap *heap, size_t n_byte);

/* The same. If a new block is needed for it, then with room for n_more bytes after it. */
void *lk_jinja_alloc_growing(struct lk_jinja_heap *heap, size_t n_byte, size_t n_more);

/* Make the newest piece of memory, which ends at `end`, n_byte longer. False if it is not the
 * newest, or has no room. */
bool lk_jinja_extend(struct lk_jinja_heap *heap, const void *end, size_t n_byte);

struct lk_jinja_mark lk_jinja_mark(const struct lk_jinja_heap *heap);
void lk_jinja_release(struct lk_jinja_heap *heap, struct lk_jinja_mark mark);

/* Count work: about one step for a node of the template or 16 bytes of text. */
void lk_jinja_work(struct lk_jinja_heap *heap, uint64_t n_step);

/* Go one level deeper into nested things, and back. */
void lk_jinja_enter(struct lk_jinja_heap *heap);
static inline void lk_jinja_leave(struct lk_jinja_heap *heap) { heap->depth--; }

/* Count bytes that are not allocated here, such as those of the output. */
void lk_jinja_count(struct lk_jinja_heap *heap, ptrdiff_t n_byte);

#endif
