/* Results: metrics with standard errors, series and heat maps, as they stand in the results file:
 *
 *   "metrics": {NAME: {"value", "stderr", "n"}}
 *   "series":  {NAME: {"x": [..], "y": [..], "stderr": [..], "x_label", "y_label"}}
 *   "heat":    {NAME: {"x": [..], "y": [..], "z": [[..] for each y], "x_label", "y_label"}}
 *
 * A value that is not a finite number is null. A result remembers a failure, which lk_result_check asks. */
#ifndef LK_EVAL_STATS_H
#define LK_EVAL_STATS_H

#include "base/err.h"

#include <jansson.h>

struct lk_result {
    json_t *metrics, *series, *heat; /* objects */
    bool failed;                     /* memory was refused */
};

lk_status lk_result_begin(struct lk_result *result, lk_err *err);
void lk_result_free(struct lk_result *result);
lk_status lk_result_check(const struct lk_result *result, lk_err *err);

/* stderr < 0: has none. */
void lk_metric(struct lk_result *result, const char *name, double value, double stderr_, size_t n);

/* Mean and standard error of a number that records have under `field`; records without it are left out.
 * Nothing is added where none has it. */
void lk_metric_mean(struct lk_result *result, const char *name, const json_t *records,
                    const char *field);

/* stderr_ may be NULL. */
void lk_series(struct lk_result *result, const char *name, const char *x_label, const char *y_label,
               const double *x, const double *y, const double *stderr_, size_t n);

/* The same means by cells: series over the different values of field `x`, and heat map over `x` and `y`
 * (both numbers of the records, in rising order). Cells without records are null. */
void lk_series_mean(struct lk_result *result, const char *name, const char *x_label,
                    const char *y_label, const json_t *records, const char *x, const char *field);
void lk_heat_mean(struct lk_result *result, const char *name, const char *x_label,
                  const char *y_label, const json_t *records, const char *x, const char *y,
                  const char *field);

/* A number of a record, or NaN. */
double lk_record_number(const json_t *record, const char *field);

/* Standard error of a mean from the sums of n values and of their squares. */
double lk_stderr(double sum, double sum2, double n);

/* A JSON number; null where it is not finite. */
json_t *lk_json_number(double value);

#endif
