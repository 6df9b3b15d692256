#include "attn/pre.h"

#include "cache/project.h"
#include "cache/unfold.h"

enum { D_MOST = 2 * LK_MAX_PAIR };

/* Step 2 of pre.h. */
static void turn(const struct lk_rope *rope, float (*k)[LK_TILE]) {
    for (int j = 0; j < rope->n_pair; j++) {
        float *a = k[lk_rope_first(rope, j)], *b = k[lk_rope_second(rope, j)];
        const float *c = rope->turn[j][0], *s = rope->turn[j][1];
        for (int t = 0; t < LK_TILE; t++) {
            float y = a[t], z = b[t];
            a[t] = c[t] * y - s[t] * z;
            b[t] = s[t] * y + c[t] * z;
        }
    }
}

void lk_attn_score_pre(const struct lk_attn *attn, const struct lk_level *level, int head_kv, const struct lk_tile *tile,
                       const float *const *q, int n_q, const struct lk_rope_view *view, float *s, size_t stride) {
    _Alignas(64) float k[D_MOST][LK_TILE];
    float seen[D_MOST];
    int d = attn->d_head;
    attn->kern->score(tile, &level->unfold[head_kv].up, k[0], LK_TILE);
    const float *mean = lk_basis_mean(level->basis, head_kv / level->n_head, head_kv % level->n_head, d);
    for (int c = 0; mean && c < d; c++)
        for (int t = 0; t < LK_TILE; t++) k[c][t] += mean[c];
    if (level->rope) turn(level->rope, k);
    for (int i = 0; i < n_q; i++) {
        const float *x = q[i];
        float sum[LK_TILE] = {0};
        if (level->rope) lk_rope_see(level->rope, view, x, d, seen), x = seen;
        for (int c = 0; c < d; c++)
            for (int t = 0; t < LK_TILE; t++) sum[t] += x[c] * k[c][t];
        for (int t = 0; t < tile->n; t++) s[i * stride + t] = sum[t];
    }
}
