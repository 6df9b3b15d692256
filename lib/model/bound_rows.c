/* Shape, type and data of a bound tensor: as in the file, or with adapters added. */
#include "model/bound_rows.h"

#include "gguf.h"

#include <string.h>

const void *lk_file_data(const struct lk_loader *ld, int64_t id) {
    return ld->file.data + gguf_get_data_offset(ld->reader.gguf) +
           gguf_get_tensor_offset(ld->reader.gguf, id);
}

void lk_bound_shape(const struct lk_loader *ld, const struct lk_bind *b, int64_t ne[3]) {
    memcpy(ne, gguf_get_tensor_ne(ld->reader.gguf, b->id), 3 * sizeof *ne);
}

enum ggml_type lk_bound_type(const struct lk_loader *ld, const struct lk_bind *b) {
    enum ggml_type type = gguf_get_tensor_type(ld->reader.gguf, b->id);
    return b->n_segment > 0 && ggml_is_quantized(type) ? GGML_TYPE_Q8_0 : type;
}

uint64_t lk_bound_adapter_bytes(const struct lk_loader *ld, const struct lk_bind *b) {
    enum ggml_type from = gguf_get_tensor_type(ld->reader.gguf, b->id), to = lk_bound_type(ld, b);
    int64_t n_col = gguf_get_tensor_ne(ld->reader.gguf, b->id)[0];
    uint64_t bytes = 0;
    for (int i = 0; i < b->n_segment; i++)
        if (b->segment[i].adapter)
            bytes +=
                (uint64_t)b->segment[i].n * (ggml_row_size(to, n_col) - ggml_row_size(from, n_col));
    return bytes;
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

/* Write rows x of type `from` with the segment's adapter added. */
static lk_status add_adapter(struct lk_loader *ld, const struct lk_row_segment *segment,
                             enum ggml_type from, const void *x, int64_t n_col, enum ggml_type to,
                             void *out, lk_err *err) {
    int64_t n = segment->n;
    size_t size =
        ((size_t)(n * n_col) + lk_adapter_scratch_floats(segment->adapter, n_col)) * sizeof(float);
    float *w = lk_alloc(ld->ledger, LK_FOR_OTHER, size);
    if (!w) return lk_fail(err, LK_E_NOMEM, "not enough memory for %zu MiB of weights", size >> 20);
    to_f32(from, x, n * n_col, w);
    bool finite = lk_adapter_add(segment->adapter, n, n_col, w + n * n_col, w);
    if (to == GGML_TYPE_F32)
        memcpy(out, w, (size_t)(n * n_col) * sizeof *w);
    else
        ggml_quantize_chunk(to, w, out, 0, n, n_col, NULL);
    lk_release(ld->ledger, LK_FOR_OTHER, w, size);
    return finite ? LK_OK
                  : lk_fail(err, LK_E_FORMAT,
                            "the sidecar's adapters make weights that are too large; train them "
                            "again with `lowkey train lora`");
}

lk_status lk_bound_copy(struct lk_loader *ld, const struct lk_bind *b, enum ggml_type type,
                        void *out, lk_err *err) {
    enum ggml_type from = gguf_get_tensor_type(ld->reader.gguf, b->id);
    const int64_t *ne = gguf_get_tensor_ne(ld->reader.gguf, b->id);
    int64_t n_row = b->use == LK_USE_VECTOR ? ne[0] : ne[1], n_col = ne[0] * ne[1] / n_row;
    struct lk_row_segment whole = {.n = n_row};
    const struct lk_row_segment *segment = b->n_segment ? b->segment : &whole;
    const char *x = lk_file_data(ld, b->id);
    char *to = out;
    lk_status status = LK_OK;
    for (int i = 0; !status && i < (b->n_segment ? b->n_segment : 1); i++) {
        if (segment[i].adapter)
            status = add_adapter(ld, &segment[i], from, x, n_col, type, to, err);
        else
            keep_rows(from, x, segment[i].n, n_col, type, to);
        x += ggml_row_size(from, n_col) * (size_t)segment[i].n;
        to += ggml_row_size(type, n_col) * (size_t)segment[i].n;
    }
    lk_mapping_drop_pages(&ld->file, lk_file_data(ld, b->id),
                          gguf_get_tensor_size(ld->reader.gguf, b->id));
    return status;
}
