#include "report/report_page.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CURVES_MOST = 64 };

/* Curves of one plot and the numbers they point at. */
struct curves {
    struct lk_curve curve[CURVES_MOST];
    size_t n, n_number;
    double *number; /* [n_number] */
};

/* A recipe's colour is its place among the group's recipes that are no reference. */
static int colour_of(const json_t *names, const char *kv) {
    size_t i;
    json_t *name;
    int colour = 0;
    if (lk_page_is_llama(kv) || lk_page_is_full(kv)) return -1;
    json_array_foreach((json_t *)names, i, name) {
        const char *other = json_string_value(name);
        if (strcmp(other, kv) == 0) break;
        colour += !lk_page_is_llama(other) && !lk_page_is_full(other);
    }
    return colour;
}

static enum lk_mark mark_of(const char *kv) {
    return lk_page_is_llama(kv) || lk_page_is_full(kv) ? LK_MARK_SQUARE : LK_MARK_DISC;
}

/* "llama.cpp:q8_0" beside a mark that says llama.cpp already. Its plain attention over an f16 cache is there
 * to show what sums in another order make of the same cache. */
static const char *short_name(const char *kv) {
    if (strcmp(kv, "llama.cpp:plain") == 0) return "noise floor";
    return lk_page_is_llama(kv) ? kv + 10 : kv;
}

static bool take(struct lk_page *page, struct curves *c, size_t n_number) {
    *c = (struct curves){.n_number = n_number ? n_number : 1};
    c->number = lk_alloc(&page->ledger, LK_FOR_OTHER, c->n_number * sizeof *c->number);
    page->failed |= !c->number;
    return c->number != NULL;
}

static void give(struct lk_page *page, struct curves *c) {
    lk_release(&page->ledger, LK_FOR_OTHER, c->number, c->n_number * sizeof *c->number);
}

/* ---- quality against memory ---- */

static int by_x(const void *a, const void *b) {
    const double *p = a, *q = b;
    return (p[0] > q[0]) - (p[0] < q[0]);
}

/* The best of lowkey's recipes: points (x, y) than which none has both less x and less y, in order of x, as
 * a line x, y [n]; returns their number. point: [n][2], sorted here. */
static size_t frontier(double (*point)[2], size_t n, double *x, double *y) {
    size_t kept = 0;
    qsort(point, n, sizeof *point, by_x);
    for (size_t i = 0; i < n; i++) {
        if (kept && !(point[i][1] < y[kept - 1])) continue;
        x[kept] = point[i][0];
        y[kept++] = point[i][1];
    }
    return kept;
}

/* One metric of a task against bits per value, every recipe a point. */
static void against_bits(struct lk_page *page, const json_t *group, const char *task,
                         const json_t *by_kv, const char *metric) {
    bool log = strncmp(metric, "kl", 2) == 0;
    const json_t *names = json_object_get(group, "kv");
    size_t n = json_array_size(names), i, n_point = 0;
    double point[CURVES_MOST][2], ignored;
    char buf[80], caption[200], note[600] = "";
    json_t *name;
    struct curves c;
    if (!take(page, &c, 5 * n)) return;
    double *at = c.number, *line_x = c.number + 3 * n, *line_y = line_x + n;
    c.n = 1; /* the line comes first, beneath the points */
    json_array_foreach(names, i, name) {
        const char *kv = json_string_value(name);
        const json_t *result = json_object_get(by_kv, kv);
        double bits = lk_page_metric(result, "bits_per_value", &ignored);
        double *x = at++, *y = at++, *error = at++;
        *x = bits;
        *y = lk_page_metric(result, metric, error);
        if (!result || c.n == CURVES_MOST) continue;
        if (!(bits > 0) || !isfinite(*y) || (log && !(*y > 0))) {
            size_t used = strlen(note);
            snprintf(note + used, sizeof note - used, "%s%.60s", used ? ", " : "Not drawn: ", kv);
            continue;
        }
        if (mark_of(kv) == LK_MARK_DISC) point[n_point][0] = bits, point[n_point++][1] = *y;
        c.curve[c.n++] = (struct lk_curve){.name = short_name(kv),
                                           .x = x,
                                           .y = y,
                                           .error = error,
                                           .n = 1,
                                           .colour = colour_of(names, kv),
                                           .mark = mark_of(kv)};
    }
    size_t n_line =
        log ? frontier(point, n_point, line_x, line_y) : 0; /* shares are too noisy for it */
    c.curve[0] = (struct lk_curve){.name = "the best recipes",
                                   .x = line_x,
                                   .y = line_y,
                                   .n = n_line,
                                   .colour = -1,
                                   .line = true,
                                   .nameless = true};
    snprintf(caption, sizeof caption, "%s: %s against memory", task,
             lk_page_name(buf, sizeof buf, metric));
    if (*note && log)
        snprintf(note + strlen(note), sizeof note - strlen(note),
                 " (no difference from the full cache, or no value).");
    struct lk_plot plot = {.x = {.label = "bits per value, log", .log = true},
                           .y = {.label = lk_page_name(buf, sizeof buf, metric), .log = log},
                           .curve = c.curve,
                           .n_curve = c.n};
    char label[100];
    snprintf(label, sizeof label, "%s%s", plot.y.label, log ? " (nats, log)" : "");
    plot.y.label = label;
    if (c.n > 1) lk_page_plot(page, caption, note, plot);
    give(page, &c);
}

/* ---- series ---- */

/* Is y positive everywhere, and does it span so much that a linear axis would hide the small? */
static bool wants_log(const struct curves *c) {
    double least = INFINITY, most = 0;
    for (size_t k = 0; k < c->n; k++)
        for (size_t i = 0; i < c->curve[k].n; i++) {
            double y = c->curve[k].y[i];
            if (!isfinite(y) || y == 0) continue;
            if (y < 0) return false;
            least = fmin(least, y);
            most = fmax(most, y);
        }
    return most > 30 * least;
}

static size_t numbers_of(const json_t *array, double *out, double factor) {
    size_t i;
    json_t *value;
    json_array_foreach((json_t *)array, i, value) out[i] = factor * lk_page_number(value);
    return json_array_size(array);
}

static bool all_zero(const double *y, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (y[i] != 0) return false;
    return true;
}

static void series_plot(struct lk_page *page, const json_t *group, const char *task,
                        const json_t *by_kv, const char *series) {
    const json_t *names = json_object_get(group, "kv");
    size_t i, total = 0;
    json_t *name;
    char caption[200], buf[80], x_label[80] = "", y_label[100] = "";
    struct curves c;
    json_array_foreach(names, i, name) total +=
        3 *
        json_array_size(json_object_get(
            json_object_get(
                json_object_get(json_object_get(by_kv, json_string_value(name)), "series"), series),
            "x"));
    if (!take(page, &c, total)) return;
    double *at = c.number;
    json_array_foreach(names, i, name) {
        const char *kv = json_string_value(name);
        const json_t *one =
            json_object_get(json_object_get(json_object_get(by_kv, kv), "series"), series);
        size_t n = numbers_of(json_object_get(one, "x"), at, 1);
        if (n == 0 || c.n == CURVES_MOST) continue;
        const json_t *error = json_object_get(one, "stderr");
        struct lk_curve curve = {.name = short_name(kv),
                                 .x = at,
                                 .y = at + n,
                                 .n = n,
                                 .colour = colour_of(names, kv),
                                 .mark = n > 40 ? LK_MARK_NONE : mark_of(kv),
                                 .line = true};
        numbers_of(json_object_get(one, "y"), at + n, 1);
        if (json_array_size(error) == n)
            numbers_of(error, at + 2 * n, 1.96), curve.error = at + 2 * n;
        at += 3 * n;
        if (lk_page_is_full(kv) && all_zero(curve.y, n))
            continue; /* the full cache does not differ from itself */
        snprintf(x_label, sizeof x_label, "%.70s", lk_page_text(one, "x_label"));
        snprintf(y_label, sizeof y_label, "%.70s", lk_page_text(one, "y_label"));
        c.curve[c.n++] = curve;
    }
    bool log = wants_log(&c);
    if (log) snprintf(y_label + strlen(y_label), sizeof y_label - strlen(y_label), ", log");
    snprintf(caption, sizeof caption, "%s: %s", task, lk_page_name(buf, sizeof buf, series));
    if (c.n)
        lk_page_plot(page, caption, NULL,
                     (struct lk_plot){.x = {.label = x_label},
                                      .y = {.label = y_label, .log = log, .zero = true},
                                      .curve = c.curve,
                                      .n_curve = c.n});
    give(page, &c);
}

/* ---- heat maps ---- */

/* Values of all recipes' maps of one name: their range, which the maps share. */
static void shared_range(const json_t *by_kv, const char *name, double *least, double *most) {
    const char *kv;
    json_t *result, *row, *value;
    size_t i, k;
    *least = INFINITY;
    *most = -INFINITY;
    json_object_foreach((json_t *)by_kv, kv, result) json_array_foreach(
        json_object_get(json_object_get(json_object_get(result, "heat"), name), "z"), i, row)
        json_array_foreach(row, k, value) {
        double v = lk_page_number(value);
        if (!isfinite(v)) continue;
        *least = fmin(*least, v);
        *most = fmax(*most, v);
    }
    if (*least >= 0 && *most <= 1) *least = 0, *most = 1; /* a share */
}

/* Names of a map's columns or rows: numbers or texts. text: [n][LK_SVG_NUMBER] behind at [n]. */
static void axis_names(const json_t *axis, const char **at, char (*text)[LK_SVG_NUMBER]) {
    size_t i;
    json_t *value;
    json_array_foreach((json_t *)axis, i, value) {
        const char *given = json_string_value(value);
        at[i] = given ? given : lk_svg_number(text[i], lk_page_number(value));
    }
}

static void one_heat(struct lk_page *page, const char *kv, const json_t *map, double least,
                     double most) {
    const json_t *x = json_object_get(map, "x"), *y = json_object_get(map, "y");
    size_t n_x = json_array_size(x), n_y = json_array_size(y), i;
    if (n_x == 0 || n_y == 0) return;
    size_t names = (n_x + n_y) * (sizeof(char *) + LK_SVG_NUMBER),
           size = names + n_x * n_y * sizeof(double);
    double *z = lk_alloc(&page->ledger, LK_FOR_OTHER, size);
    page->failed |= !z;
    if (!z) return;
    const char **at = (const char **)(z + n_x * n_y);
    char(*text)[LK_SVG_NUMBER] = (char(*)[LK_SVG_NUMBER])(at + n_x + n_y);
    json_t *row;
    axis_names(x, at, text);
    axis_names(y, at + n_x, text + n_x);
    json_array_foreach(json_object_get(map, "z"), i, row) numbers_of(row, z + i * n_x, 1);
    lk_page_put(page, "<figure><figcaption>");
    lk_page_say(page, kv);
    lk_page_put(page, "</figcaption>");
    lk_svg_heat(page->out, &(struct lk_heat){.title = kv,
                                             .x_label = "",
                                             .y_label = "",
                                             .x = at,
                                             .y = at + n_x,
                                             .n_x = n_x,
                                             .n_y = n_y,
                                             .z = z,
                                             .least = least,
                                             .most = most,
                                             .numbers = true,
                                             .width = 268});
    lk_page_put(page, "</figure>\n");
    lk_release(&page->ledger, LK_FOR_OTHER, z, size);
}

/* What maps of one name share: their axes and colours. */
static void heat_key(struct lk_page *page, const json_t *map, double least, double most) {
    lk_page_put(page, "<div class=\"key soft small\"><span>");
    lk_page_say(page, lk_page_text(map, "y_label"));
    lk_page_put(page, " by ");
    lk_page_say(page, lk_page_text(map, "x_label"));
    lk_page_put(page, "</span>");
    lk_svg_scale(page->out, least, most);
    lk_page_put(page, "</div>\n<div class=\"heats\">\n");
}

static void heat_plots(struct lk_page *page, const json_t *group, const char *task,
                       const json_t *by_kv, const char *name) {
    char buf[80];
    double least, most;
    size_t i;
    bool first = true;
    json_t *kv;
    shared_range(by_kv, name, &least, &most);
    if (!(least <= most)) return;
    lk_page_put(page, "<h3>");
    lk_page_say(page, task);
    lk_page_put(page, ": ");
    lk_page_say(page, lk_page_name(buf, sizeof buf, name));
    lk_page_put(page, "</h3>\n");
    json_array_foreach(json_object_get(group, "kv"), i, kv) {
        const json_t *map = json_object_get(
            json_object_get(json_object_get(by_kv, json_string_value(kv)), "heat"), name);
        if (map && first) heat_key(page, map, least, most);
        first &= !map;
        if (map) one_heat(page, json_string_value(kv), map, least, most);
    }
    lk_page_put(page, "</div>\n");
}

/* ---- all of a group ---- */

/* Names that any recipe's `part` ("series", "heat") has, as keys of an object; or NULL. */
static json_t *names_in(const json_t *by_kv, const char *part) {
    const char *kv, *name;
    json_t *result, *one, *names = json_object();
    json_object_foreach((json_t *)by_kv, kv, result)
        json_object_foreach(json_object_get(result, part), name, one)
            json_object_set_new(names, name, json_true());
    return names;
}

void lk_page_group_plots(struct lk_page *page, const json_t *group) {
    const char *task, *name;
    json_t *by_kv, *one, *tasks = json_object_get(group, "tasks");
    lk_page_put(page, "<div class=\"plots\">\n");
    json_object_foreach(tasks, task, by_kv) {
        const char *chief = lk_page_chief(by_kv);
        if (chief) against_bits(page, group, task, by_kv, chief);
        json_t *names = names_in(by_kv, "series");
        json_object_foreach(names, name, one) series_plot(page, group, task, by_kv, name);
        json_decref(names);
    }
    lk_page_put(page, "</div>\n");
    json_object_foreach(tasks, task, by_kv) {
        json_t *names = names_in(by_kv, "heat");
        json_object_foreach(names, name, one) heat_plots(page, group, task, by_kv, name);
        json_decref(names);
    }
}

/* ---- speed ---- */

/* Names of a bench's recipes in order of appearance; owned. */
static json_t *bench_names(const json_t *rows) {
    json_t *names = json_array(), *row, *name;
    size_t i, k;
    json_array_foreach((json_t *)rows, i, row) {
        bool known = false;
        json_array_foreach(names, k, name) known |=
            strcmp(json_string_value(name), lk_page_text(row, "kv")) == 0;
        if (!known) json_array_append_new(names, json_string(lk_page_text(row, "kv")));
    }
    return names;
}

static void bench_plot(struct lk_page *page, const json_t *rows, const json_t *names,
                       const char *field, const char *caption, const char *label) {
    size_t n_row = json_array_size(rows), i, k;
    json_t *name, *row;
    struct curves c;
    bool any = false;
    if (!take(page, &c, 2 * n_row)) return;
    double *at = c.number;
    json_array_foreach((json_t *)names, i, name) {
        const char *kv = json_string_value(name);
        size_t n = 0;
        double *x = at, *y = at + n_row; /* x in the first half of the numbers, y in the second */
        json_array_foreach((json_t *)rows, k, row) {
            if (strcmp(lk_page_text(row, "kv"), kv) != 0) continue;
            x[n] = lk_page_number(json_object_get(row, "depth"));
            y[n] = lk_page_number(json_object_get(row, field));
            any |= isfinite(y[n]);
            n++;
        }
        at += n;
        if (c.n < CURVES_MOST)
            c.curve[c.n++] = (struct lk_curve){.name = short_name(kv),
                                               .x = x,
                                               .y = y,
                                               .n = n,
                                               .colour = colour_of(names, kv),
                                               .mark = mark_of(kv),
                                               .line = true};
    }
    if (any)
        lk_page_plot(page, caption, NULL,
                     (struct lk_plot){.x = {.label = "tokens in the cache"},
                                      .y = {.label = label, .zero = true},
                                      .curve = c.curve,
                                      .n_curve = c.n});
    give(page, &c);
}

void lk_page_bench_plots(struct lk_page *page, const json_t *bench) {
    const json_t *rows = json_object_get(bench, "results");
    json_t *names = bench_names(rows);
    lk_page_put(page, "<div class=\"plots\">\n");
    bench_plot(page, rows, names, "decode_tps", "Decoding against depth", "tokens/s");
    bench_plot(page, rows, names, "prefill_tps", "Reading a prompt against depth", "tokens/s");
    lk_page_put(page, "</div>\n");
    json_decref(names);
}
