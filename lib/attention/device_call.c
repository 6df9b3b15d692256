/* Attention as a command for a device. Everything follows from counts and from the recipe. */
#include "attention/device_call.h"

#include "attention/attn_item.h"
#include "codec/hadamard.h"
#include "codec/rot.h"

#include <string.h>

/* What has been put into the packet so far. */
struct packet {
    uint64_t at; /* address of its start on the device */
    char *bytes; /* NULL: they are only counted */
    size_t n;
};

/* Room for bytes, aligned to 16. *address: where they will be. NULL if they are only counted. */
static void *take(struct packet *p, size_t bytes, uint64_t *address) {
    void *to = p->bytes ? p->bytes + p->n : NULL;
    *address = p->at + p->n;
    p->n += (bytes + 15) / 16 * 16;
    return to;
}

static uint64_t put(struct packet *p, const void *from, size_t bytes) {
    uint64_t address;
    void *to = take(p, bytes, &address);
    if (to) memcpy(to, from, bytes);
    return address;
}

/* Rotated levels share one prepared query, or one sum. */
static bool mixes_sigma(const struct lk_kv *kv) {
    bool seen[2] = {false, false};
    for (int i = 0; i < kv->n_level; i++)
        if (lk_codec_rotates(&kv->rule[i].codec)) seen[kv->rule[i].codec.sigma] = true;
    return seen[0] && seen[1];
}

const char *lk_attn_device_refuses(const struct lk_attn *attn) {
    const struct lk_kv *side[] = {attn->k, attn->v};
    if (attn->read > 0 && attn->read < 1) return "a share of the tiles is read (read N%)";
    if (attn->d_head > LK_DEVICE_MAX_HEAD) return "heads have too many channels";
    for (int s = 0; s < 2; s++) {
        const struct lk_kv *kv = side[s];
        if (lk_kv_is_divided(kv) || kv->is_elsewhere) return "several processes share the rows";
        if (kv->evict && attn->alibi_max_bias > 0) return "rows are evicted in a model with ALiBi";
        if (kv->d_head % 8 != 0) return "heads are not a multiple of 8 channels";
        if (mixes_sigma(kv)) return "some levels are rotated with sigma and some without";
        for (int i = 0; i < kv->n_level; i++) {
            if (kv->rule[i].codec.coding == LK_ADDED) return "a codec is the program's own";
            if (kv->level[i].basis) return "rows are latents";
            if (kv->rule[i].shift) return "sinks keep their distance (shift)";
            if (s == LK_V && attn->d_rope > 0 && kv->rule[i].codec.mean)
                return "values that are keys too have a mean";
        }
    }
    return NULL;
}

static void set_rotation(struct packet *p, int d, struct lk_device_rotation *out) {
    if ((d & (d - 1)) == 0) {
        float sign[LK_DEVICE_MAX_HEAD];
        lk_rotation_signs(sign, d);
        for (int c = 0; c < d; c++)
            if (sign[c] < 0) out->sign[c / 32] |= 1u << c % 32;
        return;
    }
    float *matrix = take(p, (size_t)d * d * sizeof *matrix, &out->matrix);
    for (int c = 0; matrix && c < d; c++) {
        float x[LK_DEVICE_MAX_HEAD] = {0};
        x[c] = 1;
        lk_rotate(x, d);
        for (int i = 0; i < d; i++) matrix[(size_t)i * d + c] = x[i];
    }
}

static struct lk_device_coding coding_of(const struct lk_kv *kv, int level, int part) {
    struct lk_part p = lk_kv_part(kv, level, part);
    const struct lk_codec *c = p.codec;
    return (struct lk_device_coding){
        .coding = c->coding,
        .bits = c->bits,
        .book = c->trellis ? LK_DEVICE_TRELLIS
                : c->lloyd ? LK_DEVICE_LLOYD
                           : LK_DEVICE_UNIFORM,
        .mean = c->coding == LK_ROT && c->mean,
        .rotated = lk_codec_rotates(c),
        .sigma = c->sigma,
        .group = (uint16_t)(c->coding == LK_ASYM && !c->group ? p.d_head : c->group),
        .block_rows = (uint32_t)p.block_rows,
        .offset = (uint32_t)lk_level_part_offset(&kv->level[level], part)};
}

/* Do all heads of a level have one codec, at equal distances? */
static bool is_uniform(const struct lk_kv *kv, int level) {
    const struct lk_codec *first = lk_level_codec(&kv->rule[level], 0);
    for (int part = 1; part < kv->level[level].n_part; part++)
        if (memcmp(lk_level_codec(&kv->rule[level], part), first, sizeof *first) != 0) return false;
    return !kv->level[level].part;
}

/* The level's table and codings. Segments of the level differ in `first` only. */
static struct lk_device_rows level_rows(struct packet *p, const struct lk_kv *kv, int level) {
    const struct lk_level *l = &kv->level[level];
    struct lk_device_rows rows = {.coding = coding_of(kv, level, 0)};
    uint64_t *table = take(p, (size_t)l->n_block * sizeof *table, &rows.table);
    for (int64_t b = 0; table && b < l->n_block; b++)
        table[b] = (uint64_t)(uintptr_t)lk_kv_block(kv, level, b);
    if (is_uniform(kv, level)) {
        rows.coding.next = (uint32_t)l->head_bytes;
        return rows;
    }
    struct lk_device_coding *part = take(p, (size_t)l->n_part * sizeof *part, &rows.part);
    for (int i = 0; part && i < l->n_part; i++) part[i] = coding_of(kv, level, i);
    return rows;
}

/* Tables of all levels that hold rows, and the channel statistics if a level needs them. */
static void put_side(struct packet *p, const struct lk_kv *kv, struct lk_device_rows *rows,
                     uint64_t *sigma) {
    const struct lk_equalizer *equalizer = &kv->equalizer[0];
    bool needed = false;
    for (int i = 0; i < kv->n_level; i++) {
        if (kv->count[i].rows == 0) continue;
        rows[i] = level_rows(p, kv, i);
        needed |= kv->rule[i].codec.sigma;
    }
    if (!needed || !equalizer->sigma) return;
    size_t row = (size_t)kv->d_head * sizeof(float);
    char *to = take(p, (size_t)kv->n_head * row, sigma);
    for (int h = 0; to && h < kv->n_head; h++)
        memcpy(to + h * row, equalizer->sigma + (size_t)h * equalizer->stride, row);
}

/* Cut the positions that are seen where K or V changes its level. */
static void cut(const struct lk_kv *k, const struct lk_kv *v, int64_t from, int64_t query,
                const struct lk_device_rows *rows[2], struct lk_device_attend *call) {
    struct lk_kv_span a = lk_kv_spans(k), b = lk_kv_spans(v);
    int64_t end = k->n_tok;
    bool more = lk_kv_next_span(k, from, end, &a) && lk_kv_next_span(v, from, end, &b);
    while (more) {
        int64_t stop = a.end < b.end ? a.end : b.end;
        struct lk_device_segment *s = &call->segment[call->n_segment++];
        s->k = rows[LK_K][a.level], s->v = rows[LK_V][b.level];
        s->k.first = (uint32_t)(k->count[a.level].skip + from - a.first);
        s->v.first = (uint32_t)(v->count[b.level].skip + from - b.first);
        s->n_row = (int32_t)(stop - from);
        s->before = s->distance = (int32_t)(query - from);
        from = stop;
        if (a.end == stop) more = lk_kv_next_span(k, from, end, &a);
        if (more && b.end == stop) more = lk_kv_next_span(v, from, end, &b);
    }
}

size_t lk_attn_device_call(const struct lk_attn *attn, int token, int n, uint64_t at, char *packet,
                           struct lk_device_attend *call) {
    const struct lk_kv *k = attn->k, *v = attn->v;
    struct packet p = {at, packet, 0};
    struct lk_device_rows k_rows[LK_MAX_KV_LEVEL] = {0}, v_rows[LK_MAX_KV_LEVEL] = {0};
    const struct lk_device_rows *rows[2] = {k_rows, v_rows};
    memset(call, 0, sizeof *call);
    size_t first = (size_t)token * attn->n_head;
    call->q = (uint64_t)(uintptr_t)(attn->q + first * (attn->d_head + attn->d_rope));
    call->partial = (uint64_t)(uintptr_t)(attn->partial + first * (attn->d_head + LK_ATTN_SUMS));
    call->n_tok = n, call->n_head = attn->n_head, call->n_head_kv = attn->n_head_kv;
    call->d_head = attn->d_head, call->d_rope = attn->d_rope;
    call->window = k->n_swa, call->scale = attn->scale, call->softcap = attn->softcap;
    put_side(&p, k, k_rows, &call->k_sigma);
    put_side(&p, v, v_rows, &call->v_sigma);
    call->levels = put(&p, lk_trellis_table, sizeof lk_trellis_table);
    set_rotation(&p, attn->d_rope > 0 ? attn->d_rope : attn->d_head, &call->k_rotation);
    set_rotation(&p, attn->d_head, &call->v_rotation);
    if (attn->alibi_max_bias > 0) {
        float *slope = take(&p, (size_t)attn->n_head * sizeof *slope, &call->slope);
        for (int h = 0; slope && h < attn->n_head; h++)
            slope[h] = lk_alibi_slope(h, attn->n_head, attn->alibi_max_bias);
    }
    int64_t query = k->n_tok - attn->n_tok + token, from = k->first;
    if (k->n_swa > 0 && query - k->n_swa + 1 > from) from = query - k->n_swa + 1;
    cut(k, v, from, query, rows, call);
    return p.n;
}
