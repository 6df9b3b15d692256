/* Low-rank updates of weights. */
#include "model/adapter.h"

#include "ggml.h"

#include <math.h>
#include <string.h>

const char *lk_adapted_name(enum lk_adapted which) {
    static const char *const name[LK_N_ADAPTED] = {[LK_ADAPT_Q] = "attn_q",
                                                   [LK_ADAPT_K] = "attn_k",
                                                   [LK_ADAPT_V] = "attn_v",
                                                   [LK_ADAPT_O] = "attn_output"};
    return name[which];
}

size_t lk_adapter_scratch_floats(const struct lk_adapter *adapter, int64_t n_in) {
    return (size_t)adapter->rank * (size_t)(n_in + 1) + (size_t)n_in;
}

bool lk_adapter_add(const struct lk_adapter *adapter, int64_t n_out, int64_t n_in, float *scratch,
                    float *w) {
    const float max_half = 65504;
    int64_t rank = adapter->rank;
    float *a = scratch, *sum = a + rank * n_in, *b = sum + n_in;
    ggml_fp16_to_fp32_row(adapter->a, a, rank * n_in);
    for (int64_t o = 0; o < n_out; o++, w += n_in) {
        ggml_fp16_to_fp32_row(adapter->b + o * rank, b, rank);
        memset(sum, 0, (size_t)n_in * sizeof *sum);
        for (int64_t r = 0; r < rank; r++)
            for (int64_t i = 0; i < n_in; i++) sum[i] += b[r] * a[r * n_in + i];
        for (int64_t i = 0; i < n_in; i++) {
            w[i] += sum[i];
            if (!(fabsf(w[i]) <= max_half)) return false;
        }
    }
    return true;
}
