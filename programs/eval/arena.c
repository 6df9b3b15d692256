#include "eval/arena.h"

#include "base/ledger.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { CHUNK_BYTES = 1 << 16, ALIGN = 16 };

/* A chunk's memory begins with this header; what is taken follows it. */
struct lk_chunk {
    struct lk_chunk *before;
    size_t size, used; /* the header included */
};

static const size_t HEADER = (sizeof(struct lk_chunk) + ALIGN - 1) / ALIGN * ALIGN;

static struct lk_chunk *add_chunk(struct lk_arena *arena, size_t size) {
    size_t whole = HEADER + (size > CHUNK_BYTES ? size : CHUNK_BYTES);
    struct lk_chunk *chunk = lk_alloc(arena->ledger, LK_FOR_OTHER, whole);
    if (!chunk) return NULL;
    *chunk = (struct lk_chunk){.before = arena->last, .size = whole, .used = HEADER};
    arena->last = chunk;
    return chunk;
}

void *lk_arena_take(struct lk_arena *arena, size_t size) {
    if (arena->failed || size > SIZE_MAX / 2) {
        arena->failed = true;
        return NULL;
    }
    size = (size + ALIGN - 1) / ALIGN * ALIGN;
    struct lk_chunk *chunk = arena->last;
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
    char *copy = lk_arena_take(arena, len + 1);
    if (!copy) return "";
    memcpy(copy, bytes, len);
    return copy;
}

const char *lk_arena_print(struct lk_arena *arena, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = lk_arena_take(arena, (size_t)len + 1);
    if (!text) return "";
    va_start(args, format);
    vsnprintf(text, (size_t)len + 1, format, args);
    va_end(args);
    return text;
}

void *lk_arena_list(struct lk_arena *arena, void *list, size_t n, size_t *cap, size_t size) {
    enum { FIRST = 64 };
    if (n < *cap) return list;
    size_t larger = *cap ? 2 * *cap : FIRST;
    void *moved = lk_arena_take(arena, larger * size);
    if (!moved) return NULL;
    if (n) memcpy(moved, list, n * size);
    *cap = larger;
    return moved;
}

lk_status lk_arena_check(const struct lk_arena *arena, lk_err *err) {
    return arena->failed
               ? lk_fail(err, LK_E_NOMEM,
                         "no memory for a task's texts; use fewer items or a smaller context")
               : LK_OK;
}

void lk_arena_free(struct lk_arena *arena) {
    while (arena->last) {
        struct lk_chunk *chunk = arena->last;
        arena->last = chunk->before;
        lk_release(arena->ledger, LK_FOR_OTHER, chunk, chunk->size);
    }
    arena->failed = false;
}

/* Room for `more` bytes and a zero. What it held stays in the arena: growing by doubling, that is at
 * most as much again as the text. */
static bool make_room(struct lk_string *s, size_t more) {
    if (s->cap - s->len > more) return true;
    size_t cap = (s->len + more + 1) * 2;
    char *bigger = lk_arena_take(s->arena, cap);
    if (!bigger) return false;
    if (s->len) memcpy(bigger, s->at, s->len);
    s->at = bigger;
    s->cap = cap;
    return true;
}

void lk_string_add(struct lk_string *string, const char *bytes, size_t len) {
    if (!make_room(string, len)) return;
    if (len) memcpy(string->at + string->len, bytes, len);
    string->len += len;
    string->at[string->len] = 0;
}

void lk_string_print(struct lk_string *string, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (!make_room(string, (size_t)len)) return;
    va_start(args, format);
    vsnprintf(string->at + string->len, (size_t)len + 1, format, args);
    va_end(args);
    string->len += (size_t)len;
}

const char *lk_string_text(const struct lk_string *string) { return string->at ? string->at : ""; }
