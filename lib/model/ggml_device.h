/* A device of ggml that computes layers of a model: a GPU, or another machine through RPC. */
#ifndef LK_MODEL_GGML_DEVICE_H
#define LK_MODEL_GGML_DEVICE_H

#include "base/err.h"
#include "base/ledger.h"

#include "ggml-backend.h"

struct lk_ggml_device {
    char name[64]; /* as the user wrote it */
    ggml_backend_t backend;
    ggml_backend_buffer_type_t buft;
    struct lk_ledger ledger; /* memory of the device: weights, and activations as scratch */
};

#endif
