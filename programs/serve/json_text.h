/* JSON text. Bytes that may not be valid UTF-8, such as those of single tokens, become text: every
 * byte that does not belong to a character becomes U+FFFD. */
#ifndef LK_SERVE_JSON_TEXT_H
#define LK_SERVE_JSON_TEXT_H

#include "base/buf.h"

#include <jansson.h>

/* A JSON string; a new reference, NULL if out of memory. */
json_t *lk_json_from_bytes(const char *bytes, size_t len);

/* Append the bytes to `out` as valid UTF-8. */
void lk_buf_add_utf8(struct lk_buf *out, const char *bytes, size_t len);

/* Append the JSON value as compact text. Releases `json`; NULL marks the buffer as failed. */
void lk_buf_add_json(struct lk_buf *out, json_t *json);

/* Append the JSON value as a server-sent event, "data: JSON\n\n". Releases `json`, as above. */
void lk_buf_add_event(struct lk_buf *out, json_t *json);

/* Append an object with one more field, whose value is the JSON text value[0..len). Releases
 * `object`; NULL marks the buffer as failed. */
void lk_buf_add_json_with(struct lk_buf *out, json_t *object, const char *field, const char *value,
                          size_t len);

#endif
