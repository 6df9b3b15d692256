/* Draws an inspection. */
#include "report/inspect_draw.h"

#include "base/err.h"
#include "report/html.h"
#include "report/svg.h"

#include <math.h>
#include <stdlib.h>

enum { PANEL = 400, GAP = 16, TOP = 64, CAPTION = 26, PLOT_HEIGHT = 240 }; /* pixels */

enum { K, V }; /* sides of a holding */

static double k_error(const lk_holding side[2]) { return lk_holding_error(&side[K]); }
static double v_error(const lk_holding side[2]) { return lk_holding_error(&side[V]); }
static double attention_percent(const lk_holding side[2]) {
    return side[K].rows ? 100 * side[K].mass : NAN;
}
static double size_kib(const lk_holding side[2]) {
    uint64_t bytes = side[K].bytes + side[V].bytes;
    return bytes ? (double)bytes / 1024 : NAN;
}

static const struct panel {
    const char *title;
    bool log;
    double (*value)(const lk_holding side[2]);
} panels[] = {
    {"Error of K (normalized mean square)", true, k_error},
    {"Error of V (normalized mean square)", true, v_error},
    {"Share of attention, percent", false, attention_percent},
    {"KiB", false, size_kib},
};

/* Open a part of the picture at (x, y) with its title. Two </g> close it. */
static void open_panel(FILE *out, int x, int y, const char *title) {
    fprintf(out,
            "<g transform=\"translate(%d %d)\"><text x=\"4\" y=\"14\" font-weight=\"600\">%s</text>"
            "<g transform=\"translate(0 %d)\">",
            x, y, title, CAPTION);
}

/* heat: z, x and y are scratch of the right size. point: [n_layer] scratch. */
static void draw_panels(const lk_inspection *in, const char *title, FILE *out, struct lk_heat heat,
                        double *z, struct lk_point *point) {
    int row = CAPTION + lk_svg_heat_height(heat.n_y) + GAP, width = 2 * PANEL + 3 * GAP,
        height = TOP + 2 * row + CAPTION + PLOT_HEIGHT + 2 * GAP;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d "
            "%d\" class=\"plot\" role=\"img\"><style>%s</style>"
            "<rect width=\"%d\" height=\"%d\" fill=\"var(--page)\"/>",
            width, height, width, height, lk_svg_style, width, height);
    lk_html_text(out, "<text x=\"16\" y=\"28\" font-size=\"16\" font-weight=\"600\">", title, "");
    fprintf(out,
            "</text><text class=\"soft\" x=\"%d\" y=\"48\">%zu tokens, %.2f bits per value; "
            "attention of the last %zu</text>\n",
            GAP, in->n_tok, in->stats.bits_per_value, in->n_query);
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < in->n_layer * in->n_level; k++) z[k] = panels[i].value(in->at[k]);
        heat.title = panels[i].title;
        heat.log = panels[i].log;
        open_panel(out, GAP + i % 2 * (PANEL + GAP), TOP + i / 2 * row, panels[i].title);
        lk_svg_heat(out, &heat);
        fputs("</g></g>\n", out);
    }
    for (int i = 0; i < in->n_layer; i++) point[i] = (struct lk_point){i, in->hellinger[i], 0};
    open_panel(out, GAP, TOP + 2 * row, "Distance of attention from the full cache&#8217;s");
    struct lk_curve curve = {.point = point, .n = in->n_layer, .line = true, .marks = true};
    lk_svg_plot(out, &(struct lk_plot){.title = "distance of attention by layer",
                                       .width = 2 * PANEL + GAP,
                                       .height = PLOT_HEIGHT,
                                       .x = {.label = "layer"},
                                       .y = {.label = "Hellinger distance", .from_zero = true},
                                       .curve = &curve,
                                       .n_curve = 1});
    fputs("</g></g></svg>\n", out);
}

lk_status lk_inspection_draw(const lk_inspection *in, const char *title, FILE *out, lk_err *err) {
    size_t n_layer = in->n_layer, n_level = in->n_level;
    double *z = calloc(n_layer * n_level, sizeof *z);
    struct lk_point *point = calloc(n_layer, sizeof *point);
    char(*number)[LK_SVG_NUMBER] = calloc(n_layer, sizeof *number);
    bool has_memory = z && point && number;
    if (has_memory) {
        for (size_t i = 0; i < n_layer; i++) lk_svg_number(number[i], (double)i);
        struct lk_heat heat = {.x_label = "level",
                               .y_label = "layer",
                               .x = in->name,
                               .y = number,
                               .n_x = n_level,
                               .n_y = n_layer,
                               .z = z,
                               .width = PANEL};
        draw_panels(in, title, out, heat, z, point);
    }
    free(z);
    free(point);
    free(number);
    if (!has_memory) return lk_fail(err, LK_E_NOMEM, "out of memory for a picture");
    return fflush(out) == 0 && !ferror(out) ? LK_OK
                                            : lk_fail(err, LK_E_IO, "cannot write the picture");
}
