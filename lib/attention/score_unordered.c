/* Scores of keys that are stored as latents from before RoPE, at any positions. */
#include "attention/score_unordered.h"

#include "cache/k_up.h"
#include "cache/project.h"

void lk_attn_score_unordered(const struct lk_attn *attn, const struct lk_level *level,
                             const struct lk_rows *rows, const struct lk_rope_table *table,
                             const struct lk_head_queries *queries, float *s, size_t stride) {
    _Alignas(64) float k[2 * LK_MAX_PAIR][LK_TILE];
    struct lk_basis_head head = lk_level_basis_head(level, queries->head_kv);
    const float *mean = lk_basis_mean(&head);
    attn->kernels->score(rows, &level->k_up[queries->head_kv].up, k[0], LK_TILE);
    for (int c = 0; mean && c < attn->d_head; c++)
        for (int t = 0; t < LK_TILE; t++) k[c][t] += mean[c];
    for (int i = 0; i < queries->n_q; i++)
        attn->kernels->score_rope(k[0], attn->d_head, table, queries->q[i], 1, s + i * stride,
                                  stride);
}
