/* Attention: items over ranges of positions, and combining their partial softmaxes. */
#include "attention/attention.h"

#include "attention/attn_item.h"
#include "attention/latents.h"
#include "attention/partition.h"
#include "attention/runs.h"
#include "attention/skip.h"

#include <math.h>
#include <string.h>

size_t lk_attn_scratch_floats(int d_head) { return lk_attn_item_floats(d_head); }

size_t lk_attn_partial_floats(int n_head, int n_head_kv, int d_head, int n_tok, int n_thread) {
    size_t n_partial = lk_partition_max_partials(n_head / n_head_kv, n_head_kv, n_tok, n_thread);
    return n_partial * n_head * (d_head + LK_ATTN_SUMS);
}

int lk_attn_ranges(const struct lk_attn *attn, const struct lk_kv *k, const struct lk_kv *v) {
    struct lk_attn call = *attn;
    call.k = k;
    call.v = v;
    return lk_partition_work(&call).n_range;
}

static void scale_row(float *row, int n, float factor) {
    for (int c = 0; c < n; c++) row[c] *= factor;
}

/* ---- an item: softmax and V ---- */

/* The weighted sum of a level's values for query i, in the level's domain. */
static float *acc_of(const struct lk_attn_item *item, int level, int i) {
    return item->mem.acc + (size_t)level * LK_ATTN_QUERIES * item->d +
           lk_attn_item_vector(item, &item->attn->v->level[level], i);
}

/* Channels of that sum. */
static int acc_channels(const struct lk_attn_item *item, int level, int i) {
    const struct lk_level *from = &item->attn->v->level[level];
    return lk_level_part_channels(from, lk_attn_item_head(item, i) / from->n_head);
}

/* Tile of the chunk from position a on that holds position pos. */
static int chunk_tile(const struct lk_attn_item *item, int64_t a, int64_t pos) {
    return (int)((pos - item->grid) / LK_TILE - (a - item->grid) / LK_TILE);
}

/* exp_sum of query i's n visible scores, which start lo rows after a, and the sum of each tile. */
static float exp_by_tile(struct lk_attn_item *item, int i, float *s, int64_t a, int lo, int n) {
    const struct lk_attn *attn = item->attn;
    float *sum = item->tile_sum[i], max = item->mem.max[i], all = 0;
    int64_t end = a + lo + n;
    memset(sum, 0, sizeof item->tile_sum[i]);
    for (int64_t pos = a + lo, next; pos < end; s += next - pos, pos = next) {
        int t = chunk_tile(item, a, pos), row = (int)((pos - item->grid) % LK_TILE);
        next = pos - row + LK_TILE < end ? pos - row + LK_TILE : end;
        if (row || end - pos < LK_TILE) {
            sum[t] = attn->kernels->exp_sum(s, (int)(next - pos), attn->scale, max);
            continue;
        }
        int n_tile = (int)(end - pos) / LK_TILE;
        attn->kernels->exp_tiles(s, n_tile, attn->scale, max, sum + t);
        next = pos + n_tile * LK_TILE;
    }
    for (int t = 0; t < LK_MAX_CHUNK_TILES; t++) all += sum[t];
    return all;
}

/* Online softmax of query i over the chunk [a, b): scores become weights. If the maximum grows, the
 * sums so far are scaled down. */
static void softmax_chunk(struct lk_attn_item *item, int i, int64_t a, int64_t b) {
    const struct lk_attn *attn = item->attn;
    int lo, n, n_chunk = (int)(b - a);
    float *visible = lk_attn_item_visible(item, i, a, b, &lo, &n);
    float *s = item->mem.score + (size_t)i * item->stride + LK_SCORE_PAD;
    if (n == 0) {
        memset(s, 0, n_chunk * sizeof *s);
        return;
    }
    float max = attn->kernels->max(visible, n) * attn->scale;
    if (max > item->mem.max[i]) {
        float shrink = expf(item->mem.max[i] - max);
        item->mem.max[i] = max;
        item->mem.sum[i] *= shrink;
        item->mem.mean[i] *= shrink;
        item->mem.limit[i] *= shrink;
        item->mem.dropped[i] *= shrink;
        for (int level = 0; level < attn->v->n_level; level++)
            if (item->used[level])
                scale_row(acc_of(item, level, i), acc_channels(item, level, i), shrink);
        if (item->n_pending)
            scale_row(item->mem.pending + i * item->stride + LK_SCORE_PAD, item->n_pending, shrink);
    }
    item->mem.sum[i] += attn->skip_v > 0
                            ? exp_by_tile(item, i, visible, a, lo, n)
                            : attn->kernels->exp_sum(visible, n, attn->scale, item->mem.max[i]);
    memset(s, 0, lo * sizeof *s);
    memset(s + lo + n, 0, (n_chunk - lo - n) * sizeof *s);
}

/* The runs of a span of V. */
static struct lk_run runs_of(const struct lk_attn_item *item, const struct lk_kv_span *span) {
    const struct lk_level *level = &item->attn->v->level[span->level];
    return (struct lk_run){.kv = item->attn->v,
                           .level = span->level,
                           .first_part = item->head_kv / level->n_head,
                           .end_part = (item->head_kv + item->n_head_kv - 1) / level->n_head + 1,
                           .max_rows = item->chunk,
                           .chunk = item->chunk,
                           .whole_tiles = true};
}

/* Whether a run has whole tiles that no chunk or range splits, so that they can be left out. */
static bool can_skip(const struct lk_attn_item *item, const struct lk_run *run, int64_t pos) {
    return run->n % LK_TILE == 0 && (pos - item->grid) % LK_TILE == 0;
}

/* Choose the tiles of V in the chunk [a, b) that are read, run by run and part by part. */
static void choose_chunk(struct lk_attn_item *item, int64_t a, int64_t b) {
    const struct lk_kv *v = item->attn->v;
    lk_tile_set *need = item->need;
    item->n_fetch = item->n_fetched = 0;
    item->fetch_bytes = 0;
    for (struct lk_kv_span span = lk_kv_spans(v); lk_kv_next_span(v, a, b, &span);) {
        struct lk_run run = runs_of(item, &span);
        const struct lk_basis *basis = v->level[span.level].basis;
        bool has_mean = basis && basis->mean;
        for (int64_t pos = span.pos; pos < span.end; pos += run.n) {
            lk_run_find(&run, pos - span.first, span.end - span.first);
            for (int part = run.first_part; can_skip(item, &run, pos) && part < run.end_part;
                 part++) {
                int first, n_q = lk_attn_item_part(item, &v->level[span.level], part, &first);
                struct lk_rows rows = lk_run_rows(&run, part);
                float *weight =
                    item->mem.score + LK_SCORE_PAD + (pos - a) + (size_t)first * item->stride;
                *need++ = lk_skip_choose(item, &rows, pos, chunk_tile(item, a, pos), weight, first,
                                         n_q, has_mean);
            }
        }
    }
}

/* Add the span's values to the level's sums. weight: [n_q][stride], from the span's first
 * position. need: NULL, or what choose_chunk chose, from the span on. Returns what follows. */
static const lk_tile_set *accumulate_span(struct lk_attn_item *item, const struct lk_kv_span *span,
                                          float *weight, const lk_tile_set *need) {
    const struct lk_attn *attn = item->attn;
    const struct lk_level *level = &attn->v->level[span->level];
    struct lk_run run = runs_of(item, span);
    if (level->basis && level->basis->mean)
        for (int i = 0; i < item->n_q; i++)
            for (int64_t t = 0; t < span->end - span->pos; t++)
                item->mem.mean[i] += weight[i * item->stride + t];
    for (int64_t pos = span->pos; pos < span->end; pos += run.n) {
        lk_run_find(&run, pos - span->first, span->end - span->first);
        for (int part = run.first_part; part < run.end_part; part++) {
            int first, n_q = lk_attn_item_part(item, level, part, &first);
            struct lk_rows rows = lk_run_rows(&run, part);
            float *p = weight + (pos - span->pos) + (size_t)first * item->stride;
            float *acc = acc_of(item, span->level, first);
            size_t stride = item->stride;
            if (need && can_skip(item, &run, pos)) {
                lk_skip_accumulate(item, &rows, *need++, p, n_q, acc);
                continue;
            }
            if (run.n % LK_TILE != 0) { /* within a tile: the other rows have a weight of 0 */
                float *tile = item->mem.tile;
                memset(tile, 0, n_q * LK_TILE * sizeof *tile);
                for (int i = 0; i < n_q; i++)
                    memcpy(tile + i * LK_TILE + run.tile_row, p + i * stride, run.n * sizeof *tile);
                p = tile;
                stride = LK_TILE;
            }
            attn->kernels->accumulate(&rows, p, stride, n_q, acc);
        }
    }
    return need;
}

/* Add the values of the chunk [a, b). weight: its weights, as mem.score. */
static void accumulate_chunk(struct lk_attn_item *item, int64_t a, int64_t b, float *weight,
                             const lk_tile_set *need) {
    const struct lk_kv *v = item->attn->v;
    for (struct lk_kv_span span = lk_kv_spans(v); lk_kv_next_span(v, a, b, &span);) {
        const struct lk_level *level = &v->level[span.level];
        if (!item->used[span.level])
            memset(acc_of(item, span.level, 0), 0,
                   (size_t)item->n_q * (level->part ? item->d : level->d_part) * sizeof(float));
        item->used[span.level] = true;
        need = accumulate_span(item, &span, weight + LK_SCORE_PAD + (span.pos - a), need);
    }
}

/* Process the chunks of [from, to). If tiles of V can be left out, the chosen ones of a chunk are
 * fetched while the next chunk is scored, and added afterwards. */
static void process_range(struct lk_attn_item *item, const struct lk_partition *p, int64_t from,
                          int64_t to) {
    bool skips = item->attn->skip_v > 0;
    item->grid = p->grid % LK_TILE - LK_TILE;
    lk_skip_start(item);
    item->n_pending = 0;
    for (int64_t a = from, b; a < to; a = b) {
        b = a + item->chunk < to ? lk_partition_align(p, a + item->chunk, a + 1) : to;
        lk_attn_item_score(item, a, b);
        for (int q = 0; q < item->n_q; q++) softmax_chunk(item, q, a, b);
        if (!skips) {
            accumulate_chunk(item, a, b, item->mem.score, NULL);
            continue;
        }
        if (item->n_pending)
            accumulate_chunk(item, a - item->n_pending, a, item->mem.pending, item->need);
        choose_chunk(item, a, b);
        item->n_pending = (int)(b - a);
        float *score = item->mem.score;
        item->mem.score = item->mem.pending;
        item->mem.pending = score;
    }
    if (item->n_pending)
        accumulate_chunk(item, to - item->n_pending, to, item->mem.pending, item->need);
}

/* out += the sum acc, transformed back from a level's domain: rows, or latents that lie after the
 * row. */
static void add_output(const struct lk_attn *attn, int level, int head_kv, float *acc, float *out) {
    const struct lk_level *from = &attn->v->level[level];
    int part = head_kv / from->n_head, d = lk_level_part_channels(from, part);
    lk_codec_restore_output(&attn->v->rule[level].codec, d, lk_kv_sigma(attn->v, level, part), acc,
                            acc);
    if (from->basis) out += attn->d_head;
    for (int c = 0; c < d; c++) out[c] += acc[c];
}

/* Write the item's partial softmax over a range. */
static void write_partial(struct lk_attn_item *item, int range) {
    const struct lk_attn *attn = item->attn;
    const struct lk_kv *v = attn->v;
    int d = attn->d_head, n_latent = lk_attn_v_rank(v);
    for (int i = 0; i < item->n_q; i++) {
        int head_kv = lk_attn_item_head(item, i), q = item->q0 + i % item->n_each;
        float *out = lk_attn_partial_of(attn, n_latent, range, head_kv, q);
        memset(out, 0, (d + n_latent) * sizeof *out);

        /* Consecutive levels with the same domain are summed before they are transformed back. */
        float *sum = NULL;
        int sum_level = 0;
        for (int level = 0; level < v->n_level; level++) {
            if (!item->used[level]) continue;
            float *acc = acc_of(item, level, i);
            bool same =
                sum && lk_attn_same_domain(v, sum_level, level, head_kv / v->level[level].n_head);
            for (int c = 0; same && c < acc_channels(item, level, i); c++) acc[c] += sum[c];
            if (sum && !same) add_output(attn, sum_level, head_kv, sum, out);
            sum = acc;
            sum_level = level;
        }
        if (sum) add_output(attn, sum_level, head_kv, sum, out);

        const struct lk_level *latents = lk_attn_v_latents(v, head_kv);
        if (latents) {
            struct lk_basis_head head = lk_level_basis_head(latents, head_kv);
            const float *mean = lk_basis_mean(&head);
            for (int c = 0; mean && c < d; c++) out[c] += item->mem.mean[i] * mean[c];
        }
        out[d + n_latent] = item->mem.max[i];
        out[d + n_latent + 1] = item->mem.sum[i];
        out[d + n_latent + 2] = item->mem.dropped[i];
    }
}

void lk_attn_items(const struct lk_attn *attn, int ith, int nth) {
    const struct lk_kv *k = attn->k;
    struct lk_partition p = lk_partition_work(attn);
    struct lk_attn_item item = lk_attn_item_new(attn, ith);
    int group = attn->n_head / attn->n_head_kv, chunk = lk_partition_chunk(attn, &p);
    struct lk_kernels_state before;
    lk_kernels_enter(attn->kernels, &before);
    for (int i = (ith + nth - attn->thread_offset % nth) % nth;
         i < p.n_head_tile * p.n_range * p.n_query_tile; i += nth) {
        int range = i / p.n_head_tile % p.n_range;
        int head_kv = i % p.n_head_tile * p.head_tile, n_head_kv = attn->n_head_kv - head_kv;
        int q0 = i / p.n_head_tile / p.n_range * p.query_tile, n_each = p.n_query - q0;
        if (n_head_kv > p.head_tile) n_head_kv = p.head_tile;
        if (n_each > p.query_tile) n_each = p.query_tile;
        lk_attn_item_set(&item, head_kv, n_head_kv, q0, n_each, chunk);

        /* The part of the range that the item's queries see. */
        int64_t call_pos = k->n_tok - attn->n_tok; /* position of the call's first token */
        int64_t oldest = call_pos + q0 / group - k->n_swa + 1;
        int64_t end = call_pos + (q0 + n_each - 1) / group + 1;
        int64_t from = lk_partition_range(attn, &p, range);
        int64_t to = lk_partition_range(attn, &p, range + 1);
        if (to > end) to = end;
        if (k->n_swa > 0) from = lk_partition_align(&p, oldest, from);

        process_range(&item, &p, from, to);
        write_partial(&item, range);
    }
    if (attn->skipped) {
        attn->skipped[ith].n_tile += item.n_tile;
        attn->skipped[ith].n_tile_read += item.n_tile_read;
    }
    lk_kernels_leave(attn->kernels, &before);
}

/* ---- combining ---- */

static void count_dropped(struct lk_skip_count *count, double share) {
    count->n_query++;
    count->dropped += share;
    if (share > count->max_dropped) count->max_dropped = share;
}

void lk_attn_combine(const struct lk_attn *attn, int n_range, int ith, int nth) {
    /* Only fields of the levels that never change are read here. */
    int n_latent = lk_attn_v_rank(attn->v), d = attn->d_head, n = d + n_latent,
        group = attn->n_head / attn->n_head_kv;
    for (int row = (ith + nth - attn->thread_offset % nth) % nth; row < attn->n_tok * attn->n_head;
         row += nth) {
        int tok = row / attn->n_head, head = row % attn->n_head;
        int head_kv = head / group, q = tok * group + head % group;
        float *out = attn->out + (size_t)row * d, max = -INFINITY, sum = 0, dropped = 0;
        const float *extra =
            attn->extra_partial ? attn->extra_partial + (size_t)row * (d + 2) : NULL;
        for (int r = 0; r < n_range; r++)
            max = fmaxf(max, lk_attn_partial_of(attn, n_latent, r, head_kv, q)[n]);
        if (extra) max = fmaxf(max, extra[d]);
        memset(out, 0, d * sizeof *out);
        if (extra) {
            float weight = expf(extra[d] - max);
            sum = weight * extra[d + 1];
            for (int c = 0; c < d; c++) out[c] = weight * extra[c];
        }
        /* Latents are summed in the first range's partial, which is not read again. */
        float *latent = lk_attn_partial_of(attn, n_latent, 0, head_kv, q) + d;
        for (int r = 0; r < n_range; r++) {
            const float *partial = lk_attn_partial_of(attn, n_latent, r, head_kv, q);
            float weight = expf(partial[n] - max);
            sum += weight * partial[n + 1];
            dropped += weight * partial[n + 2];
            for (int c = 0; c < d; c++) out[c] += weight * partial[c];
            if (r == 0)
                scale_row(latent, n_latent, weight);
            else
                for (int c = 0; c < n_latent; c++) latent[c] += weight * partial[d + c];
        }
        const struct lk_level *latents = lk_attn_v_latents(attn->v, head_kv);
        if (latents) {
            struct lk_basis_head h = lk_level_basis_head(latents, head_kv);
            float values[LK_MAX_D_HEAD];
            lk_project_back(&h, latent, values);
            for (int c = 0; c < d; c++) out[c] += values[c];
        }
        scale_row(out, d, 1 / sum);
        if (attn->skipped) count_dropped(&attn->skipped[ith], dropped / (sum + dropped));
    }
}
