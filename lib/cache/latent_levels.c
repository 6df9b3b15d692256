/* Bases and up-projections of levels of latents: the store of shared entries, each with the number
 * of its users, and what a cache takes from it. */
#include "cache/latent_levels.h"

#include "cache/cache.h"
#include "cache/latent_there.h"
#include "cache/project.h"
#include "cache/rope.h"
#include "kernels/composed.h"

#include <pthread.h>
#include <string.h>

/* ---- the up-projection of K before RoPE: memory for its forms, and their preparation ---- */

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

/* How a level's up-projection will be read. */
struct k_up_use {
    const struct lk_codec *codec;
    const struct lk_kernels *kernels; /* that will score keys; NULL: any */
    int n_head_kv;
};

/* Bytes for all heads of a level. */
static size_t k_up_bytes(const struct lk_level *level, const struct k_up_use *use) {
    struct forms forms = forms_of(use->codec, use->kernels);
    struct lk_queries unused;
    size_t bytes = heads_bytes(use->n_head_kv);
    for (int head = 0; head < use->n_head_kv; head++)
        bytes += lay_out_forms(&unused, forms, head_channels(level), rank_of(level, head), NULL);
    return bytes;
}

/* Lay out the heads' vectors in `mem`, of k_up_bytes and aligned to 64 bytes. Returns
 * [n_head_kv], in `mem`. */
static struct lk_k_up *k_up_init(void *mem, const struct lk_level *level,
                                 const struct k_up_use *use) {
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

/* Whether two codecs need the same vectors for equal ranks and a known basis. */
static bool k_up_same_codec(const struct lk_codec *a, const struct lk_codec *b) {
    char name[2][64]; /* names tell all options of a codec */
    lk_codec_print(a, LK_K, name[0], sizeof name[0]);
    lk_codec_print(b, LK_K, name[1], sizeof name[1]);
    return !a->sigma && !b->sigma && strcmp(name[0], name[1]) == 0;
}

/* Whether vectors that were made for one level, without sigma, serve another use. */
static bool k_up_serves(const struct lk_k_up *k_up, const struct lk_level *level,
                        const struct k_up_use *use) {
    if (k_up->basis != level->basis || k_up->kernels != use->kernels ||
        !k_up_same_codec(&k_up->codec, use->codec))
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
static void k_up_prepare(struct lk_k_up *k_up, const struct lk_level *level,
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

/* Bases and up-projections of levels of latents: the store of shared entries, each with the number
 * of its users, and what a cache takes from it. */

/* ---- the store ---- */

struct entry {
    struct entry *next;
    const void *content; /* what users get: &basis, or k_up */
    int n_user;
    void *mem; /* [bytes] of the content */
    size_t bytes;
    const struct lk_basis *of; /* that `basis` is a copy of, or NULL */
    struct lk_basis basis;
    struct lk_k_up *k_up; /* or NULL */
};

struct lk_latent_store {
    struct lk_ledger *ledger;
    pthread_mutex_t lock;
    struct entry *first; /* in order of creation */
    struct lk_there_list there;
};

lk_status lk_latent_store_new(struct lk_latent_store **out, struct lk_ledger *ledger, lk_err *err) {
    struct lk_latent_store *store = lk_alloc(ledger, LK_FOR_OTHER, sizeof *store);
    if (!store) return lk_fail(err, LK_E_NOMEM, "no memory for the sidecar's bases");
    store->ledger = ledger;
    pthread_mutex_init(&store->lock, NULL);
    lk_there_init(&store->there, ledger);
    *out = store;
    return LK_OK;
}

void lk_latent_store_free(struct lk_latent_store *store) {
    if (!store) return;
    pthread_mutex_destroy(&store->lock);
    lk_there_destroy(&store->there);
    lk_release(store->ledger, LK_FOR_OTHER, store, sizeof *store);
}

uint64_t lk_latent_store_bytes(struct lk_latent_store *store) {
    uint64_t sum = 0;
    pthread_mutex_lock(&store->lock);
    for (const struct entry *e = store->first; e; e = e->next) sum += e->bytes;
    pthread_mutex_unlock(&store->lock);
    return sum;
}

/* Append an entry with `bytes` of memory; NULL without memory. */
static struct entry *add_entry(struct lk_latent_store *store, size_t bytes) {
    struct entry *e = lk_alloc(store->ledger, LK_FOR_OTHER, sizeof *e), **last = &store->first;
    if (!e) return NULL;
    e->mem = lk_alloc(store->ledger, LK_FOR_WEIGHTS, bytes);
    e->bytes = bytes;
    if (!e->mem) {
        lk_release(store->ledger, LK_FOR_OTHER, e, sizeof *e);
        return NULL;
    }
    while (*last) last = &(*last)->next;
    *last = e;
    return e;
}

/* The first n_comp components, or more, of a basis that outlives the store. LK_E_NOMEM. */
static lk_status latent_store_basis(struct lk_latent_store *store, const struct lk_basis *of,
                                    int n_comp, const struct lk_basis **out, lk_err *err) {
    pthread_mutex_lock(&store->lock);
    struct entry *e = store->first;
    while (e && (e->of != of || e->basis.n_comp < n_comp)) e = e->next;
    if (!e && (e = add_entry(store, lk_basis_copy_bytes(of, n_comp))) != NULL) {
        e->of = of;
        e->basis = lk_basis_copy(of, n_comp, e->mem);
        e->content = &e->basis;
    }
    if (e) {
        e->n_user++;
        *out = &e->basis;
    }
    pthread_mutex_unlock(&store->lock);
    return e ? LK_OK : lk_fail(err, LK_E_NOMEM, "no memory for the sidecar's bases");
}

/* The up-projection of all KV heads of a level, for a codec without sigma.
 * LK_E_NOMEM. */
static lk_status latent_store_k_up(struct lk_latent_store *store, const struct lk_level *level,
                                   const struct k_up_use *use, struct lk_k_up **out, lk_err *err) {
    pthread_mutex_lock(&store->lock);
    struct entry *e = store->first;
    while (e && !(e->k_up && k_up_serves(e->k_up, level, use))) e = e->next;
    if (!e && (e = add_entry(store, k_up_bytes(level, use))) != NULL) {
        e->k_up = k_up_init(e->mem, level, use);
        for (int part = 0; part < level->n_part; part++)
            k_up_prepare(e->k_up, level, use->codec, part, NULL);
        e->content = e->k_up;
    }
    if (e) {
        e->n_user++;
        *out = e->k_up;
    }
    pthread_mutex_unlock(&store->lock);
    return e ? LK_OK : lk_fail(err, LK_E_NOMEM, "no memory for the up-projection of K");
}

/* Return what one of the functions above has given. NULL does nothing. */
static void latent_store_return(struct lk_latent_store *store, const void *content) {
    if (!content) return;
    pthread_mutex_lock(&store->lock);
    struct entry **at = &store->first;
    while ((*at)->content != content) at = &(*at)->next;
    struct entry *e = *at;
    if (--e->n_user == 0) {
        *at = e->next;
        lk_release(store->ledger, LK_FOR_WEIGHTS, e->mem, e->bytes);
        lk_release(store->ledger, LK_FOR_OTHER, e, sizeof *e);
    }
    pthread_mutex_unlock(&store->lock);
}

/* ---- the levels of a cache ---- */

static struct k_up_use use_of(const struct lk_cache *cache, const struct lk_level_rule *rule) {
    return (struct k_up_use){.codec = &rule->codec,
                             .kernels = cache->shape.kernels,
                             .n_head_kv = cache->shape.n_head_kv};
}

static bool has_k_up(const struct lk_level_rule *rule) {
    return rule->codec.projection == LK_PROJECTION_LATENT_PRE;
}

static lk_status open_k_up(struct lk_cache *cache, struct lk_level *level,
                           const struct lk_level_rule *rule, lk_err *err) {
    struct k_up_use use = use_of(cache, rule);
    if (!rule->codec.sigma)
        return latent_store_k_up(cache->latents, level, &use, &level->k_up, err);
    void *mem = lk_alloc(cache->ledger, LK_FOR_SCRATCH, k_up_bytes(level, &use));
    if (!mem) return lk_fail(err, LK_E_NOMEM, "no memory for the up-projection of K");
    level->k_up = k_up_init(mem, level, &use);
    return LK_OK;
}

lk_status lk_latent_levels_open(struct lk_cache *cache, lk_err *err) {
    lk_status status = LK_OK;
    cache->latents = cache->shape.latents;
    if (!cache->latents && cache->shape.basis)
        status = lk_latent_store_new(&cache->latents, cache->ledger, err);
    for (int k = 0; !status && k < lk_cache_n_kv(cache); k++) {
        struct lk_kv *kv = lk_cache_kv(cache, k);
        int n_comp[LK_MAX_KV_LEVEL] = {0};
        if (kv->is_elsewhere) continue;
        for (int i = 0; i < kv->n_level; i++) n_comp[i] = lk_kv_components(kv, kv->level[i].basis);
        for (int i = 0; !status && i < kv->n_level; i++) {
            struct lk_level *level = &kv->level[i];
            if (!level->basis) continue;
            status =
                latent_store_basis(cache->latents, level->basis, n_comp[i], &level->basis, err);
            level->shares_basis = !status;
            if (!status && has_k_up(&kv->rule[i]))
                status = open_k_up(cache, level, &kv->rule[i], err);
        }
    }
    if (!status && cache->latents && cache->shape.device && !cache->shape.device->uses_host)
        status = lk_latents_there_open(&cache->latents->there, cache, err);
    return status;
}

void lk_latent_levels_close(struct lk_cache *cache) {
    if (cache->latents) lk_latents_there_close(&cache->latents->there, cache);
    for (int k = 0; cache->latents && k < lk_cache_n_kv(cache); k++) {
        struct lk_kv *kv = lk_cache_kv(cache, k);
        for (int i = 0; i < kv->n_level; i++) {
            struct lk_level *level = &kv->level[i];
            struct k_up_use use = use_of(cache, &kv->rule[i]);
            if (level->k_up && kv->rule[i].codec.sigma)
                lk_release(cache->ledger, LK_FOR_SCRATCH, level->k_up, k_up_bytes(level, &use));
            else
                latent_store_return(cache->latents, level->k_up);
            if (level->shares_basis) latent_store_return(cache->latents, level->basis);
        }
    }
    if (cache->latents != cache->shape.latents) lk_latent_store_free(cache->latents);
}

void lk_latent_level_prepare(struct lk_kv *kv, int i, int part) {
    const struct lk_level *level = &kv->level[i];
    const struct lk_codec *codec = &kv->rule[i].codec;
    if (level->k_up && codec->sigma)
        k_up_prepare(level->k_up, level, codec, part, lk_kv_sigma(kv, i, part));
}

void lk_latent_levels_restore(struct lk_kv *kv) {
    for (int i = 0; i < kv->n_level; i++)
        for (int part = 0; lk_kv_equalizer(kv, i)->calibrated && part < kv->level[i].n_part; part++)
            lk_latent_level_prepare(kv, i, part);
}

/* ---- estimates ---- */

/* Whether an older level of kv has the same basis, or the same shared up-projection. */
static bool has_same_basis(const struct lk_kv *kv, int i) {
    for (int j = 0; j < i; j++)
        if (kv->level[j].basis == kv->level[i].basis) return true;
    return false;
}

static bool has_same_k_up(const struct lk_kv *kv, int i) {
    for (int j = 0; j < i; j++)
        if (has_k_up(&kv->rule[j]) && k_up_same_codec(&kv->rule[i].codec, &kv->rule[j].codec))
            return true;
    return false;
}

void lk_latent_levels_estimate(const struct lk_cache *cache, uint64_t *own, uint64_t *shared) {
    *own = *shared = 0;
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        for (int i = 0; i < kv->n_level; i++) {
            const struct lk_level *level = &kv->level[i];
            if (!level->basis || kv->is_elsewhere) continue;
            if (!has_same_basis(kv, i))
                *shared += lk_basis_copy_bytes(level->basis, lk_kv_components(kv, level->basis));
            struct k_up_use use = use_of(cache, &kv->rule[i]);
            if (has_k_up(&kv->rule[i]) && !has_same_k_up(kv, i))
                *(kv->rule[i].codec.sigma ? own : shared) += k_up_bytes(level, &use);
        }
    }
}
