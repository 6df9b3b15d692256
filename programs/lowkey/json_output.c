/* Prints JSON to stdout. */
#include "json_output.h"

#include "output.h"

#include <math.h>
#include <stdio.h>

json_t *json_number(double value) { return isfinite(value) ? json_real(value) : json_null(); }

int json_print(json_t *value, bool one_line) {
    enum { DIGITS = 10 };
    size_t flags = JSON_REAL_PRECISION(DIGITS) | (one_line ? JSON_COMPACT : JSON_INDENT(2));
    if (!value) return print_error("out of memory");
    int failed = json_dumpf(value, stdout, flags);
    json_decref(value);
    if (failed) return print_error("cannot write to standard output");
    putchar('\n');
    return flush_output(STATUS_OK);
}
