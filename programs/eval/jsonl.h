/* JSON lines: a file with one JSON object per line. Empty lines are skipped. */
#ifndef LK_EVAL_JSONL_H
#define LK_EVAL_JSONL_H

#include "base/err.h"

#include <jansson.h>

/* A row and its place in the file. Errors about it start with "PATH:LINE: ". */
struct lk_jsonl_row {
    const json_t *json; /* an object; borrowed during the callback */
    const char *path;
    size_t line; /* from 1 */
};

/* Called for every row. A status other than LK_OK ends the reading and is returned. */
typedef lk_status (*lk_jsonl_row_fn)(void *user, const struct lk_jsonl_row *row, lk_err *err);

/* Read all rows. LK_E_IO if the file cannot be read, LK_E_FORMAT if a line is not an object. */
lk_status lk_jsonl_read(const char *path, lk_jsonl_row_fn on_row, void *user, lk_err *err);

/* The string in a field of the row; borrowed like the row. LK_E_FORMAT if it is missing or has
 * another type. */
lk_status lk_jsonl_string(const struct lk_jsonl_row *row, const char *name, const char **out,
                          lk_err *err);

/* Like lk_jsonl_string, for an object inside the row, such as an element of an array. */
lk_status lk_jsonl_string_in(const struct lk_jsonl_row *row, const json_t *object, const char *name,
                             const char **out, lk_err *err);

/* Like lk_jsonl_string, for an array. */
lk_status lk_jsonl_array(const struct lk_jsonl_row *row, const char *name, const json_t **out,
                         lk_err *err);

#endif
