#include "eval/jsonl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_blank(const char *line) { return line[strspn(line, " \t\r\n")] == 0; }

static lk_status read_row(const char *path, size_t number, const char *line, size_t len,
                          lk_row_reader reader, void *user, lk_err *err) {
    json_error_t why;
    json_t *json = json_loadb(line, len, JSON_REJECT_DUPLICATES, &why);
    if (!json)
        return lk_fail(err, LK_E_FORMAT, "%s:%zu: not JSON: %s (column %d)", path, number, why.text,
                       why.column);
    lk_status status = LK_OK;
    if (!json_is_object(json))
        status = lk_fail(err, LK_E_FORMAT,
                         "%s:%zu: not a JSON object; each line is one, like {\"question\": ...}",
                         path, number);
    if (status == LK_OK)
        status = reader(user, &(struct lk_row){.json = json, .path = path, .line = number}, err);
    json_decref(json);
    return status;
}

lk_status lk_jsonl_read(const char *path, lk_row_reader reader, void *user, lk_err *err) {
    FILE *file = fopen(path, "r");
    if (!file) return lk_fail(err, LK_E_IO, "cannot open %s: %s", path, strerror(errno));
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    lk_status status = LK_OK;
    errno = 0;
    for (size_t number = 1; status == LK_OK && (len = getline(&line, &cap, file)) >= 0; number++) {
        if (!is_blank(line) || (size_t)len != strlen(line))
            status = read_row(path, number, line, (size_t)len, reader, user, err);
        errno = 0;
    }
    if (status == LK_OK && (ferror(file) || errno == ENOMEM))
        status = lk_fail(err, LK_E_IO, "cannot read %s: %s", path, strerror(errno));
    free(line);
    fclose(file);
    return status;
}

lk_status lk_row_text_in(const struct lk_row *row, const json_t *part, const char *name,
                         const char **out, lk_err *err) {
    const char *text = json_string_value(json_object_get(part, name));
    if (!text)
        return lk_fail(err, LK_E_FORMAT, "%s:%zu: \"%s\" is missing or not a text", row->path,
                       row->line, name);
    *out = text;
    return LK_OK;
}

lk_status lk_row_text(const struct lk_row *row, const char *name, const char **out, lk_err *err) {
    return lk_row_text_in(row, row->json, name, out, err);
}

lk_status lk_row_list(const struct lk_row *row, const char *name, const json_t **out, lk_err *err) {
    const json_t *list = json_object_get(row->json, name);
    if (!json_is_array(list))
        return lk_fail(err, LK_E_FORMAT, "%s:%zu: \"%s\" is missing or not a list", row->path,
                       row->line, name);
    *out = list;
    return LK_OK;
}
