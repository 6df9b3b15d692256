/* Finds the tiles of V that are not read, and adds the others. */
#include "attention/skip.h"

#include <math.h>
#include <string.h>

enum { MAX_TILES = LK_MAX_KERNEL_CHUNK / LK_TILE };

/* ---- limits ---- */

/* Add the rows [a, b) to each query's sum over its base rows (mem.max, mem.limit). newest: only the
 * query's newest LK_SKIP_NEWEST rows are added. Otherwise only the rows before them are. */
static void add_base(struct lk_attn_item *item, int64_t a, int64_t b, bool newest) {
    const struct lk_attn *attn = item->attn;
    struct lk_attn_scratch *mem = &item->mem;
    lk_attn_item_score(item, a, b);
    for (int i = 0; i < item->n_q; i++) {
        int lo, n;
        float *s = lk_attn_item_visible(item, i, a, b, &lo, &n);
        int64_t older = lk_attn_item_position(item, i) + 1 - LK_SKIP_NEWEST - (a + lo);
        if (newest && older > 0) s += older, n -= (int)older;
        if (!newest && older < n) n = (int)older;
        if (n <= 0) continue;
        float max = attn->kernels->max(s, n) * attn->scale;
        if (max > mem->max[i]) {
            mem->limit[i] *= expf(mem->max[i] - max);
            mem->max[i] = max;
        }
        mem->limit[i] += attn->kernels->exp_sum(s, n, attn->scale, mem->max[i]);
    }
}

void lk_skip_start(struct lk_attn_item *item) {
    const struct lk_attn *attn = item->attn;
    if (attn->skip_v <= 0) return;
    const struct lk_kv *k = attn->k;
    for (int i = 0; i < item->n_q; i++) item->mem.limit[i] = 0;
    int64_t from = lk_attn_item_position(item, 0) + 1 - LK_SKIP_NEWEST,
            to = lk_attn_item_position(item, item->n_q - 1) + 1, end = to - LK_SKIP_NEWEST;
    if (from < k->first) from = k->first;
    if (end > k->first + LK_TILE) end = k->first + LK_TILE;
    if (k->n_swa == 0 && end > k->first) add_base(item, k->first, end, false);
    for (int64_t a = from; a < to; a += LK_ATTN_CHUNK)
        add_base(item, a, a + LK_ATTN_CHUNK < to ? a + LK_ATTN_CHUNK : to, true);
    for (int i = 0; i < item->n_q; i++) {
        int64_t pos = lk_attn_item_position(item, i), first = k->first;
        if (k->n_swa > 0 && first < pos + 1 - k->n_swa) first = pos + 1 - k->n_swa;
        int64_t n_tile = (pos - first) / LK_TILE + 1;
        item->mem.limit[i] *= n_tile < LK_SKIP_MIN_TILES ? 0 : attn->skip_v / (float)n_tile;
    }
}

/* ---- tiles ---- */

_Static_assert(MAX_TILES <= 32, "a run's tiles have a bit each");

/* The tiles of a run that hold base rows of the token at position `token`; pos: of the run's first
 * row. */
static lk_tile_set base_tiles(const struct lk_kv *v, int64_t token, int64_t pos, int n_tile) {
    lk_tile_set all = ((lk_tile_set)2 << (n_tile - 1)) - 1, set = 0;
    int64_t newest = token + 1 - LK_SKIP_NEWEST - pos, oldest = v->first + LK_TILE - pos;
    if (newest < n_tile * LK_TILE) set = newest < 0 ? all : all << newest / LK_TILE & all;
    if (v->n_swa == 0 && oldest > 0)
        set |= oldest > n_tile * LK_TILE ? all : all >> (n_tile - (oldest + LK_TILE - 1) / LK_TILE);
    return set;
}

/* The tiles that n_q query heads of one token and KV head, from query i of the item on, need. The
 * weights of the others leave the sums. tile: of the chunk, the run's first */
static lk_tile_set choose_tiles(struct lk_attn_item *item, int64_t pos, int tile, int n_tile, int i,
                                int n_q) {
    struct lk_attn_scratch *mem = &item->mem;
    float most[MAX_TILES], left[MAX_TILES]; /* above the limit, of any head; 1: left out */
    for (int t = 0; t < n_tile; t++) most[t] = -1;
    for (int q = i; q < i + n_q; q++) {
        const float *sum = item->tile_sum[q] + tile;
        for (int t = 0; t < n_tile; t++) {
            float above = sum[t] - mem->limit[q];
            most[t] = above > most[t] ? above : most[t];
        }
    }
    lk_tile_set need = base_tiles(item->attn->v, lk_attn_item_position(item, i), pos, n_tile);
    for (int t = 0; t < n_tile; t++) need |= (lk_tile_set)(most[t] >= 0) << t;
    for (int t = 0; t < n_tile; t++) left[t] = need >> t & 1 ? 0 : 1;
    for (int q = i; q < i + n_q; q++) {
        const float *sum = item->tile_sum[q] + tile;
        float dropped = 0;
        for (int t = 0; t < n_tile; t++) dropped += left[t] * sum[t];
        mem->sum[q] -= dropped;
        mem->dropped[q] += dropped;
    }
    return need;
}

static void clear_weights(const struct lk_attn_item *item, lk_tile_set tiles, int n_q,
                          float *weight) {
    for (; tiles; tiles &= tiles - 1)
        for (int q = 0; q < n_q; q++)
            memset(weight + q * item->stride + __builtin_ctz(tiles) * LK_TILE, 0,
                   LK_TILE * sizeof *weight);
}

/* Have the chosen tiles fetched while the next chunk of K is scored. */
static void fetch_tiles(struct lk_attn_item *item, const struct lk_rows *rows, lk_tile_set need) {
    if (rows->block_rows > LK_TILE) return; /* a tile's bytes are not adjacent */
    if (item->fetch_bytes < rows->prefetch.bytes) item->fetch_bytes = rows->prefetch.bytes;
    for (; need && item->n_fetch < LK_MAX_FETCH; need &= need - 1)
        item->fetch[item->n_fetch++] =
            (const char *)rows->block[__builtin_ctz(need)] + rows->offset;
}

lk_tile_set lk_skip_choose(struct lk_attn_item *item, const struct lk_rows *rows, int64_t pos,
                           int tile, float *weight, int first, int n_q, bool has_mean) {
    const struct lk_attn *attn = item->attn;
    int group = attn->n_head / attn->n_head_kv, n_tile = rows->n / LK_TILE;
    lk_tile_set need = 0, all = ((lk_tile_set)2 << (n_tile - 1)) - 1;
    for (int q = 0, n; q < n_q; q += n) { /* the heads of one token and KV head */
        int in_head = (first + q) % item->n_each;
        n = group - (item->q0 + in_head) % group;
        if (n > item->n_each - in_head) n = item->n_each - in_head;
        lk_tile_set some = choose_tiles(item, pos, tile, n_tile, first + q, n);
        if (n < n_q || has_mean) clear_weights(item, all & ~some, n, weight + q * item->stride);
        need |= some;
    }
    item->n_tile += n_tile;
    item->n_tile_read += __builtin_popcount(need);
    fetch_tiles(item, rows, need);
    return need;
}

/* Blocks of one tile: the kernel gets the chosen blocks, and their weights moved together. */
static void accumulate_blocks(const struct lk_attn_item *item, const struct lk_rows *rows,
                              lk_tile_set need, float *weight, int n_q, float *acc) {
    void *block[MAX_TILES];
    struct lk_rows some = *rows;
    int n = 0;
    for (; need; need &= need - 1, n++) {
        int t = __builtin_ctz(need);
        block[n] = rows->block[t];
        for (int q = 0; t != n && q < n_q; q++) {
            float *of_query = weight + q * item->stride;
            memcpy(of_query + n * LK_TILE, of_query + t * LK_TILE, LK_TILE * sizeof *weight);
        }
    }
    some.block = block;
    some.n = n * LK_TILE;
    some.prefetch.n_block = 0; /* it is not known yet what will be read */
    item->attn->kernels->accumulate(&some, weight, item->stride, n_q, acc);
}

void lk_skip_accumulate(const struct lk_attn_item *item, const struct lk_rows *rows,
                        lk_tile_set need, float *weight, int n_q, float *acc) {
    int n_tile = rows->n / LK_TILE;
    if (!need) return;
    if (rows->block_rows == LK_TILE) {
        accumulate_blocks(item, rows, need, weight, n_q, acc);
        return;
    }
    for (int from = 0, to; from < n_tile && need >> from; from = to) {
        from += __builtin_ctz(need >> from);
        for (to = from; to < n_tile && need >> to & 1;) to++;
        struct lk_rows some = *rows;
        int row = rows->row0 + from * LK_TILE;
        some.block += row / rows->block_rows;
        some.row0 = row % rows->block_rows;
        some.n = (to - from) * LK_TILE;
        some.prefetch.n_block = 0;
        item->attn->kernels->accumulate(&some, weight + from * LK_TILE, item->stride, n_q, acc);
    }
}
