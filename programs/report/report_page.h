/* A report as one HTML page that needs no other file and no network. */
#ifndef LK_REPORT_REPORT_PAGE_H
#define LK_REPORT_REPORT_PAGE_H

#include "report/report.h"

#include <stdio.h>

/* Write the page. command: the command line that makes it. LK_E_IO if `out` cannot be written. */
lk_status lk_report_write(const struct lk_report *report, const char *command, FILE *out,
                          lk_err *err);

#endif
