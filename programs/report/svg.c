/* Plots and heat maps as SVG. */
#include "report/svg.h"

#include "report/html.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char lk_svg_style[] =
    ":root{color-scheme:light dark;--page:#ffffff;--ink:#1f2328;--soft:#59636e;--grid:#e4e7eb;"
    "--box:#f6f8fa;--edge:#d1d9e0;--c8:#6e7781;--c0:#2f6fdb;--c1:#c2571a;--c2:#1a8a5f;"
    "--c3:#b3327f;--c4:#7a4fd0;--c5:#8a6d00;--c6:#0d8298;--c7:#c23434}"
    "@media(prefers-color-scheme:dark){"
    ":root{--page:#0d1117;--ink:#e6edf3;--soft:#9aa4af;--grid:#262c34;"
    "--box:#161b22;--edge:#30363d;--c8:#9aa4af;--c0:#6ea8ff;--c1:#f0954f;--c2:#4cc38a;"
    "--c3:#ee7fbf;--c4:#b392f0;--c5:#d9b93b;--c6:#4cc9dc;--c7:#ff8078}}"
    "svg.plot{display:block;font:12px system-ui,-apple-system,\"Segoe UI\",sans-serif;"
    "fill:var(--ink)}"
    ".plot .soft{fill:var(--soft)}.plot .end{text-anchor:end}.plot .mid{text-anchor:middle}"
    ".plot .small{font-size:11px}"
    ".plot .grid{stroke:var(--grid)}.plot .edge{stroke:var(--edge);fill:none}"
    ".plot .line{stroke:var(--c);fill:none;stroke-width:1.7;stroke-linejoin:round}"
    ".plot .dash{stroke-dasharray:5 3}.plot .bar{stroke:var(--c);stroke-width:1.2;opacity:.4}"
    ".plot .lead{stroke:var(--c);stroke-width:.7;opacity:.6}.plot .f{fill:var(--c)}"
    ".plot .hollow{stroke:var(--c);fill:var(--page);stroke-width:1.8}.plot .none{fill:var(--box)}"
    ".plot .n{pointer-events:none;text-anchor:middle;font-size:11px;fill:#fff}"
    ".plot .n.dark{fill:#101418}";

/* N_COLORS: --c0 to --c7; --c8 is for references. */
enum { N_COLORS = 8, MAX_TICKS = 24, MAX_NAMES = 64, MAX_BOXES = 512 };

/* LETTER and LINE: width of a letter and height of a line, in pixels. The others are columns of a
 * name at a line's end, next to a point, and at a row or column of a heat map. */
enum { LETTER = 7, LINE = 15 };
enum { MAX_END_NAME = 11, MAX_POINT_NAME = 20, MAX_ROW_NAME = 5, MAX_COLUMN_NAME = 14 };

const char *lk_svg_number(char *buf, double value) {
    double size = fabs(value);
    bool fixed = size >= 1000 && size < 1e15;
    int exponent = size > 0 ? (int)floor(log10(size) + 1e-9) : 0;
    if (!isfinite(value))
        snprintf(buf, LK_SVG_NUMBER, "\xe2\x80\x93");
    else if (exponent < -3)
        snprintf(buf, LK_SVG_NUMBER, "%.3ge%d", value / pow(10, exponent), exponent);
    else if (fixed && size >= 10000 && fmod(size, 100) == 0)
        snprintf(buf, LK_SVG_NUMBER, "%gk", value / 1000);
    else
        snprintf(buf, LK_SVG_NUMBER, fixed ? "%.0f" : "%.3g", value);
    return buf;
}

/* ---- text ---- */

/* Columns of a UTF-8 text, at most `max`. */
static int count_columns(const char *text, int max) {
    int n = 0;
    for (; *text && n < max; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static void draw_text(FILE *out, const char *class, double x, double y, const char *text) {
    fprintf(out, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">", class, x, y);
    lk_html_text(out, "", text, "</text>");
}

/* Like draw_text, but a text of more than `max` columns ends in an ellipsis. */
static void draw_name(FILE *out, const char *class, double x, double y, const char *name, int max) {
    char cut[4 * MAX_POINT_NAME + 4];
    size_t len = 0;
    for (int n = 0; name[len] && len + 4 < sizeof cut; len++)
        if (((unsigned char)name[len] & 0xc0) != 0x80 && ++n > max - 1) break;
    snprintf(cut, sizeof cut, "%.*s\xe2\x80\xa6", (int)len, name);
    draw_text(out, class, x, y, count_columns(name, max + 1) > max ? cut : name);
}

static void open_svg(FILE *out, int width, int height, const char *title) {
    fprintf(out,
            "<svg class=\"plot\" xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" role=\"img\"",
            width, height, width, height);
    lk_html_text(out, " aria-label=\"", title, "\">");
}

static void open_curve(FILE *out, const struct lk_curve *c) {
    fprintf(out, "<g style=\"--c:var(--c%d)\">", c->color < 0 ? N_COLORS : c->color % N_COLORS);
    if (c->name) lk_html_text(out, "<title>", c->name, "</title>");
}

/* ---- scales ---- */

/* Maps values to from..to: pixels of an axis, or 0..1 of a color scale. min and max are logarithms
 * if `log` is set. */
struct scale {
    bool log;
    double min, max, from, to;
};

/* Widen the scale to include v, if the scale can show v. */
static void include_value(struct scale *s, double v) {
    double t = s->log ? log(v) : v;
    if (!(fabs(t) < 1e300)) return;
    s->min = fmin(s->min, t);
    s->max = fmax(s->max, t);
}

/* Turn the range of the values into the scale's: with a share of it added at both ends except at 0.
 * No value, or a single one, becomes a range around it. */
static void pad_scale(struct scale *s, double share, bool from_zero) {
    if (!(s->min <= s->max)) s->min = s->max = 0;
    if (from_zero && !s->log && s->min > 0) s->min = 0;
    double range = s->max - s->min,
           single = s->log        ? log(1.5)
                    : s->max != 0 ? fabs(s->max) / 2
                                  : 1,
           pad = range > fabs(s->max) * 1e-6 ? range * share : single;
    if (s->log || s->min != 0) s->min -= pad;
    s->max += pad;
}

/* The place of v. Values outside of the scale lie on its edge. */
static double place(const struct scale *s, double v) {
    double share = ((s->log ? log(v) : v) - s->min) / (s->max - s->min);
    return s->from + (s->to - s->from) * fmin(fmax(share, 0), 1);
}

/* Round values on the scale, `distance` pixels apart or more. Returns their number.
 * tick: [MAX_TICKS] */
static int find_ticks(const struct scale *s, double distance, double *tick) {
    static const double digit[] = {1, 1.5, 2, 3, 5, 7};
    double wanted = fmax(fabs(s->to - s->from) / distance, 1), range = s->max - s->min;
    int n = 0;
    if (s->log && range > log(3)) {
        double decades = range / log(10);
        int stride = decades > 2.5 ? 6 : decades > 1.3 ? 2 : 1, every = (int)ceil(decades / wanted);
        for (int e = (int)floor(s->min / log(10)); e <= s->max / log(10); e++) {
            for (int i = 0; i < 6 && e % every == 0; i += stride) {
                double v = digit[i] * pow(10, e), t = log(v);
                if (t >= s->min && t <= s->max && n < MAX_TICKS) tick[n++] = v;
            }
        }
        return n;
    }
    double min = s->log ? exp(s->min) : s->min, max = s->log ? exp(s->max) : s->max,
           rough = (max - min) / wanted, power = pow(10, floor(log10(rough))),
           share = rough / power,
           step = power * (share > 5   ? 10
                           : share > 2 ? 5
                           : share > 1 ? 2
                                       : 1);
    for (double i = ceil(min / step); i * step <= max && n < MAX_TICKS; i++)
        tick[n++] = i * step + 0.0;
    return n;
}

/* ---- names that do not overlap ---- */

struct box {
    double x, y, w, h;
};

/* The drawing area is x.from to x.to and, downward, y.to to y.from. */
struct drawing {
    FILE *out;
    struct scale x, y;
    struct box taken[MAX_BOXES]; /* marks and names of points */
    int n_taken;
};

static bool is_drawable(const struct lk_point *p) { return isfinite(p->x) && isfinite(p->y); }

static void draw_lead(FILE *out, double x0, double y0, double x1, double y1) {
    fprintf(out, "<path class=\"lead\" d=\"M%.1f %.1fL%.1f %.1f\"/>", x0, y0, x1, y1);
}

static bool is_free(const struct drawing *d, const struct box *b) {
    if (b->x < d->x.from - 2 || b->x + b->w > d->x.to + 2 || b->y < d->y.to - 2 ||
        b->y + b->h > d->y.from)
        return false;
    for (int i = 0; i < d->n_taken; i++) {
        const struct box *t = &d->taken[i];
        if (b->x < t->x + t->w && t->x < b->x + b->w && b->y < t->y + t->h && t->y < b->y + b->h)
            return false;
    }
    return true;
}

/* Draw a name as near to the point as there is room. Without room, draw nothing. */
static void name_point(struct drawing *d, const struct lk_curve *c, const struct lk_point *p) {
    static const int side[][2] = {{1, 0},  {-1, 0}, {0, -1},  {0, 1},
                                  {1, -1}, {1, 1},  {-1, -1}, {-1, 1}};
    double x = place(&d->x, p->x), y = place(&d->y, p->y);
    struct box b = {.w = count_columns(c->name, MAX_POINT_NAME) * LETTER, .h = LINE};
    for (double distance = 8; distance < 90 && d->n_taken < MAX_BOXES; distance += 9) {
        for (int i = 0; i < 8; i++) {
            double shift = side[i][0] && side[i][1] ? 0.7 * distance : distance;
            b.x = x + side[i][0] * shift - b.w * (1 - side[i][0]) / 2;
            b.y = y + side[i][1] * shift - b.h * (1 - side[i][1]) / 2;
            if (!is_free(d, &b)) continue;
            d->taken[d->n_taken++] = b;
            open_curve(d->out, c);
            if (distance > 20)
                draw_lead(d->out, x, y, fmin(fmax(x, b.x), b.x + b.w),
                          fmin(fmax(y, b.y), b.y + b.h));
            draw_name(d->out, "f", b.x, b.y + 11, c->name, MAX_POINT_NAME);
            fputs("</g>", d->out);
            return;
        }
    }
}

struct line_end {
    const struct lk_curve *curve;
    double x, y, name_y;
};

static int by_height(const void *a, const void *b) {
    const struct line_end *p = a, *q = b;
    return (p->y > q->y) - (p->y < q->y);
}

/* Draw the names of lines in the right margin, as near to the height of their ends as they fit. */
static void name_lines(const struct drawing *d, const struct lk_plot *plot) {
    struct line_end end[MAX_NAMES];
    int n = 0;
    for (size_t k = 0; k < plot->n_curve && n < MAX_NAMES; k++) {
        const struct lk_curve *c = &plot->curve[k];
        size_t last = c->line && c->name ? c->n : 0;
        while (last > 0 && !is_drawable(&c->point[last - 1])) last--;
        if (last == 0) continue;
        double x = place(&d->x, c->point[last - 1].x), y = place(&d->y, c->point[last - 1].y);
        end[n++] = (struct line_end){c, x, y, y};
    }
    qsort(end, n, sizeof *end, by_height);
    double step = fmin(LINE - 1, (d->y.from - d->y.to + LINE) / (n ? n : 1));
    for (int i = 1; i < n; i++) end[i].name_y = fmax(end[i].name_y, end[i - 1].name_y + step);
    for (int i = n - 1; i >= 0; i--)
        end[i].name_y = fmin(end[i].name_y, i == n - 1 ? d->y.from : end[i + 1].name_y - step);
    for (int i = 0; i < n; i++) {
        open_curve(d->out, end[i].curve);
        draw_lead(d->out, end[i].x + 4, end[i].y, d->x.to + 14, end[i].name_y);
        draw_name(d->out, "f", d->x.to + 17, end[i].name_y + 4, end[i].curve->name, MAX_END_NAME);
        fputs("</g>", d->out);
    }
}

/* ---- plots ---- */

/* Place the axes: what they show, and where. */
static void set_scales(struct drawing *d, const struct lk_plot *plot) {
    double name_columns = 0;
    d->x = (struct scale){plot->x.log, INFINITY, -INFINITY, 46, plot->width - 12};
    d->y = (struct scale){plot->y.log, INFINITY, -INFINITY, plot->height - 42, 24};
    for (size_t k = 0; k < plot->n_curve; k++) {
        const struct lk_curve *c = &plot->curve[k];
        if (c->line && c->name)
            name_columns = fmax(name_columns, count_columns(c->name, MAX_END_NAME));
        for (size_t i = 0; i < c->n; i++) {
            const struct lk_point *p = &c->point[i];
            if (!is_drawable(p)) continue;
            include_value(&d->x, p->x);
            include_value(&d->y, p->y);
            if (!(c->marks && p->error > 0)) continue;
            include_value(&d->y, p->y + p->error);
            if (!plot->y.log) include_value(&d->y, p->y - p->error); /* may be <= 0 if log */
        }
    }
    if (name_columns > 0) d->x.to -= 8 + name_columns * LETTER;
    pad_scale(&d->x, 0.05, plot->x.from_zero);
    pad_scale(&d->y, 0.05, plot->y.from_zero);
}

static void draw_axes(const struct drawing *d, const struct lk_plot *plot) {
    double tick[MAX_TICKS], left = d->x.from, right = d->x.to, top = d->y.to, bottom = d->y.from;
    char number[LK_SVG_NUMBER];
    int n = find_ticks(&d->y, 36, tick);
    for (int i = 0; i < n; i++) {
        double y = place(&d->y, tick[i]);
        fprintf(d->out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>", left, y, right);
        draw_text(d->out, "soft end", left - 6, y + 4, lk_svg_number(number, tick[i]));
    }
    n = find_ticks(&d->x, 55, tick);
    for (int i = 0; i < n; i++) {
        double x = place(&d->x, tick[i]);
        fprintf(d->out, "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>", x, top, bottom);
        draw_text(d->out, "soft mid", x, bottom + 17, lk_svg_number(number, tick[i]));
    }
    fprintf(d->out, "<path class=\"edge\" d=\"M%.1f %.1fV%.1fH%.1f\"/>", left, top, bottom, right);
    draw_text(d->out, "soft end", right, bottom + 34, plot->x.label);
    draw_text(d->out, "soft", 2, 12, plot->y.label);
}

static void draw_line(const struct drawing *d, const struct lk_curve *c) {
    bool dashed = c->color < 0 || c->color >= N_COLORS;
    const char *command = "M";
    fprintf(d->out, "<path class=\"line%s\" d=\"", dashed ? " dash" : "");
    for (size_t i = 0; i < c->n; i++) {
        const struct lk_point *p = &c->point[i];
        if (!is_drawable(p)) continue;
        fprintf(d->out, "%s%.1f %.1f", command, place(&d->x, p->x), place(&d->y, p->y));
        command = "L";
    }
    fputs("\"/>", d->out);
}

/* Draw the mark of a point, and its interval. */
static void draw_mark(struct drawing *d, const struct lk_curve *c, const struct lk_point *p) {
    char a[LK_SVG_NUMBER], b[LK_SVG_NUMBER];
    double x = place(&d->x, p->x), y = place(&d->y, p->y), radius = c->line ? 2 : 4.5;
    if (p->error > 0)
        fprintf(d->out, "<path class=\"bar\" d=\"M%.1f %.1fV%.1f\"/>", x,
                place(&d->y, p->y - p->error), place(&d->y, p->y + p->error));
    if (c->color < 0)
        fprintf(d->out, "<rect class=\"hollow\" x=\"%.1f\" y=\"%.1f\" width=\"%g\" height=\"%g\">",
                x - radius, y - radius, 2 * radius, 2 * radius);
    else
        fprintf(d->out, "<circle class=\"f\" cx=\"%.1f\" cy=\"%.1f\" r=\"%g\">", x, y, radius);
    fputs("<title>", d->out);
    if (c->name) lk_html_text(d->out, "", c->name, " at ");
    fprintf(d->out, "%s: %s", lk_svg_number(a, p->x), lk_svg_number(b, p->y));
    if (p->error > 0) fprintf(d->out, " \xc2\xb1 %s", lk_svg_number(a, p->error));
    fprintf(d->out, "</title></%s>", c->color < 0 ? "rect" : "circle");
    if (!c->line && d->n_taken < MAX_BOXES)
        d->taken[d->n_taken++] = (struct box){x - 6, y - 6, 12, 12};
}

void lk_svg_plot(FILE *out, const struct lk_plot *plot) {
    struct drawing d = {.out = out};
    set_scales(&d, plot);
    open_svg(out, plot->width, plot->height, plot->title);
    draw_axes(&d, plot);
    for (size_t k = 0; k < plot->n_curve; k++) {
        const struct lk_curve *c = &plot->curve[k];
        open_curve(out, c);
        if (c->line) draw_line(&d, c);
        for (size_t i = 0; i < c->n && c->marks; i++)
            if (is_drawable(&c->point[i])) draw_mark(&d, c, &c->point[i]);
        fputs("</g>", out);
    }
    for (size_t k = 0; k < plot->n_curve; k++) { /* after all marks, which names avoid */
        const struct lk_curve *c = &plot->curve[k];
        for (size_t i = 0; i < c->n && c->name && !c->line; i++)
            if (is_drawable(&c->point[i])) name_point(&d, c, &c->point[i]);
    }
    name_lines(&d, plot);
    fputs("</svg>\n", out);
}

/* ---- heat maps ---- */

enum { HEAT_LEFT = 50, HEAT_TOP = 8, HEAT_BOTTOM = 40, MAX_CELL_WIDTH = 88 };

/* Write a filled rectangle's start tag without its end. The color, from dark violet through teal to
 * yellow, grows brighter with share, 0 to 1. Returns whether text on it must be dark. */
static bool open_cell(FILE *out, double share, const struct box *b) {
    static const double stop[][3] = {
        {62, 20, 94}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {245, 226, 70}};
    int i = share < 1 ? (int)(share * 4) : 3;
    double color[3];
    for (int k = 0; k < 3; k++)
        color[k] = stop[i][k] + (share * 4 - i) * (stop[i + 1][k] - stop[i][k]);
    fprintf(out,
            "<rect fill=\"#%02x%02x%02x\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"",
            (int)color[0], (int)color[1], (int)color[2], b->x, b->y, b->w, b->h);
    return 0.3 * color[0] + 0.6 * color[1] + 0.1 * color[2] > 120;
}

static void draw_cell(FILE *out, const struct lk_heat *heat, const struct scale *colors, size_t row,
                      size_t column, const struct box *b) {
    char number[LK_SVG_NUMBER];
    double z = heat->z[row * heat->n_x + column];
    bool dark_text = false;
    lk_svg_number(number, z);
    if (isfinite(z))
        dark_text = open_cell(out, place(colors, z), b);
    else
        fprintf(out, "<rect class=\"none\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"",
                b->x, b->y, b->w, b->h);
    lk_html_text(out, "><title>", heat->y_label, " ");
    lk_html_text(out, "", heat->y[row], ", ");
    lk_html_text(out, "", heat->x_label, " ");
    lk_html_text(out, "", heat->x[column], ": ");
    fprintf(out, "%s</title></rect>", number);
    if (isfinite(z) && strlen(number) * LETTER <= b->w && b->h >= LINE - 1)
        draw_text(out, dark_text ? "n dark" : "n", b->x + b->w / 2, b->y + b->h / 2 + 4, number);
}

/* The color scale between its two ends, from x on. */
static void draw_colors(FILE *out, const struct scale *s, double x, double y) {
    enum { STEPS = 24, WIDTH = 3 };
    char number[LK_SVG_NUMBER];
    draw_text(out, "soft small", x, y, lk_svg_number(number, s->log ? exp(s->min) : s->min));
    x += 6 * (double)strlen(number) + 4;
    for (int i = 0; i < STEPS; i++) {
        open_cell(out, (i + 0.5) / STEPS, &(struct box){x + i * WIDTH, y - 8, WIDTH + 0.3, 8});
        fputs("/>", out);
    }
    draw_text(out, "soft small", x + STEPS * WIDTH + 4, y,
              lk_svg_number(number, s->log ? exp(s->max) : s->max));
}

int lk_svg_heat_height(size_t n_y) {
    return HEAT_TOP + HEAT_BOTTOM + (int)(n_y * fmin(fmax(320.0 / n_y, 12), 26));
}

void lk_svg_heat(FILE *out, const struct lk_heat *heat) {
    struct scale colors = {heat->log, INFINITY, -INFINITY, 0, 1};
    int height = lk_svg_heat_height(heat->n_y);
    double left = HEAT_LEFT, bottom = height - HEAT_BOTTOM, h = (bottom - HEAT_TOP) / heat->n_y,
           w = fmin((heat->width - left - 4) / heat->n_x, MAX_CELL_WIDTH), name_end = 0;
    for (size_t i = 0; i < heat->n_x * heat->n_y; i++) include_value(&colors, heat->z[i]);
    if (heat->min < heat->max) colors.min = heat->min, colors.max = heat->max;
    pad_scale(&colors, 0, false);
    open_svg(out, heat->width, height, heat->title);
    for (size_t row = 0; row < heat->n_y; row++) {
        double y = HEAT_TOP + h * row;
        draw_name(out, "soft end small", left - 5, y + h / 2 + 4, heat->y[row], MAX_ROW_NAME);
        for (size_t column = 0; column < heat->n_x; column++)
            draw_cell(out, heat, &colors, row, column,
                      &(struct box){left + w * column, y, w - 1, h - 1});
    }
    for (size_t column = 0; column < heat->n_x; column++) { /* names that have room */
        double x = left + w * (column + 0.5),
               half = count_columns(heat->x[column], MAX_COLUMN_NAME) * 3.2 + 2;
        if (x - half < name_end || x + half > heat->width + 6) continue;
        name_end = x + half;
        draw_name(out, "soft mid small", x, bottom + 14, heat->x[column], MAX_COLUMN_NAME);
    }
    fprintf(out, "<g transform=\"translate(11 %.1f) rotate(-90)\">", (HEAT_TOP + bottom) / 2);
    draw_text(out, "soft mid", 0, 0, heat->y_label);
    fputs("</g>", out);
    draw_colors(out, &colors, left, bottom + 33);
    draw_text(out, "soft end", left + w * heat->n_x, bottom + 33, heat->x_label);
    fputs("</svg>\n", out);
}
