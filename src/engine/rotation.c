#include "engine/rotation.h"

#include "model/blocks.h"

#include <math.h>
#include <string.h>

static size_t turn_bytes(const struct lk_rotation *r) { return r->n_pos * r->n_rot * sizeof(float); }

static int first_of(const struct lk_rotation *r, int pair) { return r->halves ? pair : 2 * pair; }
static int second_of(const struct lk_rotation *r, int pair) { return r->halves ? pair + r->n_rot / 2 : 2 * pair + 1; }

/* Rotate the marked rows; *graph keeps the result in x_out. */
static lk_status rotate_marks(struct lk_graph *g, const struct lk_rotation *r, struct lk_model *model, int layer, lk_err *err) {
    enum { NODES = 16 };
    lk_status status = lk_graph_begin(g, NODES, r->ledger, err);
    if (status != LK_OK) return status;
    g->x_in = ggml_new_tensor_3d(g->ctx, GGML_TYPE_F32, r->n_rot, 1, (int64_t)r->n_pos);
    g->pos = ggml_new_tensor_1d(g->ctx, GGML_TYPE_I32, (int64_t)r->n_pos);
    ggml_set_input(g->x_in);
    ggml_set_input(g->pos);
    g->x_out = lk_rope(model->net, g->ctx, layer, g->x_in, g->pos);
    ggml_set_output(g->x_out);
    ggml_build_forward_expand(g->graph, g->x_out);
    status = lk_graph_finish(g, r->ledger, err);
    if (status != LK_OK) return status;
    float *x = memset(g->x_in->data, 0, ggml_nbytes(g->x_in));
    for (size_t pos = 0; pos < r->n_pos; pos++)
        for (int pair = 0; pair < r->n_rot / 2; pair++) x[pos * r->n_rot + first_of(r, pair)] = 1;
    lk_graph_set_positions(g, 0, 0, r->n_pos);
    return lk_graph_run(g, model, err);
}

lk_status lk_rotation_new(struct lk_rotation *r, struct lk_model *model, int layer, size_t n_pos, struct lk_ledger *ledger, lk_err *err) {
    const struct lk_hparams *hp = &model->net->hp;
    *r = (struct lk_rotation){.n_rot = hp->n_rot, .d_head = hp->d_head, .halves = hp->rope_mode != GGML_ROPE_TYPE_NORMAL, .n_pos = n_pos, .ledger = ledger};
    if (hp->rope_mode < 0) return LK_OK;
    struct lk_graph graph = {0};
    r->turn = lk_alloc(ledger, LK_FOR_SCRATCH, turn_bytes(r));
    if (!r->turn) return lk_fail(err, LK_E_NOMEM, "no memory for the rotations of %zu positions", n_pos);
    lk_status status = rotate_marks(&graph, r, model, layer, err);
    if (status == LK_OK) {
        const float *x = graph.x_out->data;
        for (size_t pos = 0; pos < n_pos; pos++)
            for (int pair = 0; pair < r->n_rot / 2; pair++) {
                r->turn[pos * r->n_rot + 2 * pair] = x[pos * r->n_rot + first_of(r, pair)];
                r->turn[pos * r->n_rot + 2 * pair + 1] = x[pos * r->n_rot + second_of(r, pair)];
            }
    }
    lk_graph_free(&graph, ledger);
    if (status != LK_OK) lk_rotation_free(r);
    return status;
}

void lk_rotation_free(struct lk_rotation *r) {
    if (!r->turn) return;
    lk_release(r->ledger, LK_FOR_SCRATCH, r->turn, turn_bytes(r));
    r->turn = NULL;
}

void lk_rotation_undo(const struct lk_rotation *r, size_t pos, float *x) {
    if (!r->turn) return;
    const float *turn = r->turn + pos * r->n_rot;
    for (int pair = 0; pair < r->n_rot / 2; pair++) {
        float c = turn[2 * pair], s = turn[2 * pair + 1], m2 = c * c + s * s;
        float *a = &x[first_of(r, pair)], *b = &x[second_of(r, pair)], y = *a;
        *a = (c * y + s * *b) / m2;
        *b = (c * *b - s * y) / m2;
    }
}

/* Speeds from the angles of position 1, which are below a half turn. */
static lk_status find_rope(struct lk_rope *rope, struct lk_model *model, int layer, lk_err *err) {
    struct lk_rotation r;
    lk_status status = lk_rotation_new(&r, model, layer, 2, &model->ledger, err);
    if (status != LK_OK) return status;
    double speed[LK_MAX_PAIR];
    const float *turn = r.turn + r.n_rot;
    for (int pair = 0; pair < r.n_rot / 2; pair++) speed[pair] = atan2(turn[2 * pair + 1], turn[2 * pair]);
    lk_rope_init(rope, r.n_rot / 2, r.halves, hypotf(turn[0], turn[1]), speed);
    lk_rotation_free(&r);
    return LK_OK;
}

lk_status lk_model_add_ropes(struct lk_model *model, lk_err *err) {
    const struct lk_hparams *hp = &model->net->hp;
    if (hp->rope_mode < 0) return LK_OK;
    model->rope = lk_alloc(&model->ledger, LK_FOR_WEIGHTS, 2 * sizeof *model->rope);
    if (!model->rope) return lk_fail(err, LK_E_NOMEM, "no memory for the model's rotations");
    lk_status status = LK_OK;
    bool found[2] = {false, false};
    for (int layer = 0; status == LK_OK && layer < hp->n_layer; layer++) {
        bool swa = hp->n_swa > 0 && hp->is_swa[layer];
        if (!found[swa]) status = find_rope(&model->rope[swa], model, layer, err);
        found[swa] = true;
    }
    return status;
}
