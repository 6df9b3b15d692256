/* Attention weights themselves, from scores that are computed again. */
#include "attention/attn_weights.h"

#include "attention/attn_item.h"
#include "attention/latents.h"
#include "attention/partition.h"

#include <math.h>
#include <string.h>

/* ---- weights of rows, for policies ---- */

/* Maximum score and sum of exponentials of query q of a KV head, over all ranges of the items. */
static void join_ranges(const struct lk_attn *attn, int n_range, int head_kv, int q, float *max,
                        float *sum) {
    int n_latent = lk_attn_v_rank(attn->v), n = attn->d_head + n_latent;
    *max = -INFINITY;
    *sum = 0;
    for (int r = 0; r < n_range; r++)
        *max = fmaxf(*max, lk_attn_partial_of(attn, n_latent, r, head_kv, q)[n]);
    for (int r = 0; r < n_range; r++) {
        const float *partial = lk_attn_partial_of(attn, n_latent, r, head_kv, q);
        *sum += expf(partial[n] - *max) * partial[n + 1];
    }
    int group = attn->n_head / attn->n_head_kv;
    if (attn->sink) lk_attn_add_sink(attn, head_kv * group + q % group, max, sum);
}

/* Add the weights that the item's queries, of one KV head, give to the rows of chunk [a, b). */
static void add_weights(struct lk_attn_item *item, int n_range, int64_t a, int64_t b, bool largest,
                        float *attn_scores) {
    const struct lk_attn *attn = item->attn;
    lk_attn_item_score(item, a, b);
    for (int i = 0; i < item->n_q; i++) {
        int lo, n;
        float max, sum, *s = lk_attn_item_visible(item, i, a, b, &lo, &n);
        if (n == 0) continue;
        join_ranges(attn, n_range, item->head_kv, item->q0 + i, &max, &sum);
        attn->kernels->exp_sum(s, n, attn->scale, max);
        float *row = attn_scores + (a + lo - attn->k->first) * attn->n_head_kv + item->head_kv;
        float scale = 1 / sum;
        for (int t = 0; t < n; t++) s[t] *= scale; /* rounded before it is added */
        for (int t = 0; t < n; t++) {
            float *to = &row[(size_t)t * attn->n_head_kv];
            *to = largest ? fmaxf(*to, s[t]) : *to + s[t];
        }
    }
}

void lk_attn_accumulate_scores(const struct lk_attn *attn, int n_range, enum lk_policy_scores kind,
                               float *attn_scores, int ith, int nth) {
    bool last = kind == LK_SCORES_LAST, largest = kind == LK_SCORES_REPLAY;
    const struct lk_kv *k = attn->k;
    int64_t end = largest ? k->n_tok - attn->n_tok : k->n_tok;
    int group = attn->n_head / attn->n_head_kv, n_query = attn->n_tok * group;
    int n_chunk = (int)((end - k->first + LK_ATTN_CHUNK - 1) / LK_ATTN_CHUNK);
    struct lk_attn_item item = lk_attn_item_new(attn, ith);
    struct lk_kernels_state before;
    lk_kernels_enter(attn->kernels, &before);
    for (int i = ith; i < attn->n_head_kv * n_chunk; i += nth) {
        int head_kv = i % attn->n_head_kv;
        int64_t a = k->first + (int64_t)(i / attn->n_head_kv) * LK_ATTN_CHUNK,
                b = a + LK_ATTN_CHUNK < end ? a + LK_ATTN_CHUNK : end;
        for (int64_t row = a; last && row < b; row++)
            attn_scores[(row - k->first) * attn->n_head_kv + head_kv] = 0;
        int64_t tok = a - (k->n_tok - attn->n_tok); /* the first that sees a row of the chunk */
        if (last) tok = attn->n_tok - 1;
        for (int q0 = tok > 0 ? (int)tok * group : 0, n; q0 < n_query; q0 += n) {
            n = n_query - q0 < LK_ATTN_QUERIES ? n_query - q0 : LK_ATTN_QUERIES;
            lk_attn_item_set(&item, head_kv, 1, q0, n, LK_ATTN_CHUNK);
            add_weights(&item, n_range, a, b, largest, attn_scores);
        }
    }
    lk_kernels_leave(attn->kernels, &before);
}

/* ---- weights of one token, for inspection ---- */

/* Maximum score and sum of exponentials of the item's queries over all rows from `first` on. */
static void sum_queries(struct lk_attn_item *item, int64_t first) {
    const struct lk_attn *attn = item->attn;
    for (int64_t a = first, b; a < attn->k->n_tok; a = b) {
        b = a + item->chunk < attn->k->n_tok ? a + item->chunk : attn->k->n_tok;
        lk_attn_item_score(item, a, b);
        for (int i = 0; i < item->n_q; i++) {
            int lo, n;
            float *s = lk_attn_item_visible(item, i, a, b, &lo, &n);
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

/* Then the weights themselves, weight [n_q][n_tok] by position. */
static void write_weights(struct lk_attn_item *item, int64_t first, float *weight) {
    const struct lk_attn *attn = item->attn;
    const struct lk_kv *k = attn->k;
    for (int64_t a = first, b; a < k->n_tok; a = b) {
        b = a + item->chunk < k->n_tok ? a + item->chunk : k->n_tok;
        lk_attn_item_score(item, a, b);
        for (int i = 0; i < item->n_q; i++) {
            int lo, n;
            float *s = lk_attn_item_visible(item, i, a, b, &lo, &n), *w = weight + i * k->n_tok;
            if (n == 0) continue;
            attn->kernels->exp_sum(s, n, attn->scale, item->mem.max[i]);
            float scale = 1 / item->mem.sum[i];
            int64_t from = a + lo;
            for (struct lk_kv_span span = lk_kv_spans(k);
                 lk_kv_next_span(k, from, from + n, &span);)
                for (int64_t at = span.pos; at < span.end; at++)
                    w[lk_kv_position(k, span.level, at - span.first, item->head_kv)] =
                        s[at - from] * scale;
        }
    }
}

void lk_attn_weights(const struct lk_attn *attn, int tok, float *weight, float *log_sum) {
    int group = attn->n_head / attn->n_head_kv;
    int64_t n_tok = attn->k->n_tok, first = lk_partition_work(attn).first;
    struct lk_attn_item item = lk_attn_item_new(attn, 0);
    struct lk_kernels_state before;
    memset(weight, 0, attn->n_head * n_tok * sizeof *weight);
    lk_kernels_enter(attn->kernels, &before);
    for (int head_kv = 0; head_kv < attn->n_head_kv; head_kv++)
        for (int q0 = tok * group, n; q0 < (tok + 1) * group; q0 += n, weight += n * n_tok) {
            n = (tok + 1) * group - q0;
            if (n > LK_ATTN_QUERIES) n = LK_ATTN_QUERIES;
            lk_attn_item_set(&item, head_kv, 1, q0, n, LK_ATTN_CHUNK);
            sum_queries(&item, first);
            for (int i = 0; i < n; i++)
                if (attn->sink)
                    lk_attn_add_sink(attn, head_kv * group + q0 % group + i, &item.mem.max[i],
                                     &item.mem.sum[i]);
            write_weights(&item, first, weight);
            for (int i = 0; log_sum && i < n; i++)
                *log_sum++ = item.mem.max[i] + logf(item.mem.sum[i]);
        }
    lk_kernels_leave(attn->kernels, &before);
}
