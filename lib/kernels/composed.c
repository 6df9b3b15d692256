/* Kernels of codecs that are composed from those of other codecs. */
#include "kernels/composed.h"

#include "codec/asym.h"
#include "kernels/tile.h"

#include <string.h>

enum {
    GROUP = 128,                  /* channels of the largest group */
    ROWS = LK_MAX_KERNEL_CHUNK,   /* rows of a step */
    QUERIES = 8,                  /* queries of a step */
    QUERY_BYTES = 5 * GROUP + 16, /* of a prepared query */
};

/* Rows [at, at + n) of a run, at a multiple of LK_TILE. */
static struct lk_rows rows_from(const struct lk_rows *rows, int at, int n) {
    struct lk_rows some = *rows;
    int row = rows->row0 + at;
    some.block += row / rows->block_rows;
    some.row0 = row % rows->block_rows;
    some.n = n;
    if (at > 0) some.prefetch.n_block = 0;
    return some;
}

/* ---- asym with groups ---- */

/* The same rows with group g of channels only. One group fetches for all. */
static struct lk_rows group_rows(const struct lk_rows *rows, const struct lk_codec *ungrouped,
                                 int g) {
    struct lk_rows group = *rows;
    group.codec = ungrouped;
    group.d_head = rows->codec->group;
    group.offset += g * lk_asym_group_bytes(ungrouped, group.d_head);
    if (g > 0) group.prefetch.n_block = 0;
    return group;
}

static struct lk_codec without_groups(const struct lk_codec *codec) {
    struct lk_codec ungrouped = *codec;
    ungrouped.group = 0;
    return ungrouped;
}

/* s [n_q][n] = sum of the groups' scores, for n_q <= QUERIES queries q [n_q][d_head]. */
static void score_groups(const struct lk_kernels *kernels, const struct lk_rows *rows,
                         const float *q, int n_q, float *s, size_t stride) {
    _Alignas(64) char mem[QUERIES * QUERY_BYTES];
    float part[QUERIES * ROWS], channels[QUERIES * GROUP];
    struct lk_codec ungrouped = without_groups(rows->codec);
    int width = rows->codec->group, d = rows->d_head;
    struct lk_queries queries;
    for (int g = 0; g < d / width; g++) {
        for (int i = 0; i < n_q; i++)
            memcpy(channels + i * width, q + (size_t)i * d + g * width, width * sizeof *q);
        lk_queries_prepare(&queries, channels, n_q, width, mem);
        for (int at = 0; at < rows->n; at += ROWS) {
            int n = rows->n - at < ROWS ? rows->n - at : ROWS;
            struct lk_rows some = rows_from(rows, at, n), group = group_rows(&some, &ungrouped, g);
            lk_kernels_score(kernels, &group, &queries, part, ROWS);
            for (int i = 0; i < n_q; i++) {
                float *out = s + i * stride + at;
                for (int t = 0; t < n; t++)
                    out[t] = g ? out[t] + part[i * ROWS + t] : part[i * ROWS + t];
            }
        }
    }
}

static void accumulate_groups(const struct lk_kernels *kernels, const struct lk_rows *rows,
                              const float *p, size_t stride, int n_q, float *acc) {
    float part[QUERIES * GROUP];
    struct lk_codec ungrouped = without_groups(rows->codec);
    int width = rows->codec->group, d = rows->d_head;
    for (int g = 0; g < d / width; g++) {
        struct lk_rows group = group_rows(rows, &ungrouped, g);
        memset(part, 0, sizeof part);
        lk_kernels_accumulate(kernels, &group, p, stride, n_q, part);
        for (int i = 0; i < n_q; i++)
            for (int c = 0; c < width; c++)
                acc[(size_t)i * d + g * width + c] += part[i * width + c];
    }
}

void lk_asym_score(const struct lk_kernels *kernels, const struct lk_rows *rows,
                   const struct lk_queries *q, float *s, size_t stride) {
    const struct lk_coding_kernels *rot = &kernels->coding[LK_ROT];
    const struct lk_codec *codec = rows->codec;
    if (!codec->group) {
        (q->n_q <= kernels->few ? rot->score_few : rot->score)(kernels, rows, q, s, stride);
        kernels->add_score_offsets(rows, q, codec->bits > kernels->max_bits_q8, s, stride);
        return;
    }
    for (int i = 0; i < q->n_q; i += QUERIES)
        score_groups(kernels, rows, q->q + (size_t)i * rows->d_head,
                     q->n_q - i < QUERIES ? q->n_q - i : QUERIES, s + i * stride, stride);
}

void lk_asym_accumulate(const struct lk_kernels *kernels, const struct lk_rows *rows,
                        const float *p, size_t stride, int n_q, float *acc) {
    const struct lk_coding_kernels *rot = &kernels->coding[LK_ROT];
    if (!rows->codec->group) {
        (n_q <= kernels->few ? rot->accumulate_few : rot->accumulate)(kernels, rows, p, stride, n_q,
                                                                      acc);
        kernels->add_sum_offsets(rows, p, stride, n_q, acc);
        return;
    }
    for (int i = 0; i < n_q; i += QUERIES)
        accumulate_groups(kernels, rows, p + i * stride, stride,
                          n_q - i < QUERIES ? n_q - i : QUERIES, acc + (size_t)i * rows->d_head);
}

/* ---- decoded to half floats ---- */

/* One tile of rows as half floats. */
struct half_tile {
    _Alignas(64) uint16_t half[LK_TILE * LK_MAX_D_HEAD];
    void *block[1];
    struct lk_rows rows;
};

static void decode_tile(const struct lk_kernels *kernels, const struct lk_rows *rows, int t,
                        enum lk_side side, struct half_tile *out) {
    float x[LK_TILE * LK_MAX_D_HEAD];
    struct lk_tile tile = lk_rows_tile(rows, t);
    int d = rows->d_head;
    struct lk_part part = {rows->codec, side, d, rows->block_rows, rows->sigma},
                   half = {&lk_codec_f16, side, d, LK_TILE, NULL};
    kernels->decode(&part, tile.head, tile.row0, tile.n, x, (size_t)d);
    kernels->encode(&half, out->half, 0, tile.n, x, (size_t)d);
    out->block[0] = out->half;
    out->rows = (struct lk_rows){.codec = &lk_codec_f16,
                                 .block = out->block,
                                 .d_head = d,
                                 .block_rows = LK_TILE,
                                 .n = tile.n};
}

void lk_decoded_score(const struct lk_kernels *kernels, const struct lk_rows *rows,
                      const struct lk_queries *q, float *s, size_t stride) {
    struct half_tile tile;
    for (int t = 0; t < lk_rows_n_tile(rows); t++) {
        decode_tile(kernels, rows, t, LK_K, &tile);
        lk_kernels_score(kernels, &tile.rows, q, s + t * LK_TILE, stride);
    }
}

void lk_decoded_accumulate(const struct lk_kernels *kernels, const struct lk_rows *rows,
                           const float *p, size_t stride, int n_q, float *acc) {
    struct half_tile tile;
    for (int t = 0; t < lk_rows_n_tile(rows); t++) {
        decode_tile(kernels, rows, t, LK_V, &tile);
        lk_kernels_accumulate(kernels, &tile.rows, p + t * LK_TILE, stride, n_q, acc);
    }
}

void lk_score_values(const struct lk_kernels *kernels, const struct lk_rows *rows,
                     const struct lk_queries *q, float *s, size_t stride) {
    if (rows->codec->coding == LK_F16) { /* both sides have the same layout */
        lk_kernels_score(kernels, rows, q, s, stride);
        return;
    }
    struct half_tile tile;
    for (int t = 0; t < lk_rows_n_tile(rows); t++) {
        decode_tile(kernels, rows, t, LK_V, &tile);
        lk_kernels_score(kernels, &tile.rows, q, s + t * LK_TILE, stride);
    }
}
