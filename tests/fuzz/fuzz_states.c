/* Fuzz target: files that hold unfinished work. The first byte selects: 't' results of `lowkey
 * tune`, 'l' adapters in training, 's' statistics for bases; the rest is the file, whose checksum
 * is made right first. What loads is within its bounds; a file that is refused changes nothing and
 * gives one line of error. */
#define _GNU_SOURCE /* memfd_create */
#include "base/hash.h"
#include "fuzz_input.h"
#include "lowrank/statistics.h"
#include "training/lora_state.h"
#include "tune/tune_log.h"

enum { N_WEIGHT = 6, WIDTH = 3, IDENTITY = 77 };

static void check_status(lk_status status, const lk_err *err) {
    if (status) fuzz_check_error(err);
}

/* The text ends with a line "end HASH". */
static void seal_log(char *text, size_t len) {
    char hex[17];
    if (len < 21) return;
    snprintf(hex, sizeof hex, "%016llx",
             (unsigned long long)lk_fnv1a(LK_FNV1A_INIT, text, len - 21));
    memcpy(text + len - 17, hex, 16);
}

static void load_log(const char *path) {
    struct lk_tune_log log;
    lk_err err = {0};
    lk_status status = lk_tune_log_open(&log, path, IDENTITY, &err);
    check_status(status, &err);
    if (status) return;
    if (log.n > LK_TUNE_LOG_MAX) abort();
    for (size_t i = 0; i < log.n; i++) {
        const struct lk_tune_entry *e = &log.entry[i];
        if (strlen(e->recipe) != e->len || e->len >= LK_TUNE_RECIPE_BYTES) abort();
        if (!lk_tune_log_find(&log, e->text, e->recipe)) abort();
    }
    lk_tune_log_close(&log);
}

static void load_adapters(const char *path) {
    float weight[4 * N_WEIGHT] = {0};
    struct lk_lora_net net = {.n_weight = N_WEIGHT, .weight = weight};
    struct lk_lora_state state = {.identity = IDENTITY};
    lk_err err = {0};
    lk_status status = lk_lora_state_load(path, &state, &net, &err);
    check_status(status, &err);
    if (state.identity != IDENTITY || state.n_step < 0 || state.best_step > state.n_step) abort();
    if (status && state.n_step) abort();
}

/* The file ends with the hash of everything after its first 8 bytes. */
static void seal_statistics(char *file, size_t len) {
    if (len < 32) return;
    uint64_t hash = lk_fnv1a(LK_FNV1A_INIT, file + 8, len - 16);
    memcpy(file + len - 8, &hash, 8);
}

static void load_statistics(const char *path) {
    struct lk_ledger ledger = {0};
    struct lk_moments side;
    if (lk_moments_new(&side, 2, WIDTH, &ledger, NULL)) abort();
    struct lk_statistics s = {.ledger = &ledger, .n_layer = 1, .n_text = 1000, .key = IDENTITY};
    s.side[LK_BASIS_K] = &side;
    lk_err err = {0};
    lk_status status = lk_statistics_load(&s, path, &err);
    check_status(status, &err);
    if (status ? s.n_tok : s.n_tok > s.n_text) abort();
    lk_moments_free(&side, &ledger);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct fuzz_file file = {-1, ""};
    if (file.fd < 0) file = fuzz_file_new();
    if (size < 1) return 0;
    char *copy = malloc(size);
    if (!copy) return 0;
    memcpy(copy, data + 1, size - 1);
    if (data[0] == 't') seal_log(copy, size - 1);
    if (data[0] == 's') seal_statistics(copy, size - 1);
    fuzz_file_set(&file, (const uint8_t *)copy, size - 1);
    free(copy);
    if (data[0] == 't') load_log(file.path);
    if (data[0] == 'l') load_adapters(file.path);
    if (data[0] == 's') load_statistics(file.path);
    return 0;
}
