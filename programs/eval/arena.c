/* Arenas: a list of chunks from which memory is allocated in order. */
#include "eval/arena.h"

#include "base/buf.h"
#include "base/ledger.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK_BYTES = 1 << 16, ALIGN = 16 };

/* The header of a chunk. Allocations follow it. */
struct lk_arena_chunk {
    struct lk_arena_chunk *previous;
    size_t size, used; /* bytes, including the header */
};

static const size_t HEADER = (sizeof(struct lk_arena_chunk) + ALIGN - 1) / ALIGN * ALIGN;

static struct lk_arena_chunk *add_chunk(struct lk_arena *arena, size_t size) {
    size_t total = HEADER + (size > CHUNK_BYTES ? size : CHUNK_BYTES);
    struct lk_arena_chunk *chunk = lk_alloc(arena->ledger, LK_FOR_OTHER, total);
    if (!chunk) return NULL;
    *chunk = (struct lk_arena_chunk){.previous = arena->last, .size = total, .used = HEADER};
    arena->last = chunk;
    return chunk;
}

void *lk_arena_alloc(struct lk_arena *arena, size_t size) {
    if (arena->failed || size > SIZE_MAX / 2) {
        arena->failed = true;
        return NULL;
    }
    size = (size + ALIGN - 1) / ALIGN * ALIGN;
    struct lk_arena_chunk *chunk = arena->last;
    if (!chunk || chunk->size - chunk->used < size) chunk = add_chunk(arena, size);
    if (!chunk) {
        arena->failed = true;
        return NULL;
    }
    void *at = (char *)chunk + chunk->used;
    chunk->used += size;
    return at;
}

const char *lk_arena_copy(struct lk_arena *arena, const char *bytes, size_t len) {
    char *copy = lk_arena_alloc(arena, len + 1);
    if (!copy) return "";
    if (len) memcpy(copy, bytes, len);
    return copy;
}

const char *lk_arena_printf(struct lk_arena *arena, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = lk_arena_alloc(arena, (size_t)len + 1);
    if (!text) return "";
    va_start(args, format);
    vsnprintf(text, (size_t)len + 1, format, args);
    va_end(args);
    return text;
}

const char *lk_arena_take_buf(struct lk_arena *arena, struct lk_buf *buf) {
    if (buf->failed) arena->failed = true;
    const char *copy = lk_arena_copy(arena, lk_buf_cstr(buf), buf->len);
    lk_buf_free(buf);
    return copy;
}

void *lk_arena_grow(struct lk_arena *arena, void *list, size_t n, size_t *cap, size_t size) {
    enum { FIRST_CAP = 64 };
    if (n < *cap) return list;
    size_t larger = *cap ? 2 * *cap : FIRST_CAP;
    void *moved = lk_arena_alloc(arena, larger * size);
    if (!moved) return NULL;
    if (n) memcpy(moved, list, n * size);
    *cap = larger;
    return moved;
}

lk_status lk_arena_check(const struct lk_arena *arena, lk_err *err) {
    if (!arena->failed) return LK_OK;
    return lk_fail(err, LK_E_NOMEM,
                   "no memory for the texts of a task; use fewer items or a smaller context");
}

void lk_arena_free(struct lk_arena *arena) {
    while (arena->last) {
        struct lk_arena_chunk *chunk = arena->last;
        arena->last = chunk->previous;
        lk_release(arena->ledger, LK_FOR_OTHER, chunk, chunk->size);
    }
    arena->failed = false;
}
