/* The up-projection of K before RoPE: memory for its forms, and their preparation. */
#include "cache/k_up.h"

#include "cache/basis_rows.h"
#include "cache/rope.h"
#include "kernels/composed.h"

#include <string.h>

/* The forms of prepared queries (kernels/queries.h) that the kernels read for a codec. All of them
 * would be nine bytes per number of the basis. Codes of few bits without a mean need one byte. */
struct forms {
    bool f32; /* q: half floats, KIVI's codes, and the reference kernels */
    bool i8;  /* q8, scale8, sum8: codes of up to max_bits_q8 bits */
    bool i16; /* q16, planes, scale16, sum16: finer codes, and means */
};

static struct forms forms_of(const struct lk_codec *codec, const struct lk_kernels *kernels) {
    if (!lk_is_per_token(codec) || kernels == &lk_kernels_reference)
        return (struct forms){.f32 = true};
    if (!kernels) return (struct forms){.f32 = true, .i8 = true, .i16 = true};
    bool fine = codec->bits > kernels->max_bits_q8;
    return (struct forms){.i8 = !fine, .i16 = fine || codec->mean};
}

static size_t round_to_line(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* No address if the arrays are only measured. */
static void *place(char *mem, size_t at) { return mem ? mem + at : NULL; }

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
        q.q16 = place(mem, at);
        q.planes = place(mem, at + 2 * codes);
        q.scale16 = place(mem, at + 4 * codes);
        q.sum16 = place(mem, at + 4 * codes + line);
        at += 4 * codes + 2 * line;
    }
    if (forms.i8) {
        q.q8 = place(mem, at);
        q.scale8 = place(mem, at + codes);
        q.sum8 = place(mem, at + codes + line);
        at += codes + 2 * line;
    }
    *out = q;
    return at;
}

/* Heads of a level: their structures, then their arrays. */
static size_t heads_bytes(int n_head_kv) {
    return round_to_line(n_head_kv * sizeof(struct lk_k_up));
}

static int rank_of(const struct lk_level *level, int head_kv) {
    return lk_level_part_channels(level, head_kv / level->n_head);
}

static int head_channels(const struct lk_level *level) {
    return level->basis->width / level->n_head;
}

size_t lk_k_up_bytes(const struct lk_level *level, const struct lk_k_up_use *use) {
    struct forms forms = forms_of(use->codec, use->kernels);
    struct lk_queries unused;
    size_t bytes = heads_bytes(use->n_head_kv);
    for (int head = 0; head < use->n_head_kv; head++)
        bytes += lay_out_forms(&unused, forms, head_channels(level), rank_of(level, head), NULL);
    return bytes;
}

struct lk_k_up *lk_k_up_init(void *mem, const struct lk_level *level,
                             const struct lk_k_up_use *use) {
    struct forms forms = forms_of(use->codec, use->kernels);
    struct lk_k_up *k_up = mem;
    char *at = (char *)mem + heads_bytes(use->n_head_kv);
    for (int head = 0; head < use->n_head_kv; head++)
        at += lay_out_forms(&k_up[head].up, forms, head_channels(level), rank_of(level, head), at);
    k_up->basis = level->basis;
    k_up->codec = *use->codec;
    k_up->kernels = use->kernels;
    return k_up;
}

bool lk_k_up_same_codec(const struct lk_codec *a, const struct lk_codec *b) {
    char name[2][64]; /* names tell all options of a codec */
    lk_codec_print(a, LK_K, name[0], sizeof name[0]);
    lk_codec_print(b, LK_K, name[1], sizeof name[1]);
    return !a->sigma && !b->sigma && strcmp(name[0], name[1]) == 0;
}

bool lk_k_up_serves(const struct lk_k_up *k_up, const struct lk_level *level,
                    const struct lk_k_up_use *use) {
    if (k_up->basis != level->basis || k_up->kernels != use->kernels ||
        !lk_k_up_same_codec(&k_up->codec, use->codec))
        return false;
    for (int head = 0; head < use->n_head_kv; head++)
        if (k_up[head].up.d_head != rank_of(level, head)) return false;
    return true;
}

/* Keep vector c of a head, given in the codec's domain, in the forms that are stored. */
static void store_vector(const struct lk_queries *up, int c, const float *row) {
    enum {
        MAX_BYTES = LK_MAX_D_HEAD * (sizeof(int16_t) + 3 * sizeof(int8_t)) + 2 * sizeof(float) +
                    2 * sizeof(int32_t)
    };
    _Alignas(64) char mem[MAX_BYTES];
    struct lk_queries one;
    int rank = up->d_head, pad = lk_queries_pad(rank);
    if (up->q) memcpy((float *)up->q + (size_t)c * rank, row, rank * sizeof *row);
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

/* The rows of up are read a strip of channels at a time, because vectors run across them. */
void lk_k_up_prepare(struct lk_k_up *k_up, const struct lk_level *level,
                     const struct lk_codec *codec, int part, const float *sigma) {
    enum { STRIP = 4 };
    int rank = lk_level_part_channels(level, part), d_head = head_channels(level);
    float row[STRIP][LK_MAX_D_HEAD], buf[STRIP];
    for (int head = 0; head < level->n_head; head++)
        for (int c = 0; c < d_head; c += STRIP) {
            for (int j = 0; j < rank; j++) {
                const float *x =
                    lk_basis_row(level->basis, LK_BASIS_UP, part, j, head * d_head + c, STRIP, buf);
                for (int k = 0; k < STRIP; k++) row[k][j] = x[k];
            }
            for (int k = 0; k < STRIP; k++) {
                lk_codec_transform_query(codec, rank, sigma, row[k], row[k]);
                store_vector(&k_up[part * level->n_head + head].up,
                             lk_rope_place(level->rope, c + k), row[k]);
            }
        }
}
