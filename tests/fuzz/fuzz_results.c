/* Fuzz target: results files. The first byte selects the reader, the rest is the file:
 *
 *   0  results of `lowkey eval`: a file that is read gives a complete report
 *   1  output of `lowkey bench --json`: the same
 *   2  a results file that a run continues: an item that was added is found when it is opened again
 *
 * A rejected file gives one line of error. No markup of a file reaches the report. */
#define _GNU_SOURCE /* memfd_create */
#include "eval/results.h"
#include "fuzz_input.h"
#include "report/report_page.h"

/* A name with markup must be escaped or rejected. */
static const char markup[] = "<lk-fuzz";

static void read_report(const char *path, bool bench) {
    struct lk_report report;
    lk_err err = {0};
    char *page = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&page, &len);
    if (!out || lk_report_init(&report, NULL) != LK_OK) abort();
    lk_status status = bench ? lk_report_read_bench(&report, path, &err)
                             : lk_report_read_results(&report, path, &err);
    if (status != LK_OK)
        fuzz_check_error(&err);
    else if (lk_report_write(&report, "lowkey report", out, &err) != LK_OK)
        abort();
    fclose(out);
    if (status == LK_OK && (!strstr(page, "</html>") || strstr(page, markup))) abort();
    free(page);
    lk_report_free(&report);
}

static void resume(const char *path) {
    json_t *header = json_pack("{s:s s:s s:s s:{s:s}}", "type", "run", "model_fingerprint", "f",
                               "weights", "w", "options", "--sidecar", "none"),
           *record = json_pack("{s:b}", "right", 1);
    struct lk_results_file *results = NULL;
    lk_err err = {0};
    if (lk_results_open(&results, path, header, &err) == LK_OK) {
        if (lk_results_add_item(results, "t", "f16", "fuzz", record, &err) != LK_OK) abort();
        lk_results_close(results);
        if (lk_results_open(&results, path, header, &err) != LK_OK) abort();
        const json_t *item = lk_results_item(results, "t", "f16", "fuzz");
        if (!json_is_true(json_object_get(item, "right"))) abort();
        lk_results_close(results);
    } else {
        fuzz_check_error(&err);
    }
    json_decref(header);
    json_decref(record);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct fuzz_file file = {-1, ""};
    if (file.fd < 0) file = fuzz_file_new();
    if (size < 1) return 0;
    fuzz_file_set(&file, data + 1, size - 1);
    if (data[0] % 3 == 2)
        resume(file.path);
    else
        read_report(file.path, data[0] % 3 == 1);
    return 0;
}
