/* JSON lines: a file with one JSON object on each line. Empty lines are passed over. */
#ifndef LK_EVAL_JSONL_H
#define LK_EVAL_JSONL_H

#include "base/err.h"

#include <jansson.h>

/* Where a row stands; messages about it begin "PATH:LINE: ". */
struct lk_row {
    const json_t *json; /* an object; borrowed until the reader goes on */
    const char *path;
    size_t line; /* from 1 */
};

/* What to do with a row. Whatever it returns but LK_OK ends the reading. */
typedef lk_status (*lk_row_reader)(void *user, const struct lk_row *row, lk_err *err);

/* Read every row. LK_E_IO where the file cannot be read, LK_E_FORMAT for a line that is not an object. */
lk_status lk_jsonl_read(const char *path, lk_row_reader reader, void *user, lk_err *err);

/* The text under `name`, borrowed like the row. LK_E_FORMAT where it is missing or something else. */
lk_status lk_row_text(const struct lk_row *row, const char *name, const char **out, lk_err *err);

/* The text under `name` of a part of the row, for example of an element of one of its lists. */
lk_status lk_row_text_in(const struct lk_row *row, const json_t *part, const char *name,
                         const char **out, lk_err *err);

/* The list under `name`: LK_E_FORMAT as above. */
lk_status lk_row_list(const struct lk_row *row, const char *name, const json_t **out, lk_err *err);

#endif
