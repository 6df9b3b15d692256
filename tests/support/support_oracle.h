/* libllama's own forward pass, as the judge: any cache types, flash or plain attention. */
#ifndef LK_TESTS_ORACLE_H
#define LK_TESTS_ORACLE_H

#include "llama.h"

struct oracle {
    struct llama_model *model;
    struct llama_context *ctx;
    int n_vocab;
};

/* Cache of types k and v for n_ctx tokens; flash: flash attention (needed for a quantised v).
 * False where libllama refuses. Several oracles may share a model: give it to the later ones. */
bool oracle_open(struct oracle *oracle, const char *path, struct llama_model *model, int n_ctx,
                 enum ggml_type k, enum ggml_type v, bool flash, int n_threads);
void oracle_close(struct oracle *oracle, bool model_too);

/* Append n tokens at position pos; logits of all of them, [n][n_vocab], borrowed until the next call. */
const float *oracle_eval(struct oracle *oracle, const int32_t *tok, int n, int pos);
void oracle_clear(struct oracle *oracle);

/* Write a copy of a GGUF model with every matrix in f32; false on failure. */
bool oracle_write_f32(const char *from, const char *to);

#endif
