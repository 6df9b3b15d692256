/* A bump allocator with limits, and the errors of the template engine. */
#include "template/jinja_heap.h"

#include <stdalign.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 16 << 10, ALIGN = alignof(max_align_t) };

struct lk_jinja_block {
    struct lk_jinja_block *older;
    size_t used, size;
    alignas(max_align_t) unsigned char at[];
};

void lk_jinja_heap_init(struct lk_jinja_heap *heap, size_t max_byte, uint64_t max_step) {
    memset(heap, 0, sizeof *heap);
    heap->max_byte = max_byte;
    heap->max_step = max_step;
    heap->line = 1;
}

/* A block of the usual size is kept for the next one, so that a loop which crosses the end of a
 * block in each round does not allocate and free in each round. */
static void free_newest(struct lk_jinja_heap *heap) {
    struct lk_jinja_block *block = heap->block;
    heap->block = block->older;
    heap->n_byte -= block->size;
    if (!heap->spare && block->size == BLOCK_BYTES)
        heap->spare = block;
    else
        free(block);
}

void lk_jinja_heap_free(struct lk_jinja_heap *heap) {
    while (heap->block) free_newest(heap);
    free(heap->spare);
    heap->spare = NULL;
}

_Noreturn void lk_jinja_fail(struct lk_jinja_heap *heap, lk_status status, const char *format,
                             ...) {
    char text[sizeof heap->error];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    heap->status = status;
    snprintf(heap->error, sizeof heap->error, "%.180s", text);
    longjmp(heap->on_error, 1);
}

void lk_jinja_count(struct lk_jinja_heap *heap, ptrdiff_t n_byte) {
    if (n_byte > 0 && (size_t)n_byte > heap->max_byte - heap->n_byte)
        lk_jinja_fail(heap, LK_E_UNSUPPORTED, "it needs more than %zu KiB of memory",
                      heap->max_byte >> 10);
    heap->n_byte += (size_t)n_byte;
}

void *lk_jinja_alloc_growing(struct lk_jinja_heap *heap, size_t n_byte, size_t n_more) {
    struct lk_jinja_block *block = heap->block;
    size_t start = block ? (block->used + ALIGN - 1) / ALIGN * ALIGN : 0;
    if (!block || start > block->size || n_byte > block->size - start) {
        size_t size = n_byte > SIZE_MAX - n_more ? SIZE_MAX : n_byte + n_more;
        if (size < BLOCK_BYTES) size = BLOCK_BYTES;
        lk_jinja_count(heap, size > PTRDIFF_MAX ? PTRDIFF_MAX : (ptrdiff_t)size);
        block = size == BLOCK_BYTES ? heap->spare : NULL;
        if (block)
            heap->spare = NULL;
        else
            block = malloc(sizeof *block + size);
        if (!block) {
            heap->n_byte -= size;
            lk_jinja_fail(heap, LK_E_NOMEM, "out of memory");
        }
        *block = (struct lk_jinja_block){.older = heap->block, .size = size};
        heap->block = block;
        start = 0;
    }
    block->used = start + n_byte;
    return block->at + start;
}

void *lk_jinja_alloc(struct lk_jinja_heap *heap, size_t n_byte) {
    return lk_jinja_alloc_growing(heap, n_byte, 0);
}

bool lk_jinja_extend(struct lk_jinja_heap *heap, const void *end, size_t n_byte) {
    struct lk_jinja_block *block = heap->block;
    if (!block || end != block->at + block->used || n_byte > block->size - block->used)
        return false;
    block->used += n_byte;
    return true;
}

struct lk_jinja_mark lk_jinja_mark(const struct lk_jinja_heap *heap) {
    return (struct lk_jinja_mark){heap->block, heap->block ? heap->block->used : 0};
}

void lk_jinja_release(struct lk_jinja_heap *heap, struct lk_jinja_mark mark) {
    while (heap->block != mark.block) free_newest(heap);
    if (heap->block) heap->block->used = mark.used;
}

void lk_jinja_work(struct lk_jinja_heap *heap, uint64_t n_step) {
    heap->n_step += n_step;
    if (heap->n_step > heap->max_step)
        lk_jinja_fail(heap, LK_E_UNSUPPORTED, "it takes more than %llu steps",
                      (unsigned long long)heap->max_step);
}

void lk_jinja_enter(struct lk_jinja_heap *heap) {
    lk_jinja_work(heap, 1);
    if (++heap->depth > LK_JINJA_MAX_DEPTH)
        lk_jinja_fail(heap, LK_E_UNSUPPORTED, "it is nested more than %d levels deep",
                      LK_JINJA_MAX_DEPTH);
}
