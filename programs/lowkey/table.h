/* Aligned tables of short texts. */
#ifndef LK_LOWKEY_TABLE_H
#define LK_LOWKEY_TABLE_H

#include <stdio.h>

enum { TABLE_COLUMNS_MOST = 12 };

struct table {
    size_t n_column, n_cell;
    char align[TABLE_COLUMNS_MOST]; /* 'l' or 'r' */
    char **cell;                    /* row after row */
};

/* One character per column: "lrr". */
struct table table_new(const char *align);
void table_cell(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Print and free. `header`: the first row names the columns. On a terminal that is too narrow, the
 * first column is cut. */
void table_print(struct table *table, FILE *file, int header);

#endif
