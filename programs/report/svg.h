/* SVG: plots written to a file as they are made.
 *
 *   lk_svg_plot   curves and points over two axes, linear or logarithmic
 *   lk_svg_heat   a heat map
 *   lk_svg_scale  what a heat map's colours mean
 *
 * Letters have their size at a plot's own width in pixels. A page may scale it a little. Colours come from lk_svg_style, which a page or a picture contains once; they follow the
 * reader's choice of a light or dark page. What a mark stands for shows when the pointer rests on it. */
#ifndef LK_REPORT_SVG_H
#define LK_REPORT_SVG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Text as HTML and XML want it; what XML cannot hold becomes U+FFFD. */
void lk_svg_escape(FILE *out, const char *text);

/* The rules for the classes that plots use, without <style>. */
extern const char lk_svg_style[];

/* Colours of curves; curves beyond them begin again, dashed. */
enum { LK_SVG_COLOURS = 8 };

struct lk_axis {
    const char *label;
    bool log;           /* values <= 0 lie on the edge */
    double least, most; /* equal: chosen from the data; a linear axis begins at 0 where `zero` */
    bool zero;
};

enum lk_mark { LK_MARK_NONE, LK_MARK_DISC, LK_MARK_SQUARE };

struct lk_curve {
    const char *name;    /* beside its mark or at its end, and in what the pointer shows */
    const double *x, *y; /* [n]; a point with a value that is not finite is left out */
    const double *error; /* [n] half a confidence interval of y, or NULL */
    size_t n;
    int colour; /* any number >= 0; < 0: grey */
    enum lk_mark mark;
    bool line;
    bool nameless; /* no name is drawn */
};

struct lk_plot {
    const char *title; /* for readers who cannot see it */
    int width, height;
    struct lk_axis x, y;
    const struct lk_curve *curve;
    size_t n_curve;
};

void lk_svg_plot(FILE *out, const struct lk_plot *plot);

struct lk_heat {
    const char *title, *x_label, *y_label; /* may be empty */
    const char *const *x, *const *y;       /* [n_x], [n_y] names of columns and rows */
    size_t n_x, n_y;
    const double *z;    /* [n_y][n_x]; not finite: an empty cell */
    double least, most; /* of the colours; equal: from the data */
    bool log;           /* of the colours */
    bool numbers;       /* write the values into cells, where there is room */
    bool scale;         /* draw what the colours mean, and x_label, below */
    int width;
};

void lk_svg_heat(FILE *out, const struct lk_heat *heat);

/* Height that lk_svg_heat takes. */
int lk_svg_heat_height(const struct lk_heat *heat);

/* The scale of maps that share one range of colours, as a small picture. */
void lk_svg_scale(FILE *out, double least, double most);

/* A number in few characters: "0.012", "3.4e-05", "12k". buf: [LK_SVG_NUMBER]. */
enum { LK_SVG_NUMBER = 32 };
const char *lk_svg_number(char *buf, double value);

/* Columns that a text takes, and that text cut to `most` columns with an ellipsis. buf: [cap]. */
int lk_svg_columns(const char *text);
const char *lk_svg_cut(char *buf, size_t cap, const char *text, int most);

#endif
