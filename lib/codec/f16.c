/* Codec f16. The layout is drawn in f16.h. */
#include "codec/f16.h"

#include "codec/half.h"

#include <math.h>
#include <stdio.h>

static size_t f16_landmark_bytes(const struct lk_part *part) {
    if (!part->codec->landmarks) return 0;
    return part->block_rows / LK_LANDMARK_ROWS * (sizeof(uint16_t) * part->d_head + sizeof(float));
}

static size_t f16_head_bytes(const struct lk_part *part) {
    return sizeof(uint16_t) * part->block_rows * part->d_head + f16_landmark_bytes(part);
}

static void f16_print(const struct lk_codec *codec, enum lk_side side, char *buf, size_t cap) {
    (void)side;
    snprintf(buf, cap, codec->landmarks ? "f16(landmarks)" : "f16");
}

/* The mean of a chunk's rows, and the smallest cosine between it and one of them. */
static float set_landmark(const uint16_t *row, int d, uint16_t *landmark) {
    float mean[LK_MAX_D_HEAD], norm = 0, closeness = 1;
    for (int c = 0; c < d; c++) {
        float sum = 0;
        for (int t = 0; t < LK_LANDMARK_ROWS; t++) sum += lk_f16_to_f32(row[t * d + c]);
        landmark[c] = lk_f32_to_f16(sum / LK_LANDMARK_ROWS);
        mean[c] = lk_f16_to_f32(landmark[c]);
        norm += mean[c] * mean[c];
    }
    for (int t = 0; t < LK_LANDMARK_ROWS; t++) {
        float dot = 0, square = 0;
        for (int c = 0; c < d; c++) {
            float x = lk_f16_to_f32(row[t * d + c]);
            dot += x * mean[c];
            square += x * x;
        }
        float cosine = norm > 0 && square > 0 ? dot / sqrtf(norm * square) : 1;
        if (cosine < closeness) closeness = cosine;
    }
    return closeness;
}

void lk_f16_update_landmarks(const struct lk_part *part, void *head, int row0, int n) {
    enum { ROWS = LK_LANDMARK_ROWS };
    int d = part->d_head;
    for (int chunk = row0 / ROWS; chunk < (row0 + n) / ROWS; chunk++) {
        uint16_t *landmark = (uint16_t *)lk_f16_landmarks(head, d, part->block_rows) + chunk * d;
        float *closeness = (float *)lk_f16_closeness(head, d, part->block_rows) + chunk;
        *closeness = set_landmark(lk_f16_row(head, d, chunk * ROWS), d, landmark);
    }
}

static void f16_encode(const struct lk_part *part, void *head, int row0, int n, const float *x,
                       size_t stride) {
    uint16_t *out = (uint16_t *)head + (size_t)row0 * part->d_head;
    for (int t = 0; t < n; t++, x += stride, out += part->d_head)
        for (int c = 0; c < part->d_head; c++) out[c] = lk_f32_to_f16(x[c]);
    if (part->codec->landmarks) lk_f16_update_landmarks(part, head, row0, n);
}

static void f16_decode(const struct lk_part *part, const void *head, int row0, int n, float *x,
                       size_t stride) {
    for (int t = 0; t < n; t++, x += stride) {
        const uint16_t *row = lk_f16_row(head, part->d_head, row0 + t);
        for (int c = 0; c < part->d_head; c++) x[c] = lk_f16_to_f32(row[c]);
    }
}

const struct lk_codec_ops lk_f16_ops = {
    .head_bytes = f16_head_bytes,
    .scale_bytes = f16_landmark_bytes,
    .print = f16_print,
    .encode = f16_encode,
    .decode = f16_decode,
};
