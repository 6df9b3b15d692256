/* Tables with aligned columns that fit the terminal. */
#ifndef LK_LOWKEY_TABLE_H
#define LK_LOWKEY_TABLE_H

#include <stdbool.h>
#include <stdio.h>

enum { MAX_TABLE_COLUMNS = 14 };

struct table {
    size_t n_column, n_cell;
    size_t min_first;                 /* the first column is not made narrower (default 24) */
    char align[MAX_TABLE_COLUMNS];    /* 'l' or 'r' */
    bool optional[MAX_TABLE_COLUMNS]; /* may be left out */
    char **cell;                      /* [n_cell] row by row */
};

/* A table with one column per character of `align`, for example "lrR". Columns in capitals are left
 * out on a narrow terminal, the rightmost first. */
struct table table_new(const char *align);

/* Add the titles of the columns, "recipe|tokens|cache", or a cell. */
void table_titles(struct table *table, const char *titles);
void table_cell(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Print the table and free it. `header`: the first row is the title of the columns.
 *
 * If the terminal is too narrow, a table with a header shortens long names in its first column,
 * then leaves out columns, and else becomes one record per row, with a line for each column.
 * Without a header, the last column is wrapped. */
void table_print(struct table *table, FILE *file, bool header);

#endif
