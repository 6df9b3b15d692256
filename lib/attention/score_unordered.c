/* Scores of keys that are stored as latents from before RoPE, at any positions. */
#include "attention/score_unordered.h"

#include "cache/k_up.h"
#include "cache/project.h"

void lk_attn_score_unordered(const struct lk_attn *attn, const struct lk_level *level,
                             const struct lk_rows *rows, const int32_t *pos,
                             const struct lk_part_queries *queries, float *s, size_t stride) {
    _Alignas(64) float k[2 * LK_MAX_PAIR * LK_TILE];
    float angles[LK_MAX_PAIR][2][LK_TILE], mean[2 * LK_MAX_PAIR], q[2 * LK_MAX_PAIR];
    struct lk_rope_table table = lk_rope_table_at(level->rope, pos, rows->n, angles);
    struct lk_rope_keys keys = {.k = k, .d = attn->d_head, .rope = &table};
    for (int h = 0; h < queries->n_head; h++) {
        struct lk_basis_head head = lk_level_basis_head(level, queries->head_kv + h);
        const float *of_head = lk_basis_mean(&head);
        attn->kernels->score(rows, &level->k_up[queries->head_kv + h].up, k, LK_TILE);
        for (int c = 0; of_head && c < keys.d; c++)
            mean[c] = of_head[lk_rope_channel(level->rope, c)];
        keys.mean = of_head ? mean : NULL;
        for (int i = h * queries->n_each; i < (h + 1) * queries->n_each; i++) {
            for (int c = 0; c < keys.d; c++) q[c] = queries->q[i][lk_rope_channel(level->rope, c)];
            attn->kernels->score_rope(&keys, q, keys.d, 1, s + i * stride, stride);
        }
    }
}
