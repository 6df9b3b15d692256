/* What `lowkey tune` prints, and the recipe file that it writes. */
#ifndef LK_LOWKEY_TUNE_REPORT_H
#define LK_LOWKEY_TUNE_REPORT_H

#include "common.h"
#include "lowkey_lab.h"

#include <stdio.h>

/* The tuned recipe and the recipes it is compared with, measured on the check text. */
struct tune_report {
    const char *command_line, *model, *weights;
    const struct string_list *text;
    const char *check_text; /* NULL: parts of `text` */
    const lk_tuned *tuned;
    const lk_recipe *const *recipe;   /* [n]; the last one is tuned->recipe */
    const lk_compare_result *checked; /* [n] */
    size_t n;                         /* 0: nothing was checked */
    int n_layer, chunk;
};

/* Print the recipe with each part on a line of its own. */
void tune_print_parts(FILE *file, const lk_recipe *recipe);

/* Print the figures and the recipe, as text or as JSON. tune: what else JSON has; NULL: nothing. */
void tune_report_print(const struct tune_report *report);
int tune_report_print_json(const struct tune_report *report, lk_tune *tune);

/* Write the recipe, with its figures as comments. Exit status. */
int tune_report_write(const struct tune_report *report, const char *path);

#endif
