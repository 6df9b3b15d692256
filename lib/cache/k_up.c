#include "cache/k_up.h"

#include <string.h>

/* What of prepared queries (kern.h) a level's scores read. All of it would be nine bytes for a number of a basis, in
 * every session; codes of up to 4 bits without a mean read one. */
struct forms {
    bool floats;   /* q: half floats, KIVI's codes, and the reference kernels */
    bool eights;   /* q8, scale8, sum8: codes of up to 4 bits */
    bool sixteens; /* q16, planes, scale16, sum16: finer ones, and means */
};

static struct forms forms_of(const struct lk_codec *codec, const struct lk_kernels *kernels) {
    bool codes = codec->coding == LK_ROT || codec->coding == LK_INT8, fine = codec->bits > 4;
    return (struct forms){.floats = !codes || !kernels || kernels == &lk_kernels_reference,
                          .eights = codes && !fine,
                          .sixteens = codes && (fine || codec->mean)};
}

static size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* The arrays of one head, the floats first, from `mem`, which may be NULL, into *out. Returns their bytes. */
static size_t lay_out(struct lk_queries *out, struct forms forms, int d_head, int rank, char *mem) {
    struct lk_queries q = {.n_q = d_head, .d_head = rank};
    size_t codes = whole_lines((size_t)d_head * lk_queries_pad(rank)),
           line = whole_lines(d_head * sizeof(float)), at = 0;
    if (forms.floats) {
        q.q = (float *)mem;
        at += whole_lines((size_t)d_head * rank * sizeof *q.q);
    }
    if (forms.sixteens) {
        q.q16 = (int16_t *)(mem + at);
        q.planes = (int8_t *)(mem + at + 2 * codes);
        q.scale16 = (float *)(mem + at + 4 * codes);
        q.sum16 = (int32_t *)(mem + at + 4 * codes + line);
        at += 4 * codes + 2 * line;
    }
    if (forms.eights) {
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
    struct lk_queries unplaced;
    if (codec->projection != LK_LATENTS_PRE) return LK_OK;
    struct forms forms = forms_of(codec, shape->kernels);
    size_t bytes = lay_out(&unplaced, forms, shape->d_head, level->d_part, NULL);
    level->k_up = lk_alloc(ledger, LK_FOR_SCRATCH, shape->n_head_kv * sizeof *level->k_up);
    char *mem = level->k_up ? lk_alloc(ledger, LK_FOR_SCRATCH, shape->n_head_kv * bytes) : NULL;
    if (!mem) return lk_fail(err, LK_E_NOMEM, "no memory to bring latents of K back");
    for (int head = 0; head < shape->n_head_kv; head++) {
        level->k_up[head] = (struct lk_k_up){.mem = mem + head * bytes, .bytes = bytes};
        lay_out(&level->k_up[head].up, forms, shape->d_head, level->d_part, level->k_up[head].mem);
    }
    return LK_OK;
}

void lk_k_up_free(struct lk_level *level, int n_head_kv, struct lk_ledger *ledger) {
    if (!level->k_up) return;
    lk_release(ledger, LK_FOR_SCRATCH, level->k_up[0].mem, n_head_kv * level->k_up[0].bytes);
    lk_release(ledger, LK_FOR_SCRATCH, level->k_up, n_head_kv * sizeof *level->k_up);
    level->k_up = NULL;
}

/* Vector c of a head, in the codec's domain: what of it is kept. */
static void keep(const struct lk_k_up *k_up, int c, const float *row) {
    enum {
        ROOM = LK_MAX_D_HEAD * (sizeof(int16_t) + 3 * sizeof(int8_t)) + 2 * sizeof(float) +
               2 * sizeof(int32_t)
    };
    _Alignas(64) char room[ROOM];
    const struct lk_queries *up = &k_up->up;
    struct lk_queries one;
    int rank = up->d_head, pad = lk_queries_pad(rank);
    if (up->q) memcpy((float *)k_up->mem + (size_t)c * rank, row, rank * sizeof *row);
    if (!up->q8 && !up->q16) return;
    lk_queries_prepare(&one, row, 1, rank, room);
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

void lk_k_up_prepare(struct lk_kv *kv, int i, int part, int d_head) {
    const struct lk_level *level = &kv->level[i];
    const struct lk_basis *basis = level->basis;
    float row[LK_MAX_D_HEAD];
    for (int within = 0; level->k_up && within < level->n_head; within++)
        for (int c = 0; c < d_head; c++) {
            for (int j = 0; j < level->d_part; j++)
                row[j] = basis->up[((size_t)part * basis->n_comp + j) * basis->width +
                                   (size_t)within * d_head + c];
            lk_codec_query(&kv->rule[i].codec, level->d_part, lk_sigma_of(kv, i, part), row, row);
            keep(&level->k_up[part * level->n_head + within], c, row);
        }
}
