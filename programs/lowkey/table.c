/* Lays out tables. */
#include "table.h"

#include "output.h"
#include "xalloc.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { GAP = 2 }; /* columns between two columns */
#define BOLD "\x1b[1m"
#define PLAIN "\x1b[0m"

struct table table_new(const char *align) {
    struct table table = {.n_column = strlen(align), .min_first = 24};
    for (size_t i = 0; i < table.n_column; i++) {
        table.optional[i] = align[i] == 'L' || align[i] == 'R';
        table.align[i] = align[i] == 'l' || align[i] == 'L' ? 'l' : 'r';
    }
    return table;
}

void table_cell(struct table *table, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    table->cell = xrealloc(table->cell, (table->n_cell + 1) * sizeof *table->cell);
    table->cell[table->n_cell++] = xasprintf("%s", text);
}

/* Columns that `s` takes on a terminal, taking every code point as one column. */
static size_t display_width(const char *s) {
    size_t n = 0;
    for (; *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

void table_titles(struct table *table, const char *titles) {
    for (size_t n; (n = strcspn(titles, "|")) > 0; titles += n + (titles[n] == '|'))
        table_cell(table, "%.*s", (int)n, titles);
}

static void print_padding(FILE *file, size_t n) {
    while (n--) fputc(' ', file);
}

/* Text that is wider than `width` is truncated and ends in "..". */
static void print_cell(FILE *file, const char *text, size_t width, char align, bool last) {
    size_t columns = display_width(text);
    if (columns > width) {
        size_t n_kept = width > 2 ? width - 2 : 0, i = 0;
        for (size_t n = 0; text[i]; i++) {
            if (((unsigned char)text[i] & 0xc0) != 0x80 && n++ == n_kept) break;
        }
        fprintf(file, "%.*s..", (int)i, text);
        return;
    }
    if (align == 'r') print_padding(file, width - columns);
    fputs(text, file);
    if (align == 'l' && !last) print_padding(file, width - columns);
}

/* The widths of columns; 0 for a column that is left out. */
struct layout {
    size_t width[MAX_TABLE_COLUMNS], last; /* last: the last column that is not left out */
};

static size_t total_width(const struct layout *layout, size_t n_column) {
    size_t total = 0;
    for (size_t i = 0; i < n_column; i++)
        if (layout->width[i]) total += layout->width[i] + (total ? GAP : 0);
    return total;
}

/* Make the table fit `max` columns. False if that is impossible. */
static bool fit_layout(const struct table *table, struct layout *layout, size_t max) {
    size_t *width = layout->width;
    for (size_t i = table->n_column;; i--) {
        size_t total = total_width(layout, table->n_column);
        size_t spare = width[0] > table->min_first ? width[0] - table->min_first : 0;
        if (total <= max + spare) {
            if (total > max) width[0] -= total - max;
            return true;
        }
        while (i > 1 && !table->optional[i - 1]) i--;
        if (i <= 1) return false;
        width[i - 1] = 0;
        if (layout->last == i - 1) {
            while (!width[layout->last]) layout->last--;
        }
    }
}

static void print_rows(const struct table *table, FILE *file, const struct layout *layout,
                       bool bold) {
    for (size_t i = 0; i < table->n_cell; i++) {
        size_t column = i % table->n_column;
        if (!layout->width[column] && column != layout->last) continue;
        bool last = column == layout->last;
        if (bold && i == 0) fputs(BOLD, file);
        print_cell(file, table->cell[i], layout->width[column], table->align[column], last);
        if (bold && i == layout->last) fputs(PLAIN, file);
        if (last)
            fputc('\n', file);
        else
            print_padding(file, GAP);
    }
}

/* Like print_rows, with the last column wrapped. */
static void print_wrapped_rows(const struct table *table, FILE *file, const struct layout *layout,
                               size_t max) {
    size_t indent = 0;
    for (size_t i = 0; i < layout->last; i++) indent += layout->width[i] + GAP;
    for (size_t i = 0; i < table->n_cell; i++) {
        size_t column = i % table->n_column;
        if (column == layout->last) {
            print_wrapped(file, table->cell[i], (int)indent, (int)indent, (int)max);
            continue;
        }
        print_cell(file, table->cell[i], layout->width[column], table->align[column], false);
        print_padding(file, GAP);
    }
}

/* One record per row: the first cell, then lines of a title and a value. */
static void print_records(const struct table *table, FILE *file, bool bold) {
    size_t n = table->n_column, title_width = 0, value_width = 0;
    for (size_t i = 0; i < table->n_cell; i++) {
        size_t *w = i < n ? &title_width : &value_width, columns = display_width(table->cell[i]);
        if (i % n && columns > *w) *w = columns;
    }
    for (size_t i = n; i < table->n_cell; i++) {
        if (i % n == 0) {
            fprintf(file, "%s%s%s%s\n", i > n ? "\n" : "", bold ? BOLD : "", table->cell[i],
                    bold ? PLAIN : "");
            continue;
        }
        if (!*table->cell[i]) continue;
        print_padding(file, GAP);
        print_cell(file, table->cell[i % n], title_width, 'l', false);
        print_padding(file, GAP);
        print_cell(file, table->cell[i], value_width, table->align[i % n], true);
        fputc('\n', file);
    }
}

void table_print(struct table *table, FILE *file, bool header) {
    struct layout layout = {.last = table->n_column - 1};
    size_t max = (size_t)terminal_width(file);
    bool bold = header && use_color(file);
    for (size_t i = 0; i < table->n_cell; i++) {
        size_t *w = &layout.width[i % table->n_column], n = display_width(table->cell[i]);
        if (n > *w) *w = n;
    }
    bool fits = !max || total_width(&layout, table->n_column) <= max;
    if (!fits && !header)
        print_wrapped_rows(table, file, &layout, max);
    else if (fits || fit_layout(table, &layout, max))
        print_rows(table, file, &layout, bold);
    else
        print_records(table, file, bold);
    for (size_t i = 0; i < table->n_cell; i++) free(table->cell[i]);
    free(table->cell);
    *table = (struct table){0};
}
