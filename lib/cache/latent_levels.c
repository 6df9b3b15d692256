/* Bases and up-projections of levels of latents: the store of shared entries, each with the number
 * of its users, and what a cache takes from it. */
#include "cache/latent_levels.h"

#include "cache/basis_rows.h"
#include "cache/cache.h"
#include "cache/k_up.h"

#include <pthread.h>

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
};

lk_status lk_latent_store_new(struct lk_latent_store **out, struct lk_ledger *ledger, lk_err *err) {
    struct lk_latent_store *store = lk_alloc(ledger, LK_FOR_OTHER, sizeof *store);
    if (!store) return lk_fail(err, LK_E_NOMEM, "no memory for the sidecar's bases");
    store->ledger = ledger;
    pthread_mutex_init(&store->lock, NULL);
    *out = store;
    return LK_OK;
}

void lk_latent_store_free(struct lk_latent_store *store) {
    if (!store) return;
    pthread_mutex_destroy(&store->lock);
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

lk_status lk_latent_store_basis(struct lk_latent_store *store, const struct lk_basis *of,
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

lk_status lk_latent_store_k_up(struct lk_latent_store *store, const struct lk_level *level,
                               const struct lk_k_up_use *use, struct lk_k_up **out, lk_err *err) {
    pthread_mutex_lock(&store->lock);
    struct entry *e = store->first;
    while (e && !(e->k_up && lk_k_up_serves(e->k_up, level, use))) e = e->next;
    if (!e && (e = add_entry(store, lk_k_up_bytes(level, use))) != NULL) {
        e->k_up = lk_k_up_init(e->mem, level, use);
        for (int part = 0; part < level->n_part; part++)
            lk_k_up_prepare(e->k_up, level, use->codec, part, NULL);
        e->content = e->k_up;
    }
    if (e) {
        e->n_user++;
        *out = e->k_up;
    }
    pthread_mutex_unlock(&store->lock);
    return e ? LK_OK : lk_fail(err, LK_E_NOMEM, "no memory for the up-projection of K");
}

void lk_latent_store_return(struct lk_latent_store *store, const void *content) {
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

static struct lk_k_up_use use_of(const struct lk_cache *cache, const struct lk_level_rule *rule) {
    return (struct lk_k_up_use){.codec = &rule->codec,
                                .kernels = cache->shape.kernels,
                                .n_head_kv = cache->shape.n_head_kv};
}

static bool has_k_up(const struct lk_level_rule *rule) {
    return rule->codec.projection == LK_PROJECTION_LATENT_PRE;
}

/* Components that the levels of kv read of a basis. */
static int components_read(const struct lk_kv *kv, const struct lk_basis *basis) {
    int max = 0;
    for (int i = 0; i < kv->n_level; i++)
        if (kv->level[i].basis == basis && kv->level[i].d_part > max) max = kv->level[i].d_part;
    return max;
}

static lk_status open_k_up(struct lk_cache *cache, struct lk_level *level,
                           const struct lk_level_rule *rule, lk_err *err) {
    struct lk_k_up_use use = use_of(cache, rule);
    if (!rule->codec.sigma)
        return lk_latent_store_k_up(cache->latents, level, &use, &level->k_up, err);
    void *mem = lk_alloc(cache->ledger, LK_FOR_SCRATCH, lk_k_up_bytes(level, &use));
    if (!mem) return lk_fail(err, LK_E_NOMEM, "no memory for the up-projection of K");
    level->k_up = lk_k_up_init(mem, level, &use);
    return LK_OK;
}

lk_status lk_latent_levels_open(struct lk_cache *cache, lk_err *err) {
    lk_status status = LK_OK;
    cache->latents = cache->shape.latents;
    if (!cache->latents && cache->shape.basis)
        status = lk_latent_store_new(&cache->latents, cache->ledger, err);
    for (int k = 0; !status && k < lk_cache_n_kv(cache); k++) {
        struct lk_kv *kv = lk_cache_kv(cache, k);
        int n_comp[LK_MAX_KV_LEVEL];
        if (kv->on_other_stage) continue;
        for (int i = 0; i < kv->n_level; i++) n_comp[i] = components_read(kv, kv->level[i].basis);
        for (int i = 0; !status && i < kv->n_level; i++) {
            struct lk_level *level = &kv->level[i];
            if (!level->basis) continue;
            status =
                lk_latent_store_basis(cache->latents, level->basis, n_comp[i], &level->basis, err);
            level->shares_basis = !status;
            if (!status && has_k_up(&kv->rule[i]))
                status = open_k_up(cache, level, &kv->rule[i], err);
        }
    }
    return status;
}

void lk_latent_levels_close(struct lk_cache *cache) {
    for (int k = 0; cache->latents && k < lk_cache_n_kv(cache); k++) {
        struct lk_kv *kv = lk_cache_kv(cache, k);
        for (int i = 0; i < kv->n_level; i++) {
            struct lk_level *level = &kv->level[i];
            struct lk_k_up_use use = use_of(cache, &kv->rule[i]);
            if (level->k_up && kv->rule[i].codec.sigma)
                lk_release(cache->ledger, LK_FOR_SCRATCH, level->k_up, lk_k_up_bytes(level, &use));
            else
                lk_latent_store_return(cache->latents, level->k_up);
            if (level->shares_basis) lk_latent_store_return(cache->latents, level->basis);
        }
    }
    if (cache->latents != cache->shape.latents) lk_latent_store_free(cache->latents);
}

void lk_latent_level_prepare(struct lk_kv *kv, int i, int part) {
    const struct lk_level *level = &kv->level[i];
    const struct lk_codec *codec = &kv->rule[i].codec;
    if (level->k_up && codec->sigma)
        lk_k_up_prepare(level->k_up, level, codec, part, lk_kv_sigma(kv, i, part));
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
        if (has_k_up(&kv->rule[j]) && lk_k_up_same_codec(&kv->rule[i].codec, &kv->rule[j].codec))
            return true;
    return false;
}

void lk_latent_levels_estimate(const struct lk_cache *cache, uint64_t *own, uint64_t *shared) {
    *own = *shared = 0;
    for (int k = 0; k < lk_cache_n_kv(cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(cache, k);
        for (int i = 0; i < kv->n_level; i++) {
            const struct lk_level *level = &kv->level[i];
            if (!level->basis || kv->on_other_stage) continue;
            if (!has_same_basis(kv, i))
                *shared += lk_basis_copy_bytes(level->basis, components_read(kv, level->basis));
            struct lk_k_up_use use = use_of(cache, &kv->rule[i]);
            if (has_k_up(&kv->rule[i]) && !has_same_k_up(kv, i))
                *(kv->rule[i].codec.sigma ? own : shared) += lk_k_up_bytes(level, &use);
        }
    }
}
