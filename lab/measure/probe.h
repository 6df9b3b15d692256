/* Probes: how a session spreads its attention, and how far its rows are from exact ones.
 *
 * A full-cache session evaluates the same tokens as the session under test. Each has a probe, which
 * records in every layer the attention weights of the last token of an evaluation:
 *
 *   lk_probe_new(&p, full, ...); lk_probe_new(&q, session, ...);
 *   lk_session_eval(full, tok, n, ...); lk_session_eval(session, tok, n, ...);
 *   lk_probe_hellinger(p, q, layer)
 *
 * A state of evicted rows (engine/absorb.h) gets its share of the attention, which the distance
 * divides among these rows: its weight of a row is phi(q) psi(k).
 *
 * lk_probe_new, _free, _set, _hellinger and _state_share are declared in lowkey_lab.h. */
#ifndef LK_MEASURE_PROBE_H
#define LK_MEASURE_PROBE_H

#include "engine/session_state.h"
#include "lowkey_lab.h"

struct lk_probe {
    struct lk_session *session; /* borrowed */
    int n_layer, n_head;
    int64_t n_pos; /* positions that the last token attended to, itself included */
    /* [n_layer][n_head][n_pos] packed; allocated for n_ctx positions. Positive for rows that are
     * held, 0 for evicted rows. With the state's share, each head's sum is 1 */
    float *weight;
    float *state_share; /* [n_layer][n_head] share of the state; 0 without a state */
    float *phi;         /* [n_layer][n_head][LK_LESS_MAX_FEATURE] features of the query, for it */
    double *state;      /* [n_ctx] scratch of lk_probe_hellinger */
    /* [n_layer][K, V][level] share of attention on the rows that this level held then, mean over
     * heads */
    double (*mass)[2][LK_MAX_KV_LEVEL];
};

/* Error of the rows of one level compared with those of a full-cache session that evaluated the
 * same tokens: sums of (x - exact)^2 and exact^2 over the n rows, all heads, that both sessions
 * hold. */
struct lk_row_error {
    double error, power;
    int64_t n;
};
struct lk_row_error lk_probe_row_error(const struct lk_session *exact,
                                       const struct lk_session *session, int layer,
                                       enum lk_side side, int level);

#endif
