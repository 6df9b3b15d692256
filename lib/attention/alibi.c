/* ALiBi: slopes and biases. */
#include "attention/alibi.h"

#include "attention/attention.h"

#include <math.h>

float lk_alibi_slope(int head, int n_head, float max_bias) {
    int whole = 1; /* the largest power of 2 up to n_head */
    while (whole * 2 <= n_head) whole *= 2;
    if (head < whole) return powf(2.0f, -max_bias / whole * (head + 1));
    return powf(2.0f, -max_bias / 2 / whole * (2 * (head - whole) + 1));
}

void lk_alibi_add(const struct lk_attn *attn, int head, int64_t pos, float *s, int64_t first,
                  int n) {
    if (!(attn->alibi_max_bias > 0)) return;
    const struct lk_kv *k = attn->k;
    int head_kv = head / (attn->n_head / attn->n_head_kv);
    float slope = lk_alibi_slope(head, attn->n_head, attn->alibi_max_bias) / attn->scale;
    for (struct lk_kv_span span = lk_kv_spans(k); lk_kv_next_span(k, first, first + n, &span);) {
        const struct lk_level_rule *rule = &k->rule[span.level];
        int64_t key = lk_kv_position(k, span.level, span.pos - span.first, head_kv);
        int64_t distance = pos - (rule->shift || span.kept ? k->first : 0) - key;
        for (int64_t at = span.pos; at < span.end; at++, distance--) {
            if (rule->limit.policy.kind != LK_POLICY_NONE) /* positions are not consecutive */
                distance = pos - lk_kv_position(k, span.level, at - span.first, head_kv);
            s[at - first] -= slope * (float)distance;
        }
    }
}
