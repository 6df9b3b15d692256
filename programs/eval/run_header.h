/* The first line of a run in a results file: what identifies the run. */
#ifndef LK_EVAL_RUN_HEADER_H
#define LK_EVAL_RUN_HEADER_H

#include "eval/eval.h"

/* The header of a run: model, machine, options. `command`: the command line. NULL if a file cannot
 * be read or there is no memory. Owned. */
json_t *lk_run_header(const struct lk_eval *eval, const char *command, lk_err *err);

/* A fingerprint of a file: its size, and a hash of its first and last MiB. */
lk_status lk_file_fingerprint(const char *path, char out[40], lk_err *err);

#endif
