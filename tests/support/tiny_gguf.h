/* Tiny random models as GGUF files, for tests. libllama can read them too. */
#ifndef TINY_GGUF_H
#define TINY_GGUF_H

#include "ggml.h"
#include "gguf.h"

#include <stdbool.h>
#include <stdint.h>

enum tiny_tokenizer { TINY_NO_VOCAB, TINY_SPM, TINY_BPE };

struct tiny_spec {
    const char *name; /* of the preset */
    const char *arch;
    int n_layer, n_head, n_head_kv, d_head;
    int n_embd; /* 0: n_head * d_head */
    int n_ff, n_vocab, n_ctx;
    int n_swa;                /* gemma3 */
    enum ggml_type type;      /* of the matrices; 0 is f32 */
    bool untied;              /* a separate output matrix */
    bool biases;              /* optional attention biases */
    bool rope_factors;        /* Llama 3's frequency divisors */
    bool norm_2;              /* falcon's second norm */
    bool fused;               /* q, k, v in one matrix where that is a choice */
    const char *rope_scaling; /* "linear", "yarn" or NULL */
    float rope_factor, softcap;
    enum tiny_tokenizer tokenizer; /* with one, n_vocab is the tokenizer's */
    uint64_t seed;
};

/* One per family and shape worth testing; ends with name == NULL. */
extern const struct tiny_spec tiny_presets[];

/* The preset of that name, or NULL. */
const struct tiny_spec *tiny_preset(const char *name);

/* Write the model. 1 on success. */
int tiny_gguf_write(const char *path, const struct tiny_spec *spec);

/* The same, calling edit(gguf, user) before the file is written, to damage or extend it. */
int tiny_gguf_write_edited(const char *path, const struct tiny_spec *spec,
                           void (*edit)(struct gguf_context *, void *), void *user);

#endif
