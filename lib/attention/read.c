/* Chooses tiles or chunks by their estimated attention, and attends to them. */
#include "attention/read.h"

#include "attention/attend.h"
#include "attention/landmarks.h"
#include "attention/softcap.h"
#include "codec/f16.h"
#include "codec/rot.h"
#include "kernels/tile.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { BATCH = LK_ATTN_CHUNK / LK_LANDMARK_ROWS }; /* at most this many units are scored together */

/* ---- scratch ---- */

static size_t floats_of(size_t n_float, size_t n_byte) { return n_float + (n_byte + 3) / 4; }

/* Rows of a unit of a recipe: a recipe has either chunks with landmarks or tiles. */
static int rows_of_units(const struct lk_recipe *recipe) {
    bool landmarks = false;
    for (int i = 0; i < recipe->n_level; i++) landmarks |= recipe->level[i].k.landmarks;
    for (int i = 0; i < recipe->n_override; i++) landmarks |= recipe->override[i].k.landmarks;
    return landmarks ? LK_LANDMARK_ROWS : LK_TILE;
}

/* score, share and chosen; for chunks also distance, outlier and rows. */
size_t lk_read_floats(const struct lk_recipe *recipe, int64_t n_ctx, int n_head, int n_head_kv,
                      int d_head) {
    if (!(recipe->read > 0)) return 0;
    int unit_rows = rows_of_units(recipe);
    size_t n_unit = (size_t)(n_ctx / unit_rows + 1), n = (n_head + 1) * n_unit;
    if (unit_rows == LK_TILE) return floats_of(n, n_head_kv * n_unit);
    return floats_of(n + n_head_kv * n_unit, (n_head_kv + 1) * n_unit) +
           lk_landmarks_gather_floats(d_head);
}

static void lay_out_scratch(const struct lk_attn_item *item, int ith, struct lk_read *read) {
    const struct lk_attn *attn = item->attn;
    size_t n = (size_t)read->n_unit, n_head_kv = item->n_head_kv;
    bool chunks = read->n_zone && read->zone[0].unit_rows == LK_LANDMARK_ROWS;
    read->score = attn->read_scratch + ith * attn->read_floats;
    read->share = read->score + item->n_q * n;
    read->distance = read->share + n;
    float *bytes = read->distance + (chunks ? n_head_kv * n : 0);
    read->chosen = (uint8_t *)bytes;
    read->outlier = read->chosen + n_head_kv * n;
    read->rows = (uint16_t *)(bytes + floats_of(0, (n_head_kv + 1) * n));
}

bool lk_read_applies(const struct lk_attn *attn) {
    int group = attn->n_head / attn->n_head_kv;
    return attn->read > 0 && attn->n_tok <= LK_DECODE_TOKENS && attn->k->n_swa == 0 &&
           attn->k->first == attn->v->first && group * attn->n_tok <= LK_ATTN_QUERIES;
}

/* ---- zones ---- */

/* Rows of the units of a level of K that may be left out; 0 if its rows are always read. */
static int unit_rows(const struct lk_kv *k, int level) {
    const struct lk_level_rule *rule = &k->rule[level];
    bool has_means = rule->codec.coding == LK_ROT && rule->codec.mean;
    if (k->level[level].basis || rule->limit.policy.kind != LK_POLICY_NONE) return 0;
    if (has_means && rule->block_rows == LK_TILE) return LK_TILE;
    return rule->codec.landmarks && rule->block_rows % LK_LANDMARK_ROWS == 0 ? LK_LANDMARK_ROWS : 0;
}

/* Whether a level of V can leave out units of so many rows. */
static bool has_units(const struct lk_kv *v, int level, int rows) {
    const struct lk_level_rule *rule = &v->rule[level];
    if (v->level[level].basis || rule->limit.policy.kind != LK_POLICY_NONE) return false;
    return rows == LK_TILE ? rule->block_rows == LK_TILE
                           : rule->codec.coding == LK_F16 && rule->block_rows % rows == 0;
}

/* Number, in the level's blocks, of the row at position pos. */
static int64_t row_at(const struct lk_kv *kv, const struct lk_kv_span *span, int64_t pos) {
    return kv->count[span->level].skip + pos - span->first;
}

/* Units that may be left out are whole in K and in V, and have no newest rows. */
void lk_read_find(const struct lk_attn_item *item, struct lk_read *out) {
    const struct lk_attn *attn = item->attn;
    const struct lk_kv *k = attn->k, *v = attn->v;
    int64_t end = lk_attn_item_position(item, 0) + 1 - LK_READ_NEWEST, n_left_out = 0;
    int n_outlier = 0, n_row = LK_TILE;
    out->n_zone = out->n_unit = 0;
    for (struct lk_kv_span a = lk_kv_spans(k); lk_kv_next_span(k, k->first, end, &a);) {
        int rows = unit_rows(k, a.level);
        if (rows == 0) continue;
        for (struct lk_kv_span b = lk_kv_spans(v); lk_kv_next_span(v, a.pos, a.end, &b);) {
            int64_t pos = b.pos;
            while (pos < b.end && row_at(k, &a, pos) % rows) pos++;
            if (pos >= b.end || !has_units(v, b.level, rows) || row_at(v, &b, pos) % rows) continue;
            int n_unit = (int)((b.end - pos) / rows);
            if (n_unit == 0) continue;
            out->zone[out->n_zone++] = (struct lk_read_zone){.level = a.level,
                                                             .kept = a.kept,
                                                             .n_unit = n_unit,
                                                             .first = out->n_unit,
                                                             .unit_rows = rows,
                                                             .pos = pos,
                                                             .end = pos + (int64_t)n_unit * rows,
                                                             .v_level = b.level,
                                                             .k_row = row_at(k, &a, pos),
                                                             .v_row = row_at(v, &b, pos)};
            out->n_unit += n_unit;
            n_row = rows;
        }
    }
    if (n_row == LK_LANDMARK_ROWS) n_outlier = attn->read_outliers;
    if (n_outlier > out->n_unit) n_outlier = out->n_unit;
    out->n_outlier = n_outlier;
    out->n_chosen = n_outlier + (int)ceilf(attn->read * (float)out->n_unit);
    if (out->n_chosen > out->n_unit) out->n_chosen = out->n_unit;
    n_left_out = (int64_t)(out->n_unit - out->n_chosen) * n_row;
    out->n_row = lk_attn_item_position(item, 0) + 1 - k->first - n_left_out;
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
    for (int t = 0; t < zone->n_unit; t += TOGETHER)
        for (int h = 0; h < item->n_head_kv; h++) {
            int n_next = zone->n_unit - t - TOGETHER;
            struct lk_rows rows = tile_rows(attn->k, zone->level, item->head_kv + h,
                                            level->block + zone->k_row / LK_TILE + t,
                                            n_next < 0 ? zone->n_unit - t : TOGETHER);
            const void *next[TOGETHER]; /* the same head's scales and means */
            size_t codes = lk_bitplanes_bytes(rows.codec->bits, level->d_part),
                   bytes = lk_codec_head_bytes(rows.codec, LK_K, level->d_part, LK_TILE);
            for (int i = 0; i < TOGETHER && i < n_next; i++)
                next[i] = (const char *)rows.block[TOGETHER + i] + rows.offset + codes;
            rows.fetch = (struct lk_fetch){next,
                                           n_next < 0          ? 0
                                           : n_next < TOGETHER ? n_next
                                                               : TOGETHER,
                                           bytes - codes};
            attn->kernels->score_tiles(&rows, &item->queries[h], spread + h * item->n_each,
                                       read->score + (size_t)h * item->n_each * read->n_unit +
                                           zone->first + t,
                                       (size_t)read->n_unit);
        }
}

/* share[t]: the largest share of unit t among the queries of a KV head. score [group][n_unit] is
 * overwritten. */
static void largest_share(const struct lk_attn_item *item, int n_unit, float *score, float *share) {
    const struct lk_attn *attn = item->attn;
    for (int i = 0; i < item->n_each; i++, score += n_unit) {
        float max = attn->kernels->max(score, n_unit) * attn->scale;
        float inverse = 1 / attn->kernels->exp_sum(score, n_unit, attn->scale, max);
        for (int t = 0; t < n_unit; t++) {
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

/* Find the outliers of the item's KV head h, read->outlier, and exclude them from its scores. */
static void find_outliers(struct lk_attn_item *item, struct lk_read *read, int h) {
    float *score = read->score + (size_t)h * item->n_each * read->n_unit;
    choose_largest(read->distance + (size_t)h * read->n_unit, read->n_unit, read->n_outlier,
                   read->outlier);
    for (int t = 0; t < read->n_unit; t++)
        for (int i = 0; read->outlier[t] && i < item->n_each; i++)
            score[(size_t)i * read->n_unit + t] = -1e30f;
}

void lk_read_choose(struct lk_attn_item *item, int ith, struct lk_read *read) {
    int n_unit = read->n_unit;
    lay_out_scratch(item, ith, read);
    for (int z = 0; z < read->n_zone; z++) {
        lk_attn_item_prepare(item, read->zone[z].level, read->zone[z].kept);
        if (read->zone[z].unit_rows == LK_TILE)
            score_tiles(item, read, &read->zone[z]);
        else
            lk_landmarks_score(item, read, &read->zone[z]);
    }
    lk_softcap_scores(item->attn, read->score, item->n_q * n_unit);
    for (int h = 0; n_unit > 0 && h < item->n_head_kv; h++) {
        if (read->n_outlier) find_outliers(item, read, h);
        largest_share(item, n_unit, read->score + (size_t)h * item->n_each * n_unit, read->share);
        for (int t = 0; read->n_outlier && t < n_unit; t++)
            if (read->outlier[t]) read->share[t] = FLT_MAX;
        choose_largest(read->share, n_unit, read->n_chosen, read->chosen + (size_t)h * n_unit);
    }
}

/* ---- attending ---- */

/* Attend to rows of the item's KV head, all of one level of K and one of V. v->n is a multiple of
 * LK_TILE. */
static void attend_rows(struct lk_attn_item *item, const struct lk_read_zone *zone,
                        const struct lk_rows *k, const struct lk_rows *v) {
    const struct lk_attn *attn = item->attn;
    float *s = item->mem.score + LK_SCORE_PAD;
    lk_attn_item_prepare(item, zone->level, zone->kept);
    attn->kernels->score(k, &item->queries[0], s, item->stride);
    for (int i = 0; i < item->n_q; i++) {
        float *of_query = s + i * item->stride;
        lk_softcap_scores(attn, of_query, k->n);
        lk_attend_raise(item, i, attn->kernels->max(of_query, k->n) * attn->scale);
        item->mem.sum[i] += attn->kernels->exp_sum(of_query, k->n, attn->scale, item->mem.max[i]);
        memset(of_query + k->n, 0, (size_t)(v->n - k->n) * sizeof *of_query);
    }
    lk_attend_start_sums(item, zone->v_level);
    attn->kernels->accumulate(v, s, item->stride, item->n_q, lk_attend_sum(item, zone->v_level, 0));
}

/* Attend to n chosen tiles of a zone; tile: their numbers in it. next [n_next]: the tiles that
 * follow, whose K is fetched meanwhile. */
static void attend_tiles(struct lk_attn_item *item, const struct lk_read_zone *zone,
                         const int *tile, int n, const int *next, int n_next) {
    const struct lk_attn *attn = item->attn;
    const struct lk_level *level[2] = {&attn->k->level[zone->level],
                                       &attn->v->level[zone->v_level]};
    void **first[2] = {level[0]->block + zone->k_row / LK_TILE,
                       level[1]->block + zone->v_row / LK_TILE};
    void *block[2][BATCH] = {{0}};
    for (int i = 0; i < n; i++) {
        block[0][i] = first[0][tile[i]];
        block[1][i] = first[1][tile[i]];
    }
    struct lk_rows k = tile_rows(attn->k, zone->level, item->head_kv, block[0], n),
                   v = tile_rows(attn->v, zone->v_level, item->head_kv, block[1], n);
    const void *fetch[2][BATCH]; /* V of these tiles, and K of the next */
    for (int i = 0; i < n; i++) fetch[0][i] = (const char *)block[1][i] + v.offset;
    for (int i = 0; i < n_next; i++) fetch[1][i] = (const char *)first[0][next[i]] + k.offset;
    k.fetch = (struct lk_fetch){fetch[0], n, level[1]->head_bytes};
    v.fetch = (struct lk_fetch){fetch[1], n_next, level[0]->head_bytes};
    attend_rows(item, zone, &k, &v);
}

/* Attend to n chosen units of a zone. next [n_next]: the units of the next batch, to prefetch. */
static void attend_units(struct lk_attn_item *item, const struct lk_read *read,
                         const struct lk_read_zone *zone, const int *unit, int n, const int *next,
                         int n_next) {
    if (zone->unit_rows == LK_TILE) {
        attend_tiles(item, zone, unit, n, next, n_next);
        return;
    }
    struct lk_rows rows[2];
    void *block[2];
    lk_landmarks_gather(item, read, zone, unit, n, block, rows);
    attend_rows(item, zone, &rows[LK_K], &rows[LK_V]);
}

/* Attend to the chosen units of a zone, if they are among rows [from, to) of all that are read.
 * row: number of rows that are read before the zone. Returns their number after it. */
static int64_t attend_zone(struct lk_attn_item *item, const struct lk_read *read,
                           const struct lk_read_zone *zone, const uint8_t *chosen, int64_t row,
                           int64_t from, int64_t to) {
    int unit[2][BATCH], n = 0, n_before = 0, at = 0; /* this batch, and the one before */
    int batch = LK_ATTN_CHUNK / zone->unit_rows;
    for (int t = 0; t < zone->n_unit; t++) {
        if (!chosen[zone->first + t]) continue;
        if (row >= from && row < to) {
            if (n == batch) {
                if (n_before) attend_units(item, read, zone, unit[!at], n_before, unit[at], n);
                at = !at;
                n_before = n;
                n = 0;
            }
            unit[at][n++] = t;
        }
        row += zone->unit_rows;
    }
    if (n_before) attend_units(item, read, zone, unit[!at], n_before, unit[at], n);
    if (n) attend_units(item, read, zone, unit[at], n, NULL, 0);
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
    const uint8_t *chosen = read->chosen + (size_t)i * read->n_unit;
    int64_t first = item->attn->k->first, end = lk_attn_item_position(item, 0) + 1, row = 0;
    for (int z = 0; z < read->n_zone; z++) {
        const struct lk_read_zone *zone = &read->zone[z];
        row = attend_whole(item, first, zone->pos, row, from, to);
        row = attend_zone(item, read, zone, chosen, row, from, to);
        first = zone->end;
    }
    attend_whole(item, first, end, row, from, to);
    if (from <= 0) item->n_tile += read->n_unit, item->n_tile_read += read->n_chosen;
}
