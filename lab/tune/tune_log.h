/* Results of measurements, kept in a file, so that an interrupted run continues.
 *
 * A result belongs to a recipe and to a text (tokens, and how they are evaluated), which is known
 * by a hash. The run repeats the same steps after an interruption, and finds in the log what it had
 * measured. The file is text; it is written as a whole and appears atomically:
 *
 *   lowkey-tune 2 RUN            RUN: hash of the model and what else all results share
 *   TEXT N D ... D RECIPE        one line for each result, with 12 D. TEXT and D: 16 hexadecimal
 *                                digits, a hash and the bits of a double; N: scored predictions
 *   end HASH                     FNV-1a of all bytes before this line
 *
 * A file that is too large, damaged or has impossible values is rejected. */
#ifndef LK_TUNE_TUNE_LOG_H
#define LK_TUNE_TUNE_LOG_H

#include "base/ledger.h"
#include "lowkey_lab.h"

enum { LK_TUNE_LOG_MAX = 4096, LK_TUNE_LOG_BYTES = 1 << 24, LK_TUNE_RECIPE_BYTES = 1 << 14 };

struct lk_tune_entry {
    uint64_t text;
    char *recipe; /* owned */
    size_t len;
    lk_compare_result result;
};

struct lk_tune_log {
    struct lk_ledger ledger;
    const char *path; /* borrowed; NULL: results are kept in memory only */
    uint64_t run;
    struct lk_tune_entry *entry; /* [n], room for LK_TUNE_LOG_MAX */
    size_t n;
};

/* Open a log, with the results of the file `path` if it exists. LK_E_FORMAT if the file is damaged,
 * LK_E_ARG if it belongs to another run, LK_E_IO, LK_E_NOMEM; there is nothing to close then. */
lk_status lk_tune_log_open(struct lk_tune_log *log, const char *path, uint64_t run, lk_err *err);
void lk_tune_log_close(struct lk_tune_log *log);

/* The result for a text and a recipe; NULL: not measured. Borrowed until the next call. */
const lk_compare_result *lk_tune_log_find(const struct lk_tune_log *log, uint64_t text,
                                          const char *recipe);

/* Add a result. LK_E_FULL after LK_TUNE_LOG_MAX results, LK_E_NOMEM. */
lk_status lk_tune_log_add(struct lk_tune_log *log, uint64_t text, const char *recipe,
                          const lk_compare_result *result, lk_err *err);

/* Write the file. LK_E_IO, LK_E_NOMEM. */
lk_status lk_tune_log_save(const struct lk_tune_log *log, lk_err *err);

#endif
