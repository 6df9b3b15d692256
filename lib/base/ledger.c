/* Counted allocations. */
#include "base/ledger.h"

#include "base/os.h"

#include <string.h>

enum { ALIGN = 64 };

static size_t round_to_align(size_t size) { return (size + ALIGN - 1) / ALIGN * ALIGN; }

static uint64_t total_bytes(const struct lk_ledger *ledger) {
    uint64_t sum = atomic_load(&ledger->borrowed);
    for (int i = 0; i < LK_N_PURPOSE; i++) sum += atomic_load(&ledger->bytes[i]);
    return sum;
}

/* Add to a counter of the ledger. False if fail_at or the limit refuses. */
static bool add_bytes(struct lk_ledger *ledger, atomic_uint_fast64_t *counter, size_t size) {
    if (atomic_load(&ledger->fail_at) > 0 && atomic_fetch_sub(&ledger->fail_at, 1) == 1)
        return false;
    atomic_fetch_add(counter, size);
    /* Add first and check then, so that two threads cannot exceed the limit together. */
    if (ledger->limit && (size > ledger->limit || total_bytes(ledger) > ledger->limit)) {
        atomic_fetch_sub(counter, size);
        return false;
    }
    return true;
}

bool lk_ledger_add(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size) {
    if (!add_bytes(ledger, &ledger->bytes[purpose], size)) return false;
    atomic_fetch_add(&ledger->n_alloc, 1);
    return true;
}

void lk_ledger_remove(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size) {
    atomic_fetch_sub(&ledger->bytes[purpose], size);
}

void *lk_alloc(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size) {
    if (size == 0 || size > SIZE_MAX - ALIGN) return NULL;
    size_t bytes = round_to_align(size);
    if (!lk_ledger_add(ledger, purpose, bytes)) return NULL;
    void *ptr = lk_os_aligned_alloc(ALIGN, bytes);
    if (!ptr) {
        lk_ledger_remove(ledger, purpose, bytes);
        return NULL;
    }
    return memset(ptr, 0, bytes);
}

/* Return the whole pages inside a piece of memory to the system. free() alone keeps them while
 * pieces around them are in use, and the process would never shrink. */
static void discard_pages(char *ptr, size_t size) {
    enum { HEAD = 64 }; /* not touched: free() may read it */
    size_t page = lk_os_page_size();
    uintptr_t first = ((uintptr_t)ptr + HEAD + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)ptr + size) / page * page;
    if (first < end) lk_os_discard((void *)first, end - first);
}

void lk_release(struct lk_ledger *ledger, enum lk_purpose purpose, void *ptr, size_t size) {
    if (!ptr) return;
    discard_pages(ptr, size);
    lk_os_aligned_free(ptr);
    lk_ledger_remove(ledger, purpose, round_to_align(size));
}

bool lk_grow(struct lk_ledger *ledger, enum lk_purpose purpose, void **ptr, size_t old_size,
             size_t new_size) {
    void *bigger = lk_alloc(ledger, purpose, new_size);
    if (!bigger) return false;
    if (*ptr) memcpy(bigger, *ptr, old_size);
    lk_release(ledger, purpose, *ptr, old_size);
    *ptr = bigger;
    return true;
}

bool lk_ledger_share(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size) {
    struct lk_ledger *common = ledger->common;
    size_t bytes = round_to_align(size);
    if (!common || !add_bytes(common, &common->bytes[purpose], bytes)) return false;
    atomic_fetch_sub(&ledger->bytes[purpose], bytes);
    atomic_fetch_add(&ledger->borrowed, bytes);
    return true;
}

bool lk_ledger_borrow(struct lk_ledger *ledger, size_t size) {
    return add_bytes(ledger, &ledger->borrowed, round_to_align(size));
}

void lk_ledger_return(struct lk_ledger *ledger, size_t size) {
    atomic_fetch_sub(&ledger->borrowed, round_to_align(size));
}

uint64_t lk_ledger_bytes(const struct lk_ledger *ledger, enum lk_purpose purpose) {
    return atomic_load(&ledger->bytes[purpose]);
}
