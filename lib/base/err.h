/* Errors are values: a status and one line that says what is wrong and what to do. */
#ifndef LK_BASE_ERR_H
#define LK_BASE_ERR_H

#include "lowkey.h"

/* Format a message into `err` (may be NULL) and return `status`, so that a function can fail with
 * `return lk_fail(err, LK_E_FORMAT, "...");`. */
lk_status lk_fail(lk_err *err, lk_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Copy text[0..len) for a message. Bytes that are not printable ASCII become '?'. After 60 bytes
 * the text is cut and ends in "...". Returns out. */
const char *lk_printable(char out[64], const char *text, size_t len);

#endif
