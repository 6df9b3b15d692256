#include "report/report_page.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

static const char style[] =
    "*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 "
    "system-ui,-apple-system,\"Segoe UI\",sans-serif}"
    "main{max-width:1232px;margin:0 auto;padding:24px 16px 64px}h1{font-size:26px;margin:8px 0 "
    "4px}h2{font-size:20px;margin:44px 0 6px;padding-top:18px;border-top:1px solid var(--edge)}"
    "h3{font-size:16px;margin:30px 0 8px}p{margin:6px "
    "0;max-width:76ch}.soft{color:var(--soft)}small,.small{font-size:13px}"
    ".plots{display:grid;gap:16px;grid-template-columns:repeat(auto-fill,minmax(min(100%,380px),"
    "1fr));margin:14px 0}.plots svg{width:100%;height:auto;max-width:520px}"
    ".heats{display:grid;gap:16px;grid-template-columns:repeat(auto-fill,minmax(min(100%,286px),"
    "1fr));margin:14px 0}"
    "figure{margin:0;padding:10px 8px 8px;border:1px solid "
    "var(--edge);border-radius:8px;overflow-x:auto;min-width:0}"
    "figcaption{font-weight:600;margin:0 4px 6px}figure "
    "p{font-size:13px;color:var(--soft);margin:6px 4px 0}"
    ".key{display:flex;flex-wrap:wrap;align-items:center;gap:4px "
    "16px}@media(max-width:660px){main{padding:12px 12px 48px}h1{font-size:22px}}"
    ".box{overflow-x:auto;border:1px solid var(--edge);border-radius:8px;margin:10px "
    "0}table{border-collapse:collapse;font-size:13.5px;width:100%;font-variant-numeric:tabular-"
    "nums}"
    "th,td{padding:5px 10px;text-align:right;white-space:nowrap;border-bottom:1px solid "
    "var(--grid)}thead th{background:var(--box);font-weight:600;vertical-align:bottom}"
    "tr:last-child td,tr:last-child "
    "th{border-bottom:0}th:first-child{text-align:left;position:sticky;left:0;background:var(--"
    "page);font-weight:500;max-width:230px;overflow:hidden;text-overflow:ellipsis}"
    "thead th:first-child{background:var(--box)}td i{font-style:normal;color:var(--soft)}tr.ref "
    "th,tr.ref td{color:var(--soft)}tbody tr:hover td,tbody tr:hover th{background:var(--box)}"
    "pre{background:var(--box);border:1px solid var(--edge);border-radius:8px;padding:10px "
    "12px;overflow-x:auto;font-size:13px;line-height:1.45}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;font-size:14px;margin:8px "
    "0}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}"
    "nav "
    "a{margin-right:16px}a{color:var(--c0)}.mark{display:inline-block;width:9px;height:9px;border-"
    "radius:5px;background:var(--c0)}.mark.sq{border-radius:0;background:none;border:2px solid "
    "var(--grey)}";

/* ---- what the parts share ---- */

const char *lk_page_text(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

double lk_page_number(const json_t *value) {
    return json_is_number(value) ? json_number_value(value) : NAN;
}

void lk_page_say(struct lk_page *page, const char *text) { lk_svg_escape(page->out, text); }

void lk_page_put(struct lk_page *page, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(page->out, format, args);
    va_end(args);
}

const char *lk_page_name(char *buf, size_t cap, const char *name) {
    static const struct {
        const char *name, *words;
    } known[] = {{"ppl", "perplexity"},
                 {"kl_mean", "KL"},
                 {"kl_p99", "KL p99"},
                 {"kl_p999", "KL p99.9"},
                 {"top1", "same top token"},
                 {"kl_by_depth", "KL by depth in the context"},
                 {"hellinger_by_layer", "Distance of attention (Hellinger) by layer"},
                 {"acc_norm", "accuracy (normalised)"},
                 {"acc", "accuracy"},
                 {"bits_per_value", "bits/value"},
                 {"bytes_per_token", "bytes/token"},
                 {"rouge1", "ROUGE-1"},
                 {"rouge2", "ROUGE-2"},
                 {"rougeL", "ROUGE-L"},
                 {"rougeL_full", "ROUGE-L to full"},
                 {"rougeLsum", "ROUGE-Lsum"},
                 {"rouge_l", "ROUGE-L"},
                 {"rouge_1", "ROUGE-1"},
                 {"rouge_2", "ROUGE-2"},
                 {"decode_tps", "decode tokens/s"},
                 {"prefill_tps", "prefill tokens/s"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].name, name) == 0) return known[i].words;
    size_t n = 0;
    for (; name[n] && n + 1 < cap; n++) buf[n] = name[n] == '_' ? ' ' : name[n];
    buf[n] = 0;
    return buf;
}

bool lk_page_is_llama(const char *kv) { return strncmp(kv, "llama.cpp:", 10) == 0; }

bool lk_page_is_full(const char *kv) {
    return strcmp(kv, "f16") == 0 || strcmp(kv, "llama.cpp:f16") == 0;
}

void lk_page_value(struct lk_page *page, double value, double error) {
    enum { MOST = 7 };
    char buf[LK_SVG_NUMBER];
    if (!isfinite(value) || !(error > 0)) {
        bool whole = fabs(value) < 1e15 && value == floor(value), small = fabs(value) < 1e-3;
        if (!isfinite(value) || (small && !whole))
            lk_page_put(page, "%s", lk_svg_number(buf, value));
        else if (whole || fabs(value) >= 1000)
            lk_page_put(page, "%.0f", value);
        else
            lk_page_put(page, "%.4g", value);
        return;
    }
    int digits = (int)ceil(-log10(error)) + 1; /* two of the interval's own */
    digits = digits < 0 ? 0 : digits > MOST ? MOST : digits;
    lk_page_put(page, "%.*f&nbsp;<i>&plusmn;&nbsp;%.*f</i>", digits, value, digits, error);
}

double lk_page_metric(const json_t *result, const char *name, double *error) {
    const json_t *metric = json_object_get(json_object_get(result, "metrics"), name);
    *error = 1.96 * lk_page_number(json_object_get(metric, "stderr"));
    return lk_page_number(json_object_get(metric, "value"));
}

/* Metrics of what it took, which say nothing of how well it went. */
static bool is_cost(const char *name) {
    static const char *const cost[] = {"bits_per_value", "bytes_per_token", "tokens_per_second",
                                       "seconds"};
    size_t len = strlen(name);
    for (size_t i = 0; i < sizeof cost / sizeof cost[0]; i++)
        if (strcmp(cost[i], name) == 0) return true;
    return len > 6 && strcmp(name + len - 6, "_bytes") == 0;
}

const char *lk_page_chief(const json_t *by_kv) {
    static const char *const better[] = {"kl_mean", "acc_norm", "rougeL"};
    const char *kv, *name, *first = NULL;
    json_t *result, *metric;
    json_object_foreach((json_t *)by_kv, kv, result) {
        for (size_t i = 0; i < sizeof better / sizeof better[0]; i++)
            if (json_object_get(json_object_get(result, "metrics"), better[i])) return better[i];
        json_object_foreach(json_object_get(result, "metrics"), name,
                            metric) if (!first && !is_cost(name)) first = name;
    }
    return first;
}

void lk_page_plot(struct lk_page *page, const char *caption, const char *note,
                  struct lk_plot plot) {
    lk_page_put(page, "<figure><figcaption>");
    lk_page_say(page, caption);
    lk_page_put(page, "</figcaption>");
    plot.title = caption;
    plot.width = 380; /* about what a phone has, and each of three columns on a desk */
    plot.height = 320;
    lk_svg_plot(page->out, &plot);
    if (note && *note) {
        lk_page_put(page, "<p>");
        lk_page_say(page, note);
        lk_page_put(page, "</p>");
    }
    lk_page_put(page, "</figure>\n");
}

/* ---- the page ---- */

static void fact(struct lk_page *page, const char *name, const char *value) {
    if (!*value) return;
    lk_page_put(page, "<dt>%s</dt><dd>", name);
    lk_page_say(page, value);
    lk_page_put(page, "</dd>");
}

static void group_title(struct lk_page *page, const json_t *group) {
    const char *weights = lk_page_text(group, "weights");
    lk_page_say(page, lk_page_text(group, "model"));
    if (!*weights) return;
    lk_page_put(page, ", weights ");
    lk_page_say(page, strcmp(weights, "f32") == 0       ? "in f32"
                      : strcmp(weights, "shipped") == 0 ? "as shipped"
                                                        : weights);
}

static void write_group(struct lk_page *page, const json_t *group, size_t i) {
    const json_t *run = json_array_get(json_object_get(group, "runs"), 0);
    char threads[LK_SVG_NUMBER] = "";
    if (json_is_integer(json_object_get(run, "n_threads")))
        snprintf(threads, sizeof threads, "%lld",
                 (long long)json_integer_value(json_object_get(run, "n_threads")));
    lk_page_put(page, "<section id=\"g%zu\"><h2>", i);
    group_title(page, group);
    lk_page_put(page, "</h2><dl>");
    fact(page, "machine", lk_page_text(run, "cpu"));
    fact(page, "threads", threads);
    fact(page, "lowkey", lk_page_text(run, "version"));
    fact(page, "date", lk_page_text(run, "date"));
    fact(page, "model fingerprint", lk_page_text(group, "model_fingerprint"));
    lk_page_put(page, "</dl>\n");
    if (strcmp(lk_page_text(group, "weights"), "f32") != 0)
        lk_page_put(page, "<p class=\"soft small\">Quantised weights round activations to 8 bits, "
                          "which turns any difference into noise: "
                          "small values of KL are that noise. Its floor is llama.cpp:plain, the "
                          "same f16 cache with sums in another order. "
                          "Results with weights in f32 are free of it.</p>\n");
    lk_page_overview(page, group);
    lk_page_group_plots(page, group);
    lk_page_task_tables(page, group);
    lk_page_put(page, "</section>\n");
}

static void write_bench(struct lk_page *page, const json_t *bench, size_t i) {
    static const char *const key[] = {"model", "cpu", "kernels", "version", "date"};
    const json_t *facts = json_object_get(bench, "facts");
    lk_page_put(page, "<section id=\"b%zu\"><h2>Speed", i);
    if (*lk_page_text(facts, "model")) lk_page_put(page, " of ");
    lk_page_say(page, lk_page_text(facts, "model"));
    lk_page_put(page, "</h2><dl>");
    fact(page, "file", lk_page_text(bench, "path"));
    for (size_t k = 1; k < sizeof key / sizeof key[0]; k++)
        fact(page, key[k], lk_page_text(facts, key[k]));
    lk_page_put(page, "</dl>\n");
    lk_page_bench_plots(page, bench);
    lk_page_bench_table(page, bench);
    lk_page_put(page, "</section>\n");
}

/* Each command once, in order. */
static void write_commands(struct lk_page *page, const struct lk_report *report,
                           const char *command) {
    size_t i, k, j;
    json_t *group, *run, *bench;
    lk_page_put(page, "<section id=\"made\"><h2>How this was made</h2><pre>");
    json_array_foreach(report->groups, i, group) {
        const json_t *runs = json_object_get(group, "runs");
        json_array_foreach((json_t *)runs, k, run) {
            const char *text = lk_page_text(run, "command");
            for (j = 0;
                 j < k && strcmp(text, lk_page_text(json_array_get(runs, j), "command")) != 0;)
                j++;
            if (j < k || !*text) continue;
            lk_page_say(page, text);
            lk_page_put(page, "\n");
        }
    }
    json_array_foreach(report->bench, i, bench) {
        const char *text = lk_page_text(json_object_get(bench, "facts"), "command");
        if (!*text) continue;
        lk_page_say(page, text);
        lk_page_put(page, "\n");
    }
    lk_page_say(page, command);
    lk_page_put(page, "</pre></section>\n");
}

static void write_head(struct lk_page *page, const struct lk_report *report) {
    size_t i;
    json_t *group;
    lk_page_put(page,
                "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta "
                "name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
                "<title>lowkey: quality, memory and speed of KV "
                "caches</title>\n<style>%s%s</style></head>\n<body><main>\n",
                lk_svg_style, style);
    lk_page_put(
        page,
        "<h1>Quality, memory and speed of key-value caches</h1>\n<p>Every recipe is compared with "
        "the full f16 cache on the same tokens. "
        "<b>Bits/value</b> counts every byte that a cache holds: codes, scales, means, exact rows, "
        "padding, states. <b>KL</b> is KL(full &#8214; recipe) of "
        "next-token distributions, in nats. Intervals are 95&nbsp;%%: value &plusmn; 1.96 standard "
        "errors.</p>\n"
        "<p class=\"small soft\"><span class=\"mark\"></span> lowkey&#8195;<span class=\"mark "
        "sq\"></span> llama.cpp&#8217;s cache types and full caches, for reference</p>\n<nav>");
    json_array_foreach(report->groups, i, group) {
        lk_page_put(page, "<a href=\"#g%zu\">", i);
        group_title(page, group);
        lk_page_put(page, "</a>");
    }
    for (i = 0; i < json_array_size(report->bench); i++) {
        lk_page_put(page, "<a href=\"#b%zu\">Speed ", i);
        lk_page_say(page, lk_page_text(json_object_get(json_array_get(report->bench, i), "facts"),
                                       "model"));
        lk_page_put(page, "</a>");
    }
    lk_page_put(page, "<a href=\"#made\">How this was made</a></nav>\n");
}

lk_status lk_report_write(const struct lk_report *report, const char *command, FILE *out,
                          lk_err *err) {
    struct lk_page page = {.out = out};
    size_t i;
    json_t *part;
    write_head(&page, report);
    json_array_foreach(report->groups, i, part) write_group(&page, part, i);
    json_array_foreach(report->bench, i, part) write_bench(&page, part, i);
    write_commands(&page, report, command);
    lk_page_put(&page, "</main></body></html>\n");
    if (page.failed) return lk_fail(err, LK_E_NOMEM, "no memory for a report");
    return fflush(out) == 0 && !ferror(out) ? LK_OK
                                            : lk_fail(err, LK_E_IO, "cannot write the report");
}
