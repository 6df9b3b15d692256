/* Attention: items over ranges of positions, and combining their partial softmaxes. */
#include "attention/attention.h"

#include "attention/attend.h"
#include "attention/latents.h"
#include "attention/partition.h"
#include "attention/read.h"

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

/* The first item of thread ith of nth. Its others follow nth apart. */
static int first_item(const struct lk_attn *attn, int ith, int nth) {
    return (ith + nth - attn->thread_offset % nth) % nth;
}

/* ---- items ---- */

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
            float *acc = lk_attend_sum(item, level, i);
            bool same =
                sum && lk_attn_same_domain(v, sum_level, level, head_kv / v->level[level].n_head);
            for (int c = 0; same && c < lk_attend_channels(item, level, i); c++) acc[c] += sum[c];
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
    }
}

/* An item of a call that reads a share of its tiles: token by token, and head by head. Ranges
 * divide what all heads read, one head's rows after the other's, so that each head's tiles are
 * estimated for few of the ranges. The partials of the other heads are empty. */
static void read_item(struct lk_attn_item *item, int ith, const struct lk_partition *p, int range,
                      int head_kv, int n_head_kv, int q0, int n_each) {
    int group = item->attn->n_head / item->attn->n_head_kv;
    for (int q = q0; q < q0 + n_each; q += group) {
        struct lk_read read;
        lk_attn_item_set(item, head_kv, n_head_kv, q, group, LK_ATTN_CHUNK);
        lk_read_find(item, &read);
        int64_t all = read.n_row * n_head_kv, from = all * range / p->n_range,
                to = all * (range + 1) / p->n_range;
        int first = (int)(from / read.n_row), last = from < to ? (int)((to - 1) / read.n_row) : -1;
        if (first <= last) {
            lk_attn_item_set(item, head_kv + first, last - first + 1, q, group, LK_ATTN_CHUNK);
            lk_read_choose(item, ith, &read);
        }
        for (int h = 0; h < n_head_kv; h++) {
            lk_attn_item_set(item, head_kv + h, 1, q, group, LK_ATTN_CHUNK);
            if (h >= first && h <= last)
                lk_read_attend(item, &read, h - first, from - h * read.n_row, to - h * read.n_row);
            write_partial(item, range);
        }
    }
}

static void count_tiles(const struct lk_attn_item *item, int ith) {
    struct lk_read_count *count = item->attn->read_count;
    if (!count) return;
    count[ith].n_tile += item->n_tile;
    count[ith].n_tile_read += item->n_tile_read;
}

void lk_attn_items(const struct lk_attn *attn, int ith, int nth) {
    const struct lk_kv *k = attn->k;
    struct lk_partition p = lk_partition_work(attn);
    struct lk_attn_item item = lk_attn_item_new(attn, ith);
    int group = attn->n_head / attn->n_head_kv, chunk = lk_partition_chunk(attn, &p);
    bool reads_share = lk_read_applies(attn);
    struct lk_kernels_state before;
    lk_kernels_enter(attn->kernels, &before);
    for (int i = first_item(attn, ith, nth); i < p.n_head_tile * p.n_range * p.n_query_tile;
         i += nth) {
        int range = i / p.n_head_tile % p.n_range;
        int head_kv = i % p.n_head_tile * p.head_tile, n_head_kv = attn->n_head_kv - head_kv;
        int q0 = i / p.n_head_tile / p.n_range * p.query_tile, n_each = p.n_query - q0;
        if (n_head_kv > p.head_tile) n_head_kv = p.head_tile;
        if (n_each > p.query_tile) n_each = p.query_tile;

        /* The part of the range that the item's queries see. */
        int64_t call_pos = k->n_tok - attn->n_tok; /* position of the call's first token */
        int64_t oldest = call_pos + q0 / group - k->n_swa + 1;
        int64_t end = call_pos + (q0 + n_each - 1) / group + 1;
        int64_t from = lk_partition_range(attn, &p, range);
        int64_t to = lk_partition_range(attn, &p, range + 1);
        if (to > end) to = end;
        if (k->n_swa > 0) from = lk_partition_align(&p, oldest, from);
        if (reads_share) {
            read_item(&item, ith, &p, range, head_kv, n_head_kv, q0, n_each);
            continue;
        }
        lk_attn_item_set(&item, head_kv, n_head_kv, q0, n_each, chunk);
        lk_attend_range(&item, &p, from, to);
        write_partial(&item, range);
    }
    count_tiles(&item, ith);
    lk_kernels_leave(attn->kernels, &before);
}

/* ---- combining ---- */

void lk_attn_join(const struct lk_attn *attn, int n_range, float *to, int ith, int nth) {
    int n_latent = lk_attn_v_rank(attn->v), n = attn->d_head + n_latent,
        group = attn->n_head / attn->n_head_kv;
    for (int row = ith; row < attn->n_tok * attn->n_head; row += nth) {
        int head = row % attn->n_head, head_kv = head / group,
            q = row / attn->n_head * group + head % group;
        float *out = to + row * lk_attn_joined_floats(attn->d_head, n_latent), max = -INFINITY;
        for (int r = 0; r < n_range; r++)
            max = fmaxf(max, lk_attn_partial_of(attn, n_latent, r, head_kv, q)[n]);
        memset(out, 0, (n + LK_ATTN_SUMS) * sizeof *out);
        for (int r = 0; max > -INFINITY && r < n_range; r++) {
            const float *partial = lk_attn_partial_of(attn, n_latent, r, head_kv, q);
            float weight = expf(partial[n] - max);
            for (int c = 0; c < n; c++) out[c] += weight * partial[c];
            out[n + 1] += weight * partial[n + 1];
        }
        out[n] = max; /* -INFINITY: the query sees none of these rows */
    }
}

void lk_attn_combine(const struct lk_attn *attn, int n_range, int ith, int nth) {
    /* Only fields of the levels that never change are read here. */
    int n_latent = lk_attn_partial_latents(attn), d = attn->d_head, n = d + n_latent,
        group = attn->n_head / attn->n_head_kv;
    for (int row = first_item(attn, ith, nth); row < attn->n_tok * attn->n_head; row += nth) {
        int tok = row / attn->n_head, head = row % attn->n_head;
        int head_kv = head / group, q = tok * group + head % group;
        float *out = attn->out + (size_t)row * d, max = -INFINITY, sum = 0;
        const float *extra =
            attn->extra_partial ? attn->extra_partial + (size_t)row * (d + 2) : NULL;
        for (int r = 0; r < n_range; r++)
            max = fmaxf(max, lk_attn_partial_of(attn, n_latent, r, head_kv, q)[n]);
        if (extra) max = fmaxf(max, extra[d]);
        if (attn->sink) lk_attn_add_sink(attn, head, &max, &sum);
        memset(out, 0, d * sizeof *out);
        if (extra) {
            float weight = expf(extra[d] - max);
            sum += weight * extra[d + 1];
            for (int c = 0; c < d; c++) out[c] = weight * extra[c];
        }
        /* Latents are summed in the first range's partial, which is not read again. */
        float *latent = lk_attn_partial_of(attn, n_latent, 0, head_kv, q) + d;
        for (int r = 0; r < n_range; r++) {
            const float *partial = lk_attn_partial_of(attn, n_latent, r, head_kv, q);
            float weight = expf(partial[n] - max);
            sum += weight * partial[n + 1];
            for (int c = 0; c < d; c++) out[c] += weight * partial[c];
            if (r == 0)
                scale_row(latent, n_latent, weight);
            else
                for (int c = 0; c < n_latent; c++) latent[c] += weight * partial[d + c];
        }
        const struct lk_level *latents = lk_attn_v_latents(attn->v, head_kv);
        if (latents && !attn->restored) {
            struct lk_basis_head h = lk_level_basis_head(latents, head_kv);
            float values[LK_MAX_D_HEAD];
            lk_project_back(&h, latent, values);
            for (int c = 0; c < d; c++) out[c] += values[c];
        }
        scale_row(out, d, 1 / sum);
    }
}
