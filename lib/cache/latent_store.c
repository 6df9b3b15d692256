/* A list of shared entries, each with the number of its users. */
#include "cache/latent_store.h"

#include "cache/basis_rows.h"
#include "cache/k_up.h"

#include <pthread.h>

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
