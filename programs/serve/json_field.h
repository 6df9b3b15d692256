/* Parsing of JSON request bodies and their fields.
 *
 * The lk_json_field_* readers leave the output unchanged if the field is absent or null. They
 * return false and set `error`, which names the field, if it has the wrong type or is out of
 * range. */
#ifndef LK_SERVE_JSON_FIELD_H
#define LK_SERVE_JSON_FIELD_H

#include "base/buf.h"
#include "serve/api_error.h"

#include <jansson.h>

/* Upper bound of the memory that the parsed form of a JSON text takes, in one pass over it. */
uint64_t lk_json_parsed_bytes(const char *text, size_t len);

/* Largest parsed form that a text of this length may have. Many small values take up to a hundred
 * times the memory of their text, so they are limited by count and not only by bytes. */
uint64_t lk_json_max_parsed_bytes(size_t len);

/* Parse a body that must be one JSON object; a new reference. It may start with a byte order mark.
 * NULL: see `error`. */
json_t *lk_json_parse_body(const char *body, size_t len, struct lk_api_error *error);

/* The same for a body of texts: what the output of programs may have and JSON or UTF-8 does not
 * (U+0000, halves of surrogate pairs, other bytes) becomes U+FFFD. Integers beyond 64 bits become
 * reals, and reals beyond the largest one become that. */
json_t *lk_json_parse_texts(const char *body, size_t len, struct lk_api_error *error);

/* Is a value nested deeper than a chat template can write? Their engine limits recursion. */
bool lk_json_is_deep(const json_t *value);

bool lk_json_field_bool(const json_t *body, const char *name, bool *out,
                        struct lk_api_error *error);
bool lk_json_field_int(const json_t *body, const char *name, int64_t min, int64_t max, int64_t *out,
                       struct lk_api_error *error);
bool lk_json_field_real(const json_t *body, const char *name, double min, double max, double *out,
                        struct lk_api_error *error);

/* *out is borrowed from the body. */
bool lk_json_field_string(const json_t *body, const char *name, const char **out,
                          struct lk_api_error *error);

/* Is the field present, not null, and not an empty object or array? */
bool lk_json_field_is_set(const json_t *body, const char *name);

/* JSON text. Bytes that may not be valid UTF-8, such as those of single tokens, become text: every
 * byte that does not belong to a character becomes U+FFFD. */

/* A JSON string; a new reference, NULL if out of memory. */
json_t *lk_json_from_bytes(const char *bytes, size_t len);

/* Append the bytes to `out` as valid UTF-8. */
void lk_buf_add_utf8(struct lk_buf *out, const char *bytes, size_t len);

/* Append the JSON value as compact text. Releases `json`; NULL marks the buffer as failed. */
void lk_buf_add_json(struct lk_buf *out, json_t *json);

/* Append the JSON value as a server-sent event, "data: JSON\n\n". Releases `json`, as above. */
void lk_buf_add_event(struct lk_buf *out, json_t *json);

/* Append an object, which is not empty, with one more field, whose value is the JSON text
 * value[0..len). Releases `object`; NULL marks the buffer as failed. */
void lk_buf_add_json_with(struct lk_buf *out, json_t *object, const char *field, const char *value,
                          size_t len);

#endif
