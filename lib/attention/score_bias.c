/* Soft cap and ALiBi: what some models do to scores between q.k and the softmax. */
#include "attention/score_bias.h"

#include "attention/attention.h"

#include <math.h>

/* ---- soft cap ---- */

/* tanh without branches, which compilers vectorize. The Pade approximant of order [7/6] for x / 4,
 * and tanh(2 y) = 2 tanh(y) / (1 + tanh(y)^2) twice. Apart from rounding, the relative error is
 * less than 1e-12. */
static inline float tanh_of(float x) {
    x = x > 9 ? 9 : x < -9 ? -9 : x; /* tanh(9) is 1 in single precision */
    float y = x * 0.25f, z = y * y;
    float t =
        y * (135135 + z * (17325 + z * (378 + z))) / (135135 + z * (62370 + z * (3150 + z * 28)));
    t = 2 * t / (1 + t * t);
    return 2 * t / (1 + t * t);
}

void lk_softcap_scores(const struct lk_attn *attn, float *s, int n) {
    float in = attn->scale / attn->softcap, out = attn->softcap / attn->scale;
    for (int i = 0; i < n; i++) s[i] = out * tanh_of(in * s[i]);
}

/* ---- ALiBi ---- */

float lk_alibi_slope(int head, int n_head, float max_bias) {
    int whole = 1; /* the largest power of 2 up to n_head */
    while (whole * 2 <= n_head) whole *= 2;
    if (head < whole) return powf(2.0f, -max_bias / whole * (head + 1));
    return powf(2.0f, -max_bias / 2 / whole * (2 * (head - whole) + 1));
}

void lk_alibi_add(const struct lk_attn *attn, int head, int64_t pos, float *s, int64_t first,
                  int n) {
    const struct lk_kv *k = attn->k;
    int head_kv = head / (attn->n_head / attn->n_head_kv);
    float slope = lk_alibi_slope(head, attn->n_head, attn->alibi_max_bias) / attn->scale;
    for (struct lk_kv_span span = lk_kv_spans(k); lk_kv_next_span(k, first, first + n, &span);) {
        const struct lk_level_rule *rule = &k->rule[span.level];
        int64_t key = lk_kv_position(k, span.level, span.pos - span.first, head_kv);
        int64_t distance = pos - (rule->shift ? k->first : 0) - key;
        for (int64_t at = span.pos; at < span.end; at++, distance--) {
            if (rule->limit.policy.kind != LK_POLICY_NONE) /* positions are not consecutive */
                distance = pos - lk_kv_position(k, span.level, at - span.first, head_kv);
            s[at - first] -= slope * (float)distance;
        }
    }
}
