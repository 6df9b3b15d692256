#define _DEFAULT_SOURCE /* madvise */
#include "base/ledger.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGN = 64 };

static size_t rounded(size_t size) { return (size + ALIGN - 1) / ALIGN * ALIGN; }

static uint64_t whole(const struct lk_ledger *ledger) {
    uint64_t sum = atomic_load(&ledger->borrowed);
    for (int i = 0; i < LK_N_PURPOSE; i++) sum += atomic_load(&ledger->bytes[i]);
    return sum;
}

/* Add to a counter of the ledger, unless that is too much. */
static int add(struct lk_ledger *ledger, atomic_uint_fast64_t *counter, size_t size) {
    if (atomic_load(&ledger->fail_at) > 0 && atomic_fetch_sub(&ledger->fail_at, 1) == 1) return 0;
    atomic_fetch_add(counter, size);
    /* Entered first and looked at then, so that two threads cannot pass the limit together. */
    if (ledger->limit && (size > ledger->limit || whole(ledger) > ledger->limit)) {
        atomic_fetch_sub(counter, size);
        return 0;
    }
    return 1;
}

int lk_ledger_enter(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size) {
    if (!add(ledger, &ledger->bytes[purpose], size)) return 0;
    atomic_fetch_add(&ledger->n_alloc, 1);
    return 1;
}

void lk_ledger_remove(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size) {
    atomic_fetch_sub(&ledger->bytes[purpose], size);
}

void *lk_alloc(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size) {
    if (size == 0 || size > SIZE_MAX - ALIGN) return NULL;
    size_t bytes = rounded(size);
    if (!lk_ledger_enter(ledger, purpose, bytes)) return NULL;
    void *ptr = aligned_alloc(ALIGN, bytes);
    if (!ptr) {
        lk_ledger_remove(ledger, purpose, bytes);
        return NULL;
    }
    return memset(ptr, 0, bytes);
}

/* Tell the system that the whole pages inside may go: the C library keeps what lies between pieces
 * still in use, and the process would stay as large as it ever was. */
static void let_pages_go(char *ptr, size_t size) {
    enum { HEAD = 64 }; /* left alone: the C library may look at it */
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)ptr + HEAD + page - 1) / page * page,
              end = ((uintptr_t)ptr + size) / page * page;
    if (first < end) madvise((void *)first, end - first, MADV_DONTNEED);
}

void lk_release(struct lk_ledger *ledger, enum lk_purpose purpose, void *ptr, size_t size) {
    if (!ptr) return;
    let_pages_go(ptr, size);
    free(ptr);
    lk_ledger_remove(ledger, purpose, rounded(size));
}

int lk_grow(struct lk_ledger *ledger, enum lk_purpose purpose, void **ptr, size_t old_size,
            size_t new_size) {
    void *bigger = lk_alloc(ledger, purpose, new_size);
    if (!bigger) return 0;
    if (*ptr) memcpy(bigger, *ptr, old_size);
    lk_release(ledger, purpose, *ptr, old_size);
    *ptr = bigger;
    return 1;
}

int lk_ledger_share(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size) {
    size_t bytes = rounded(size);
    if (!ledger->common || !add(ledger->common, &ledger->common->bytes[purpose], bytes)) return 0;
    atomic_fetch_sub(&ledger->bytes[purpose], bytes);
    atomic_fetch_add(&ledger->borrowed, bytes);
    return 1;
}

int lk_ledger_borrow(struct lk_ledger *ledger, size_t size) {
    return add(ledger, &ledger->borrowed, rounded(size));
}

void lk_ledger_give_up(struct lk_ledger *ledger, size_t size) {
    atomic_fetch_sub(&ledger->borrowed, rounded(size));
}

uint64_t lk_ledger_bytes(const struct lk_ledger *ledger, enum lk_purpose purpose) {
    return atomic_load(&ledger->bytes[purpose]);
}
