/* Contents of a session's cache, as a table and as JSON. */
#ifndef LK_LOWKEY_CACHE_REPORT_H
#define LK_LOWKEY_CACHE_REPORT_H

#include "lowkey_cluster.h"
#include "table.h"

#include <jansson.h>
#include <stdio.h>

/* Add rows about the cache and memory to a table of name, amount and remark ("lrl"). */
void add_cache_rows(const lk_session *session, struct table *table);

/* Add rows about the parts of several ranks; nothing for one process. */
void add_rank_rows(const lk_model *model, lk_session *session, struct table *table);

/* The same as a list; NULL for one process. */
json_t *ranks_json(const lk_model *model, lk_session *session);

/* Print the levels from oldest to newest, with bars for their share of the bytes. */
void print_cache_levels(const lk_session *session, FILE *file);

json_t *cache_json(const lk_session *session);
json_t *cache_levels_json(const lk_session *session);

#endif
