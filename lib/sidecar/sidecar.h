/* Sidecars: GGUF files with data that was computed offline for one model. This header reads them.
 * sidecar_write.h writes them.
 *
 *   general.type                       "sidecar", so that programs do not load it as a model
 *   lowkey.sidecar.version             u32, 1
 *   lowkey.sidecar.method              "palu", "tale", "kvheads", "oscar", "less", "lora"
 *   lowkey.sidecar.options             how it was made, for humans
 *   lowkey.sidecar.model_fingerprint   u64, of struct lk_net
 *   lowkey.sidecar.n_layer, .n_head_kv, .d_head          u32
 *   lowkey.sidecar.calibration_hash, .calibration_tokens u64, of the calibration text
 *
 * Tensors are f32, f16, i8 or i32 and have up to three dimensions. The tensors of a basis, with
 * SIDE = k, kpre or v and dimensions in ggml's order (fastest first):
 *
 *   blk.N.SIDE.down        f32, f16 or i8 [width, n_comp, n_group]
 *   blk.N.SIDE.up          the same type and shape       absent: equal to down
 *   blk.N.SIDE.down_scale  f32 [n_comp, n_group]         only with i8: a row is scale times bytes
 *   blk.N.SIDE.up_scale    f32 [n_comp, n_group]         only with i8 and up
 *   blk.N.SIDE.mean        f32 [width, n_group]          absent: zero
 *   blk.N.SIDE.rank        i32 [n_group]
 *   blk.N.SIDE.error       f32 [n_comp, n_group]
 *
 * Adapters of a layer's attention weights (model/adapter.h; engine/adapters.h checks them), with
 * NAME = attn_q, attn_k, attn_v or attn_output, as llama.cpp names those of its LoRA files:
 *
 *   blk.N.NAME.weight.lora_a   f16 [inputs, rank]
 *   blk.N.NAME.weight.lora_b   f16 [rank, outputs], times alpha / rank
 *
 * The file is checked whole when it is opened. `down`, `up`, scales, `error` and
 * adapters then stay in the mapped file: caches copy the components that they read
 * (cache/latent_levels.h), and adapters are merged into the weights. All other tensors are in
 * memory. */
#ifndef LK_SIDECAR_SIDECAR_H
#define LK_SIDECAR_SIDECAR_H

#include "base/err.h"
#include "base/ledger.h"
#include "model/gguf_read.h"
#include "sidecar/basis.h"

/* The model that a sidecar belongs to. */
struct lk_sidecar_model {
    uint64_t fingerprint;
    int32_t n_layer, n_head_kv, d_head;
};

struct lk_sidecar_info {
    char method[16];
    char options[512];
    struct lk_sidecar_model model;
    uint64_t calibration_hash, calibration_tokens;
};

enum lk_sidecar_type {
    LK_SIDECAR_F32,
    LK_SIDECAR_I32,
    LK_SIDECAR_F16,
    LK_SIDECAR_I8,
    LK_N_SIDECAR_TYPE
};

struct lk_sidecar_tensor {
    char name[64];
    int32_t ne[3]; /* fastest dimension first; 1 for unused dimensions */
    enum lk_sidecar_type type;
    const void *data; /* float, int32_t, uint16_t or int8_t [ne[2]][ne[1]][ne[0]] */
};

struct lk_sidecar {
    struct lk_ledger *ledger;
    struct lk_sidecar_info info;
    struct lk_sidecar_tensor *tensor; /* [n_tensor] */
    size_t n_tensor;
    struct lk_basis *basis[LK_N_BASIS]; /* [n_layer] each; n_group is 0 if absent */
    struct lk_mapping file;             /* with the matrices of the bases */
    void *data;                         /* of the other tensors; NULL if there are none */
    uint64_t bytes;                     /* of data, entered in the ledger as weights */
    uint64_t fingerprint; /* hash of the tensors' names, types, shapes and data; never 0 */
};

/* The enum ggml_type of a type, and the bytes of a tensor's data. */
int lk_sidecar_ggml_type(enum lk_sidecar_type type);
size_t lk_sidecar_bytes(const struct lk_sidecar_tensor *tensor);

/* Open a sidecar, with memory of `ledger`. Checks that all values are finite and that all
 * shapes and ranks agree. LK_E_ARG if the sidecar was made for another model than `model` (NULL:
 * any). Other errors: LK_E_IO, LK_E_FORMAT, LK_E_UNSUPPORTED, LK_E_NOMEM. *out is owned:
 * lk_sidecar_close. */
lk_status lk_sidecar_open(struct lk_sidecar **out, const char *path,
                          const struct lk_sidecar_model *model, struct lk_ledger *ledger,
                          lk_err *err);
void lk_sidecar_close(struct lk_sidecar *sidecar);

/* The data of the tensor `name`, borrowed; NULL if there is no such tensor. LK_E_FORMAT if it has
 * another type or shape. */
lk_status lk_sidecar_find(const struct lk_sidecar *sidecar, const char *name,
                          enum lk_sidecar_type type, int64_t ne0, int64_t ne1, int64_t ne2,
                          const void **out, lk_err *err);

#endif
