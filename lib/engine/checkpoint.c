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

lk_status lk_checkpoints_init(struct lk_session *s, lk_err *err) {
    struct lk_checkpoints *c = &s->checkpoints;
    int cap = s->opts.n_checkpoint;
    c->ledger.common = &s->model->ledger;
    uint64_t part = lk_cache_f16_bytes(&s->cache->shape, s->opts.n_ctx) / 4;
    c->max_bytes = part > LK_CHECKPOINT_BYTES ? part : LK_CHECKPOINT_BYTES;
    if (s->opts.checkpoint_bytes) c->max_bytes = s->opts.checkpoint_bytes;
    if (cap <= 0) return LK_OK;
    c->at = lk_alloc(&c->ledger, LK_FOR_OTHER, (size_t)cap * sizeof *c->at);
    c->planned = lk_alloc(&c->ledger, LK_FOR_OTHER, (size_t)cap * sizeof *c->planned);
    c->cap = cap; /* lk_checkpoints_free frees what was allocated */
    if (!c->at || !c->planned)
        return lk_fail(err, LK_E_NOMEM, "out of memory for %d checkpoints", cap);
    return LK_OK;
}

void lk_checkpoint_free(struct lk_session *s, struct lk_checkpoint *at) {
    struct lk_ledger *ledger = &s->checkpoints.ledger;
    lk_cache_free(at->cache);
    lk_release(ledger, LK_FOR_CACHE, at->logits, logits_bytes(s));
    lk_release(ledger, LK_FOR_CACHE, at->states, states_bytes(s));
}

/* Drop checkpoint i. */
static void drop(struct lk_session *s, int i) {
    struct lk_checkpoints *c = &s->checkpoints;
    lk_checkpoint_free(s, &c->at[i]);
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
    lk_release(&c->ledger, LK_FOR_OTHER, c->planned, (size_t)c->cap * sizeof *c->planned);
    c->at = c->planned = NULL;
    c->cap = 0;
}

int lk_checkpoints_least_useful(const struct lk_checkpoint *at, int n, size_t n_tok) {
    int best = 0;
    double least = 0;
    for (int i = 0; i < n - 1; i++) {
        size_t before = i > 0 ? at[i - 1].n_tok : 0;
        double gap = (double)(at[i + 1].n_tok - before) / (double)(n_tok + 1 - at[i].n_tok);
        if (i == 0 || gap < least) best = i, least = gap;
    }
    return best;
}

/* Drop the least useful checkpoint if all places are taken. The text has n_tok tokens. */
static void make_room(struct lk_session *s, size_t n_tok) {
    struct lk_checkpoints *c = &s->checkpoints;
    if (c->n == c->cap) drop(s, lk_checkpoints_least_useful(c->at, c->n, n_tok));
}

void lk_checkpoints_fit_bytes(struct lk_session *s) {
    struct lk_checkpoints *c = &s->checkpoints;
    while (c->n > LK_CHECKPOINT_MIN &&
           !lk_agree_all(s->model->peers, lk_checkpoints_held_bytes(s) <= c->max_bytes))
        drop(s, lk_checkpoints_least_useful(c->at, c->n, s->n_tok));
}

bool lk_checkpoint_alloc(struct lk_session *s, size_t n_tok, bool logits,
                         struct lk_checkpoint *out) {
    struct lk_ledger *ledger = &s->checkpoints.ledger;
    struct lk_checkpoint at = {.n_tok = n_tok};
    if (logits) at.logits = lk_alloc(ledger, LK_FOR_CACHE, logits_bytes(s));
    if (states_bytes(s)) at.states = lk_alloc(ledger, LK_FOR_CACHE, states_bytes(s));
    bool ok = (at.logits || !logits) && (at.states || !states_bytes(s)) &&
              lk_cache_alloc(&at.cache, s->recipe, &s->cache->shape, ledger, NULL) == LK_OK;
    if (!ok) {
        lk_checkpoint_free(s, &at);
        return false;
    }
    lk_cache_drop_scratch(at.cache);
    *out = at;
    return true;
}

/* A copy of a cache and of logits (may be NULL) at n_tok tokens, with room for states. False
 * without memory. */
static bool make_checkpoint(struct lk_session *s, size_t n_tok, struct lk_cache *cache,
                            const float *logits, struct lk_checkpoint *out) {
    struct lk_checkpoint at;
    if (!lk_checkpoint_alloc(s, n_tok, logits != NULL, &at)) return false;
    if (lk_cache_copy(at.cache, cache, NULL) != LK_OK) {
        lk_checkpoint_free(s, &at);
        return false;
    }
    if (logits) memcpy(at.logits, logits, logits_bytes(s));
    *out = at;
    return true;
}

void lk_checkpoints_take(struct lk_session *s, bool is_end) {
    struct lk_checkpoints *c = &s->checkpoints;
    const float *logits = is_end ? lk_session_logits(s, -1) : NULL;
    if (c->cap == 0 || (is_end && !logits)) return;
    s->n_pass = 0; /* its newest block becomes shared */
    lk_checkpoints_drop(s, s->n_tok - 1);
    make_room(s, s->n_tok);
    struct lk_checkpoint *at = &c->at[c->n];
    bool made = make_checkpoint(s, s->n_tok, s->cache, logits, at);
    if (!lk_agree_all(s->model->peers, made)) { /* all ranks have the same checkpoints */
        if (made) lk_checkpoint_free(s, at);
        return;
    }
    c->n++;
    if (s->recurrent) memcpy(at->states, s->recurrent, recurrent_bytes(s));
    if (s->absorb)
        memcpy((char *)at->states + recurrent_bytes(s), s->absorb->state,
               lk_absorb_state_bytes(s->absorb));
    lk_checkpoints_fit_bytes(s);
}

struct lk_checkpoint *lk_checkpoints_find(const struct lk_session *s, size_t n_common,
                                          size_t n_tok) {
    const struct lk_checkpoints *c = &s->checkpoints;
    int i = c->n - 1;
    while (i >= 0 && (c->at[i].n_tok > n_common || (c->at[i].n_tok == n_tok && !c->at[i].logits)))
        i--;
    return i >= 0 ? &c->at[i] : NULL;
}

/* ---- checkpoints within a text ---- */

/* Can the session be cut back to any length, so that it needs no checkpoints? */
static bool can_always_go_back(const struct lk_session *s) {
    for (int k = 0; k < lk_cache_n_kv(s->cache); k++) {
        const struct lk_kv *kv = lk_cache_kv(s->cache, k);
        if (kv->n_level > 1 || kv->n_swa > 0 || kv->evict) return false;
    }
    return !s->recurrent;
}

/* Would an exact prefill choose the rows that a policy keeps, from the whole text? */
static bool selects_rows(const struct lk_session *s) {
    if (s->opts.chunked_prefill || s->recipe->eager) return false;
    for (int layer = 0; layer < s->cache->shape.n_layer; layer++)
        if (s->cache->kv[layer][LK_K].evict) return true;
    return false;
}

/* Is there no checkpoint, taken or planned, within `gap` tokens? */
static bool is_apart(const struct lk_checkpoints *c, size_t n_tok, size_t gap) {
    for (int i = 0; i < c->n + c->n_planned; i++) {
        size_t other = i < c->n ? c->at[i].n_tok : c->planned[i - c->n].n_tok;
        if (other < n_tok + gap && n_tok < other + gap) return false;
    }
    return true;
}

/* Plan a checkpoint at a position if there is room for it, and none within `gap` tokens. */
static void plan(struct lk_checkpoints *c, size_t n_tok, size_t gap) {
    int i = c->n_planned;
    if (i + 1 >= c->cap || !is_apart(c, n_tok, gap)) return;
    for (; i > 0 && c->planned[i - 1].n_tok > n_tok; i--) c->planned[i] = c->planned[i - 1];
    c->planned[i] = (struct lk_checkpoint){.n_tok = n_tok};
    c->n_planned++;
}

void lk_checkpoints_plan(struct lk_session *s, const size_t *mark, size_t n_mark, size_t from,
                         size_t n_tok) {
    struct lk_checkpoints *c = &s->checkpoints;
    if (c->cap == 0 || can_always_go_back(s) || (from == 0 && selects_rows(s))) return;
    for (size_t i = 0; i < n_mark; i++)
        if (mark[i] > from && mark[i] < n_tok && n_tok - mark[i] >= LK_CHECKPOINT_LAST)
            plan(c, mark[i], LK_CHECKPOINT_MARK_GAP);
    if (n_tok - from < LK_CHECKPOINT_GAP) return;
    size_t left = n_tok - from - LK_CHECKPOINT_GAP;
    for (size_t step = LK_EVAL_MAX; left >= LK_EVAL_MAX; step *= 2) {
        plan(c, from + left / LK_EVAL_MAX * LK_EVAL_MAX, LK_CHECKPOINT_GAP);
        left -= step < left ? step : left;
    }
}

void lk_checkpoints_drop_planned(struct lk_session *s, int i) {
    struct lk_checkpoints *c = &s->checkpoints;
    lk_checkpoint_free(s, &c->planned[i]);
    memmove(&c->planned[i], &c->planned[i + 1], (size_t)(--c->n_planned - i) * sizeof *c->planned);
}

void lk_checkpoints_open_planned(struct lk_session *s) {
    struct lk_checkpoints *c = &s->checkpoints;
    for (int i = c->n_planned - 1; i >= 0; i--)
        if (!lk_agree_all(s->model->peers,
                          lk_checkpoint_alloc(s, c->planned[i].n_tok, false, &c->planned[i])))
            lk_checkpoints_drop_planned(s, i);
}

void lk_checkpoints_keep_planned(struct lk_session *s) {
    struct lk_checkpoints *c = &s->checkpoints;
    for (int i = 0; i < c->n_planned; i++) {
        struct lk_checkpoint at, *planned = &c->planned[i];
        bool made = lk_checkpoint_alloc(s, planned->n_tok, false, &at),
             ok = made && lk_cache_join_part(at.cache, s->cache, planned->cache);
        if (!lk_agree_all(s->model->peers, ok)) {
            if (made) lk_checkpoint_free(s, &at);
            continue;
        }
        if (at.states) memcpy(at.states, planned->states, recurrent_bytes(s));
        if (s->absorb) /* a prefill adds nothing to them */
            memcpy((char *)at.states + recurrent_bytes(s), s->absorb->state,
                   lk_absorb_state_bytes(s->absorb));
        make_room(s, s->n_tok);
        c->at[c->n++] = at;
    }
    while (c->n_planned > 0) lk_checkpoints_drop_planned(s, c->n_planned - 1);
    lk_checkpoints_fit_bytes(s);
}

/* ---- going back ---- */

lk_status lk_checkpoints_restore(struct lk_session *s, const struct lk_checkpoint *from,
                                 lk_err *err) {
    lk_status status = lk_cache_copy(s->cache, from->cache, err);
    if (status != LK_OK) return status;
    if (s->recurrent) memcpy(s->recurrent, from->states, recurrent_bytes(s));
    if (s->absorb)
        memcpy(s->absorb->state, (const char *)from->states + recurrent_bytes(s),
               lk_absorb_state_bytes(s->absorb));
    if (from->logits) memcpy(s->logits, from->logits, logits_bytes(s));
    s->n_tok = from->n_tok;
    s->n_pass = 0;
    s->n_cut++;
    s->n_logits = from->logits ? 1 : 0;
    return LK_OK;
}

void lk_checkpoints_copy(struct lk_session *s, const struct lk_session *from) {
    struct lk_checkpoints *c = &s->checkpoints;
    const struct lk_checkpoints *source = &from->checkpoints;
    for (int i = source->n > c->cap ? source->n - c->cap : 0; i < source->n; i++) {
        const struct lk_checkpoint *at = &source->at[i];
        struct lk_checkpoint *to = &c->at[c->n];
        bool made = make_checkpoint(s, at->n_tok, at->cache, at->logits, to);
        if (!lk_agree_all(s->model->peers, made)) {
            if (made) lk_checkpoint_free(s, to);
            continue;
        }
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

uint64_t lk_checkpoints_held_bytes(const struct lk_session *s) {
    const struct lk_checkpoints *c = &s->checkpoints;
    uint64_t bytes = lk_checkpoints_bytes(s);
    /* What a later state does not share with this one, no later one does. */
    for (int i = 0; i < c->n; i++)
        bytes += lk_pool_bytes_without(&c->at[i].cache->pool,
                                       i + 1 < c->n ? &c->at[i + 1].cache->pool : &s->cache->pool);
    return bytes;
}
