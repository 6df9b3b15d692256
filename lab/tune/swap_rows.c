/* Replaces rows of a full cache and puts them back. */
#include "tune/swap_rows.h"

struct lk_swap lk_swap_find(const struct lk_swap *pair, const struct lk_kv *kv, int layer) {
    const struct lk_kv *from = &pair->coded->cache->kv[layer][kv->side];
    struct lk_swap r = *pair;
    r.kv = kv;
    r.layer = layer;
    r.a = r.b = 0;
    for (int level = 0; level < from->n_level; level++) {
        if (from->rule[level].codec.coding == LK_F16 || from->count[level].rows == 0) continue;
        r.a = lk_kv_position(from, level, 0, 0);
        r.b = r.a + from->count[level].rows;
    }
    if (r.a < kv->first) r.a = kv->first;
    if (r.b < r.a) r.b = r.a;
    r.first = r.a;
    return r;
}

/* Write a head's rows x of positions [a, b), `stride` floats apart. */
static void write_positions(const struct lk_kv *kv, int64_t a, int64_t b, int head, const float *x,
                            size_t stride) {
    for (struct lk_kv_span s = lk_kv_spans(kv); lk_kv_next_span(kv, a, b, &s);) {
        struct lk_part part = lk_kv_part(kv, s.level, head);
        for (int64_t pos = s.pos, n; pos < s.end; pos += n) {
            int row;
            char *block = lk_kv_locate(kv, s.level, pos - s.first, &row, &n);
            if (n > s.end - pos) n = s.end - pos;
            lk_codec_encode(&part, block + lk_level_part_offset(&kv->level[s.level], head), row,
                            (int)n, x + (pos - a) * (int64_t)stride, stride);
        }
    }
}

void lk_swap_read_exact(const struct lk_swap *r, float *exact) {
    const struct lk_kv *kv = r->kv;
    size_t stride = lk_kv_width(kv);
    for (int head = 0; head < kv->n_head; head++)
        lk_kv_read_positions(kv, r->a, r->b, head, r->full->cache->kernels,
                             exact + (size_t)head * kv->d_head, stride);
}

void lk_swap_write_exact(const struct lk_swap *r, const float *exact) {
    const struct lk_kv *kv = r->kv;
    size_t stride = lk_kv_width(kv);
    for (int head = 0; head < kv->n_head; head++)
        write_positions(kv, r->a, r->b, head, exact + (size_t)head * kv->d_head, stride);
}

void lk_swap_write_coded(const struct lk_swap *r, const float *exact, float factor) {
    const struct lk_kv *kv = r->kv, *from = &r->coded->cache->kv[r->layer][kv->side];
    size_t stride = lk_kv_width(kv), d = (size_t)kv->d_head;
    for (int head = 0; head < kv->n_head; head++)
        for (int64_t pos = r->a, n; pos < r->b; pos += n) {
            n = r->b - pos < LK_SWAP_ROWS ? r->b - pos : LK_SWAP_ROWS;
            const float *was = exact + (size_t)(pos - r->first) * stride + head * d;
            lk_kv_read_positions(from, pos, pos + n, head, r->coded->cache->kernels, r->move, d);
            for (int64_t row = 0; row < n; row++)
                for (size_t c = 0; c < d; c++) {
                    float *x = &r->move[(size_t)row * d + c], x0 = was[(size_t)row * stride + c];
                    *x = x0 + factor * (*x - x0);
                }
            write_positions(kv, pos, pos + n, head, r->move, d);
        }
}

void lk_swap_v(const struct lk_swap *pair, int layer, int n, float factor, float *exact,
               size_t n_row) {
    for (int i = layer; i < layer + n; i++, exact += n_row) {
        struct lk_swap r = lk_swap_find(pair, &pair->full->cache->kv[i][LK_V], i);
        lk_swap_read_exact(&r, exact);
        lk_swap_write_coded(&r, exact, factor);
    }
}

void lk_swap_v_back(const struct lk_swap *pair, int layer, int n, const float *exact,
                    size_t n_row) {
    for (int i = layer; i < layer + n; i++, exact += n_row) {
        struct lk_swap r = lk_swap_find(pair, &pair->full->cache->kv[i][LK_V], i);
        lk_swap_write_exact(&r, exact);
    }
}
