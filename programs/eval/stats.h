/* The result of a task for one backend: metrics with standard errors, series and heat maps, in the
 * form of the results file:
 *
 *   "metrics": {NAME: {"value", "stderr", "n"}}
 *   "series":  {NAME: {"x": [..], "y": [..], "stderr": [..], "x_label", "y_label"}}
 *   "heat":    {NAME: {"x": [..], "y": [..], "z": [[..] for each y], "x_label", "y_label"}}
 *
 * A value that is not finite is null. A failed allocation is remembered, for
 * lk_task_result_check. */
#ifndef LK_EVAL_STATS_H
#define LK_EVAL_STATS_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>

struct lk_task_result {
    json_t *metrics, *series, *heat; /* objects */
    bool failed;                     /* an allocation failed */
};

lk_status lk_task_result_init(struct lk_task_result *result, lk_err *err);
void lk_task_result_free(struct lk_task_result *result);
lk_status lk_task_result_check(const struct lk_task_result *result, lk_err *err);

/* Add a metric over n values. error: its standard error; < 0: none. */
void lk_add_metric(struct lk_task_result *result, const char *name, double value, double error,
                   size_t n);

/* Add the mean and the standard error of the number `field` of the records. Records without the
 * field do not count. Adds nothing if no record has it. */
void lk_add_mean(struct lk_task_result *result, const char *name, const json_t *records,
                 const char *field);

/* Add a series of n points. error: [n] standard errors, or NULL. */
void lk_add_series(struct lk_task_result *result, const char *name, const char *x_label,
                   const char *y_label, const double *x, const double *y, const double *error,
                   size_t n);

/* Means of `field` per cell: a series over the different values of the field x, or a heat map over
 * the fields x and y. These are numbers of the records, in ascending order. A cell without records
 * is null. */
void lk_add_mean_series(struct lk_task_result *result, const char *name, const char *x_label,
                        const char *y_label, const json_t *records, const char *x,
                        const char *field);
void lk_add_mean_heat(struct lk_task_result *result, const char *name, const char *x_label,
                      const char *y_label, const json_t *records, const char *x, const char *y,
                      const char *field);

/* A number or boolean of a record; NaN if it has none. */
double lk_record_number(const json_t *record, const char *field);

/* Standard error of the mean of n values, from their sum and the sum of their squares. */
double lk_standard_error(double sum, double sum2, double n);

/* A JSON number; null if it is not finite. */
json_t *lk_json_number(double value);

#endif
