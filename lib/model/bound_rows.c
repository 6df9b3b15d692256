/* Shape, type and data of a bound tensor: as in the file, or with rows replaced by factors. */
#include "model/bound_rows.h"

#include "gguf.h"

#include <string.h>

const void *lk_file_data(const struct lk_loader *ld, int64_t id) {
    return ld->file.data + gguf_get_data_offset(ld->reader.gguf) +
           gguf_get_tensor_offset(ld->reader.gguf, id);
}

void lk_bound_shape(const struct lk_loader *ld, const struct lk_bind *b, int64_t ne[2]) {
    memcpy(ne, gguf_get_tensor_ne(ld->reader.gguf, b->id), 2 * sizeof *ne);
    int64_t *rows = b->use == LK_USE_VECTOR ? &ne[0] : &ne[1];
    if (b->n_segment > 0) *rows = 0;
    for (int i = 0; i < b->n_segment; i++) *rows += lk_segment_rows(&b->segment[i]);
}

enum ggml_type lk_bound_type(const struct lk_loader *ld, const struct lk_bind *b) {
    enum ggml_type type = gguf_get_tensor_type(ld->reader.gguf, b->id);
    for (int i = 0; i < b->n_segment && ggml_is_quantized(type); i++)
        if (b->segment[i].use == LK_ROWS_REPLACED) return GGML_TYPE_Q8_0;
    return type;
}

static void to_f32(enum ggml_type from, const void *x, int64_t n, float *out) {
    if (from == GGML_TYPE_F32)
        memcpy(out, x, (size_t)n * sizeof *out);
    else
        ggml_get_type_traits(from)->to_float(x, out, n);
}

/* Rows as [n][n_col] numbers of type `from`, written as `to`: equal to `from`, or f32. */
static void keep_rows(enum ggml_type from, const void *x, int64_t n, int64_t n_col,
                      enum ggml_type to, void *out) {
    if (from == to)
        memcpy(out, x, ggml_row_size(from, n_col) * (size_t)n);
    else
        to_f32(from, x, n * n_col, out);
}

/* Write the rows of the factor, which replace rows x of type `from`. */
static lk_status replace_rows(struct lk_loader *ld, const struct lk_row_segment *segment,
                              enum ggml_type from, const void *x, int64_t n_col, enum ggml_type to,
                              void *out, lk_err *err) {
    int64_t n = lk_segment_rows(segment);
    size_t size = ((size_t)(segment->n + n) * n_col + segment->factor->width) * sizeof(float);
    float *w = lk_alloc(ld->ledger, LK_FOR_OTHER, size);
    if (!w) return lk_fail(err, LK_E_NOMEM, "not enough memory for %zu MiB of weights", size >> 20);
    float *a = w + segment->n * n_col;
    to_f32(from, x, segment->n * n_col, w);
    lk_factor_apply(segment->factor, w, n_col, a + n * n_col, a);
    if (to == GGML_TYPE_F32)
        memcpy(out, a, (size_t)n * n_col * sizeof *a);
    else
        ggml_quantize_chunk(to, a, out, 0, n, n_col, NULL);
    lk_release(ld->ledger, LK_FOR_OTHER, w, size);
    return LK_OK;
}

lk_status lk_bound_copy(struct lk_loader *ld, const struct lk_bind *b, enum ggml_type type,
                        void *out, lk_err *err) {
    enum ggml_type from = gguf_get_tensor_type(ld->reader.gguf, b->id);
    const int64_t *ne = gguf_get_tensor_ne(ld->reader.gguf, b->id);
    int64_t n_row = b->use == LK_USE_VECTOR ? ne[0] : ne[1], n_col = ne[0] * ne[1] / n_row;
    struct lk_row_segment whole = {LK_ROWS_KEPT, n_row, NULL};
    const struct lk_row_segment *segment = b->n_segment ? b->segment : &whole;
    const char *x = lk_file_data(ld, b->id);
    char *to = out;
    lk_status status = LK_OK;
    for (int i = 0; status == LK_OK && i < (b->n_segment ? b->n_segment : 1); i++) {
        if (segment[i].use == LK_ROWS_REPLACED)
            status = replace_rows(ld, &segment[i], from, x, n_col, type, to, err);
        else if (segment[i].use == LK_ROWS_KEPT)
            keep_rows(from, x, segment[i].n, n_col, type, to);
        x += ggml_row_size(from, n_col) * (size_t)segment[i].n;
        to += ggml_row_size(type, n_col) * (size_t)lk_segment_rows(&segment[i]);
    }
    lk_mapping_drop_pages(&ld->file, lk_file_data(ld, b->id),
                          gguf_get_tensor_size(ld->reader.gguf, b->id));
    return status;
}
