/* Weighs all rows, chooses tiles of V, and adds the chosen ones. */
#include "attention/skip.h"

#include "attention/attend.h"
#include "attention/runs.h"

#include <limits.h>
#include <math.h>
#include <string.h>

enum { BATCH = LK_MAX_KERNEL_CHUNK / LK_TILE }; /* tiles that are added together */

bool lk_skip_applies(const struct lk_attn *attn) {
    return attn->skip_v > 0 && attn->n_tok <= LK_DECODE_TOKENS &&
           attn->k->n_tok - attn->k->first > (LK_SKIP_MIN_TILES - 2) * LK_TILE;
}

int lk_skip_groups(const struct lk_attn *attn) {
    return (attn->n_head / attn->n_head_kv + LK_SKIP_HEADS - 1) / LK_SKIP_HEADS;
}

void lk_skip_set_item(struct lk_attn_item *item, int unit) {
    const struct lk_attn *attn = item->attn;
    int group = attn->n_head / attn->n_head_kv, n_part = lk_skip_groups(attn);
    int token = unit % attn->n_tok, part = unit / attn->n_tok % n_part;
    int first = group * part / n_part, end = group * (part + 1) / n_part;
    lk_attn_item_set(item, unit / attn->n_tok / n_part, 1, token * group + first, end - first,
                     LK_MAX_KERNEL_CHUNK);
}

/* ---- weights of a call ---- */

/* What lk_skip_score leaves for each query of the call, numbered as its rows. Tile t has positions
 * [origin + t * LK_TILE, + LK_TILE). */
struct weights {
    int64_t origin; /* may be negative: rows that are not there have weights of 0 */
    int n_tile;
    uint16_t *weight; /* [queries][n_tile][LK_TILE] in f16, relative to the tile's largest score */
    float *max;       /* [queries][n_tile] largest score, scaled */
    float *sum;       /* [queries][n_tile] of weights */
};

static size_t max_tiles(int64_t n_ctx) { return (size_t)(n_ctx / LK_TILE + 2); }

size_t lk_skip_floats(int64_t n_ctx, int n_head) {
    return LK_DECODE_TOKENS * n_head * max_tiles(n_ctx) * (LK_TILE / 2 + 2);
}

static struct weights weights_of(const struct lk_attn *attn, const struct lk_partition *p) {
    struct weights w = {.origin = lk_partition_align(p, p->first, INT64_MIN)};
    size_t n_query = (size_t)attn->n_tok * attn->n_head;
    w.n_tile = (int)((p->end - w.origin + LK_TILE - 1) / LK_TILE);
    w.max = attn->rule_scratch;
    w.sum = w.max + n_query * w.n_tile;
    w.weight = (uint16_t *)(w.sum + n_query * w.n_tile);
    return w;
}

/* Weights of the tiles from position `start` on that have rows of the chunk [a, b), for query i. */
static void weigh_chunk(struct lk_attn_item *item, const struct weights *w, int i, int64_t start,
                        int64_t a, int64_t b) {
    int lo, n, n_tile = (int)((b - start + LK_TILE - 1) / LK_TILE), n_row = n_tile * LK_TILE;
    lk_attn_item_visible(item, i, a, b, &lo, &n);
    float *s = item->mem.score + (size_t)i * item->stride + LK_SCORE_PAD - (a - start);
    lo = n ? lo + (int)(a - start) : 0;
    for (int t = 0; t < lo; t++) s[t] = -INFINITY;
    for (int t = lo + n; t < n_row; t++) s[t] = -INFINITY;
    size_t tile = lk_attn_item_row(item, i) * w->n_tile + (size_t)((start - w->origin) / LK_TILE);
    item->attn->kernels->exp_tiles(s, n_tile, item->attn->scale, w->weight + tile * LK_TILE,
                                   w->max + tile, w->sum + tile);
}

void lk_skip_score(struct lk_attn_item *item, const struct lk_partition *p, int64_t from,
                   int64_t to) {
    struct weights w = weights_of(item->attn, p);
    for (int64_t a = from, b; a < to; a = b) {
        b = a + item->chunk < to ? lk_partition_align(p, a + item->chunk, a + 1) : to;
        lk_attn_item_score(item, a, b);
        for (int i = 0; i < item->n_q; i++)
            weigh_chunk(item, &w, i, lk_partition_align(p, a, INT64_MIN), a, b);
    }
}

/* ---- choosing ---- */

/* What one token and group of heads reads, in the scratch of a thread. Tiles are numbered from the
 * first that the token sees. */
struct choice {
    int64_t first, end; /* positions that the token sees */
    int64_t origin;     /* position that tile 0 starts at */
    int n_tile;
    const uint16_t *weight[LK_SKIP_HEADS]; /* [n_tile][LK_TILE] as in struct weights */
    float *scale[LK_SKIP_HEADS];           /* [n_tile] from those weights to weights for mem.max */
    float *sum[LK_SKIP_HEADS];             /* [n_tile] of weights for mem.max */
    uint8_t *need;                         /* [n_tile] MUST_READ, or 1: is read */
};

enum { MUST_READ = 2 };

size_t lk_skip_thread_floats(int64_t n_ctx) {
    return max_tiles(n_ctx) * 2 * LK_SKIP_HEADS + (max_tiles(n_ctx) + 3) / 4;
}

/* The sum of weight [n], in 16 parts, which compilers vectorize. need: [n], or NULL for all tiles.
 * Otherwise only the tiles count that are read, or that are left out. */
static float sum_tiles(const float *weight, const uint8_t *need, bool read, int n) {
    float part[16] = {0}, all = 0;
    int t = 0;
    for (; t + 16 <= n; t += 16)
        for (int k = 0; k < 16; k++)
            part[k] += !need || (need[t + k] != 0) == read ? weight[t + k] : 0;
    for (; t < n; t++) part[t % 16] += !need || (need[t] != 0) == read ? weight[t] : 0;
    for (int k = 0; k < 16; k++) all += part[k];
    return all;
}

/* The run of a span of V that starts at position pos, for the item's KV head. */
static struct lk_run run_at(const struct lk_attn_item *item, const struct lk_kv_span *span,
                            int64_t pos, int max_rows) {
    const struct lk_level *level = &item->attn->v->level[span->level];
    int part = item->head_kv / level->n_head;
    struct lk_run run = {.kv = item->attn->v,
                         .level = span->level,
                         .first_part = part,
                         .end_part = part + 1,
                         .max_rows = max_rows,
                         .chunk = item->chunk,
                         .whole_tiles = true};
    lk_run_find(&run, pos - span->first, span->end - span->first);
    return run;
}

/* Whether a run of V has the tiles of the choice, so that they can be left out. */
static bool has_tiles(const struct choice *c, const struct lk_run *run, int64_t pos) {
    return run->n % LK_TILE == 0 && (pos - c->origin) % LK_TILE == 0;
}

/* Set need to MUST_READ or 0. */
static void find_whole_tiles(const struct lk_attn_item *item, struct choice *c) {
    const struct lk_kv *v = item->attn->v;
    memset(c->need, 0, (size_t)c->n_tile);
    for (struct lk_kv_span span = lk_kv_spans(v); lk_kv_next_span(v, c->first, c->end, &span);)
        for (int64_t pos = span.pos, end; pos < span.end; pos = end) {
            struct lk_run run = run_at(item, &span, pos, INT_MAX);
            end = pos + run.n;
            if (has_tiles(c, &run, pos)) continue;
            for (int64_t t = (pos - c->origin) / LK_TILE; t <= (end - 1 - c->origin) / LK_TILE; t++)
                c->need[t] = MUST_READ;
        }
}

/* Weights of query i's tiles relative to its largest score, and the tiles that it needs. */
static void choose(struct lk_attn_item *item, struct choice *c, const float *max, const float *sum,
                   int i) {
    const struct lk_kernels *kernels = item->attn->kernels;
    float *scale = c->scale[i], *of_tile = c->sum[i];
    item->mem.max[i] = kernels->max(max, c->n_tile);
    memcpy(scale, max, (size_t)c->n_tile * sizeof *scale);
    kernels->exp_sum(scale, c->n_tile, 1, item->mem.max[i]);
    for (int t = 0; t < c->n_tile; t++) of_tile[t] = scale[t] * sum[t];
    float limit = sum_tiles(of_tile, NULL, true, c->n_tile) * item->attn->skip_v / (float)c->n_tile;
    if (c->n_tile < LK_SKIP_MIN_TILES) limit = 0;
    for (int t = 0; t < c->n_tile; t++) c->need[t] |= !(of_tile[t] < limit);
}

static struct choice make_choice(struct lk_attn_item *item, const struct lk_partition *p, int ith) {
    const struct lk_attn *attn = item->attn;
    struct weights w = weights_of(attn, p);
    struct choice c = {.first = attn->k->first, .end = lk_attn_item_position(item, 0) + 1};
    if (attn->k->n_swa > 0 && c.first < c.end - attn->k->n_swa) c.first = c.end - attn->k->n_swa;
    size_t first_tile = (size_t)((c.first - w.origin) / LK_TILE);
    c.origin = w.origin + (int64_t)first_tile * LK_TILE;
    c.n_tile = (int)((c.end - c.origin + LK_TILE - 1) / LK_TILE);
    float *mem = attn->rule_scratch + attn->rule_floats.shared + ith * attn->rule_floats.thread;
    for (int i = 0; i < LK_SKIP_HEADS; i++, mem += 2 * (size_t)c.n_tile) {
        c.scale[i] = mem;
        c.sum[i] = mem + c.n_tile;
    }
    c.need = (uint8_t *)mem;
    find_whole_tiles(item, &c);
    for (int i = 0; i < item->n_q; i++) {
        size_t tile = lk_attn_item_row(item, i) * w.n_tile + first_tile;
        c.weight[i] = w.weight + tile * LK_TILE;
        choose(item, &c, w.max + tile, w.sum + tile, i);
    }
    return c;
}

/* ---- adding ---- */

/* Tiles of one level of V that one kernel call adds. */
struct batch {
    int level, n;
    int tile[BATCH];    /* of the choice */
    int64_t row[BATCH]; /* the tile's first row in the level's blocks */
};

/* Weights of a tile's rows for mem.max: out [LK_TILE]. */
static void copy_weights(const struct lk_kernels *kernels, const struct choice *c, int i,
                         int64_t tile, float *out) {
    kernels->scale_tile(c->weight[i] + tile * LK_TILE, c->scale[i][tile], out);
}

/* Add a batch. next: NULL, or the batch that follows, whose bytes are fetched meanwhile. */
static void add_batch(struct lk_attn_item *item, const struct choice *c, const struct batch *batch,
                      const struct batch *next) {
    const struct lk_kv *v = item->attn->v;
    const struct lk_level *level = &v->level[batch->level];
    int block_rows = v->rule[batch->level].block_rows, part = item->head_kv / level->n_head;
    float *weight = item->mem.score;
    void *block[BATCH];
    const void *fetch[BATCH];
    struct lk_rows rows = {.codec = lk_level_codec(&v->rule[batch->level], part),
                           .block = level->block + batch->row[0] / block_rows,
                           .offset = lk_level_part_offset(level, part),
                           .sigma = lk_kv_sigma(v, batch->level, part),
                           .d_head = lk_level_part_channels(level, part),
                           .block_rows = block_rows,
                           .row0 = (int)(batch->row[0] % block_rows),
                           .n = batch->n * LK_TILE};
    if (block_rows == LK_TILE) { /* the blocks need not be adjacent */
        for (int t = 0; t < batch->n; t++) block[t] = level->block[batch->row[t] / LK_TILE];
        rows.block = block;
    }
    if (next && v->rule[next->level].block_rows == LK_TILE) {
        const struct lk_level *ahead = &v->level[next->level];
        size_t offset = lk_level_part_offset(ahead, item->head_kv / ahead->n_head);
        for (int t = 0; t < next->n; t++)
            fetch[t] = (const char *)ahead->block[next->row[t] / LK_TILE] + offset;
        rows.fetch = (struct lk_fetch){
            fetch, next->n, ahead->part ? ahead->block_bytes / ahead->n_part : ahead->head_bytes};
    }
    for (int i = 0; i < item->n_q; i++)
        for (int t = 0; t < batch->n; t++) {
            float *of_tile = weight + i * item->stride + t * LK_TILE;
            copy_weights(item->attn->kernels, c, i, batch->tile[t], of_tile);
            if (level->basis && level->basis->mean) item->mem.mean[i] += c->sum[i][batch->tile[t]];
        }
    item->attn->kernels->accumulate(&rows, weight, item->stride, item->n_q,
                                    lk_attend_sum(item, batch->level, 0));
}

/* Whether a batch has room for a tile that starts with row `row` of a level. */
static bool has_room(const struct batch *batch, int level, int block_rows, int64_t row) {
    if (batch->n == 0) return true;
    return batch->n < BATCH && batch->level == level &&
           (block_rows == LK_TILE || row == batch->row[batch->n - 1] + LK_TILE);
}

/* Add rows [a, b), at most a chunk, that are not whole tiles. */
static void add_rows(struct lk_attn_item *item, const struct choice *c, int64_t a, int64_t b) {
    for (int i = 0; i < item->n_q; i++) {
        int64_t first = (a - c->origin) / LK_TILE, last = (b - 1 - c->origin) / LK_TILE;
        float *out = item->mem.score + i * item->stride + LK_SCORE_PAD - (a - c->origin) % LK_TILE;
        for (int64_t t = first; t <= last; t++, out += LK_TILE)
            copy_weights(item->attn->kernels, c, i, t, out);
    }
    lk_attend_values(item, a, b);
}

/* Add the values of positions [a, b) that the choice needs. */
static void add_values(struct lk_attn_item *item, const struct choice *c, int64_t a, int64_t b) {
    const struct lk_kv *v = item->attn->v;
    struct batch batch[2] = {0}; /* the one that is being filled, and the one before */
    int now = 0;
    for (struct lk_kv_span span = lk_kv_spans(v); lk_kv_next_span(v, a, b, &span);) {
        int block_rows = v->rule[span.level].block_rows;
        lk_attend_start_sums(item, span.level);
        for (int64_t pos = span.pos, end; pos < span.end; pos = end) {
            struct lk_run run = run_at(item, &span, pos, LK_MAX_KERNEL_CHUNK);
            end = pos + run.n;
            if (!has_tiles(c, &run, pos)) {
                add_rows(item, c, pos, end);
                continue;
            }
            int tile = (int)((pos - c->origin) / LK_TILE);
            int64_t row = lk_run_tile(&run) * LK_TILE;
            for (int t = 0; t < run.n / LK_TILE; t++, tile++, row += LK_TILE) {
                if (!c->need[tile]) continue;
                if (!has_room(&batch[now], span.level, block_rows, row)) {
                    if (batch[!now].n) add_batch(item, c, &batch[!now], &batch[now]);
                    now = !now;
                    batch[now].n = 0;
                }
                struct batch *to = &batch[now];
                to->level = span.level;
                to->tile[to->n] = tile;
                to->row[to->n++] = row;
            }
        }
    }
    if (batch[!now].n) add_batch(item, c, &batch[!now], &batch[now]);
    if (batch[now].n) add_batch(item, c, &batch[now], NULL);
}

/* The tile after the first n that are read. */
static int tile_after(const struct choice *c, int n) {
    int t = 0;
    for (; n > 0; t++) n -= c->need[t] != 0;
    return t;
}

void lk_skip_attend(struct lk_attn_item *item, const struct lk_partition *p, int ith, int range) {
    struct choice c = make_choice(item, p, ith);
    int n_need = 0, n_must = 0;
    for (int t = 0; t < c.n_tile; t++) n_need += c.need[t] != 0, n_must += c.need[t] >= MUST_READ;
    int from = tile_after(&c, (int)((int64_t)n_need * range / p->n_range)),
        to = tile_after(&c, (int)((int64_t)n_need * (range + 1) / p->n_range));
    for (int i = 0; i < item->n_q; i++)
        item->mem.sum[i] = sum_tiles(c.sum[i] + from, c.need + from, true, to - from);
    if (range == 0) { /* what is left out is counted once */
        for (int i = 0; i < item->n_q; i++)
            item->mem.dropped[i] = sum_tiles(c.sum[i], c.need, false, c.n_tile);
        item->n_tile += c.n_tile - n_must;
        item->n_tile_read += n_need - n_must;
    }
    int64_t a = c.origin + (int64_t)from * LK_TILE, b = c.origin + (int64_t)to * LK_TILE;
    add_values(item, &c, a > c.first ? a : c.first, b < c.end ? b : c.end);
}
