#include "eval/inspect.h"
#include "report/svg.h"

#include <math.h>

enum { PANEL = 400, GAP = 16, TOP = 64, CAPTION = 26 };

struct panel {
    const char *title;
    bool log;
    double (*value)(const struct lk_holding *side); /* of [K, V] */
};

static double k_error(const struct lk_holding *side) { return lk_holding_error(&side[LK_K]); }
static double v_error(const struct lk_holding *side) { return lk_holding_error(&side[LK_V]); }
static double attention(const struct lk_holding *side) {
    return side[LK_K].rows ? 100 * side[LK_K].mass : NAN;
}
static double kib(const struct lk_holding *side) {
    uint64_t bytes = side[LK_K].bytes + side[LK_V].bytes;
    return bytes ? (double)bytes / 1024 : NAN;
}

static const struct panel panels[] = {
    {"Error of K (mean square, normalised)", true, k_error},
    {"Error of V (mean square, normalised)", true, v_error},
    {"Attention given, per cent", false, attention},
    {"KiB", false, kib},
};

/* What a picture is drawn from, in one piece of memory. */
struct sheet {
    double *z; /* [n_layer][n_level] */
    const char **column, **row;
    char (*number)[12]; /* [n_layer] */
};

static size_t sheet_bytes(const struct lk_inspection *in) {
    return (size_t)in->n_layer * in->n_level * sizeof(double) +
           (in->n_level + in->n_layer) * sizeof(char *) + (size_t)in->n_layer * 12;
}

static struct sheet divide(const struct lk_inspection *in, void *mem) {
    struct sheet s = {.z = mem};
    s.column = (const char **)(s.z + (size_t)in->n_layer * in->n_level);
    s.row = s.column + in->n_level;
    s.number = (char(*)[12])(s.row + in->n_layer);
    for (int i = 0; i < in->n_level; i++) s.column[i] = in->name[i];
    for (int i = 0; i < in->n_layer; i++) {
        snprintf(s.number[i], sizeof s.number[i], "%d", i);
        s.row[i] = s.number[i];
    }
    return s;
}

static void draw_distance(const struct lk_inspection *in, double *x, FILE *out) {
    struct lk_curve curve = {.name = "distance of attention",
                             .x = x,
                             .y = in->hellinger,
                             .n = in->n_layer,
                             .mark = LK_MARK_DISC,
                             .line = true,
                             .nameless = true};
    for (int i = 0; i < in->n_layer; i++) x[i] = i;
    lk_svg_plot(out, &(struct lk_plot){.title = "Distance of attention from the full cache's",
                                       .width = 2 * PANEL + GAP,
                                       .height = 240,
                                       .x = {.label = "layer"},
                                       .y = {.label = "Hellinger distance", .zero = true},
                                       .curve = &curve,
                                       .n_curve = 1});
}

lk_status lk_inspection_draw(const struct lk_inspection *in, const char *title, FILE *out,
                             lk_err *err) {
    struct lk_ledger ledger = {0};
    void *mem = lk_alloc(&ledger, LK_FOR_OTHER, sheet_bytes(in));
    if (!mem) return lk_fail(err, LK_E_NOMEM, "no memory for a picture");
    struct sheet sheet = divide(in, mem);
    struct lk_heat heat = {.title = "",
                           .x_label = "",
                           .y_label = "layer",
                           .x = sheet.column,
                           .y = sheet.row,
                           .n_x = in->n_level,
                           .n_y = in->n_layer,
                           .z = sheet.z,
                           .numbers = true,
                           .scale = true,
                           .width = PANEL};
    int panel = CAPTION + lk_svg_heat_height(&heat) + GAP, width = 2 * PANEL + 3 * GAP,
        height = TOP + 2 * panel + CAPTION + 240 + 2 * GAP;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d "
            "%d\" class=\"plot\" role=\"img\"><style>%s</style>"
            "<rect width=\"%d\" height=\"%d\" fill=\"var(--page)\"/><text x=\"%d\" y=\"28\" "
            "font-size=\"16\" font-weight=\"600\">",
            width, height, width, height, lk_svg_style, width, height, GAP);
    lk_svg_escape(out, title);
    fprintf(out,
            "</text><text class=\"soft\" x=\"%d\" y=\"48\">%zu tokens, %.2f bits a value; "
            "attention of the last %zu</text>\n",
            GAP, in->n_tok, in->stats.bits_per_value, in->n_query);
    for (size_t i = 0; i < sizeof panels / sizeof panels[0]; i++) {
        for (int k = 0; k < in->n_layer * in->n_level; k++) sheet.z[k] = panels[i].value(in->at[k]);
        heat.title = panels[i].title;
        heat.log = panels[i].log;
        fprintf(out,
                "<g transform=\"translate(%d %d)\"><text x=\"4\" y=\"14\" "
                "font-weight=\"600\">%s</text><g transform=\"translate(0 %d)\">",
                (int)(GAP + i % 2 * (PANEL + GAP)), (int)(TOP + i / 2 * panel), panels[i].title,
                CAPTION);
        lk_svg_heat(out, &heat);
        fputs("</g></g>\n", out);
    }
    fprintf(out,
            "<g transform=\"translate(%d %d)\"><text x=\"4\" y=\"14\" font-weight=\"600\">Distance "
            "of attention from the full cache&#8217;s, by layer</text>"
            "<g transform=\"translate(0 %d)\">",
            GAP, TOP + 2 * panel, CAPTION);
    draw_distance(in, sheet.z, out);
    fputs("</g></g></svg>\n", out);
    lk_release(&ledger, LK_FOR_OTHER, mem, sheet_bytes(in));
    return fflush(out) == 0 && !ferror(out) ? LK_OK
                                            : lk_fail(err, LK_E_IO, "cannot write the picture");
}
