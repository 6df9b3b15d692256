/* Computes means, series and heat maps from records. */
#include "eval/stats.h"

#include <math.h>
#include <stdlib.h>

json_t *lk_json_number(double value) { return isfinite(value) ? json_real(value) : json_null(); }

double lk_standard_error(double sum, double sum2, double n) {
    double mean = sum / n, variance = sum2 / n - mean * mean;
    return n > 1 && variance > 0 ? sqrt(variance / (n - 1)) : 0;
}

double lk_record_number(const json_t *record, const char *field) {
    const json_t *value = json_object_get(record, field);
    if (json_is_boolean(value)) return json_is_true(value);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

lk_status lk_task_result_init(struct lk_task_result *result, lk_err *err) {
    *result = (struct lk_task_result){json_object(), json_object(), json_object(), false};
    result->failed = !result->metrics || !result->series || !result->heat;
    return lk_task_result_check(result, err);
}

void lk_task_result_free(struct lk_task_result *result) {
    json_decref(result->metrics);
    json_decref(result->series);
    json_decref(result->heat);
    *result = (struct lk_task_result){0};
}

lk_status lk_task_result_check(const struct lk_task_result *result, lk_err *err) {
    return result->failed ? lk_fail(err, LK_E_NOMEM, "no memory for results") : LK_OK;
}

void lk_add_metric(struct lk_task_result *result, const char *name, double value, double error,
                   size_t n) {
    json_t *metric = json_pack("{s:o s:o s:I}", "value", lk_json_number(value), "stderr",
                               error < 0 ? json_null() : lk_json_number(error), "n", (json_int_t)n);
    if (json_object_set_new(result->metrics, name, metric)) result->failed = true;
}

struct mean {
    double value, error;
    size_t n;
};

static bool has_value(const json_t *record, const char *field, double value) {
    return !field || lk_record_number(record, field) == value;
}

/* Mean of a field over the records whose fields x and y (each may be NULL) have the given
 * values. */
static struct mean mean_of(const json_t *records, const char *field, const char *x, double at_x,
                           const char *y, double at_y) {
    struct mean mean = {0, 0, 0};
    double sum2 = 0;
    for (int pass = 0; pass < 2; pass++) { /* first the mean, then its standard error */
        for (size_t i = 0; i < json_array_size(records); i++) {
            const json_t *record = json_array_get(records, i);
            double value = lk_record_number(record, field), from = value - mean.value;
            if (!isfinite(value) || !has_value(record, x, at_x) || !has_value(record, y, at_y))
                continue;
            if (pass)
                sum2 += from * from;
            else
                mean.n++, mean.error += value;
        }
        if (mean.n == 0) return (struct mean){NAN, NAN, 0};
        if (!pass) mean.value = mean.error / (double)mean.n;
    }
    mean.error = mean.n > 1 ? sqrt(sum2 / (double)mean.n / (double)(mean.n - 1)) : 0;
    return mean;
}

void lk_add_mean(struct lk_task_result *result, const char *name, const json_t *records,
                 const char *field) {
    struct mean mean = mean_of(records, field, NULL, 0, NULL, 0);
    if (mean.n) lk_add_metric(result, name, mean.value, mean.error, mean.n);
}

static json_t *json_numbers(const double *x, size_t n) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, lk_json_number(x[i]));
    return list;
}

void lk_add_series(struct lk_task_result *result, const char *name, const char *x_label,
                   const char *y_label, const double *x, const double *y, const double *error,
                   size_t n) {
    json_t *series = json_pack("{s:o s:o s:o* s:s s:s}", "x", json_numbers(x, n), "y",
                               json_numbers(y, n), "stderr", error ? json_numbers(error, n) : NULL,
                               "x_label", x_label, "y_label", y_label);
    if (json_object_set_new(result->series, name, series)) result->failed = true;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The *n different values of a field, in ascending order. NULL if there is no memory. Owned. */
static double *distinct_values(const json_t *records, const char *field, size_t *n) {
    size_t n_record = json_array_size(records), n_value = 0;
    double *value = calloc(n_record + 1, sizeof *value);
    *n = 0;
    if (!value) return NULL;
    for (size_t i = 0; i < n_record; i++) {
        double x = lk_record_number(json_array_get(records, i), field);
        if (isfinite(x)) value[n_value++] = x;
    }
    qsort(value, n_value, sizeof *value, by_value);
    for (size_t i = 0; i < n_value; i++)
        if (i == 0 || value[i] != value[*n - 1]) value[(*n)++] = value[i];
    return value;
}

void lk_add_mean_series(struct lk_task_result *result, const char *name, const char *x_label,
                        const char *y_label, const json_t *records, const char *x,
                        const char *field) {
    size_t n;
    double *at = distinct_values(records, x, &n), *y = calloc(2 * n + 1, sizeof *y);
    if (!at || !y) result->failed = true;
    for (size_t i = 0; at && y && i < n; i++) {
        struct mean mean = mean_of(records, field, x, at[i], NULL, 0);
        y[i] = mean.value;
        y[n + i] = mean.error;
    }
    if (at && y && n) lk_add_series(result, name, x_label, y_label, at, y, y + n, n);
    free(y);
    free(at);
}

void lk_add_mean_heat(struct lk_task_result *result, const char *name, const char *x_label,
                      const char *y_label, const json_t *records, const char *x, const char *y,
                      const char *field) {
    size_t n_x, n_y;
    double *at_x = distinct_values(records, x, &n_x), *at_y = distinct_values(records, y, &n_y);
    if (at_x && at_y && n_x && n_y) {
        json_t *z = json_array();
        for (size_t j = 0; j < n_y; j++) {
            json_t *row = json_array();
            for (size_t i = 0; i < n_x; i++)
                json_array_append_new(
                    row, lk_json_number(mean_of(records, field, x, at_x[i], y, at_y[j]).value));
            json_array_append_new(z, row);
        }
        json_t *heat =
            json_pack("{s:o s:o s:o s:s s:s}", "x", json_numbers(at_x, n_x), "y",
                      json_numbers(at_y, n_y), "z", z, "x_label", x_label, "y_label", y_label);
        if (json_object_set_new(result->heat, name, heat)) result->failed = true;
    }
    if (!at_x || !at_y) result->failed = true;
    free(at_x);
    free(at_y);
}
