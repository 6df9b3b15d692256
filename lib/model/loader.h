/* Loading in two steps: a family binds each tensor it needs to the place that will point to it, with
 * the shape it must have; then weights.c maps, repacks or dequantises all that were bound. */
#ifndef LK_MODEL_LOADER_H
#define LK_MODEL_LOADER_H

#include "model/mapping.h"
#include "model/net.h"
#include "model/reader.h"

enum lk_use {
    LK_USE_VECTOR, /* norms, biases, factors: always f32 once loaded */
    LK_USE_MATRIX, /* left side of a matrix product */
    LK_USE_TABLE,  /* rows are looked up */
};

struct lk_bind {
    struct ggml_tensor **slot;
    int64_t id; /* in the file's tensor table */
    enum lk_use use;
    bool joined; /* the slot stays NULL, another has the tensor's rows */
};

/* Matrices that multiply the same rows: the bound ones [first, first + n), behind them perhaps as many biases.
 * Where all would be repacked they become one, because one product takes fewer barriers than several. */
struct lk_join {
    struct ggml_tensor **matrix, **bias;
    size_t first, n;
    bool with_bias;
};

struct lk_loader {
    struct lk_reader reader;
    struct lk_mapping file;
    struct lk_bind *bind; /* [n_bind] */
    size_t n_bind, cap_bind;
    struct lk_join *join; /* [n_join] */
    size_t n_join, cap_join;
    uint8_t *used; /* [tensors of the file] */
    struct lk_ledger *ledger;
    struct lk_net_opts opts;
};

enum { LK_LAYER_BINDS = 32, LK_MODEL_BINDS = 16, LK_LAYER_JOINS = 2 };

/* Let *slot become the tensor `name`, of shape ne (ggml order: ne[0] fastest; ne1 = 1 for a vector).
 * An absent optional one leaves *slot alone. `layer` replaces "%d" in the name; -1 where there is none. */
lk_status lk_bind(struct lk_loader *ld, struct ggml_tensor **slot, const char *name, int layer,
                  enum lk_use use, enum lk_need need, int64_t ne0, int64_t ne1, lk_err *err);

/* The tensors bound since n_bind was `first` are n matrices, with or without n biases: let *matrix and *bias take
 * their places where that is faster. Other numbers of tensors are left alone. */
void lk_bind_join(struct lk_loader *ld, struct ggml_tensor **matrix, struct ggml_tensor **bias,
                  size_t first, size_t n);

/* Every tensor of the file must be bound: an unknown one means a model that we would compute wrongly. */
lk_status lk_bind_complete(const struct lk_loader *ld, lk_err *err);

/* Fill all bound places. *out is owned: lk_weights_free. Takes ld->file over on success. */
lk_status lk_weights_load(struct lk_weights_map **out, struct lk_loader *ld, uint64_t *n_param,
                          uint64_t *weight_bytes, lk_err *err);
void lk_weights_free(struct lk_weights_map *map, struct lk_ledger *ledger);

/* Keys that all families share (hparams.c). */
lk_status lk_hparams_read(struct lk_hparams *hp, const struct lk_reader *r,
                          struct lk_ledger *ledger, lk_err *err);
/* Rope keys; for families that rotate. */
lk_status lk_hparams_read_rope(struct lk_hparams *hp, const struct lk_reader *r, int mode,
                               lk_err *err);

/* Would libllama's tokenizer be safe with this file's vocabulary? *n_vocab: its tokens, 0 if it has none. */
lk_status lk_vocab_check(const struct lk_reader *r, struct lk_ledger *ledger, int32_t *n_vocab,
                         lk_err *err);

#endif
