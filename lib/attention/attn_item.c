/* An item of attention: its scratch, its queries, and their scores over K, run by run. */
#include "attention/attn_item.h"

#include "attention/attention.h"
#include "attention/latents.h"
#include "kernels/composed.h"

#include <math.h>
#include <string.h>

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

/* Add ALiBi's bias, the slope times the distance between query and key, to scores s [n] of a query
 * head at position pos for the rows from index `first` on. attn->alibi_max_bias > 0. */
static void alibi_add(const struct lk_attn *attn, int head, int64_t pos, float *s, int64_t first,
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

/* ---- rows of a level in the kernels' layout ---- */

/* How many blocks further the ones to prefetch are. *n_block: blocks from there on. If the rows are
 * divided, they are in the same stripe or in the next one of the own share (cache/held.h). */
static int64_t blocks_ahead(const struct lk_run *run, int64_t *n_block) {
    const struct lk_kv *kv = run->kv;
    const struct lk_level *level = &kv->level[run->level];
    int block_rows = kv->rule[run->level].block_rows;
    int64_t ahead = run->chunk > block_rows ? run->chunk / block_rows : 1;
    if (lk_kv_is_divided(kv)) {
        int64_t first = lk_kv_level_first(kv, run->level) - kv->count[run->level].skip,
                at = first + run->block * block_rows, to = at + ahead * block_rows;
        if (to >= lk_held_end(kv, at)) to += (int64_t)(kv->share.n - 1) * LK_STRIPE;
        int64_t end = (lk_held_end(kv, to) - first) / block_rows;
        ahead = (to - first) / block_rows - run->block;
        *n_block = (end < level->n_block ? end : level->n_block) - run->block - ahead;
    } else {
        *n_block = level->n_block - run->block - ahead;
    }
    return ahead;
}

/* The addresses of the run's blocks, and of equally many to prefetch. */
static void find_addresses(struct lk_run *run) {
    const struct lk_kv *kv = run->kv;
    const lk_block *block = kv->level[run->level].block + run->block;
    int64_t n_left, ahead = blocks_ahead(run, &n_left);
    run->n_ahead = n_left < 0 ? 0 : n_left < run->n_block ? (int)n_left : run->n_block;
    for (int i = 0; i < run->n_block; i++) run->at[i] = lk_block_address(kv->arena, block[i]);
    for (int i = 0; i < run->n_ahead; i++)
        run->ahead[i] = lk_block_address(kv->arena, block[ahead + i]);
}

void lk_run_find(struct lk_run *run, int64_t at, int64_t end) {
    int64_t index = run->kv->count[run->level].skip + at, n = end - at;
    int block_rows = run->kv->rule[run->level].block_rows;
    run->tile_row = (int)(index % LK_TILE);
    index -= run->tile_row;
    if (n > run->max_rows) n = run->max_rows;
    if (run->tile_row && n > LK_TILE - run->tile_row) n = LK_TILE - run->tile_row;
    if (run->whole_tiles && n > LK_TILE) n -= n % LK_TILE;
    run->n = (int)n;
    /* Most blocks are one tile, and division by a constant is faster. */
    run->block = block_rows == LK_TILE ? index / LK_TILE : index / block_rows;
    run->row0 = (int)(index - run->block * block_rows);
    int rows = run->row0 + run->tile_row + run->n;
    run->n_block = block_rows == LK_TILE ? (rows + LK_TILE - 1) / LK_TILE
                                         : (rows + block_rows - 1) / block_rows;
    find_addresses(run);
}

struct lk_rows lk_run_rows(const struct lk_run *run, int part) {
    const struct lk_kv *kv = run->kv;
    const struct lk_level *level = &kv->level[run->level];
    struct lk_rows rows = {.codec = lk_level_codec(&kv->rule[run->level], part),
                           .sigma = lk_kv_sigma(kv, run->level, part),
                           .d_head = lk_level_part_channels(level, part),
                           .block_rows = kv->rule[run->level].block_rows,
                           .aligned = run->is_prompt && kv->n_swa == 0 && !lk_kv_is_divided(kv)};
    rows.block = run->at;
    rows.offset = lk_level_part_offset(level, part);
    rows.row0 = run->row0;
    rows.n = run->tile_row + run->n;
    /* Prefetch the whole blocks that lie a chunk further. */
    size_t first = lk_level_part_offset(level, run->first_part);
    /* If parts differ, pieces of their mean size. */
    size_t bytes =
        level->part ? (level->block_bytes / level->n_part + 63) / 64 * 64 : level->head_bytes;
    rows.prefetch = (struct lk_prefetch){.block = run->ahead,
                                         .n_block = run->n_ahead,
                                         .first = (part - run->first_part) * run->n_block,
                                         .n_piece = run->end_part - run->first_part,
                                         .offset = first,
                                         .bytes = bytes};
    return rows;
}

/* ---- scratch ---- */

enum { PAD = LK_SCORE_PAD, SCORES = LK_ATTN_QUERIES * (PAD + LK_ATTN_CHUNK + PAD) };

_Static_assert(LK_ATTN_QUERIES / 2 * (PAD + LK_MAX_KERNEL_CHUNK + PAD) <= SCORES,
               "the longest chunk has room");

/* Bytes of the prepared queries of one part, a multiple of 64. */
static size_t prepared_bytes(int n_q, int d) { return (lk_queries_bytes(n_q, d) + 63) / 64 * 64; }

/* Room for all parts, each rounded up. */
static size_t prepared_floats(int d) {
    return (prepared_bytes(LK_ATTN_QUERIES, d) + LK_ATTN_QUERIES * 64) / sizeof(float);
}

static size_t pre_floats(int d) { return (lk_pre_queries_bytes(d, d) + 63) / 64 * 16; }

size_t lk_attn_item_floats(int d) {
    size_t n = SCORES + LK_ATTN_QUERIES * (LK_TILE + 3) + prepared_floats(d) + pre_floats(d) +
               (size_t)LK_ATTN_QUERIES * d * (1 + LK_MAX_KV_LEVEL);
    return (n + 15) / 16 * 16;
}

struct lk_attn_item lk_attn_item_new(const struct lk_attn *attn, int ith) {
    int d = lk_attn_max_part(attn);
    struct lk_attn_item item = {.attn = attn, .d = d, .query_level = -1};
    struct lk_attn_scratch *mem = &item.mem;
    mem->prepared = attn->scratch + ith * lk_attn_item_floats(d);
    mem->score = mem->prepared + prepared_floats(d) + pre_floats(d);
    mem->tile = mem->score + SCORES;
    mem->query = mem->tile + LK_ATTN_QUERIES * LK_TILE;
    mem->acc = mem->query + (size_t)LK_ATTN_QUERIES * d;
    mem->max = mem->acc + (size_t)LK_ATTN_QUERIES * d * LK_MAX_KV_LEVEL;
    mem->sum = mem->max + LK_ATTN_QUERIES;
    mem->mean = mem->sum + LK_ATTN_QUERIES;
    item.pre = lk_pre_queries_new(d, d, mem->prepared + prepared_floats(d));
    return item;
}

void lk_attn_item_set(struct lk_attn_item *item, int head_kv, int n_head_kv, int q0, int n_each,
                      int chunk) {
    item->head_kv = head_kv;
    item->n_head_kv = n_head_kv;
    item->q0 = q0;
    item->n_each = n_each;
    item->n_q = n_head_kv * n_each;
    item->chunk = chunk;
    item->stride = PAD + (size_t)chunk + PAD;
    item->query_level = -1;
    item->pre.level = NULL;
    item->pre.n_q = item->n_q;
    memset(item->used, 0, sizeof item->used);
    for (int i = 0; i < item->n_q; i++) {
        item->mem.max[i] = -INFINITY;
        item->mem.sum[i] = item->mem.mean[i] = 0;
    }
}

int lk_attn_item_part(const struct lk_attn_item *item, const struct lk_level *level, int part,
                      int *first) {
    int from = part * level->n_head, to = from + level->n_head;
    if (from < item->head_kv) from = item->head_kv;
    if (to > item->head_kv + item->n_head_kv) to = item->head_kv + item->n_head_kv;
    *first = (from - item->head_kv) * item->n_each;
    return (to - from) * item->n_each;
}

/* ---- queries ---- */

/* Query heads of a KV head. */
static int group_size(const struct lk_attn *attn) { return attn->n_head / attn->n_head_kv; }

/* Query head of query i of the item. */
static int query_head(const struct lk_attn_item *item, int i) {
    int group = group_size(item->attn);
    return lk_attn_item_head(item, i) * group + (item->q0 + i % item->n_each) % group;
}

/* Row of query i in the call's queries: token * n_head + query head. */
static size_t attn_item_row(const struct lk_attn_item *item, int i) {
    int token = (item->q0 + i % item->n_each) / group_size(item->attn);
    return (size_t)token * item->attn->n_head + query_head(item, i);
}

/* What is multiplied with rows of V, if they are keys too, followed by what is with rows of K. */
static const float *whole_query(const struct lk_attn_item *item, int i) {
    const struct lk_attn *attn = item->attn;
    return attn->q + attn_item_row(item, i) * (attn->d_head + attn->d_rope);
}

static const float *query_of(const struct lk_attn_item *item, int i) {
    return whole_query(item, i) + (item->attn->d_rope > 0 ? item->attn->d_head : 0);
}

/* The rotation of queries for sinks that shift; unset for other levels. */
static struct lk_rope_phase shift_of(const struct lk_attn_item *item, int level) {
    const struct lk_attn *attn = item->attn;
    struct lk_rope_phase shift = {.set = false};
    if (attn->k->rule[level].shift && attn->rope)
        lk_rope_phase_set(attn->rope, &shift, attn->k->first);
    return shift;
}

/* Query i, rotated back by the shift if there is one. rotated: scratch for a row of K. */
static const float *shifted_query(const struct lk_attn_item *item,
                                  const struct lk_rope_phase *shift, int i, float *rotated) {
    const float *q = query_of(item, i);
    if (!shift->set) return q;
    lk_rope_unrotate_query(item->attn->rope, shift, q, item->attn->k->d_head, rotated);
    return rotated;
}

/* Parts of a level that the item has heads of: [*first, *end). */
static void item_parts(const struct lk_attn_item *item, const struct lk_level *level, int *first,
                       int *end) {
    *first = item->head_kv / level->n_head;
    *end = (item->head_kv + item->n_head_kv - 1) / level->n_head + 1;
}

/* Whether the queries that were prepared for another level serve this one. */
static bool are_prepared(const struct lk_attn_item *item, int level) {
    const struct lk_kv *k = item->attn->k;
    int before = item->query_level;
    const struct lk_level_rule *a = &k->rule[before], *b = &k->rule[level];
    if ((a->codec.coding == LK_F16) != (b->codec.coding == LK_F16) || a->shift != b->shift)
        return false;
    int part, end;
    for (item_parts(item, &k->level[level], &part, &end); part < end; part++)
        if (!lk_attn_same_domain(k, before, level, part)) return false;
    return true;
}

void lk_attn_item_prepare(struct lk_attn_item *item, int level) {
    const struct lk_attn *attn = item->attn;
    const struct lk_level_rule *rule = &attn->k->rule[level];
    const struct lk_level *to = &attn->k->level[level];
    bool exact = rule->codec.coding == LK_F16; /* f16 rows are multiplied with float queries */
    if (item->query_level >= 0 && are_prepared(item, level)) return;

    struct lk_rope_phase shift = shift_of(item, level);
    for (int i = 0; i < item->n_q; i++) {
        int head_kv = lk_attn_item_head(item, i);
        float *out = item->mem.query + lk_attn_item_vector(item, to, i), rotated[LK_MAX_D_HEAD];
        const float *q = shifted_query(item, &shift, i, rotated);
        if (to->basis) {
            struct lk_basis_head head = lk_level_basis_head(to, head_kv);
            lk_project_query(&head, q, out);
            q = out;
        }
        int part = head_kv / to->n_head;
        lk_codec_transform_query(&rule->codec, lk_level_part_channels(to, part),
                                 lk_kv_sigma(attn->k, level, part), q, out);
    }
    char *mem = (char *)item->mem.prepared;
    int part, end;
    item_parts(item, to, &part, &end);
    for (struct lk_queries *queries = item->queries; part < end; part++, queries++) {
        int first, n_q = lk_attn_item_part(item, to, part, &first);
        int d = lk_level_part_channels(to, part);
        const float *q = item->mem.query + lk_attn_item_vector(item, to, first);
        if (exact) {
            *queries = (struct lk_queries){.n_q = n_q, .d_head = d, .q = q};
        } else {
            lk_queries_prepare(queries, q, n_q, d, mem);
            mem += prepared_bytes(n_q, d);
        }
    }
    item->query_level = level;
}

/* ---- scores ---- */

/* Add to the scores of the span's rows what the mean of their latents contributes: q.mean. */
static void add_mean(const struct lk_attn_item *item, const struct lk_kv_span *span, float *score) {
    const struct lk_level *level = &item->attn->k->level[span->level];
    struct lk_rope_phase shift = shift_of(item, span->level);
    for (int i = 0; i < item->n_q; i++, score += item->stride) {
        struct lk_basis_head head = lk_level_basis_head(level, lk_attn_item_head(item, i));
        float rotated[LK_MAX_D_HEAD];
        const float *mean = lk_basis_mean(&head), *q = shifted_query(item, &shift, i, rotated);
        float sum = 0;
        for (int c = 0; c < head.d_head; c++) sum += q[c] * mean[c];
        for (int64_t t = 0; t < span->end - span->pos; t++) score[t] += sum;
    }
}

/* Score the rows of a run, which lie in one tile, for the queries of a part of a level of K before
 * RoPE. at: row of the level that the tile starts with. */
static void score_pre_part(struct lk_attn_item *item, int level_index, int64_t at,
                           const struct lk_pre_tile *tile, int part, float *s, size_t stride) {
    const struct lk_attn *attn = item->attn;
    const struct lk_level *level = tile->level;
    int first, n_q = lk_attn_item_part(item, level, part, &first);
    struct lk_part_queries queries = {.head_kv = lk_attn_item_head(item, first),
                                      .n_head = n_q / item->n_each,
                                      .n_each = item->n_each,
                                      .first = first};
    for (int i = 0; i < n_q; i++) queries.q[i] = query_of(item, first + i);
    if (!level->rope || attn->k->rule[level_index].limit.policy.kind == LK_POLICY_NONE) {
        lk_attn_score_pre(attn, tile, &queries, &item->pre, s, stride);
        return;
    }
    int32_t pos[LK_TILE]; /* a policy moves rows */
    for (int t = 0; t < tile->rows->n; t++)
        pos[t] = (int32_t)lk_kv_position(attn->k, level_index, at + t, queries.head_kv);
    lk_attn_score_unordered(attn, level, tile->rows, pos, &queries, s, stride);
}

/* Score the span's rows: score [n_q][stride], from the span's first position on. */
static void score_span(struct lk_attn_item *item, const struct lk_kv_span *span, float *score) {
    const struct lk_attn *attn = item->attn;
    const struct lk_level *level = &attn->k->level[span->level];
    /* True positions, for RoPE, differ from indices by the number of evicted rows. */
    int64_t shift = lk_kv_position(attn->k, span->level, span->pos - span->first, 0) - span->pos;
    if (attn->k->rule[span->level].shift) shift += attn->k->first;
    struct lk_run run = {.kv = attn->k,
                         .level = span->level,
                         .first_part = item->head_kv / level->n_head,
                         .end_part = (item->head_kv + item->n_head_kv - 1) / level->n_head + 1,
                         .max_rows = level->k_up ? LK_TILE : item->chunk,
                         .chunk = item->chunk,
                         .is_prompt = attn->is_prompt};
    for (int64_t pos = span->pos; pos < span->end; pos += run.n) {
        lk_run_find(&run, pos - span->first, span->end - span->first);
        for (int part = run.first_part; part < run.end_part; part++) {
            int first, n_q = lk_attn_item_part(item, level, part, &first);
            struct lk_rows rows = lk_run_rows(&run, part);
            float *out = score + (pos - span->pos) + (size_t)first * item->stride;
            /* Kernels start at a tile's first row. If the run does not, its scores take a detour.
             * What kernels write past the rows is overwritten by the next run, or padding. */
            float *s = run.tile_row ? item->mem.tile : out;
            size_t stride = run.tile_row ? LK_TILE : item->stride;
            if (!level->k_up) {
                lk_kernels_score(attn->kernels, &rows, &item->queries[part - run.first_part], s,
                                 stride);
            } else {
                struct lk_pre_tile tile = {.level = level,
                                           .rows = &rows,
                                           .pos = pos + shift - run.tile_row,
                                           .in_segment = lk_run_tile(&run) % LK_SEGMENT_TILES};
                score_pre_part(item, span->level, pos - span->first - run.tile_row, &tile, part, s,
                               stride);
            }
            for (int i = 0; run.tile_row && i < n_q; i++)
                memcpy(out + i * item->stride, s + i * LK_TILE + run.tile_row,
                       run.n * sizeof(float));
        }
    }
    if (!level->k_up && level->basis && level->basis->mean) add_mean(item, span, score);
}

/* Add what the latents in V contribute to the scores of positions [a, b): one part, whose rows are
 * multiplied with the queries as they are. */
static void add_latent_scores(struct lk_attn_item *item, int64_t a, int64_t b) {
    const struct lk_attn *attn = item->attn;
    const struct lk_kv *v = attn->v;
    float *query = item->mem.query, *s = item->mem.tile;
    int d = attn->d_head;
    for (int i = 0; i < item->n_q; i++)
        memcpy(query + (size_t)i * d, whole_query(item, i), d * sizeof *query);
    item->query_level = -1; /* the queries for K are overwritten */
    struct lk_queries queries = {.n_q = item->n_q, .d_head = d, .q = query};
    for (struct lk_kv_span span = lk_kv_spans(v); lk_kv_next_span(v, a, b, &span);) {
        struct lk_run run = {
            .kv = v, .level = span.level, .end_part = 1, .max_rows = LK_TILE, .chunk = item->chunk};
        for (int64_t pos = span.pos; pos < span.end; pos += run.n) {
            lk_run_find(&run, pos - span.first, span.end - span.first);
            struct lk_rows rows = lk_run_rows(&run, 0);
            lk_score_values(attn->kernels, &rows, &queries, s, LK_TILE);
            float *out = item->mem.score + PAD + (pos - a);
            for (int i = 0; i < item->n_q; i++)
                for (int t = 0; t < run.n; t++)
                    out[i * item->stride + t] += s[i * LK_TILE + run.tile_row + t];
        }
    }
}

void lk_attn_item_score(struct lk_attn_item *item, int64_t a, int64_t b) {
    const struct lk_kv *k = item->attn->k;
    for (struct lk_kv_span span = lk_kv_spans(k); lk_kv_next_span(k, a, b, &span);) {
        if (!k->level[span.level].k_up) lk_attn_item_prepare(item, span.level);
        score_span(item, &span, item->mem.score + PAD + (span.pos - a));
    }
    if (item->attn->d_rope > 0) add_latent_scores(item, a, b);
}

float *lk_attn_item_visible(const struct lk_attn_item *item, int i, int64_t a, int64_t b, int *lo,
                            int *n) {
    const struct lk_attn *attn = item->attn;
    const struct lk_kv *k = attn->k;
    int64_t pos = lk_attn_item_position(item, i);
    int64_t first = a, end = b < pos + 1 ? b : pos + 1;
    if (first < k->first) first = k->first;
    if (k->n_swa > 0 && first < pos - k->n_swa + 1) first = pos - k->n_swa + 1;
    *lo = (int)(first - a);
    *n = end > first ? (int)(end - first) : 0;
    float *s = item->mem.score + (size_t)i * item->stride + PAD + *lo;
    if (attn->softcap > 0) lk_softcap_scores(attn, s, *n);
    if (attn->alibi_max_bias > 0 && *n) alibi_add(attn, query_head(item, i), pos, s, first, *n);
    return s;
}

float *lk_attn_partial_of(const struct lk_attn *attn, int n_latent, int range, int head_kv, int q) {
    int group = group_size(attn);
    size_t width = attn->d_head + n_latent + LK_ATTN_SUMS,
           row = (size_t)(q / group) * attn->n_head + head_kv * group + q % group;
    size_t stride = attn->range_stride ? attn->range_stride : attn->n_tok * attn->n_head * width;
    return attn->partial + range * stride + row * width;
}
