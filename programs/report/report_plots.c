/* Plots of a report: quality against memory, series, and heat maps. */
#include "report/report_plots.h"

#include "base/buf.h"
#include "base/utf8.h"
#include "report/html.h"
#include "report/report.h"
#include "report/svg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Further curves of a figure are not drawn. Curves with more points have no marks. Sizes are in
 * pixels: a plot has about the width of a phone, or of one of three columns on a desktop. */
enum { MAX_CURVES = 64, MAX_MARKS = 40, WIDTH = 380, HEIGHT = 320, HEAT_WIDTH = 268 };

/* A plot that is put together curve by curve. */
struct figure {
    struct lk_curve curve[MAX_CURVES]; /* points are owned */
    size_t n;
    bool no_memory;
    struct lk_buf caption, note; /* note: below the plot, may be empty */
};

/* The name in a plot. A mark or dashes say already that a type is llama.cpp's. Its plain attention
 * over an f16 cache only adds in another order, so its distance from the full cache is noise. */
static const char *short_name(const char *kv) {
    if (strcmp(kv, "llama.cpp:plain") == 0) return "noise floor";
    return strncmp(kv, "llama.cpp:", 10) == 0 ? kv + 10 : kv;
}

/* Add a curve whose n points the caller sets. NULL without room or memory, or if n is 0. */
static struct lk_point *add_curve(struct figure *f, struct lk_curve curve, size_t n) {
    if (n == 0 || f->n == MAX_CURVES) return NULL;
    struct lk_point *point = calloc(n, sizeof *point);
    f->no_memory |= !point;
    if (!point) return NULL;
    curve.point = point;
    curve.n = n;
    f->curve[f->n++] = curve;
    return point;
}

/* Draw the figure if it has a value, and free it. Returns false if memory ran out. */
static bool draw_figure(FILE *out, struct figure *f, struct lk_axis x, struct lk_axis y) {
    bool complete = !f->no_memory && !f->caption.failed && !f->note.failed;
    bool has_value = false;
    const char *caption = lk_buf_cstr(&f->caption);
    for (size_t k = 0; k < f->n; k++)
        for (size_t i = 0; i < f->curve[k].n; i++) has_value |= isfinite(f->curve[k].point[i].y);
    if (has_value) {
        lk_html_text(out, "<figure><figcaption>", caption, "</figcaption>");
        lk_svg_plot(out, &(struct lk_plot){caption, WIDTH, HEIGHT, x, y, f->curve, f->n});
        if (f->note.len) lk_html_text(out, "<p>", lk_buf_cstr(&f->note), "</p>");
        fputs("</figure>\n", out);
    }
    for (size_t i = 0; i < f->n; i++) free((void *)f->curve[i].point);
    lk_buf_free(&f->caption);
    lk_buf_free(&f->note);
    return complete;
}

/* ---- quality against memory ---- */

static int by_x(const void *a, const void *b) {
    const struct lk_point *p = a, *q = b;
    return (p->x > q->x) - (p->x < q->x);
}

/* Reduce the points to the ones that no other point beats in both x and y, in order of x. Returns
 * their number. */
static size_t find_frontier(struct lk_point *point, size_t n) {
    size_t kept = 0;
    qsort(point, n, sizeof *point, by_x);
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || point[i].y < point[kept - 1].y) point[kept++] = point[i];
    return kept;
}

/* One metric of a task against bits per value: a point for each recipe, and a line through the best
 * of lowkey's. */
static bool plot_against_memory(FILE *out, const json_t *group, const char *task,
                                const json_t *by_kv, const char *metric) {
    bool log = strncmp(metric, "kl", 2) == 0;
    const json_t *names = json_object_get(group, "kv");
    char buf[LK_REPORT_LABEL], y_label[LK_REPORT_LABEL + 16];
    const char *label = lk_report_metric_label(buf, metric), *kv;
    json_t *color;
    struct figure f = {0};
    size_t n_best = 0;
    struct lk_curve line = {.color = -1, .line = true};
    /* Other metrics are too noisy for a line. The line lies beneath the points. */
    struct lk_point *best = log ? add_curve(&f, line, json_object_size(names)) : NULL;
    lk_buf_printf(&f.caption, "%s: %s against memory", task, label);
    json_object_foreach((json_t *)names, kv, color) {
        const json_t *result = json_object_get(by_kv, kv);
        double unused;
        struct lk_point p = {.x = lk_report_metric(result, "bits_per_value", &unused)};
        p.y = lk_report_metric(result, metric, &p.error);
        if (!result) continue;
        if (!(p.x > 0) || !isfinite(p.y) || (log && !(p.y > 0))) {
            lk_buf_printf(&f.note, "%s%s", f.note.len ? ", " : "Not drawn: ", kv);
            continue;
        }
        struct lk_curve curve = {short_name(kv), .color = json_integer_value(color), .marks = true};
        struct lk_point *point = add_curve(&f, curve, 1);
        if (point) *point = p;
        if (best && curve.color >= 0) best[n_best++] = p;
    }
    if (best) f.curve[0].n = find_frontier(best, n_best);
    if (f.note.len && log) lk_buf_append_str(&f.note, " (equal to the full cache, or no value). ");
    if (n_best > 1) lk_buf_append_str(&f.note, "Dashed: the best recipes.");
    snprintf(y_label, sizeof y_label, "%s%s", label, log ? " (nats, log)" : "");
    return draw_figure(out, &f, (struct lk_axis){"bits per value, log", .log = true},
                       (struct lk_axis){y_label, .log = log});
}

/* ---- series ---- */

/* Are all y positive, and of so different size that a linear axis would hide the small ones? */
static bool needs_log(const struct figure *f) {
    double min = INFINITY, max = 0;
    for (size_t k = 0; k < f->n; k++) {
        for (size_t i = 0; i < f->curve[k].n; i++) {
            double y = f->curve[k].point[i].y;
            if (!isfinite(y) || y == 0) continue;
            if (y < 0) return false;
            min = fmin(min, y);
            max = fmax(max, y);
        }
    }
    return max > 30 * min;
}

/* The entry `name` of a result's "series" or "heat", or NULL. */
static const json_t *find_part(const json_t *result, const char *part, const char *name) {
    return json_object_get(json_object_get(result, part), name);
}

static bool plot_series(FILE *out, const json_t *group, const char *task, const json_t *by_kv,
                        const char *name) {
    struct figure f = {0};
    char buf[LK_REPORT_LABEL];
    const char *kv, *x_label = "";
    json_t *color;
    struct lk_buf y_label = {0};
    lk_buf_printf(&f.caption, "%s: %s", task, lk_report_metric_label(buf, name));
    json_object_foreach(json_object_get(group, "kv"), kv, color) {
        const json_t *series = find_part(json_object_get(by_kv, kv), "series", name),
                     *x = json_object_get(series, "x"), *y = json_object_get(series, "y"),
                     *error = json_object_get(series, "stderr");
        size_t n = json_array_size(x);
        bool differs = !lk_report_is_full(kv); /* the full cache from itself: only if y is not 0 */
        struct lk_curve curve = {short_name(kv), .color = json_integer_value(color), .line = true,
                                 .marks = n <= MAX_MARKS};
        struct lk_point *point = add_curve(&f, curve, n);
        if (!point) continue;
        for (size_t i = 0; i < n; i++) {
            point[i] = (struct lk_point){lk_report_number(json_array_get(x, i)),
                                         lk_report_number(json_array_get(y, i)),
                                         1.96 * lk_report_number(json_array_get(error, i))};
            differs |= point[i].y != 0;
        }
        if (!differs) {
            f.n--;
            free(point);
        }
        x_label = lk_report_text(series, "x_label");
        lk_buf_clear(&y_label);
        lk_buf_append_str(&y_label, lk_report_text(series, "y_label"));
    }
    bool log = needs_log(&f);
    if (log) lk_buf_append_str(&y_label, ", log");
    bool complete = draw_figure(out, &f, (struct lk_axis){.label = x_label},
                                (struct lk_axis){lk_buf_cstr(&y_label), log, .from_zero = true});
    lk_buf_free(&y_label);
    return complete;
}

/* ---- heat maps ---- */

/* The range of all recipes' maps of one name, for shared colors. min > max if there is no value. */
static void find_range(const json_t *by_kv, const char *name, double *min, double *max) {
    const char *kv;
    json_t *result, *row, *value;
    size_t i, k;
    *min = INFINITY;
    *max = -INFINITY;
    json_object_foreach((json_t *)by_kv, kv, result) {
        json_array_foreach(json_object_get(find_part(result, "heat", name), "z"), i, row) {
            json_array_foreach(row, k, value) {
                *min = fmin(*min, lk_report_number(value)); /* ignores NaN */
                *max = fmax(*max, lk_report_number(value));
            }
        }
    }
    if (*min >= 0 && *max <= 1) *min = 0, *max = 1; /* shares */
}

/* Names of columns or rows, which are numbers or strings, as far as they fit. */
static void name_cells(const json_t *axis, char (*name)[LK_SVG_NUMBER]) {
    size_t i;
    json_t *value;
    json_array_foreach((json_t *)axis, i, value) {
        size_t len = json_string_length(value), room = LK_SVG_NUMBER - 1;
        const char *text = json_string_value(value);
        if (text)
            snprintf(name[i], sizeof name[i], "%.*s",
                     (int)lk_utf8_valid_prefix(text, len < room ? len : room), text);
        else
            lk_svg_number(name[i], lk_report_number(value));
    }
}

static bool draw_map(FILE *out, const char *kv, const json_t *map, double min, double max) {
    const json_t *x = json_object_get(map, "x"), *y = json_object_get(map, "y"),
                 *rows = json_object_get(map, "z");
    size_t n_x = json_array_size(x), n_y = json_array_size(y);
    if (n_x == 0 || n_y == 0) return true;
    double *z = calloc(n_x * n_y, sizeof *z);
    char(*name)[LK_SVG_NUMBER] = calloc(n_x + n_y, sizeof *name);
    bool complete = z && name;
    if (complete) {
        name_cells(x, name);
        name_cells(y, name + n_x);
        for (size_t i = 0; i < n_x * n_y; i++)
            z[i] = lk_report_number(json_array_get(json_array_get(rows, i / n_x), i % n_x));
        lk_html_text(out, "<figure><figcaption>", kv, "</figcaption>");
        lk_svg_heat(out, &(struct lk_heat){.title = kv,
                                           .x_label = lk_report_text(map, "x_label"),
                                           .y_label = lk_report_text(map, "y_label"),
                                           .x = name,
                                           .y = name + n_x,
                                           .n_x = n_x,
                                           .n_y = n_y,
                                           .z = z,
                                           .min = min,
                                           .max = max,
                                           .width = HEAT_WIDTH});
        fputs("</figure>\n", out);
    }
    free(z);
    free(name);
    return complete;
}

static bool plot_heat(FILE *out, const json_t *group, const char *task, const json_t *by_kv,
                      const char *name) {
    char buf[LK_REPORT_LABEL];
    double min, max;
    const char *kv;
    json_t *color;
    bool complete = true;
    find_range(by_kv, name, &min, &max);
    if (!(min <= max)) return true;
    lk_html_text(out, "<h3>", task, ": ");
    lk_html_text(out, "", lk_report_metric_label(buf, name), "</h3>\n<div class=\"heats\">\n");
    json_object_foreach(json_object_get(group, "kv"), kv, color) complete &=
        draw_map(out, kv, find_part(json_object_get(by_kv, kv), "heat", name), min, max);
    fputs("</div>\n", out);
    return complete;
}

/* ---- all of a group ---- */

typedef bool (*part_plotter)(FILE *out, const json_t *group, const char *task, const json_t *by_kv,
                             const char *name);

/* Plot every name that any recipe of a task has in `part`, "series" or "heat". */
static bool plot_parts(FILE *out, const json_t *group, const char *task, const json_t *by_kv,
                       const char *part, part_plotter plot) {
    const char *kv, *name;
    json_t *result, *unused, *names = json_object();
    bool complete = names != NULL;
    json_object_foreach((json_t *)by_kv, kv, result)
        json_object_update_missing(names, json_object_get(result, part));
    json_object_foreach(names, name, unused) complete &= plot(out, group, task, by_kv, name);
    json_decref(names);
    return complete;
}

bool lk_report_group_plots(FILE *out, const json_t *group) {
    const char *task;
    json_t *by_kv, *tasks = json_object_get(group, "tasks");
    bool complete = true;
    fputs("<div class=\"plots\">\n", out);
    json_object_foreach(tasks, task, by_kv) {
        const char *metric = lk_report_primary_metric(by_kv);
        if (metric) complete &= plot_against_memory(out, group, task, by_kv, metric);
        complete &= plot_parts(out, group, task, by_kv, "series", plot_series);
    }
    fputs("</div>\n", out);
    json_object_foreach(tasks, task, by_kv) complete &=
        plot_parts(out, group, task, by_kv, "heat", plot_heat);
    return complete;
}
