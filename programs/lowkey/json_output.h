/* Printing JSON. */
#ifndef LK_LOWKEY_JSON_OUTPUT_H
#define LK_LOWKEY_JSON_OUTPUT_H

#include <jansson.h>
#include <stdbool.h>

/* A number, or null if it is not finite: JSON has no infinities and NaNs. */
json_t *json_number(double value);

/* Print `value` on several lines or on one line, and free it. Returns a STATUS_*. */
int json_print(json_t *value, bool one_line);

#endif
