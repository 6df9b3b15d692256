/* Dispatch to the codecs, and what they have in common. */
#include "codec/codec.h"

#include "base/buf.h"
#include "codec/added.h"
#include "codec/asym.h"
#include "codec/f16.h"
#include "codec/hadamard.h"
#include "codec/int8.h"
#include "codec/kivi.h"
#include "codec/ops.h"
#include "codec/rot.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

_Static_assert(offsetof(struct lk_codec, share) == offsetof(struct lk_codec, unused) + 1 &&
                   sizeof(struct lk_codec) == offsetof(struct lk_codec, share) + sizeof(uint32_t),
               "codecs are compared with memcmp");

const struct lk_codec lk_codec_f16 = {.coding = LK_F16, .bits = 16};

/* A switch, so that compilers name a coding that was left out. */
static const struct lk_coding_ops *codec_ops(const struct lk_codec *codec) {
    switch ((enum lk_coding)codec->coding) {
    case LK_F16: return &lk_f16_ops;
    case LK_INT8: return &lk_int8_ops;
    case LK_KIVI: return &lk_kivi_ops;
    case LK_ROT: return &lk_rot_ops;
    case LK_ASYM: return &lk_asym_ops;
    case LK_ADDED: break;
    }
    return &lk_added_ops;
}

int lk_codec_block_rows(const struct lk_codec *codec, enum lk_side side) {
    const struct lk_coding_ops *ops = codec_ops(codec);
    return ops->block_rows ? ops->block_rows(codec, side) : LK_TILE;
}

bool lk_codec_row_wise(const struct lk_codec *codec, enum lk_side side) {
    const struct lk_coding_ops *ops = codec_ops(codec);
    return ops->row_wise ? ops->row_wise(codec, side) : true;
}

bool lk_codec_single_rows(const struct lk_codec *codec, enum lk_side side) {
    return lk_codec_row_wise(codec, side) && !codec->sigma;
}

int lk_codec_unit(const struct lk_codec *codec, enum lk_side side) {
    const struct lk_coding_ops *ops = codec_ops(codec);
    return ops->unit ? ops->unit(codec, side) : 8;
}

const char *lk_codec_reject_reason(const struct lk_codec *codec, enum lk_side side, int d_head) {
    const struct lk_coding_ops *ops = codec_ops(codec);
    if (d_head < 8 || d_head % 8) return "d_head must be a multiple of 8";
    if (d_head > LK_MAX_D_HEAD) return "rows of more than 5120 channels are not supported";
    return ops->reject_reason ? ops->reject_reason(codec, side, d_head) : NULL;
}

size_t lk_codec_head_bytes(const struct lk_codec *codec, enum lk_side side, int d_head,
                           int block_rows) {
    struct lk_part part = {codec, side, d_head, block_rows, NULL};
    return (codec_ops(codec)->head_bytes(&part) + 31) / 32 * 32;
}

size_t lk_codec_head_scale_bytes(const struct lk_codec *codec, enum lk_side side, int d_head,
                                 int block_rows) {
    struct lk_part part = {codec, side, d_head, block_rows, NULL};
    const struct lk_coding_ops *ops = codec_ops(codec);
    return ops->scale_bytes ? ops->scale_bytes(&part) : 0;
}

/* Print "latent" or "latent62.5%(pre)". Returns the length. */
static size_t print_projection(const struct lk_codec *codec, char *buf, size_t cap) {
    char share[16] = "";
    if (codec->share) {
        size_t len = lk_print_thousandths(share, sizeof share, codec->share);
        snprintf(share + len, sizeof share - len, "%%");
    }
    bool pre = codec->projection == LK_PROJECTION_LATENT_PRE;
    int n = snprintf(buf, cap, "latent%s%s", share, pre ? "(pre)" : "");
    return (size_t)n < cap ? (size_t)n : cap;
}

void lk_codec_print(const struct lk_codec *codec, enum lk_side side, char *buf, size_t cap) {
    size_t n = codec->projection ? print_projection(codec, buf, cap) : 0;
    if (n && codec->coding == LK_F16) return;
    if (n && n + 1 < cap) buf[n++] = '+';
    codec_ops(codec)->print(codec, side, buf + n, cap - n);
}

void lk_codec_encode(const struct lk_part *part, void *head, int row0, int n, const float *x,
                     size_t stride) {
    codec_ops(part->codec)->encode(part, head, row0, n, x, stride);
}

bool lk_codec_can_replace(const struct lk_codec *codec, enum lk_side side) {
    return lk_codec_row_wise(codec, side) || (codec_ops(codec)->replace && !codec->trellis);
}

void lk_codec_replace(const struct lk_part *part, void *head, int row, const float *x) {
    if (lk_codec_row_wise(part->codec, part->side))
        codec_ops(part->codec)->encode(part, head, row, 1, x, (size_t)part->d_head);
    else
        codec_ops(part->codec)->replace(part, head, row, x);
}

void lk_codec_decode(const struct lk_part *part, const void *head, int row0, int n, float *x,
                     size_t stride) {
    codec_ops(part->codec)->decode(part, head, row0, n, x, stride);
}

void lk_codec_transform_query(const struct lk_codec *codec, int d_head, const float *sigma,
                              const float *q, float *out) {
    if (out != q) memcpy(out, q, d_head * sizeof *out);
    if (!lk_codec_rotates(codec)) return;
    for (int c = 0; sigma && c < d_head; c++) out[c] *= sigma[c];
    lk_rotate(out, d_head);
}

void lk_codec_restore_output(const struct lk_codec *codec, int d_head, const float *sigma,
                             const float *acc, float *out) {
    if (out != acc) memcpy(out, acc, d_head * sizeof *out);
    if (!lk_codec_rotates(codec)) return;
    lk_unrotate(out, d_head);
    for (int c = 0; sigma && c < d_head; c++) out[c] *= sigma[c];
}

bool lk_codec_same_domain(const struct lk_codec *a, const struct lk_codec *b) {
    return lk_codec_rotates(a) == lk_codec_rotates(b) && a->sigma == b->sigma;
}
