/* Attention of a session's last token, and errors of its rows. */
#include "measure/probe.h"

#include "cache/project.h"

#include <math.h>

/* ---- attention ---- */

static size_t probe_weight_bytes(const struct lk_probe *probe) {
    return (size_t)probe->n_layer * probe->n_head * probe->session->opts.n_ctx * sizeof(float);
}

static const float *layer_weights(const struct lk_probe *probe, int layer) {
    return probe->weight + (size_t)layer * probe->n_head * probe->n_pos;
}

/* Sum the attention weights by level of one side: mass [n_level], mean over heads. */
static void sum_mass_by_level(const struct lk_probe *probe, const float *weight,
                              const struct lk_kv *kv, double *mass) {
    int group = probe->n_head / probe->session->cache->shape.n_head_kv;
    for (int level = 0; level < kv->n_level; level++) {
        double sum = 0;
        for (int head = 0; head < probe->n_head; head++)
            for (int64_t at = 0; at < kv->count[level].rows; at++)
                sum += weight[head * probe->n_pos + lk_kv_position(kv, level, at, head / group)];
        mass[level] = sum / probe->n_head;
    }
}

/* lk_watch callback: record the attention of one layer. */
static void record_attention(void *user, int layer, const struct lk_attn *attn) {
    struct lk_probe *probe = user;
    probe->n_pos = attn->k->n_tok;
    float *weight = probe->weight + (size_t)layer * probe->n_head * probe->n_pos;
    lk_attn_weights(attn, attn->n_tok - 1, weight);
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
    if (!probe->mass || !probe->weight) {
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
    lk_release(ledger, LK_FOR_OTHER, probe->weight, probe_weight_bytes(probe));
    lk_release(ledger, LK_FOR_OTHER, probe->mass, probe->n_layer * sizeof *probe->mass);
    lk_release(ledger, LK_FOR_OTHER, probe, sizeof *probe);
}

void lk_probe_set(struct lk_probe *probe, bool on) {
    probe->session->watch = on ? (struct lk_watch){record_attention, probe} : (struct lk_watch){0};
}

double lk_probe_hellinger(const struct lk_probe *a, const struct lk_probe *b, int32_t layer) {
    const float *p = layer_weights(a, layer), *q = layer_weights(b, layer);
    double sum = 0;
    for (int head = 0; head < a->n_head; head++) {
        double square = 0;
        for (int64_t i = 0; i < a->n_pos; i++, p++, q++) {
            double d = sqrt(*p) - sqrt(*q);
            square += d * d;
        }
        sum += sqrt(square / 2);
    }
    return sum / a->n_head;
}

/* ---- rows ---- */

/* The exact row of one head at position pos; false if this side does not hold it. */
static bool read_exact_row(const struct lk_kv *kv, const struct lk_cache_shape *shape, int head,
                           int64_t pos, const struct lk_kernels *kernels, float *x) {
    for (int level = 0; level < kv->n_level; level++) {
        int64_t at = pos - lk_kv_position(kv, level, 0, head);
        if (at < 0 || at >= kv->count[level].rows) continue;
        lk_project_read_head(kv, level, at, head, shape->d_head, kernels, x);
        return true;
    }
    return false;
}

struct lk_row_error lk_probe_row_error(const struct lk_session *exact,
                                       const struct lk_session *session, int layer,
                                       enum lk_side side, int level) {
    const struct lk_cache_shape *shape = &session->cache->shape;
    const struct lk_kv *kv = &session->cache->kv[layer][side],
                       *full = &exact->cache->kv[layer][side];
    /* Not lk_kernels_choose: it asks the CPU, which is slow in a virtual machine. */
    const struct lk_kernels *kernels = session->cache->kernels;
    struct lk_row_error sum = {0};
    float x[LK_MAX_D_HEAD], ref[LK_MAX_D_HEAD];
    for (int64_t at = 0; at < kv->count[level].rows; at++) {
        for (int head = 0; head < shape->n_head_kv; head++) {
            int64_t pos = lk_kv_position(kv, level, at, head);
            if (!read_exact_row(full, shape, head, pos, kernels, ref)) continue;
            lk_project_read_head(kv, level, at, head, shape->d_head, kernels, x);
            sum.n += head == 0;
            for (int c = 0; c < shape->d_head; c++) {
                double d = (double)x[c] - ref[c];
                sum.error += d * d;
                sum.power += (double)ref[c] * ref[c];
            }
        }
    }
    return sum;
}
