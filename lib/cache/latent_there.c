/* Bases, packed up-projections and rotation tables of levels of latents on devices. */
#include "cache/latent_there.h"

#include "cache/cache.h"
#include "cache/project.h"
#include "codec/f16.h"
#include "device/commands.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

/* What a content is made of. Unused fields are zero, so keys are compared as bytes. */
struct key {
    struct lk_device *device;
    const struct lk_basis *basis[2];
    const struct lk_rope *rope;
    struct lk_codec codec[2];
    int32_t d_part[2], kernel; /* number + 1; 0: a basis as it is */
    int32_t unused;            /* 0: keys are compared with memcmp, and have no padding */
    int64_t n_pos;
};
_Static_assert(offsetof(struct key, n_pos) == offsetof(struct key, unused) + sizeof(int32_t),
               "keys are compared with memcmp");

struct lk_there {
    struct lk_there *next;
    struct key key;
    int n_user;
    struct lk_ledger *ledger; /* counts the bytes */
    uint64_t at;
    size_t bytes;
};

/* ---- the list ---- */

void lk_there_init(struct lk_there_list *list, struct lk_ledger *ledger) {
    list->ledger = ledger;
    list->first = NULL;
    pthread_mutex_init(&list->lock, NULL);
}

void lk_there_destroy(struct lk_there_list *list) { pthread_mutex_destroy(&list->lock); }

static size_t round_up(size_t bytes) { return (bytes + 127) / 128 * 128; }

/* Fill in the host's image [bytes] of a content. */
typedef void fill_content(const struct key *key, const void *how, char *image);

/* Allocate a content of `bytes`, fill it in and copy it to the device. False without memory. */
static bool make_content(struct lk_there *t, const struct lk_cache *cache, size_t bytes,
                         fill_content *fill, const void *how) {
    const struct lk_cache_shape *shape = &cache->shape;
    struct lk_device *device = shape->device;
    t->ledger = shape->device_ledger->common ? shape->device_ledger->common : shape->device_ledger;
    t->bytes = bytes;
    char *image = lk_alloc(cache->ledger, LK_FOR_SCRATCH, bytes);
    if (!image) return false;
    bool counted = lk_ledger_add(t->ledger, LK_FOR_WEIGHTS, bytes), ok = counted;
    if (ok) ok = !device->call->alloc(device, bytes, &t->at, NULL);
    if (ok) {
        fill(&t->key, how, image);
        ok = !device->call->upload(device, t->at, image, bytes, NULL);
        if (!ok) device->call->free(device, t->at, bytes);
    }
    if (counted && !ok) lk_ledger_remove(t->ledger, LK_FOR_WEIGHTS, bytes);
    lk_release(cache->ledger, LK_FOR_SCRATCH, image, bytes);
    return ok;
}

/* Let a cache be a user less. */
static void drop_content(struct lk_there_list *list, struct lk_there *content) {
    struct lk_there **at = &list->first;
    while (*at != content) at = &(*at)->next;
    struct lk_there *t = *at;
    if (--t->n_user > 0) return;
    *at = t->next;
    t->key.device->call->free(t->key.device, t->at, t->bytes);
    lk_ledger_remove(t->ledger, LK_FOR_WEIGHTS, t->bytes);
    lk_release(list->ledger, LK_FOR_OTHER, t, sizeof *t);
}

/* Has a level of the cache the content? */
static bool uses_content(struct lk_cache *cache, const struct lk_there *t) {
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        if (kv->fast.content[0] == t || kv->fast.content[1] == t) return true;
        for (int i = 0; i < kv->n_level; i++)
            if (kv->level[i].content == t) return true;
    }
    return false;
}

/* Count a content against the limit of a cache, once, unless only that cache has it. */
static bool borrow_content(struct lk_cache *cache, const struct lk_there *t) {
    struct lk_ledger *ledger = cache->shape.device_ledger;
    if (t->ledger == ledger || uses_content(cache, t)) return true;
    if (!lk_ledger_borrow(ledger, t->bytes)) return false;
    cache->there_bytes += t->bytes;
    return true;
}

/* The content of a key, for one more user. NULL without memory. */
static struct lk_there *take_content(struct lk_there_list *list, struct lk_cache *cache,
                                     const struct key *key, size_t bytes, fill_content *fill,
                                     const void *how) {
    pthread_mutex_lock(&list->lock);
    struct lk_there *t = list->first;
    while (t && memcmp(&t->key, key, sizeof *key) != 0) t = t->next;
    if (!t && (t = lk_alloc(list->ledger, LK_FOR_OTHER, sizeof *t)) != NULL) {
        t->key = *key;
        if (make_content(t, cache, bytes, fill, how)) {
            t->next = list->first;
            list->first = t;
        } else {
            lk_release(list->ledger, LK_FOR_OTHER, t, sizeof *t);
            t = NULL;
        }
    }
    if (t) t->n_user++;
    if (t && !borrow_content(cache, t)) {
        drop_content(list, t);
        t = NULL;
    }
    pthread_mutex_unlock(&list->lock);
    return t;
}

/* Give back what a level has. */
static void return_content(struct lk_there_list *list, struct lk_cache *cache,
                           const struct lk_there **content) {
    if (!*content) return;
    pthread_mutex_lock(&list->lock);
    struct lk_there *t = list->first;
    while (t != *content) t = t->next;
    *content = NULL;
    if (t->ledger != cache->shape.device_ledger && !uses_content(cache, t)) {
        lk_ledger_return(cache->shape.device_ledger, t->bytes);
        cache->there_bytes -= t->bytes;
    }
    drop_content(list, t);
    pthread_mutex_unlock(&list->lock);
}

/* ---- bases as they are ---- */

/* Bytes before each array of a basis (speeds: of the rotation), and of all. */
enum { DOWN, DOWN_SCALE, UP, UP_SCALE, MEAN, SPEED, END };

static void lay_out_basis(const struct lk_basis *b, const struct lk_rope *rope,
                          size_t at[END + 1]) {
    bool q8 = b->type == LK_BASIS_Q8, same = b->up.any == b->down.any;
    size_t rows = (size_t)b->n_group * b->n_comp,
           matrix = round_up(lk_basis_numbers_bytes(b->type, rows * b->width)),
           scale = q8 ? round_up(rows * sizeof(float)) : 0;
    at[DOWN] = 0;
    at[DOWN_SCALE] = matrix;
    at[UP] = same ? 0 : matrix + scale;
    at[UP_SCALE] = same ? matrix : at[UP] + matrix;
    at[MEAN] = at[UP_SCALE] + scale;
    at[SPEED] = at[MEAN] + (b->mean ? round_up((size_t)b->n_group * b->width * sizeof(float)) : 0);
    at[END] = at[SPEED] + (rope ? round_up((size_t)rope->n_pair * sizeof *rope->speed) : 0);
}

static void fill_basis(const struct key *key, const void *how, char *image) {
    const struct lk_basis *b = key->basis[0];
    size_t at[END + 1], rows = (size_t)b->n_group * b->n_comp,
                        matrix = lk_basis_numbers_bytes(b->type, rows * b->width);
    (void)how;
    lay_out_basis(b, key->rope, at);
    memcpy(image + at[DOWN], b->down.any, matrix);
    memcpy(image + at[UP], b->up.any, matrix);
    if (b->down.scale) memcpy(image + at[DOWN_SCALE], b->down.scale, rows * sizeof(float));
    if (b->up.scale) memcpy(image + at[UP_SCALE], b->up.scale, rows * sizeof(float));
    if (b->mean) memcpy(image + at[MEAN], b->mean, (size_t)b->n_group * b->width * sizeof(float));
    if (key->rope)
        memcpy(image + at[SPEED], key->rope->speed,
               (size_t)key->rope->n_pair * sizeof *key->rope->speed);
}

static bool open_basis(struct lk_there_list *list, struct lk_cache *cache, struct lk_level *level) {
    const struct lk_basis *b = level->basis;
    struct key key;
    size_t at[END + 1];
    memset(&key, 0, sizeof key);
    key.device = cache->shape.device, key.basis[0] = b, key.rope = level->rope;
    lay_out_basis(b, level->rope, at);
    struct lk_there *t = take_content(list, cache, &key, at[END], fill_basis, NULL);
    if (!t) return false;
    level->content = t;
    level->there = (struct lk_basis_there){.down = t->at, .up = t->at + at[UP]};
    if (b->down.scale) {
        level->there.down_scale = t->at + at[DOWN_SCALE];
        level->there.up_scale = t->at + at[UP_SCALE];
    }
    if (b->mean) level->there.mean = t->at + at[MEAN];
    if (level->rope) level->there.speed = t->at + at[SPEED];
    return true;
}

/* ---- what fast kernels read ---- */

/* Both levels of a pair, and the kernel that was chosen for them. */
struct pair {
    const struct lk_level *level[2];
    const struct lk_codec *codec[2];
    struct lk_device_latent_kernel kernel;
    int n_head_kv, d_head;
    float *up; /* [d_head][rank] scratch */
};

/* The up-projection of channel c of a KV head, a number for each component, in the domain of the
 * level's codes: out [rank]. */
static int channel_of(const struct pair *p, int side, int head_kv, int c, float *out) {
    const struct lk_level *level = p->level[side];
    int part = head_kv / level->n_head, rank = lk_level_part_channels(level, part),
        first = head_kv % level->n_head * p->d_head + c / 4 * 4;
    float buf[4];
    for (int j = 0; j < rank; j++)
        out[j] = lk_basis_row(level->basis, LK_BASIS_UP, part, j, first, 4, buf)[c % 4];
    lk_codec_transform_query(p->codec[side], rank, NULL, out, out);
    return rank;
}

static const float *mean_of(const struct pair *p, int side, int head_kv) {
    struct lk_basis_head head = lk_level_basis_head(p->level[side], head_kv);
    return lk_basis_mean(&head);
}

/* Bytes before each array of a pair; and of all. */
enum { K_UP, K_MEAN, V_UP, V_MEAN, K_PART, V_PART, PAIR_END };

static void lay_out_pair(const struct pair *p, size_t at[PAIR_END + 1]) {
    size_t head = p->kernel.post ? (size_t)p->d_head * p->level[LK_K]->d_part * sizeof(uint16_t)
                                 : p->kernel.up_bytes,
           mean = (size_t)p->n_head_kv * p->d_head * sizeof(float);
    size_t bytes[PAIR_END] = {p->n_head_kv * head,
                              p->level[LK_K]->basis->mean ? mean : 0,
                              (size_t)p->n_head_kv * p->level[LK_V]->d_part * p->d_head *
                                  sizeof(uint16_t),
                              p->level[LK_V]->basis->mean ? mean : 0,
                              p->level[LK_K]->n_part * sizeof(struct lk_device_latent_part),
                              p->level[LK_V]->n_part * sizeof(struct lk_device_latent_part)};
    at[0] = 0;
    for (int i = 0; i < PAIR_END; i++) at[i + 1] = at[i] + round_up(bytes[i]);
}

/* K before RoPE: channels in the order of pairs, packed by the device. */
static void fill_k(const struct pair *p, struct lk_device *device, int h, char *out,
                   float *k_mean) {
    const struct lk_level *level = p->level[LK_K];
    const float *mean = mean_of(p, LK_K, h);
    int rank = lk_level_part_channels(level, h / level->n_head);
    float turned[LK_MAX_D_HEAD];
    for (int c = 0; c < p->d_head; c++) {
        int place = lk_rope_place(level->rope, c);
        channel_of(p, LK_K, h, c, p->up + (size_t)place * rank);
        if (mean) turned[place] = mean[c];
    }
    device->call->pack_up(device, p->kernel.number, p->up, rank, mean ? turned : NULL, out, k_mean);
}

/* Channels of a head as half floats: of V [rank][d_head], of rotated K [d_head][rank]; `wide`: the
 * widest rank. */
static void fill_halves(const struct pair *p, int side, int h, uint16_t *out) {
    int wide = p->level[side]->d_part, d = p->d_head;
    float row[LK_MAX_D_HEAD];
    for (int c = 0; c < d; c++) {
        int rank = channel_of(p, side, h, c, row);
        for (int j = 0; j < rank; j++)
            out[side == LK_V ? (size_t)j * d + c : (size_t)c * wide + j] = lk_f32_to_f16(row[j]);
    }
}

static void fill_mean(const struct pair *p, int side, int h, float *out) {
    const float *mean = mean_of(p, side, h);
    if (mean) memcpy(out, mean, p->d_head * sizeof *mean);
}

static void fill_pair(const struct key *key, const void *how, char *image) {
    const struct pair *p = how;
    size_t at[PAIR_END + 1], head[2];
    lay_out_pair(p, at);
    for (int side = 0; side < 2; side++)
        head[side] = (size_t)p->level[side]->d_part * p->d_head * sizeof(uint16_t);
    for (int h = 0; h < p->n_head_kv; h++) {
        float *k_mean = (float *)(image + at[K_MEAN]) + (size_t)h * p->d_head,
              *v_mean = (float *)(image + at[V_MEAN]) + (size_t)h * p->d_head;
        fill_halves(p, LK_V, h, (uint16_t *)(image + at[V_UP] + h * head[LK_V]));
        fill_mean(p, LK_V, h, v_mean);
        if (!p->kernel.post) {
            fill_k(p, key->device, h, image + at[K_UP] + h * p->kernel.up_bytes, k_mean);
            continue;
        }
        fill_halves(p, LK_K, h, (uint16_t *)(image + at[K_UP] + h * head[LK_K]));
        fill_mean(p, LK_K, h, k_mean);
    }
    for (int side = 0; side < 2; side++) {
        struct lk_device_latent_part *part = (void *)(image + at[side == LK_K ? K_PART : V_PART]);
        for (int i = 0; i < p->level[side]->n_part; i++)
            part[i] = (struct lk_device_latent_part){
                .offset = (uint32_t)lk_level_part_offset(p->level[side], i),
                .rank = (uint32_t)lk_level_part_channels(p->level[side], i)};
    }
}

/* ---- the tables of RoPE ---- */

/* Bytes before the packed tables, the fine angles, the coarse ones; and of all. */
enum { ROPE, FINE, COARSE, ROPE_END };

static void lay_out_rope(const struct key *key, const struct pair *p, size_t at[ROPE_END + 1]) {
    size_t angles = (size_t)p->d_head * sizeof(float); /* of a position */
    at[ROPE] = 0;
    at[FINE] = round_up(p->kernel.rope_bytes);
    at[COARSE] = at[FINE] + round_up(LK_SEGMENT * angles);
    at[ROPE_END] = at[COARSE] + round_up((size_t)(key->n_pos / LK_SEGMENT + 3) * angles);
}

/* Cosines and sines of n multiples of `step` positions: out [n][n_pair][2]. */
static void fill_angles(const struct lk_rope *rope, int n_pair, int n, int step, float *out) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n_pair; j++, out += 2) {
            double angle = j < rope->n_pair ? (double)step * i * rope->speed[j] : 0;
            out[0] = (float)cos(angle);
            out[1] = (float)sin(angle);
        }
}

static void fill_rope(const struct key *key, const void *how, char *image) {
    const struct pair *p = how;
    const struct lk_rope *rope = key->rope;
    const struct lk_rope_fold *fold = &rope->fold;
    struct lk_device_rope tables = {.speed = rope->speed,
                                    .magnitude = rope->magnitude,
                                    .n_pair = rope->n_pair,
                                    .basis = fold->basis[0],
                                    .cosine = fold->cosine[0],
                                    .sine = fold->sine[0],
                                    .stride = 2 * LK_MAX_PAIR};
    size_t at[ROPE_END + 1];
    lay_out_rope(key, p, at);
    key->device->call->pack_rope(key->device, p->kernel.number, &tables, image + at[ROPE]);
    fill_angles(rope, p->d_head / 2, LK_SEGMENT, 1, (float *)(image + at[FINE]));
    fill_angles(rope, p->d_head / 2, (int)(key->n_pos / LK_SEGMENT) + 3, LK_SEGMENT,
                (float *)(image + at[COARSE]));
}

/* ---- choosing ---- */

/* The body of K or V, if fast kernels may know its codec: rot with a Lloyd-Max codebook, and all
 * parts alike. Else -1. */
static int body_of(const struct lk_kv *kv) {
    int i = lk_level_sinks(kv->rule, kv->n_level) > 0;
    const struct lk_codec *c = &kv->rule[i].codec;
    bool plain = c->coding == LK_ROT && c->lloyd && !c->trellis && !c->mean && !c->sigma;
    return kv->level[i].basis && plain && kv->rule[i].n_other == 0 ? i : -1;
}

static bool choose_kernel(const struct lk_cache *cache, const struct lk_device *device,
                          struct pair *p) {
    const struct lk_level *k = p->level[LK_K], *v = p->level[LK_V];
    struct lk_device_latent_need need = {
        .d_head = p->d_head,
        .k_rank = k->d_part,
        .k_bits = p->codec[LK_K]->bits,
        .v_rank = v->d_part,
        .v_bits = p->codec[LK_V]->bits,
        .k_heads = k->n_head,
        .v_heads = v->n_head,
        .queries = cache->shape.n_head > 0 ? cache->shape.n_head / p->n_head_kv : 1,
        .n_fast = k->rope ? k->rope->fold.n_fast[LK_MAX_FOLD] : 0,
        .post = !k->rope};
    return device->call->latent_kernel(device, &need, &p->kernel);
}

static lk_status set_pair(struct lk_there_list *list, struct lk_cache *cache, struct lk_kv *k,
                          struct pair *p) {
    struct lk_fast_latents *fast = &k->fast;
    struct key key;
    size_t at[PAIR_END + 1];
    memset(&key, 0, sizeof key);
    key.device = cache->shape.device, key.kernel = p->kernel.number + 1;
    for (int side = 0; side < 2; side++) {
        key.basis[side] = p->level[side]->basis, key.codec[side] = *p->codec[side];
        key.d_part[side] = p->level[side]->d_part;
    }
    lay_out_pair(p, at);
    struct lk_there *t = take_content(list, cache, &key, at[PAIR_END], fill_pair, p);
    if (!t) return LK_E_NOMEM;
    fast->content[0] = t;
    fast->k_up = t->at + at[K_UP], fast->v_up = t->at + at[V_UP];
    if (p->level[LK_K]->basis->mean) fast->k_mean = t->at + at[K_MEAN];
    if (p->level[LK_V]->basis->mean) fast->v_mean = t->at + at[V_MEAN];
    fast->k_part = t->at + at[K_PART], fast->v_part = t->at + at[V_PART];
    fast->kernel = p->kernel.number + 1;
    fast->post = p->kernel.post;
    return LK_OK;
}

static int64_t rope_positions(const struct lk_cache *cache) {
    return cache->shape.n_pos > 0 ? cache->shape.n_pos : cache->shape.n_ctx;
}

static lk_status set_rope(struct lk_there_list *list, struct lk_cache *cache, struct lk_kv *k,
                          const struct pair *p) {
    struct key key;
    size_t at[ROPE_END + 1];
    memset(&key, 0, sizeof key);
    key.device = cache->shape.device, key.kernel = p->kernel.number + 1;
    key.rope = p->level[LK_K]->rope;
    key.n_pos = rope_positions(cache);
    lay_out_rope(&key, p, at);
    struct lk_there *t = take_content(list, cache, &key, at[ROPE_END], fill_rope, p);
    if (!t) return LK_E_NOMEM;
    k->fast.content[1] = t;
    k->fast.rope = t->at + at[ROPE], k->fast.fine = t->at + at[FINE];
    k->fast.coarse = t->at + at[COARSE];
    return LK_OK;
}

/* The bodies of a layer, if a kernel of the device takes them. */
static bool find_pair(const struct lk_cache *cache, const struct lk_device *device,
                      const struct lk_kv kv[2], struct pair *p) {
    int level[2] = {body_of(&kv[LK_K]), body_of(&kv[LK_V])};
    *p = (struct pair){.n_head_kv = kv[LK_K].n_head, .d_head = kv[LK_K].d_head};
    if (level[LK_K] < 0 || level[LK_V] < 0 || kv[LK_K].evict) return false;
    for (int side = 0; side < 2; side++) {
        p->level[side] = &kv[side].level[level[side]];
        p->codec[side] = &kv[side].rule[level[side]].codec;
    }
    return choose_kernel(cache, device, p);
}

/* Choose the kernel of a layer's body, and give it what it reads. */
static lk_status open_pair(struct lk_there_list *list, struct lk_cache *cache, struct lk_kv kv[2]) {
    struct pair p;
    if (!find_pair(cache, cache->shape.device, kv, &p)) return LK_OK;
    for (int side = 0; side < 2; side++)
        kv[LK_K].fast.level[side] = (int)(p.level[side] - kv[side].level);
    size_t up_bytes = (size_t)p.d_head * p.level[LK_K]->d_part * sizeof *p.up;
    p.up = lk_alloc(cache->ledger, LK_FOR_SCRATCH, up_bytes);
    if (!p.up) return LK_E_NOMEM;
    lk_status status = set_pair(list, cache, &kv[LK_K], &p);
    if (!status && !p.kernel.post) status = set_rope(list, cache, &kv[LK_K], &p);
    lk_release(cache->ledger, LK_FOR_SCRATCH, p.up, up_bytes);
    return status;
}

lk_status lk_latents_there_open(struct lk_there_list *list, struct lk_cache *cache, lk_err *err) {
    lk_status status = LK_OK;
    for (int k = 0; !status && k < lk_cache_n_kv(cache); k++) {
        struct lk_kv *kv = lk_cache_kv(cache, k);
        for (int i = 0; !status && i < kv->n_level; i++)
            if (kv->level[i].basis && !kv->is_elsewhere && !open_basis(list, cache, &kv->level[i]))
                status = LK_E_NOMEM;
    }
    for (int layer = 0; !status && layer < cache->shape.n_layer; layer++)
        if (!cache->kv[layer][LK_K].is_elsewhere) status = open_pair(list, cache, cache->kv[layer]);
    if (!status) return LK_OK;
    return lk_fail(err, status, "no memory on %s for the sidecar's bases",
                   cache->shape.device->name);
}

void lk_latents_there_close(struct lk_there_list *list, struct lk_cache *cache) {
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        struct lk_kv *kv = lk_cache_kv(cache, k);
        for (int i = 0; i < kv->n_level; i++) return_content(list, cache, &kv->level[i].content);
        for (int i = 0; i < 2; i++) return_content(list, cache, &kv->fast.content[i]);
    }
}

/* ---- estimates ---- */

/* Bytes of the bases of K or V of a layer. An older level with the same basis has it already. */
static uint64_t estimate_bases(const struct lk_kv *kv) {
    uint64_t bytes = 0;
    for (int i = 0; i < kv->n_level; i++) {
        const struct lk_level *level = &kv->level[i];
        bool seen = false;
        for (int j = 0; j < i; j++)
            seen |= kv->level[j].basis == level->basis && kv->level[j].rope == level->rope;
        if (!level->basis || seen) continue;
        struct lk_basis read = *level->basis;
        size_t at[END + 1];
        read.n_comp = lk_kv_components(kv, level->basis);
        lay_out_basis(&read, level->rope, at);
        bytes += at[END];
    }
    return bytes;
}

uint64_t lk_latents_there_estimate(const struct lk_cache *cache, const struct lk_device *device) {
    const struct lk_rope *last = NULL; /* layers have one, or one of two in turn */
    uint64_t bytes = 0;
    for (int layer = 0; layer < cache->shape.n_layer; layer++) {
        const struct lk_kv *kv = cache->kv[layer];
        struct pair p;
        if (kv[LK_K].is_elsewhere) continue;
        bytes += estimate_bases(&kv[LK_K]) + estimate_bases(&kv[LK_V]);
        if (!find_pair(cache, device, kv, &p)) continue;
        size_t at[PAIR_END + 1], tables[ROPE_END + 1];
        struct key key = {.n_pos = rope_positions(cache)};
        lay_out_pair(&p, at);
        bytes += at[PAIR_END];
        if (p.kernel.post || p.level[LK_K]->rope == last) continue;
        lay_out_rope(&key, &p, tables);
        bytes += tables[ROPE_END];
        last = p.level[LK_K]->rope;
    }
    return bytes;
}
