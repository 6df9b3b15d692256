#include "attention/partition.h"

#include "attention/latents.h"

static int ceil_div(int a, int b) { return (a + b - 1) / b; }

/* Ranges of n_other items each: as few as keep n_thread threads busy for 95 % of the turns that the items
 * take, because every item has work of its own besides its rows. */
static int most_ranges(int n_other, int n_thread) {
    int n = 1;
    for (; n < 2 * n_thread; n++) {
        int turns = n_thread * ceil_div(n * n_other, n_thread);
        if (20 * n * n_other >= 19 * turns) break;
    }
    return n;
}

/* Spans of `span` KV heads, with n_query queries each. */
static void cut_queries(struct lk_partition *cut, int n_head_kv, int span) {
    cut->span = span < LK_ATTN_QUERIES ? span : LK_ATTN_QUERIES;
    cut->n_span = ceil_div(n_head_kv, cut->span);
    cut->qtile = LK_ATTN_QUERIES / cut->span;
    cut->n_qtile = ceil_div(cut->n_query, cut->qtile);
}

/* Where the largest level's first block begins: chunks that end on its tiles cut few of them. */
static int64_t grid_of(const struct lk_kv *kv) {
    int64_t level_first = kv->first, most = -1, grid = 0;
    for (int i = 0; i < kv->n_level; level_first += kv->fill[i].rows, i++)
        if (kv->fill[i].rows > most) {
            most = kv->fill[i].rows;
            grid = level_first - kv->fill[i].skip;
        }
    return grid;
}

int64_t lk_partition_on_grid(const struct lk_partition *cut, int64_t pos, int64_t least) {
    int64_t beyond = (pos - cut->grid) % LK_TILE;
    pos -= beyond < 0 ? beyond + LK_TILE : beyond;
    return pos < least ? least : pos;
}

/* What a stream's rows before `pos` cost, in bytes read: their own, and `each` more for a row. */
static double cost_before(const struct lk_kv *kv, int64_t pos, double each) {
    int64_t level_first = kv->first;
    double cost = 0;
    for (int i = 0; i < kv->n_level && level_first < pos; level_first += kv->fill[i].rows, i++) {
        const struct lk_level *level = &kv->level[i];
        int64_t rows = kv->fill[i].rows < pos - level_first ? kv->fill[i].rows : pos - level_first;
        if (rows > 0)
            cost += (double)rows *
                    ((double)level->head_bytes / (kv->rule[i].block_rows * level->n_head) + each);
    }
    return cost;
}

int64_t lk_partition_range(const struct lk_attn *attn, const struct lk_partition *cut, int range) {
    enum {
        QUERY = 5
    }; /* bytes of K, or of V, that are read while a row is multiplied with a query */
    if (range == 0) return cut->first;
    if (range == cut->n_range) return cut->end;
    double each = QUERY * cut->n_query, share = (double)range / cut->n_range;
    double wanted =
        (1 - share) *
            (cost_before(attn->k, cut->first, each) + cost_before(attn->v, cut->first, each)) +
        share * (cost_before(attn->k, cut->end, each) + cost_before(attn->v, cut->end, each));
    int64_t from = cut->first, to = cut->end;
    while (to - from >= LK_TILE) {
        int64_t pos = from + (to - from) / 2;
        if (cost_before(attn->k, pos, each) + cost_before(attn->v, pos, each) < wanted)
            from = pos;
        else
            to = pos;
    }
    return lk_partition_on_grid(cut, to, cut->first);
}

/* KV heads of an item: as many as there is room for, whole groups of latents. */
static int span_of(const struct lk_attn *attn, int n_query) {
    int unit = lk_attn_span(attn), fit = LK_ATTN_QUERIES / n_query / unit * unit;
    if (fit > attn->n_head_kv) fit = attn->n_head_kv;
    return fit > unit ? fit : unit;
}

struct lk_partition lk_partition_work(const struct lk_attn *attn) {
    struct lk_partition cut = {.n_query = attn->n_tok * (attn->n_head / attn->n_head_kv)};
    cut_queries(&cut, attn->n_head_kv, span_of(attn, cut.n_query));
    cut.grid = grid_of(attn->k);
    int64_t n_tok = attn->k->n_tok, oldest = n_tok - attn->n_tok - attn->k->n_swa + 1;
    cut.first =
        attn->k->n_swa > 0 ? lk_partition_on_grid(&cut, oldest, attn->k->first) : attn->k->first;
    cut.end = n_tok;
    int64_t n_chunk = (n_tok - cut.first + LK_ATTN_CHUNK - 1) / LK_ATTN_CHUNK;
    cut.n_range = most_ranges(cut.n_span * cut.n_qtile, attn->n_thread);
    if (cut.n_range > n_chunk) cut.n_range = (int)n_chunk;
    return cut;
}

int lk_attn_ranges(const struct lk_attn *attn, const struct lk_kv *k, const struct lk_kv *v) {
    struct lk_attn call = *attn;
    call.k = k;
    call.v = v;
    return lk_partition_work(&call).n_range;
}

int lk_partition_chunk(const struct lk_attn *attn, const struct lk_partition *cut) {
    enum { MOST_AHEAD = 64 << 10 };
    const struct lk_kv *k = attn->k;
    int wanted = attn->kernels->chunk, most = 0;
    for (int level = 1; level < k->n_level; level++)
        if (k->fill[level].rows > k->fill[most].rows) most = level;
    size_t bytes = k->level[most].head_bytes * cut->span * wanted / k->rule[most].block_rows;
    return wanted == 0 || cut->span * cut->n_query > LK_ATTN_QUERIES / 2 || bytes > MOST_AHEAD
               ? LK_ATTN_CHUNK
               : wanted;
}

size_t lk_attn_partial_floats(int n_head, int n_head_kv, int d_head, int n_tok, int n_thread) {
    size_t most = 0;
    for (int t = 1; t <= n_tok; t++)
        for (int span = 1; span <= n_head_kv && span <= LK_ATTN_QUERIES; span++) {
            struct lk_partition cut = {.n_query = t * (n_head / n_head_kv)};
            cut_queries(&cut, n_head_kv, span);
            size_t n = (size_t)most_ranges(cut.n_span * cut.n_qtile, n_thread) * t;
            if (most < n) most = n;
        }
    return most * n_head * (d_head + 2);
}
