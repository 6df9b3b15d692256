/* Earlier states of a session, and their part of its file. */
#include "engine/checkpoint.h"

#include "cache/cache.h"
#include "cache/cache_check.h"
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
    c->device_ledger.common = &s->model->device_ledger;
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
           !lk_agree_all(s->model, lk_checkpoints_held_bytes(s) <= c->max_bytes))
        drop(s, lk_checkpoints_least_useful(c->at, c->n, s->n_tok));
}

bool lk_checkpoint_alloc(struct lk_session *s, size_t n_tok, bool logits,
                         struct lk_checkpoint *out) {
    struct lk_ledger *ledger = &s->checkpoints.ledger;
    struct lk_checkpoint at = {.n_tok = n_tok};
    struct lk_cache_shape shape = s->cache->shape;
    shape.device_ledger = &s->checkpoints.device_ledger;
    if (logits) at.logits = lk_alloc(ledger, LK_FOR_CACHE, logits_bytes(s));
    if (states_bytes(s)) at.states = lk_alloc(ledger, LK_FOR_CACHE, states_bytes(s));
    bool ok = (at.logits || !logits) && (at.states || !states_bytes(s)) &&
              !lk_cache_alloc(&at.cache, s->recipe, &shape, ledger, NULL);
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
    if (lk_cache_copy(at.cache, cache, NULL)) {
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
    bool made = make_checkpoint(s, s->n_tok, s->cache, logits, at),
         ok = made && !lk_recurrent_get(s, at->states, NULL);
    if (!lk_agree_all(s->model, ok)) { /* all processes have the same ones */
        if (made) lk_checkpoint_free(s, at);
        return;
    }
    c->n++;
    if (s->absorb) lk_absorb_get(s->absorb, (char *)at->states + recurrent_bytes(s));
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

bool lk_checkpoints_unneeded(const struct lk_session *s) {
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
    if (c->cap == 0 || lk_checkpoints_unneeded(s) || (from == 0 && selects_rows(s))) return;
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
        if (!lk_agree_all(s->model,
                          lk_checkpoint_alloc(s, c->planned[i].n_tok, false, &c->planned[i])))
            lk_checkpoints_drop_planned(s, i);
}

void lk_checkpoints_keep_planned(struct lk_session *s) {
    struct lk_checkpoints *c = &s->checkpoints;
    for (int i = 0; i < c->n_planned; i++) {
        struct lk_checkpoint at, *planned = &c->planned[i];
        bool made = lk_checkpoint_alloc(s, planned->n_tok, false, &at),
             ok = made && lk_cache_join_part(at.cache, s->cache, planned->cache) &&
                  !lk_pool_take_fault(&planned->cache->pool);
        if (!lk_agree_all(s->model, ok)) {
            if (made) lk_checkpoint_free(s, &at);
            continue;
        }
        if (at.states) memcpy(at.states, planned->states, recurrent_bytes(s));
        if (s->absorb) /* a prefill adds nothing to them */
            lk_absorb_get(s->absorb, (char *)at.states + recurrent_bytes(s));
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
    if (!status) status = lk_recurrent_set(s, from->states, err);
    if (status) return status;
    if (s->absorb) lk_absorb_set(s->absorb, (const char *)from->states + recurrent_bytes(s));
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
        if (!lk_agree_all(s->model, made)) {
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
        bytes += lk_ledger_bytes(&s->checkpoints.ledger, purpose) +
                 lk_ledger_bytes(&s->checkpoints.device_ledger, purpose);
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

/* ---- saved sessions ---- */

static size_t saved_recurrent_bytes(const struct lk_session *s) {
    return lk_recurrent_saved_bytes(&s->model->net->hp);
}

/* Bytes of saved states. */
static size_t saved_states_bytes(const struct lk_session *s) {
    return saved_recurrent_bytes(s) + (s->absorb ? lk_absorb_saved_bytes(s->absorb) : 0);
}

/* ---- writing ---- */

static bool count_bytes(void *user, const void *data, size_t n) {
    (void)data;
    *(uint64_t *)user += n;
    return true;
}

static void write_checkpoint(const struct lk_session *s, const struct lk_checkpoint *at,
                             const struct lk_cache *later, struct lk_saving *saving) {
    uint64_t n_row = 0;
    struct lk_saving counting = {.link = saving->link, .ok = true, .n_byte = &n_row};
    struct lk_saved_checkpoint head = {.n_tok = at->n_tok,
                                       .logits = at->logits ? logits_bytes(s) : 0,
                                       .states = saved_states_bytes(s)};
    lk_cache_write_counts(at->cache, &(struct lk_writer){count_bytes, &head.counts});
    lk_cache_write_part(at->cache, later, &counting);
    head.rows = lk_sum(s->model, n_row, &saving->ok);
    lk_saving_put(saving, 0, &head, sizeof head);
    lk_saving_put(saving, 0, at->logits, head.logits);
    lk_recurrent_write(s->model, at->states, saving);
    if (s->absorb)
        lk_saving_put(saving, 0, (const char *)at->states + lk_recurrent_bytes(&s->model->net->hp),
                      lk_absorb_saved_bytes(s->absorb));
    if (saving->ok && saving->writer) saving->ok = lk_cache_write_counts(at->cache, saving->writer);
    lk_cache_write_part(at->cache, later, saving);
    lk_arena_note(&s->cache->pool.arena, lk_pool_take_fault(&at->cache->pool));
}

bool lk_checkpoints_write(const struct lk_session *s, struct lk_saving *saving) {
    const struct lk_checkpoints *c = &s->checkpoints;
    for (int i = c->n - 1; i >= 0; i--)
        write_checkpoint(s, &c->at[i], i + 1 < c->n ? c->at[i + 1].cache : s->cache, saving);
    return saving->ok;
}

/* ---- checking ---- */

/* A checkpoint in the section. */
struct saved {
    struct lk_saved_checkpoint head;
    const uint8_t *logits, *states, *counts, *rows;
};

/* Read the checkpoint at *at of data [size] and go on to the next one. False if it is cut off. */
static bool read_checkpoint(const uint8_t *data, uint64_t size, uint64_t *at, struct saved *out) {
    const uint8_t **part[] = {&out->logits, &out->states, &out->counts, &out->rows};
    if (size - *at < sizeof out->head) return false;
    memcpy(&out->head, data + *at, sizeof out->head);
    *at += sizeof out->head;
    uint64_t n[] = {out->head.logits, out->head.states, out->head.counts, out->head.rows};
    for (int i = 0; i < 4; i++) {
        if (n[i] > size - *at) return false;
        *part[i] = data + *at;
        *at += n[i];
    }
    return true;
}

/* Check what a checkpoint holds besides its cache. Returns NULL or the reason for rejecting it. */
static const char *check_checkpoint(const struct lk_session *s, const struct saved *saved) {
    if (saved->head.logits != 0 && saved->head.logits != logits_bytes(s))
        return "the logits of a checkpoint have another vocabulary size";
    if (saved->head.states != saved_states_bytes(s))
        return "the states of a checkpoint have another size";
    if (saved_recurrent_bytes(s) && !lk_recurrent_check(&s->model->net->hp, saved->states))
        return "the states of a checkpoint are invalid";
    if (s->absorb && !lk_absorb_check(s->absorb, saved->states + saved_recurrent_bytes(s)))
        return "the states of a checkpoint are invalid";
    return NULL;
}

lk_status lk_checkpoints_check(const struct lk_session *s, const void *data, uint64_t size,
                               const void *counts, size_t n_tok, lk_err *err) {
    lk_status status = LK_OK;
    uint64_t max_tok = n_tok;
    for (uint64_t at = 0; !status && at < size;) {
        struct saved saved;
        lk_err why;
        if (!read_checkpoint(data, size, &at, &saved))
            return lk_fail(err, LK_E_FORMAT, "its checkpoints are truncated");
        if (saved.head.n_tok == 0 || saved.head.n_tok > max_tok)
            return lk_fail(err, LK_E_FORMAT, "its checkpoints are not in order");
        const char *reason = check_checkpoint(s, &saved);
        if (reason) return lk_fail(err, LK_E_FORMAT, "%s", reason);
        status =
            lk_cache_check(s->cache, saved.counts, saved.head.counts, saved.rows, saved.head.rows,
                           counts, (int64_t)saved.head.n_tok, s->cache->shape.n_layer, &why);
        if (status) lk_fail(err, status, "a checkpoint: %s", why.msg);
        max_tok = saved.head.n_tok - 1;
        counts = saved.counts;
    }
    return status;
}

/* ---- loading ---- */

/* Choose which of n saved checkpoints, whose n_tok are in at [n] in ascending order, the session
 * keeps, as if one process had taken them. bytes [n]: of the file. Returns their number. */
static int choose(const struct lk_session *s, struct lk_checkpoint *at, uint64_t *bytes, int n) {
    const struct lk_checkpoints *c = &s->checkpoints;
    uint64_t all = 0;
    for (int i = 0; i < n; i++) all += bytes[i];
    while (n > c->cap || (n > LK_CHECKPOINT_MIN && all > c->max_bytes)) {
        int i = lk_checkpoints_least_useful(at, n, s->n_tok);
        all -= bytes[i];
        n--;
        memmove(&at[i], &at[i + 1], (size_t)(n - i) * sizeof *at);
        memmove(&bytes[i], &bytes[i + 1], (size_t)(n - i) * sizeof *bytes);
    }
    return n;
}

/* What loading needs. Process 0 chooses. */
struct loading {
    struct lk_session *session;
    struct lk_restoring *from;
    size_t n_counts;
    uint8_t *counts; /* [n_counts] of a checkpoint */
    struct lk_checkpoint
        *keep;       /* [n_saved] of process 0, room for all: n_tok, in ascending order */
    uint64_t *bytes; /* [n_saved] of process 0 */
    int n_saved;
    int32_t n_keep; /* that are still to come */
};

/* Process 0: choose among the checkpoints in data [size]. */
static void choose_checkpoints(struct loading *l, const uint8_t *data, uint64_t size) {
    struct lk_ledger *ledger = &l->session->checkpoints.ledger;
    struct saved saved;
    uint64_t at = 0, start = 0;
    while (at < size && read_checkpoint(data, size, &at, &saved)) l->n_saved++;
    l->keep = lk_alloc(ledger, LK_FOR_OTHER, (size_t)l->n_saved * sizeof *l->keep);
    l->bytes = lk_alloc(ledger, LK_FOR_OTHER, (size_t)l->n_saved * sizeof *l->bytes);
    if (!l->keep || !l->bytes) return;
    at = 0;
    for (int i = l->n_saved - 1; i >= 0 && read_checkpoint(data, size, &at, &saved); i--) {
        l->keep[i] = (struct lk_checkpoint){.n_tok = saved.head.n_tok};
        l->bytes[i] = at - start;
        start = at;
    }
    l->n_keep = choose(l->session, l->keep, l->bytes, l->n_saved);
}

/* Load the next checkpoint, whose rows are a part of `later`. *keep: it was chosen. False without
 * memory in a process. */
static bool load_checkpoint(struct loading *l, struct lk_cache *later, struct lk_checkpoint *out,
                            bool *keep) {
    struct lk_session *s = l->session;
    struct lk_saved_checkpoint head = {0};
    lk_restoring_get(l->from, &head, sizeof head);
    *keep = l->keep && head.n_tok == l->keep[l->n_keep - 1].n_tok;
    lk_broadcast(s->model, keep, sizeof *keep);
    bool made = lk_checkpoint_alloc(s, head.n_tok, head.logits > 0, out);
    bool ok = made && !lk_cache_copy(out->cache, later, NULL);
    if (lk_agree_all(s->model, ok) && ok) {
        lk_restoring_get(l->from, out->logits, head.logits);
        lk_recurrent_restore(s->model->net, out->states, l->from);
        if (s->absorb) { /* what is not saved of them is constant */
            char *absorbed = (char *)out->states + lk_recurrent_bytes(&s->model->net->hp);
            lk_absorb_get(s->absorb, absorbed);
            lk_restoring_get(l->from, absorbed, lk_absorb_saved_bytes(s->absorb));
        }
        lk_restoring_get(l->from, l->counts, l->n_counts);
        ok = !l->from->lost && lk_cache_restore_part(out->cache, l->counts, l->from) &&
             !lk_pool_take_fault(&out->cache->pool);
        if (lk_agree_all(s->model, ok && !l->from->lost)) return true;
    }
    if (made) lk_checkpoint_free(s, out);
    return false;
}

/* Load the chosen checkpoints, the newest first. Each is read as a part of the next newer one, so
 * one that is not kept is freed after the next older one is loaded. */
static void load_chosen(struct loading *l) {
    struct lk_session *s = l->session;
    struct lk_checkpoints *c = &s->checkpoints;
    struct lk_checkpoint passing = {0}, now; /* passing: not kept; cache NULL: none */
    struct lk_cache *later = s->cache;
    bool keep;
    while (l->n_keep > 0 && load_checkpoint(l, later, &now, &keep)) {
        if (passing.cache) lk_checkpoint_free(s, &passing);
        passing.cache = NULL;
        later = now.cache;
        if (keep) {
            memmove(&c->at[1], &c->at[0], (size_t)c->n++ * sizeof *c->at);
            c->at[0] = now;
            l->n_keep--;
        } else {
            passing = now;
        }
    }
    if (passing.cache) lk_checkpoint_free(s, &passing);
}

void lk_checkpoints_load(struct lk_session *s, struct lk_restoring *from) {
    struct lk_save_link *link = lk_save_link_of(s->model);
    struct lk_ledger *ledger = &s->checkpoints.ledger;
    struct loading l = {.session = s, .from = from};
    uint64_t n_counts = 0;
    if (from->n_left + from->n_piece == 0 || s->checkpoints.cap == 0) return;
    lk_cache_write_counts(s->cache, &(struct lk_writer){count_bytes, &n_counts});
    l.n_counts = n_counts;
    size_t n_spare = link ? lk_cache_max_block_bytes(s->cache) : 0, n_room = l.n_counts + n_spare;
    uint8_t *room = lk_alloc(ledger, LK_FOR_OTHER, n_room);
    if (!link) {
        if (room) choose_checkpoints(&l, (const uint8_t *)from->piece, from->n_piece);
    } else if (lk_agree_all(s->model, room != NULL)) {
        if (lk_has_files(s->model))
            choose_checkpoints(&l, (const uint8_t *)from->data, from->n_left);
        lk_broadcast(s->model, &l.n_keep, sizeof l.n_keep);
    }
    l.counts = room;
    if (room) from->spare = room + l.n_counts;
    load_chosen(&l);
    lk_checkpoints_fit_bytes(s);
    lk_release(ledger, LK_FOR_OTHER, l.keep, (size_t)l.n_saved * sizeof *l.keep);
    lk_release(ledger, LK_FOR_OTHER, l.bytes, (size_t)l.n_saved * sizeof *l.bytes);
    lk_release(ledger, LK_FOR_OTHER, room, n_room);
}
