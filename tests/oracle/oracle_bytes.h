/* What a cache holds beyond the bytes that a plan counts. */
#ifndef LK_TESTS_ORACLE_BYTES_H
#define LK_TESTS_ORACLE_BYTES_H

#include "cache/cache.h"

/* Bytes of tables, which grow ahead of need, and of cache lines: what they hold beyond what a plan
 * counts. */
uint64_t oracle_table_slack(const struct lk_cache *cache);

/* Bytes of slabs that hold no block, if the blocks were moved together. */
uint64_t oracle_free_slabs(const struct lk_cache *cache);

#endif
