/* Decimal numbers without floats, whose decimal point depends on the locale. */
#ifndef LK_BASE_DECIMAL_H
#define LK_BASE_DECIMAL_H

#include <stddef.h>

/* Print thousandths / 1000 without trailing zeros ("12.5", "100") into buf [cap], cap >= 12.
 * Returns the length. */
size_t lk_print_thousandths(char *buf, size_t cap, unsigned thousandths);

#endif
