/* Pieces of the report's page: what its parts share. Private to report_*.c. */
#ifndef LK_REPORT_REPORT_PAGE_H
#define LK_REPORT_REPORT_PAGE_H

#include "base/ledger.h"
#include "report/report.h"
#include "report/svg.h"

struct lk_page {
    FILE *out;
    struct lk_ledger ledger;
    bool failed; /* memory was refused: something is missing from the page */
};

/* A string of an object, "" where it has none; a number, NaN where it is null or absent. */
const char *lk_page_text(const json_t *object, const char *key);
double lk_page_number(const json_t *value);

/* Escaped text; and markup in printf's manner, whose arguments must need no escaping. */
void lk_page_say(struct lk_page *page, const char *text);
void lk_page_put(struct lk_page *page, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* "kl_by_depth" as people read it: "KL by depth". buf: [cap]. */
const char *lk_page_name(char *buf, size_t cap, const char *name);

/* Is it the full cache, or one of llama.cpp's: a point of reference? */
bool lk_page_is_full(const char *kv);
bool lk_page_is_llama(const char *kv);

/* A value with half its 95 % interval, in as many digits as the interval allows; error NaN or 0: none. */
void lk_page_value(struct lk_page *page, double value, double error);

/* A metric of one result: its value, and 1.96 standard errors in *error (NaN: none). NaN where absent. */
double lk_page_metric(const json_t *result, const char *name, double *error);

/* A task's metric that stands for it in overviews, or NULL. */
const char *lk_page_chief(const json_t *by_kv);

/* A plot in its own figure. Its width and height are set here. */
void lk_page_plot(struct lk_page *page, const char *caption, const char *note, struct lk_plot plot);

/* report_plots.c: all plots of a group; of a file of speeds. report_tables.c: the same as tables. */
void lk_page_group_plots(struct lk_page *page, const json_t *group);
void lk_page_bench_plots(struct lk_page *page, const json_t *bench);
void lk_page_overview(struct lk_page *page, const json_t *group);
void lk_page_task_tables(struct lk_page *page, const json_t *group);
void lk_page_bench_table(struct lk_page *page, const json_t *bench);

#endif
