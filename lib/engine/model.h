/* An open model: weights, vocabulary, kernels, and the threads that compute. Immutable once open,
 * except for what `lock` protects. */
#ifndef LK_ENGINE_MODEL_H
#define LK_ENGINE_MODEL_H

#include "cache/cache.h"
#include "cache/latent_levels.h"
#include "kernels/kernels.h"
#include "model/net.h"
#include "sidecar/sidecar.h"
#include "token/vocab.h"

#include "ggml-cpu.h"

#include <pthread.h>

enum { LK_MAX_CTX = 1 << 24 }; /* tokens of a session */

struct lk_peers;
struct lk_parts;
struct lk_device;

enum { LK_MODEL_DEVICES = 8 }; /* that have rows of a model's sessions, at most */

struct lk_model {
    struct lk_ledger ledger; /* weights, handles, and cache blocks that sessions share */
    struct lk_net *net;
    struct lk_vocab *vocab;
    struct lk_sidecar *sidecar;      /* NULL if the model was opened without one */
    struct lk_latent_store *latents; /* what sessions share of its bases; NULL without one */
    struct lk_lora *lora;            /* merged into the weights, or NULL */
    struct lk_adapter *adapter;      /* [n_layer][LK_N_ADAPTED] merged into the weights, or NULL */
    struct lk_rope *rope; /* [2]: full attention, sliding window; NULL if K is not rotated */
    const struct lk_kernels *kernels;
    const char *kernels_lack; /* why attention is slow on this machine; NULL: it is not */
    int n_thread;
    pthread_mutex_t lock;         /* held while a graph computes */
    struct ggml_threadpool *pool; /* under lock */
    uint8_t *work;                /* [work_size] ggml's scratch memory; under lock */
    size_t work_size;
    struct lk_device *device[LK_MODEL_DEVICES]; /* [n_device] opened by name; under device_lock */
    int n_device;
    struct lk_device *cache_device; /* of sessions that name none; NULL: RAM */
    const char *prompt_lack; /* why prompts go through RAM (model/exact_attention.h), or NULL */
    pthread_mutex_t device_lock;
    struct lk_ledger device_ledger; /* what sessions share on devices: blocks, networks */
    struct lk_less_copy *less_copy; /* networks on devices (absorb_device.h); under device_lock */
    struct lk_place place;          /* what is held here of its sessions' caches */
    const int32_t *holder;  /* [n_layer] as in lk_place, of all layers; borrowed from `parts` */
    struct lk_peers *peers; /* that have opened it too (operation.h); NULL: this process alone */
    struct lk_parts *parts; /* what each of them has; of lib/cluster */
    size_t parts_bytes;
    int32_t number;            /* that the peers know it by */
    _Atomic uint64_t n_memory; /* so many were allocated for states on the device */
};

/* lk_model_open of the layers of a choice; NULL: of all. */
lk_status lk_model_open_layers(lk_model **out, const char *path, const lk_model_opts *opts,
                               const struct lk_layer_choice *choice, lk_err *err);

/* The device of that name, for rows of the model's sessions. It stays open until the model is
 * freed. NULL or "cpu": *out becomes NULL. Errors as lk_device_open. */
lk_status lk_model_device(struct lk_model *model, const char *name, struct lk_device **out,
                          lk_err *err);

/* Is a device for rows, or NULL, the card that computes layers of the model? */
bool lk_model_is_card(const struct lk_model *model, const struct lk_device *rows);

/* LK_E_ARG for a model that was opened with header_only. */
lk_status lk_model_check_weights(const struct lk_model *model, lk_err *err);

/* For what computes layers in its own way: the same, and LK_E_UNSUPPORTED for recurrent layers
 * and latent attention. */
lk_status lk_model_check_dense(const struct lk_model *model, lk_err *err);

/* Bytes of the sidecar that sessions with this recipe share. latents: what they share of bases
 * (struct lk_cache_needs). What adapters add to the weights counts for every recipe. */
uint64_t lk_model_sidecar_bytes(const struct lk_model *model, const struct lk_recipe *recipe,
                                uint64_t latents);

/* The shape of a cache for this model. Pointers in it are borrowed from the model. */
struct lk_cache_shape lk_model_cache_shape(const struct lk_model *model);

/* Set model->rope, the rotation parameters of its layers in the form that caches need
 * (cache/rope.h), if the model rotates its keys. LK_E_NOMEM. */
lk_status lk_model_add_ropes(struct lk_model *model, lk_err *err);

#endif
