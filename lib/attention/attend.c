/* Attends to positions: scores, online softmax, weighted sums of V. */
#include "attention/attend.h"

#include "attention/attn_item.h"

#include <math.h>
#include <string.h>

static void scale_row(float *row, int n, float factor) {
    for (int c = 0; c < n; c++) row[c] *= factor;
}

/* ---- softmax ---- */

float *lk_attend_sum(const struct lk_attn_item *item, int level, int i) {
    return item->mem.acc + (size_t)level * LK_ATTN_QUERIES * item->d +
           lk_attn_item_vector(item, &item->attn->v->level[level], i);
}

int lk_attend_channels(const struct lk_attn_item *item, int level, int i) {
    const struct lk_level *from = &item->attn->v->level[level];
    return lk_level_part_channels(from, lk_attn_item_head(item, i) / from->n_head);
}

void lk_attend_raise(struct lk_attn_item *item, int i, float max) {
    if (max <= item->mem.max[i]) return;
    float shrink = expf(item->mem.max[i] - max);
    item->mem.max[i] = max;
    item->mem.sum[i] *= shrink;
    item->mem.mean[i] *= shrink;
    for (int level = 0; level < item->attn->v->n_level; level++)
        if (item->used[level])
            scale_row(lk_attend_sum(item, level, i), lk_attend_channels(item, level, i), shrink);
}

/* Online softmax of query i over the chunk [a, b): scores become weights. */
static void softmax_chunk(struct lk_attn_item *item, int i, int64_t a, int64_t b) {
    const struct lk_attn *attn = item->attn;
    int lo, n, n_chunk = (int)(b - a);
    float *visible = lk_attn_item_visible(item, i, a, b, &lo, &n);
    float *s = item->mem.score + (size_t)i * item->stride + LK_SCORE_PAD;
    if (n == 0) {
        memset(s, 0, n_chunk * sizeof *s);
        return;
    }
    lk_attend_raise(item, i, attn->kernels->max(visible, n) * attn->scale);
    item->mem.sum[i] += attn->kernels->exp_sum(visible, n, attn->scale, item->mem.max[i]);
    memset(s, 0, lo * sizeof *s);
    memset(s + lo + n, 0, (n_chunk - lo - n) * sizeof *s);
}

/* ---- V ---- */

void lk_attend_start_sums(struct lk_attn_item *item, int level) {
    const struct lk_level *of = &item->attn->v->level[level];
    if (item->used[level]) return;
    memset(lk_attend_sum(item, level, 0), 0,
           (size_t)item->n_q * (of->part ? item->d : of->d_part) * sizeof(float));
    item->used[level] = true;
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
                           .is_prompt = item->attn->is_prompt,
                           .whole_tiles = true};
}

/* Add the span's values to the level's sums. weight: [n_q][stride], from the span's first
 * position. */
static void accumulate_span(struct lk_attn_item *item, const struct lk_kv_span *span,
                            const float *weight) {
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
            const float *p = weight + (pos - span->pos) + (size_t)first * item->stride;
            float *acc = lk_attend_sum(item, span->level, first);
            size_t stride = item->stride;
            if (run.n % LK_TILE != 0) { /* within a tile: the other rows have a weight of 0 */
                float *tile = item->mem.tile;
                memset(tile, 0, n_q * LK_TILE * sizeof *tile);
                for (int i = 0; i < n_q; i++)
                    memcpy(tile + i * LK_TILE + run.tile_row, p + i * stride, run.n * sizeof *tile);
                p = tile;
                stride = LK_TILE;
            }
            lk_kernels_accumulate(attn->kernels, &rows, p, stride, n_q, acc);
        }
    }
}

void lk_attend_values(struct lk_attn_item *item, int64_t a, int64_t b) {
    const struct lk_kv *v = item->attn->v;
    for (struct lk_kv_span span = lk_kv_spans(v); lk_kv_next_span(v, a, b, &span);) {
        lk_attend_start_sums(item, span.level);
        accumulate_span(item, &span, item->mem.score + LK_SCORE_PAD + (span.pos - a));
    }
}

void lk_attend_chunk(struct lk_attn_item *item, int64_t a, int64_t b) {
    lk_attn_item_score(item, a, b);
    for (int i = 0; i < item->n_q; i++) softmax_chunk(item, i, a, b);
    lk_attend_values(item, a, b);
}

void lk_attend_range(struct lk_attn_item *item, const struct lk_partition *p, int64_t from,
                     int64_t to) {
    const struct lk_kv *k = item->attn->k;
    for (int64_t a = lk_held_next(k, from), b; a < to; a = lk_held_next(k, b)) {
        int64_t end = lk_held_end(k, a);
        if (end > to) end = to;
        b = a + item->chunk < end ? lk_partition_align(p, a + item->chunk, a + 1) : end;
        lk_attend_chunk(item, a, b);
    }
}
