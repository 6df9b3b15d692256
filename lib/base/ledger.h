/* The ledger: every byte this library allocates for itself is entered here, by purpose.
 *
 * Reports of memory read these counters and nothing else. A limit turns "too much" into an error
 * before the system is asked, and a test can make the nth allocation fail.
 * Safe to use from several threads. */
#ifndef LK_BASE_LEDGER_H
#define LK_BASE_LEDGER_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum lk_purpose {
    LK_FOR_CACHE,   /* blocks, channel statistics and tables of a KV cache */
    LK_FOR_WEIGHTS, /* copies of weights: repacked or dequantised */
    LK_FOR_SCRATCH, /* activations, logits, graphs, hidden states */
    LK_FOR_OTHER,   /* handles, texts, vocabulary */
    LK_N_PURPOSE
};

struct lk_ledger {
    atomic_uint_fast64_t bytes[LK_N_PURPOSE]; /* held now */
    atomic_uint_fast64_t n_alloc;             /* allocations ever made */
    atomic_uint_fast64_t borrowed;            /* held in `common` for this one's owner too */
    uint64_t limit;                           /* of the sum, what is borrowed included; 0: none */
    struct lk_ledger *common;    /* where it is entered once what owners of several ledgers hold
                                                 together; NULL: nothing of theirs is */
    atomic_int_fast64_t fail_at; /* tests: the nth allocation from now fails; 0: none */
};

/* 64-byte aligned zeroed memory of `size` > 0 bytes; NULL when the system, the limit or fail_at
 * refuses. Give it back with the same purpose and size. */
void *lk_alloc(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size);
void lk_release(struct lk_ledger *ledger, enum lk_purpose purpose, void *ptr,
                size_t size); /* NULL: nothing */

/* Grow *ptr from old_size to new_size bytes, keeping its contents; false leaves it untouched. */
int lk_grow(struct lk_ledger *ledger, enum lk_purpose purpose, void **ptr, size_t old_size,
            size_t new_size);

/* Enter or remove memory that a library we call holds for us (a ggml buffer). 0 when over the limit. */
int lk_ledger_enter(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size);
void lk_ledger_remove(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size);

/* Memory of lk_alloc that several owners hold: it is counted once, in `common`, and against each one's limit.
 * share moves what `ledger` holds there and borrows it; borrow takes part in what is there; give_up ends
 * either, and the last one calls lk_release with `common`. share and borrow return 0 when they are refused. */
int lk_ledger_share(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size);
int lk_ledger_borrow(struct lk_ledger *ledger, size_t size);
void lk_ledger_give_up(struct lk_ledger *ledger, size_t size);

uint64_t lk_ledger_bytes(const struct lk_ledger *ledger, enum lk_purpose purpose);

#endif
