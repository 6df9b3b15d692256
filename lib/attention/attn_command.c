/* Calls of attention as commands for a device: segments, addresses, and what the kernels need to
 * know of the codecs. */
#include "attention/attn_command.h"

#include "codec/hadamard.h"

#include <string.h>

/* ---- what a device can do ---- */

static bool rotates(const struct lk_kv *kv, int level) {
    return lk_codec_rotates(&kv->rule[level].codec);
}

/* Rotated levels share one prepared query, or one sum. */
static bool mixes_sigma(const struct lk_kv *kv) {
    bool seen[2] = {false, false};
    for (int i = 0; i < kv->n_level; i++)
        if (rotates(kv, i)) seen[kv->rule[i].codec.sigma] = true;
    return seen[0] && seen[1];
}

static const char *kv_refused(const struct lk_kv *kv) {
    for (int i = 0; i < kv->n_level; i++) {
        if (kv->level[i].basis) return "latents are attended to on the CPU";
        if (kv->rule[i].codec.coding == LK_ADDED)
            return "devices do not run codecs that a program has added";
    }
    if (kv->d_head > LK_DEVICE_MAX_HEAD) return "devices hold heads of at most 512 channels";
    if (kv->d_head % 8 != 0) return "devices hold heads of a multiple of 8 channels";
    if (mixes_sigma(kv)) return "devices rotate all levels of a side with sigma, or none";
    if (lk_kv_is_divided(kv) || kv->is_elsewhere) return "the rows are divided among processes";
    return NULL;
}

const char *lk_attn_refused(const struct lk_attn *attn) {
    const char *reason = kv_refused(attn->k);
    if (!reason) reason = kv_refused(attn->v);
    if (reason) return reason;
    if (attn->read > 0) return "devices read all rows, not a share of them";
    if (attn->alibi_max_bias > 0 && attn->k->evict)
        return "devices do not know the positions of rows that a policy keeps, which ALiBi needs";
    for (int i = 0; attn->d_rope > 0 && i < attn->v->n_level; i++)
        if (attn->v->rule[i].codec.mean) return "values that are keys too must not have a mean";
    return NULL;
}

/* ---- codings ---- */

static struct lk_device_coding coding_of(const struct lk_kv *kv, int level, int part) {
    const struct lk_codec *codec = lk_level_codec(&kv->rule[level], part);
    const struct lk_level *at = &kv->level[level];
    struct lk_device_coding coding = {.coding = codec->coding,
                                      .bits = codec->bits,
                                      .mean = codec->mean,
                                      .rotated = lk_codec_rotates(codec),
                                      .sigma = codec->sigma,
                                      .group = codec->group,
                                      .block_rows = (uint32_t)kv->rule[level].block_rows,
                                      .offset = (uint32_t)lk_level_part_offset(at, part)};
    if (codec->coding == LK_ROT)
        coding.book = codec->trellis ? LK_DEVICE_TRELLIS
                      : codec->lloyd ? LK_DEVICE_LLOYD
                                     : LK_DEVICE_UNIFORM;
    if (codec->coding == LK_ASYM && codec->group == 0) coding.group = (uint16_t)kv->d_head;
    return coding;
}

bool lk_attn_mixes_codecs(const struct lk_kv *kv, int level) {
    return kv->rule[level].n_other > 0 || kv->level[level].part;
}

void lk_attn_codings(const struct lk_kv *kv, int level, struct lk_device_coding *out) {
    for (int part = 0; part < kv->level[level].n_part; part++)
        out[part] = coding_of(kv, level, part);
}

/* ---- rotations ---- */

void lk_attn_rotation(int d, float *matrix) {
    float x[LK_DEVICE_MAX_HEAD];
    for (int c = 0; c < d; c++) {
        memset(x, 0, sizeof x);
        x[c] = 1;
        lk_rotate(x, d);
        for (int i = 0; i < d; i++) matrix[(size_t)i * d + c] = x[i];
    }
}

static void set_rotation(struct lk_device_rotation *rotation, int d, uint64_t matrix) {
    float sign[LK_DEVICE_MAX_HEAD];
    if ((d & (d - 1)) != 0) {
        rotation->matrix = matrix;
        return;
    }
    lk_rotation_signs(sign, d);
    for (int c = 0; c < d; c++)
        if (sign[c] < 0) rotation->sign[c / 32] |= 1u << c % 32;
}

bool lk_attn_shifts(const struct lk_attn *attn) {
    for (int i = 0; i < attn->k->n_level; i++)
        if (attn->k->rule[i].shift) return true;
    return false;
}

void lk_attn_shift_queries(const struct lk_attn *attn, const float *q, float *out) {
    int d = attn->k->d_head, width = attn->d_head + attn->d_rope;
    size_t n = (size_t)attn->n_tok * attn->n_head;
    struct lk_rope_phase phase = {.set = false};
    memcpy(out, q, n * width * sizeof *out);
    if (!attn->rope) return;
    lk_rope_phase_set(attn->rope, &phase, attn->k->first);
    for (size_t i = 0; i < n; i++) {
        size_t at = i * width + (width - d);
        lk_rope_unrotate_query(attn->rope, &phase, q + at, d, out + at);
    }
}

/* ---- segments ---- */

/* Where position pos of a span is. */
static struct lk_device_rows rows_at(const struct lk_kv *kv, const struct lk_attn_addresses *at,
                                     const struct lk_kv_span *span, int64_t pos) {
    int level = span->level;
    struct lk_device_rows rows = {.table = at->table[kv->side][level],
                                  .part = at->part[kv->side][level],
                                  .coding = coding_of(kv, level, 0),
                                  .first = (uint32_t)(kv->count[level].skip + pos - span->first)};
    if (!lk_attn_mixes_codecs(kv, level)) rows.coding.next = (uint32_t)kv->level[level].head_bytes;
    return rows;
}

/* Positions [pos, end) of the spans of K and V as the next segment. */
static void add_segment(const struct lk_attn *attn, const struct lk_attn_addresses *at,
                        const struct lk_kv_span *k, const struct lk_kv_span *v, int64_t pos,
                        int64_t end, struct lk_device_attend *out) {
    const struct lk_kv *kv = attn->k;
    bool shift = kv->rule[k->level].shift;
    int64_t token = kv->n_tok - attn->n_tok; /* the first query token */
    struct lk_device_segment segment = {.k = rows_at(kv, at, k, pos),
                                        .v = rows_at(attn->v, at, v, pos),
                                        .n_row = (int32_t)(end - pos),
                                        .before = (int32_t)(token - pos),
                                        .shifted = shift};
    int64_t key = lk_kv_position(kv, k->level, pos - k->first, 0);
    segment.distance = (int32_t)(token - (shift ? kv->first : 0) - key);
    out->segment[out->n_segment++] = segment;
}

void lk_attn_command(const struct lk_attn *attn, const struct lk_attn_addresses *at,
                     struct lk_device_attend *out) {
    const struct lk_kv *kv = attn->k;
    int64_t from = kv->first, end = kv->n_tok, oldest = end - attn->n_tok - kv->n_swa + 1;
    if (kv->n_swa > 0 && from < oldest) from = oldest;
    *out = (struct lk_device_attend){.q = at->q,
                                     .q_shifted = lk_attn_shifts(attn) ? at->q_shifted : 0,
                                     .out = at->out,
                                     .partial = at->partial,
                                     .extra = at->extra,
                                     .n_extra = at->n_extra,
                                     .levels = at->levels,
                                     .sink = at->sink,
                                     .slope = attn->alibi_max_bias > 0 ? at->slope : 0,
                                     .n_tok = attn->n_tok,
                                     .n_head = attn->n_head,
                                     .n_head_kv = attn->n_head_kv,
                                     .d_head = attn->d_head,
                                     .d_rope = attn->d_rope,
                                     .window = kv->n_swa,
                                     .scale = attn->scale,
                                     .softcap = attn->softcap};
    for (int i = 0; i < kv->n_level; i++)
        if (rotates(kv, i) && kv->rule[i].codec.sigma) out->k_sigma = at->sigma[LK_K];
    for (int i = 0; i < attn->v->n_level; i++)
        if (rotates(attn->v, i) && attn->v->rule[i].codec.sigma) out->v_sigma = at->sigma[LK_V];
    set_rotation(&out->k_rotation, kv->d_head, at->matrix[LK_K]);
    set_rotation(&out->v_rotation, attn->v->d_head, at->matrix[LK_V]);

    for (struct lk_kv_span k = lk_kv_spans(kv); lk_kv_next_span(kv, from, end, &k);)
        for (struct lk_kv_span v = lk_kv_spans(attn->v);
             lk_kv_next_span(attn->v, k.pos, k.end, &v);)
            add_segment(attn, at, &k, &v, v.pos, v.end, out);
}
