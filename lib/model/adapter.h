/* Adapters: low-rank updates of a layer's weights, merged when the weights are loaded
 * (LoRA, Hu et al. 2022; files of other programs: model/lora.h; for recovery after compression:
 * Palu, appendix D, Eq. 10, and "Effectively Compress KV Heads", section 4.1).
 *
 *   W' = W + B A     W: [n_out][n_in]  A: [rank][n_in]  B: [n_out][rank], times alpha / rank
 *
 * Merging costs nothing per token. The alternative, two small products next to each matrix, adds
 * eight nodes to the graph of a layer, each with a barrier. A merged matrix is held in Q8_0 if the
 * file's is quantized: a second rounding to four bits would be larger than the update. For
 * SmolLM2-135M in Q4_1 this takes 9.3 MiB more, adapters of rank 32 in f16 would take 7.0. */
#ifndef LK_MODEL_ADAPTER_H
#define LK_MODEL_ADAPTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The weights of a layer that can have an adapter. */
enum lk_adapted {
    LK_ADAPT_Q,
    LK_ADAPT_K,
    LK_ADAPT_V,
    LK_ADAPT_O,
    LK_N_ADAPTED,
};

/* The same of a dense feed-forward layer, for adapters of other programs (model/lora.h). */
enum lk_ffn_adapted { LK_ADAPT_GATE, LK_ADAPT_UP, LK_ADAPT_DOWN, LK_N_FFN_ADAPTED };

/* The name in a model file, without layer and ending: "attn_q". Static. */
const char *lk_adapted_name(enum lk_adapted which);

enum { LK_MAX_ADAPTER_RANK = 4096 };

/* Half floats, all of them finite. Borrowed while a model is loaded. */
struct lk_adapter {
    int32_t rank;      /* 0: none */
    const uint16_t *a; /* [rank][n_in] */
    const uint16_t *b; /* [n_out][rank] */
};

/* w [n_out][n_in] += B A, in float. False if a sum leaves the range of half floats: such weights
 * could not be stored or multiplied. scratch: [lk_adapter_scratch_floats]. */
bool lk_adapter_add(const struct lk_adapter *adapter, int64_t n_out, int64_t n_in, float *scratch,
                    float *w);
size_t lk_adapter_scratch_floats(const struct lk_adapter *adapter, int64_t n_in);

#endif
