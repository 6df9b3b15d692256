/* What training writes: the state of single layers, and the sidecar of all of them.
 *
 * States are in files PATH.layer-N next to the sidecar PATH.
 *
 * A file holds struct lk_less_state, then 4 n_weight + n_head floats: weights, Adam's two moments,
 * the best weights so far, and the levels. It is replaced after every epoch. */
#ifndef LK_TRAINING_LESS_CHECKPOINT_H
#define LK_TRAINING_LESS_CHECKPOINT_H

#include "base/atomic_file.h"
#include "sidecar/sidecar.h"
#include "training/less_net.h"

struct lk_less_state {
    uint64_t magic, identity; /* identity: hash of everything that determines the result */
    int32_t layer, n_epoch;   /* n_epoch: finished epochs */
    int64_t n_step;
    int32_t best_epoch; /* from 1; 0: the initial weights */
    float best;         /* validation loss of that epoch, then with tuned levels */
    int32_t tuned;      /* 1: the levels were tuned after the last epoch */
    int32_t unused;     /* 0; padding would not be defined */
};

/* The layer being trained: what is saved and loaded. */
struct lk_less_checkpoint {
    const char *path; /* of the sidecar; borrowed */
    uint64_t identity;
    int32_t n_epoch; /* of the training */
    struct lk_less_state state;
    struct lk_less_net *net; /* borrowed */
    float *best_weight;      /* [n_weight], borrowed */
};

/* PATH followed by a printf-formatted ending with at most one integer. LK_E_ARG if it is too
 * long. */
lk_status lk_less_file_name(char out[LK_MAX_PATH], const char *path, const char *format, int n,
                            lk_err *err);

/* Set the state of a layer on which no training is done yet. */
void lk_less_checkpoint_start(struct lk_less_checkpoint *c, int layer);

lk_status lk_less_checkpoint_save(const struct lk_less_checkpoint *c, lk_err *err);

/* Load a layer's state into `c` and the net; *found is false if it has no file. LK_E_ARG if the
 * file belongs to another training, LK_E_FORMAT if it is damaged, LK_E_IO if it cannot be read. */
lk_status lk_less_checkpoint_load(struct lk_less_checkpoint *c, int layer, bool *found,
                                  lk_err *err);

/* Delete the files of all layers. */
void lk_less_checkpoint_remove(const struct lk_less_checkpoint *c, int n_layer);

/* Write the best weights of all layers, loaded one by one through `c`, to c->path. The net's
 * weights are overwritten. What the model's own sidecar has besides networks (bases) is copied;
 * `other` is NULL if it has none. LK_E_IO if a layer's file is missing. */
lk_status lk_less_sidecar_write(struct lk_less_checkpoint *c, const struct lk_sidecar_info *info,
                                const struct lk_sidecar *other, struct lk_ledger *ledger,
                                lk_err *err);

#endif
