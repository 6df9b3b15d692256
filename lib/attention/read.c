/* Chooses tiles by their estimated attention, and attends to them. */
#include "attention/read.h"

#include "attention/attend.h"
#include "attention/runs.h"
#include "codec/rot.h"
#include "kernels/tile.h"

#include <limits.h>
#include <math.h>
#include <string.h>

enum { BATCH = LK_ATTN_CHUNK / LK_TILE }; /* chosen tiles that are scored together */

size_t lk_read_floats(int64_t n_ctx, int n_head, int n_head_kv) {
    size_t n_tile = (size_t)(n_ctx / LK_TILE + 1);
    return (n_head + 1) * n_tile + (n_head_kv * n_tile + 3) / 4;
}

bool lk_read_applies(const struct lk_attn *attn) {
    int group = attn->n_head / attn->n_head_kv;
    return attn->read > 0 && attn->n_tok <= LK_READ_TOKENS && attn->k->n_swa == 0 &&
           attn->k->first == attn->v->first && group * attn->n_tok <= LK_ATTN_QUERIES;
}

/* ---- zones ---- */

static bool has_means(const struct lk_kv *k, int level) {
    const struct lk_level_rule *rule = &k->rule[level];
    return rule->codec.coding == LK_ROT && rule->codec.mean && rule->block_rows == LK_TILE &&
           !k->level[level].basis && rule->limit.policy.kind == LK_POLICY_NONE;
}

static bool has_tiles(const struct lk_kv *v, int level) {
    const struct lk_level_rule *rule = &v->rule[level];
    return rule->block_rows == LK_TILE && !v->level[level].basis &&
           rule->limit.policy.kind == LK_POLICY_NONE;
}

/* Whether the level's block starts at position pos. */
static bool starts_tile(const struct lk_kv *kv, const struct lk_kv_span *span, int64_t pos) {
    return (kv->count[span->level].skip + (pos - span->first)) % LK_TILE == 0;
}

/* Rows of n_tile blocks of a level of K. */
static struct lk_rows zone_rows(const struct lk_kv *k, int head, const struct lk_kv_span *span,
                                int64_t pos, int n_tile) {
    struct lk_run run = {.kv = k,
                         .level = span->level,
                         .first_part = head,
                         .end_part = head + 1,
                         .max_rows = INT_MAX,
                         .chunk = LK_ATTN_CHUNK};
    lk_run_find(&run, pos - span->first, pos - span->first + (int64_t)n_tile * LK_TILE);
    struct lk_rows rows = lk_run_rows(&run, head);
    rows.prefetch.n_block = 0;
    return rows;
}

/* Tiles that may be left out are whole in K and in V, and have no newest rows. */
void lk_read_find(const struct lk_attn_item *item, struct lk_read *out) {
    const struct lk_kv *k = item->attn->k, *v = item->attn->v;
    int64_t end = lk_attn_item_position(item, 0) + 1 - LK_READ_NEWEST;
    out->n_zone = out->n_tile = 0;
    for (struct lk_kv_span a = lk_kv_spans(k); lk_kv_next_span(k, k->first, end, &a);) {
        if (!has_means(k, a.level)) continue;
        for (struct lk_kv_span b = lk_kv_spans(v); lk_kv_next_span(v, a.pos, a.end, &b);) {
            int64_t pos = b.pos;
            while (pos < b.end && !starts_tile(k, &a, pos)) pos++;
            if (pos >= b.end || !has_tiles(v, b.level) || !starts_tile(v, &b, pos)) continue;
            int n_tile = (int)((b.end - pos) / LK_TILE);
            if (n_tile == 0) continue;
            out->zone[out->n_zone++] = (struct lk_read_zone){
                .level = a.level,
                .n_tile = n_tile,
                .first = out->n_tile,
                .pos = pos,
                .end = pos + (int64_t)n_tile * LK_TILE,
                .v_level = b.level,
                .v_block = (v->count[b.level].skip + (pos - b.first)) / LK_TILE,
                .rows = zone_rows(k, 0, &a, pos, n_tile)};
            out->n_tile += n_tile;
        }
    }
    out->n_chosen = (int)ceilf(item->attn->read * (float)out->n_tile);
    out->n_row = lk_attn_item_position(item, 0) + 1 - k->first -
                 (int64_t)(out->n_tile - out->n_chosen) * LK_TILE;
}

/* ---- choosing ---- */

/* Estimated logs of the weights of a zone's tiles: score [item->n_q][n_tile of all zones]. */
static void estimate(struct lk_attn_item *item, const struct lk_read *read,
                     const struct lk_read_zone *zone, float *score) {
    enum { TOGETHER = 16 }; /* tiles: the heads of a block share its pages */
    const struct lk_attn *attn = item->attn;
    const struct lk_codec *codec = &attn->k->rule[zone->level].codec;
    float unit = lk_rot_codebook(codec).unit, spread[LK_ATTN_QUERIES];
    lk_attn_item_prepare(item, zone->level);
    for (int i = 0; i < item->n_q; i++) {
        const struct lk_queries *q = &item->queries[i / item->n_each];
        const float *row = q->q + (size_t)(i % item->n_each) * q->d_head;
        float norm = 0;
        for (int c = 0; c < q->d_head; c++) norm += row[c] * row[c];
        spread[i] = 0.5f * attn->scale * norm / (unit * unit);
    }
    int d = attn->k->level[zone->level].d_part;
    size_t head_bytes = attn->k->level[zone->level].head_bytes,
           codes = lk_bitplanes_bytes(codec->bits, d);
    for (int t = 0; t < zone->n_tile; t += TOGETHER)
        for (int h = 0; h < item->n_head_kv; h++) {
            struct lk_rows rows = zone->rows;
            rows.block += t;
            rows.offset += (item->head_kv + h) * head_bytes;
            rows.n = (zone->n_tile - t < TOGETHER ? zone->n_tile - t : TOGETHER) * LK_TILE;
            const void *next[TOGETHER]; /* the same head's scales and means */
            int n_next = zone->n_tile - t - TOGETHER;
            for (int i = 0; i < TOGETHER && i < n_next; i++)
                next[i] = (const char *)rows.block[TOGETHER + i] + rows.offset + codes;
            rows.fetch = (struct lk_fetch){next,
                                           n_next < 0          ? 0
                                           : n_next < TOGETHER ? n_next
                                                               : TOGETHER,
                                           head_bytes - codes};
            attn->kernels->score_tiles(&rows, &item->queries[h], spread + h * item->n_each,
                                       score + (size_t)h * item->n_each * read->n_tile +
                                           zone->first + t,
                                       (size_t)read->n_tile);
        }
}

/* share[t]: the largest share of tile t among the queries of a KV head. score [group][n_tile] is
 * overwritten. */
static void largest_share(const struct lk_attn_item *item, int n_tile, float *score, float *share) {
    const struct lk_attn *attn = item->attn;
    for (int i = 0; i < item->n_each; i++, score += n_tile) {
        float max = attn->kernels->max(score, n_tile) * attn->scale;
        float inverse = 1 / attn->kernels->exp_sum(score, n_tile, attn->scale, max);
        for (int t = 0; t < n_tile; t++) {
            float x = score[t] * inverse;
            share[t] = i == 0 || x > share[t] ? x : share[t];
        }
    }
}

/* The bits of a number that is not negative, in its order. */
static uint32_t order_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffff;
}

/* chosen [n] = 1 for the k largest of x [n], by their 22 highest bits. Of equal ones those with
 * the highest index, the newest, are chosen. Counts by 11 bits, twice. */
static void choose_largest(const float *x, int n, int k, uint8_t *chosen) {
    enum { BINS = 1 << 11, SHIFT = 31 - 11 };
    uint32_t bound = 0; /* bits of the smallest that is chosen */
    int left = k;       /* to choose among those in the bin of `bound` */
    for (int pass = 0; pass < 2; pass++) {
        int32_t count[BINS] = {0};
        int shift = pass ? SHIFT - 11 : SHIFT, bin = BINS - 1;
        for (int t = 0; t < n; t++) {
            uint32_t bits = order_of(x[t]);
            if (pass && bits >> SHIFT != bound >> SHIFT) continue;
            count[bits >> shift & (BINS - 1)]++;
        }
        for (; bin > 0 && left > count[bin]; bin--) left -= count[bin];
        bound |= (uint32_t)bin << shift;
    }
    enum { CUT = SHIFT - 11 };
    for (int t = n - 1; t >= 0; t--) {
        uint32_t bits = order_of(x[t]) >> CUT;
        chosen[t] = bits > bound >> CUT || (bits == bound >> CUT && left-- > 0);
    }
}

void lk_read_choose(struct lk_attn_item *item, int ith, struct lk_read *read) {
    const struct lk_attn *attn = item->attn;
    float *score = attn->read_scratch + (size_t)ith * attn->read_floats;
    int n_tile = read->n_tile;
    float *share = score + (size_t)item->n_q * n_tile;
    read->chosen = (uint8_t *)(share + n_tile);
    for (int z = 0; z < read->n_zone; z++) estimate(item, read, &read->zone[z], score);
    for (int h = 0; n_tile > 0 && h < item->n_head_kv; h++) {
        largest_share(item, n_tile, score + (size_t)h * item->n_each * n_tile, share);
        choose_largest(share, n_tile, read->n_chosen, read->chosen + (size_t)h * n_tile);
    }
}

/* ---- attending ---- */

/* Attend to n <= BATCH chosen tiles of a zone; tile: their numbers in it. next: NULL, or the tiles
 * of K that follow, which are fetched meanwhile. offset_k: of the KV head's rows in blocks of K */
static void attend_tiles(struct lk_attn_item *item, const struct lk_read_zone *zone,
                         size_t offset_k, const int *tile, int n, const int *next, int n_next) {
    const struct lk_attn *attn = item->attn;
    const struct lk_level *level = &attn->v->level[zone->v_level];
    size_t offset_v = lk_level_part_offset(level, item->head_kv);
    void *k_block[BATCH], *v_blocks[BATCH];
    const void *fetch[2][BATCH];
    for (int i = 0; i < n; i++) {
        k_block[i] = zone->rows.block[tile[i]];
        v_blocks[i] = level->block[zone->v_block + tile[i]];
        fetch[0][i] = (const char *)v_blocks[i] + offset_v;
    }
    for (int i = 0; i < n_next; i++)
        fetch[1][i] = (const char *)zone->rows.block[next[i]] + offset_k;

    lk_attn_item_prepare(item, zone->level);
    struct lk_rows k = zone->rows;
    k.block = k_block;
    k.offset = offset_k;
    k.n = n * LK_TILE;
    k.fetch = (struct lk_fetch){fetch[0], n, level->head_bytes};
    float *s = item->mem.score + LK_SCORE_PAD;
    attn->kernels->score(&k, &item->queries[0], s, item->stride);
    for (int i = 0; i < item->n_q; i++) {
        float *of_query = s + i * item->stride;
        lk_attend_raise(item, i, attn->kernels->max(of_query, k.n) * attn->scale);
        item->mem.sum[i] += attn->kernels->exp_sum(of_query, k.n, attn->scale, item->mem.max[i]);
    }
    struct lk_rows v = {.codec = &attn->v->rule[zone->v_level].codec,
                        .block = v_blocks,
                        .offset = offset_v,
                        .sigma = lk_kv_sigma(attn->v, zone->v_level, item->head_kv),
                        .d_head = level->d_part,
                        .block_rows = LK_TILE,
                        .n = n * LK_TILE,
                        .fetch = {fetch[1], n_next, zone->rows.prefetch.bytes}};
    lk_attend_start_sums(item, zone->v_level);
    attn->kernels->accumulate(&v, s, item->stride, item->n_q,
                              lk_attend_sum(item, zone->v_level, 0));
}

/* Attend to the chosen tiles of a zone, if they are among rows [from, to) of all that are read.
 * row: number of rows that are read before the zone. Returns their number after it. */
static int64_t attend_zone(struct lk_attn_item *item, const struct lk_read_zone *zone,
                           const uint8_t *chosen, int64_t row, int64_t from, int64_t to) {
    int tile[2][BATCH], n[2] = {0, 0}, at = 0; /* this batch, and the one before */
    size_t offset = lk_level_part_offset(&item->attn->k->level[zone->level], item->head_kv);
    for (int t = 0; t < zone->n_tile; t++) {
        if (!chosen[zone->first + t]) continue;
        if (row >= from && row < to) {
            if (n[at] == BATCH) {
                if (n[!at]) attend_tiles(item, zone, offset, tile[!at], BATCH, tile[at], BATCH);
                at = !at;
                n[at] = 0;
            }
            tile[at][n[at]++] = t;
        }
        row += LK_TILE;
    }
    if (n[!at]) attend_tiles(item, zone, offset, tile[!at], BATCH, tile[at], n[at]);
    if (n[at]) attend_tiles(item, zone, offset, tile[at], n[at], NULL, 0);
    return row;
}

/* Same as above, for positions [a, b), which are read whole. */
static int64_t attend_whole(struct lk_attn_item *item, int64_t a, int64_t b, int64_t row,
                            int64_t from, int64_t to) {
    int64_t start = a + (from > row ? from - row : 0);
    int64_t end = to - row < b - a ? a + to - row : b;
    for (int64_t pos = start; pos < end; pos += LK_ATTN_CHUNK)
        lk_attend_chunk(item, pos, pos + LK_ATTN_CHUNK < end ? pos + LK_ATTN_CHUNK : end);
    return row + (b - a);
}

void lk_read_attend(struct lk_attn_item *item, const struct lk_read *read, int i, int64_t from,
                    int64_t to) {
    const uint8_t *chosen = read->chosen + (size_t)i * read->n_tile;
    int64_t first = item->attn->k->first, end = lk_attn_item_position(item, 0) + 1, row = 0;
    for (int z = 0; z < read->n_zone; z++) {
        const struct lk_read_zone *zone = &read->zone[z];
        row = attend_whole(item, first, zone->pos, row, from, to);
        row = attend_zone(item, zone, chosen, row, from, to);
        first = zone->end;
    }
    attend_whole(item, first, end, row, from, to);
    if (from <= 0) item->n_tile += read->n_tile, item->n_tile_read += read->n_chosen;
}
