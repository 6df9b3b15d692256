#include "attn/attn.h"

#include <math.h>
#include <string.h>

/* How the work of one call is cut. */
struct cut {
    int     n_query;   /* queries of one KV head: n_tok * group, ordered [token][head of group] */
    int     n_qtile, n_range;
    int64_t first, rows_per_range; /* ranges of positions from `first` on, multiples of the chunk */
    int64_t grid;      /* tiles of K's largest level begin at grid, grid + LK_TILE, ...         */
};

static int ceil_div(int a, int b) { return (a + b - 1) / b; }

static int most_ranges(int n_head_kv, int n_qtile, int n_thread) {
    int n = ceil_div(4 * n_thread, n_head_kv * n_qtile);
    return n_thread == 1 ? 1 : n;
}

/* Where the largest level's first block begins: chunks that end on its tiles cut few of them. */
static int64_t grid_of(const struct lk_stream *stream) {
    int64_t level_first = stream->first, most = -1, grid = 0;
    for (int i = 0; i < stream->n_level; level_first += stream->fill[i].rows, i++)
        if (stream->fill[i].rows > most) {
            most = stream->fill[i].rows;
            grid = level_first - stream->fill[i].skip;
        }
    return grid;
}

/* The last position of the grid that is not after pos, or `least` where that is later. */
static int64_t on_grid(const struct cut *cut, int64_t pos, int64_t least) {
    int64_t beyond = (pos - cut->grid) % LK_TILE;
    pos -= beyond < 0 ? beyond + LK_TILE : beyond;
    return pos < least ? least : pos;
}

static struct cut cut_work(const struct lk_attn *attn) {
    struct cut cut = {.n_query = attn->n_tok * (attn->n_head / attn->n_head_kv)};
    cut.n_qtile = ceil_div(cut.n_query, LK_ATTN_QUERIES);
    cut.grid = grid_of(attn->k);
    int64_t n_tok = attn->k->n_tok, oldest = n_tok - attn->n_tok - attn->k->n_swa + 1;
    cut.first = attn->k->n_swa > 0 ? on_grid(&cut, oldest, attn->k->first) : attn->k->first;
    int64_t n_chunk = (n_tok - cut.first + LK_ATTN_CHUNK - 1) / LK_ATTN_CHUNK;
    int n_range = most_ranges(attn->n_head_kv, cut.n_qtile, attn->n_thread);
    if (n_range > n_chunk) n_range = (int)n_chunk;
    int64_t chunks = (n_chunk + n_range - 1) / n_range;
    cut.rows_per_range = chunks * LK_ATTN_CHUNK;
    cut.n_range = (int)((n_chunk + chunks - 1) / chunks);
    return cut;
}

size_t lk_attn_partial_floats(int n_head, int n_head_kv, int d_head, int n_tok, int n_thread) {
    size_t most = 0;
    for (int t = 1; t <= n_tok; t++) {
        int n_query = t * (n_head / n_head_kv);
        size_t n = (size_t)most_ranges(n_head_kv, ceil_div(n_query, LK_ATTN_QUERIES), n_thread) * t;
        if (most < n) most = n;
    }
    return most * n_head * (d_head + 2);
}

enum { PAD = LK_TILE }; /* room for what kernels write past a tile's rows */

struct scratch {
    float *score;   /* [LK_ATTN_QUERIES][PAD + LK_ATTN_CHUNK + PAD] */
    float *tile;    /* [LK_ATTN_QUERIES][LK_TILE] */
    float *query;   /* [LK_ATTN_QUERIES][d_head] in a level's domain */
    float *form;    /* memory of struct lk_queries */
    float *acc;     /* [LK_MAX_STREAM_LEVEL][LK_ATTN_QUERIES][d_head] in the levels' domains */
    float *max, *sum; /* [LK_ATTN_QUERIES] */
};

static size_t form_floats(int d_head) { return (lk_queries_bytes(LK_ATTN_QUERIES, d_head) + 63) / 64 * 16; }

enum { SCORE_STRIDE = PAD + LK_ATTN_CHUNK + PAD };

size_t lk_attn_scratch_floats(int d_head) {
    size_t n = LK_ATTN_QUERIES * (SCORE_STRIDE + LK_TILE + 2) + form_floats(d_head) +
               (size_t)LK_ATTN_QUERIES * d_head * (1 + LK_MAX_STREAM_LEVEL);
    return (n + 15) / 16 * 16;
}

static struct scratch divide(float *mem, int d_head) {
    struct scratch s;
    s.form = mem;
    s.score = s.form + form_floats(d_head);
    s.tile = s.score + LK_ATTN_QUERIES * SCORE_STRIDE;
    s.query = s.tile + LK_ATTN_QUERIES * LK_TILE;
    s.acc = s.query + (size_t)LK_ATTN_QUERIES * d_head;
    s.max = s.acc + (size_t)LK_ATTN_QUERIES * d_head * LK_MAX_STREAM_LEVEL;
    s.sum = s.max + LK_ATTN_QUERIES;
    return s;
}

/* One item: queries [q0, q0 + n_q) of KV head `head` over positions [from, to). */
struct item {
    const struct lk_attn *attn;
    struct scratch        mem;
    int                   head, q0, n_q;
    int64_t               from, to;
    int                   k_level;     /* level whose form of the queries is in mem.form; -1: none */
    struct lk_queries     queries;
    bool                  used[LK_MAX_STREAM_LEVEL]; /* V levels that mem.acc has something of */
};

static const float *query_of(const struct item *item, int i) {
    const struct lk_attn *attn = item->attn;
    int group = attn->n_head / attn->n_head_kv, q = item->q0 + i;
    return attn->q + ((size_t)(q / group) * attn->n_head + (size_t)item->head * group + q % group) * attn->d_head;
}

static const float *sigma_of(const struct item *item, const struct lk_stream *stream, int level) {
    return stream->rule[level].codec.sigma ? stream->sigma + (size_t)item->head * item->attn->d_head : NULL;
}

static void prepare_queries(struct item *item, int level) {
    const struct lk_attn *attn = item->attn;
    const struct lk_codec *codec = &attn->k->rule[level].codec;
    const struct lk_codec *before = item->k_level < 0 ? NULL : &attn->k->rule[item->k_level].codec;
    bool exact = codec->coding == LK_F16; /* such rows are multiplied with the floats themselves */
    if (before && lk_codec_same_domain(before, codec) && exact == (before->coding == LK_F16)) return;
    for (int i = 0; i < item->n_q; i++)
        lk_codec_query(codec, attn->d_head, sigma_of(item, attn->k, level), query_of(item, i),
                       item->mem.query + (size_t)i * attn->d_head);
    if (exact) item->queries = (struct lk_queries){.n_q = item->n_q, .d_head = attn->d_head, .q = item->mem.query};
    else lk_queries_prepare(&item->queries, item->mem.query, item->n_q, attn->d_head, item->mem.form);
    item->k_level = level;
}

/* How many blocks after a tile the one lies that is asked for while it is worked on (docs/performance.md). */
enum { AHEAD = 3 };

/* A tile of a level that overlaps positions [from, to): *at is the position of its first row.
 * `pos` is a position of the level inside [from, to). Returns the position after the tile's last row. */
static int64_t tile_at(const struct item *item, const struct lk_stream *stream, int level, int64_t level_first,
                       int64_t pos, struct lk_tile *tile, int64_t *at) {
    int row;
    int64_t n;
    const char *block = lk_cache_locate(stream, level, pos - level_first, &row, &n);
    int row0 = row / LK_TILE * LK_TILE;
    int64_t rows = row - row0 + n;
    *tile = (struct lk_tile){.codec = &stream->rule[level].codec,
                             .head = block + item->head * stream->level[level].head_bytes,
                             .sigma = sigma_of(item, stream, level),
                             .d_head = item->attn->d_head,
                             .block_rows = stream->rule[level].block_rows,
                             .row0 = row0,
                             .n = (int)(rows < LK_TILE ? rows : LK_TILE)};
    int64_t later = pos - level_first + n + (int64_t)(AHEAD - 1) * tile->block_rows;
    if (row0 + tile->n == tile->block_rows && later < stream->fill[level].rows) {
        int first_row;
        int64_t rest;
        const char *after = lk_cache_locate(stream, level, later, &first_row, &rest);
        tile->next = after + item->head * stream->level[level].head_bytes;
    }
    *at = pos - (row - row0);
    return *at + tile->n;
}

/* Scores of positions [a, b): mem.score[i][PAD + (pos - a)]. */
static void score_chunk(struct item *item, int64_t a, int64_t b) {
    const struct lk_attn *attn = item->attn;
    const struct lk_stream *k = attn->k;
    int64_t level_first = k->first;
    for (int level = 0; level < k->n_level; level_first += k->fill[level].rows, level++) {
        int64_t end = level_first + k->fill[level].rows, pos = level_first > a ? level_first : a;
        if (end > b) end = b;
        if (pos >= end) continue;
        prepare_queries(item, level);
        while (pos < end) {
            struct lk_tile tile;
            int64_t at, next = tile_at(item, k, level, level_first, pos, &tile, &at);
            if (next > end) next = end;
            if (at == pos) { /* what is written past the tile's rows is overwritten by the next one, or padding */
                attn->kern->score(&tile, &item->queries, item->mem.score + PAD + (pos - a), SCORE_STRIDE);
            } else {
                attn->kern->score(&tile, &item->queries, item->mem.tile, LK_TILE);
                for (int i = 0; i < item->n_q; i++)
                    memcpy(item->mem.score + (size_t)i * SCORE_STRIDE + PAD + (pos - a), item->mem.tile + i * LK_TILE + (pos - at),
                           (next - pos) * sizeof(float));
            }
            pos = next;
        }
    }
}

static void scale_row(float *row, int n, float factor) {
    for (int c = 0; c < n; c++) row[c] *= factor;
}

/* Positions [*first, *last) that query i sees. */
static void visible(const struct item *item, int i, int64_t *first, int64_t *last) {
    const struct lk_attn *attn = item->attn;
    int group = attn->n_head / attn->n_head_kv, q = item->q0 + i;
    int64_t pos = attn->k->n_tok - attn->n_tok + q / group; /* the query's own position */
    *first = attn->k->first;
    if (attn->k->n_swa > 0 && pos - attn->k->n_swa + 1 > *first) *first = pos - attn->k->n_swa + 1;
    *last = pos + 1;
}

/* Add ALiBi's bias, where there is one, to scores s of query i for the n positions from `first` on. */
static void add_bias(const struct item *item, int i, float *s, int64_t first, int n) {
    const struct lk_attn *attn = item->attn;
    if (!(attn->alibi_max_bias > 0)) return;
    int group = attn->n_head / attn->n_head_kv, q = item->q0 + i;
    int64_t pos = attn->k->n_tok - attn->n_tok + q / group;
    float slope = lk_alibi_slope(item->head * group + q % group, attn->n_head, attn->alibi_max_bias) / attn->scale;
    for (int t = 0; t < n; t++) s[t] += slope * (float)(first + t - pos);
}

/* Online softmax of query i over the chunk: scores become weights, sums of what went before shrink. */
static void softmax_chunk(struct item *item, int i, int64_t a, int64_t b) {
    const struct lk_attn *attn = item->attn;
    int64_t first, last;
    visible(item, i, &first, &last);
    if (first < a) first = a;
    if (last > b) last = b;
    float *s = item->mem.score + (size_t)i * SCORE_STRIDE + PAD;
    int n = (int)(b - a), lo = (int)(first - a), hi = (int)(last - a);
    if (lo >= hi) {
        memset(s, 0, n * sizeof *s);
        return;
    }
    add_bias(item, i, s + lo, first, hi - lo);
    float max = attn->kern->max(s + lo, hi - lo) * attn->scale;
    if (max > item->mem.max[i]) {
        float shrink = expf(item->mem.max[i] - max);
        item->mem.max[i] = max;
        item->mem.sum[i] *= shrink;
        for (int level = 0; level < attn->v->n_level; level++)
            if (item->used[level]) scale_row(item->mem.acc + ((size_t)level * LK_ATTN_QUERIES + i) * attn->d_head, attn->d_head, shrink);
    }
    item->mem.sum[i] += attn->kern->exp_sum(s + lo, hi - lo, attn->scale, item->mem.max[i]);
    memset(s, 0, lo * sizeof *s);
    memset(s + hi, 0, (n - hi) * sizeof *s);
}

/* Add the chunk's weighted values to the levels' accumulators. */
static void accumulate_chunk(struct item *item, int64_t a, int64_t b) {
    const struct lk_attn *attn = item->attn;
    const struct lk_stream *v = attn->v;
    int64_t level_first = v->first;
    for (int level = 0; level < v->n_level; level_first += v->fill[level].rows, level++) {
        int64_t end = level_first + v->fill[level].rows, pos = level_first > a ? level_first : a;
        if (end > b) end = b;
        if (pos >= end) continue;
        float *acc = item->mem.acc + (size_t)level * LK_ATTN_QUERIES * attn->d_head;
        if (!item->used[level]) memset(acc, 0, (size_t)item->n_q * attn->d_head * sizeof *acc);
        item->used[level] = true;
        while (pos < end) {
            struct lk_tile tile;
            int64_t at, next = tile_at(item, v, level, level_first, pos, &tile, &at);
            bool whole = at == pos && next <= end && tile.n == LK_TILE;
            if (next > end) next = end;
            if (whole) {
                attn->kern->accumulate(&tile, item->mem.score + PAD + (pos - a), SCORE_STRIDE, item->n_q, acc);
            } else {
                memset(item->mem.tile, 0, item->n_q * LK_TILE * sizeof(float));
                for (int i = 0; i < item->n_q; i++)
                    memcpy(item->mem.tile + i * LK_TILE + (pos - at), item->mem.score + (size_t)i * SCORE_STRIDE + PAD + (pos - a),
                           (next - pos) * sizeof(float));
                attn->kern->accumulate(&tile, item->mem.tile, LK_TILE, item->n_q, acc);
            }
            pos = next;
        }
    }
}

/* Partial of (range, token, head): d_head floats of acc, then max and sum. */
static float *partial_of(const struct lk_attn *attn, int range, int head, int q) {
    int group = attn->n_head / attn->n_head_kv;
    size_t row = ((size_t)range * attn->n_tok + q / group) * attn->n_head + head * group + q % group;
    return attn->partial + row * (attn->d_head + 2);
}

/* out += the sum acc of a V level's domain, brought back. */
static void add_output(const struct item *item, int level, float *acc, float *out) {
    const struct lk_attn *attn = item->attn;
    lk_codec_output(&attn->v->rule[level].codec, attn->d_head, sigma_of(item, attn->v, level), acc, acc);
    for (int c = 0; c < attn->d_head; c++) out[c] += acc[c];
}

static void finish_item(struct item *item, int range) {
    const struct lk_attn *attn = item->attn;
    const struct lk_stream *v = attn->v;
    int d = attn->d_head, last = 0;
    for (int i = 0; i < item->n_q; i++) {
        float *out = partial_of(attn, range, item->head, item->q0 + i), *sum = NULL; /* sum: of level `last` and its like before */
        memset(out, 0, d * sizeof *out);
        for (int level = 0; level < v->n_level; level++) {
            if (!item->used[level]) continue;
            float *acc = item->mem.acc + ((size_t)level * LK_ATTN_QUERIES + i) * d;
            bool same = sum && lk_codec_same_domain(&v->rule[last].codec, &v->rule[level].codec);
            for (int c = 0; same && c < d; c++) acc[c] += sum[c];
            if (sum && !same) add_output(item, last, sum, out);
            sum = acc;
            last = level;
        }
        if (sum) add_output(item, last, sum, out);
        out[d] = item->mem.max[i];
        out[d + 1] = item->mem.sum[i];
    }
}

/* Give the item its queries and the part of a range that they see. */
static void set_item(struct item *item, const struct cut *cut, int head, int range, int qtile) {
    const struct lk_attn *attn = item->attn;
    const struct lk_stream *k = attn->k;
    int group = attn->n_head / attn->n_head_kv;
    item->head = head;
    item->q0 = qtile * LK_ATTN_QUERIES;
    item->n_q = cut->n_query - item->q0 < LK_ATTN_QUERIES ? cut->n_query - item->q0 : LK_ATTN_QUERIES;
    int64_t pos = k->n_tok - attn->n_tok, end = pos + (item->q0 + item->n_q - 1) / group + 1;
    int64_t from = cut->first + range * cut->rows_per_range, oldest = pos + item->q0 / group - k->n_swa + 1;
    item->from = range > 0 ? on_grid(cut, from, cut->first) : from;
    item->to = range + 1 < cut->n_range ? on_grid(cut, from + cut->rows_per_range, cut->first) : k->n_tok;
    if (item->to > end) item->to = end;
    if (k->n_swa > 0) item->from = on_grid(cut, oldest, item->from);
    item->k_level = -1;
    memset(item->used, 0, sizeof item->used);
    for (int q = 0; q < item->n_q; q++) {
        item->mem.max[q] = -INFINITY;
        item->mem.sum[q] = 0;
    }
}

void lk_attn_items(const struct lk_attn *attn, int ith, int nth) {
    struct cut cut = cut_work(attn);
    int n_item = attn->n_head_kv * cut.n_qtile * cut.n_range;
    struct item item = {.attn = attn};
    item.mem = divide(attn->scratch + ith * lk_attn_scratch_floats(attn->d_head), attn->d_head);
    for (int i = (ith + nth - attn->turn % nth) % nth; i < n_item; i += nth) {
        int range = i / attn->n_head_kv % cut.n_range;
        set_item(&item, &cut, i % attn->n_head_kv, range, i / attn->n_head_kv / cut.n_range);
        for (int64_t a = item.from, b; a < item.to; a = b) {
            b = a + LK_ATTN_CHUNK < item.to ? on_grid(&cut, a + LK_ATTN_CHUNK, a + 1) : item.to;
            score_chunk(&item, a, b);
            for (int q = 0; q < item.n_q; q++) softmax_chunk(&item, q, a, b);
            accumulate_chunk(&item, a, b);
        }
        finish_item(&item, range);
    }
}

int lk_attn_ranges(const struct lk_attn *attn, const struct lk_stream *k) {
    struct lk_attn call = *attn;
    call.k = k;
    return cut_work(&call).n_range;
}

void lk_attn_combine(const struct lk_attn *attn, int n_range, int ith, int nth) {
    int d = attn->d_head, group = attn->n_head / attn->n_head_kv;
    for (int row = (ith + nth - attn->turn % nth) % nth; row < attn->n_tok * attn->n_head; row += nth) {
        int tok = row / attn->n_head, head = row % attn->n_head;
        int q = tok * group + head % group;
        float *out = attn->out + (size_t)row * d, max = -INFINITY, sum = 0;
        for (int r = 0; r < n_range; r++) max = fmaxf(max, partial_of(attn, r, head / group, q)[d]);
        memset(out, 0, d * sizeof *out);
        for (int r = 0; r < n_range; r++) {
            const float *part = partial_of(attn, r, head / group, q);
            float weight = expf(part[d] - max);
            sum += weight * part[d + 1];
            for (int c = 0; c < d; c++) out[c] += weight * part[c];
        }
        scale_row(out, d, 1 / sum);
    }
}

/* Scores of item->n_q queries over all positions from `first` on, into rows of weight [n_q][k->n_tok]. */
static void score_rows(struct item *item, int64_t first, float *weight) {
    int64_t n_pos = item->attn->k->n_tok;
    for (int64_t a = first; a < n_pos; a += LK_ATTN_CHUNK) {
        int64_t b = a + LK_ATTN_CHUNK < n_pos ? a + LK_ATTN_CHUNK : n_pos;
        score_chunk(item, a, b);
        for (int i = 0; i < item->n_q; i++)
            memcpy(weight + i * n_pos + a, item->mem.score + (size_t)i * SCORE_STRIDE + PAD, (b - a) * sizeof *weight);
    }
}

void lk_attn_weights(const struct lk_attn *attn, int tok, float *weight) {
    int group = attn->n_head / attn->n_head_kv;
    int64_t n_pos = attn->k->n_tok, seen = cut_work(attn).first;
    struct item item = {.attn = attn, .mem = divide(attn->scratch, attn->d_head)};
    for (item.head = 0; item.head < attn->n_head_kv; item.head++) {
        for (item.q0 = tok * group; item.q0 < (tok + 1) * group; item.q0 += item.n_q) {
            int left = (tok + 1) * group - item.q0;
            item.n_q = left < LK_ATTN_QUERIES ? left : LK_ATTN_QUERIES;
            item.k_level = -1;
            score_rows(&item, seen, weight);
            for (int i = 0; i < item.n_q; i++, weight += n_pos) {
                int64_t first, last;
                visible(&item, i, &first, &last);
                float *s = weight + first;
                int n = (int)(last - first);
                add_bias(&item, i, s, first, n);
                scale_row(s, n, 1 / attn->kern->exp_sum(s, n, attn->scale, attn->kern->max(s, n) * attn->scale));
                memset(weight, 0, first * sizeof *weight);
                memset(weight + last, 0, (n_pos - last) * sizeof *weight);
            }
        }
    }
}

float lk_alibi_slope(int head, int n_head, float max_bias) {
    int whole = 1;
    while (whole * 2 <= n_head) whole *= 2;
    if (head < whole) return powf(2.0f, -max_bias / whole * (head + 1));
    return powf(2.0f, -max_bias / 2 / whole * (2 * (head - whole) + 1));
}
