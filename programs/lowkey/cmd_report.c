/* lowkey report: results of evaluations and benchmarks as one HTML page. */
#include "command_line.h"
#include "commands.h"
#include "common.h"
#include "new_file.h"
#include "report/report.h"
#include "say.h"

#include <stdlib.h>

struct report_args {
    struct texts bench;
    const char *out;
};

static int read_all(struct lk_report *report, const struct report_args *a, int argc, char **argv) {
    lk_err err = {0};
    lk_status status = LK_OK;
    for (int i = 0; !status && i < argc; i++)
        status = lk_report_read_results(report, argv[i], &err);
    for (size_t i = 0; !status && i < a->bench.n; i++)
        status = lk_report_read_bench(report, a->bench.item[i], &err);
    return status ? complain_of(&err) : STATUS_OK;
}

static int write_page(const struct lk_report *report, const char *path, const char *command) {
    lk_err err = {0};
    struct new_file page = {0};
    int status = new_file_open(&page, path);
    if (status) return status;
    if (lk_report_write(report, command, page.file, &err))
        status = complain("%s: %s", path, err.msg);
    return new_file_close(&page, status);
}

int report_verb(const struct verb *verb, int argc, char **argv) {
    struct report_args a = {0};
    struct lk_report report = {0};
    lk_err err = {0};
    int first;
    const struct opt_group groups[] = {
        {"Report",
         {
             {'o', "output", "FILE", "where to write the page, for example report.html", OPT_TEXT,
              &a.out, 0, 0},
             {0, "bench", "FILE", "what 'lowkey bench --json' printed; may be repeated", OPT_TEXTS,
              &a.bench, 0, 0},
         }},
    };
    char *command = command_line(argc, argv); /* before its words are put into another order */
    enum args_result read =
        args_read(verb, groups, sizeof groups / sizeof groups[0], argc, argv, &first);
    int status = read == ARGS_BAD ? STATUS_BAD : STATUS_OK;
    if (read != ARGS_RUN) {
        free(command);
        return status;
    }
    if (first == argc && !a.bench.n)
        status = complain("no results: give files that 'lowkey eval -o' wrote");
    else if (!a.out)
        status = complain("no output: give -o FILE, for example -o report.html");
    if (!status && lk_report_begin(&report, &err)) status = complain_of(&err);
    if (!status) status = read_all(&report, &a, argc - first, argv + first);
    if (!status) status = write_page(&report, a.out, command);
    lk_report_free(&report);
    free(command);
    return status;
}
