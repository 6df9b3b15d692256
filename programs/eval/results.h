/* The results file: JSON lines, only ever appended to, each line whole or ignored.
 *
 *   {"type":"run", ...}                                  what was run; the first line, and one more for each
 *                                                        time that the run went on
 *   {"type":"item","task","kv","key", ...}               a finished item
 *   {"type":"result","task","kv","metrics","series","heat"}   replaces an earlier one of the same task and kv
 *
 * A run with the same model and options finds its finished items again. */
#ifndef LK_EVAL_RESULTS_H
#define LK_EVAL_RESULTS_H

#include "eval/stats.h"

struct lk_results;

/* Open or make the file `path` for one writer; NULL: keep everything in memory. `header` (borrowed): the
 * run's line. LK_E_ARG where the file belongs to a run whose "model_fingerprint", "weights" or "options"
 * differ (one that names no sidecar had none), LK_E_FORMAT where it is no results file. A last line that was cut off is removed. *out is owned:
 * lk_results_close. */
lk_status lk_results_open(struct lk_results **out, const char *path, const json_t *header,
                          lk_err *err);
void lk_results_close(struct lk_results *results);

/* An item's record, or NULL; borrowed. */
const json_t *lk_results_item(const struct lk_results *results, const char *task, const char *kv,
                              const char *key);

/* The line of a result, or NULL; borrowed. */
const json_t *lk_results_result(const struct lk_results *results, const char *task, const char *kv);

/* Append a finished item; `record` (borrowed) gets the fields that name it. LK_E_IO leaves the file as it was. */
lk_status lk_results_add_item(struct lk_results *results, const char *task, const char *kv,
                              const char *key, json_t *record, lk_err *err);

/* Append a result, unless the file says the same already. */
lk_status lk_results_add_result(struct lk_results *results, const char *task, const char *kv,
                                const struct lk_result *result, lk_err *err);

#endif
