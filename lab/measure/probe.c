/* Attention of a session's last token, and errors of its rows. */
#include "measure/probe.h"

#include "cache/project.h"

#include <float.h>
#include <math.h>

/* ---- attention ---- */

/* Floats of phi. */
static size_t phi_floats(const struct lk_probe *probe) {
    return (size_t)probe->n_layer * probe->n_head * LK_LESS_MAX_FEATURE;
}

static float *query_features(const struct lk_probe *probe, int layer, int head) {
    return probe->phi + ((size_t)layer * probe->n_head + head) * LK_LESS_MAX_FEATURE;
}

static size_t probe_weight_bytes(const struct lk_probe *probe) {
    return (size_t)probe->n_layer * probe->n_head * probe->session->opts.n_ctx * sizeof(float);
}

static const float *layer_weights(const struct lk_probe *probe, int layer) {
    return probe->weight + (size_t)layer * probe->n_head * probe->n_pos;
}

/* Sum the attention weights by level of one side: mass [n_level], mean over heads. */
static void sum_mass_by_level(const struct lk_probe *probe, const float *weight,
                              const struct lk_kv *kv, double *mass) {
    int group = probe->n_head / kv->n_head;
    for (int level = 0; level < kv->n_level; level++) {
        double sum = 0;
        for (int head = 0; head < probe->n_head; head++)
            for (int64_t at = 0; at < kv->count[level].rows; at++)
                sum += weight[head * probe->n_pos + lk_kv_position(kv, level, at, head / group)];
        mass[level] = sum / probe->n_head;
    }
}

/* Give the rows that are held a positive weight, even if it was rounded to 0. */
static void mark_held_rows(const struct lk_probe *probe, float *weight, const struct lk_kv *kv) {
    int group = probe->n_head / kv->n_head;
    for (int level = 0; level < kv->n_level; level++)
        for (int head = 0; head < probe->n_head; head++)
            for (int64_t at = 0; at < kv->count[level].rows; at++) {
                float *w =
                    weight + head * probe->n_pos + lk_kv_position(kv, level, at, head / group);
                *w = fmaxf(*w, FLT_MIN);
            }
}

/* Give the state its share of a head's attention to the query q. log_sum: of the rows. */
static void add_state(const struct lk_probe *probe, int layer, int head, const float *q,
                      float log_sum, float *weight) {
    float mean[LK_MAX_D_HEAD], state_sum;
    lk_absorb_query(probe->session->absorb, layer, head, q, query_features(probe, layer, head),
                    mean, &state_sum);
    float share = state_sum == -INFINITY ? 0 : 1 / (1 + expf(log_sum - state_sum));
    probe->state_share[layer * probe->n_head + head] = share;
    for (int64_t pos = 0; pos < probe->n_pos; pos++) weight[head * probe->n_pos + pos] *= 1 - share;
}

/* lk_watch callback: record the attention of one layer. */
static void record_attention(void *user, int layer, const struct lk_attn *attn) {
    struct lk_probe *probe = user;
    probe->n_pos = attn->k->n_tok;
    float *weight = probe->weight + (size_t)layer * probe->n_head * probe->n_pos,
          *log_sum = query_features(probe, layer, 0);
    /* log_sum is read before the features of the same head are written. */
    lk_attn_weights(attn, attn->n_tok - 1, weight, log_sum);
    if (probe->session->absorb) {
        const float *q = attn->q + (size_t)(attn->n_tok - 1) * attn->n_head * attn->d_head;
        for (int head = attn->n_head - 1; head >= 0; head--)
            add_state(probe, layer, head, q + head * attn->d_head, log_sum[head], weight);
    }
    mark_held_rows(probe, weight, attn->k);
    sum_mass_by_level(probe, weight, attn->k, probe->mass[layer][LK_K]);
    sum_mass_by_level(probe, weight, attn->v, probe->mass[layer][LK_V]);
}

lk_status lk_probe_new(struct lk_probe **out, struct lk_session *session, lk_err *err) {
    struct lk_ledger *ledger = &session->ledger;
    struct lk_probe *probe = lk_alloc(ledger, LK_FOR_OTHER, sizeof *probe);
    if (!probe) return lk_fail(err, LK_E_NOMEM, "no memory for a probe");
    *probe = (struct lk_probe){.session = session,
                               .n_layer = session->cache->shape.n_layer,
                               .n_head = session->model->net->hp.n_head};
    probe->mass = lk_alloc(ledger, LK_FOR_OTHER, probe->n_layer * sizeof *probe->mass);
    probe->weight = lk_alloc(ledger, LK_FOR_OTHER, probe_weight_bytes(probe));
    probe->phi = lk_alloc(ledger, LK_FOR_OTHER, phi_floats(probe) * sizeof(float));
    probe->state_share =
        lk_alloc(ledger, LK_FOR_OTHER, (size_t)probe->n_layer * probe->n_head * sizeof(float));
    probe->state = lk_alloc(ledger, LK_FOR_OTHER, (size_t)session->opts.n_ctx * sizeof(double));
    if (!probe->mass || !probe->weight || !probe->phi || !probe->state_share || !probe->state) {
        lk_probe_free(probe);
        return lk_fail(err, LK_E_NOMEM, "no memory for the attention of %d tokens",
                       session->opts.n_ctx);
    }
    lk_probe_set(probe, true);
    *out = probe;
    return LK_OK;
}

void lk_probe_free(struct lk_probe *probe) {
    if (!probe) return;
    struct lk_ledger *ledger = &probe->session->ledger;
    lk_probe_set(probe, false);
    lk_release(ledger, LK_FOR_OTHER, probe->state,
               (size_t)probe->session->opts.n_ctx * sizeof(double));
    lk_release(ledger, LK_FOR_OTHER, probe->state_share,
               (size_t)probe->n_layer * probe->n_head * sizeof(float));
    lk_release(ledger, LK_FOR_OTHER, probe->phi, phi_floats(probe) * sizeof(float));
    lk_release(ledger, LK_FOR_OTHER, probe->weight, probe_weight_bytes(probe));
    lk_release(ledger, LK_FOR_OTHER, probe->mass, probe->n_layer * sizeof *probe->mass);
    lk_release(ledger, LK_FOR_OTHER, probe, sizeof *probe);
}

void lk_probe_set(struct lk_probe *probe, bool on) {
    probe->session->watch = on ? (struct lk_watch){.on_attention = record_attention, .user = probe}
                               : (struct lk_watch){0};
}

double lk_probe_state_share(const struct lk_probe *probe, int32_t layer) {
    double sum = 0;
    for (int head = 0; head < probe->n_head; head++)
        sum += probe->state_share[layer * probe->n_head + head];
    return sum / probe->n_head;
}

/* ---- rows of a session ---- */

/* The exact row of one head at position pos; false if this side does not hold it. */
static bool read_exact_row(const struct lk_kv *kv, int head, int64_t pos,
                           const struct lk_kernels *kernels, float *x) {
    for (int level = 0; level < kv->n_level; level++) {
        int64_t at = pos - lk_kv_position(kv, level, 0, head);
        if (at < 0 || at >= kv->count[level].rows) continue;
        lk_project_read_head(kv, level, at, head, kv->d_head, kernels, x);
        return true;
    }
    return false;
}

static lk_status check_head(const struct lk_session *session, int32_t layer, int32_t head,
                            int n_head, lk_err *err) {
    int n_layer = session->cache->shape.n_layer;
    if (layer < 0 || layer >= n_layer)
        return lk_fail(err, LK_E_ARG, "no layer %d; the cache has %d", layer, n_layer);
    if (head < 0 || head >= n_head)
        return lk_fail(err, LK_E_ARG, "no head %d; the layer has %d", head, n_head);
    return LK_OK;
}

lk_status lk_probe_read(const struct lk_probe *probe, int32_t layer, int32_t head, float *weight,
                        size_t n, size_t *n_pos, lk_err *err) {
    lk_status status = check_head(probe->session, layer, head, probe->n_head, err);
    if (status) return status;
    if (!probe->n_pos) return lk_fail(err, LK_E_ARG, "the probe has recorded nothing yet");
    *n_pos = (size_t)probe->n_pos;
    for (size_t i = 0; i < n && i < *n_pos; i++) {
        float w = layer_weights(probe, layer)[(size_t)head * *n_pos + i];
        weight[i] = w > FLT_MIN ? w : 0; /* mark_held_rows */
    }
    return LK_OK;
}

lk_status lk_session_read_rows(const struct lk_session *session, int32_t layer, int32_t head,
                               int32_t side, size_t first, size_t n, int32_t *pos, float *x,
                               size_t *n_row, size_t *d, lk_err *err) {
    if (side != LK_K && side != LK_V)
        return lk_fail(err, LK_E_ARG, "no side %d; K is 0 and V is 1", side);
    lk_status status = check_head(session, layer, 0, 1, err);
    const struct lk_kv *kv = status ? NULL : &session->cache->kv[layer][side];
    if (!status) status = check_head(session, layer, head, kv->n_head, err);
    if (status) return status;
    size_t row = 0;
    for (int level = 0; level < kv->n_level; level++)
        if (kv->is_elsewhere || lk_held_rows(kv, level) != kv->count[level].rows)
            return lk_fail(err, LK_E_UNSUPPORTED, "the rows are divided among several processes");
    for (int level = 0; level < kv->n_level; level++)
        for (int64_t at = 0; at < kv->count[level].rows; at++, row++) {
            if (row < first || row - first >= n) continue;
            pos[row - first] = (int32_t)lk_kv_position(kv, level, at, head);
            if (x)
                lk_project_read_head(kv, level, at, head, kv->d_head, session->cache->kernels,
                                     x + (row - first) * (size_t)kv->d_head);
        }
    *n_row = row;
    *d = (size_t)kv->d_head;
    return LK_OK;
}

/* ---- distances ---- */

/* Set probe->state: what a state weighs the rows of a head with, 0 for rows that are held. Their
 * keys come from `exact`, which must hold all rows; otherwise all weights are 0. Sums to the
 * state's share. */
static void divide_state(const struct lk_probe *probe, const struct lk_probe *exact, int layer,
                         int head) {
    const struct lk_session *session = exact->session;
    const struct lk_absorb *absorb = probe->session->absorb;
    const float *held = layer_weights(probe, layer) + head * probe->n_pos;
    int head_kv = head * session->cache->kv[layer][LK_K].n_head / probe->n_head;
    float key[LK_MAX_D_HEAD], psi[LK_LESS_MAX_FEATURE], *phi = query_features(probe, layer, head);
    double sum = 0, *weight = probe->state;
    for (int64_t pos = 0; pos < probe->n_pos; pos++) weight[pos] = 0;
    if (!absorb || session->cache->kv[layer][LK_K].evict) return;
    for (int64_t pos = 0; pos < probe->n_pos; pos++) {
        if (held[pos] > 0 || !read_exact_row(&session->cache->kv[layer][LK_K], head_kv, pos,
                                             session->cache->kernels, key))
            continue;
        lk_absorb_key_features(absorb, layer, head_kv, key, psi);
        for (int r = 0; r < absorb->shape.n_feature; r++) weight[pos] += (double)phi[r] * psi[r];
        sum += weight[pos];
    }
    double scale = sum > 0 ? probe->state_share[layer * probe->n_head + head] / sum : 0;
    for (int64_t pos = 0; pos < probe->n_pos; pos++) weight[pos] *= scale;
}

double lk_probe_hellinger(const struct lk_probe *a, const struct lk_probe *b, int32_t layer) {
    const float *p = layer_weights(a, layer), *q = layer_weights(b, layer);
    double sum = 0;
    for (int head = 0; head < a->n_head; head++) {
        double square = 0;
        divide_state(a, b, layer, head);
        divide_state(b, a, layer, head);
        for (int64_t i = 0; i < a->n_pos; i++, p++, q++) {
            double d = sqrt(*p + a->state[i]) - sqrt(*q + b->state[i]);
            square += d * d;
        }
        sum += sqrt(square / 2);
    }
    return sum / a->n_head;
}

/* ---- errors of rows ---- */

struct lk_row_error lk_probe_row_error(const struct lk_session *exact,
                                       const struct lk_session *session, int layer,
                                       enum lk_side side, int level) {
    const struct lk_kv *kv = &session->cache->kv[layer][side],
                       *full = &exact->cache->kv[layer][side];
    /* Not lk_kernels_choose: it asks the CPU, which is slow in a virtual machine. */
    const struct lk_kernels *kernels = session->cache->kernels;
    struct lk_row_error sum = {0};
    float x[LK_MAX_D_HEAD], ref[LK_MAX_D_HEAD];
    for (int64_t at = 0; at < kv->count[level].rows; at++) {
        for (int head = 0; head < kv->n_head; head++) {
            int64_t pos = lk_kv_position(kv, level, at, head);
            if (!read_exact_row(full, head, pos, kernels, ref)) continue;
            lk_project_read_head(kv, level, at, head, kv->d_head, kernels, x);
            sum.n += head == 0;
            for (int c = 0; c < kv->d_head; c++) {
                double d = (double)x[c] - ref[c];
                sum.error += d * d;
                sum.power += (double)ref[c] * ref[c];
            }
        }
    }
    return sum;
}
