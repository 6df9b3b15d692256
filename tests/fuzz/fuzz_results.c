/* Fuzz target: a results file that a run continues. An item that was added is found when the file
 * is opened again. A rejected file gives one line of error. */
#define _GNU_SOURCE /* memfd_create */
#include "eval/results.h"
#include "fuzz_input.h"

static void resume(const char *path) {
    json_t *header = json_pack("{s:s s:s s:s s:{s:s}}", "type", "run", "model_fingerprint", "f",
                               "weights", "w", "options", "--sidecar", "none"),
           *record = json_pack("{s:b}", "right", 1);
    struct lk_results_file *results = NULL;
    lk_err err = {0};
    if (lk_results_open(&results, path, header, &err) == LK_OK) {
        if (lk_results_add_item(results, "t", "f16", "fuzz", record, &err) != LK_OK) abort();
        lk_results_close(results, NULL);
        if (lk_results_open(&results, path, header, &err) != LK_OK) abort();
        const json_t *item = lk_results_item(results, "t", "f16", "fuzz");
        if (!json_is_true(json_object_get(item, "right"))) abort();
        lk_results_close(results, NULL);
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
    fuzz_file_set(&file, data, size);
    resume(file.path);
    return 0;
}
