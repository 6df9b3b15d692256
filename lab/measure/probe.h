/* Probes: what a session attends to, and how far the rows it keeps are from exact ones.
 *
 * A full f16 session reads the same tokens beside the session under test. Each has a probe, which takes
 * down, in every layer, how the last token of a step spread its attention:
 *
 *   lk_probe_new(&p, full, ...); lk_probe_new(&q, session, ...);
 *   lk_session_eval(full, tok, n, ...); lk_session_eval(session, tok, n, ...);
 *   lk_probe_hellinger(p, q, layer)
 *
 * Both sessions use their own queries and keys, so what earlier layers and steps did wrong is in the
 * figure, as in LESS (Dong et al. 2024, section 4.4, equation 7 and figure 6). */
#ifndef LK_MEASURE_PROBE_H
#define LK_MEASURE_PROBE_H

#include "engine/engine.h"

struct lk_probe {
    struct lk_session *session; /* borrowed */
    int n_layer, n_head;
    int64_t n_pos; /* positions that the last token saw, itself included */
    float *weight; /* [n_layer][n_head][n_pos] packed; room for n_ctx positions */
    double (*mass)[2][LK_MAX_KV_LEVEL]; /* [n_layer][K, V][level]: mean share over heads of
                                   attention that went to rows which this level held then */
};

/* A probe of `session`, which it watches until it is freed; the session must outlive it.
 * Every step takes longer meanwhile. Memory: n_layer * n_head * n_ctx floats. *out is owned. */
lk_status lk_probe_new(struct lk_probe **out, struct lk_session *session, lk_err *err);
void lk_probe_free(struct lk_probe *probe);

/* Watch (as after lk_probe_new) or look away, so that steps run at their usual speed. */
void lk_probe_watch(struct lk_probe *probe, bool on);

/* Hellinger distance ||sqrt p - sqrt q|| / sqrt 2, from 0 to 1, of two attentions in a layer, mean over
 * heads. Both probes saw the same tokens of the same model. */
double lk_probe_hellinger(const struct lk_probe *a, const struct lk_probe *b, int layer);

/* Error of the rows of one level against those of an f16 session that has read the same tokens:
 * sum (x - exact)^2 and sum exact^2 over the n rows of all heads that both still hold. */
struct lk_row_error {
    double error, power;
    int64_t n;
};
struct lk_row_error lk_probe_row_error(const struct lk_session *exact,
                                       const struct lk_session *session, int layer,
                                       enum lk_side side, int level);

#endif
