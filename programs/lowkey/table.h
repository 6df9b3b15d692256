/* Tables with aligned columns. */
#ifndef LK_LOWKEY_TABLE_H
#define LK_LOWKEY_TABLE_H

#include <stdbool.h>
#include <stdio.h>

enum { MAX_TABLE_COLUMNS = 12 };

struct table {
    size_t n_column, n_cell;
    char align[MAX_TABLE_COLUMNS]; /* 'l' or 'r' */
    char **cell;                   /* [n_cell] row by row */
};

/* A table with one column per character of `align`, for example "lrr". */
struct table table_new(const char *align);
void table_cell(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Print the table and free it. `header`: the first row is the title of the columns. On a terminal
 * that is too narrow, the first column is truncated. */
void table_print(struct table *table, FILE *file, bool header);

#endif
