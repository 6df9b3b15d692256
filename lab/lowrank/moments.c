/* Sums over rows, their file format, and moments of projection matrices. */
#include "lowrank/moments.h"

#include "base/hash.h"
#include "lowrank/linalg.h"

#include "ggml-backend.h"
#include "ggml.h"

/* Bytes of sum and second. */
static size_t moments_bytes(const struct lk_moments *m) {
    return (size_t)m->n_group * m->width * (m->width + 1) * sizeof(double);
}

lk_status lk_moments_new(struct lk_moments *m, int n_group, int width, struct lk_ledger *ledger,
                         lk_err *err) {
    *m = (struct lk_moments){.n_group = n_group, .width = width};
    m->sum = lk_alloc(ledger, LK_FOR_SCRATCH, moments_bytes(m));
    if (!m->sum)
        return lk_fail(err, LK_E_NOMEM,
                       "no memory for the second moments of %d x %d channels; use smaller groups",
                       n_group, width);
    m->second = m->sum + (size_t)n_group * width;
    return LK_OK;
}

void lk_moments_free(struct lk_moments *m, struct lk_ledger *ledger) {
    lk_release(ledger, LK_FOR_SCRATCH, m->sum, moments_bytes(m));
    *m = (struct lk_moments){0};
}

void lk_moments_add(struct lk_moments *m, int g, const double *x, int64_t rows, int64_t stride) {
    double *sum = m->sum + (size_t)g * m->width;
    for (int64_t i = 0; i < rows; i++)
        for (int c = 0; c < m->width; c++) sum[c] += x[i * stride + c];
    lk_gram_add(m->second + (size_t)g * m->width * m->width, m->width, x, rows, stride);
}

void lk_moments_count(struct lk_moments *m, uint64_t rows) { m->n += rows; }

bool lk_moments_write(const struct lk_moments *m, FILE *file, uint64_t *hash) {
    size_t size = moments_bytes(m);
    *hash = lk_fnv1a(lk_fnv1a(*hash, &m->n, sizeof m->n), m->sum, size);
    return fwrite(&m->n, sizeof m->n, 1, file) == 1 && fwrite(m->sum, size, 1, file) == 1;
}

bool lk_moments_read(struct lk_moments *m, FILE *file, uint64_t *hash) {
    size_t size = moments_bytes(m);
    if (fread(&m->n, sizeof m->n, 1, file) != 1 || fread(m->sum, size, 1, file) != 1) return false;
    *hash = lk_fnv1a(lk_fnv1a(*hash, &m->n, sizeof m->n), m->sum, size);
    return true;
}

/* ---- moments of weights ---- */

/* Rows of W_O per call of BLAS. */
enum { BATCH_ROWS = 64 };

/* Rows of a matrix as floats and doubles. */
struct weight_buf {
    float *row; /* [n_in] */
    double *x;  /* whatever one call of lk_moments_add reads */
    size_t row_bytes, x_bytes;
    struct lk_ledger *ledger;
};

/* LK_E_UNSUPPORTED if the tensor's data is not in ggml's own layout. */
static lk_status check_not_repacked(const struct ggml_tensor *w, lk_err *err) {
    if (ggml_backend_buffer_is_host(w->buffer)) return LK_OK;
    return lk_fail(
        err, LK_E_UNSUPPORTED,
        "the weights were repacked for this CPU and cannot be read; open the model with no_repack");
}

/* Buffers for w with n_x doubles; weight_buf_free even after a failure. */
static lk_status weight_buf_new(struct weight_buf *buf, const struct ggml_tensor *w, size_t n_x,
                                struct lk_ledger *ledger, lk_err *err) {
    *buf = (struct weight_buf){.ledger = ledger,
                               .row_bytes = (size_t)w->ne[0] * sizeof *buf->row,
                               .x_bytes = n_x * sizeof *buf->x};
    lk_status status = check_not_repacked(w, err);
    if (status) return status;
    buf->row = lk_alloc(ledger, LK_FOR_SCRATCH, buf->row_bytes);
    buf->x = lk_alloc(ledger, LK_FOR_SCRATCH, buf->x_bytes);
    return buf->row && buf->x ? LK_OK : lk_fail(err, LK_E_NOMEM, "no memory for weights");
}

static void weight_buf_free(struct weight_buf *buf) {
    lk_release(buf->ledger, LK_FOR_SCRATCH, buf->row, buf->row_bytes);
    lk_release(buf->ledger, LK_FOR_SCRATCH, buf->x, buf->x_bytes);
}

/* Row i of a matrix that is not repacked, as floats. */
static const float *read_row(const struct ggml_tensor *w, int64_t i, float *buf) {
    const void *row = (const char *)w->data + (size_t)i * w->nb[1];
    if (w->type == GGML_TYPE_F32) return row;
    ggml_get_type_traits(w->type)->to_float(row, buf, w->ne[0]);
    return buf;
}

lk_status lk_weight_row(const struct ggml_tensor *w, int64_t i, float *buf, const float **row,
                        lk_err *err) {
    lk_status status = check_not_repacked(w, err);
    if (!status) *row = read_row(w, i, buf);
    return status;
}

lk_status lk_weight_moments(struct lk_moments *m, const struct lk_net *net, int layer,
                            enum lk_basis_side side, struct lk_ledger *ledger, lk_err *err) {
    const struct lk_layer *l = &net->layer[layer];
    const struct lk_hparams *hp = &net->hp;
    const struct ggml_tensor *w = l->wqkv ? l->wqkv : side == LK_BASIS_V ? l->wv : l->wk;
    int64_t n_row = (int64_t)m->n_group * m->width, first = 0;
    if (side == LK_BASIS_K && hp->rope_mode >= 0)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "keys after RoPE have no weight matrix; use a text (--svd whitened)");
    if (side != LK_BASIS_V && l->k_norm)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "this model normalizes its keys: they are not a product with a weight "
                       "matrix; use a text (--svd whitened)");
    if (l->wqkv)
        first = (int64_t)hp->d_head * (hp->n_head + (side == LK_BASIS_V ? hp->n_head_kv : 0));
    struct weight_buf buf;
    lk_status status = weight_buf_new(&buf, w, (size_t)n_row * (size_t)w->ne[0], ledger, err);
    if (!status) {
        for (int64_t i = 0; i < n_row;
             i++) { /* transpose: a row for the moments is a column of W */
            const float *row = read_row(w, first + i, buf.row);
            for (int64_t c = 0; c < w->ne[0]; c++) buf.x[c * n_row + i] = row[c];
        }
        for (int g = 0; g < m->n_group; g++)
            lk_moments_add(m, g, buf.x + (int64_t)g * m->width, w->ne[0], n_row);
        lk_moments_count(m, (uint64_t)w->ne[0]);
    }
    weight_buf_free(&buf);
    return status;
}

lk_status lk_output_moments(struct lk_moments *m, const struct lk_net *net, int layer,
                            struct lk_ledger *ledger, lk_err *err) {
    const struct ggml_tensor *w = net->layer[layer].wo;
    const struct lk_hparams *hp = &net->hp;
    int share = hp->n_head / hp->n_head_kv;
    struct weight_buf buf;
    lk_status status = weight_buf_new(&buf, w, (size_t)w->ne[0] * BATCH_ROWS, ledger, err);
    for (int64_t at = 0; !status && at < w->ne[1]; at += BATCH_ROWS) {
        int64_t n = w->ne[1] - at < BATCH_ROWS ? w->ne[1] - at : BATCH_ROWS;
        for (int64_t i = 0; i < n; i++) {
            const float *row = read_row(w, at + i, buf.row);
            for (int64_t c = 0; c < w->ne[0]; c++) buf.x[i * w->ne[0] + c] = row[c];
        }
        for (int head = 0; head < hp->n_head; head++)
            lk_moments_add(m, head / share, buf.x + (int64_t)head * hp->d_head, n, w->ne[0]);
    }
    if (!status) lk_moments_count(m, (uint64_t)(w->ne[1] * share));
    weight_buf_free(&buf);
    return status;
}
