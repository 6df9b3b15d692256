#include "codec/codec.h"

#include "codec/hadamard.h"
#include "codec/ops.h"

#include <stdio.h>
#include <string.h>

static const struct lk_codec_ops *ops_of(const struct lk_codec *codec) {
    static const struct lk_codec_ops *const table[] = {[LK_F16] = &lk_f16_ops,
                                                       [LK_INT8] = &lk_int8_ops,
                                                       [LK_KIVI] = &lk_kivi_ops,
                                                       [LK_ROT] = &lk_rot_ops};
    return table[codec->coding];
}

int lk_codec_block_rows(const struct lk_codec *codec, enum lk_side side) {
    return ops_of(codec)->block_rows(codec, side);
}

bool lk_codec_row_wise(const struct lk_codec *codec, enum lk_side side) {
    return ops_of(codec)->row_wise(codec, side);
}

bool lk_codec_single_rows(const struct lk_codec *codec, enum lk_side side) {
    return lk_codec_row_wise(codec, side) && !codec->sigma;
}

const char *lk_codec_refuses(const struct lk_codec *codec, enum lk_side side, int d_head) {
    if (d_head < 8 || d_head % 8) return "d_head must be a multiple of 8";
    if (d_head > LK_MAX_D_HEAD) return "d_head must be at most 1024";
    return ops_of(codec)->refuses ? ops_of(codec)->refuses(codec, side, d_head) : NULL;
}

size_t lk_codec_head_bytes(const struct lk_codec *codec, enum lk_side side, int d_head,
                           int block_rows) {
    struct lk_part part = {codec, side, d_head, block_rows, NULL};
    return (ops_of(codec)->head_bytes(&part) + 31) / 32 * 32;
}

size_t lk_codec_head_scale_bytes(const struct lk_codec *codec, enum lk_side side, int d_head,
                                 int block_rows) {
    struct lk_part part = {codec, side, d_head, block_rows, NULL};
    return ops_of(codec)->scale_bytes(&part);
}

const struct lk_codec lk_exact = {.coding = LK_F16, .bits = 16};

bool lk_codec_lloyd(int bits) { return bits >= 2 && bits <= 4; }

/* "latent", "latent62.5%(pre)": without floats, whose point depends on the locale. Returns the length. */
static size_t print_projection(const struct lk_codec *codec, char *buf, size_t cap) {
    char share[16] = "";
    if (codec->share) {
        int n = snprintf(share, sizeof share, "%u.%03u", codec->share / 1000 % 1000,
                         codec->share % 1000);
        while (share[n - 1] == '0') n--;
        if (share[n - 1] == '.') n--;
        snprintf(share + n, sizeof share - (size_t)n, "%%");
    }
    int n =
        snprintf(buf, cap, "latent%s%s", share, codec->projection == LK_LATENTS_PRE ? "(pre)" : "");
    return (size_t)n < cap ? (size_t)n : cap;
}

void lk_codec_print(const struct lk_codec *codec, enum lk_side side, char *buf, size_t cap) {
    size_t n = codec->projection ? print_projection(codec, buf, cap) : 0;
    if (n && codec->coding == LK_F16) return;
    if (n && n + 1 < cap) buf[n++] = '+';
    ops_of(codec)->print(codec, side, buf + n, cap - n);
}

void lk_codec_encode(const struct lk_codec *codec, enum lk_side side, int d_head, int block_rows,
                     const float *sigma, void *head, int row0, int n, const float *x,
                     size_t stride) {
    struct lk_part part = {codec, side, d_head, block_rows, sigma};
    ops_of(codec)->encode(&part, head, row0, n, x, stride);
}

bool lk_codec_replaces(const struct lk_codec *codec, enum lk_side side) {
    return lk_codec_row_wise(codec, side) || ops_of(codec)->replace;
}

void lk_codec_replace(const struct lk_codec *codec, enum lk_side side, int d_head, int block_rows,
                      const float *sigma, void *head, int row, const float *x) {
    struct lk_part part = {codec, side, d_head, block_rows, sigma};
    if (lk_codec_row_wise(codec, side))
        ops_of(codec)->encode(&part, head, row, 1, x, d_head);
    else
        ops_of(codec)->replace(&part, head, row, x);
}

void lk_codec_decode(const struct lk_codec *codec, enum lk_side side, int d_head, int block_rows,
                     const float *sigma, const void *head, int row0, int n, float *x,
                     size_t stride) {
    struct lk_part part = {codec, side, d_head, block_rows, sigma};
    ops_of(codec)->decode(&part, head, row0, n, x, stride);
}

void lk_codec_query(const struct lk_codec *codec, int d_head, const float *sigma, const float *q,
                    float *out) {
    if (out != q) memcpy(out, q, d_head * sizeof *out);
    if (codec->coding != LK_ROT) return;
    for (int c = 0; sigma && c < d_head; c++) out[c] *= sigma[c];
    lk_rotate(out, d_head);
}

void lk_codec_output(const struct lk_codec *codec, int d_head, const float *sigma, const float *acc,
                     float *out) {
    if (out != acc) memcpy(out, acc, d_head * sizeof *out);
    if (codec->coding != LK_ROT) return;
    lk_unrotate(out, d_head);
    for (int c = 0; sigma && c < d_head; c++) out[c] *= sigma[c];
}

bool lk_codec_same_domain(const struct lk_codec *a, const struct lk_codec *b) {
    if (a->coding != LK_ROT || b->coding != LK_ROT)
        return a->coding != LK_ROT && b->coding != LK_ROT;
    return a->sigma == b->sigma;
}
