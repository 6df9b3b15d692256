/* Error messages about memory that name the need, the limit and what would fit. */
#ifndef LK_LOWKEY_MEMORY_NEED_H
#define LK_LOWKEY_MEMORY_NEED_H

#include "common.h"

/* Print why memory ran out for a session that was to hold n_tok tokens. Errors other than
 * LK_E_NOMEM are printed as they are. Returns a STATUS_*. */
int print_memory_error(const struct session_args *args, const lk_model *model,
                       const lk_recipe *recipe, size_t n_tok, const lk_err *err);

/* Print an error and return STATUS_ERROR if n_tok tokens cannot be evaluated, because their cache
 * alone is larger than --max-memory or the free memory: before minutes of prefill. */
int check_memory(const struct session_args *args, const lk_model *model, const lk_recipe *recipe,
                 size_t n_tok);

#endif
