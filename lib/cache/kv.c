/* K or V of one layer: finding and decoding rows, and the layout of blocks. */
#include "cache/kv.h"

const char *lk_kv_fetch(const struct lk_kv *kv, int level, int64_t b) {
    struct lk_device *device = kv->arena->device;
    char *block = lk_kv_block(kv, level, b);
    if (!device || !block) return block;
    lk_arena_note(kv->arena, device->call->download(device, kv->copy, (uint64_t)(uintptr_t)block,
                                                    kv->level[level].block_bytes, NULL));
    return kv->copy;
}

int lk_kv_components(const struct lk_kv *kv, const struct lk_basis *basis) {
    int max = 0;
    for (int i = 0; i < kv->n_level; i++)
        if (kv->level[i].basis == basis && kv->level[i].d_part > max) max = kv->level[i].d_part;
    return max;
}

bool lk_kv_mixes_sigma(const struct lk_kv *kv) {
    bool seen[2] = {false, false};
    for (int i = 0; i < kv->n_level; i++)
        if (!kv->level[i].basis && lk_codec_rotates(&kv->rule[i].codec))
            seen[kv->rule[i].codec.sigma] = true;
    return seen[0] && seen[1];
}

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
        if (kv->arena->device) {
            int64_t index = kv->count[range->level].skip + range->at + done;
            block = lk_kv_fetch(kv, range->level, index / p.block_rows);
        }
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

/* ---- layout ---- */

/* The basis for a codec, or NULL: rows are stored as they are, or there is no such basis. */
static const struct lk_basis *find_basis(const struct lk_cache_shape *shape, int layer,
                                         enum lk_side side, const struct lk_codec *codec) {
    if (codec->projection == LK_PROJECTION_NONE || !shape->basis) return NULL;
    enum lk_basis_side which = side == LK_V                                    ? LK_BASIS_V
                               : codec->projection == LK_PROJECTION_LATENT_PRE ? LK_BASIS_KPRE
                                                                               : LK_BASIS_K;
    const struct lk_basis *basis = shape->basis[which] ? &shape->basis[which][layer] : NULL;
    return basis && basis->n_group ? basis : NULL;
}

/* Round a rank to one that blocks can have. */
static int round_rank(double rank, int width, const struct lk_codec *codec, enum lk_side side) {
    int unit = lk_codec_unit(codec, side);
    if (unit > width) return width; /* the codec will reject it */
    int rounded = (int)(rank / unit + 0.5) * unit;
    if (rounded < unit) rounded = unit;
    return rounded > width ? width / unit * unit : rounded;
}

/* Set the channels of all parts: one share of the width, or the sidecar's rank of each group. */
static lk_status set_ranks(struct lk_level *level, const struct lk_codec *codec, enum lk_side side,
                           struct lk_ledger *ledger, lk_err *err) {
    const struct lk_basis *basis = level->basis;
    int width = basis->width, min = width;
    level->d_part = 0;
    for (int g = 0; g < basis->n_group; g++) {
        double rank = codec->share ? (double)width * codec->share / LK_FULL_RANK : basis->rank[g];
        int d = round_rank(rank, width, codec, side);
        if (d > level->d_part) level->d_part = d;
        if (d < min) min = d;
    }
    if (min == level->d_part) return LK_OK;
    level->part = lk_alloc(ledger, LK_FOR_OTHER, level->n_part * sizeof *level->part);
    if (!level->part) return lk_fail(err, LK_E_NOMEM, "no memory for a cache");
    for (int g = 0; g < basis->n_group; g++)
        level->part[g].d = round_rank(basis->rank[g], width, codec, side);
    return LK_OK;
}

/* Parts of equal channels, but with codecs of different bits. */
static lk_status set_head_codecs(struct lk_level *level, const struct lk_level_rule *rule,
                                 int layer, struct lk_ledger *ledger, lk_err *err) {
    for (int i = 0; i < rule->n_other; i++) {
        int last = LK_MAX_NAMED_HEAD - 1;
        while (!(rule->other[i].heads >> last & 1)) last--;
        if (last >= level->n_part)
            return lk_fail(err, LK_E_ARG,
                           "the recipe has codecs for KV head %d, but layer %d has %d of them, "
                           "counted from 0",
                           last, layer, level->n_part);
    }
    level->part = lk_alloc(ledger, LK_FOR_OTHER, level->n_part * sizeof *level->part);
    if (!level->part) return lk_fail(err, LK_E_NOMEM, "no memory for a cache");
    for (int part = 0; part < level->n_part; part++) level->part[part].d = level->d_part;
    return LK_OK;
}

static lk_status layout_latents(struct lk_level *level, const struct lk_codec *codec,
                                const struct lk_cache_shape *shape, int layer, enum lk_side side,
                                struct lk_ledger *ledger, lk_err *err) {
    const struct lk_basis *basis = find_basis(shape, layer, side, codec);
    const char *name = side == LK_V                                    ? "V"
                       : codec->projection == LK_PROJECTION_LATENT_PRE ? "K before RoPE"
                                                                       : "K";
    if (!basis && !shape->basis)
        return lk_fail(err, LK_E_ARG,
                       "the recipe stores %s as latents, which need a sidecar: run 'lowkey "
                       "compress --method palu --text BOOK -o FILE' once for this model, then pass "
                       "'--sidecar FILE'",
                       name);
    if (!basis)
        return lk_fail(err, LK_E_ARG,
                       "the sidecar has no basis for %s in layer %d, which the recipe requires; "
                       "'lowkey compress --method palu' creates the bases of all sides",
                       name, layer);
    int width = basis->width, d_head = lk_cache_d_head(shape, layer, side),
        n_all = lk_cache_n_head(shape, layer) * d_head;
    if (width % d_head || basis->n_group * width != n_all)
        return lk_fail(err, LK_E_FORMAT,
                       "the sidecar's groups of %d channels do not divide the %d channels of layer "
                       "%d; use the sidecar of this model",
                       width, n_all, layer);
    level->basis = basis;
    level->rope =
        codec->projection == LK_PROJECTION_LATENT_PRE ? lk_cache_rope(shape, layer) : NULL;
    level->n_part = basis->n_group;
    level->n_head = width / d_head;
    lk_status status = set_ranks(level, codec, side, ledger, err);
    if (status) return status;
    if (level->d_part > basis->n_comp)
        return lk_fail(err, LK_E_ARG,
                       "layer %d: the recipe requires rank %d for %s, but the sidecar holds only "
                       "%d of %d components; use a lower rank",
                       layer, level->d_part, name, basis->n_comp, width);
    return LK_OK;
}

lk_status lk_level_layout(struct lk_level *level, const struct lk_level_rule *rule,
                          const struct lk_cache_shape *shape, int layer, enum lk_side side,
                          struct lk_ledger *ledger, lk_err *err) {
    level->n_part = lk_cache_n_head(shape, layer);
    level->d_part = lk_cache_d_head(shape, layer, side);
    level->n_head = 1;
    level->part = NULL;
    level->basis = NULL;
    level->rope = NULL;
    lk_status status = LK_OK;
    if (rule->codec.projection)
        status = layout_latents(level, &rule->codec, shape, layer, side, ledger, err);
    else if (rule->n_other)
        status = set_head_codecs(level, rule, layer, ledger, err);
    if (status) return status;
    level->head_bytes = level->block_bytes = level->scale_bytes = 0;
    for (int part = 0; part < level->n_part; part++) {
        const struct lk_codec *codec = lk_level_codec(rule, part);
        int d = lk_level_part_channels(level, part);
        size_t bytes = lk_codec_head_bytes(codec, side, d, rule->block_rows);
        const char *reason = lk_codec_reject_reason(codec, side, d);
        if (reason)
            return lk_fail(err, LK_E_UNSUPPORTED,
                           "the recipe's codec cannot store %s of %d channels: %s",
                           level->basis ? "latents" : "heads", d, reason);
        if (level->part) level->part[part].offset = level->block_bytes;
        level->block_bytes += bytes;
        if (bytes > level->head_bytes) level->head_bytes = bytes;
        level->scale_bytes += lk_codec_head_scale_bytes(codec, side, d, rule->block_rows);
    }
    return LK_OK;
}

void lk_level_layout_free(struct lk_level *level, struct lk_ledger *ledger) {
    lk_release(ledger, LK_FOR_OTHER, level->part, level->n_part * sizeof *level->part);
    level->part = NULL;
}
