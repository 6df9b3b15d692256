#include "attention/score_pre.h"

#include "cache/k_up.h"
#include "cache/project.h"

#include <string.h>

enum { D_MOST = 2 * LK_MAX_PAIR, QUERIES = 8 };

void lk_attn_score_pre(const struct lk_attn *attn, const struct lk_level *level, int head_kv,
                       const struct lk_rows *rows, const float *const *q, int n_q,
                       const struct lk_rope_view *view, float *s, size_t stride) {
    _Alignas(64) float k[D_MOST][LK_TILE];
    float seen[QUERIES * D_MOST];
    int d = attn->d_head;
    attn->kernels->score(rows, &level->k_up[head_kv].up, k[0], LK_TILE);
    const float *mean =
        lk_basis_mean(level->basis, head_kv / level->n_head, head_kv % level->n_head, d);
    for (int c = 0; mean && c < d; c++)
        for (int t = 0; t < LK_TILE; t++) k[c][t] += mean[c];
    struct lk_rope_table turns;
    if (level->rope) turns = lk_rope_tile_table(level->rope);
    for (int i = 0; i < n_q; i += QUERIES) {
        int n = n_q - i < QUERIES ? n_q - i : QUERIES;
        for (int j = 0; j < n; j++) {
            if (level->rope)
                lk_rope_view_apply(level->rope, view, q[i + j], d, seen + j * d);
            else
                memcpy(seen + j * d, q[i + j], d * sizeof *seen);
        }
        attn->kernels->score_turned(k[0], d, level->rope ? &turns : NULL, seen, n, s + i * stride,
                                    stride);
    }
}
