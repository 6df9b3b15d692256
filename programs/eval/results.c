/* Reads and appends to results files. */
#define _DEFAULT_SOURCE /* flock */
#include "eval/results.h"

#include "base/atomic_file.h"
#include "base/hash.h"
#include "base/os.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_INDEX_KEY = 1024 };

/* How lines are written: 9 significant digits. */
#define LINE_FLAGS (JSON_COMPACT | JSON_REAL_PRECISION(9))

struct lk_results_file {
    const char *path;
    int file;                /* -1: results are in memory only */
    off_t end;               /* offset after the last complete line */
    json_t *items, *results; /* by make_index_key */
};

/* The index key of an item, "TASK\nHASH OF KV\nKEY", or of a result, whose `key` is NULL: a tuned
 * recipe has thousands of bytes. False if it is too long. */
static bool make_index_key(char name[MAX_INDEX_KEY], const char *task, const char *kv,
                           const char *key) {
    uint64_t hash = lk_fnv1a(LK_FNV1A_INIT, kv, strlen(kv));
    int n = snprintf(name, MAX_INDEX_KEY, "%s\n%016" PRIx64 "\n%s", task, hash, key ? key : "");
    return n > 0 && n < MAX_INDEX_KEY;
}

const json_t *lk_results_item(const struct lk_results_file *r, const char *task, const char *kv,
                              const char *key) {
    char name[MAX_INDEX_KEY];
    return make_index_key(name, task, kv, key) ? json_object_get(r->items, name) : NULL;
}

const json_t *lk_results_result(const struct lk_results_file *r, const char *task, const char *kv) {
    char name[MAX_INDEX_KEY];
    return make_index_key(name, task, kv, NULL) ? json_object_get(r->results, name) : NULL;
}

/* Add a line to the items or the results. Takes ownership of `line`. False if there is no
 * memory. */
static bool index_line(struct lk_results_file *r, json_t *line) {
    char name[MAX_INDEX_KEY];
    const char *type = json_string_value(json_object_get(line, "type")),
               *task = json_string_value(json_object_get(line, "task"));
    const char *kv = json_string_value(json_object_get(line, "kv")),
               *key = json_string_value(json_object_get(line, "key"));
    bool item = type && strcmp(type, "item") == 0;
    if (type && task && kv && (!item || key) && make_index_key(name, task, kv, item ? key : NULL))
        return json_object_set_new(item ? r->items : r->results, name, line) == 0;
    json_decref(line); /* not known to this version */
    return true;
}

/* Append text[0..len), which ends with a line break. After a failure the file is unchanged. */
static lk_status append_text(struct lk_results_file *r, const char *text, size_t len, lk_err *err) {
    size_t n_done = 0;
    while (r->file >= 0 && n_done < len) {
        ptrdiff_t n =
            lk_os_write_at(r->file, text + n_done, len - n_done, (uint64_t)r->end + n_done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        n_done += (size_t)n;
    }
    if (r->file < 0 || n_done == len) {
        r->end += (off_t)len;
        return LK_OK;
    }
    int why = errno;
    if (ftruncate(r->file, r->end) != 0) why = errno;
    return lk_fail(err, LK_E_IO, "cannot write %s: %s; it contains what was finished before",
                   r->path, strerror(why));
}

/* Append a line, then parse its text, so that results are computed from exactly what the file
 * contains. Takes ownership of `line`, which may be NULL. */
static lk_status write_line(struct lk_results_file *r, json_t *line, lk_err *err) {
    char *text = line ? json_dumps(line, LINE_FLAGS) : NULL;
    json_t *again = text ? json_loads(text, 0, NULL) : NULL;
    lk_status status = again ? LK_OK : lk_fail(err, LK_E_NOMEM, "no memory for a line of results");
    json_decref(line);
    if (!status) {
        size_t len = strlen(text);
        text[len] = '\n'; /* replaces the zero */
        status = append_text(r, text, len + 1, err);
    }
    free(text);
    if (status)
        json_decref(again);
    else if (!index_line(r, again))
        status = lk_fail(err, LK_E_NOMEM, "no memory for a line of results");
    return status;
}

lk_status lk_results_add_item(struct lk_results_file *r, const char *task, const char *kv,
                              const char *key, json_t *record, lk_err *err) {
    char name[MAX_INDEX_KEY];
    if (!make_index_key(name, task, kv, key))
        return lk_fail(err, LK_E_ARG, "the names %s and %.60s are too long for a results file",
                       task, key);
    json_t *line =
        json_pack("{s:s s:s s:s s:s}", "type", "item", "task", task, "kv", kv, "key", key);
    if (line && json_object_update(line, record) == 0) return write_line(r, line, err);
    json_decref(line);
    return lk_fail(err, LK_E_NOMEM, "no memory for an item of %s, or its text is not valid UTF-8",
                   task);
}

/* Whether two values are the same when written. */
static bool equal_values(const json_t *a, const json_t *b) {
    char *x = json_dumps(a, LINE_FLAGS | JSON_ENCODE_ANY | JSON_SORT_KEYS);
    char *y = json_dumps(b, LINE_FLAGS | JSON_ENCODE_ANY | JSON_SORT_KEYS);
    bool equal = x && y && strcmp(x, y) == 0;
    free(x);
    free(y);
    return equal;
}

lk_status lk_results_add_result(struct lk_results_file *r, const char *task, const char *kv,
                                const struct lk_task_result *result, lk_err *err) {
    json_t *line =
        json_pack("{s:s s:s s:s s:O s:O s:O}", "type", "result", "task", task, "kv", kv, "metrics",
                  result->metrics, "series", result->series, "heat", result->heat);
    const json_t *before = lk_results_result(r, task, kv);
    if (!line || !before || !equal_values(before, line)) return write_line(r, line, err);
    json_decref(line);
    return LK_OK;
}

/* ---- opening ---- */

/* Whether an option has the value that it has when it is not given. */
static bool is_default(const json_t *option) {
    return json_is_false(option) || (json_is_integer(option) && json_integer_value(option) == 0);
}

/* Whether results with the header `is` may be appended to a file with the header `was`. */
static lk_status check_header(const struct lk_results_file *r, const json_t *was, const json_t *is,
                              lk_err *err) {
    static const char *const field[] = {"model_fingerprint", "weights"};
    const json_t *option, *old = json_object_get(was, "options"),
                          *new = json_object_get(is, "options");
    const char *type = json_string_value(json_object_get(was, "type")), *key;
    if (!type || strcmp(type, "run") != 0)
        return lk_fail(err, LK_E_FORMAT, "%s is not a results file; give another -o", r->path);
    for (size_t i = 0; i < sizeof field / sizeof field[0]; i++)
        if (!equal_values(json_object_get(was, field[i]), json_object_get(is, field[i])))
            return lk_fail(err, LK_E_ARG, "%s has results of another %s; give another -o", r->path,
                           i ? "kind of weights" : "model");
    json_object_foreach((json_t *)new, key, option) {
        const json_t *before = json_object_get(old, key);
        if (!before && strcmp(key, "--sidecar") == 0) { /* older files do not have it */
            if (strcmp(json_string_value(option), "none") == 0) continue;
            return lk_fail(err, LK_E_ARG,
                           "%s does not say which sidecar its results used; give another -o",
                           r->path);
        }
        if (!before && is_default(option)) continue; /* an older file does not have it */
        if (!equal_values(before, option))
            return lk_fail(err, LK_E_ARG,
                           "%s has results with another %s; give the same options or another -o",
                           r->path, key);
    }
    return LK_OK;
}

static lk_status read_result_line(struct lk_results_file *r, const char *text, size_t len,
                                  size_t number, bool first, const json_t *header, lk_err *err) {
    json_error_t why;
    json_t *line = json_loadb(text, len, JSON_ALLOW_NUL, &why);
    if (first && !json_is_object(line)) {
        json_decref(line);
        return lk_fail(err, LK_E_FORMAT, "%s is not a results file; give another -o", r->path);
    }
    if (!json_is_object(line)) {
        json_decref(line);
        return lk_fail(err, LK_E_FORMAT, "%s:%zu: %s; remove the line to continue", r->path, number,
                       line ? "not a JSON object" : why.text);
    }
    lk_status status = first ? check_header(r, line, header, err) : LK_OK;
    if (status)
        json_decref(line);
    else if (!index_line(r, line))
        status = lk_fail(err, LK_E_NOMEM, "no memory for the results in %s", r->path);
    return status;
}

static lk_status read_lines(struct lk_results_file *r, const char *text, size_t len,
                            const json_t *header, lk_err *err) {
    size_t at = 0, number = 0;
    bool first = true;
    for (const char *end; at < len && (end = memchr(text + at, '\n', len - at));
         at = (size_t)(end - text) + 1) {
        number++;
        if (end == text + at) continue;
        lk_status status =
            read_result_line(r, text + at, (size_t)(end - text) - at, number, first, header, err);
        if (status) return status;
        first = false;
    }
    if (first && at < len && text[at] != '{')
        return lk_fail(err, LK_E_FORMAT, "%s is not a results file; give another -o", r->path);
    r->end = (off_t)at; /* an incomplete line may follow */
    return LK_OK;
}

/* Open and lock the file, read its lines and append the header. */
static lk_status open_file(struct lk_results_file *r, const json_t *header, lk_err *err) {
    struct stat info;
    r->file = lk_os_open(r->path, LK_OS_READ | LK_OS_WRITE | LK_OS_CREATE, 0666);
    if (r->file < 0 || fstat(r->file, &info))
        return lk_fail(err, LK_E_IO, "cannot open %s: %s", r->path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return lk_fail(err, LK_E_ARG, "%s is not a regular file; give another -o", r->path);
    int why = lk_lock_file(r->file);
    if (why == EWOULDBLOCK)
        return lk_fail(err, LK_E_IO, "%s is in use by another run; wait for it or give another -o",
                       r->path);
    if (why) return lk_fail(err, LK_E_IO, "cannot lock %s: %s", r->path, strerror(why));
    size_t len = (size_t)info.st_size, got = 0;
    char *text = malloc(len + 1);
    if (!text) return lk_fail(err, LK_E_NOMEM, "no memory to read %s", r->path);
    while (got < len) {
        ptrdiff_t n = lk_os_read_at(r->file, text + got, len - got, got);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        got += (size_t)n;
    }
    lk_status status = got == len
                           ? read_lines(r, text, len, header, err)
                           : lk_fail(err, LK_E_IO, "cannot read %s: %s", r->path, strerror(errno));
    free(text);
    if (!status && r->end < (off_t)len && ftruncate(r->file, r->end))
        status = lk_fail(err, LK_E_IO, "cannot write %s: %s", r->path, strerror(errno));
    return status ? status : write_line(r, json_incref((json_t *)header), err);
}

lk_status lk_results_open(struct lk_results_file **out, const char *path, const json_t *header,
                          lk_err *err) {
    struct lk_results_file *r = calloc(1, sizeof *r);
    if (!r) return lk_fail(err, LK_E_NOMEM, "no memory for results");
    *r = (struct lk_results_file){
        .path = path, .file = -1, .items = json_object(), .results = json_object()};
    lk_status status =
        r->items && r->results ? LK_OK : lk_fail(err, LK_E_NOMEM, "no memory for results");
    if (!status && path) status = open_file(r, header, err);
    if (status)
        lk_results_close(r, NULL);
    else
        *out = r;
    return status;
}

lk_status lk_results_close(struct lk_results_file *r, lk_err *err) {
    if (!r) return LK_OK;
    lk_status status = LK_OK;
    if (r->file >= 0) {
        if (lk_os_sync(r->file) != 0)
            status = lk_fail(err, LK_E_IO, "cannot sync %s: %s", r->path, strerror(errno));
        if (close(r->file) != 0 && !status)
            status = lk_fail(err, LK_E_IO, "cannot write %s: %s", r->path, strerror(errno));
    }
    json_decref(r->items);
    json_decref(r->results);
    free(r);
    return status;
}
