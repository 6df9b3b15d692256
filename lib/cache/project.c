#include "cache/project.h"

#include "cache/calibrate.h"

#include <string.h>

/* Four lanes, as gcc and clang have them on every machine. */
typedef float float4 __attribute__((vector_size(16)));

static inline float4 load4(const float *x) {
    float4 v;
    memcpy(&v, x, sizeof v);
    return v;
}

static inline void store4(float *x, float4 v) { memcpy(x, &v, sizeof v); }

/* n a multiple of 8, as widths of heads and ranks are. */
static float dot(const float *a, const float *b, int n) {
    float4 even = {0}, odd = {0};
    for (int i = 0; i < n; i += 8) {
        even += load4(a + i) * load4(b + i);
        odd += load4(a + i + 4) * load4(b + i + 4);
    }
    even += odd;
    return even[0] + even[1] + even[2] + even[3];
}

static void add_scaled(float *y, float a, const float *x, int n) {
    float4 all = {a, a, a, a};
    for (int i = 0; i < n; i += 4) store4(y + i, load4(y + i) + all * load4(x + i));
}

static size_t row_of(const struct lk_basis *basis, int group, int comp, int head, int d_head) {
    return ((size_t)group * basis->n_comp + comp) * basis->width + (size_t)head * d_head;
}

const float *lk_basis_mean(const struct lk_basis *basis, int group, int head, int d_head) {
    return basis->mean ? basis->mean + (size_t)group * basis->width + (size_t)head * d_head : NULL;
}

void lk_project_add(const struct lk_basis *basis, int group, int head, int d_head, int rank,
                    const float *x, size_t x_stride, int64_t n, float *z, size_t z_stride) {
    const float *mean = lk_basis_mean(basis, group, head, d_head);
    for (int j = 0; j < rank; j++) {
        const float *down = basis->down + row_of(basis, group, j, head, d_head);
        float offset = mean ? dot(down, mean, d_head) : 0;
        for (int64_t t = 0; t < n; t++)
            z[t * z_stride + j] += dot(down, x + t * x_stride, d_head) - offset;
    }
}

void lk_project_query(const struct lk_basis *basis, int group, int head, int d_head, int rank,
                      const float *q, float *out) {
    for (int j = 0; j < rank; j++)
        out[j] = dot(basis->up + row_of(basis, group, j, head, d_head), q, d_head);
}

void lk_project_back(const struct lk_basis *basis, int group, int head, int d_head, int rank,
                     const float *z, float *out) {
    memset(out, 0, d_head * sizeof *out);
    for (int j = 0; j < rank; j++)
        add_scaled(out, z[j], basis->up + row_of(basis, group, j, head, d_head), d_head);
}

/* ---- levels ---- */

const struct lk_basis *lk_basis_for(const struct lk_cache_shape *shape, int layer,
                                    enum lk_side side, const struct lk_codec *codec) {
    if (codec->projection == LK_ROWS || !shape->basis) return NULL;
    enum lk_basis_side which = side == LK_V                          ? LK_BASIS_V
                               : codec->projection == LK_LATENTS_PRE ? LK_BASIS_KPRE
                                                                     : LK_BASIS_K;
    const struct lk_basis *basis = shape->basis[which] ? &shape->basis[which][layer] : NULL;
    return basis && basis->n_group ? basis : NULL;
}

/* A rank that blocks can have: a multiple of 8, or of what the codec's groups of channels need. */
static int round_rank(double rank, int width, const struct lk_codec *codec, enum lk_side side) {
    int unit = codec->coding == LK_KIVI && side == LK_V ? codec->group : 8;
    if (unit > width) return width; /* which the codec will refuse */
    int whole = (int)(rank / unit + 0.5) * unit;
    if (whole < unit) whole = unit;
    return whole > width ? width / unit * unit : whole;
}

/* The sidecar's own rank: the same for all groups of a layer, the largest that it recommends for one. */
static int recommended(const struct lk_basis *basis) {
    int most = 1;
    for (int g = 0; g < basis->n_group; g++)
        if (basis->rank[g] > most) most = basis->rank[g];
    return most;
}

static lk_status shape_latents(struct lk_level *level, const struct lk_codec *codec,
                               const struct lk_cache_shape *shape, int layer, enum lk_side side,
                               lk_err *err) {
    const struct lk_basis *basis = lk_basis_for(shape, layer, side, codec);
    const char *name = side == LK_V                          ? "V"
                       : codec->projection == LK_LATENTS_PRE ? "K before RoPE"
                                                             : "K";
    if (!basis && !shape->basis)
        return lk_fail(err, LK_E_ARG,
                       "the recipe keeps %s as latents, which need a sidecar: run 'lowkey compress "
                       "--method palu --text BOOK -o FILE' "
                       "once for this model, then give '--sidecar FILE'",
                       name);
    if (!basis)
        return lk_fail(err, LK_E_ARG,
                       "the sidecar has no basis for %s in layer %d, which the recipe asks for; "
                       "'lowkey compress --method palu' makes "
                       "those of all sides",
                       name, layer);
    int width = basis->width, n_all = shape->n_head_kv * shape->d_head;
    if (width % shape->d_head || basis->n_group * width != n_all)
        return lk_fail(err, LK_E_FORMAT,
                       "the sidecar's groups of %d channels do not divide the %d of layer %d",
                       width, n_all, layer);
    double rank = codec->share ? (double)width * codec->share / LK_WHOLE : recommended(basis);
    level->basis = basis;
    level->rope = codec->projection == LK_LATENTS_PRE && shape->rope
                      ? &shape->rope[shape->is_swa && shape->is_swa[layer]]
                      : NULL;
    level->n_part = basis->n_group;
    level->n_head = width / shape->d_head;
    level->d_part = round_rank(rank, width, codec, side);
    if (level->d_part > basis->n_comp)
        return lk_fail(err, LK_E_ARG,
                       "layer %d: the recipe asks for a rank of %d in %s, and the sidecar holds %d "
                       "of %d components",
                       layer, level->d_part, name, basis->n_comp, width);
    return LK_OK;
}

lk_status lk_level_shape(struct lk_level *level, const struct lk_level_rule *rule,
                         const struct lk_cache_shape *shape, int layer, enum lk_side side,
                         lk_err *err) {
    const struct lk_codec *codec = &rule->codec;
    level->n_part = shape->n_head_kv;
    level->d_part = shape->d_head;
    level->n_head = 1;
    level->basis = NULL;
    level->rope = NULL;
    lk_status status =
        codec->projection ? shape_latents(level, codec, shape, layer, side, err) : LK_OK;
    if (status != LK_OK) return status;
    const char *reason = lk_codec_refuses(codec, side, level->d_part);
    if (reason)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "this model's %s of %d channels cannot be kept so: %s",
                       level->basis ? "latents" : "heads", level->d_part, reason);
    level->head_bytes = lk_codec_head_bytes(codec, side, level->d_part, rule->block_rows);
    level->block_bytes = level->head_bytes * level->n_part;
    level->scale_bytes =
        lk_codec_head_scale_bytes(codec, side, level->d_part, rule->block_rows) * level->n_part;
    return LK_OK;
}

/* ---- reading ---- */

void lk_read_part(const struct lk_kv *from, int level, int64_t at, int64_t n,
                  const struct lk_level *to, int part, int d_head, const struct lk_kernels *kernels,
                  float *room, float *x, size_t stride) {
    if (from->level[level].basis ||
        !to->basis) { /* the same parts; of a lower rank, the first components */
        lk_read_rows(from, level, at, n, part, kernels, x, stride);
        return;
    }
    for (int64_t t = 0; t < n; t++) memset(x + t * stride, 0, to->d_part * sizeof *x);
    for (int head = 0; head < to->n_head; head++) {
        lk_read_rows(from, level, at, n, part * to->n_head + head, kernels, room, stride);
        if (to->rope)
            lk_rope_undo(to->rope, lk_cache_position(from, level, at, 0), n, room, stride);
        lk_project_add(to->basis, part, head, d_head, to->d_part, room, stride, n, x, stride);
    }
}

void lk_read_head(const struct lk_kv *kv, int level, int64_t at, int head, int d_head,
                  const struct lk_kernels *kernels, float *x) {
    const struct lk_level *of = &kv->level[level];
    float z[LK_MAX_D_HEAD];
    int part = head / of->n_head, within = head % of->n_head;
    lk_read_rows(kv, level, at, 1, part, kernels, z, LK_MAX_D_HEAD);
    if (!of->basis) {
        memcpy(x, z, d_head * sizeof *x);
        return;
    }
    lk_project_back(of->basis, part, within, d_head, of->d_part, z, x);
    const float *mean = lk_basis_mean(of->basis, part, within, d_head);
    for (int c = 0; mean && c < d_head; c++) x[c] += mean[c];
    if (of->rope) lk_rope_redo(of->rope, lk_cache_position(kv, level, at, 0), 1, x, 0);
}
