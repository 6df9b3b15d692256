/* Sidecars: GGUF files with data made offline for one model.
 *
 *   general.type                       "sidecar", so that no program takes it for a model
 *   lowkey.sidecar.version             u32, 1
 *   lowkey.sidecar.method              "palu", "tale", "kvheads", "less"
 *   lowkey.sidecar.options             how it was made, for people
 *   lowkey.sidecar.model_fingerprint   u64, struct lk_net's
 *   lowkey.sidecar.n_layer, .n_head_kv, .d_head          u32
 *   lowkey.sidecar.calibration_hash, .calibration_tokens u64, of the tokens that were read
 *
 * Tensors are f32, i32 or f16 with up to three dimensions. Those of bases, SIDE being k, kpre or v, in ggml's
 * order of dimensions (fastest first):
 *
 *   blk.N.SIDE.down    f32 [width, n_comp, n_group]
 *   blk.N.SIDE.up      f32 [width, n_comp, n_group]   absent: equal to down
 *   blk.N.SIDE.mean    f32 [width, n_group]           absent: zero
 *   blk.N.SIDE.rank    i32 [n_group]
 *   blk.N.SIDE.error   f32 [n_comp, n_group]
 *
 * f32, because a basis is read once a step and not once a row: it is small beside the weights and beside
 * any cache worth compressing, and a full-rank basis stays a rotation to the last bit that matters. */
#ifndef LK_SIDECAR_SIDECAR_H
#define LK_SIDECAR_SIDECAR_H

#include "base/err.h"
#include "base/ledger.h"
#include "sidecar/basis.h"

#include <stdio.h>

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
    int32_t ne[3]; /* fastest dimension first, 1 where there is none */
    enum lk_sidecar_type type;
    void *data; /* float, int32_t or uint16_t [ne[2]][ne[1]][ne[0]] */
};

struct lk_sidecar {
    struct lk_ledger *ledger;
    struct lk_sidecar_info info;
    struct lk_sidecar_tensor *tensor; /* [n_tensor] */
    size_t n_tensor;
    struct lk_basis *basis[LK_N_BASIS]; /* [n_layer] each; n_group == 0 where absent */
    void *data;                         /* of all tensors */
    uint64_t bytes;                     /* of data, as entered in the ledger under weights */
};

/* The enum ggml_type of a type, and bytes of a tensor's data. */
int lk_sidecar_ggml_type(enum lk_sidecar_type type);
size_t lk_sidecar_bytes(const struct lk_sidecar_tensor *tensor);

/* Read a sidecar whole into memory of `ledger`. All values are finite, all shapes and ranks agree with each
 * other. `model` (may be NULL: any) refuses one that was made for another model with LK_E_ARG.
 * Other errors: LK_E_IO, LK_E_FORMAT, LK_E_UNSUPPORTED, LK_E_NOMEM. *out is owned: lk_sidecar_close. */
lk_status lk_sidecar_open(struct lk_sidecar **out, const char *path,
                          const struct lk_sidecar_model *model, struct lk_ledger *ledger,
                          lk_err *err);
void lk_sidecar_close(struct lk_sidecar *sidecar);

/* The data of the tensor `name`, which must have this type and shape; *out is NULL where there is none. Borrowed. */
lk_status lk_sidecar_find(const struct lk_sidecar *sidecar, const char *name,
                          enum lk_sidecar_type type, int64_t ne0, int64_t ne1, int64_t ne2,
                          const void **out, lk_err *err);

/* ---- writing ---- */

/* A sidecar in the making. */
struct lk_draft;

/* *out is owned: lk_draft_free. */
lk_status lk_draft_new(struct lk_draft **out, const struct lk_sidecar_info *info,
                       struct lk_ledger *ledger, lk_err *err);
void lk_draft_free(struct lk_draft *draft);

/* Add a tensor; `data` is borrowed until the draft is written. LK_E_ARG for an impossible name or shape,
 * or one that is there already. */
lk_status lk_draft_add(struct lk_draft *draft, const struct lk_sidecar_tensor *tensor, lk_err *err);

/* Add the tensors of a layer's basis, borrowed in the same way. */
lk_status lk_draft_add_basis(struct lk_draft *draft, int layer, enum lk_basis_side side,
                             const struct lk_basis *basis, lk_err *err);

/* Write the whole file. */
lk_status lk_draft_write(const struct lk_draft *draft, FILE *file, lk_err *err);

#endif
