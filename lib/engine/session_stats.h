/* Statistics of a session: token count and bytes by purpose. */
#ifndef LK_ENGINE_SESSION_STATS_H
#define LK_ENGINE_SESSION_STATS_H

#include "engine/session_state.h"

/* Statistics without ratios: bytes are sums over all processes, except within an operation. *part:
 * bytes of the cache in process part_of, or of the largest part if it is -1. */
lk_session_stats lk_session_sum_stats(const struct lk_session *session, int32_t part_of,
                                      uint64_t *part);

/* lk_session_get_stats with the bytes of this process alone, without an exchange. */
lk_session_stats lk_session_own_stats(const struct lk_session *session);

#endif
