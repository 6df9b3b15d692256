/* K or V of one layer: finding and decoding rows. */
#include "cache/kv.h"

char *lk_kv_locate(const struct lk_kv *kv, int level, int64_t at, int *row, int64_t *n) {
    int64_t index = kv->count[level].skip + at;
    int block_rows = kv->rule[level].block_rows;
    *row = (int)(index % block_rows);
    int64_t in_block = block_rows - *row, in_level = kv->count[level].rows - at;
    *n = in_block < in_level ? in_block : in_level;
    return lk_kv_block(kv, level, index / block_rows);
}

int64_t lk_kv_position(const struct lk_kv *kv, int level, int64_t at, int head) {
    if (kv->evict) {
        for (int i = 0; i < level; i++) at += kv->count[i].rows;
        return kv->evict->pos[at * kv->evict->n_head + head];
    }
    if (level == 0 && lk_level_sinks(kv->rule, kv->n_level)) return at;
    int64_t newer = 0;
    for (int i = level; i < kv->n_level; i++) newer += kv->count[i].rows;
    return kv->n_tok - newer + at;
}

bool lk_kv_next_span(const struct lk_kv *kv, int64_t a, int64_t b, struct lk_kv_span *span) {
    do {
        if (span->level >= 0) span->first += kv->count[span->level].rows;
        if (++span->level == kv->n_level) return false;
        int64_t end = span->first + kv->count[span->level].rows;
        span->pos = span->first > a ? span->first : a;
        span->end = end < b ? end : b;
    } while (span->pos >= span->end);
    return true;
}

void lk_kv_read(const struct lk_row_range *range, int part, const struct lk_kernels *kernels,
                float *x, size_t stride) {
    const struct lk_kv *kv = range->kv;
    struct lk_part p = lk_kv_part(kv, range->level, part);
    for (int64_t done = 0; done < range->n;) {
        int row;
        int64_t n;
        const char *block = lk_kv_locate(kv, range->level, range->at + done, &row, &n);
        if (n > range->n - done) n = range->n - done;
        kernels->decode(&p, block + lk_level_part_offset(&kv->level[range->level], part), row,
                        (int)n, x + done * stride, stride);
        done += n;
    }
}

void lk_kv_read_positions(const struct lk_kv *kv, int64_t a, int64_t b, int head,
                          const struct lk_kernels *kernels, float *x, size_t stride) {
    for (struct lk_kv_span s = lk_kv_spans(kv); lk_kv_next_span(kv, a, b, &s);) {
        struct lk_row_range range = {kv, s.level, s.pos - s.first, s.end - s.pos};
        lk_kv_read(&range, head, kernels, x, stride);
        x += range.n * (int64_t)stride;
    }
}
