#include "report/report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_ROOM = 1024 };

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

lk_status lk_report_begin(struct lk_report *report, lk_err *err) {
    *report = (struct lk_report){json_array(), json_array()};
    if (report->groups && report->bench) return LK_OK;
    lk_report_free(report);
    return lk_fail(err, LK_E_NOMEM, "no memory for a report");
}

void lk_report_free(struct lk_report *report) {
    json_decref(report->groups);
    json_decref(report->bench);
    *report = (struct lk_report){0};
}

/* ---- checks ---- */

/* What is wrong with a result, or NULL. A number may be null: there was none to give. */

static bool is_number(const json_t *value) { return json_is_number(value) || json_is_null(value); }

static bool is_row(const json_t *array, size_t n) {
    size_t i;
    json_t *value;
    if (!json_is_array(array) || json_array_size(array) != n) return false;
    json_array_foreach((json_t *)array, i, value) if (!is_number(value)) return false;
    return true;
}

static const char *wrong_metrics(json_t *metrics) {
    const char *name;
    json_t *metric;
    if (!json_is_object(metrics)) return "\"metrics\" is not an object";
    json_object_foreach(metrics, name, metric) {
        json_t *error = json_object_get(metric, "stderr");
        if (!is_number(json_object_get(metric, "value")) || (error && !is_number(error)))
            return "a metric is not {\"value\", \"stderr\", \"n\"} with numbers";
    }
    return NULL;
}

static const char *wrong_series(json_t *all) {
    const char *name;
    json_t *series;
    if (all && !json_is_object(all)) return "\"series\" is not an object";
    json_object_foreach(all, name, series) {
        size_t n = json_array_size(json_object_get(series, "x"));
        json_t *error = json_object_get(series, "stderr");
        if (!is_row(json_object_get(series, "x"), n) || !is_row(json_object_get(series, "y"), n) ||
            (json_is_array(error) && !is_row(error, n)))
            return "a series is not {\"x\", \"y\"} with equally many numbers";
    }
    return NULL;
}

static const char *wrong_heat(json_t *all) {
    const char *name;
    json_t *heat, *row;
    size_t i;
    if (all && !json_is_object(all)) return "\"heat\" is not an object";
    json_object_foreach(all, name, heat) {
        json_t *x = json_object_get(heat, "x"), *y = json_object_get(heat, "y"),
               *z = json_object_get(heat, "z");
        if (!json_is_array(x) || !json_is_array(y) || !json_is_array(z) ||
            json_array_size(z) != json_array_size(y))
            return "a heat map is not {\"x\", \"y\", \"z\"} with a row of z for each y";
        json_array_foreach(
            z, i,
            row) if (!is_row(row, json_array_size(x))) return "a heat map's rows have not as many "
                                                              "numbers as it has columns";
    }
    return NULL;
}

static const char *wrong_result(const json_t *line) {
    const char *wrong = *text_of(line, "task") && *text_of(line, "kv")
                            ? NULL
                            : "a result without \"task\" or \"kv\"";
    if (!wrong) wrong = wrong_metrics(json_object_get(line, "metrics"));
    if (!wrong) wrong = wrong_series(json_object_get(line, "series"));
    if (!wrong) wrong = wrong_heat(json_object_get(line, "heat"));
    return wrong;
}

/* ---- results ---- */

/* One file while it is read. */
struct reading {
    struct lk_report *report;
    const char *path;
    size_t line, n_result;
    json_t *group; /* borrowed; of the file's last run line */
};

static lk_status refuse(const struct reading *r, const char *wrong, lk_err *err) {
    return lk_fail(err, LK_E_FORMAT, "%s, line %zu: %s", r->path, r->line, wrong);
}

static lk_status no_memory(lk_err *err) {
    return lk_fail(err, LK_E_NOMEM, "no memory for a report");
}

static bool same_group(const json_t *group, const json_t *run) {
    static const char *const key[] = {"model", "model_fingerprint", "weights"};
    for (size_t i = 0; i < sizeof key / sizeof key[0]; i++)
        if (strcmp(text_of(group, key[i]), text_of(run, key[i])) != 0) return false;
    return true;
}

/* The group of a run line: one that is there, or a new one. */
static json_t *group_of(struct lk_report *report, const json_t *run) {
    size_t i;
    json_t *group;
    json_array_foreach(report->groups, i, group) if (same_group(group, run)) return group;
    group = json_pack("{s:s s:s s:s s:[] s:[] s:{} s:{}}", "model", text_of(run, "model"),
                      "model_fingerprint", text_of(run, "model_fingerprint"), "weights",
                      text_of(run, "weights"), "runs", "kv", "tasks", "from");
    return group && json_array_append_new(report->groups, group) == 0 ? group : NULL;
}

static lk_status take_run(struct reading *r, json_t *line, lk_err *err) {
    r->group = group_of(r->report, line);
    if (!r->group || json_array_append(json_object_get(r->group, "runs"), line))
        return no_memory(err);
    return LK_OK;
}

static bool lists(const json_t *names, const char *name) {
    size_t i;
    json_t *value;
    json_array_foreach((json_t *)names, i,
                       value) if (strcmp(json_string_value(value), name) == 0) return true;
    return false;
}

static lk_status take_result(struct reading *r, json_t *line, lk_err *err) {
    char name[NAME_ROOM];
    const char *task = text_of(line, "task"), *kv = text_of(line, "kv"),
               *wrong = wrong_result(line);
    if (wrong) return refuse(r, wrong, err);
    if (snprintf(name, sizeof name, "%s\n%s", task, kv) >= (int)sizeof name)
        return refuse(r, "the names of a task and a recipe are too long", err);
    json_t *from = json_object_get(r->group, "from"), *tasks = json_object_get(r->group, "tasks"),
           *names = json_object_get(r->group, "kv");
    const char *other = json_string_value(json_object_get(from, name));
    if (other && strcmp(other, r->path) != 0)
        return lk_fail(err, LK_E_ARG,
                       "%s and %s both have results of %s under %.80s; give one of them", other,
                       r->path, task, kv);
    json_t *by_kv = json_object_get(tasks, task);
    if (!by_kv && (json_object_set_new(tasks, task, json_object()) ||
                   !(by_kv = json_object_get(tasks, task))))
        return no_memory(err);
    if (json_object_set(by_kv, kv, line) || json_object_set_new(from, name, json_string(r->path)) ||
        (!lists(names, kv) && json_array_append_new(names, json_string(kv))))
        return no_memory(err);
    r->n_result++;
    return LK_OK;
}

static lk_status take_line(struct reading *r, json_t *line, lk_err *err) {
    const char *type = text_of(line, "type");
    bool run = strcmp(type, "run") == 0;
    if (!run && !r->group)
        return refuse(r, "no results of lowkey eval: they begin with a line of type \"run\"", err);
    if (run) return take_run(r, line, err);
    if (strcmp(type, "result") == 0) return take_result(r, line, err);
    if (strcmp(type, "item") == 0) return LK_OK;
    return lk_fail(err, LK_E_FORMAT,
                   "%s, line %zu: a line of type \"%.40s\"; expected run, item or result", r->path,
                   r->line, type);
}

lk_status lk_report_read_results(struct lk_report *report, const char *path, lk_err *err) {
    struct reading r = {.report = report, .path = path};
    FILE *file = fopen(path, "r");
    if (!file) return lk_fail(err, LK_E_IO, "cannot open results %s: %s", path, strerror(errno));
    lk_status status = LK_OK;
    char *text = NULL;
    size_t cap = 0;
    ssize_t len;
    while (status == LK_OK && (errno = 0, len = getline(&text, &cap, file)) >= 0) {
        json_error_t where;
        r.line++;
        if (len == 1 && text[0] == '\n') continue;
        json_t *line = json_loadb(text, (size_t)len, 0, &where);
        bool cut = !line && text[len - 1] != '\n' && r.group;
        if (cut) break;
        if (!line)
            status =
                lk_fail(err, LK_E_FORMAT, "%s, line %zu: not JSON: %s", path, r.line, where.text);
        else
            status = take_line(&r, line, err);
        json_decref(line);
    }
    if (status == LK_OK && ferror(file))
        status = lk_fail(err, LK_E_IO, "cannot read results %s: %s", path, strerror(errno));
    free(text);
    fclose(file);
    if (status == LK_OK && r.n_result == 0)
        status =
            lk_fail(err, LK_E_FORMAT,
                    "%s has no results yet; let 'lowkey eval -o %s' finish a task", path, path);
    return status;
}

/* ---- speed ---- */

static const char *wrong_bench(const json_t *rows) {
    static const char *const number[] = {"depth", "prefill_tps", "decode_tps", "cache_bytes",
                                         "bits_per_value"};
    size_t i;
    json_t *row;
    if (!json_is_array(rows) || json_array_size(rows) == 0)
        return "no \"results\"; expected what 'lowkey bench --json' prints";
    json_array_foreach((json_t *)rows, i, row) {
        if (!*text_of(row, "kv") || !json_is_number(json_object_get(row, "depth")))
            return "a row without \"kv\" or \"depth\"";
        for (size_t k = 0; k < sizeof number / sizeof number[0]; k++) {
            json_t *value = json_object_get(row, number[k]);
            if (value && !is_number(value)) return "a speed or a size that is not a number";
        }
    }
    return NULL;
}

lk_status lk_report_read_bench(struct lk_report *report, const char *path, lk_err *err) {
    json_error_t where;
    FILE *file = fopen(path, "r");
    if (!file) return lk_fail(err, LK_E_IO, "cannot open %s: %s", path, strerror(errno));
    json_t *whole = json_loadf(file, 0, &where);
    fclose(file);
    if (!whole)
        return lk_fail(err, LK_E_FORMAT, "%s, line %d: not JSON: %s", path, where.line, where.text);
    const char *wrong = json_is_object(whole)
                            ? wrong_bench(json_object_get(whole, "results"))
                            : "not an object; expected what 'lowkey bench --json' prints";
    lk_status status = wrong ? lk_fail(err, LK_E_FORMAT, "%s: %s", path, wrong) : LK_OK;
    if (status == LK_OK) {
        json_t *entry = json_pack("{s:s s:O s:O}", "path", path, "facts", whole, "results",
                                  json_object_get(whole, "results"));
        if (!entry || json_array_append_new(report->bench, entry)) status = no_memory(err);
    }
    json_decref(whole);
    return status;
}
