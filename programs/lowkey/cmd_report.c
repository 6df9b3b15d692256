/* lowkey report: results of evaluations and benchmarks as one HTML page. */
#include "base/atomic_file.h"
#include "commands.h"
#include "common.h"
#include "output.h"
#include "report/report_page.h"
#include "shell_quote.h"

#include <stdlib.h>
#include <sys/stat.h>

struct report_args {
    struct string_list bench;
    const char *out;
};

/* Read result files path[0..n) and the files of --bench. */
static int read_inputs(struct lk_report *report, const struct report_args *a, int n, char **path) {
    lk_err err = {0};
    lk_status status = LK_OK;
    for (int i = 0; !status && i < n; i++) status = lk_report_read_results(report, path[i], &err);
    for (size_t i = 0; !status && i < a->bench.n; i++)
        status = lk_report_read_bench(report, a->bench.item[i], &err);
    return status ? print_lk_error(&err) : STATUS_OK;
}

static int write_page(const struct lk_report *report, const char *path, const char *command_line) {
    lk_err err = {0};
    struct lk_atomic_file page;
    if (lk_atomic_file_open_public(&page, path, &err)) return print_lk_error(&err);
    lk_status status = lk_report_write(report, command_line, page.file, &err);
    if (status) {
        lk_atomic_file_close(&page, status, NULL);
        return print_error("%s: %s", path, err.msg);
    }
    if (lk_atomic_file_close(&page, LK_OK, &err)) return print_lk_error(&err);
    struct stat info;
    char size[NUMBER_BUF];
    if (stat(path, &info) == 0 && S_ISREG(info.st_mode))
        printf("wrote %s, %s\n", path, format_bytes(size, (uint64_t)info.st_size));
    return STATUS_OK;
}

int cmd_report(const struct command *command, int argc, char **argv) {
    struct report_args a = {0};
    struct lk_report report = {0};
    lk_err err = {0};
    int first;
    const struct opt_group groups[] = {
        {"Report",
         {
             {'o', "output", "FILE", "the page to write, for example report.html", OPT_TEXT, &a.out,
              .complete = "*.html"},
             {0, "bench", "FILE", "speeds from 'lowkey bench --json'; may be repeated", OPT_TEXTS,
              &a.bench, .complete = "*.json"},
         }},
    };
    char *command_line = quoted_command_line(argc, argv);
    enum args_result result =
        args_read(command, groups, sizeof groups / sizeof groups[0], argc, argv, &first);
    int status = result == ARGS_BAD ? STATUS_ERROR : STATUS_OK;
    if (result != ARGS_RUN) {
        free(command_line);
        return status;
    }
    if (first == argc && !a.bench.n)
        status = print_error("no results: give files that 'lowkey eval -o' wrote");
    else if (!a.out)
        status = print_error("no output: give -o FILE, for example -o report.html");
    if (!status && lk_report_init(&report, &err)) status = print_lk_error(&err);
    if (!status) status = read_inputs(&report, &a, argc - first, argv + first);
    if (!status) status = write_page(&report, a.out, command_line);
    lk_report_free(&report);
    free(command_line);
    return status;
}
