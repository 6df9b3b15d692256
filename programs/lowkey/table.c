#include "table.h"

#include "say.h"
#include "text.h"

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
    table->cell = must_grow(table->cell, (table->n_cell + 1) * sizeof *table->cell);
    table->cell[table->n_cell++] = must_print("%s", text);
}

static void print_padding(FILE *file, size_t n) {
    while (n--) fputc(' ', file);
}

/* At most `width` characters of text, the last one replaced by dots where it is cut. */
static void print_cell(FILE *file, const char *text, size_t width, char align, int last) {
    size_t columns = utf8_columns(text);
    if (columns > width) {
        size_t keep = width > 2 ? width - 2 : 0, i = 0;
        for (size_t n = 0; text[i]; i++) {
            if (((unsigned char)text[i] & 0xc0) != 0x80 && n++ == keep) break;
        }
        fprintf(file, "%.*s..", (int)i, text);
        return;
    }
    if (align == 'r') print_padding(file, width - columns);
    fputs(text, file);
    if (align == 'l' && !last) print_padding(file, width - columns);
}

void table_print(struct table *table, FILE *file, int header) {
    enum { GAP = 2, FIRST_LEAST = 12 };
    size_t width[TABLE_COLUMNS_MOST] = {0}, whole = 0, room = (size_t)terminal_width(file);
    for (size_t i = 0; i < table->n_cell; i++) {
        size_t *w = &width[i % table->n_column], n = utf8_columns(table->cell[i]);
        if (n > *w) *w = n;
    }
    for (size_t i = 0; i < table->n_column; i++) whole += width[i] + (i ? GAP : 0);
    if (room && whole > room) {
        size_t excess = whole - room;
        if (width[0] > FIRST_LEAST)
            width[0] = width[0] > FIRST_LEAST + excess ? width[0] - excess : FIRST_LEAST;
    }
    int bold = header && wants_colour(file);
    for (size_t i = 0; i < table->n_cell; i++) {
        size_t column = i % table->n_column;
        int last = column + 1 == table->n_column;
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
