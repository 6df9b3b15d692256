/* Scores of keys that are stored as latents from before RoPE. */
#include "attention/score_pre.h"

#include "cache/latent_levels.h"
#include "cache/project.h"

#include <string.h>

enum { MAX_D = 2 * LK_MAX_PAIR, MAX_FOLDED = 32 /* vectors of a head */ };

static size_t back_bytes(int d_head) {
    return ((size_t)LK_ATTN_QUERIES * d_head * sizeof(float) + 63) / 64 * 64;
}

size_t lk_pre_queries_bytes(int d_head, int rank) {
    return back_bytes(d_head) +
           LK_PRE_FOLDED * (lk_queries_pad(rank) + 2 * sizeof(float) + sizeof(int32_t));
}

struct lk_pre_queries lk_pre_queries_new(int d_head, int rank, void *mem) {
    struct lk_pre_queries pre = {.back = mem};
    pre.folded.q8 = (int8_t *)mem + back_bytes(d_head);
    pre.folded.scale8 = (float *)(pre.folded.q8 + (size_t)LK_PRE_FOLDED * lk_queries_pad(rank));
    pre.offset = pre.folded.scale8 + LK_PRE_FOLDED;
    pre.folded.sum8 = (int32_t *)(pre.offset + LK_PRE_FOLDED);
    return pre;
}

/* The number of functions that makes a tile cheapest; 0: fold nothing. A folded vector costs about
 * as much as three reconstructed channels in two. All parts of an item have the same number. */
static int count_functions(const struct lk_level *level, int n_q, int n_each) {
    const struct lk_queries *up = &level->k_up->up;
    int cost = 2 * up->n_q, best = 0;
    if (!level->rope || up->q || up->q16 || !up->q8) return 0;
    for (int n = 1; n <= LK_MAX_FOLD; n++) {
        int with = 4 * level->rope->fold.n_fast[n] + 3 * n * n_each;
        if (with >= cost || n * n_each > MAX_FOLDED || n * n_q > LK_PRE_FOLDED) continue;
        cost = with;
        best = n;
    }
    return best;
}

/* The weights w [n][d - 2 fast] of channels for a query q~ [d], and offset [n]. mean: of the head,
 * or NULL */
static void fold_query(const struct lk_rope *rope, const float *back, const float *mean, int d,
                       int n, float *w, float *offset) {
    float swapped[MAX_D];
    int first = 2 * rope->fold.n_fast[n], n_slow = d - first;
    for (int i = first; i < 2 * rope->n_pair; i += 2) {
        swapped[i - first] = back[i + 1];
        swapped[i + 1 - first] = back[i];
    }
    memset(swapped + 2 * rope->n_pair - first, 0, (d - 2 * rope->n_pair) * sizeof *swapped);
    for (int m = 0; m < n; m++, w += n_slow) {
        const float *cosine = rope->fold.cosine[m] + first, *sine = rope->fold.sine[m] + first;
        for (int i = 0; i < n_slow; i++) w[i] = cosine[i] * back[first + i] + sine[i] * swapped[i];
        offset[m] = 0;
        for (int i = 0; mean && i < n_slow; i++)
            offset[m] += w[i] * mean[lk_rope_channel(rope, first + i)];
    }
}

/* The folded vectors of the part's queries [i, i + n). */
static struct lk_queries folded_of(const struct lk_pre_queries *pre,
                                   const struct lk_part_queries *queries, int rank, int i, int n) {
    int widest = pre->level->d_part;
    struct lk_queries part = lk_queries_slice(&pre->folded, queries->first * pre->n_fold, 0);
    part.q8 = pre->folded.q8 + (size_t)queries->first * pre->n_fold * lk_queries_pad(widest);
    part.d_head = rank;
    return lk_queries_slice(&part, i * pre->n_fold, n * pre->n_fold);
}

/* Fold the slow channels of the queries of the part's head h into its up-projection. */
static void fold_head(const struct lk_attn *attn, const struct lk_part_queries *queries, int h,
                      struct lk_pre_queries *pre) {
    float w[MAX_FOLDED * MAX_D];
    const struct lk_level *level = pre->level;
    int n = pre->n_fold, n_each = queries->n_each, at = queries->first + h * n_each,
        d = attn->d_head, fast = 2 * level->rope->fold.n_fast[n];
    struct lk_basis_head basis = lk_level_basis_head(level, queries->head_kv + h);
    for (int i = 0; i < n_each; i++)
        fold_query(level->rope, pre->back + (size_t)(at + i) * d, lk_basis_mean(&basis), d, n,
                   w + i * n * (d - fast), pre->offset + (at + i) * n);
    const struct lk_queries *up = &level->k_up[queries->head_kv + h].up;
    struct lk_queries slow = lk_queries_slice(up, fast, d - fast),
                      out = folded_of(pre, queries, up->d_head, h * n_each, n_each);
    attn->kernels->combine_queries(&slow, w, n_each * n, &out);
}

/* Prepare the part's queries for the tile's segment, unless they are already. */
static void prepare_part(const struct lk_attn *attn, const struct lk_pre_tile *tile,
                         const struct lk_part_queries *queries, struct lk_pre_queries *pre) {
    const struct lk_rope *rope = tile->level->rope;
    int64_t pos = tile->pos - (int64_t)tile->in_segment * LK_TILE;
    int d = attn->d_head, n_each = queries->n_each, first = queries->first;
    if (pre->level != tile->level) {
        pre->level = tile->level;
        pre->n_fold = count_functions(tile->level, pre->n_q, n_each);
        pre->phase.set = false;
        for (int i = 0; i < LK_ATTN_QUERIES; i++) pre->pos[i] = INT64_MIN;
    }
    if (pre->pos[first] == pos) return;
    pre->pos[first] = pos;
    if (rope) lk_rope_phase_set(rope, &pre->phase, pos);
    for (int i = 0; i < queries->n_head * n_each; i++) {
        float *back = pre->back + (size_t)(first + i) * d;
        if (rope)
            lk_rope_unrotate_query_pairs(rope, &pre->phase, queries->q[i], d, back);
        else
            memcpy(back, queries->q[i], d * sizeof *back);
    }
    for (int h = 0; pre->n_fold && h < queries->n_head; h++) fold_head(attn, queries, h, pre);
}

void lk_attn_score_pre(const struct lk_attn *attn, const struct lk_pre_tile *tile,
                       const struct lk_part_queries *queries, struct lk_pre_queries *pre, float *s,
                       size_t stride) {
    _Alignas(64) float product[LK_PRE_FOLDED * LK_TILE], k[MAX_D * LK_TILE];
    float mean[MAX_D];
    const struct lk_level *level = tile->level;
    const struct lk_rope *rope = level->rope;
    int n_each = queries->n_each, d = attn->d_head;
    prepare_part(attn, tile, queries, pre);
    int n = pre->n_fold;
    struct lk_rope_table table = {.n_pair = 0};
    struct lk_rope_keys keys = {.k = k, .d = d, .n_fold = n};
    if (rope) {
        table = (struct lk_rope_table){rope->n_pair, rope->table[tile->in_segment]};
        keys.rope = &table;
    }
    if (rope && n) {
        struct lk_queries folded = folded_of(pre, queries, level->k_up[queries->head_kv].up.d_head,
                                             0, queries->n_head * n_each);
        lk_kernels_score(attn->kernels, tile->rows, &folded, product, LK_TILE);
        table.n_pair = rope->fold.n_fast[n];
        keys.d = 2 * table.n_pair;
        keys.basis = rope->fold.basis[0] + tile->in_segment * LK_TILE;
        keys.basis_stride = LK_SEGMENT;
    }
    for (int h = 0; h < queries->n_head; h++, s += n_each * stride) {
        struct lk_basis_head head = lk_level_basis_head(level, queries->head_kv + h);
        const float *of_head = lk_basis_mean(&head);
        struct lk_queries up = lk_queries_slice(&level->k_up[queries->head_kv + h].up, 0, keys.d);
        int at = queries->first + h * n_each;
        if (keys.d) lk_kernels_score(attn->kernels, tile->rows, &up, k, LK_TILE);
        for (int c = 0; of_head && c < keys.d; c++) mean[c] = of_head[lk_rope_channel(rope, c)];
        keys.mean = of_head ? mean : NULL;
        keys.fold = product + (size_t)h * n_each * n * LK_TILE;
        keys.offset = pre->offset + at * n;
        attn->kernels->score_rope(&keys, pre->back + (size_t)at * d, d, n_each, s, stride);
    }
}

/* ---- rows at any positions ---- */

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
        lk_kernels_score(attn->kernels, rows, &level->k_up[queries->head_kv + h].up, k, LK_TILE);
        for (int c = 0; of_head && c < keys.d; c++)
            mean[c] = of_head[lk_rope_channel(level->rope, c)];
        keys.mean = of_head ? mean : NULL;
        for (int i = h * queries->n_each; i < (h + 1) * queries->n_each; i++) {
            for (int c = 0; c < keys.d; c++) q[c] = queries->q[i][lk_rope_channel(level->rope, c)];
            attn->kernels->score_rope(&keys, q, keys.d, 1, s + i * stride, stride);
        }
    }
}
