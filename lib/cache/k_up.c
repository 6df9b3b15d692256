/* The up-projection of K before RoPE: memory for its forms, and their preparation. */
#include "cache/k_up.h"

#include "cache/rope.h"

#include <string.h>

/* The forms of prepared queries (kernels/kernels.h) that the kernels read for a codec. All of them
 * would be nine bytes per number of the basis, in every session. Codes of up to 4 bits without a
 * mean need one byte. */
struct forms {
    bool f32; /* q: half floats, KIVI's codes, and the reference kernels */
    bool i8;  /* q8, scale8, sum8: codes of up to 4 bits */
    bool i16; /* q16, planes, scale16, sum16: finer codes, and means */
};

static struct forms forms_of(const struct lk_codec *codec, const struct lk_kernels *kernels) {
    bool codes = codec->coding == LK_ROT || codec->coding == LK_INT8, fine = codec->bits > 4;
    return (struct forms){.f32 = !codes || !kernels || kernels == &lk_kernels_reference,
                          .i8 = codes && !fine,
                          .i16 = codes && (fine || codec->mean)};
}

static size_t round_to_line(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* Lay out the arrays of one head in `mem`, which may be NULL, floats first. Returns their bytes. */
static size_t lay_out_forms(struct lk_queries *out, struct forms forms, int d_head, int rank,
                            char *mem) {
    struct lk_queries q = {.n_q = d_head, .d_head = rank};
    size_t codes = round_to_line((size_t)d_head * lk_queries_pad(rank)),
           line = round_to_line(d_head * sizeof(float)), at = 0;
    if (forms.f32) {
        q.q = (float *)mem;
        at += round_to_line((size_t)d_head * rank * sizeof *q.q);
    }
    if (forms.i16) {
        q.q16 = (int16_t *)(mem + at);
        q.planes = (int8_t *)(mem + at + 2 * codes);
        q.scale16 = (float *)(mem + at + 4 * codes);
        q.sum16 = (int32_t *)(mem + at + 4 * codes + line);
        at += 4 * codes + 2 * line;
    }
    if (forms.i8) {
        q.q8 = (int8_t *)(mem + at);
        q.scale8 = (float *)(mem + at + codes);
        q.sum8 = (int32_t *)(mem + at + codes + line);
        at += codes + 2 * line;
    }
    *out = q;
    return at;
}

lk_status lk_k_up_new(struct lk_kv *kv, int i, const struct lk_cache_shape *shape,
                      struct lk_ledger *ledger, lk_err *err) {
    struct lk_level *level = &kv->level[i];
    const struct lk_codec *codec = &kv->rule[i].codec;
    struct lk_queries unused;
    if (codec->projection != LK_PROJECTION_LATENT_PRE) return LK_OK;
    struct forms forms = forms_of(codec, shape->kernels);
    size_t bytes = lay_out_forms(&unused, forms, shape->d_head, level->d_part, NULL);
    level->k_up = lk_alloc(ledger, LK_FOR_SCRATCH, shape->n_head_kv * sizeof *level->k_up);
    char *mem = level->k_up ? lk_alloc(ledger, LK_FOR_SCRATCH, shape->n_head_kv * bytes) : NULL;
    if (!mem) return lk_fail(err, LK_E_NOMEM, "no memory for the up-projection of K");
    for (int head = 0; head < shape->n_head_kv; head++) {
        level->k_up[head] = (struct lk_k_up){.mem = mem + head * bytes, .bytes = bytes};
        lay_out_forms(&level->k_up[head].up, forms, shape->d_head, level->d_part,
                      level->k_up[head].mem);
    }
    return LK_OK;
}

void lk_k_up_free(struct lk_level *level, int n_head_kv, struct lk_ledger *ledger) {
    if (!level->k_up) return;
    lk_release(ledger, LK_FOR_SCRATCH, level->k_up[0].mem, n_head_kv * level->k_up[0].bytes);
    lk_release(ledger, LK_FOR_SCRATCH, level->k_up, n_head_kv * sizeof *level->k_up);
    level->k_up = NULL;
}

/* Keep vector c of a head, given in the codec's domain, in the forms that are stored. */
static void store_vector(const struct lk_k_up *k_up, int c, const float *row) {
    enum {
        MAX_BYTES = LK_MAX_D_HEAD * (sizeof(int16_t) + 3 * sizeof(int8_t)) + 2 * sizeof(float) +
                    2 * sizeof(int32_t)
    };
    _Alignas(64) char mem[MAX_BYTES];
    const struct lk_queries *up = &k_up->up;
    struct lk_queries one;
    int rank = up->d_head, pad = lk_queries_pad(rank);
    if (up->q) memcpy((float *)k_up->mem + (size_t)c * rank, row, rank * sizeof *row);
    if (!up->q8 && !up->q16) return;
    lk_queries_prepare(&one, row, 1, rank, mem);
    if (up->q16) {
        memcpy(up->q16 + (size_t)c * pad, one.q16, pad * sizeof *one.q16);
        memcpy(up->planes + (size_t)c * 2 * pad, one.planes, (size_t)2 * pad);
        up->scale16[c] = one.scale16[0];
        up->sum16[c] = one.sum16[0];
    }
    if (up->q8) {
        memcpy(up->q8 + (size_t)c * pad, one.q8, pad);
        up->scale8[c] = one.scale8[0];
        up->sum8[c] = one.sum8[0];
    }
}

void lk_k_up_prepare(struct lk_kv *kv, int i, int part) {
    const struct lk_level *level = &kv->level[i];
    const struct lk_basis *basis = level->basis;
    if (!level->k_up) return;
    int d_head = basis->width / level->n_head;
    float row[LK_MAX_D_HEAD];
    for (int head = 0; head < level->n_head; head++)
        for (int c = 0; c < d_head; c++) {
            for (int j = 0; j < level->d_part; j++)
                row[j] = basis->up[((size_t)part * basis->n_comp + j) * basis->width +
                                   (size_t)head * d_head + lk_rope_channel(level->rope, c)];
            lk_codec_transform_query(&kv->rule[i].codec, level->d_part, lk_kv_sigma(kv, i, part),
                                     row, row);
            store_vector(&level->k_up[part * level->n_head + head], c, row);
        }
}
