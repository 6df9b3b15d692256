/* The page of a report: its head, a section for each group and each file of speeds, and the
 * commands that made it. */
#include "report/report_page.h"

#include "report/html.h"
#include "report/report_plots.h"
#include "report/report_tables.h"
#include "report/svg.h"

#include <string.h>

static const char style[] =
    "*{box-sizing:border-box}a{color:var(--c0)}nav a{margin-right:16px}"
    "body{margin:0;background:var(--page);color:var(--ink);"
    "font:15px/1.5 system-ui,-apple-system,\"Segoe UI\",sans-serif}"
    "main{max-width:1232px;margin:0 auto;padding:24px 16px 64px}"
    "h1{font-size:26px;margin:8px 0 4px}h3{font-size:16px;margin:30px 0 8px}"
    "h2{font-size:20px;margin:44px 0 6px;padding-top:18px;border-top:1px solid var(--edge)}"
    "p{margin:6px 0;max-width:76ch}.soft{color:var(--soft)}.small{font-size:13px}"
    ".plots,.heats{display:grid;gap:16px;margin:14px 0;"
    "grid-template-columns:repeat(auto-fill,minmax(min(100%,380px),1fr))}"
    ".heats{grid-template-columns:repeat(auto-fill,minmax(min(100%,286px),1fr))}"
    ".plots svg{width:100%;height:auto;max-width:520px}"
    "figure{margin:0;padding:10px 8px 8px;border:1px solid var(--edge);border-radius:8px;"
    "overflow-x:auto;min-width:0;break-inside:avoid}"
    "figcaption{font-weight:600;margin:0 4px 6px}"
    "figure p{font-size:13px;color:var(--soft);margin:6px 4px 0}"
    ".box{overflow-x:auto;border:1px solid var(--edge);border-radius:8px;margin:10px 0}"
    "table{border-collapse:collapse;font-size:13.5px;width:100%;font-variant-numeric:tabular-nums}"
    "th,td{padding:5px 10px;text-align:right;white-space:nowrap;"
    "border-bottom:1px solid var(--grid)}"
    "tr:last-child td,tr:last-child th{border-bottom:0}"
    "th:first-child{text-align:left;position:sticky;left:0;background:var(--page);"
    "font-weight:500;max-width:230px;overflow:hidden;text-overflow:ellipsis}"
    "thead th,thead th:first-child{background:var(--box);font-weight:600;vertical-align:bottom}"
    "td i{font-style:normal;color:var(--soft)}tr.ref th,tr.ref td{color:var(--soft)}"
    "tbody tr:hover td,tbody tr:hover th{background:var(--box)}"
    "pre{background:var(--box);border:1px solid var(--edge);border-radius:8px;padding:10px 12px;"
    "overflow-x:auto;font-size:13px;line-height:1.45}"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;font-size:14px;"
    "margin:8px 0}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}"
    ".mark{display:inline-block;width:9px;height:9px;border-radius:5px;background:var(--c0)}"
    ".mark.ref{border-radius:0;background:none;border:2px solid var(--c8)}"
    "@media(max-width:660px){main{padding:12px 12px 48px}h1{font-size:22px}}"
    "@media print{.box,pre{overflow-x:visible;white-space:pre-wrap}}";

static void write_fact(FILE *out, const char *name, const char *value) {
    if (!*value) return;
    fprintf(out, "<dt>%s</dt>", name);
    lk_html_text(out, "<dd>", value, "</dd>");
}

static void write_group_title(FILE *out, const json_t *group) {
    const char *weights = lk_report_text(group, "weights");
    lk_html_escape(out, lk_report_text(group, "model"));
    if (strcmp(weights, "f32") == 0) weights = "in f32";
    if (strcmp(weights, "shipped") == 0) weights = "as shipped";
    if (*weights) lk_html_text(out, ", weights ", weights, "");
}

static bool write_group(FILE *out, const json_t *group, size_t i) {
    const json_t *run = json_array_get(json_object_get(group, "runs"), 0),
                 *n_threads = json_object_get(run, "n_threads");
    char threads[LK_SVG_NUMBER] = "";
    if (json_is_integer(n_threads))
        snprintf(threads, sizeof threads, "%lld", (long long)json_integer_value(n_threads));
    fprintf(out, "<section id=\"g%zu\"><h2>", i);
    write_group_title(out, group);
    fputs("</h2><dl>", out);
    write_fact(out, "machine", lk_report_text(run, "cpu"));
    write_fact(out, "threads", threads);
    write_fact(out, "lowkey", lk_report_text(run, "version"));
    write_fact(out, "date", lk_report_text(run, "date"));
    write_fact(out, "model fingerprint", lk_report_text(group, "model_fingerprint"));
    fputs("</dl>\n", out);
    if (strcmp(lk_report_text(group, "weights"), "f32") != 0)
        fputs("<p class=\"soft small\">With quantized weights, activations are rounded to 8 bits. "
              "This turns any difference into noise, so small values of KL are only noise. Its "
              "floor is llama.cpp:plain: the same f16 cache, summed in another order. Results with "
              "weights in f32 do not have this noise.</p>\n",
              out);
    lk_report_overview(out, group);
    bool complete = lk_report_group_plots(out, group);
    complete &= lk_report_task_tables(out, group);
    fputs("</section>\n", out);
    return complete;
}

static bool write_bench(FILE *out, const json_t *bench, size_t i) {
    static const char *const key[] = {"cpu", "kernels", "version", "date"};
    const json_t *facts = json_object_get(bench, "facts");
    const char *model = lk_report_text(facts, "model");
    fprintf(out, "<section id=\"b%zu\"><h2>Speed", i);
    lk_html_text(out, *model ? " of " : "", model, "</h2><dl>");
    write_fact(out, "file", lk_report_text(bench, "path"));
    for (size_t k = 0; k < sizeof key / sizeof key[0]; k++)
        write_fact(out, key[k], lk_report_text(facts, key[k]));
    fputs("</dl>\n", out);
    bool complete = lk_report_group_plots(out, bench);
    lk_report_bench_table(out, bench);
    fputs("</section>\n", out);
    return complete;
}

/* Each command of a group's runs once, in order; then those of the benchmarks and the report's. */
static void write_commands(FILE *out, const struct lk_report *report, const char *command) {
    size_t i, k, earlier;
    json_t *group, *run, *bench;
    fputs("<section id=\"made\"><h2>How this was made</h2><pre>", out);
    json_array_foreach(report->groups, i, group) {
        const json_t *runs = json_object_get(group, "runs");
        json_array_foreach((json_t *)runs, k, run) {
            const char *text = lk_report_text(run, "command");
            for (earlier = 0; earlier < k; earlier++)
                if (!strcmp(text, lk_report_text(json_array_get(runs, earlier), "command"))) break;
            if (earlier == k && *text) lk_html_text(out, "", text, "\n");
        }
    }
    json_array_foreach(report->bench, i, bench) {
        const char *text = lk_report_text(json_object_get(bench, "facts"), "command");
        if (*text) lk_html_text(out, "", text, "\n");
    }
    lk_html_text(out, "", command, "</pre></section>\n");
}

static void write_head(FILE *out, const struct lk_report *report) {
    size_t i;
    json_t *group, *bench;
    fprintf(out,
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
            "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
            "<title>lowkey: quality, memory and speed of KV caches</title>\n"
            "<style>%s%s</style></head>\n<body><main>\n",
            lk_svg_style, style);
    fputs("<h1>Quality, memory and speed of key-value caches</h1>\n"
          "<p>Every recipe is compared with the full f16 cache on the same tokens. "
          "<b>Bits/value</b> counts every byte of a cache: codes, scales, means, exact rows, "
          "padding, states. <b>KL</b> is KL(full &#8214; recipe) of next-token distributions, in "
          "nats. Intervals are 95&nbsp;%: value &plusmn; 1.96 standard errors.</p>\n"
          "<p class=\"small soft\"><span class=\"mark\"></span> lowkey&#8195;<span class=\"mark "
          "ref\"></span> llama.cpp&#8217;s cache types and full caches, for reference</p>\n<nav>",
          out);
    json_array_foreach(report->groups, i, group) {
        fprintf(out, "<a href=\"#g%zu\">", i);
        write_group_title(out, group);
        fputs("</a>", out);
    }
    json_array_foreach(report->bench, i, bench) {
        fprintf(out, "<a href=\"#b%zu\">", i);
        lk_html_text(out, "Speed ", lk_report_text(json_object_get(bench, "facts"), "model"),
                     "</a>");
    }
    fputs("<a href=\"#made\">How this was made</a></nav>\n", out);
}

lk_status lk_report_write(const struct lk_report *report, const char *command, FILE *out,
                          lk_err *err) {
    size_t i;
    json_t *part;
    bool complete = true;
    write_head(out, report);
    json_array_foreach(report->groups, i, part) complete &= write_group(out, part, i);
    json_array_foreach(report->bench, i, part) complete &= write_bench(out, part, i);
    write_commands(out, report, command);
    fputs("</main></body></html>\n", out);
    if (!complete) return lk_fail(err, LK_E_NOMEM, "out of memory for a report");
    return fflush(out) == 0 && !ferror(out) ? LK_OK
                                            : lk_fail(err, LK_E_IO, "cannot write the report");
}
