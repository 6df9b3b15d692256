/* Reads and checks the results that a report shows. */
#include "report/report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

lk_status lk_report_init(struct lk_report *report, lk_err *err) {
    *report = (struct lk_report){json_array(), json_array()};
    if (report->groups && report->bench) return LK_OK;
    lk_report_free(report);
    return lk_fail(err, LK_E_NOMEM, "out of memory for a report");
}

void lk_report_free(struct lk_report *report) {
    json_decref(report->groups);
    json_decref(report->bench);
    *report = (struct lk_report){0};
}

bool lk_report_is_full(const char *kv) {
    return strcmp(kv, "f16") == 0 || strcmp(kv, "llama.cpp:f16") == 0;
}

const char *lk_report_text(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

double lk_report_number(const json_t *value) {
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* ---- checks: each returns what is wrong, or NULL ---- */

/* A number is null if there was none. */
static bool is_number(const json_t *value) { return json_is_number(value) || json_is_null(value); }

static bool is_number_row(const json_t *array, size_t n) {
    size_t i;
    json_t *value;
    if (!json_is_array(array) || json_array_size(array) != n) return false;
    json_array_foreach((json_t *)array, i, value) {
        if (!is_number(value)) return false;
    }
    return true;
}

static const char *check_metrics(json_t *metrics) {
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

static const char *check_series(json_t *all) {
    const char *name;
    json_t *series;
    if (all && !json_is_object(all)) return "\"series\" is not an object";
    json_object_foreach(all, name, series) {
        json_t *x = json_object_get(series, "x"), *error = json_object_get(series, "stderr");
        size_t n = json_array_size(x);
        if (!is_number_row(x, n) || !is_number_row(json_object_get(series, "y"), n) ||
            (json_is_array(error) && !is_number_row(error, n)))
            return "a series is not {\"x\", \"y\"} with equally many numbers";
    }
    return NULL;
}

static const char *check_heat(json_t *all) {
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
        json_array_foreach(z, i, row) {
            if (!is_number_row(row, json_array_size(x)))
                return "a heat map does not have a number for each column in every row";
        }
    }
    return NULL;
}

static const char *check_bench(const json_t *rows) {
    static const char *const number[] = {"depth", "prefill_tps", "decode_tps", "cache_bytes",
                                         "bits_per_value"};
    size_t i;
    json_t *row;
    if (!json_is_array(rows) || json_array_size(rows) == 0)
        return "no \"results\"; expected the output of 'lowkey bench --json'";
    json_array_foreach((json_t *)rows, i, row) {
        if (!*lk_report_text(row, "kv") || !json_is_number(json_object_get(row, "depth")))
            return "a row without \"kv\" or \"depth\"";
        for (size_t k = 0; k < sizeof number / sizeof number[0]; k++) {
            json_t *value = json_object_get(row, number[k]);
            if (value && !is_number(value)) return "a speed or a size that is not a number";
        }
    }
    return NULL;
}

/* ---- results ---- */

/* One file while it is read. */
struct reader {
    struct lk_report *report;
    const char *path;
    size_t line, n_result;
    json_t *group; /* borrowed; of the file's last run line */
};

static lk_status bad_line(const struct reader *r, const char *wrong, lk_err *err) {
    return lk_fail(err, LK_E_FORMAT, "%s, line %zu: %s", r->path, r->line, wrong);
}

static lk_status no_memory(lk_err *err) {
    return lk_fail(err, LK_E_NOMEM, "out of memory for a report");
}

/* List a recipe under "kv" with the next color, if it is new. Returns false without memory. */
static bool add_recipe(json_t *names, const char *kv) {
    const char *name;
    json_t *value;
    int color = 0;
    if (!names || json_object_get(names, kv)) return names != NULL;
    json_object_foreach(names, name, value) color += json_integer_value(value) >= 0;
    if (lk_report_is_full(kv) || strncmp(kv, "llama.cpp:", 10) == 0) color = -1;
    return json_object_set_new(names, kv, json_integer(color)) == 0;
}

static bool is_same_group(const json_t *group, const json_t *run) {
    static const char *const key[] = {"model", "model_fingerprint", "weights"};
    for (size_t i = 0; i < sizeof key / sizeof key[0]; i++)
        if (strcmp(lk_report_text(group, key[i]), lk_report_text(run, key[i])) != 0) return false;
    return true;
}

/* Add a run line to its group, which becomes the reader's. */
static lk_status add_run(struct reader *r, json_t *run, lk_err *err) {
    json_t *groups = r->report->groups;
    size_t i = 0;
    while (i < json_array_size(groups) && !is_same_group(json_array_get(groups, i), run)) i++;
    if (i == json_array_size(groups))
        json_array_append_new(
            groups, json_pack("{s:s s:s s:s s:[] s:{} s:{}}", "model", lk_report_text(run, "model"),
                              "model_fingerprint", lk_report_text(run, "model_fingerprint"),
                              "weights", lk_report_text(run, "weights"), "runs", "kv", "tasks"));
    r->group = json_array_get(groups, i);
    return json_array_append(json_object_get(r->group, "runs"), run) ? no_memory(err) : LK_OK;
}

static lk_status add_result(struct reader *r, json_t *line, lk_err *err) {
    const char *task = lk_report_text(line, "task"), *kv = lk_report_text(line, "kv"), *wrong;
    if (!*task || !*kv) return bad_line(r, "a result without \"task\" or \"kv\"", err);
    if ((wrong = check_metrics(json_object_get(line, "metrics"))) ||
        (wrong = check_series(json_object_get(line, "series"))) ||
        (wrong = check_heat(json_object_get(line, "heat"))))
        return bad_line(r, wrong, err);
    json_t *tasks = json_object_get(r->group, "tasks");
    if (!json_object_get(tasks, task)) json_object_set_new(tasks, task, json_object());
    json_t *by_kv = json_object_get(tasks, task), *other = json_object_get(by_kv, kv);
    if (other && strcmp(lk_report_text(other, "path"), r->path) != 0)
        return lk_fail(err, LK_E_ARG,
                       "%s and %s both have results of %.80s with %.80s; give one of them",
                       lk_report_text(other, "path"), r->path, task, kv);
    if (!by_kv || json_object_set_new(line, "path", json_string(r->path)) ||
        json_object_set(by_kv, kv, line) || !add_recipe(json_object_get(r->group, "kv"), kv))
        return no_memory(err);
    r->n_result++;
    return LK_OK;
}

static lk_status add_line(struct reader *r, json_t *line, lk_err *err) {
    const char *type = lk_report_text(line, "type");
    if (strcmp(type, "run") == 0) return add_run(r, line, err);
    if (!r->group)
        return bad_line(r, "not results of 'lowkey eval': expected a line of type \"run\"", err);
    if (strcmp(type, "result") == 0) return add_result(r, line, err);
    if (strcmp(type, "item") == 0) return LK_OK;
    return lk_fail(err, LK_E_FORMAT,
                   "%s, line %zu: a line of type \"%.40s\"; expected run, item or result", r->path,
                   r->line, type);
}

lk_status lk_report_read_results(struct lk_report *report, const char *path, lk_err *err) {
    struct reader r = {.report = report, .path = path};
    FILE *file = fopen(path, "r");
    if (!file) return lk_fail(err, LK_E_IO, "cannot open results %s: %s", path, strerror(errno));
    lk_status status = LK_OK;
    char *text = NULL;
    size_t cap = 0;
    ssize_t len;
    while (!status && (errno = 0, len = getline(&text, &cap, file)) >= 0) {
        json_error_t where;
        r.line++;
        if (len == 1 && text[0] == '\n') continue;
        json_t *line = json_loadb(text, (size_t)len, 0, &where);
        bool cut_off = !line && text[len - 1] != '\n' && r.group;
        if (cut_off) break;
        status = line ? add_line(&r, line, err)
                      : lk_fail(err, LK_E_FORMAT, "%s, line %zu: not JSON: %s", path, r.line,
                                where.text);
        json_decref(line);
    }
    if (!status && ferror(file))
        status = lk_fail(err, LK_E_IO, "cannot read results %s: %s", path, strerror(errno));
    free(text);
    fclose(file);
    if (!status && r.n_result == 0)
        status =
            lk_fail(err, LK_E_FORMAT,
                    "%s has no results yet; let 'lowkey eval -o %s' finish a task", path, path);
    return status;
}

/* ---- speed ---- */

/* Append a row's speeds to the series of its recipe. Returns false without memory. */
static bool add_speeds(json_t *entry, const json_t *row) {
    static const char *const field[] = {"decode_tps", "prefill_tps"};
    const char *kv = lk_report_text(row, "kv");
    json_t *speed = json_object_get(json_object_get(entry, "tasks"), "speed");
    if (!json_object_get(speed, kv)) json_object_set_new(speed, kv, json_pack("{s:{}}", "series"));
    json_t *all = json_object_get(json_object_get(speed, kv), "series");
    bool added = all && add_recipe(json_object_get(entry, "kv"), kv);
    for (int i = 0; i < 2 && added; i++) {
        json_t *series = json_object_get(all, field[i]), *y = json_object_get(row, field[i]);
        if (!y) continue;
        if (!series) {
            series = json_pack("{s:[] s:[] s:s s:s}", "x", "y", "x_label", "tokens in the cache",
                               "y_label", "tokens/s");
            json_object_set_new(all, field[i], series);
        }
        added = !json_array_append(json_object_get(series, "x"), json_object_get(row, "depth")) &&
                !json_array_append(json_object_get(series, "y"), y);
    }
    return added;
}

/* Add a checked file of lowkey bench. */
static lk_status add_bench(struct lk_report *report, const char *path, json_t *whole, lk_err *err) {
    json_t *entry = json_pack("{s:s s:O s:{} s:{s:{}}}", "path", path, "facts", whole, "kv",
                              "tasks", "speed"),
           *row;
    bool added = json_array_append_new(report->bench, entry) == 0;
    size_t i;
    json_array_foreach(json_object_get(whole, "results"), i, row) {
        added = added && add_speeds(entry, row);
    }
    return added ? LK_OK : no_memory(err);
}

lk_status lk_report_read_bench(struct lk_report *report, const char *path, lk_err *err) {
    json_error_t where;
    FILE *file = fopen(path, "r");
    if (!file) return lk_fail(err, LK_E_IO, "cannot open %s: %s", path, strerror(errno));
    json_t *whole = json_loadf(file, 0, &where);
    fclose(file);
    if (!whole)
        return lk_fail(err, LK_E_FORMAT, "%s, line %d: not JSON: %s", path, where.line, where.text);
    const char *wrong = check_bench(json_object_get(whole, "results"));
    lk_status status = wrong ? lk_fail(err, LK_E_FORMAT, "%s: %s", path, wrong)
                             : add_bench(report, path, whole, err);
    json_decref(whole);
    return status;
}

/* ---- metrics ---- */

double lk_report_metric(const json_t *result, const char *name, double *error) {
    const json_t *metric = json_object_get(json_object_get(result, "metrics"), name);
    *error = 1.96 * lk_report_number(json_object_get(metric, "stderr"));
    return lk_report_number(json_object_get(metric, "value"));
}

const char *lk_report_metric_label(char *buf, const char *name) {
    static const char *const known[][2] = {
        {"ppl", "perplexity"},
        {"kl_mean", "KL"},
        {"kl_median", "KL median"},
        {"kl_p99", "KL p99"},
        {"kl_p999", "KL p99.9"},
        {"top1", "same top token"},
        {"kl_by_depth", "KL by depth in the context"},
        {"hellinger_by_layer", "Distance of attention (Hellinger) by layer"},
        {"acc_norm", "accuracy (normalized)"},
        {"acc", "accuracy"},
        {"bits_per_value", "bits/value"},
        {"bits_with_sidecar", "bits/value with sidecar"},
        {"bytes_per_token", "bytes/token"},
        {"rouge1", "ROUGE-1"},
        {"rouge2", "ROUGE-2"},
        {"rougeL", "ROUGE-L"},
        {"rougeL_full", "ROUGE-L to full"},
        {"rougeLsum", "ROUGE-Lsum"},
        {"rouge_l", "ROUGE-L"},
        {"decode_tps", "decode tokens/s"},
        {"prefill_tps", "prefill tokens/s"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i][0], name) == 0) return known[i][1];
    size_t n = 0;
    for (; name[n] && n + 1 < LK_REPORT_LABEL; n++) buf[n] = name[n] == '_' ? ' ' : name[n];
    buf[n] = 0;
    return buf;
}

/* Metrics of the cost of a run say nothing about its quality. */
static bool is_cost(const char *name) {
    static const char *const cost[] = {"bits_per_value", "bits_with_sidecar", "bytes_per_token",
                                       "tokens_per_second", "seconds"};
    size_t len = strlen(name);
    for (size_t i = 0; i < sizeof cost / sizeof cost[0]; i++)
        if (strcmp(cost[i], name) == 0) return true;
    return len > 6 && strcmp(name + len - 6, "_bytes") == 0;
}

const char *lk_report_primary_metric(const json_t *by_kv) {
    static const char *const preferred[] = {"kl_mean", "acc_norm", "rougeL"};
    const char *kv, *name, *first = NULL;
    json_t *result, *metric;
    json_object_foreach((json_t *)by_kv, kv, result) {
        json_t *metrics = json_object_get(result, "metrics");
        for (size_t i = 0; i < sizeof preferred / sizeof preferred[0]; i++)
            if (json_object_get(metrics, preferred[i])) return preferred[i];
        json_object_foreach(metrics, name, metric) {
            if (!first && !is_cost(name)) first = name;
        }
    }
    return first;
}
