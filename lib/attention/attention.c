#include "attention/attention.h"

#include "attention/latents.h"
#include "attention/partition.h"
#include "attention/runs.h"
#include "attention/score_pre.h"

#include <math.h>
#include <string.h>

enum { PAD = LK_TILE }; /* room for what kernels write past a tile's rows */

struct scratch {
    /* [queries][PAD + chunk + PAD]: LK_ATTN_QUERIES with the least chunk, half as many with longer ones */
    float *score;
    float *tile;      /* [LK_ATTN_QUERIES][LK_TILE] */
    float *query;     /* [LK_ATTN_QUERIES][d_head] in a level's domain */
    float *form;      /* memory of struct lk_queries */
    float *acc;       /* [LK_MAX_KV_LEVEL][LK_ATTN_QUERIES][d_head] in the levels' domains */
    float *max, *sum; /* [LK_ATTN_QUERIES] */
    float *mean; /* [LK_ATTN_QUERIES] weights of rows whose mean is kept apart (latents of V) */
};

static size_t form_floats(int d_head) {
    return (lk_queries_bytes(LK_ATTN_QUERIES, d_head) + 63) / 64 * 16;
}

enum { SCORES = LK_ATTN_QUERIES * (PAD + LK_ATTN_CHUNK + PAD) };

_Static_assert(LK_ATTN_QUERIES / 2 * (PAD + LK_MAX_KERNEL_CHUNK + PAD) <= SCORES,
               "the longest chunk has room");

size_t lk_attn_scratch_floats(int d_head) {
    size_t n = SCORES + LK_ATTN_QUERIES * (LK_TILE + 3) + form_floats(d_head) +
               (size_t)LK_ATTN_QUERIES * d_head * (1 + LK_MAX_KV_LEVEL);
    return (n + 15) / 16 * 16;
}

static struct scratch divide(float *mem, int d_head) {
    struct scratch s;
    s.form = mem;
    s.score = s.form + form_floats(d_head);
    s.tile = s.score + SCORES;
    s.query = s.tile + LK_ATTN_QUERIES * LK_TILE;
    s.acc = s.query + (size_t)LK_ATTN_QUERIES * d_head;
    s.max = s.acc + (size_t)LK_ATTN_QUERIES * d_head * LK_MAX_KV_LEVEL;
    s.sum = s.max + LK_ATTN_QUERIES;
    s.mean = s.sum + LK_ATTN_QUERIES;
    return s;
}

/* One item: queries [q0, q0 + n_each) of each of the KV heads [head, head + n_span), one head's after the
 * other's, over positions [from, to). Levels that keep heads apart are read head by head; a tile of latents
 * that several heads share is read once for all of them. */
struct item {
    const struct lk_attn *attn;
    struct scratch mem;
    int head, n_span, q0, n_each, n_q;
    int chunk;     /* positions of a chunk */
    size_t stride; /* of a query's scores */
    int d;         /* room for a query or sum in mem: the widest part */
    int64_t from, to;
    int k_level; /* level whose form of the queries is in mem.form; -1: none */
    struct lk_queries queries;
    bool used[LK_MAX_KV_LEVEL]; /* V levels that mem.acc has something of */
};

/* Let the item have n queries, and chunks for which there is room with as many. */
static void set_queries(struct item *item, int n, int chunk) {
    item->n_q = n;
    item->chunk = chunk;
    item->stride = PAD + (size_t)chunk + PAD;
}

static int head_of(const struct item *item, int i) { return item->head + i / item->n_each; }
static int query_in_head(const struct item *item, int i) { return item->q0 + i % item->n_each; }

static const float *query_of(const struct item *item, int i) {
    const struct lk_attn *attn = item->attn;
    int group = attn->n_head / attn->n_head_kv, q = query_in_head(item, i);
    return attn->q +
           ((size_t)(q / group) * attn->n_head + (size_t)head_of(item, i) * group + q % group) *
               attn->d_head;
}

static void prepare_queries(struct item *item, int level) {
    const struct lk_attn *attn = item->attn;
    const struct lk_codec *codec = &attn->k->rule[level].codec,
                          *before = item->k_level < 0 ? NULL : &attn->k->rule[item->k_level].codec;
    const struct lk_level *of = &attn->k->level[level];
    bool exact = codec->coding == LK_F16; /* such rows are multiplied with the floats themselves */
    bool shift = attn->k->rule[level].shift, shifted = before && attn->k->rule[item->k_level].shift;
    if (before && lk_attn_same_domain(attn->k, item->k_level, level) &&
        exact == (before->coding == LK_F16) && shift == shifted)
        return;
    struct lk_rope_view view = {.set = false};
    if (shift && attn->rope) lk_rope_view_move(attn->rope, &view, attn->k->first);
    for (int i = 0; i < item->n_q; i++) {
        int head = head_of(item, i);
        float *q = item->mem.query + (size_t)i * of->d_part, turned[LK_MAX_D_HEAD];
        const float *rows = query_of(item, i);
        if (view.set)
            lk_rope_view_apply(attn->rope, &view, rows, attn->d_head, turned), rows = turned;
        if (of->basis)
            lk_project_query(of->basis, head / of->n_head, head % of->n_head, attn->d_head,
                             of->d_part, rows, q);
        lk_codec_query(codec, of->d_part, lk_sigma_of(attn->k, level, head / of->n_head),
                       of->basis ? q : rows, q);
    }
    if (exact)
        item->queries =
            (struct lk_queries){.n_q = item->n_q, .d_head = of->d_part, .q = item->mem.query};
    else
        lk_queries_prepare(&item->queries, item->mem.query, item->n_q, of->d_part, item->mem.form);
    item->k_level = level;
}

/* The item's queries of those KV heads that part `part` of a level holds: [*first, *first + returned). */
static int queries_of_part(const struct item *item, const struct lk_level *level, int part,
                           int *first) {
    int from = part * level->n_head, to = from + level->n_head;
    if (from < item->head) from = item->head;
    if (to > item->head + item->n_span) to = item->head + item->n_span;
    *first = (from - item->head) * item->n_each;
    return (to - from) * item->n_each;
}

/* Add to scores of n_row rows what their mean adds, where latents have one: q.mean, for queries [first, first + n). */
static void add_mean(const struct item *item, const struct lk_level *level, int first, int n,
                     float *score, int64_t n_row) {
    for (int i = first; level->basis && level->basis->mean && i < first + n;
         i++, score += item->stride) {
        int head = head_of(item, i), d = item->attn->d_head;
        const float *mean =
                        lk_basis_mean(level->basis, head / level->n_head, head % level->n_head, d),
                    *q = query_of(item, i);
        float more = 0;
        for (int c = 0; c < d; c++) more += q[c] * mean[c];
        for (int64_t t = 0; t < n_row; t++) score[t] += more;
    }
}

/* Scores of rows for those queries of a part, from query `first` on, by whatever the part is. at: the first row's position. */
static void score_part(const struct item *item, const struct lk_level *level,
                       const struct lk_rows *rows, const struct lk_queries *queries,
                       struct lk_rope_view *view, int64_t at, int first, float *score,
                       size_t stride) {
    if (!level->k_up) {
        item->attn->kernels->score(rows, queries, score, stride);
        return;
    }
    if (level->rope) lk_rope_view_move(level->rope, view, at);
    for (int i = first; i < first + queries->n_q; i += item->n_each) {
        const float *q[LK_ATTN_QUERIES];
        for (int j = 0; j < item->n_each; j++) q[j] = query_of(item, i + j);
        lk_attn_score_pre(item->attn, level, head_of(item, i), rows, q, item->n_each, view,
                          score + (i - first) * stride, stride);
    }
}

/* Parts of a level that the item's KV heads are in: [*first, returned). */
static int parts_of(const struct item *item, const struct lk_level *level, int *first) {
    *first = item->head / level->n_head;
    return (item->head + item->n_span - 1) / level->n_head + 1;
}

/* Scores of the rows in slots [slot, slot + n) for the queries that the part serves: of a run that begins with a tile, or of
 * rows within one. at: the first row's true position. */
static void score_rows(const struct item *item, int level, const struct lk_run *run, int part,
                       struct lk_rope_view *view, int64_t at, float *chunk) {
    const struct lk_level *of = &item->attn->k->level[level];
    int first, n_q = queries_of_part(item, of, part, &first), inside = run->inside;
    struct lk_queries queries = lk_queries_some(&item->queries, first, n_q);
    struct lk_rows rows = lk_run_rows(run, part);
    float *score = chunk + (size_t)first * item->stride;
    if (!inside) { /* what is written past the rows is overwritten by the next ones, or padding */
        score_part(item, of, &rows, &queries, view, at, first, score, item->stride);
        return;
    }
    score_part(item, of, &rows, &queries, view, at - inside, first, item->mem.tile, LK_TILE);
    for (int i = 0; i < n_q; i++)
        memcpy(score + (size_t)i * item->stride, item->mem.tile + i * LK_TILE + inside,
               run->n * sizeof(float));
}

/* Scores of positions [pos, end) of a level. */
static void score_level(struct item *item, int level, int64_t level_first, int64_t pos, int64_t end,
                        int64_t a) {
    const struct lk_kv *k = item->attn->k;
    const struct lk_level *of = &k->level[level];
    struct lk_rope_view view = {.set = false};
    int64_t from = pos,
            ahead = level_first -
                    lk_cache_position(k, level, 0,
                                      0); /* of positions of the stream, by what was let go */
    float *score = item->mem.score + PAD;
    struct lk_run run = {.most = of->k_up ? LK_TILE : item->chunk,
                         .chunk = item->chunk}; /* keys are brought back tile by tile */
    int first_part, end_part = parts_of(item, of, &first_part);
    lk_run_begin(&run, k, level, first_part, end_part);
    for (; pos < end; pos += run.n) {
        lk_run_find(&run, pos - level_first, end - level_first);
        for (int part = first_part; part < end_part; part++)
            score_rows(item, level, &run, part, &view, pos - ahead, score + (pos - a));
    }
    for (int part = first_part; !of->k_up && part < end_part; part++) {
        int first, n = queries_of_part(item, of, part, &first);
        add_mean(item, of, first, n, score + (size_t)first * item->stride + (from - a), end - from);
    }
}

/* Positions [*pos, *end) of [a, b) that are in a level whose first row is at level_first; are there any? */
static bool find_in_level(const struct lk_kv *kv, int level, int64_t level_first, int64_t a,
                          int64_t b, int64_t *pos, int64_t *end) {
    *pos = level_first > a ? level_first : a;
    *end = level_first + kv->fill[level].rows;
    if (*end > b) *end = b;
    return *pos < *end;
}

/* Scores of positions [a, b): mem.score[i][PAD + (pos - a)]. */
static void score_chunk(struct item *item, int64_t a, int64_t b) {
    const struct lk_kv *k = item->attn->k;
    int64_t level_first = k->first;
    for (int level = 0; level < k->n_level; level_first += k->fill[level].rows, level++) {
        int64_t pos, end;
        if (!find_in_level(k, level, level_first, a, b, &pos, &end)) continue;
        if (!k->level[level].k_up) prepare_queries(item, level);
        score_level(item, level, level_first, pos, end, a);
    }
}

static void scale_row(float *row, int n, float factor) {
    for (int c = 0; c < n; c++) row[c] *= factor;
}

/* Positions [*first, *last) that query i sees. */
static void visible(const struct item *item, int i, int64_t *first, int64_t *last) {
    const struct lk_attn *attn = item->attn;
    int group = attn->n_head / attn->n_head_kv, q = query_in_head(item, i);
    int64_t pos = attn->k->n_tok - attn->n_tok + q / group; /* the query's own position */
    *first = attn->k->first;
    if (attn->k->n_swa > 0 && pos - attn->k->n_swa + 1 > *first) *first = pos - attn->k->n_swa + 1;
    *last = pos + 1;
}

/* Add ALiBi's bias, where there is one, to scores s of query i for the n positions from `first` on. */
static void add_bias(const struct item *item, int i, float *s, int64_t first, int n) {
    const struct lk_attn *attn = item->attn;
    if (!(attn->alibi_max_bias > 0)) return;
    int group = attn->n_head / attn->n_head_kv, q = query_in_head(item, i);
    int64_t pos = attn->k->n_tok - attn->n_tok + q / group;
    float slope =
        lk_alibi_slope(head_of(item, i) * group + q % group, attn->n_head, attn->alibi_max_bias) /
        attn->scale;
    int64_t level_first = attn->k->first;
    for (int level = 0; level < attn->k->n_level;
         level_first += attn->k->fill[level].rows, level++) {
        int64_t end = level_first + attn->k->fill[level].rows,
                at = level_first > first ? level_first : first;
        bool evict = attn->k->rule[level].limit.policy.keep != LK_POLICY_NONE;
        int64_t shift = attn->k->rule[level].shift ? attn->k->first : 0;
        int64_t distance =
            at < end ? pos - shift -
                           lk_cache_position(attn->k, level, at - level_first, head_of(item, i))
                     : 0;
        for (; at < end && at < first + n; at++, distance--) {
            if (evict)
                distance =
                    pos - lk_cache_position(attn->k, level, at - level_first, head_of(item, i));
            s[at - first] -= slope * (float)distance;
        }
    }
}

/* The sum of a level's values for query i, in the level's domain. */
static float *sum_of(const struct item *item, int level, int i) {
    return item->mem.acc + (size_t)level * LK_ATTN_QUERIES * item->d +
           (size_t)i * item->attn->v->level[level].d_part;
}

/* Online softmax of query i over the chunk: scores become weights, sums of what went before shrink. */
static void softmax_chunk(struct item *item, int i, int64_t a, int64_t b) {
    const struct lk_attn *attn = item->attn;
    int64_t first, last;
    visible(item, i, &first, &last);
    if (first < a) first = a;
    if (last > b) last = b;
    float *s = item->mem.score + (size_t)i * item->stride + PAD;
    int n = (int)(b - a), lo = (int)(first - a), hi = (int)(last - a);
    if (lo >= hi) {
        memset(s, 0, n * sizeof *s);
        return;
    }
    add_bias(item, i, s + lo, first, hi - lo);
    float max = attn->kernels->max(s + lo, hi - lo) * attn->scale;
    if (max > item->mem.max[i]) {
        float shrink = expf(item->mem.max[i] - max);
        item->mem.max[i] = max;
        item->mem.sum[i] *= shrink;
        item->mem.mean[i] *= shrink;
        for (int level = 0; level < attn->v->n_level; level++)
            if (item->used[level])
                scale_row(sum_of(item, level, i), attn->v->level[level].d_part, shrink);
    }
    item->mem.sum[i] += attn->kernels->exp_sum(s + lo, hi - lo, attn->scale, item->mem.max[i]);
    memset(s, 0, lo * sizeof *s);
    memset(s + hi, 0, (n - hi) * sizeof *s);
}

/* Add the weighted values of a run's rows for the queries that the part serves. */
static void accumulate_rows(const struct item *item, int level, const struct lk_run *run, int part,
                            const float *chunk) {
    const struct lk_attn *attn = item->attn;
    int first, n_q = queries_of_part(item, &attn->v->level[level], part, &first);
    struct lk_rows rows = lk_run_rows(run, part);
    const float *weight = chunk + (size_t)first * item->stride;
    float *acc = sum_of(item, level, first);
    if (run->n % LK_TILE == 0) {
        attn->kernels->accumulate(&rows, weight, item->stride, n_q, acc);
        return;
    }
    memset(item->mem.tile, 0,
           n_q * LK_TILE * sizeof(float)); /* within a tile: nothing of what is beside */
    for (int i = 0; i < n_q; i++)
        memcpy(item->mem.tile + i * LK_TILE + run->inside, weight + (size_t)i * item->stride,
               run->n * sizeof(float));
    attn->kernels->accumulate(&rows, item->mem.tile, LK_TILE, n_q, acc);
}

/* What the rows of [pos, end) weigh together, for queries whose part of the level has a mean. */
static void sum_weights(struct item *item, const struct lk_level *level, const float *chunk,
                        int64_t n_row) {
    if (!level->basis || !level->basis->mean) return;
    for (int i = 0; i < item->n_q; i++, chunk += item->stride)
        for (int64_t t = 0; t < n_row; t++) item->mem.mean[i] += chunk[t];
}

/* Add the weighted values of positions [pos, end) of a level. */
static void accumulate_level(struct item *item, int level, int64_t level_first, int64_t pos,
                             int64_t end, int64_t a) {
    const struct lk_kv *v = item->attn->v;
    const float *weight = item->mem.score + PAD;
    struct lk_run run = {.most = item->chunk, .whole = true, .chunk = item->chunk};
    int first_part, end_part = parts_of(item, &v->level[level], &first_part);
    lk_run_begin(&run, v, level, first_part, end_part);
    sum_weights(item, &v->level[level], weight + (pos - a), end - pos);
    for (; pos < end; pos += run.n) {
        lk_run_find(&run, pos - level_first, end - level_first);
        for (int part = first_part; part < end_part; part++)
            accumulate_rows(item, level, &run, part, weight + (pos - a));
    }
}

/* Add the chunk's weighted values to the levels' accumulators. */
static void accumulate_chunk(struct item *item, int64_t a, int64_t b) {
    const struct lk_kv *v = item->attn->v;
    int64_t level_first = v->first;
    for (int level = 0; level < v->n_level; level_first += v->fill[level].rows, level++) {
        const struct lk_level *of = &v->level[level];
        int64_t pos, end;
        if (!find_in_level(v, level, level_first, a, b, &pos, &end)) continue;
        if (!item->used[level])
            memset(sum_of(item, level, 0), 0, (size_t)item->n_q * of->d_part * sizeof(float));
        item->used[level] = true;
        accumulate_level(item, level, level_first, pos, end, a);
    }
}

/* Partial of (range, token, head): d_head floats of acc, then the latents' sum, max and sum. */
static float *partial_of(const struct lk_attn *attn, int n_latent, int range, int head, int q) {
    int group = attn->n_head / attn->n_head_kv;
    size_t row =
        ((size_t)range * attn->n_tok + q / group) * attn->n_head + head * group + q % group;
    return attn->partial + row * (attn->d_head + n_latent + 2);
}

static int count_latents(const struct lk_attn *attn) {
    const struct lk_level *latents = lk_attn_latents(attn->v);
    return latents ? latents->d_part : 0;
}

/* out += the sum acc of a V level's domain, brought back to rows, or to latents behind these. */
static void add_output(const struct item *item, int level, int head, float *acc, float *out) {
    const struct lk_attn *attn = item->attn;
    const struct lk_level *of = &attn->v->level[level];
    lk_codec_output(&attn->v->rule[level].codec, of->d_part,
                    lk_sigma_of(attn->v, level, head / of->n_head), acc, acc);
    if (of->basis) out += attn->d_head;
    for (int c = 0; c < of->d_part; c++) out[c] += acc[c];
}

/* out += the mean of those values whose latents are around it. */
static void add_output_mean(const struct item *item, int i, const struct lk_level *latents,
                            float *out) {
    int d = item->attn->d_head, head = head_of(item, i);
    const float *mean =
        latents ? lk_basis_mean(latents->basis, head / latents->n_head, head % latents->n_head, d)
                : NULL;
    for (int c = 0; mean && c < d; c++) out[c] += item->mem.mean[i] * mean[c];
}

static void finish_item(struct item *item, int range) {
    const struct lk_attn *attn = item->attn;
    const struct lk_kv *v = attn->v;
    int d = attn->d_head, n_latent = count_latents(attn), last = 0;
    for (int i = 0; i < item->n_q; i++) {
        int head = head_of(item, i);
        float *out = partial_of(attn, n_latent, range, head, query_in_head(item, i)),
              *sum = NULL; /* sum: of level `last` and its like before */
        memset(out, 0, (d + n_latent) * sizeof *out);
        for (int level = 0; level < v->n_level; level++) {
            if (!item->used[level]) continue;
            float *acc = sum_of(item, level, i);
            bool same = sum && lk_attn_same_domain(v, last, level);
            for (int c = 0; same && c < v->level[level].d_part; c++) acc[c] += sum[c];
            if (sum && !same) add_output(item, last, head, sum, out);
            sum = acc;
            last = level;
        }
        if (sum) add_output(item, last, head, sum, out);
        add_output_mean(item, i, lk_attn_latents(v), out);
        out[d + n_latent] = item->mem.max[i];
        out[d + n_latent + 1] = item->mem.sum[i];
    }
}

/* Give the item its heads, its queries and the part of a range that they see. */
static void set_item(struct item *item, const struct lk_partition *cut, int chunk, int span,
                     int range, int qtile) {
    const struct lk_attn *attn = item->attn;
    const struct lk_kv *k = attn->k;
    int group = attn->n_head / attn->n_head_kv, left = attn->n_head_kv - span * cut->span;
    item->head = span * cut->span;
    item->n_span = left < cut->span ? left : cut->span;
    item->q0 = qtile * cut->qtile;
    item->n_each = cut->n_query - item->q0 < cut->qtile ? cut->n_query - item->q0 : cut->qtile;
    set_queries(item, item->n_span * item->n_each, chunk);
    int64_t pos = k->n_tok - attn->n_tok, end = pos + (item->q0 + item->n_each - 1) / group + 1;
    int64_t oldest = pos + item->q0 / group - k->n_swa + 1;
    item->from = lk_partition_range(attn, cut, range);
    item->to = lk_partition_range(attn, cut, range + 1);
    if (item->to > end) item->to = end;
    if (k->n_swa > 0) item->from = lk_partition_on_grid(cut, oldest, item->from);
    item->k_level = -1;
    memset(item->used, 0, sizeof item->used);
    for (int q = 0; q < item->n_q; q++) {
        item->mem.max[q] = -INFINITY;
        item->mem.sum[q] = item->mem.mean[q] = 0;
    }
}

void lk_attn_items(const struct lk_attn *attn, int ith, int nth) {
    struct lk_partition cut = lk_partition_work(attn);
    int chunk = lk_partition_chunk(attn, &cut);
    int n_item = cut.n_span * cut.n_qtile * cut.n_range, d = lk_attn_widest(attn);
    struct item item = {
        .attn = attn, .d = d, .mem = divide(attn->scratch + ith * lk_attn_scratch_floats(d), d)};
    struct lk_kernels_state before;
    lk_kernels_enter(attn->kernels, &before);
    for (int i = (ith + nth - attn->turn % nth) % nth; i < n_item; i += nth) {
        int range = i / cut.n_span % cut.n_range;
        set_item(&item, &cut, chunk, i % cut.n_span, range, i / cut.n_span / cut.n_range);
        for (int64_t a = item.from, b; a < item.to; a = b) {
            b = a + chunk < item.to ? lk_partition_on_grid(&cut, a + chunk, a + 1) : item.to;
            score_chunk(&item, a, b);
            for (int q = 0; q < item.n_q; q++) softmax_chunk(&item, q, a, b);
            accumulate_chunk(&item, a, b);
        }
        finish_item(&item, range);
    }
    lk_kernels_leave(attn->kernels, &before);
}

void lk_attn_combine(const struct lk_attn *attn, int n_range, int ith, int nth) {
    const struct lk_level *latents =
        lk_attn_latents(attn->v); /* of a level only what never changes is looked at */
    int n_latent = latents ? latents->d_part : 0, d = attn->d_head, n = d + n_latent,
        group = attn->n_head / attn->n_head_kv;
    for (int row = (ith + nth - attn->turn % nth) % nth; row < attn->n_tok * attn->n_head;
         row += nth) {
        int tok = row / attn->n_head, head = row % attn->n_head;
        int q = tok * group + head % group;
        float *out = attn->out + (size_t)row * d, max = -INFINITY, sum = 0, latent[LK_MAX_D_HEAD];
        const float *more = attn->more ? attn->more + (size_t)row * (d + 2) : NULL;
        for (int r = 0; r < n_range; r++)
            max = fmaxf(max, partial_of(attn, n_latent, r, head / group, q)[n]);
        if (more) max = fmaxf(max, more[d]);
        memset(out, 0, d * sizeof *out);
        memset(latent, 0, n_latent * sizeof *latent);
        if (more) {
            float weight = expf(more[d] - max);
            sum = weight * more[d + 1];
            for (int c = 0; c < d; c++) out[c] = weight * more[c];
        }
        for (int r = 0; r < n_range; r++) {
            const float *part = partial_of(attn, n_latent, r, head / group, q);
            float weight = expf(part[n] - max);
            sum += weight * part[n + 1];
            for (int c = 0; c < d; c++) out[c] += weight * part[c];
            for (int c = 0; c < n_latent; c++) latent[c] += weight * part[d + c];
        }
        if (latents) lk_attn_reconstruct(latents, head / group, d, latent, out);
        scale_row(out, d, 1 / sum);
    }
}

/* Queries' scores over chunk [a, b), bias included; *lo, *n: the part of query i's row that it sees. */
static float *seen_scores(const struct item *item, int i, int64_t a, int64_t b, int *lo, int *n) {
    int64_t first, last;
    visible(item, i, &first, &last);
    if (first < a) first = a;
    if (last > b) last = b;
    *lo = (int)(first - a);
    *n = last > first ? (int)(last - first) : 0;
    float *s = item->mem.score + (size_t)i * item->stride + PAD + *lo;
    if (*n) add_bias(item, i, s, first, *n);
    return s;
}

/* Largest score and sum of exponentials of every query of the item over all rows. */
static void sum_queries(struct item *item, int64_t first) {
    const struct lk_attn *attn = item->attn;
    for (int i = 0; i < item->n_q; i++) {
        item->mem.max[i] = -INFINITY;
        item->mem.sum[i] = 0;
    }
    for (int64_t a = first, b; a < attn->k->n_tok; a = b) {
        b = a + item->chunk < attn->k->n_tok ? a + item->chunk : attn->k->n_tok;
        score_chunk(item, a, b);
        for (int i = 0; i < item->n_q; i++) {
            int lo, n;
            float *s = seen_scores(item, i, a, b, &lo, &n);
            if (n == 0) continue;
            float max = attn->kernels->max(s, n) * attn->scale;
            if (max > item->mem.max[i]) {
                item->mem.sum[i] *= expf(item->mem.max[i] - max);
                item->mem.max[i] = max;
            }
            item->mem.sum[i] += attn->kernels->exp_sum(s, n, attn->scale, item->mem.max[i]);
        }
    }
}

/* Largest score and sum of exponentials of query q of a KV head over all its ranges. */
static void join_ranges(const struct lk_attn *attn, int n_range, int head, int q, float *max,
                        float *sum) {
    int n_latent = count_latents(attn), n = attn->d_head + n_latent;
    *max = -INFINITY;
    *sum = 0;
    for (int r = 0; r < n_range; r++) *max = fmaxf(*max, partial_of(attn, n_latent, r, head, q)[n]);
    for (int r = 0; r < n_range; r++) {
        const float *part = partial_of(attn, n_latent, r, head, q);
        *sum += expf(part[n] - *max) * part[n + 1];
    }
}

/* Add the weights that queries from q0 on, at most a tile of them, give to the rows of chunk [a, b). */
static void hear_chunk(struct item *item, int n_range, int64_t a, int64_t b, float *attn_scores) {
    const struct lk_attn *attn = item->attn;
    item->k_level = -1;
    score_chunk(item, a, b);
    for (int i = 0; i < item->n_q; i++) {
        int lo, n;
        float max, sum, *s = seen_scores(item, i, a, b, &lo, &n);
        if (n == 0) continue;
        join_ranges(attn, n_range, item->head, item->q0 + i, &max, &sum);
        attn->kernels->exp_sum(s, n, attn->scale, max);
        float *row = attn_scores + (a + lo - attn->k->first) * attn->n_head_kv + item->head;
        scale_row(s, n, 1 / sum);
        for (int t = 0; t < n; t++) row[(size_t)t * attn->n_head_kv] += s[t];
    }
}

void lk_attn_accumulate_scores(const struct lk_attn *attn, int n_range, bool last,
                               float *attn_scores, int ith, int nth) {
    const struct lk_kv *k = attn->k;
    int group = attn->n_head / attn->n_head_kv, n_query = attn->n_tok * group;
    int n_chunk = (int)((k->n_tok - k->first + LK_ATTN_CHUNK - 1) / LK_ATTN_CHUNK);
    int d = lk_attn_widest(attn);
    struct item item = {.attn = attn,
                        .n_span = 1,
                        .d = d,
                        .mem = divide(attn->scratch + ith * lk_attn_scratch_floats(d), d)};
    struct lk_kernels_state before;
    lk_kernels_enter(attn->kernels, &before);
    for (int i = ith; i < attn->n_head_kv * n_chunk; i += nth) {
        int64_t a = k->first + (int64_t)(i / attn->n_head_kv) * LK_ATTN_CHUNK,
                b = a + LK_ATTN_CHUNK < k->n_tok ? a + LK_ATTN_CHUNK : k->n_tok;
        item.head = i % attn->n_head_kv;
        for (int64_t row = a; last && row < b; row++)
            attn_scores[(row - k->first) * attn->n_head_kv + item.head] = 0;
        int64_t tok = a - (k->n_tok - attn->n_tok); /* the first that sees a row of the chunk */
        if (last) tok = attn->n_tok - 1;
        for (item.q0 = tok > 0 ? (int)tok * group : 0; item.q0 < n_query; item.q0 += item.n_q) {
            item.n_each = n_query - item.q0 < LK_ATTN_QUERIES ? n_query - item.q0 : LK_ATTN_QUERIES;
            set_queries(&item, item.n_each, LK_ATTN_CHUNK);
            hear_chunk(&item, n_range, a, b, attn_scores);
        }
    }
    lk_kernels_leave(attn->kernels, &before);
}

/* Weights s [n] of a head's rows from index `at` on, to where their positions are in weight [n_tok]. */
static void place(const struct lk_kv *k, int head, int64_t at, const float *s, int n,
                  float *weight) {
    int64_t level_first = k->first;
    for (int level = 0; level < k->n_level; level_first += k->fill[level].rows, level++) {
        int64_t end = level_first + k->fill[level].rows;
        if (end > at + n) end = at + n;
        for (int64_t i = level_first > at ? level_first : at; i < end; i++)
            weight[lk_cache_position(k, level, i - level_first, head)] = s[i - at];
    }
}

void lk_attn_weights(const struct lk_attn *attn, int tok, float *weight) {
    int group = attn->n_head / attn->n_head_kv;
    int64_t n_pos = attn->k->n_tok, seen = lk_partition_work(attn).first;
    int d = lk_attn_widest(attn);
    struct item item = {.attn = attn, .n_span = 1, .d = d, .mem = divide(attn->scratch, d)};
    struct lk_kernels_state before;
    memset(weight, 0, attn->n_head * n_pos * sizeof *weight);
    lk_kernels_enter(attn->kernels, &before);
    for (item.head = 0; item.head < attn->n_head_kv; item.head++) {
        for (item.q0 = tok * group; item.q0 < (tok + 1) * group;
             item.q0 += item.n_q, weight += item.n_q * n_pos) {
            int left = (tok + 1) * group - item.q0;
            item.n_each = left < LK_ATTN_QUERIES ? left : LK_ATTN_QUERIES;
            set_queries(&item, item.n_each, LK_ATTN_CHUNK);
            item.k_level = -1;
            sum_queries(&item, seen);
            for (int64_t a = seen, b; a < n_pos; a = b) {
                b = a + item.chunk < n_pos ? a + item.chunk : n_pos;
                score_chunk(&item, a, b);
                for (int i = 0; i < item.n_q; i++) {
                    int lo, n;
                    float *s = seen_scores(&item, i, a, b, &lo, &n);
                    if (n == 0) continue;
                    attn->kernels->exp_sum(s, n, attn->scale, item.mem.max[i]);
                    scale_row(s, n, 1 / item.mem.sum[i]);
                    place(attn->k, item.head, a + lo, s, n, weight + i * n_pos);
                }
            }
        }
    }
    lk_kernels_leave(attn->kernels, &before);
}

float lk_alibi_slope(int head, int n_head, float max_bias) {
    int whole = 1;
    while (whole * 2 <= n_head) whole *= 2;
    if (head < whole) return powf(2.0f, -max_bias / whole * (head + 1));
    return powf(2.0f, -max_bias / 2 / whole * (2 * (head - whole) + 1));
}
