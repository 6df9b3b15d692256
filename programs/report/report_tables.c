#include "report/report_page.h"

#include <math.h>
#include <string.h>

static void open_table(struct lk_page *page) {
    lk_page_put(page, "<div class=\"box\"><table><thead><tr><th>cache</th>");
}

static void column(struct lk_page *page, const char *above, const char *name) {
    char buf[80];
    lk_page_put(page, "<th>");
    if (*above) {
        lk_page_say(page, above);
        lk_page_put(page, "<br>");
    }
    lk_page_say(page, lk_page_name(buf, sizeof buf, name));
    lk_page_put(page, "</th>");
}

static void open_row(struct lk_page *page, const char *kv) {
    lk_page_put(page, "<tr%s><th title=\"",
                lk_page_is_llama(kv) || lk_page_is_full(kv) ? " class=\"ref\"" : "");
    lk_page_say(page, kv);
    lk_page_put(page, "\">");
    lk_page_say(page, kv);
    lk_page_put(page, "</th>");
}

static void cell(struct lk_page *page, const json_t *result, const char *name) {
    double error, value = lk_page_metric(result, name, &error);
    const json_t *n =
        json_object_get(json_object_get(json_object_get(result, "metrics"), name), "n");
    if (json_is_number(n))
        lk_page_put(page, "<td title=\"n = %.0f\">", json_number_value(n));
    else
        lk_page_put(page, "<td>");
    if (strcmp(name, "bits_per_value") == 0 && isfinite(value))
        lk_page_put(page, "%.2f</td>", value);
    else
        lk_page_value(page, value, error), lk_page_put(page, "</td>");
}

/* The first task that has a metric of a recipe: what holds for all of them alike. */
static const json_t *any_result(const json_t *tasks, const char *kv, const char *metric) {
    const char *task;
    json_t *by_kv;
    json_object_foreach((json_t *)tasks, task, by_kv) {
        const json_t *result = json_object_get(by_kv, kv);
        double error;
        if (isfinite(lk_page_metric(result, metric, &error))) return result;
    }
    return NULL;
}

void lk_page_overview(struct lk_page *page, const json_t *group) {
    static const char *const of_text[] = {"ppl", "kl_mean", "top1"};
    const json_t *tasks = json_object_get(group, "tasks");
    const char *task;
    json_t *by_kv, *name;
    size_t i;
    lk_page_put(page, "<h3>Overview</h3>\n");
    open_table(page);
    column(page, "", "bits_per_value");
    column(page, "", "bytes_per_token");
    json_object_foreach((json_t *)tasks, task, by_kv) {
        bool text = strcmp(task, "text") == 0;
        for (size_t k = 0; text && k < sizeof of_text / sizeof of_text[0]; k++)
            column(page, task, of_text[k]);
        if (!text && lk_page_chief(by_kv)) column(page, task, lk_page_chief(by_kv));
    }
    lk_page_put(page, "</tr></thead><tbody>\n");
    json_array_foreach(json_object_get(group, "kv"), i, name) {
        const char *kv = json_string_value(name);
        open_row(page, kv);
        cell(page, any_result(tasks, kv, "bits_per_value"), "bits_per_value");
        cell(page, any_result(tasks, kv, "bytes_per_token"), "bytes_per_token");
        json_object_foreach((json_t *)tasks, task, by_kv) {
            bool text = strcmp(task, "text") == 0;
            for (size_t k = 0; text && k < sizeof of_text / sizeof of_text[0]; k++)
                cell(page, json_object_get(by_kv, kv), of_text[k]);
            if (!text && lk_page_chief(by_kv))
                cell(page, json_object_get(by_kv, kv), lk_page_chief(by_kv));
        }
        lk_page_put(page, "</tr>\n");
    }
    lk_page_put(page, "</tbody></table></div>\n");
}

/* Names of all metrics of a task as keys of an object: memory, then the others in order of appearance. */
static json_t *metric_names(const json_t *by_kv) {
    const char *kv, *name;
    json_t *result, *metric,
        *names = json_pack("{s:b s:b}", "bits_per_value", 1, "bytes_per_token", 1);
    json_object_foreach((json_t *)by_kv, kv, result)
        json_object_foreach(json_object_get(result, "metrics"), name, metric)
            json_object_set_new(names, name, json_true());
    return names;
}

void lk_page_task_tables(struct lk_page *page, const json_t *group) {
    const char *task, *metric;
    json_t *by_kv, *name, *one;
    size_t i;
    json_object_foreach(json_object_get(group, "tasks"), task, by_kv) {
        json_t *names = metric_names(by_kv);
        lk_page_put(page, "<h3>");
        lk_page_say(page, task);
        lk_page_put(page, "</h3>\n");
        open_table(page);
        json_object_foreach(names, metric, one) column(page, "", metric);
        lk_page_put(page, "</tr></thead><tbody>\n");
        json_array_foreach(json_object_get(group, "kv"), i, name) {
            const char *kv = json_string_value(name);
            const json_t *result = json_object_get(by_kv, kv);
            if (!result) continue;
            open_row(page, kv);
            json_object_foreach(names, metric, one) cell(page, result, metric);
            lk_page_put(page, "</tr>\n");
        }
        lk_page_put(page, "</tbody></table></div>\n");
        page->failed |= !names;
        json_decref(names);
    }
}

void lk_page_bench_table(struct lk_page *page, const json_t *bench) {
    static const char *const key[] = {"depth", "prefill_tps", "decode_tps", "cache_bytes",
                                      "bits_per_value"};
    size_t i;
    json_t *row;
    open_table(page);
    for (size_t k = 0; k < sizeof key / sizeof key[0]; k++) column(page, "", key[k]);
    lk_page_put(page, "</tr></thead><tbody>\n");
    json_array_foreach(json_object_get(bench, "results"), i, row) {
        open_row(page, lk_page_text(row, "kv"));
        for (size_t k = 0; k < sizeof key / sizeof key[0]; k++) {
            lk_page_put(page, "<td>");
            lk_page_value(page, lk_page_number(json_object_get(row, key[k])), NAN);
            lk_page_put(page, "</td>");
        }
        lk_page_put(page, "</tr>\n");
    }
    lk_page_put(page, "</tbody></table></div>\n");
}
