/* The rotation parameters of a model, measured on what ggml's rope operator does to marked rows.
 *
 * A row with 1 in the first channel of each pair becomes (m cos a, m sin a) of the pair's angle a.
 * Position 1 gives the speed of each pair, because no pair turns by half a circle per position.
 * Each doubling of the position doubles the error of the speed so far and so adds one bit. */
#include "engine/model_rope.h"

#include "engine/graph.h"
#include "model/blocks.h"

#include <math.h>
#include <string.h>

enum { N_MARK = 13, NODES = 16 }; /* positions 1, 2, 4, ..., 4096 */

static int rotated_channels(const struct lk_hparams *hp, int layer) {
    return hp->is_swa[layer] ? hp->n_rot_swa : hp->n_rot;
}

/* Rotate marked rows to these positions. The result is in graph->x_out, [N_MARK][n_rot]. */
static lk_status rotate_marks(struct lk_graph *graph, struct lk_model *model, int layer,
                              bool halves, lk_err *err) {
    int n_rot = rotated_channels(&model->net->hp, layer);
    lk_status status = lk_graph_begin(graph, NODES, &model->ledger, err);
    if (status != LK_OK) return status;
    graph->x_in = ggml_new_tensor_3d(graph->ctx, GGML_TYPE_F32, n_rot, 1, N_MARK);
    graph->pos = ggml_new_tensor_1d(graph->ctx, GGML_TYPE_I32, N_MARK);
    ggml_set_input(graph->x_in);
    ggml_set_input(graph->pos);
    graph->x_out = lk_apply_rope(model->net, graph->ctx, layer, graph->x_in, graph->pos);
    ggml_set_output(graph->x_out);
    ggml_build_forward_expand(graph->graph, graph->x_out);
    status = lk_graph_finish(graph, &model->ledger, err);
    if (status != LK_OK) return status;
    float *x = memset(graph->x_in->data, 0, ggml_nbytes(graph->x_in));
    for (int mark = 0; mark < N_MARK; mark++) {
        ((int32_t *)graph->pos->data)[mark] = 1 << mark;
        for (int pair = 0; pair < n_rot / 2; pair++)
            x[mark * n_rot + (halves ? pair : 2 * pair)] = 1;
    }
    return lk_graph_run(graph, model, err);
}

static lk_status measure_rope(struct lk_rope *rope, struct lk_model *model, int layer,
                              lk_err *err) {
    const double turn = 6.28318530717958647692;
    const struct lk_hparams *hp = &model->net->hp;
    bool halves = hp->rope_mode != GGML_ROPE_TYPE_NORMAL;
    int n_rot = rotated_channels(hp, layer), n_pair = n_rot / 2, next = halves ? n_pair : 1;
    struct lk_graph graph = {0};
    lk_status status = rotate_marks(&graph, model, layer, halves, err);
    if (status == LK_OK) {
        const float *x = graph.x_out->data;
        double speed[LK_MAX_PAIR];
        for (int pair = 0; pair < n_pair; pair++) {
            speed[pair] = 0;
            for (int mark = 0; mark < N_MARK; mark++) {
                const float *at = x + mark * n_rot + (halves ? pair : 2 * pair);
                double pos = (double)(1 << mark);
                speed[pair] += remainder(atan2(at[next], at[0]) - pos * speed[pair], turn) / pos;
            }
        }
        lk_rope_init(rope, n_pair, halves, hypotf(x[0], x[next]), speed);
    }
    lk_graph_free(&graph, &model->ledger);
    return status;
}

lk_status lk_model_add_ropes(struct lk_model *model, lk_err *err) {
    const struct lk_hparams *hp = &model->net->hp;
    if (hp->rope_mode < 0) return LK_OK;
    model->rope = lk_alloc(&model->ledger, LK_FOR_WEIGHTS, 2 * sizeof *model->rope);
    if (!model->rope) return lk_fail(err, LK_E_NOMEM, "out of memory for the model's rotations");
    lk_status status = LK_OK;
    bool measured[2] = {false, false};
    for (int layer = 0; status == LK_OK && layer < hp->n_layer; layer++) {
        bool swa = hp->n_swa > 0 && hp->is_swa[layer];
        if (hp->is_recurrent[layer]) continue;
        if (!measured[swa]) status = measure_rope(&model->rope[swa], model, layer, err);
        measured[swa] = true;
    }
    return status;
}
