/* The ledger counts every byte that the library allocates for itself, by purpose.
 *
 * Memory reports read these counters and nothing else. A limit turns "too much memory" into an
 * error before the system is asked, and tests can make the nth allocation fail. All functions are
 * thread-safe. */
#ifndef LK_BASE_LEDGER_H
#define LK_BASE_LEDGER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum lk_purpose {
    LK_FOR_CACHE,   /* blocks, channel statistics and tables of a KV cache */
    LK_FOR_WEIGHTS, /* copies of weights: repacked or dequantized */
    LK_FOR_SCRATCH, /* activations, logits, graphs, hidden states */
    LK_FOR_OTHER,   /* handles, texts, vocabulary */
    LK_N_PURPOSE
};

struct lk_ledger {
    atomic_uint_fast64_t bytes[LK_N_PURPOSE]; /* held now */
    atomic_uint_fast64_t n_alloc;             /* allocations so far */
    atomic_uint_fast64_t borrowed; /* bytes in `common` that this ledger's owner also uses */
    uint64_t limit;                /* maximum of all bytes, borrowed ones included; 0: no limit */
    struct lk_ledger *common;      /* counts what several ledgers share, once; NULL: none */
    atomic_int_fast64_t fail_at;   /* tests: the nth allocation from now fails; 0: none */
};

/* Allocate `size` > 0 bytes, zeroed and aligned to 64 bytes. NULL if the system, the limit or
 * fail_at refuses. Release with the same purpose and size. */
void *lk_alloc(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size);

/* Release memory of lk_alloc. `ptr` may be NULL. */
void lk_release(struct lk_ledger *ledger, enum lk_purpose purpose, void *ptr, size_t size);

/* Grow *ptr from old_size to new_size bytes and keep its contents. On failure (false) nothing
 * changes. */
bool lk_grow(struct lk_ledger *ledger, enum lk_purpose purpose, void **ptr, size_t old_size,
             size_t new_size);

/* Count memory that another library allocates for us, such as a ggml buffer. lk_ledger_add returns
 * false if the limit would be exceeded. */
bool lk_ledger_add(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size);
void lk_ledger_remove(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size);

/* Memory of lk_alloc with several owners. It is counted once, in `common`, and against the limit of
 * each owner's ledger.
 *   share   moves memory that `ledger` holds to `common`, and borrows it
 *   borrow  adds `ledger` as an owner of memory in `common`
 *   return  ends what share or borrow started. The last owner calls lk_release with `common`
 * share and borrow return false if a limit or fail_at refuses. */
bool lk_ledger_share(struct lk_ledger *ledger, enum lk_purpose purpose, size_t size);
bool lk_ledger_borrow(struct lk_ledger *ledger, size_t size);
void lk_ledger_return(struct lk_ledger *ledger, size_t size);

/* Bytes held now for a purpose. */
uint64_t lk_ledger_bytes(const struct lk_ledger *ledger, enum lk_purpose purpose);

#endif
