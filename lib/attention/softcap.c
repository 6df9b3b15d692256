/* tanh without branches, which compilers vectorize. */
#include "attention/softcap.h"

#include "attention/attention.h"

/* The Pade approximant of order [7/6] for x / 4, and tanh(2 y) = 2 tanh(y) / (1 + tanh(y)^2) twice.
 * Apart from rounding, the relative error is less than 1e-12. */
static inline float tanh_of(float x) {
    x = x > 9 ? 9 : x < -9 ? -9 : x; /* tanh(9) is 1 in single precision */
    float y = x * 0.25f, z = y * y;
    float t =
        y * (135135 + z * (17325 + z * (378 + z))) / (135135 + z * (62370 + z * (3150 + z * 28)));
    t = 2 * t / (1 + t * t);
    return 2 * t / (1 + t * t);
}

void lk_softcap_scores(const struct lk_attn *attn, float *s, int n) {
    if (!(attn->softcap > 0)) return;
    float in = attn->scale / attn->softcap, out = attn->softcap / attn->scale;
    for (int i = 0; i < n; i++) s[i] = out * tanh_of(in * s[i]);
}
