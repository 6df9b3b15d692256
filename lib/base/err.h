/* Errors are values: a status, and one line that says what was wrong and what to do. */
#ifndef LK_BASE_ERR_H
#define LK_BASE_ERR_H

#include "lowkey.h"

/* Fill `err` (may be NULL) with a printf-formatted line and return `status`, so that a failing
 * function ends with `return lk_fail(err, LK_E_FORMAT, "...");`. */
lk_status lk_fail(lk_err *err, lk_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
