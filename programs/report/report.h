/* Data of a report: results of `lowkey eval` and of `lowkey bench --json`.
 *
 * Results with the same model and weights form a group, whatever files they come from:
 *
 *   groups: [{"model", "model_fingerprint", "weights", "runs": [run lines],
 *             "kv": {KV: color},
 *             "tasks": {TASK: {KV: result line and "path"}}}]
 *   bench:  [{"path", "facts": the whole file, "kv", "tasks": one, "speed", whose results have
 *             only "series"}]
 *
 * "kv" lists the cache recipes in order of appearance with their color in plots: 0, 1, ..., or -1
 * for a reference, which is a full cache or a cache type of llama.cpp.
 *
 * The readers check everything that a file says. The writers escape it. */
#ifndef LK_REPORT_REPORT_H
#define LK_REPORT_REPORT_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>

struct lk_report {
    json_t *groups, *bench; /* owned */
};

lk_status lk_report_init(struct lk_report *report, lk_err *err);
void lk_report_free(struct lk_report *report);

/* Read a results file (eval/results.h). A last line that was cut off is ignored. Errors name the
 * file and the line: LK_E_IO, LK_E_FORMAT, or LK_E_ARG if another file has the same result. */
lk_status lk_report_read_results(struct lk_report *report, const char *path, lk_err *err);

/* Read the output of `lowkey bench --json`. */
lk_status lk_report_read_bench(struct lk_report *report, const char *path, lk_err *err);

/* Is the recipe a full cache? */
bool lk_report_is_full(const char *kv);

/* The string under `key`, or "". */
const char *lk_report_text(const json_t *object, const char *key);

/* The value of a number; NaN if it is null or absent. */
double lk_report_number(const json_t *value);

/* A metric of a result line, and half its 95 % interval (NaN: none). NaN if it is absent. */
double lk_report_metric(const json_t *result, const char *name, double *error);

/* The name of a metric or series in words: "KL by depth in the context" for "kl_by_depth".
 * buf: [LK_REPORT_LABEL]. */
enum { LK_REPORT_LABEL = 80 };
const char *lk_report_metric_label(char *buf, const char *name);

/* The name of the metric that stands for a task in overviews, or NULL.
 * by_kv: the task's result lines by recipe. */
const char *lk_report_primary_metric(const json_t *by_kv);

#endif
