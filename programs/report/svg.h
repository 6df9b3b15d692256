/* Plots as SVG. They are written by hand because a page must be self-contained, readable without
 * JavaScript and printable, which uPlot, plotly or matplotlib give only with a large dependency or
 * not at all, and Debian 12 has no small plotting library for it.
 *
 *   lk_svg_plot   curves and points over two linear or logarithmic axes
 *   lk_svg_heat   heat map with its color scale
 *
 * Sizes are in pixels; a page may scale a plot a little. Colors are those of lk_svg_style, which
 * every document contains once, and follow the reader's choice of a light or dark page. Pointing at
 * a mark or a cell shows its name and value. */
#ifndef LK_REPORT_SVG_H
#define LK_REPORT_SVG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* CSS for the classes and colors of plots, without <style>. */
extern const char lk_svg_style[];

/* A number in few characters: "0.012", "3.4e-5", "12k". buf: [LK_SVG_NUMBER]. Returns buf. */
enum { LK_SVG_NUMBER = 32 };
const char *lk_svg_number(char *buf, double value);

struct lk_axis {
    const char *label;
    bool log;       /* values <= 0 lie on the edge */
    bool from_zero; /* a linear axis of positive values starts at 0 */
};

/* error: half a confidence interval of y; no bar unless it is > 0. */
struct lk_point {
    double x, y, error;
};

struct lk_curve {
    const char *name; /* drawn at the line's end or next to the points; NULL: not drawn */
    const struct lk_point *point; /* [n]; skipped if x or y is not finite */
    size_t n;
    int color; /* >= 0: cycles, dashed from 8 on; < 0: a reference, gray, dashed, hollow squares */
    bool line, marks;
};

struct lk_plot {
    const char *title; /* for screen readers */
    int width, height;
    struct lk_axis x, y;
    const struct lk_curve *curve;
    size_t n_curve;
};

void lk_svg_plot(FILE *out, const struct lk_plot *plot);

struct lk_heat {
    const char *title, *x_label, *y_label; /* title: for screen readers */
    char (*x)[LK_SVG_NUMBER];              /* [n_x] names of columns */
    char (*y)[LK_SVG_NUMBER];              /* [n_y] names of rows */
    size_t n_x, n_y;                       /* > 0 */
    const double *z;                       /* [n_y][n_x]; not finite: an empty cell */
    bool log;                              /* colors follow log(z) */
    double min, max;                       /* range of linear colors; equal: from z */
    int width;
};

void lk_svg_heat(FILE *out, const struct lk_heat *heat);

/* The height of a heat map with n_y rows. */
int lk_svg_heat_height(size_t n_y);

#endif
