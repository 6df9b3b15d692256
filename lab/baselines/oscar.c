/* OSCAR (Zhou et al. 2026): a Hadamard transform, values clamped to a percentile of the row's
 * magnitudes, then uniform levels with a scale and a zero point per token. Its rotation by what
 * queries and attention use is a sidecar (lowkey compress --method oscar).
 *
 *   y = clamp(H x, -p, p)    p: the N-th percentile of |H x|, with the option clipN
 *
 * y is stored as codec asym stores it (codec/asym.h). */
#include "baselines/baselines.h"
#include "codec/hadamard.h"
#include "codec/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool oscar_parse(const char *word, lk_codec_param *param) {
    return lk_parse_bits(word, "oscar", 2, 4, param);
}

/* "clip50" to "clip99". */
static bool oscar_parse_option(const char *word, lk_codec_param *param) {
    if (param->option || strncmp(word, "clip", 4) != 0 || word[4] < '5' || word[4] > '9' ||
        word[5] < '0' || word[5] > '9' || word[6])
        return false;
    param->option = (uint16_t)(10 * (word[4] - '0') + word[5] - '0');
    return true;
}

static void oscar_print(const lk_codec_param *param, char *buf, size_t cap) {
    if (param->option)
        snprintf(buf, cap, "oscar%d(clip%d)", param->bits, param->option);
    else
        snprintf(buf, cap, "oscar%d", param->bits);
}

/* The codec that stores y. */
static struct lk_codec layout_of(const lk_codec_param *param) {
    return (struct lk_codec){.coding = LK_ASYM, .bits = param->bits};
}

static size_t oscar_bytes(const lk_codec_shape *shape) {
    struct lk_codec layout = layout_of(&shape->param);
    return lk_codec_head_bytes(&layout, lk_shape_side(shape), shape->n_channel, LK_TILE);
}

static size_t oscar_scale_bytes(const lk_codec_shape *shape) {
    struct lk_codec layout = layout_of(&shape->param);
    return lk_codec_head_scale_bytes(&layout, lk_shape_side(shape), shape->n_channel, LK_TILE);
}

static int compare_floats(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Clamp y [n] to a percentile of its magnitudes, between two values linearly. */
static void clip_row(float *y, int n, int percentile) {
    float magnitude[LK_MAX_D_HEAD];
    for (int c = 0; c < n; c++) magnitude[c] = fabsf(y[c]);
    qsort(magnitude, (size_t)n, sizeof *magnitude, compare_floats);
    float at = (float)percentile / 100 * (float)(n - 1);
    int i = (int)at; /* below n - 1: percentile < 100 */
    float limit = magnitude[i] + (at - (float)i) * (magnitude[i + 1] - magnitude[i]);
    for (int c = 0; c < n; c++) y[c] = fminf(fmaxf(y[c], -limit), limit);
}

static void oscar_encode(const lk_codec_shape *shape, void *block, int32_t row0, int32_t n,
                         const float *x, size_t stride) {
    struct lk_codec layout = layout_of(&shape->param);
    struct lk_part part = {&layout, lk_shape_side(shape), shape->n_channel, LK_TILE, NULL};
    int d = shape->n_channel;
    float y[LK_MAX_D_HEAD];
    for (int t = row0; t < row0 + n; t++, x += stride) {
        for (int c = 0; c < d; c++) y[c] = lk_clamp_finite(x[c]);
        lk_rotate(y, d);
        if (shape->param.option) clip_row(y, d, shape->param.option);
        lk_codec_encode(&part, block, t, 1, y, (size_t)d);
    }
}

static void oscar_decode(const lk_codec_shape *shape, const void *block, int32_t row0, int32_t n,
                         float *x, size_t stride) {
    struct lk_codec layout = layout_of(&shape->param);
    struct lk_part part = {&layout, lk_shape_side(shape), shape->n_channel, LK_TILE, NULL};
    lk_codec_decode(&part, block, row0, n, x, stride);
    for (int t = 0; t < n; t++) lk_unrotate(x + t * stride, shape->n_channel);
}

static const lk_preset presets[] = {
    {"oscar-2",
     "sink 64: f16; body: k=latent100%+oscar2(clip96) v=latent100%+oscar2(clip92); window 256: f16",
     "OSCAR: 2 bits, rotated by what queries and attention use; 64 sinks and 256 tokens exact",
     "--method oscar", 0}};

const lk_codec_ops lk_oscar_ops = {
    .name = "oscar",
    .words = "oscar2 to oscar4",
    .example = "oscar4",
    .options = "clip50 to clip99",
    .parse = oscar_parse,
    .parse_option = oscar_parse_option,
    .print = oscar_print,
    .bytes = oscar_bytes,
    .scale_bytes = oscar_scale_bytes,
    .encode = oscar_encode,
    .decode = oscar_decode,
    .preset = presets,
    .n_preset = 1,
};
