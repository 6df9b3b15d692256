/* Scores chunks by their landmarks, and gathers their rows. */
#include "attention/landmarks.h"

#include "codec/f16.h"
#include "kernels/inline.h"

#include <string.h>

enum { LINE = 64 };

size_t lk_landmarks_gather_floats(int d_head) { return (size_t)LK_ATTN_CHUNK * d_head; }

/* f16 rows in one block of LK_ATTN_CHUNK rows. */
static struct lk_rows gathered_rows(uint16_t *from, int d, int n, void **block) {
    *block = from;
    return (struct lk_rows){
        .codec = &lk_codec_f16, .block = block, .d_head = d, .block_rows = LK_ATTN_CHUNK, .n = n};
}

/* Inlined, because gcc drops calls of functions that only prefetch. */
LK_ALWAYS_INLINE void fetch(const void *from, size_t bytes) {
    for (size_t at = 0; at < bytes; at += LINE) __builtin_prefetch((const char *)from + at, 0, 2);
}

/* Copy the landmarks of n chunks of a zone, from `chunk` on, and 1 - their closeness. */
static void gather_landmarks(const struct lk_kv *k, const struct lk_read_zone *zone, int part,
                             int chunk, int n, uint16_t *out, float *distance) {
    enum { AHEAD = 8 }; /* blocks */
    const struct lk_level *level = &k->level[zone->level];
    int d = level->d_part, block_rows = k->rule[zone->level].block_rows;
    size_t offset = lk_level_part_offset(level, part);
    for (int at = 0, n_now; at < n; at += n_now) {
        int64_t row = zone->k_row + (int64_t)(chunk + at) * LK_LANDMARK_ROWS;
        int64_t b = row / block_rows;
        int first = (int)(row % block_rows) / LK_LANDMARK_ROWS;
        n_now = block_rows / LK_LANDMARK_ROWS - first;
        if (n_now > n - at) n_now = n - at;
        const char *head = (const char *)level->block[b] + offset;
        size_t bytes = sizeof(uint16_t) * n_now * d;
        if (b + AHEAD < level->n_block)
            fetch(lk_f16_landmarks((const char *)level->block[b + AHEAD] + offset, d, block_rows),
                  bytes + sizeof(float) * n_now);
        memcpy(out + (size_t)at * d, lk_f16_landmarks(head, d, block_rows) + (size_t)first * d,
               bytes);
        const float *closeness = lk_f16_closeness(head, d, block_rows) + first;
        for (int i = 0; i < n_now; i++) distance[at + i] = closeness[i] < 1 ? 1 - closeness[i] : 0;
    }
}

void lk_landmarks_score(struct lk_attn_item *item, const struct lk_read *read,
                        const struct lk_read_zone *zone) {
    const struct lk_attn *attn = item->attn;
    float *s = item->mem.score + LK_SCORE_PAD;
    int d = attn->k->level[zone->level].d_part;
    void *block;
    for (int h = 0; h < item->n_head_kv; h++)
        for (int t = 0, n; t < zone->n_unit; t += n) {
            n = zone->n_unit - t < LK_ATTN_CHUNK ? zone->n_unit - t : LK_ATTN_CHUNK;
            gather_landmarks(attn->k, zone, item->head_kv + h, t, n, read->rows,
                             read->distance + (size_t)h * read->n_unit + zone->first + t);
            struct lk_rows rows = gathered_rows(read->rows, d, n, &block);
            attn->kernels->score(&rows, &item->queries[h], s, item->stride);
            for (int i = 0; i < item->n_each; i++)
                memcpy(read->score + ((size_t)h * item->n_each + i) * read->n_unit + zone->first +
                           t,
                       s + i * item->stride, n * sizeof *s);
        }
}

/* The rows of chunk `chunk` of a zone; first_row: the zone's first row in the level's blocks. */
static const uint16_t *chunk_rows(const struct lk_level *level, int block_rows, size_t offset,
                                  int64_t first_row, int chunk) {
    int64_t row = first_row + (int64_t)chunk * LK_LANDMARK_ROWS;
    const char *head = (const char *)level->block[row / block_rows] + offset;
    return lk_f16_row(head, level->d_part, (int)(row % block_rows));
}

void lk_landmarks_gather(const struct lk_attn_item *item, const struct lk_read *read,
                         const struct lk_read_zone *zone, const int *chunk, int n, void **block,
                         struct lk_rows *rows) {
    enum { AHEAD = 4 }; /* chunks */
    uint16_t *out = read->rows;
    int n_row = n * LK_LANDMARK_ROWS, n_padded = (n_row + LK_TILE - 1) / LK_TILE * LK_TILE;
    for (int side = LK_K; side <= LK_V; side++) {
        const struct lk_kv *kv = side == LK_K ? item->attn->k : item->attn->v;
        int of = side == LK_K ? zone->level : zone->v_level;
        const struct lk_level *level = &kv->level[of];
        int64_t first = side == LK_K ? zone->k_row : zone->v_row;
        int d = level->d_part, block_rows = kv->rule[of].block_rows;
        size_t offset = lk_level_part_offset(level, item->head_kv);
        size_t bytes = sizeof(uint16_t) * LK_LANDMARK_ROWS * d;
        for (int i = 0; i < n; i++) {
            if (i + AHEAD < n)
                fetch(chunk_rows(level, block_rows, offset, first, chunk[i + AHEAD]), bytes);
            memcpy(out + (size_t)i * LK_LANDMARK_ROWS * d,
                   chunk_rows(level, block_rows, offset, first, chunk[i]), bytes);
        }
        rows[side] = gathered_rows(out, d, side == LK_K ? n_row : n_padded, &block[side]);
        if (side == LK_V) memset(out + (size_t)n_row * d, 0, sizeof *out * (n_padded - n_row) * d);
        out += (size_t)LK_ATTN_CHUNK * d;
    }
}
