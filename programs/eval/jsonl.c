/* Reads files of JSON lines and reports errors with the line number. */
#include "eval/jsonl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_blank(const char *line) { return line[strspn(line, " \t\r\n")] == 0; }

static lk_status parse_row(const char *path, size_t number, const char *line, size_t len,
                           lk_jsonl_row_fn on_row, void *user, lk_err *err) {
    json_error_t why;
    json_t *json = json_loadb(line, len, JSON_REJECT_DUPLICATES, &why);
    if (!json)
        return lk_fail(err, LK_E_FORMAT, "%s:%zu: not JSON: %s (column %d)", path, number, why.text,
                       why.column);
    lk_status status = LK_OK;
    if (!json_is_object(json))
        status =
            lk_fail(err, LK_E_FORMAT,
                    "%s:%zu: not a JSON object; each line must be one, such as {\"question\": ...}",
                    path, number);
    if (!status)
        status =
            on_row(user, &(struct lk_jsonl_row){.json = json, .path = path, .line = number}, err);
    json_decref(json);
    return status;
}

lk_status lk_jsonl_read(const char *path, lk_jsonl_row_fn on_row, void *user, lk_err *err) {
    FILE *file = fopen(path, "r");
    if (!file) return lk_fail(err, LK_E_IO, "cannot open %s: %s", path, strerror(errno));
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    lk_status status = LK_OK;
    errno = 0;
    for (size_t number = 1; !status && (len = getline(&line, &cap, file)) >= 0; number++) {
        if (!is_blank(line) || (size_t)len != strlen(line))
            status = parse_row(path, number, line, (size_t)len, on_row, user, err);
        errno = 0;
    }
    if (!status && (ferror(file) || errno == ENOMEM))
        status = lk_fail(err, LK_E_IO, "cannot read %s: %s", path, strerror(errno));
    free(line);
    fclose(file);
    return status;
}

lk_status lk_jsonl_string_in(const struct lk_jsonl_row *row, const json_t *object, const char *name,
                             const char **out, lk_err *err) {
    const char *text = json_string_value(json_object_get(object, name));
    if (!text)
        return lk_fail(err, LK_E_FORMAT, "%s:%zu: \"%s\" is missing or not a string", row->path,
                       row->line, name);
    *out = text;
    return LK_OK;
}

lk_status lk_jsonl_string(const struct lk_jsonl_row *row, const char *name, const char **out,
                          lk_err *err) {
    return lk_jsonl_string_in(row, row->json, name, out, err);
}

lk_status lk_jsonl_array(const struct lk_jsonl_row *row, const char *name, const json_t **out,
                         lk_err *err) {
    const json_t *list = json_object_get(row->json, name);
    if (!json_is_array(list))
        return lk_fail(err, LK_E_FORMAT, "%s:%zu: \"%s\" is missing or not an array", row->path,
                       row->line, name);
    *out = list;
    return LK_OK;
}
