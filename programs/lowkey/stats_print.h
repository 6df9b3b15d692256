/* What a session's cache holds, as a table and as JSON. */
#ifndef LK_LOWKEY_STATS_PRINT_H
#define LK_LOWKEY_STATS_PRINT_H

#include "lowkey.h"
#include "say.h"
#include "table.h"

#include <jansson.h>
#include <stdint.h>

/* Memory of this process that is resident now; 0 where the system does not say. */
uint64_t resident_bytes(void);

/* Adds rows to a table of name, amount and remark ("lrl"). */
void report_cache(const lk_session *session, struct table *table);

/* Levels from oldest to newest with bars for their bytes. */
void report_levels(const lk_session *session, FILE *file);

json_t *json_cache(const lk_session *session);
json_t *json_levels(const lk_session *session);

/* A number; null where it is not finite, which JSON cannot say. */
json_t *json_number(double value);

/* Print and release: an object of several lines, or one line. Returns a program status. */
int json_print(json_t *value, bool one_line);

#endif
