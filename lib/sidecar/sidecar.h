/* Sidecars: GGUF files with data that was computed offline for one model. This header reads them.
 * sidecar_write.h writes them.
 *
 *   general.type                       "sidecar", so that programs do not load it as a model
 *   lowkey.sidecar.version             u32, 1
 *   lowkey.sidecar.method              "palu", "tale", "kvheads", "less"
 *   lowkey.sidecar.options             how it was made, for humans
 *   lowkey.sidecar.model_fingerprint   u64, of struct lk_net
 *   lowkey.sidecar.n_layer, .n_head_kv, .d_head          u32
 *   lowkey.sidecar.calibration_hash, .calibration_tokens u64, of the calibration text
 *
 * Tensors are f32, i32 or f16 and have up to three dimensions. The tensors of a basis, with SIDE =
 * k, kpre or v and dimensions in ggml's order (fastest first):
 *
 *   blk.N.SIDE.down    f32 [width, n_comp, n_group]
 *   blk.N.SIDE.up      f32 [width, n_comp, n_group]   absent: equal to down
 *   blk.N.SIDE.mean    f32 [width, n_group]           absent: zero
 *   blk.N.SIDE.rank    i32 [n_group]
 *   blk.N.SIDE.error   f32 [n_comp, n_group]
 *
 * Bases are f32 because they are read once per step, not once per row. They are small compared with
 * the weights and with any cache worth compressing, and a full-rank basis stays an accurate
 * rotation. */
#ifndef LK_SIDECAR_SIDECAR_H
#define LK_SIDECAR_SIDECAR_H

#include "base/err.h"
#include "base/ledger.h"
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

enum lk_sidecar_type { LK_SIDECAR_F32, LK_SIDECAR_I32, LK_SIDECAR_F16, LK_N_SIDECAR_TYPE };

struct lk_sidecar_tensor {
    char name[64];
    int32_t ne[3]; /* fastest dimension first; 1 for unused dimensions */
    enum lk_sidecar_type type;
    void *data; /* float, int32_t or uint16_t [ne[2]][ne[1]][ne[0]] */
};

struct lk_sidecar {
    struct lk_ledger *ledger;
    struct lk_sidecar_info info;
    struct lk_sidecar_tensor *tensor; /* [n_tensor] */
    size_t n_tensor;
    struct lk_basis *basis[LK_N_BASIS]; /* [n_layer] each; n_group is 0 if absent */
    void *data;                         /* of all tensors */
    uint64_t bytes;                     /* of data, entered in the ledger as weights */
    uint64_t fingerprint; /* hash of the tensors' names, types, shapes and data; never 0 */
};

/* The enum ggml_type of a type, and the bytes of a tensor's data. */
int lk_sidecar_ggml_type(enum lk_sidecar_type type);
size_t lk_sidecar_bytes(const struct lk_sidecar_tensor *tensor);

/* Read a whole sidecar into memory of `ledger`. Checks that all values are finite and that all
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
