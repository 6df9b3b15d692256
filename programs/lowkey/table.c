/* Lays out tables. */
#include "table.h"

#include "output.h"
#include "terminal_text.h"
#include "xalloc.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct table table_new(const char *align) {
    struct table table = {.n_column = strlen(align)};
    memcpy(table.align, align, table.n_column);
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

void table_print(struct table *table, FILE *file, bool header) {
    enum { GAP = 2, MIN_FIRST_WIDTH = 12 };
    size_t width[MAX_TABLE_COLUMNS] = {0}, total = 0, max_total = (size_t)terminal_width(file);
    for (size_t i = 0; i < table->n_cell; i++) {
        size_t *w = &width[i % table->n_column], n = display_width(table->cell[i]);
        if (n > *w) *w = n;
    }
    for (size_t i = 0; i < table->n_column; i++) total += width[i] + (i ? GAP : 0);
    if (max_total && total > max_total && width[0] > MIN_FIRST_WIDTH) {
        size_t excess = total - max_total;
        width[0] = width[0] > MIN_FIRST_WIDTH + excess ? width[0] - excess : MIN_FIRST_WIDTH;
    }
    bool bold = header && use_color(file);
    for (size_t i = 0; i < table->n_cell; i++) {
        size_t column = i % table->n_column;
        bool last = column + 1 == table->n_column;
        if (bold && i == 0) fputs("\x1b[1m", file);
        print_cell(file, table->cell[i], width[column], table->align[column], last);
        if (bold && i + 1 == table->n_column) fputs("\x1b[0m", file);
        if (last)
            fputc('\n', file);
        else
            print_padding(file, GAP);
        free(table->cell[i]);
    }
    free(table->cell);
    *table = (struct table){0};
}
