/* Reports: results of `lowkey eval` and `lowkey bench --json` as one HTML page that needs nothing else.
 *
 * Results of one model with one kind of weights make a group, from however many files:
 *
 *   groups: [{"model", "weights", "runs": [run lines],
 *             "kv": [names in order of appearance],
 *             "tasks": {TASK: {KV: result line}},
 *             "from": {TASK + "\n" + KV: path}}]
 *   bench:  [{"path", "facts": whatever the file says beside its results, "results": [rows]}]
 *
 * Everything that comes from a file is checked when it is read and escaped when it is written. */
#ifndef LK_REPORT_REPORT_H
#define LK_REPORT_REPORT_H

#include "base/err.h"

#include <jansson.h>
#include <stdio.h>

struct lk_report {
    json_t *groups, *bench;
};

lk_status lk_report_begin(struct lk_report *report, lk_err *err);
void lk_report_free(struct lk_report *report);

/* Read a results file (results.h), of which a last line that was cut off is left out. Errors name the
 * file and the line: LK_E_IO, LK_E_FORMAT; LK_E_ARG where another file already gave the same result. */
lk_status lk_report_read_results(struct lk_report *report, const char *path, lk_err *err);

/* Read what `lowkey bench --json` printed. */
lk_status lk_report_read_bench(struct lk_report *report, const char *path, lk_err *err);

/* Write the page. `command`: how it was made. LK_E_IO where it could not be written whole. */
lk_status lk_report_write(const struct lk_report *report, const char *command, FILE *out,
                          lk_err *err);

#endif
