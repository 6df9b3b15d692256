#define _DEFAULT_SOURCE /* flock */
#include "eval/results.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_ROOM = 1024, DIGITS = 9 };

struct lk_results {
    const char *path;
    int file;                /* -1: in memory */
    off_t end;               /* of the last whole line */
    json_t *items, *results; /* by "task \n kv \n key" and "task \n kv" */
};

static bool name_of(char name[NAME_ROOM], const char *task, const char *kv, const char *key) {
    int n = snprintf(name, NAME_ROOM, "%s\n%s\n%s", task, kv, key ? key : "");
    return n > 0 && n < NAME_ROOM;
}

const json_t *lk_results_item(const struct lk_results *r, const char *task, const char *kv,
                              const char *key) {
    char name[NAME_ROOM];
    return name_of(name, task, kv, key) ? json_object_get(r->items, name) : NULL;
}

const json_t *lk_results_result(const struct lk_results *r, const char *task, const char *kv) {
    char name[NAME_ROOM];
    return name_of(name, task, kv, NULL) ? json_object_get(r->results, name) : NULL;
}

/* Enter a line under its name; takes `line`. */
static bool enter(struct lk_results *r, json_t *line) {
    char name[NAME_ROOM];
    const char *type = json_string_value(json_object_get(line, "type")),
               *task = json_string_value(json_object_get(line, "task"));
    const char *kv = json_string_value(json_object_get(line, "kv")),
               *key = json_string_value(json_object_get(line, "key"));
    bool item = type && strcmp(type, "item") == 0;
    if (type && task && kv && (!item || key) && name_of(name, task, kv, item ? key : NULL))
        return json_object_set_new(item ? r->items : r->results, name, line) == 0;
    json_decref(line); /* a line of a later version */
    return true;
}

/* Append a line of text, its end included. */
static lk_status append(struct lk_results *r, const char *text, size_t len, lk_err *err) {
    size_t done = 0;
    while (r->file >= 0 && done < len) {
        ssize_t n = pwrite(r->file, text + done, len - done, r->end + (off_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        done += (size_t)n;
    }
    if (r->file < 0 || done == len) {
        r->end += (off_t)len;
        return LK_OK;
    }
    int why = errno;
    if (ftruncate(r->file, r->end) != 0) why = errno;
    return lk_fail(err, LK_E_IO, "cannot write %s: %s; what was finished before is in it", r->path,
                   strerror(why));
}

/* Append a line and read it again, so that figures are made from what is in the file, to the last digit.
 * Takes `line`, which may be NULL. */
static lk_status write_line(struct lk_results *r, json_t *line, lk_err *err) {
    char *text = line ? json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS)) : NULL;
    json_t *again = text ? json_loads(text, 0, NULL) : NULL;
    lk_status status = again ? LK_OK : lk_fail(err, LK_E_NOMEM, "no memory for a line of results");
    json_decref(line);
    if (status == LK_OK) {
        size_t len = strlen(text);
        text[len] = '\n'; /* in the place of the zero */
        status = append(r, text, len + 1, err);
    }
    free(text);
    if (status != LK_OK)
        json_decref(again);
    else if (!enter(r, again))
        status = lk_fail(err, LK_E_NOMEM, "no memory for a line of results");
    return status;
}

lk_status lk_results_add_item(struct lk_results *r, const char *task, const char *kv,
                              const char *key, json_t *record, lk_err *err) {
    char name[NAME_ROOM];
    if (!name_of(name, task, kv, key))
        return lk_fail(err, LK_E_ARG, "the names of %s and %.60s are too long for results", task,
                       kv);
    json_t *line =
        json_pack("{s:s s:s s:s s:s}", "type", "item", "task", task, "kv", kv, "key", key);
    if (line && json_object_update(line, record) == 0) return write_line(r, line, err);
    json_decref(line);
    return lk_fail(err, LK_E_NOMEM, "no memory for an item of %s, or its texts are not UTF-8",
                   task);
}

/* Are two values the same once they are written? */
static bool same(const json_t *a, const json_t *b) {
    char *x = json_dumps(a, JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS |
                                JSON_REAL_PRECISION(DIGITS));
    char *y = json_dumps(b, JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS |
                                JSON_REAL_PRECISION(DIGITS));
    bool equal = x && y && strcmp(x, y) == 0;
    free(x);
    free(y);
    return equal;
}

lk_status lk_results_add_result(struct lk_results *r, const char *task, const char *kv,
                                const struct lk_result *result, lk_err *err) {
    json_t *line =
        json_pack("{s:s s:s s:s s:O s:O s:O}", "type", "result", "task", task, "kv", kv, "metrics",
                  result->metrics, "series", result->series, "heat", result->heat);
    const json_t *before = lk_results_result(r, task, kv);
    if (!line || !before || !same(before, line)) return write_line(r, line, err);
    json_decref(line);
    return LK_OK;
}

/* ---- reading what is there ---- */

static lk_status check_header(const struct lk_results *r, const json_t *was, const json_t *is,
                              lk_err *err) {
    static const char *const field[] = {"model_fingerprint", "weights"};
    const json_t *option, *old = json_object_get(was, "options"),
                          *new = json_object_get(is, "options");
    const char *type = json_string_value(json_object_get(was, "type")), *key;
    if (!type || strcmp(type, "run") != 0)
        return lk_fail(err, LK_E_FORMAT, "%s is not a results file; give another -o", r->path);
    for (size_t i = 0; i < sizeof field / sizeof field[0]; i++)
        if (!same(json_object_get(was, field[i]), json_object_get(is, field[i])))
            return lk_fail(err, LK_E_ARG, "%s holds results of another %s; give another -o",
                           r->path, i ? "kind of weights" : "model");
    json_object_foreach((json_t *)new, key, option) {
        const json_t *before = json_object_get(old, key);
        if (!before && strcmp(key, "--sidecar") == 0) { /* older files do not name it */
            if (strcmp(json_string_value(option), "none") == 0) continue;
            return lk_fail(
                err, LK_E_ARG,
                "%s does not say which sidecar its results were made with; give another -o",
                r->path);
        }
        if (!same(before, option))
            return lk_fail(err, LK_E_ARG,
                           "%s holds results with another %s; give the same options or another -o",
                           r->path, key);
    }
    return LK_OK;
}

static lk_status read_line(struct lk_results *r, const char *text, size_t len, size_t number,
                           bool first, const json_t *header, lk_err *err) {
    json_error_t why;
    json_t *line = json_loadb(text, len, JSON_ALLOW_NUL, &why);
    if (first && !json_is_object(line)) {
        json_decref(line);
        return lk_fail(err, LK_E_FORMAT, "%s is not a results file; give another -o", r->path);
    }
    if (!json_is_object(line)) {
        json_decref(line);
        return lk_fail(err, LK_E_FORMAT, "%s:%zu: %s; remove the line to go on", r->path, number,
                       line ? "not a JSON object" : why.text);
    }
    lk_status status = first ? check_header(r, line, header, err) : LK_OK;
    if (status != LK_OK)
        json_decref(line);
    else if (!enter(r, line))
        status = lk_fail(err, LK_E_NOMEM, "no memory for the results in %s", r->path);
    return status;
}

static lk_status read_all(struct lk_results *r, const char *text, size_t len, const json_t *header,
                          lk_err *err) {
    size_t at = 0, number = 0;
    bool first = true;
    for (const char *end; at < len && (end = memchr(text + at, '\n', len - at));
         at = (size_t)(end - text) + 1) {
        number++;
        if (end == text + at) continue;
        lk_status status =
            read_line(r, text + at, (size_t)(end - text) - at, number, first, header, err);
        if (status != LK_OK) return status;
        first = false;
    }
    if (first && at < len && text[at] != '{')
        return lk_fail(err, LK_E_FORMAT, "%s is not a results file; give another -o", r->path);
    r->end = (off_t)at; /* what follows is a line that was cut off */
    return LK_OK;
}

static lk_status take_over(struct lk_results *r, const json_t *header, lk_err *err) {
    struct stat info;
    r->file = open(r->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (r->file < 0 || fstat(r->file, &info))
        return lk_fail(err, LK_E_IO, "cannot open %s: %s", r->path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return lk_fail(err, LK_E_ARG,
                       "%s is not a file that results can be kept in; give another -o", r->path);
    if (flock(r->file, LOCK_EX | LOCK_NB))
        return lk_fail(err, LK_E_IO, "%s is in use by another run; wait for it or give another -o",
                       r->path);
    size_t len = (size_t)info.st_size, got = 0;
    char *text = malloc(len + 1);
    if (!text) return lk_fail(err, LK_E_NOMEM, "no memory to read %s", r->path);
    while (got < len) {
        ssize_t n = pread(r->file, text + got, len - got, (off_t)got);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        got += (size_t)n;
    }
    lk_status status = got == len
                           ? read_all(r, text, len, header, err)
                           : lk_fail(err, LK_E_IO, "cannot read %s: %s", r->path, strerror(errno));
    free(text);
    if (status == LK_OK && r->end < (off_t)len && ftruncate(r->file, r->end))
        status = lk_fail(err, LK_E_IO, "cannot write %s: %s", r->path, strerror(errno));
    return status == LK_OK ? write_line(r, json_incref((json_t *)header), err) : status;
}

lk_status lk_results_open(struct lk_results **out, const char *path, const json_t *header,
                          lk_err *err) {
    struct lk_results *r = calloc(1, sizeof *r);
    if (!r) return lk_fail(err, LK_E_NOMEM, "no memory for results");
    *r = (struct lk_results){
        .path = path, .file = -1, .items = json_object(), .results = json_object()};
    lk_status status =
        r->items && r->results ? LK_OK : lk_fail(err, LK_E_NOMEM, "no memory for results");
    if (status == LK_OK && path) status = take_over(r, header, err);
    if (status != LK_OK)
        lk_results_close(r);
    else
        *out = r;
    return status;
}

void lk_results_close(struct lk_results *r) {
    if (!r) return;
    if (r->file >= 0) {
        fsync(r->file);
        close(r->file);
    }
    json_decref(r->items);
    json_decref(r->results);
    free(r);
}
