/* Binding: the first step of loading a model.
 *
 * A family binds each tensor that it uses to the pointer that will hold it, together with the shape
 * that the tensor must have. Then lk_weights_load (weights.h) maps, repacks or dequantizes all
 * bound tensors and sets the pointers. */
#ifndef LK_MODEL_BIND_H
#define LK_MODEL_BIND_H

#include "model/gguf_read.h"
#include "model/net.h"

enum lk_tensor_use {
    LK_USE_VECTOR,  /* norms, biases, factors: always f32 once loaded */
    LK_USE_MATRIX,  /* first operand of a matrix product */
    LK_USE_EXPERTS, /* as many matrices as experts, each multiplied by the rows that choose it */
    LK_USE_HEADS,   /* as many matrices as query heads, each multiplied by its head's rows */
    LK_USE_TABLE,   /* rows are looked up */
};

/* Rows of a matrix of the file, and the adapter that is added to them, or NULL. */
struct lk_row_segment {
    int64_t n;
    const struct lk_adapter *adapter;
};

struct lk_bind {
    struct ggml_tensor **dst;
    int64_t id; /* index in the file's tensor table */
    enum lk_tensor_use use;
    bool is_concat;    /* *dst stays NULL: the rows are part of a concatenated tensor */
    bool is_elsewhere; /* *dst stays NULL: only layers that are not held here use it */
    bool on_device;    /* its memory is the device's: layers that are computed there use it */
    struct lk_row_segment segment[3]; /* its rows in the file's order, if adapters are added */
    int n_segment;                    /* 0: the tensor is as in the file */
};

/* Matrices that are multiplied by the same activations: bind[first .. first + n), followed by n
 * biases if with_bias. If all of them would be repacked, their rows are concatenated into one
 * matrix, because one product has fewer barriers than several. */
struct lk_concat {
    struct ggml_tensor **matrix, **bias;
    size_t first, n;
    bool with_bias;
};

/* A model file being loaded. */
struct lk_loader {
    const char *path; /* borrowed */
    struct lk_gguf_reader reader;
    struct lk_mapping file;
    int64_t n_expert;     /* matrices of a tensor with LK_USE_EXPERTS */
    int64_t n_head;       /* matrices of a tensor with LK_USE_HEADS */
    struct lk_bind *bind; /* [n_bind] */
    size_t n_bind, cap_bind;
    struct lk_concat *concat; /* [n_concat] */
    size_t n_concat, cap_concat;
    uint8_t *used; /* [tensors of the file] 1 if bound */
    struct lk_ledger *ledger;
    struct lk_ggml_device *device; /* NULL: there is none */
    size_t n_ffn_adapted;          /* adapters of feed-forward layers that were added */
    struct lk_net_opts opts;
};

/* Limits per layer and per model, for the sizes of the arrays above. */
enum { LK_LAYER_BINDS = 32, LK_MODEL_BINDS = 16, LK_LAYER_CONCATS = 2 };

/* One tensor to bind. The shape is in ggml's order, ne0 fastest; ne1 is 1 for a vector. With
 * LK_USE_EXPERTS or LK_USE_HEADS it is the shape of one matrix. */
struct lk_tensor_spec {
    struct ggml_tensor **dst;
    const char *name; /* "%d" stands for the layer */
    enum lk_tensor_use use;
    enum lk_need need;
    int64_t ne0, ne1;
};

/* Bind n tensors. `layer` replaces "%d" in their names; -1 for names without it. The pointer of an
 * optional tensor that the file does not have is left alone.
 * LK_E_FORMAT for a missing required tensor or a wrong shape, LK_E_UNSUPPORTED for its type. */
lk_status lk_bind(struct lk_loader *ld, const struct lk_tensor_spec *spec, size_t n, int layer,
                  lk_err *err);

/* Offer the tensors bound since n_bind was `first` for concatenation: n matrices, optionally
 * followed by n biases. With any other number of tensors nothing happens. If the matrices are
 * concatenated, *matrix and *bias are set instead of the single tensors' pointers. */
void lk_bind_concat(struct lk_loader *ld, struct ggml_tensor **matrix, struct ggml_tensor **bias,
                    size_t first, size_t n);

/* Ignore the tensors of n layers from `first` on, which are not part of the forward pass. */
void lk_bind_skip_layers(struct lk_loader *ld, int first, int n);

/* LK_E_UNSUPPORTED if the file has a tensor that is not bound: ignoring it would compute
 * wrongly. */
lk_status lk_bind_check_all_used(const struct lk_loader *ld, lk_err *err);

#endif
