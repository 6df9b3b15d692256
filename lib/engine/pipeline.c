/* Units of work that go through the stages of a model. */
#include "engine/pipeline.h"

#include <string.h>

static const struct lk_stages *stages_of(const struct lk_pipeline *p) {
    return &p->pass->model->net->stages;
}

int64_t lk_pipeline_ticks(const struct lk_pipeline *p) { return p->n_unit + stages_of(p)->n - 1; }

int64_t lk_pipeline_own(const struct lk_pipeline *p, int64_t tick) {
    int64_t unit = tick - stages_of(p)->own;
    return unit >= 0 && unit < p->n_unit ? unit : -1;
}

int64_t lk_pipeline_previous(const struct lk_pipeline *p, int64_t tick) {
    int64_t unit = tick - stages_of(p)->own + 1;
    return stages_of(p)->own > 0 && unit >= 0 && unit < p->n_unit ? unit : -1;
}

/* Send the hidden states of n_sent rows, and receive those of n_received rows. Neighbors do not
 * both send first. */
static bool exchange(struct lk_pass *pass, size_t n_sent, size_t n_received) {
    const struct lk_stages *s = &pass->model->net->stages;
    struct lk_cluster *c = pass->model->cluster;
    size_t n_embd = pass->model->net->hp.n_embd;
    bool ok = true;
    for (int step = 0; ok && step < 2; step++) {
        bool sends = step == s->own % 2;
        if (sends && n_sent > 0)
            ok = lk_cluster_send_next(c, s->n, pass->graph.x_out->data, n_sent * n_embd);
        if (!sends && n_received > 0)
            ok = lk_cluster_receive_previous(c, s->n, pass->x, n_received * n_embd);
    }
    return ok;
}

lk_status lk_pipeline_tick(struct lk_pipeline *p, int64_t tick, size_t n_row, lk_err *err) {
    struct lk_pass *pass = p->pass;
    struct lk_graph *g = &pass->graph;
    size_t n_sent = 0, n_received = lk_pipeline_previous(p, tick) >= 0 ? n_row : 0;
    if (lk_pipeline_own(p, tick) >= 0) {
        if (g->x_in) memcpy(g->x_in->data, pass->x, ggml_nbytes(g->x_in));
        lk_status status = lk_graph_run(g, pass->model, err);
        if (status != LK_OK) {
            /* the others wait for hidden states or partial attention */
            lk_cluster_abort(pass->model->cluster, err->msg);
            return status;
        }
        if (g->x_out) n_sent = (size_t)pass->n_row;
    }
    return exchange(pass, n_sent, n_received) ? LK_OK : lk_cluster_fail_lost(err);
}
