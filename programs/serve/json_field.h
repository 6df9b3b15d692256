/* Parsing of JSON request bodies and their fields.
 *
 * The lk_json_field_* readers leave the output unchanged if the field is absent or null. They
 * return false and set `error`, which names the field, if it has the wrong type or is out of
 * range. */
#ifndef LK_SERVE_JSON_FIELD_H
#define LK_SERVE_JSON_FIELD_H

#include "serve/api_error.h"

/* Upper bound of the memory that the parsed form of a JSON text takes, in one pass over it. */
uint64_t lk_json_parsed_bytes(const char *text, size_t len);

/* Largest parsed form that a text of this length may have. Many small values take up to a hundred
 * times the memory of their text, so they are limited by count and not only by bytes. */
uint64_t lk_json_max_parsed_bytes(size_t len);

/* Parse a body that must be one JSON object; a new reference. NULL: see `error`. */
json_t *lk_json_parse_body(const char *body, size_t len, struct lk_api_error *error);

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

#endif
