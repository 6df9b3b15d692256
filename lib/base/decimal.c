/* Decimal numbers without floats. */
#include "base/decimal.h"

#include <stdio.h>

size_t lk_print_thousandths(char *buf, size_t cap, unsigned thousandths) {
    int n = snprintf(buf, cap, "%u.%03u", thousandths / 1000, thousandths % 1000);
    while (buf[n - 1] == '0') n--;
    if (buf[n - 1] == '.') n--;
    buf[n] = 0;
    return (size_t)n;
}
