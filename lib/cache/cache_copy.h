/* Copies of a cache that share its blocks. Shared blocks are immutable; what a cache writes to is
 * replaced by its own copy (cache_memory.h). */
#ifndef LK_CACHE_CACHE_COPY_H
#define LK_CACHE_CACHE_COPY_H

#include "base/err.h"

#include <stdbool.h>

struct lk_cache;

/* Make `to` hold what `from` holds. Both have the same recipe and shape, and ledgers with the same
 * `common`. A reservation of `from` ends. After LK_E_NOMEM `to` is empty. */
lk_status lk_cache_copy(struct lk_cache *to, struct lk_cache *from, lk_err *err);

#endif
