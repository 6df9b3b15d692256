/* Pooling of hidden states. */
#include "engine/pooling.h"

#include "lowkey_serve.h"

#include <math.h>

void lk_pool_rows(const float *x, size_t n_tok, size_t n_embd, lk_pooling pooling, float *out) {
    enum { BLOCK = 64 }; /* channels that are summed at once */
    size_t first = pooling == LK_POOLING_MEAN ? 0 : n_tok - 1;
    double length = 0;
    for (size_t c = 0; c < n_embd; c += BLOCK) {
        double sum[BLOCK] = {0};
        size_t n = n_embd - c < BLOCK ? n_embd - c : BLOCK;
        for (size_t row = first; row < n_tok; row++)
            for (size_t k = 0; k < n; k++) sum[k] += x[row * n_embd + c + k];
        for (size_t k = 0; k < n; k++) {
            out[c + k] = (float)(sum[k] / (double)(n_tok - first));
            length += (double)out[c + k] * out[c + k];
        }
    }
    for (size_t c = 0; length > 0 && c < n_embd; c++) out[c] = (float)(out[c] / sqrt(length));
}
