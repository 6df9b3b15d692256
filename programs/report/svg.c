#include "report/svg.h"

#include <math.h>
#include <string.h>

const char lk_svg_style[] =
    ":root{color-scheme:light "
    "dark;--page:#ffffff;--ink:#1f2328;--soft:#59636e;--grid:#e4e7eb;--box:#f6f8fa;--edge:#d1d9e0;"
    "--c0:#2f6fdb;--c1:#c2571a;--c2:#1a8a5f;--c3:#b3327f;--c4:#7a4fd0;--c5:#8a6d00;--c6:#0d8298;--"
    "c7:#c23434;--grey:#6e7781}"
    "@media(prefers-color-scheme:dark){:root{--page:#0d1117;--ink:#e6edf3;--soft:#9aa4af;--grid:#"
    "262c34;--box:#161b22;--edge:#30363d;"
    "--c0:#6ea8ff;--c1:#f0954f;--c2:#4cc38a;--c3:#ee7fbf;--c4:#b392f0;--c5:#d9b93b;--c6:#4cc9dc;--"
    "c7:#ff8078;--grey:#9aa4af}}"
    "svg.plot{display:block;font:12px system-ui,-apple-system,\"Segoe "
    "UI\",sans-serif;fill:var(--ink)}"
    ".plot .grid{stroke:var(--grid);fill:none}.plot .edge{stroke:var(--edge);fill:none}.plot "
    ".soft{fill:var(--soft)}"
    ".plot .lead{stroke:var(--soft);stroke-width:.7;opacity:.6;fill:none}.plot "
    ".line{fill:none;stroke-width:1.7;stroke-linejoin:round}"
    ".plot .bar{stroke-width:1.2;opacity:.4}.plot .hollow{fill:var(--page);stroke-width:1.8}.plot "
    ".dash{stroke-dasharray:5 3}"
    ".plot .wide{stroke:transparent;fill:none;stroke-width:9}.plot .none{fill:var(--box)}"
    ".plot .n{pointer-events:none;text-anchor:middle;font-size:11px;fill:#fff}.plot "
    ".n.b{fill:#101418}.plot .t{text-anchor:end}.plot .m{text-anchor:middle}"
    ".plot g.c0{--c:var(--c0)}.plot g.c1{--c:var(--c1)}.plot g.c2{--c:var(--c2)}.plot "
    "g.c3{--c:var(--c3)}"
    ".plot g.c4{--c:var(--c4)}.plot g.c5{--c:var(--c5)}.plot g.c6{--c:var(--c6)}.plot "
    "g.c7{--c:var(--c7)}.plot g.cg{--c:var(--grey)}"
    ".plot .s{stroke:var(--c)}.plot .f{fill:var(--c)}";

void lk_svg_escape(FILE *out, const char *text) {
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '&')
            fputs("&amp;", out);
        else if (*c == '<')
            fputs("&lt;", out);
        else if (*c == '>')
            fputs("&gt;", out);
        else if (*c == '"')
            fputs("&quot;", out);
        else if (*c == '\'')
            fputs("&#39;", out);
        else if ((*c < ' ' && *c != '\n' && *c != '\t') || *c == 127)
            fputs("\xef\xbf\xbd", out);
        else
            fputc(*c, out);
    }
}

const char *lk_svg_number(char *buf, double value) {
    double size = fabs(value);
    if (!isfinite(value))
        snprintf(buf, LK_SVG_NUMBER, "\xe2\x80\x93");
    else if (size >= 1e15 || (size > 0 && size < 1e-3))
        snprintf(buf, LK_SVG_NUMBER, "%.2g", value);
    else if (size >= 10000 && fmod(size, 100) == 0)
        snprintf(buf, LK_SVG_NUMBER, "%gk", value / 1000);
    else if (size >= 1000)
        snprintf(buf, LK_SVG_NUMBER, "%.0f", value);
    else
        snprintf(buf, LK_SVG_NUMBER, "%.3g", value);
    return buf;
}

int lk_svg_columns(const char *text) {
    int n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

const char *lk_svg_cut(char *buf, size_t cap, const char *text, int most) {
    if (lk_svg_columns(text) <= most && strlen(text) < cap) return text;
    size_t at = 0;
    for (int n = 0; text[at] && at + 8 < cap; at++) {
        if (((unsigned char)text[at] & 0xc0) != 0x80 && ++n == most) break;
    }
    memcpy(buf, text, at);
    memcpy(buf + at, "\xe2\x80\xa6", 4);
    return buf;
}

/* ---- axes ---- */

enum { TICKS_MOST = 24, COLUMN = 7, LINE = 15 }; /* pixels of a letter, and of a line of them */

/* An axis with its place: value v lies at pixel from + (to - from) * share. */
struct place {
    double least, most, from, to;
    bool log;
};

static double place(const struct place *p, double v) {
    double least = p->least, most = p->most;
    if (p->log) {
        v = v > p->least ? log(v) : log(p->least);
        least = log(least);
        most = log(most);
    }
    double share = (v - least) / (most - least);
    return p->from + (p->to - p->from) * (share < 0 ? 0 : share > 1 ? 1 : share);
}

/* Widen [*least, *most] to v, which a logarithmic axis wants positive. */
static void widen(double v, bool log, double *least, double *most) {
    if (!isfinite(v) || (log && !(v > 0))) return;
    *least = fmin(*least, v);
    *most = fmax(*most, v);
}

/* The smallest and largest value of all curves, intervals included; where there is none, 0 and 0. */
static void extent(const struct lk_plot *plot, bool x, bool log, double *least, double *most) {
    *least = INFINITY;
    *most = -INFINITY;
    for (size_t i = 0; i < plot->n_curve; i++) {
        const struct lk_curve *c = &plot->curve[i];
        for (size_t j = 0; j < c->n; j++) {
            if (!isfinite(c->x[j]) || !isfinite(c->y[j])) continue;
            double error = !x && c->error && c->mark && isfinite(c->error[j]) ? c->error[j] : 0,
                   v = x ? c->x[j] : c->y[j];
            widen(v, log, least, most);
            widen(v + error, log, least, most);
            if (!log)
                widen(v - error, log, least,
                      most); /* on a logarithmic axis the lower end may run out */
        }
    }
    if (!(*least <= *most)) *least = *most = 0;
}

static struct place scale(const struct lk_plot *plot, const struct lk_axis *axis, double from,
                          double to) {
    struct place p = {axis->least, axis->most, from, to, axis->log};
    if (!(p.least < p.most))
        extent(plot, axis == &plot->x, p.log, &p.least, &p.most);
    else
        return p;
    if (p.log) {
        if (!(p.least > 0)) p.least = p.most = 1;
        double room = p.most / p.least > 1.01 ? pow(p.most / p.least, 0.05) : 1.5;
        p.least /= room;
        p.most *= room;
        return p;
    }
    if (axis->zero && p.least > 0) p.least = 0;
    double room = p.most > p.least ? (p.most - p.least) * 0.05 : p.most ? fabs(p.most) * 0.5 : 1;
    if (p.least != 0) p.least -= room;
    p.most += room;
    return p;
}

/* Round values of a linear axis, about `want` of them. tick: [TICKS_MOST]. */
static int linear_ticks(const struct place *p, int want, double *tick) {
    double rough = (p->most - p->least) / want, power = pow(10, floor(log10(rough)));
    double step = power * (rough / power > 5   ? 10
                           : rough / power > 2 ? 5
                           : rough / power > 1 ? 2
                                               : 1);
    int n = 0;
    for (double i = ceil(p->least / step - 1e-9);
         i * step <= p->most + step * 1e-9 && n < TICKS_MOST; i++)
        tick[n++] = i * step;
    return n;
}

/* Powers of ten of a logarithmic axis, with steps between them where there are few. */
static int log_ticks(const struct place *p, int want, double *tick) {
    static const double few[] = {1}, some[] = {1, 2, 5}, many[] = {1, 1.5, 2, 3, 4, 6, 8};
    double decades = log10(p->most / p->least);
    const double *digit = decades > 2.5 ? few : decades > 1.3 ? some : many;
    int n_digit = decades > 2.5 ? 1 : decades > 1.3 ? 3 : 7, n = 0;
    int every = (int)ceil(decades / want);
    for (int e = (int)floor(log10(p->least)); e <= (int)ceil(log10(p->most)); e++) {
        if (n_digit == 1 && every > 1 && e % every != 0) continue;
        for (int i = 0; i < n_digit; i++) {
            double v = digit[i] * pow(10, e);
            if (v >= p->least * (1 - 1e-9) && v <= p->most * (1 + 1e-9) && n < TICKS_MOST)
                tick[n++] = v;
        }
    }
    return n;
}

static void tick_text(FILE *out, double v, bool is_log) {
    char buf[LK_SVG_NUMBER];
    int e = v > 0 ? (int)lround(log10(v)) : 0;
    bool power = is_log && (e <= -3 || e >= 6) && fabs(v / pow(10, e) - 1) < 1e-6;
    if (power)
        fprintf(out, "10<tspan dy=\"-4\" font-size=\"9\">%s%d</tspan>", e < 0 ? "\xe2\x88\x92" : "",
                e < 0 ? -e : e);
    else
        lk_svg_escape(out, lk_svg_number(buf, fabs(v) < 1e-12 ? 0 : v));
}

/* ---- labels that keep out of each other's way ---- */

enum { BOXES_MOST = 512 };

struct box {
    double x, y, w, h;
};

struct drawing {
    FILE *out;
    struct place x, y;
    struct box taken[BOXES_MOST];
    int n_taken;
};

static bool is_free(const struct drawing *d, struct box b) {
    if (b.x < d->x.from - 2 || b.x + b.w > d->x.to + 2 || b.y < d->y.to - 2 ||
        b.y + b.h > d->y.from)
        return false;
    for (int i = 0; i < d->n_taken; i++) {
        const struct box *t = &d->taken[i];
        if (b.x < t->x + t->w && t->x < b.x + b.w && b.y < t->y + t->h && t->y < b.y + b.h)
            return false;
    }
    return true;
}

static void occupy(struct drawing *d, struct box b) {
    if (d->n_taken < BOXES_MOST) d->taken[d->n_taken++] = b;
}

static bool drawable(const struct lk_curve *c, size_t i) {
    return isfinite(c->x[i]) && isfinite(c->y[i]);
}

static void open_group(FILE *out, const struct lk_curve *c) {
    if (c->colour < 0)
        fputs("<g class=\"cg\"><title>", out);
    else
        fprintf(out, "<g class=\"c%d\"><title>", c->colour % LK_SVG_COLOURS);
    lk_svg_escape(out, c->name);
    fputs("</title>", out);
}

/* The name of a point, as near to it as there is room; not at all where there is none. */
static void name_point(struct drawing *d, const struct lk_curve *c, double x, double y) {
    char cut[80];
    const char *name = lk_svg_cut(cut, sizeof cut, c->name, 20);
    struct box b = {.w = lk_svg_columns(name) * COLUMN, .h = LINE};
    for (double far = 8; far < 90; far += 9) {
        const struct box spot[] = {{x + far, y - b.h / 2, b.w, b.h},
                                   {x - far - b.w, y - b.h / 2, b.w, b.h},
                                   {x - b.w / 2, y - far - b.h + 2, b.w, b.h},
                                   {x - b.w / 2, y + far - 3, b.w, b.h},
                                   {x + far * 0.7, y - far * 0.7 - b.h, b.w, b.h},
                                   {x + far * 0.7, y + far * 0.7, b.w, b.h},
                                   {x - far * 0.7 - b.w, y - far * 0.7 - b.h, b.w, b.h},
                                   {x - far * 0.7 - b.w, y + far * 0.7, b.w, b.h}};
        for (size_t i = 0; i < sizeof spot / sizeof spot[0]; i++) {
            if (!is_free(d, spot[i])) continue;
            occupy(d, spot[i]);
            double mid_x = fmin(fmax(x, spot[i].x), spot[i].x + b.w),
                   mid_y = fmin(fmax(y, spot[i].y), spot[i].y + b.h);
            if (far > 20)
                fprintf(d->out, "<path class=\"lead\" d=\"M%.1f %.1fL%.1f %.1f\"/>", x, y, mid_x,
                        mid_y);
            fprintf(d->out, "<text class=\"f\" x=\"%.1f\" y=\"%.1f\">", spot[i].x, spot[i].y + 11);
            lk_svg_escape(d->out, name);
            fputs("</text>", d->out);
            return;
        }
    }
}

/* ---- plots ---- */

static void draw_axes(struct drawing *d, const struct lk_plot *plot) {
    FILE *out = d->out;
    double tick[TICKS_MOST], left = d->x.from, right = d->x.to, top = d->y.to, bottom = d->y.from;
    int want = (int)((bottom - top) / 42),
        n = d->y.log ? log_ticks(&d->y, want, tick) : linear_ticks(&d->y, want, tick);
    for (int i = 0; i < n; i++) {
        double y = place(&d->y, tick[i]);
        fprintf(out,
                "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/><text class=\"soft t\" x=\"%.1f\" "
                "y=\"%.1f\">",
                left, y, right, left - 6, y + 4);
        tick_text(out, tick[i], d->y.log);
        fputs("</text>", out);
    }
    want = (int)((right - left) / 75);
    n = d->x.log ? log_ticks(&d->x, want, tick) : linear_ticks(&d->x, want, tick);
    double last = -1e9;
    for (int i = 0; i < n; i++) {
        double x = place(&d->x, tick[i]);
        fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>", x, top, bottom);
        if (x - last < 26) continue;
        last = x;
        fprintf(out, "<text class=\"soft m\" x=\"%.1f\" y=\"%.1f\">", x, bottom + 17);
        tick_text(out, tick[i], d->x.log);
        fputs("</text>", out);
    }
    fprintf(out, "<path class=\"edge\" d=\"M%.1f %.1fV%.1fH%.1f\"/>", left, top, bottom, right);
    fprintf(out, "<text class=\"soft t\" x=\"%.1f\" y=\"%.1f\">", right, bottom + 34);
    lk_svg_escape(out, plot->x.label);
    fprintf(out, "</text><text class=\"soft\" x=\"2\" y=\"12\">");
    lk_svg_escape(out, plot->y.label);
    fputs("</text>", out);
}

/* A curve's title shows where its line or its name is pointed at. */
static void draw_line(struct drawing *d, const struct lk_curve *c) {
    for (int wide = 0; wide < 1 + !c->mark;
         wide++) { /* the second, which cannot be seen, is easier to point at */
        bool begun = false;
        fprintf(d->out, "<path class=\"%s%s\" d=\"", wide ? "wide" : "line s",
                c->colour >= LK_SVG_COLOURS || c->colour < 0 ? " dash" : "");
        for (size_t i = 0; i < c->n; i++) {
            if (!drawable(c, i)) continue;
            fprintf(d->out, "%s%.1f %.1f", begun ? "L" : "M", place(&d->x, c->x[i]),
                    place(&d->y, c->y[i]));
            begun = true;
        }
        fputs(begun ? "\"/>" : "M0 0\"/>", d->out);
    }
}

static double error_of(const struct lk_curve *c, size_t i) {
    double error = c->error && isfinite(c->error[i]) ? c->error[i] : 0;
    return error > 0 ? error : 0;
}

/* Intervals, all of a curve as one path. */
static void draw_errors(struct drawing *d, const struct lk_curve *c) {
    bool begun = false;
    for (size_t i = 0; i < c->n; i++) {
        double error = error_of(c, i);
        if (error == 0 || !drawable(c, i)) continue;
        fprintf(d->out, "%sM%.1f %.1fV%.1f", begun ? "" : "<path class=\"bar s\" d=\"",
                place(&d->x, c->x[i]), place(&d->y, c->y[i] - error),
                place(&d->y, c->y[i] + error));
        begun = true;
    }
    if (begun) fputs("\"/>", d->out);
}

static void draw_mark(struct drawing *d, const struct lk_plot *plot, const struct lk_curve *c,
                      size_t i) {
    FILE *out = d->out;
    char a[LK_SVG_NUMBER], b[LK_SVG_NUMBER], e[LK_SVG_NUMBER];
    double x = place(&d->x, c->x[i]), y = place(&d->y, c->y[i]), error = error_of(c, i);
    double size = !c->line ? 4.5 : c->n * 14 > (size_t)plot->width ? 1.7 : 2.6;
    if (c->mark == LK_MARK_SQUARE)
        fprintf(out,
                "<rect class=\"s hollow\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\">",
                x - size, y - size, 2 * size, 2 * size);
    else
        fprintf(out, "<circle class=\"f\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\">", x, y, size);
    fputs("<title>", out);
    lk_svg_escape(out, c->name);
    fprintf(out, " at %s: %s", lk_svg_number(a, c->x[i]), lk_svg_number(b, c->y[i]));
    if (error > 0) fprintf(out, " \xc2\xb1 %s", lk_svg_number(e, error));
    fprintf(out, "</title></%s>", c->mark == LK_MARK_SQUARE ? "rect" : "circle");
    occupy(d, (struct box){x - size - 1, y - size - 1, 2 * size + 2, 2 * size + 2});
}

/* Is the curve named at its end, in the margin? */
static bool named_at_end(const struct lk_curve *c) { return c->line && !c->nameless; }

static size_t last_point(const struct lk_curve *c) {
    size_t i = c->n;
    while (i > 0 && !drawable(c, i - 1)) i--;
    return i; /* one past it */
}

/* Names of lines, right of the plot, at the height of their ends as far as they do not overlap. */
static void name_ends(struct drawing *d, const struct lk_plot *plot) {
    enum { ENDS_MOST = 64 };
    struct {
        const struct lk_curve *curve;
        double y, place;
    } end[ENDS_MOST], swap;
    int n = 0;
    for (size_t i = 0; i < plot->n_curve && n < ENDS_MOST; i++) {
        const struct lk_curve *c = &plot->curve[i];
        size_t last = named_at_end(c) ? last_point(c) : 0;
        if (last == 0) continue;
        end[n].curve = c;
        end[n].y = end[n].place = place(&d->y, c->y[last - 1]);
        for (int j = n++; j > 0 && end[j - 1].y > end[j].y; j--)
            swap = end[j], end[j] = end[j - 1], end[j - 1] = swap;
    }
    double step = fmin(LINE - 1, (d->y.from - d->y.to + LINE) / (n ? n : 1));
    for (int i = 1; i < n; i++) end[i].place = fmax(end[i].place, end[i - 1].place + step);
    for (int i = n - 1; i >= 0; i--)
        end[i].place = fmin(end[i].place, i == n - 1 ? d->y.from : end[i + 1].place - step);
    for (int i = 0; i < n; i++) {
        char cut[80];
        const struct lk_curve *c = end[i].curve;
        double from = place(&d->x, c->x[last_point(c) - 1]) + 4, to = d->x.to + 14;
        open_group(d->out, c);
        fprintf(d->out,
                "<path class=\"lead s\" d=\"M%.1f %.1fL%.1f %.1f\"/><text class=\"f\" x=\"%.1f\" "
                "y=\"%.1f\">",
                from, end[i].y, to, end[i].place, to + 3, end[i].place + 4);
        lk_svg_escape(d->out, lk_svg_cut(cut, sizeof cut, c->name, plot->width < 480 ? 11 : 18));
        fputs("</text></g>", d->out);
    }
}

static int margin_for_names(const struct lk_plot *plot) {
    int most = 0, limit = plot->width < 480 ? 11 : 18;
    for (size_t i = 0; i < plot->n_curve; i++) {
        int n = named_at_end(&plot->curve[i]) ? lk_svg_columns(plot->curve[i].name) : 0;
        if (n > most) most = n;
    }
    if (most > limit) most = limit;
    return most ? 20 + most * COLUMN : 12;
}

static void open_svg(FILE *out, int width, int height, const char *title) {
    fprintf(out,
            "<svg class=\"plot\" xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"",
            width, height, width, height);
    lk_svg_escape(out, title);
    fputs("\">", out);
}

void lk_svg_plot(FILE *out, const struct lk_plot *plot) {
    struct drawing d = {.out = out};
    d.x = scale(plot, &plot->x, 46, plot->width - margin_for_names(plot));
    d.y = scale(plot, &plot->y, plot->height - 42, 24);
    open_svg(out, plot->width, plot->height, plot->title);
    draw_axes(&d, plot);
    for (size_t k = 0; k < plot->n_curve; k++) {
        const struct lk_curve *c = &plot->curve[k];
        open_group(out, c);
        if (c->line) draw_line(&d, c);
        if (c->mark) draw_errors(&d, c);
        for (size_t i = 0; c->mark && i < c->n; i++)
            if (drawable(c, i)) draw_mark(&d, plot, c, i);
        fputs("</g>", out);
    }
    for (size_t k = 0; k < plot->n_curve; k++) { /* when every mark is known */
        const struct lk_curve *c = &plot->curve[k];
        if (c->line || c->nameless) continue;
        open_group(out, c);
        for (size_t i = 0; i < c->n; i++)
            if (drawable(c, i)) name_point(&d, c, place(&d.x, c->x[i]), place(&d.y, c->y[i]));
        fputs("</g>", out);
    }
    name_ends(&d, plot);
    fputs("</svg>\n", out);
}

/* ---- heat maps ---- */

enum { HEAT_TOP = 8, HEAT_BELOW = 20, HEAT_SCALE = 20, CELL_MOST = 44, CELL_LEAST = 12 };

struct rgb {
    double r, g, b;
};

/* From dark violet through teal to yellow, as bright as the share: also told apart without colour. */
static struct rgb colour_of(double share) {
    static const struct rgb stop[] = {
        {62, 20, 94}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {245, 226, 70}};
    double at = share * 4;
    int i = at >= 4 ? 3 : (int)at;
    double f = at - i;
    return (struct rgb){stop[i].r + f * (stop[i + 1].r - stop[i].r),
                        stop[i].g + f * (stop[i + 1].g - stop[i].g),
                        stop[i].b + f * (stop[i + 1].b - stop[i].b)};
}

static int longest(const char *const *name, size_t n) {
    int most = 0;
    for (size_t i = 0; i < n; i++) {
        int columns = lk_svg_columns(name[i]);
        if (columns > most) most = columns;
    }
    return most > 14 ? 14 : most;
}

static int heat_left(const struct lk_heat *heat) {
    return (*heat->y_label ? 18 : 0) + 8 + longest(heat->y, heat->n_y) * COLUMN;
}

static double cell_height(const struct lk_heat *heat) {
    double h = 320.0 / (heat->n_y ? heat->n_y : 1);
    return h > 26 ? 26 : h < CELL_LEAST ? CELL_LEAST : h;
}

int lk_svg_heat_height(const struct lk_heat *heat) {
    return (int)(HEAT_TOP + cell_height(heat) * heat->n_y + HEAT_BELOW + heat->scale * HEAT_SCALE);
}

static void heat_range(const struct lk_heat *heat, struct place *p) {
    *p = (struct place){heat->least, heat->most, 0, 1, heat->log};
    if (p->least < p->most) return;
    bool any = false;
    for (size_t i = 0; i < heat->n_x * heat->n_y; i++) {
        double v = heat->z[i];
        if (!isfinite(v) || (p->log && !(v > 0))) continue;
        if (!any || v < p->least) p->least = v;
        if (!any || v > p->most) p->most = v;
        any = true;
    }
    if (!(p->least < p->most)) {
        if (p->log)
            p->least = p->most > 0 ? p->most / 10 : 0.1;
        else
            p->least = p->most - 1;
        if (p->log && !(p->most > 0)) p->most = 1;
    }
}

static void heat_cell(FILE *out, const struct lk_heat *heat, const struct place *range, size_t col,
                      size_t row, struct box b) {
    char number[LK_SVG_NUMBER];
    double v = heat->z[row * heat->n_x + col];
    lk_svg_number(number, v);
    bool written =
        heat->numbers && isfinite(v) && lk_svg_columns(number) * COLUMN <= b.w && b.h >= LINE;
    if (isfinite(v)) {
        struct rgb c = colour_of(place(range, v));
        fprintf(out, "<rect fill=\"#%02x%02x%02x\" ", (int)c.r, (int)c.g, (int)c.b);
    } else {
        fputs("<rect class=\"none\" ", out);
    }
    fprintf(out, "x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"", b.x, b.y, b.w - 1,
            b.h - 1);
    if (written) {
        struct rgb c = colour_of(place(range, v));
        bool bright = 0.3 * c.r + 0.6 * c.g + 0.1 * c.b > 120;
        fprintf(out, "/><text class=\"n%s\" x=\"%.1f\" y=\"%.1f\">%s</text>", bright ? " b" : "",
                b.x + b.w / 2 - 0.5, b.y + b.h / 2 + 3.5, number);
        return;
    }
    fputs("><title>", out);
    lk_svg_escape(out, heat->x_label);
    fputc(' ', out);
    lk_svg_escape(out, heat->x[col]);
    fputs(", ", out);
    lk_svg_escape(out, heat->y_label);
    fputc(' ', out);
    lk_svg_escape(out, heat->y[row]);
    fprintf(out, ": %s</title></rect>", number);
}

/* The colours' meaning: a strip with its two ends. */
static void heat_scale(FILE *out, const struct place *range, double x, double y, double strip) {
    enum { STEPS = 24 };
    char a[LK_SVG_NUMBER], b[LK_SVG_NUMBER];
    for (int i = 0; i < STEPS; i++) {
        struct rgb c = colour_of((i + 0.5) / STEPS);
        fprintf(out,
                "<rect fill=\"#%02x%02x%02x\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"8\"/>",
                (int)c.r, (int)c.g, (int)c.b, x + i * strip / STEPS, y, strip / STEPS + 0.3);
    }
    fprintf(
        out,
        "<text class=\"soft\" font-size=\"10\" text-anchor=\"end\" x=\"%.1f\" y=\"%.1f\">%s</text>",
        x - 4, y + 8, lk_svg_number(a, range->least));
    fprintf(out, "<text class=\"soft\" font-size=\"10\" x=\"%.1f\" y=\"%.1f\">%s</text>",
            x + strip + 4, y + 8, lk_svg_number(b, range->most));
}

void lk_svg_scale(FILE *out, double least, double most) {
    enum { WIDTH = 190, EDGE = 50 };
    open_svg(out, WIDTH, 12, "scale of colours");
    heat_scale(out, &(struct place){.least = least, .most = most}, EDGE, 1, WIDTH - 2 * EDGE);
    fputs("</svg>\n", out);
}

void lk_svg_heat(FILE *out, const struct lk_heat *heat) {
    struct place range;
    char cut[80];
    heat_range(heat, &range);
    double left = heat_left(heat), h = cell_height(heat),
           w = (heat->width - left - 4) / (heat->n_x ? heat->n_x : 1);
    if (w > CELL_MOST * 2) w = CELL_MOST * 2;
    double bottom = HEAT_TOP + h * heat->n_y, shown = -1e9;
    open_svg(out, heat->width, lk_svg_heat_height(heat), heat->title);
    for (size_t row = 0; row < heat->n_y; row++) {
        double y = HEAT_TOP + h * row;
        fprintf(out, "<text class=\"soft t\" font-size=\"%d\" x=\"%.1f\" y=\"%.1f\">",
                h < LINE ? 9 : 11, left - 5, y + h / 2 + 3.5);
        lk_svg_escape(out, lk_svg_cut(cut, sizeof cut, heat->y[row], 14));
        fputs("</text>", out);
        for (size_t col = 0; col < heat->n_x; col++)
            heat_cell(out, heat, &range, col, row, (struct box){left + w * col, y, w, h});
    }
    for (size_t col = 0; col < heat->n_x; col++) {
        const char *name = lk_svg_cut(cut, sizeof cut, heat->x[col], 12);
        double x = left + w * (col + 0.5), half = lk_svg_columns(name) * 3.2 + 2;
        if (x - half < shown || x + half > heat->width + 6) continue;
        shown = x + half;
        fprintf(out, "<text class=\"soft m\" font-size=\"11\" x=\"%.1f\" y=\"%.1f\">", x,
                bottom + 14);
        lk_svg_escape(out, name);
        fputs("</text>", out);
    }
    if (*heat->y_label) {
        double y = HEAT_TOP + h * heat->n_y / 2;
        fprintf(out,
                "<text class=\"soft\" font-size=\"11\" text-anchor=\"middle\" "
                "transform=\"translate(11 %.1f) rotate(-90)\">",
                y);
        lk_svg_escape(out, heat->y_label);
        fputs("</text>", out);
    }
    if (!heat->scale) {
        fputs("</svg>\n", out);
        return;
    }
    char least[LK_SVG_NUMBER];
    heat_scale(out, &range, left + 6 + 6 * lk_svg_columns(lk_svg_number(least, range.least)),
               bottom + 24, heat->width < 300 ? 56 : 90);
    fprintf(out, "<text class=\"soft\" font-size=\"11\" text-anchor=\"end\" x=\"%.1f\" y=\"%.1f\">",
            fmin(left + w * heat->n_x, heat->width - 2.0), bottom + 32);
    lk_svg_escape(out, heat->x_label);
    fputs("</text></svg>\n", out);
}
