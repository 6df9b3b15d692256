/* Scores of keys that are stored as latents from before RoPE. */
#include "attention/score_pre.h"

#include "cache/k_up.h"
#include "cache/project.h"

#include <string.h>

void lk_attn_score_pre(const struct lk_attn *attn, const struct lk_level *level,
                       const struct lk_rows *rows, const struct lk_rope_phase *phase,
                       const struct lk_head_queries *queries, float *s, size_t stride) {
    enum { MAX_D = 2 * LK_MAX_PAIR, QUERIES = 8 };
    _Alignas(64) float k[MAX_D][LK_TILE];
    float q[QUERIES * MAX_D];
    int d = attn->d_head;
    struct lk_basis_head head = lk_level_basis_head(level, queries->head_kv);
    attn->kernels->score(rows, &level->k_up[queries->head_kv].up, k[0], LK_TILE);
    const float *mean = lk_basis_mean(&head);
    for (int c = 0; mean && c < d; c++)
        for (int t = 0; t < LK_TILE; t++) k[c][t] += mean[c];
    struct lk_rope_table table;
    if (level->rope) table = lk_rope_tile_table(level->rope);
    for (int i = 0; i < queries->n_q; i += QUERIES) {
        int n = queries->n_q - i < QUERIES ? queries->n_q - i : QUERIES;
        for (int j = 0; j < n; j++) {
            if (level->rope)
                lk_rope_unrotate_query(level->rope, phase, queries->q[i + j], d, q + j * d);
            else
                memcpy(q + j * d, queries->q[i + j], d * sizeof *q);
        }
        attn->kernels->score_rope(k[0], d, level->rope ? &table : NULL, q, n, s + i * stride,
                                  stride);
    }
}
