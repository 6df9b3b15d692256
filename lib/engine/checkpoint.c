/* Earlier states of a session. */
#include "engine/checkpoint.h"

#include "cache/cache.h"
#include "engine/session_state.h"

#include <string.h>

static size_t logits_bytes(const struct lk_session *s) {
    return (size_t)s->model->net->hp.n_vocab * sizeof(float);
}

static size_t recurrent_bytes(const struct lk_session *s) {
    return lk_recurrent_bytes(&s->model->net->hp);
}

static size_t states_bytes(const struct lk_session *s) {
    return recurrent_bytes(s) + (s->absorb ? lk_absorb_state_bytes(s->absorb) : 0);
}

lk_status lk_checkpoints_init(struct lk_session *s, int cap, lk_err *err) {
    struct lk_checkpoints *c = &s->checkpoints;
    c->ledger.common = &s->model->ledger;
    if (cap <= 0) return LK_OK;
    c->at = lk_alloc(&c->ledger, LK_FOR_OTHER, (size_t)cap * sizeof *c->at);
    if (!c->at) return lk_fail(err, LK_E_NOMEM, "out of memory for %d checkpoints", cap);
    c->cap = cap;
    return LK_OK;
}

static void free_checkpoint(struct lk_session *s, struct lk_checkpoint *at) {
    struct lk_ledger *ledger = &s->checkpoints.ledger;
    lk_cache_free(at->cache);
    lk_release(ledger, LK_FOR_CACHE, at->logits, logits_bytes(s));
    lk_release(ledger, LK_FOR_CACHE, at->states, states_bytes(s));
}

/* Drop checkpoint i. */
static void drop(struct lk_session *s, int i) {
    struct lk_checkpoints *c = &s->checkpoints;
    free_checkpoint(s, &c->at[i]);
    memmove(&c->at[i], &c->at[i + 1], (size_t)(--c->n - i) * sizeof *c->at);
}

void lk_checkpoints_drop(struct lk_session *s, size_t n_tok) {
    struct lk_checkpoints *c = &s->checkpoints;
    while (c->n > 0 && c->at[c->n - 1].n_tok > n_tok) drop(s, c->n - 1);
}

void lk_checkpoints_free(struct lk_session *s) {
    struct lk_checkpoints *c = &s->checkpoints;
    while (c->n > 0) drop(s, c->n - 1);
    lk_release(&c->ledger, LK_FOR_OTHER, c->at, (size_t)c->cap * sizeof *c->at);
    c->at = NULL;
    c->cap = 0;
}

/* The checkpoint that is missed least: without it the gap between its neighbors is the smallest
 * part of their distance from the end. The newest one stays. */
static int find_least_useful(const struct lk_checkpoints *c, size_t n_tok) {
    int best = 0;
    double least = 0;
    for (int i = 0; i < c->n - 1; i++) {
        size_t before = i > 0 ? c->at[i - 1].n_tok : 0;
        double gap = (double)(c->at[i + 1].n_tok - before) / (double)(n_tok + 1 - c->at[i].n_tok);
        if (i == 0 || gap < least) best = i, least = gap;
    }
    return best;
}

/* A copy of a cache and of logits at n_tok tokens, with room for states. False without memory. */
static bool make_checkpoint(struct lk_session *s, size_t n_tok, struct lk_cache *cache,
                            const float *logits, struct lk_checkpoint *out) {
    struct lk_ledger *ledger = &s->checkpoints.ledger;
    struct lk_checkpoint at = {.n_tok = n_tok};
    at.logits = lk_alloc(ledger, LK_FOR_CACHE, logits_bytes(s));
    if (states_bytes(s)) at.states = lk_alloc(ledger, LK_FOR_CACHE, states_bytes(s));
    bool ok = at.logits && (at.states || !states_bytes(s)) &&
              lk_cache_alloc(&at.cache, s->recipe, &cache->shape, ledger, NULL) == LK_OK &&
              lk_cache_copy(at.cache, cache, NULL) == LK_OK;
    if (!ok) {
        free_checkpoint(s, &at);
        return false;
    }
    memcpy(at.logits, logits, logits_bytes(s));
    *out = at;
    return true;
}

void lk_checkpoints_take(struct lk_session *s) {
    struct lk_checkpoints *c = &s->checkpoints;
    const float *logits = lk_session_logits(s, -1);
    if (c->cap == 0 || !logits) return;
    s->n_pass = 0; /* its newest block becomes shared */
    lk_checkpoints_drop(s, s->n_tok - 1);
    if (c->n == c->cap) drop(s, c->n > 1 ? find_least_useful(c, s->n_tok) : 0);
    struct lk_checkpoint *at = &c->at[c->n];
    if (!make_checkpoint(s, s->n_tok, s->cache, logits, at)) return;
    c->n++;
    if (s->recurrent) memcpy(at->states, s->recurrent, recurrent_bytes(s));
    if (s->absorb)
        memcpy((char *)at->states + recurrent_bytes(s), s->absorb->state,
               lk_absorb_state_bytes(s->absorb));
}

struct lk_checkpoint *lk_checkpoints_find(const struct lk_session *s, size_t n_tok) {
    const struct lk_checkpoints *c = &s->checkpoints;
    int i = c->n - 1;
    while (i >= 0 && c->at[i].n_tok > n_tok) i--;
    return i >= 0 ? &c->at[i] : NULL;
}

lk_status lk_checkpoints_restore(struct lk_session *s, const struct lk_checkpoint *from,
                                 lk_err *err) {
    lk_status status = lk_cache_copy(s->cache, from->cache, err);
    if (status != LK_OK) return status;
    if (s->recurrent) memcpy(s->recurrent, from->states, recurrent_bytes(s));
    if (s->absorb)
        memcpy(s->absorb->state, (const char *)from->states + recurrent_bytes(s),
               lk_absorb_state_bytes(s->absorb));
    memcpy(s->logits, from->logits, logits_bytes(s));
    s->n_tok = from->n_tok;
    s->n_pass = 0;
    s->n_cut++;
    s->n_logits = 1;
    return LK_OK;
}

void lk_checkpoints_copy(struct lk_session *s, const struct lk_session *from) {
    struct lk_checkpoints *c = &s->checkpoints;
    const struct lk_checkpoints *source = &from->checkpoints;
    for (int i = source->n > c->cap ? source->n - c->cap : 0; i < source->n; i++) {
        const struct lk_checkpoint *at = &source->at[i];
        if (!make_checkpoint(s, at->n_tok, at->cache, at->logits, &c->at[c->n])) continue;
        if (at->states) memcpy(c->at[c->n].states, at->states, states_bytes(s));
        c->n++;
    }
}

uint64_t lk_checkpoints_bytes(const struct lk_session *s) {
    uint64_t bytes = 0;
    for (int purpose = 0; purpose < LK_N_PURPOSE; purpose++)
        bytes += lk_ledger_bytes(&s->checkpoints.ledger, purpose);
    return bytes;
}
