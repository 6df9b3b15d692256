/* Chooses tiles by their estimated attention, and attends to them. */
#include "attention/read.h"

#include "attention/attend.h"
#include "codec/rot.h"
#include "kernels/tile.h"

#include <math.h>
#include <string.h>

enum { BATCH = LK_ATTN_CHUNK / LK_TILE }; /* tiles that are attended to together */

/* ---- scratch ---- */

/* score, share and chosen */
size_t lk_read_floats(const struct lk_recipe *recipe, int64_t n_ctx, int n_head, int n_head_kv,
                      int d_head) {
    (void)d_head;
    size_t n_tile = (size_t)(n_ctx / LK_TILE + 1);
    return recipe->read > 0 ? (n_head + 1) * n_tile + (n_head_kv * n_tile + 3) / 4 : 0;
}

static void lay_out_scratch(const struct lk_attn_item *item, int ith, struct lk_read *read) {
    const struct lk_attn *attn = item->attn;
    read->score = attn->read_scratch + ith * attn->read_floats;
    read->share = read->score + (size_t)item->n_q * read->n_tile;
    read->chosen = (uint8_t *)(read->share + read->n_tile);
}

bool lk_read_applies(const struct lk_attn *attn) {
    int group = attn->n_head / attn->n_head_kv;
    return attn->read > 0 && attn->n_tok <= LK_DECODE_TOKENS && attn->k->n_swa == 0 &&
           attn->k->first == attn->v->first && group * attn->n_tok <= LK_ATTN_QUERIES;
}

/* ---- zones ---- */

/* Whether tiles of a level can be left out: blocks of one tile, of rows in their order. */
static bool has_tiles(const struct lk_kv *kv, int level) {
    const struct lk_level_rule *rule = &kv->rule[level];
    return !kv->level[level].basis && rule->limit.policy.kind == LK_POLICY_NONE &&
           rule->block_rows == LK_TILE;
}

/* Whether the tiles of a level of K can be estimated. */
static bool has_means(const struct lk_kv *k, int level) {
    return k->rule[level].codec.coding == LK_ROT && k->rule[level].codec.mean;
}

/* Number, in the level's blocks, of the row at position pos. */
static int64_t row_at(const struct lk_kv *kv, const struct lk_kv_span *span, int64_t pos) {
    return kv->count[span->level].skip + pos - span->first;
}

/* Tiles that may be left out are whole in K and in V, and have no newest rows. */
void lk_read_find(const struct lk_attn_item *item, struct lk_read *out) {
    const struct lk_attn *attn = item->attn;
    const struct lk_kv *k = attn->k, *v = attn->v;
    int64_t n_row = lk_attn_item_position(item, 0) + 1, end = n_row - LK_READ_NEWEST;
    out->n_zone = out->n_tile = 0;
    for (struct lk_kv_span a = lk_kv_spans(k); lk_kv_next_span(k, k->first, end, &a);) {
        if (!has_tiles(k, a.level) || !has_means(k, a.level)) continue;
        for (struct lk_kv_span b = lk_kv_spans(v); lk_kv_next_span(v, a.pos, a.end, &b);) {
            int64_t pos = b.pos;
            while (pos < b.end && row_at(k, &a, pos) % LK_TILE) pos++;
            int n_tile = (int)((b.end - pos) / LK_TILE);
            if (n_tile == 0 || !has_tiles(v, b.level) || row_at(v, &b, pos) % LK_TILE) continue;
            out->zone[out->n_zone++] =
                (struct lk_read_zone){.level = a.level,
                                      .n_tile = n_tile,
                                      .first = out->n_tile,
                                      .pos = pos,
                                      .end = pos + (int64_t)n_tile * LK_TILE,
                                      .v_level = b.level,
                                      .k_tile = row_at(k, &a, pos) / LK_TILE,
                                      .v_tile = row_at(v, &b, pos) / LK_TILE};
            out->n_tile += n_tile;
        }
    }
    out->n_chosen = (int)ceilf(attn->read * (float)out->n_tile);
    if (out->n_chosen > out->n_tile) out->n_chosen = out->n_tile;
    out->n_row = n_row - k->first - (int64_t)(out->n_tile - out->n_chosen) * LK_TILE;
}

/* ---- choosing ---- */

/* Whole tiles of a level, of one KV head. */
static struct lk_rows tile_rows(const struct lk_kv *kv, int level, int head_kv, void *const *block,
                                int n_tile) {
    return (struct lk_rows){.codec = lk_level_codec(&kv->rule[level], head_kv),
                            .block = block,
                            .offset = lk_level_part_offset(&kv->level[level], head_kv),
                            .sigma = lk_kv_sigma(kv, level, head_kv),
                            .d_head = kv->level[level].d_part,
                            .block_rows = LK_TILE,
                            .n = n_tile * LK_TILE};
}

/* Estimated logs of the weights of the tiles of a zone: read->score. */
static void score_tiles(struct lk_attn_item *item, const struct lk_read *read,
                        const struct lk_read_zone *zone) {
    enum { TOGETHER = 16 }; /* tiles: the heads of a block share its pages */
    const struct lk_attn *attn = item->attn;
    const struct lk_level *level = &attn->k->level[zone->level];
    const struct lk_level_rule *rule = &attn->k->rule[zone->level];
    float spread[LK_ATTN_QUERIES];
    for (int i = 0; i < item->n_q; i++) {
        float unit = lk_rot_codebook(lk_level_codec(rule, lk_attn_item_head(item, i))).unit;
        const struct lk_queries *q = &item->queries[i / item->n_each];
        const float *row = q->q + (size_t)(i % item->n_each) * q->d_head;
        float norm = 0;
        for (int c = 0; c < q->d_head; c++) norm += row[c] * row[c];
        spread[i] = 0.5f * attn->scale * norm / (unit * unit);
    }
    void *block[2 * TOGETHER]; /* of these tiles, and of the next */
    for (int t = 0; t < zone->n_tile; t += TOGETHER) {
        int n_next = zone->n_tile - t - TOGETHER;
        for (int i = 0; i < 2 * TOGETHER && t + i < zone->n_tile; i++)
            block[i] = lk_kv_block(attn->k, zone->level, zone->k_tile + t + i);
        for (int h = 0; h < item->n_head_kv; h++) {
            struct lk_rows rows = tile_rows(attn->k, zone->level, item->head_kv + h, block,
                                            n_next < 0 ? zone->n_tile - t : TOGETHER);
            const void *next[TOGETHER]; /* the same head's scales and means */
            size_t codes = lk_bitplanes_bytes(rows.codec->bits, level->d_part),
                   bytes = lk_codec_head_bytes(rows.codec, LK_K, level->d_part, LK_TILE);
            for (int i = 0; i < TOGETHER && i < n_next; i++)
                next[i] = (const char *)block[TOGETHER + i] + rows.offset + codes;
            rows.fetch = (struct lk_fetch){next,
                                           n_next < 0          ? 0
                                           : n_next < TOGETHER ? n_next
                                                               : TOGETHER,
                                           bytes - codes};
            attn->kernels->score_tiles(&rows, &item->queries[h], spread + h * item->n_each,
                                       read->score + (size_t)h * item->n_each * read->n_tile +
                                           zone->first + t,
                                       (size_t)read->n_tile);
        }
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
    int n_tile = read->n_tile;
    lay_out_scratch(item, ith, read);
    for (int z = 0; z < read->n_zone; z++) {
        lk_attn_item_prepare(item, read->zone[z].level);
        score_tiles(item, read, &read->zone[z]);
    }
    if (item->attn->softcap > 0) lk_softcap_scores(item->attn, read->score, item->n_q * n_tile);
    for (int h = 0; n_tile > 0 && h < item->n_head_kv; h++) {
        largest_share(item, n_tile, read->score + (size_t)h * item->n_each * n_tile, read->share);
        choose_largest(read->share, n_tile, read->n_chosen, read->chosen + (size_t)h * n_tile);
    }
}

/* ---- attending ---- */

/* Attend to rows of the item's KV head, all of one level of K and one of V. v->n is a multiple of
 * LK_TILE. */
static void attend_rows(struct lk_attn_item *item, const struct lk_read_zone *zone,
                        const struct lk_rows *k, const struct lk_rows *v) {
    const struct lk_attn *attn = item->attn;
    float *s = item->mem.score + LK_SCORE_PAD;
    lk_attn_item_prepare(item, zone->level);
    lk_kernels_score(attn->kernels, k, &item->queries[0], s, item->stride);
    for (int i = 0; i < item->n_q; i++) {
        float *of_query = s + i * item->stride;
        if (attn->softcap > 0) lk_softcap_scores(attn, of_query, k->n);
        lk_attend_raise(item, i, attn->kernels->max(of_query, k->n) * attn->scale);
        item->mem.sum[i] += attn->kernels->exp_sum(of_query, k->n, attn->scale, item->mem.max[i]);
        memset(of_query + k->n, 0, (size_t)(v->n - k->n) * sizeof *of_query);
    }
    lk_attend_start_sums(item, zone->v_level);
    lk_kernels_accumulate(attn->kernels, v, s, item->stride, item->n_q,
                          lk_attend_sum(item, zone->v_level, 0));
}

/* Attend to n chosen tiles of a zone; tile: their numbers in it. next [n_next]: the tiles that
 * follow, whose K is fetched meanwhile. */
static void attend_tiles(struct lk_attn_item *item, const struct lk_read_zone *zone,
                         const int *tile, int n, const int *next, int n_next) {
    const struct lk_attn *attn = item->attn;
    const struct lk_level *level[2] = {&attn->k->level[zone->level],
                                       &attn->v->level[zone->v_level]};
    int64_t first[2] = {zone->k_tile, zone->v_tile};
    void *block[2][BATCH] = {{0}};
    for (int i = 0; i < n; i++) {
        block[0][i] = lk_kv_block(attn->k, zone->level, first[0] + tile[i]);
        block[1][i] = lk_kv_block(attn->v, zone->v_level, first[1] + tile[i]);
    }
    struct lk_rows k = tile_rows(attn->k, zone->level, item->head_kv, block[0], n),
                   v = tile_rows(attn->v, zone->v_level, item->head_kv, block[1], n);
    const void *fetch[2][BATCH]; /* V of these tiles, and K of the next */
    for (int i = 0; i < n; i++) fetch[0][i] = (const char *)block[1][i] + v.offset;
    for (int i = 0; i < n_next; i++)
        fetch[1][i] = lk_kv_block(attn->k, zone->level, first[0] + next[i]) + k.offset;
    k.fetch = (struct lk_fetch){fetch[0], n, level[1]->head_bytes};
    v.fetch = (struct lk_fetch){fetch[1], n_next, level[0]->head_bytes};
    attend_rows(item, zone, &k, &v);
}

/* Attend to the chosen tiles of a zone, if they are among rows [from, to) of all that are read.
 * row: number of rows that are read before the zone. Returns their number after it. */
static int64_t attend_zone(struct lk_attn_item *item, const struct lk_read_zone *zone,
                           const uint8_t *chosen, int64_t row, int64_t from, int64_t to) {
    int tile[2][BATCH], n = 0, n_before = 0, at = 0; /* this batch, and the one before */
    for (int t = 0; t < zone->n_tile; t++) {
        if (!chosen[zone->first + t]) continue;
        if (row >= from && row < to) {
            if (n == BATCH) {
                if (n_before) attend_tiles(item, zone, tile[!at], n_before, tile[at], n);
                at = !at;
                n_before = n;
                n = 0;
            }
            tile[at][n++] = t;
        }
        row += LK_TILE;
    }
    if (n_before) attend_tiles(item, zone, tile[!at], n_before, tile[at], n);
    if (n) attend_tiles(item, zone, tile[at], n, NULL, 0);
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
