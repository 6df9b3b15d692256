/* Attention as a command for a device. Everything follows from counts and from the recipe. */
#include "attention/device_call.h"

#include "attention/attn_item.h"
#include "attention/latents.h"
#include "cache/equalizer.h"
#include "codec/hadamard.h"
#include "codec/rot.h"
#include "device/moves.h"

#include <string.h>

/* What has been written so far. */
struct writer {
    uint64_t at; /* address of its start on the device */
    char *bytes; /* NULL: they are only counted */
    size_t n;
};

/* Room for bytes, aligned to 16. *address: where they will be. NULL if they are only counted. */
static void *take(struct writer *p, size_t bytes, uint64_t *address) {
    char *to = p->bytes ? p->bytes + p->n : NULL;
    size_t padding = -bytes % 16;
    *address = p->at + p->n;
    p->n += bytes + padding;
    if (to) memset(to + bytes, 0, padding);
    return to;
}

static uint64_t put(struct writer *p, const void *from, size_t bytes) {
    uint64_t address;
    void *to = take(p, bytes, &address);
    if (to) memcpy(to, from, bytes);
    return address;
}

int lk_attn_device_ranges(const struct lk_attn *attn) {
    return (lk_kv_mixes_sigma(attn->k) ? 2 : 1) * (lk_kv_mixes_sigma(attn->v) ? 2 : 1);
}

/* The range of the rows that are in these levels of K and V. */
static int range_of(const struct lk_attn *attn, int k_level, int v_level) {
    const struct lk_codec *k = &attn->k->rule[k_level].codec, *v = &attn->v->rule[v_level].codec;
    int range = lk_kv_mixes_sigma(attn->k) && k->sigma;
    return lk_kv_mixes_sigma(attn->v) ? 2 * range + (v->sigma != 0) : range;
}

static bool level_shifts(const struct lk_attn *attn, int level) {
    return attn->k->rule[level].shift && attn->rope;
}

bool lk_attn_device_shifts(const struct lk_attn *attn) {
    bool any = false;
    for (int i = 0; i < attn->k->n_level; i++) any |= level_shifts(attn, i);
    return any;
}

void lk_attn_shift_queries(const struct lk_attn *attn, float *out) {
    struct lk_rope_phase phase = {.set = false};
    lk_rope_phase_set(attn->rope, &phase, attn->k->first);
    for (int i = 0; i < attn->n_tok * attn->n_head; i++)
        lk_rope_unrotate_query(attn->rope, &phase, attn->q + (size_t)i * attn->d_head, attn->d_head,
                               out + (size_t)i * attn->d_head);
}

static bool has_latents(const struct lk_attn *attn) {
    for (int i = 0; i < attn->k->n_level; i++)
        if (attn->k->level[i].basis) return true;
    return lk_attn_v_rank(attn->v) > 0;
}

bool lk_attn_device_joins(const struct lk_attn *attn) {
    return lk_attn_device_ranges(attn) > 1 || has_latents(attn);
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
        for (int i = 0; i < kv->n_level; i++) {
            if (kv->rule[i].codec.coding == LK_ADDED) return "a codec is the program's own";
            if (kv->level[i].basis && attn->d_rope > 0) return "latents in latent attention";
            if (s == LK_V && attn->d_rope > 0 && kv->rule[i].codec.mean)
                return "values that are keys too have a mean";
        }
    }
    return NULL;
}

static void set_rotation(struct writer *p, int d, struct lk_device_rotation *out) {
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
static struct lk_device_rows level_rows(struct writer *p, const struct lk_kv *kv, int level) {
    const struct lk_level *l = &kv->level[level];
    struct lk_device_rows rows = {0};
    uint64_t *table = take(p, (size_t)l->n_block * sizeof *table, &rows.table);
    for (int64_t b = 0; table && b < l->n_block; b++)
        table[b] = (uint64_t)(uintptr_t)lk_kv_block(kv, level, b);
    if (l->basis) return rows; /* they are restored */
    rows.coding = coding_of(kv, level, 0);
    if (is_uniform(kv, level)) {
        rows.coding.next = (uint32_t)l->head_bytes;
        return rows;
    }
    struct lk_device_coding *part = take(p, (size_t)l->n_part * sizeof *part, &rows.part);
    for (int i = 0; part && i < l->n_part; i++) part[i] = coding_of(kv, level, i);
    return rows;
}

/* Tables of all levels that hold rows, and the channel statistics if a level needs them. */
static void put_side(struct writer *p, const struct lk_kv *kv, struct lk_device_rows *rows,
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

/* Rows of a level for a command that decodes them, from part `part` on. */
static struct lk_device_move_rows move_rows(const struct lk_kv *kv, int level, int part,
                                            uint64_t table, uint32_t first, uint64_t sigma) {
    const struct lk_level *l = &kv->level[level];
    struct lk_part p = lk_kv_part(kv, level, part);
    int stride = l->basis ? kv->equalizer[1].stride : kv->d_head; /* of sigma in the packet */
    struct lk_device_move_rows rows = {.at = table,
                                       .part_bytes = l->head_bytes,
                                       .offset = lk_level_part_offset(l, part),
                                       .first = first};
    (void)lk_device_packing_of(&p, &rows.coding);
    if (!p.codec->sigma) return rows;
    rows.sigma = sigma + (uint64_t)part * stride * sizeof(float);
    rows.sigma_stride = stride;
    return rows;
}

/* Successive rows in one level of K and one of V. */
struct piece_rows {
    struct lk_kv_span k, v;
    int64_t from, end;
};

/* The next ones, from `rows->end` on; false at the end. Start with lk_kv_spans and from == end. */
static bool next_rows(const struct lk_attn *attn, struct piece_rows *rows) {
    const struct lk_kv *k = attn->k, *v = attn->v;
    bool first = rows->k.level < 0;
    int64_t from = rows->end, end = k->n_tok;
    if ((first || rows->k.end == from) && !lk_kv_next_span(k, from, end, &rows->k)) return false;
    if ((first || rows->v.end == from) && !lk_kv_next_span(v, from, end, &rows->v)) return false;
    rows->from = from;
    rows->end = rows->k.end < rows->v.end ? rows->k.end : rows->v.end;
    return true;
}

/* The position of a piece's first token, and the first row that it sees. */
static int64_t first_query(const struct lk_attn *attn, int token) {
    return attn->k->n_tok - attn->n_tok + token;
}
static int64_t first_seen(const struct lk_attn *attn, int token) {
    const struct lk_kv *k = attn->k;
    int64_t oldest = first_query(attn, token) - k->n_swa + 1;
    return k->n_swa > 0 && oldest > k->first ? oldest : k->first;
}

/* Positions between rows->from and the first token, as ALiBi counts them. Without evictions. */
static int64_t distance_of(const struct lk_attn *attn, const struct piece_rows *rows,
                           int64_t query) {
    const struct lk_kv *k = attn->k;
    int level = rows->k.level;
    if (k->evict) return query - rows->from; /* refused with ALiBi */
    return query - lk_kv_position(k, level, rows->from - rows->k.first, 0) -
           (k->rule[level].shift ? k->first : 0);
}

/* Rows of a level, from row `from` of the call on. */
static uint32_t row_in_table(const struct lk_kv *kv, const struct lk_kv_span *span, int64_t from) {
    return (uint32_t)(kv->count[span->level].skip + from - span->first);
}

/* ---- levels that are restored ---- */

/* Positions of a level's rows, which a policy has chosen head by head. */
static uint64_t put_positions(struct writer *p, const struct lk_kv *kv, int level) {
    int64_t n = kv->count[level].rows;
    uint64_t at;
    int32_t *pos = take(p, (size_t)n * kv->n_head * sizeof *pos, &at);
    for (int64_t i = 0; pos && i < n; i++)
        for (int h = 0; h < kv->n_head; h++)
            pos[i * kv->n_head + h] = (int32_t)lk_kv_position(kv, level, i, h);
    return at;
}

static void set_basis(const struct lk_kv *kv, const struct lk_level *l,
                      struct lk_device_restore *out) {
    out->up = l->there.up, out->scale = l->there.up_scale, out->mean = l->there.mean;
    out->n_comp = l->basis->n_comp;
    out->type = l->basis->type == LK_BASIS_F32   ? LK_DEVICE_BASIS_F32
                : l->basis->type == LK_BASIS_F16 ? LK_DEVICE_BASIS_F16
                                                 : LK_DEVICE_BASIS_Q8;
    if (!l->rope || kv->side != LK_K) return;
    out->speed = l->there.speed;
    out->n_pair = l->rope->n_pair, out->halves = l->rope->halves;
    out->magnitude = l->rope->magnitude;
}

/* How the level's rows are restored. sigma: of heads' rows, of latents, in the packet. */
static uint64_t put_restore(struct writer *p, const struct lk_kv *kv, int level,
                            const uint64_t sigma[2], struct lk_attn_packet *parts) {
    const struct lk_level *l = &kv->level[level];
    bool uniform = is_uniform(kv, level);
    int n_part = uniform ? 1 : l->n_part;
    struct lk_device_restore restore = {
        .uniform = uniform, .n_head = l->n_head, .skip = kv->count[level].skip};
    struct lk_device_move_rows *rows = take(p, (size_t)n_part * sizeof *rows, &restore.rows);
    for (int i = 0; i < n_part; i++) {
        struct lk_device_move_rows part =
            move_rows(kv, level, i, parts->rows[kv->side][level].table, 0, sigma[l->basis != NULL]);
        int32_t bytes = lk_device_tile_bytes(&part.coding);
        if (rows) rows[i] = part;
        if (bytes > parts->tile_bytes) parts->tile_bytes = bytes;
    }
    if (kv->side == LK_V && l->basis && l->d_part > parts->v_part) parts->v_part = l->d_part;
    if (l->basis) set_basis(kv, l, &restore);
    if (restore.speed && kv->evict)
        restore.pos = put_positions(p, kv, level);
    else if (restore.speed)
        restore.position = lk_kv_position(kv, level, 0, 0) - restore.skip;
    return put(p, &restore, sizeof restore);
}

/* The levels of a side of a layer that has latents. */
static void put_restored(struct writer *p, const struct lk_kv *kv, struct lk_attn_packet *parts) {
    const struct lk_equalizer *latents = &kv->equalizer[1];
    uint64_t sigma[2] = {parts->sigma[kv->side], 0};
    if (latents->sigma) sigma[1] = put(p, latents->sigma, lk_equalizer_array_bytes(latents));
    for (int i = 0; i < kv->n_level; i++)
        if (kv->count[i].rows > 0)
            parts->rows[kv->side][i].restore = put_restore(p, kv, i, sigma, parts);
}

size_t lk_attn_device_packet(const struct lk_attn *attn, uint64_t at, char *to,
                             struct lk_attn_packet *packet) {
    struct writer p = {at, to, 0};
    const struct lk_kv *side[] = {attn->k, attn->v};
    *packet = (struct lk_attn_packet){0};
    for (int s = 0; s < 2; s++) put_side(&p, side[s], packet->rows[s], &packet->sigma[s]);
    for (int s = 0; s < 2 && has_latents(attn); s++) put_restored(&p, side[s], packet);
    packet->levels = put(&p, lk_trellis_table, sizeof lk_trellis_table);
    set_rotation(&p, attn->d_rope > 0 ? attn->d_rope : attn->d_head, &packet->rotation[LK_K]);
    set_rotation(&p, attn->d_head, &packet->rotation[LK_V]);
    if (attn->alibi_max_bias > 0) {
        float *slope = take(&p, (size_t)attn->n_head * sizeof *slope, &packet->slope);
        for (int h = 0; slope && h < attn->n_head; h++)
            slope[h] = lk_alibi_slope(h, attn->n_head, attn->alibi_max_bias);
    }
    if (attn->sink) packet->sink = put(&p, attn->sink, (size_t)attn->n_head * sizeof *attn->sink);
    return p.n;
}

/* ---- what packets follow from ---- */

static void put_level_sources(struct writer *p, const struct lk_kv *kv, int level) {
    const struct lk_level *l = &kv->level[level];
    bool has_rows = kv->count[level].rows > 0;
    int64_t counts[] = {has_rows, has_rows ? l->n_block : 0, kv->count[level].skip,
                        has_rows ? lk_kv_position(kv, level, 0, 0) : 0};
    put(p, counts, sizeof counts);
    if (!has_rows) return;
    put(p, l->block, (size_t)l->n_block * sizeof *l->block);
    if (l->rope && kv->evict) put_positions(p, kv, level);
}

size_t lk_attn_device_sources(const struct lk_attn *attn, char *to) {
    struct writer p = {0, to, 0};
    const struct lk_kv *side[] = {attn->k, attn->v};
    for (int s = 0; s < 2; s++) {
        put(&p, &side[s]->arena->n_given, sizeof side[s]->arena->n_given);
        for (int i = 0; i < side[s]->n_level; i++) put_level_sources(&p, side[s], i);
        for (int i = 0; i < 2; i++) {
            const struct lk_equalizer *e = &side[s]->equalizer[i];
            if (e->sigma) put(&p, e->sigma, lk_equalizer_array_bytes(e));
        }
    }
    return p.n;
}

/* ---- commands ---- */

/* Address of the queries of a token, of its partials of a range (-1: of extra ones), and of its
 * results. */
static uint64_t queries_at(const struct lk_attn *attn, bool shifted, int token) {
    size_t row = (size_t)(shifted ? attn->n_tok + token : token) * attn->n_head;
    return (uint64_t)(uintptr_t)(attn->q + row * (attn->d_head + attn->d_rope));
}
static uint64_t partials_at(const struct lk_attn *attn, int range, int token) {
    int64_t row = ((int64_t)range * attn->n_tok + token) * attn->n_head;
    return (uint64_t)(uintptr_t)(attn->partial + row * (attn->d_head + LK_ATTN_SUMS));
}

static uint64_t results_at(const struct lk_attn *attn, int token) {
    size_t row = (size_t)token * attn->n_head;
    return (uint64_t)(uintptr_t)(attn->out + row * attn->d_head);
}

static bool uses_sigma(const struct lk_attn *attn, enum lk_side side, int range) {
    const struct lk_kv *kv = side == LK_K ? attn->k : attn->v;
    if (!lk_kv_mixes_sigma(kv)) return true;
    return side == LK_K && lk_kv_mixes_sigma(attn->v) ? range / 2 : range % 2;
}

/* What the fast kernel of the body reads, if the call has nothing that it does not know. query: the
 * position of the first token. */
static struct lk_device_fast_latents fast_latents(const struct lk_attn *attn, int64_t query) {
    const struct lk_fast_latents *fast = &attn->k->fast;
    const struct lk_level *k = &attn->k->level[fast->level[LK_K]],
                          *v = &attn->v->level[fast->level[LK_V]];
    if (!fast->kernel || attn->softcap > 0 || attn->alibi_max_bias > 0)
        return (struct lk_device_fast_latents){0};
    return (struct lk_device_fast_latents){.k_up = fast->k_up,
                                           .k_mean = fast->k_mean,
                                           .v_up = fast->v_up,
                                           .v_mean = fast->v_mean,
                                           .k_part = fast->k_part,
                                           .v_part = fast->v_part,
                                           .rope = fast->rope,
                                           .fine = fast->fine,
                                           .coarse = fast->coarse,
                                           .position = query,
                                           .kernel = fast->kernel,
                                           .k_heads = k->n_head,
                                           .v_heads = v->n_head,
                                           .k_rank = k->d_part,
                                           .v_rank = v->d_part,
                                           .n_pair = k->rope ? k->rope->n_pair : 0,
                                           .halves = k->rope && k->rope->halves,
                                           .post = fast->post};
}

/* Does that kernel take the segment? Its rows begin at the same place of a tile in K and V. */
static bool is_fast(const struct lk_attn *attn, const struct piece_rows *rows,
                    const struct lk_device_attend *call, const struct lk_device_segment *s) {
    const int *level = attn->k->fast.level;
    return call->fast.kernel && rows->k.level == level[LK_K] && rows->v.level == level[LK_V] &&
           s->k.first % LK_TILE == s->v.first % LK_TILE;
}

/* Let the piece of the last range leave the result. */
static void set_result(const struct lk_attn *attn, const struct lk_device_piece *piece,
                       const struct lk_attn_packet *packet, struct lk_device_attend *call) {
    int before = attn->extra_partial ? 1 : 0, n_range = lk_attn_device_ranges(attn);
    if (!attn->out || piece->range < n_range - 1) return;
    call->out = results_at(attn, piece->token);
    call->sink = packet->sink;
    call->n_extra = before + n_range - 1;
    if (call->n_extra > 0) call->extra = partials_at(attn, -before, piece->token);
    call->extra_stride = (int64_t)attn->n_tok * attn->n_head * (attn->d_head + LK_ATTN_SUMS);
}

void lk_attn_device_call(const struct lk_attn *attn, const struct lk_device_piece *piece,
                         const struct lk_attn_packet *packet, struct lk_device_attend *call) {
    int64_t query = first_query(attn, piece->token), from = first_seen(attn, piece->token);
    *call = (struct lk_device_attend){
        .q = queries_at(attn, false, piece->token),
        .q_shifted = lk_attn_device_shifts(attn) ? queries_at(attn, true, piece->token) : 0,
        .partial = attn->partial ? partials_at(attn, piece->range, piece->token) : 0,
        .k_sigma = uses_sigma(attn, LK_K, piece->range) ? packet->sigma[LK_K] : 0,
        .v_sigma = uses_sigma(attn, LK_V, piece->range) ? packet->sigma[LK_V] : 0,
        .levels = packet->levels,
        .slope = packet->slope,
        .n_tok = piece->n,
        .n_head = attn->n_head,
        .n_head_kv = attn->n_head_kv,
        .d_head = attn->d_head,
        .d_rope = attn->d_rope,
        .window = attn->k->n_swa,
        .tile_bytes = packet->tile_bytes,
        .v_part = packet->v_part,
        .scale = attn->scale,
        .softcap = attn->softcap,
        .fast = fast_latents(attn, query),
        .k_rotation = packet->rotation[LK_K],
        .v_rotation = packet->rotation[LK_V]};
    set_result(attn, piece, packet, call);
    struct piece_rows rows = {lk_kv_spans(attn->k), lk_kv_spans(attn->v), from, from};
    while (next_rows(attn, &rows)) {
        if (range_of(attn, rows.k.level, rows.v.level) != piece->range) continue;
        struct lk_device_segment *s = &call->segment[call->n_segment++];
        *s = (struct lk_device_segment){.k = packet->rows[LK_K][rows.k.level],
                                        .v = packet->rows[LK_V][rows.v.level],
                                        .n_row = (int32_t)(rows.end - rows.from),
                                        .before = (int32_t)(query - rows.from),
                                        .distance = (int32_t)distance_of(attn, &rows, query),
                                        .shifted = level_shifts(attn, rows.k.level)};
        s->k.first = row_in_table(attn->k, &rows.k, rows.from);
        s->v.first = row_in_table(attn->v, &rows.v, rows.from);
        if (!attn->k->level[rows.k.level].basis && !attn->v->level[rows.v.level].basis)
            s->k.restore = s->v.restore = 0;
        s->fast = is_fast(attn, &rows, call, s);
    }
}

/* ---- weights of rows ---- */

size_t lk_attn_device_weights(const struct lk_attn *attn, const struct lk_attn_packet *packet,
                              int token, int n, bool last, uint64_t scores,
                              struct lk_device_weigh *out) {
    const struct lk_kv *k = attn->k, *v = attn->v;
    int64_t query = first_query(attn, token), from = first_seen(attn, token);
    size_t n_out = 0, wide = (size_t)attn->d_head + LK_ATTN_SUMS;
    struct piece_rows rows = {lk_kv_spans(k), lk_kv_spans(v), from, from};
    while (next_rows(attn, &rows)) {
        int kl = rows.k.level, vl = rows.v.level;
        bool latents = k->level[kl].basis;
        int n_part = latents || is_uniform(k, kl) ? k->n_head : 1;
        for (int part = 0; part < k->n_head; part += n_part, n_out++) {
            if (!out) continue;
            out[n_out] = (struct lk_device_weigh){
                .q = queries_at(attn, level_shifts(attn, kl), token),
                .partial = partials_at(attn, 0, token),
                .sink = packet->sink,
                .slope = packet->slope,
                .score = scores + (uint64_t)(rows.from - k->first) * k->n_head * sizeof(float),
                .k = move_rows(k, kl, part, packet->rows[LK_K][kl].table,
                               row_in_table(k, &rows.k, rows.from), packet->sigma[LK_K]),
                .range_stride = (int64_t)attn->n_tok * attn->n_head * (int64_t)wide,
                .stride = (int32_t)wide,
                .at = attn->d_head,
                .n_range = lk_attn_device_ranges(attn),
                .n_row = (int32_t)(rows.end - rows.from),
                .n_tok = n,
                .n_head = attn->n_head,
                .n_head_kv = attn->n_head_kv,
                .first_part = part,
                .n_part = n_part,
                .before = (int32_t)(query - rows.from),
                .window = k->n_swa,
                .distance = (int32_t)distance_of(attn, &rows, query),
                .last = last,
                .scale = attn->scale,
                .softcap = attn->softcap};
            if (latents) {
                out[n_out].restore = packet->rows[LK_K][kl].restore;
                out[n_out].tile_bytes = packet->tile_bytes;
                out[n_out].k = (struct lk_device_move_rows){
                    .first = row_in_table(k, &rows.k, rows.from),
                    .coding = lk_device_plain(LK_ROWS_F32, attn->d_head)};
            }
            if (attn->d_rope > 0)
                out[n_out].v = move_rows(v, vl, part, packet->rows[LK_V][vl].table,
                                         row_in_table(v, &rows.v, rows.from), packet->sigma[LK_V]);
        }
    }
    return n_out;
}
