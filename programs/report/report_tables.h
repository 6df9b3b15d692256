/* Tables of a report, as HTML. */
#ifndef LK_REPORT_REPORT_TABLES_H
#define LK_REPORT_REPORT_TABLES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* Memory and the main metrics of a group (report.h): a row for each recipe. */
void lk_report_overview(FILE *out, const json_t *group);

/* All metrics of each task of a group. Returns false if something is missing for lack of memory. */
bool lk_report_task_tables(FILE *out, const json_t *group);

/* All rows of an entry of "bench" (report.h). */
void lk_report_bench_table(FILE *out, const json_t *bench);

#endif
