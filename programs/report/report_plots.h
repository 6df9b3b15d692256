/* Plots of a report, as HTML figures. */
#ifndef LK_REPORT_REPORT_PLOTS_H
#define LK_REPORT_REPORT_PLOTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

/* All plots of a group or an entry of "bench" (report.h). Returns false if something is missing for
 * lack of memory. */
bool lk_report_group_plots(FILE *out, const json_t *group);

#endif
