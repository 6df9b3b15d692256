/* How the work of one attention call is divided into items. */
#include "attention/partition.h"

#include "attention/latents.h"

static int ceil_div(int a, int b) { return (a + b - 1) / b; }

/* Number of ranges of n_other items each. As few as keep n_thread threads busy for 95 % of the
 * rounds that the items take, because every item has a fixed cost besides its rows. */
static int count_ranges(int n_other, int n_thread) {
    int n = 1;
    for (; n < 2 * n_thread; n++) {
        int rounds = n_thread * ceil_div(n * n_other, n_thread);
        if (20 * n * n_other >= 19 * rounds) break;
    }
    return n;
}

/* Set the tiles for `head_tile` KV heads with n_query queries each. A tile of queries has whole
 * groups of query heads, if one has room. */
static void set_tiles(struct lk_partition *p, int n_head_kv, int group, int head_tile) {
    p->head_tile = head_tile < LK_ATTN_QUERIES ? head_tile : LK_ATTN_QUERIES;
    p->n_head_tile = ceil_div(n_head_kv, p->head_tile);
    p->query_tile = LK_ATTN_QUERIES / p->head_tile;
    if (p->query_tile > group) p->query_tile -= p->query_tile % group;
    p->n_query_tile = ceil_div(p->n_query, p->query_tile);
}

/* Start of the first block of the largest level. Chunks that end on its tiles split few of them. */
static int64_t find_grid(const struct lk_kv *kv) {
    int64_t level_first = kv->first, max_rows = -1, grid = 0;
    for (int i = 0; i < kv->n_level; level_first += kv->count[i].rows, i++)
        if (kv->count[i].rows > max_rows) {
            max_rows = kv->count[i].rows;
            grid = level_first - kv->count[i].skip;
        }
    return grid;
}

int64_t lk_partition_align(const struct lk_partition *p, int64_t pos, int64_t min) {
    int64_t beyond = (pos - p->grid) % LK_TILE;
    pos -= beyond < 0 ? beyond + LK_TILE : beyond;
    return pos < min ? min : pos;
}

/* Cost of the rows before `pos`, in bytes read: their own bytes, and `row_cost` more for each
 * row. */
static double cost_before(const struct lk_kv *kv, int64_t pos, double row_cost) {
    double cost = 0;
    for (struct lk_kv_span s = lk_kv_spans(kv); lk_kv_next_span(kv, kv->first, pos, &s);) {
        const struct lk_level *level = &kv->level[s.level];
        int block_rows = kv->rule[s.level].block_rows;
        cost +=
            (double)lk_held_count(kv, s.pos, s.end) *
            ((double)level->block_bytes / (block_rows * level->n_part * level->n_head) + row_cost);
    }
    return cost;
}

int64_t lk_partition_range(const struct lk_attn *attn, const struct lk_partition *p, int range) {
    /* Bytes of K, or of V, that could be read in the time of multiplying a row with a query. */
    enum { QUERY_COST = 5 };
    if (range == 0) return p->first;
    if (range == p->n_range) return p->end;
    double row_cost = QUERY_COST * p->n_query, share = (double)range / p->n_range;
    double target =
        (1 - share) *
            (cost_before(attn->k, p->first, row_cost) + cost_before(attn->v, p->first, row_cost)) +
        share * (cost_before(attn->k, p->end, row_cost) + cost_before(attn->v, p->end, row_cost));
    int64_t from = p->first, to = p->end;
    while (to - from >= LK_TILE) {
        int64_t pos = from + (to - from) / 2;
        if (cost_before(attn->k, pos, row_cost) + cost_before(attn->v, pos, row_cost) < target)
            from = pos;
        else
            to = pos;
    }
    return lk_partition_align(p, to, p->first);
}

struct lk_partition lk_partition_work(const struct lk_attn *attn) {
    const struct lk_kv *k = attn->k;
    struct lk_partition p = {.n_query = attn->n_tok * (attn->n_head / attn->n_head_kv)};

    /* As many KV heads per item as fill half of its room, in whole groups of latents: a prompt's
     * queries share the conversion of a tile, but not with another head's. */
    int unit = lk_attn_head_unit(attn), head_tile = LK_ATTN_QUERIES / 2 / p.n_query / unit * unit;
    if (head_tile > attn->n_head_kv) head_tile = attn->n_head_kv;
    set_tiles(&p, attn->n_head_kv, attn->n_head / attn->n_head_kv,
              head_tile > unit ? head_tile : unit);

    p.grid = find_grid(k);
    int64_t oldest = k->n_tok - attn->n_tok - k->n_swa + 1;
    p.first = k->n_swa > 0 ? lk_partition_align(&p, oldest, k->first) : k->first;
    p.end = k->n_tok;
    int64_t n_chunk = (lk_held_count(k, p.first, p.end) + LK_ATTN_CHUNK - 1) / LK_ATTN_CHUNK;
    p.n_range = count_ranges(p.n_head_tile * p.n_query_tile, attn->n_thread);
    if (p.n_range > n_chunk) p.n_range = n_chunk > 0 ? (int)n_chunk : 1; /* no row is held here */
    return p;
}

int lk_partition_chunk(const struct lk_attn *attn, const struct lk_partition *p) {
    enum { MAX_PREFETCH = 64 << 10 };
    const struct lk_kv *k = attn->k;
    int preferred = attn->kernels->chunk, largest = 0;
    for (int level = 1; level < k->n_level; level++)
        if (k->count[level].rows > k->count[largest].rows) largest = level;
    size_t bytes = k->level[largest].block_bytes / k->level[largest].n_part * p->head_tile *
                   preferred / k->rule[largest].block_rows;
    bool few = p->head_tile * p->n_query <= LK_ATTN_QUERIES / 4;
    return preferred && few && bytes <= MAX_PREFETCH ? preferred : LK_ATTN_CHUNK;
}

size_t lk_partition_max_partials(int group, int n_head_kv, int n_tok, int n_thread) {
    size_t max = 0;
    for (int t = 1; t <= n_tok; t++)
        for (int head_tile = 1; head_tile <= n_head_kv && head_tile <= LK_ATTN_QUERIES;
             head_tile++) {
            struct lk_partition p = {.n_query = t * group};
            set_tiles(&p, n_head_kv, group, head_tile);
            size_t n = (size_t)count_ranges(p.n_head_tile * p.n_query_tile, n_thread) * t;
            if (max < n) max = n;
        }
    return max;
}
