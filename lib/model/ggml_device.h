/* A device of ggml that computes layers of a model: a GPU, or another machine through RPC. */
#ifndef LK_MODEL_GGML_DEVICE_H
#define LK_MODEL_GGML_DEVICE_H

#include "base/err.h"
#include "base/ledger.h"

#include "ggml-backend.h"

struct lk_ggml_device {
    char name[64];          /* as the user wrote it */
    ggml_backend_t backend; /* NULL: the model is opened without its weights */
    ggml_backend_buffer_type_t buft;
    void *stream;            /* of CUDA, if the backend tells it (scripts/deps); else NULL */
    bool has_stream;         /* the backend tells it, of a device that computes */
    bool is_host;            /* its memory is the host's, and it computes nodes of lowkey's own */
    struct lk_ledger ledger; /* memory of the device: weights, and activations as scratch */
};

/* Does the name stand for the CPU? NULL does. */
bool lk_ggml_device_is_cpu(const char *name);

/* Open the device with this name of ggml's, in any case ("cuda0"), or the first one of an RPC
 * server ("rpc:HOST:PORT"). max_bytes: limit of its ledger; 0: none. computes: it will compute
 * graphs. *out is owned: lk_ggml_device_free. LK_E_ARG: there is none; the message lists what
 * exists. LK_E_IO, LK_E_NOMEM, LK_E_UNSUPPORTED. */
lk_status lk_ggml_device_open(struct lk_ggml_device **out, const char *name, uint64_t max_bytes,
                              bool computes, struct lk_ledger *ledger, lk_err *err);
void lk_ggml_device_free(struct lk_ggml_device *device, struct lk_ledger *ledger);

#endif
