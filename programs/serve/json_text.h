/* Text for JSON from bytes that may not be valid UTF-8, such as the bytes of single tokens. Every
 * byte that does not belong to a character becomes U+FFFD. */
#ifndef LK_SERVE_JSON_TEXT_H
#define LK_SERVE_JSON_TEXT_H

#include "base/buf.h"

#include <jansson.h>

/* A JSON string; a new reference, NULL if out of memory. */
json_t *lk_json_from_bytes(const char *bytes, size_t len);

/* Append the bytes to `out` as valid UTF-8. */
void lk_buf_add_utf8(struct lk_buf *out, const char *bytes, size_t len);

#endif
