/* libllama's own forward pass, as the reference for tests, with any cache types and with flash or
 * plain attention. */
#ifndef LK_TESTS_ORACLE_H
#define LK_TESTS_ORACLE_H

#include "llama.h"

struct oracle {
    struct llama_model *model;
    struct llama_context *ctx;
    int n_vocab;
};

/* Open a context of n_ctx tokens with cache types k and v. `flash` selects flash attention, which a
 * quantized v requires. Loads the model from `path`, or uses `model` if it is not NULL: several
 * oracles can share a model. False if libllama fails. */
bool oracle_open(struct oracle *oracle, const char *path, struct llama_model *model, int n_ctx,
                 enum ggml_type k, enum ggml_type v, bool flash, int n_threads);

/* Free the context and, if close_model, the model. */
void oracle_close(struct oracle *oracle, bool close_model);

/* Evaluate n tokens at position pos. Returns the logits of all of them, [n][n_vocab], valid until
 * the next call; NULL on failure. */
const float *oracle_eval(struct oracle *oracle, const int32_t *tok, int n, int pos);

/* Forget all tokens. */
void oracle_clear(struct oracle *oracle);

/* Write a copy of a GGUF model with all matrices in f32. False on failure. */
bool oracle_write_f32(const char *from, const char *to);

#endif
