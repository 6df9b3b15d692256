/* Long caches without long computation, for measuring speed: the K and V rows of a short text are
 * appended again and again. The rows keep the text's positions, so predictions from such a cache
 * are meaningless, but reading it costs the same as reading a real one. */
#ifndef LK_MEASURE_REPEAT_ROWS_H
#define LK_MEASURE_REPEAT_ROWS_H

#include "engine/session_state.h"

/* Append n_tok tokens to `session` without computing them: their K and V rows are those of
 * `source`, a full-cache session of the same model, repeated cyclically from where `session`
 * stands. The rows age as usual. Afterwards there are no logits. The session's progress is called.
 * With peers, it is an operation that those repeat that have called lk_bench_join.
 * LK_E_ARG if `source` is empty or its rows are divided, LK_E_FULL; after LK_E_NOMEM or
 * LK_E_CANCELLED `session` is empty. */
lk_status lk_repeat_rows(struct lk_session *session, const struct lk_session *source, size_t n_tok,
                         lk_err *err);

#endif
