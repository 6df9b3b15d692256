/* Tables of a report. */
#include "report/report_tables.h"

#include "report/html.h"
#include "report/report.h"
#include "report/svg.h"

#include <math.h>
#include <string.h>

static void open_table(FILE *out) {
    fputs("<div class=\"box\"><table><thead><tr><th>cache</th>", out);
}

static void close_table(FILE *out) { fputs("</tbody></table></div>\n", out); }

static void header_cell(FILE *out, const char *task, const char *metric) {
    char buf[LK_REPORT_LABEL];
    fputs("<th>", out);
    if (*task) lk_html_text(out, "", task, "<br>");
    lk_html_text(out, "", lk_report_metric_label(buf, metric), "</th>");
}

/* color: the recipe's value in "kv" (report.h). */
static void open_row(FILE *out, const char *kv, const json_t *color) {
    fputs(json_integer_value(color) < 0 ? "<tr class=\"ref\">" : "<tr>", out);
    lk_html_text(out, "<th title=\"", kv, "\">");
    lk_html_text(out, "", kv, "</th>");
}

/* Write value and interval with two digits of the interval. error is 0 or NaN if there is none. */
static void write_value(FILE *out, double value, double error) {
    char buf[LK_SVG_NUMBER];
    bool whole = fabs(value) < 1e15 && value == floor(value);
    if (isfinite(value) && error > 0) {
        int digits = (int)fmin(fmax(ceil(-log10(error)) + 1, 0), 7);
        fprintf(out, "%.*f&nbsp;<i>&plusmn;&nbsp;%.*f</i>", digits, value, digits, error);
    } else if (!isfinite(value) || (fabs(value) < 1e-3 && !whole)) {
        fputs(lk_svg_number(buf, value), out);
    } else {
        fprintf(out, whole || fabs(value) >= 1000 ? "%.0f" : "%.4g", value);
    }
}

static void metric_cell(FILE *out, const json_t *result, const char *name) {
    double error, value = lk_report_metric(result, name, &error);
    const json_t *metric = json_object_get(json_object_get(result, "metrics"), name),
                 *n = json_object_get(metric, "n");
    if (json_is_number(n))
        fprintf(out, "<td title=\"n = %.0f\">", json_number_value(n));
    else
        fputs("<td>", out);
    if (strcmp(name, "bits_per_value") == 0 && isfinite(value))
        fprintf(out, "%.2f", value);
    else
        write_value(out, value, error);
    fputs("</td>", out);
}

/* A metric that is the same for all tasks: the first result that has it. */
static const json_t *find_result(const json_t *tasks, const char *kv, const char *metric) {
    const char *task;
    json_t *by_kv;
    double error;
    json_object_foreach((json_t *)tasks, task, by_kv) {
        const json_t *result = json_object_get(by_kv, kv);
        if (isfinite(lk_report_metric(result, metric, &error))) return result;
    }
    return NULL;
}

/* The metrics of a task in the overview. Returns their number. name: [3] */
static size_t overview_metrics(const char *task, const json_t *by_kv, const char **name) {
    name[0] = "ppl", name[1] = "kl_mean", name[2] = "top1";
    if (strcmp(task, "text") == 0) return 3;
    name[0] = lk_report_primary_metric(by_kv);
    return name[0] != NULL;
}

void lk_report_overview(FILE *out, const json_t *group) {
    static const char *const memory[] = {"bits_per_value", "bytes_per_token"};
    const json_t *tasks = json_object_get(group, "tasks");
    const char *task, *kv, *name[3];
    json_t *by_kv, *color;
    fputs("<h3>Overview</h3>\n", out);
    open_table(out);
    for (int k = 0; k < 2; k++) header_cell(out, "", memory[k]);
    json_object_foreach((json_t *)tasks, task, by_kv) {
        size_t n = overview_metrics(task, by_kv, name);
        for (size_t k = 0; k < n; k++) header_cell(out, task, name[k]);
    }
    fputs("</tr></thead><tbody>\n", out);
    json_object_foreach(json_object_get(group, "kv"), kv, color) {
        open_row(out, kv, color);
        for (int k = 0; k < 2; k++) metric_cell(out, find_result(tasks, kv, memory[k]), memory[k]);
        json_object_foreach((json_t *)tasks, task, by_kv) {
            size_t n = overview_metrics(task, by_kv, name);
            for (size_t k = 0; k < n; k++) metric_cell(out, json_object_get(by_kv, kv), name[k]);
        }
        fputs("</tr>\n", out);
    }
    close_table(out);
}

/* The metrics of a task as keys of an object: memory, then the others in order of appearance.
 * Owned by the caller; NULL without memory. */
static json_t *metric_names(const json_t *by_kv) {
    const char *kv;
    json_t *result, *names = json_pack("{s:n s:n}", "bits_per_value", "bytes_per_token");
    json_object_foreach((json_t *)by_kv, kv, result)
        json_object_update_missing(names, json_object_get(result, "metrics"));
    return names;
}

bool lk_report_task_tables(FILE *out, const json_t *group) {
    bool complete = true;
    const char *task, *metric, *kv;
    json_t *by_kv, *color, *unused;
    json_object_foreach(json_object_get(group, "tasks"), task, by_kv) {
        json_t *names = metric_names(by_kv);
        lk_html_text(out, "<h3>", task, "</h3>\n");
        open_table(out);
        json_object_foreach(names, metric, unused) header_cell(out, "", metric);
        fputs("</tr></thead><tbody>\n", out);
        json_object_foreach(json_object_get(group, "kv"), kv, color) {
            const json_t *result = json_object_get(by_kv, kv);
            if (!result) continue;
            open_row(out, kv, color);
            json_object_foreach(names, metric, unused) metric_cell(out, result, metric);
            fputs("</tr>\n", out);
        }
        close_table(out);
        complete &= names != NULL;
        json_decref(names);
    }
    return complete;
}

void lk_report_bench_table(FILE *out, const json_t *bench) {
    static const char *const key[] = {"depth", "prefill_tps", "decode_tps", "cache_bytes",
                                      "bits_per_value"};
    enum { N_KEY = sizeof key / sizeof key[0] };
    size_t i;
    json_t *row;
    open_table(out);
    for (int k = 0; k < N_KEY; k++) header_cell(out, "", key[k]);
    fputs("</tr></thead><tbody>\n", out);
    json_array_foreach(json_object_get(json_object_get(bench, "facts"), "results"), i, row) {
        const char *kv = lk_report_text(row, "kv");
        open_row(out, kv, json_object_get(json_object_get(bench, "kv"), kv));
        for (int k = 0; k < N_KEY; k++) {
            fputs("<td>", out);
            write_value(out, lk_report_number(json_object_get(row, key[k])), NAN);
            fputs("</td>", out);
        }
        fputs("</tr>\n", out);
    }
    close_table(out);
}
