#include "lowrank/weight_moments.h"

#include "ggml-backend.h"
#include "ggml.h"

/* Rows of a matrix at a time. */
enum { PORTION = 64 };

struct room {
    float *row; /* [n_in] */
    double *x;  /* [n_row][PORTION] or [PORTION][n_in] */
    size_t row_bytes, x_bytes;
    struct lk_ledger *ledger;
};

static bool readable(const struct ggml_tensor *w) { return ggml_backend_buffer_is_host(w->buffer); }

static lk_status unreadable(lk_err *err) {
    return lk_fail(
        err, LK_E_UNSUPPORTED,
        "the weights were repacked for this CPU and cannot be read; open the model with no_repack");
}

static lk_status room_take(struct room *room, const struct ggml_tensor *w, size_t n_x,
                           struct lk_ledger *ledger, lk_err *err) {
    *room = (struct room){.ledger = ledger,
                          .row_bytes = (size_t)w->ne[0] * sizeof *room->row,
                          .x_bytes = n_x * sizeof *room->x};
    if (!readable(w)) return unreadable(err);
    room->row = lk_alloc(ledger, LK_FOR_SCRATCH, room->row_bytes);
    room->x = lk_alloc(ledger, LK_FOR_SCRATCH, room->x_bytes);
    return room->row && room->x ? LK_OK : lk_fail(err, LK_E_NOMEM, "no memory for weights");
}

static void room_give(struct room *room) {
    lk_release(room->ledger, LK_FOR_SCRATCH, room->row, room->row_bytes);
    lk_release(room->ledger, LK_FOR_SCRATCH, room->x, room->x_bytes);
}

/* Row i of a matrix as floats, of one that is readable. */
static const float *row_of(const struct ggml_tensor *w, int64_t i, float *room) {
    const void *row = (const char *)w->data + (size_t)i * w->nb[1];
    if (w->type == GGML_TYPE_F32) return row;
    ggml_get_type_traits(w->type)->to_float(row, room, w->ne[0]);
    return room;
}

lk_status lk_weight_row(const struct ggml_tensor *w, int64_t i, float *room, const float **row,
                        lk_err *err) {
    if (!readable(w)) return unreadable(err);
    *row = row_of(w, i, room);
    return LK_OK;
}

lk_status lk_weight_moments(struct lk_moments *m, const struct lk_net *net, int layer,
                            enum lk_basis_side side, struct lk_ledger *ledger, lk_err *err) {
    const struct lk_layer *l = &net->layer[layer];
    const struct lk_hparams *hp = &net->hp;
    const struct ggml_tensor *w = l->wqkv ? l->wqkv : side == LK_BASIS_V ? l->wv : l->wk;
    int64_t n_row = (int64_t)m->n_group * m->width, first = 0;
    if (side == LK_BASIS_K && hp->rope_mode >= 0)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "keys behind RoPE have no weight matrix; use a text (--svd whitened)");
    if (side != LK_BASIS_V && l->k_norm)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "this model normalises its keys: they are no product with a weight matrix; "
                       "use a text (--svd whitened)");
    if (l->wqkv)
        first = (int64_t)hp->d_head * (hp->n_head + (side == LK_BASIS_V ? hp->n_head_kv : 0));
    struct room room;
    lk_status status = room_take(&room, w, (size_t)n_row * (size_t)w->ne[0], ledger, err);
    if (status == LK_OK) {
        for (int64_t i = 0; i < n_row; i++) { /* transposed: a row of moments is a column of W */
            const float *row = row_of(w, first + i, room.row);
            for (int64_t c = 0; c < w->ne[0]; c++) room.x[c * n_row + i] = row[c];
        }
        for (int g = 0; g < m->n_group; g++)
            lk_moments_add(m, g, room.x + (int64_t)g * m->width, w->ne[0], n_row);
        lk_moments_count(m, (uint64_t)w->ne[0]);
    }
    room_give(&room);
    return status;
}

lk_status lk_output_moments(struct lk_moments *m, const struct lk_net *net, int layer,
                            struct lk_ledger *ledger, lk_err *err) {
    const struct ggml_tensor *w = net->layer[layer].wo;
    const struct lk_hparams *hp = &net->hp;
    int share = hp->n_head / hp->n_head_kv;
    struct room room;
    lk_status status = room_take(&room, w, (size_t)w->ne[0] * PORTION, ledger, err);
    for (int64_t at = 0; status == LK_OK && at < w->ne[1]; at += PORTION) {
        int64_t n = w->ne[1] - at < PORTION ? w->ne[1] - at : PORTION;
        for (int64_t i = 0; i < n; i++) {
            const float *row = row_of(w, at + i, room.row);
            for (int64_t c = 0; c < w->ne[0]; c++) room.x[i * w->ne[0] + c] = row[c];
        }
        for (int head = 0; head < hp->n_head; head++)
            lk_moments_add(m, head / share, room.x + (int64_t)head * hp->d_head, n, w->ne[0]);
    }
    if (status == LK_OK) lk_moments_count(m, (uint64_t)(w->ne[1] * share));
    room_give(&room);
    return status;
}
