/* A results file: JSON lines. Lines are only appended; a line is complete or ignored.
 *
 *   {"type":"run", ...}                         what was run: the first line, and one more line
 *                                               for each time the run was resumed
 *   {"type":"item","task","kv","key", ...}      a finished item
 *   {"type":"result","task","kv","metrics","series","heat"}
 *                                               replaces an earlier one of the same task and kv
 *
 * A later run with the same model and options finds the finished items. */
#ifndef LK_EVAL_RESULTS_H
#define LK_EVAL_RESULTS_H

#include "eval/stats.h"

struct lk_results_file;

/* Open or create the file `path` for one writer; NULL: keep all results in memory. An incomplete
 * last line is removed. `header` (borrowed): the line of this run. LK_E_ARG if the file belongs to
 * a run with another "model_fingerprint", "weights" or "options". A file whose options do not name
 * a sidecar was made without one. LK_E_FORMAT if it is not a results file.
 * *out is owned: lk_results_close. */
lk_status lk_results_open(struct lk_results_file **out, const char *path, const json_t *header,
                          lk_err *err);

/* Sync and close the file. LK_E_IO if lines may be lost when the machine fails. */
lk_status lk_results_close(struct lk_results_file *results, lk_err *err);

/* The record of an item, or NULL; borrowed. */
const json_t *lk_results_item(const struct lk_results_file *results, const char *task,
                              const char *kv, const char *key);

/* The line of a result, or NULL; borrowed. */
const json_t *lk_results_result(const struct lk_results_file *results, const char *task,
                                const char *kv);

/* Append a finished item. The line has the fields of `record` (borrowed), and fields that identify
 * the item. After LK_E_IO the file is unchanged. */
lk_status lk_results_add_item(struct lk_results_file *results, const char *task, const char *kv,
                              const char *key, json_t *record, lk_err *err);

/* Append a result, unless the file already has the same one. */
lk_status lk_results_add_result(struct lk_results_file *results, const char *task, const char *kv,
                                const struct lk_task_result *result, lk_err *err);

#endif
