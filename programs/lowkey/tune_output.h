/* What `lowkey tune` writes: the recipe file, the table and the picture. Functions that return int
 * return a STATUS_*, after printing an error. */
#ifndef LK_LOWKEY_TUNE_OUTPUT_H
#define LK_LOWKEY_TUNE_OUTPUT_H

#include "args.h"
#include "lowkey_lab.h"

#include <stddef.h>

/* The tuned recipe and the recipes it is compared with, measured on the check text. */
struct tune_report {
    const char *command_line, *model, *weights;
    const struct string_list *text;
    const char *check_text; /* NULL: parts of `text` */
    const lk_tuned *tuned;
    const lk_recipe *const *recipe;   /* [n]; the last one is tuned->recipe */
    const lk_compare_result *checked; /* [n] */
    size_t n;
    int n_layer, chunk;
};

/* Print the table of recipes, then the tuned recipe, part by part. */
void tune_print_table(const struct tune_report *r);

int tune_print_json(const struct tune_report *r, lk_tune *tune);

/* Write the recipe with its figures as comments. --kv accepts the file. */
int tune_write_recipe(const struct tune_report *r, const char *path);

#endif
