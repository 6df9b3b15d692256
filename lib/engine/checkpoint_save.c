/* Writing, checking and loading the checkpoints of saved sessions. */
#include "engine/checkpoint_save.h"

#include "cache/cache.h"
#include "cache/cache_save.h"
#include "engine/session_state.h"

#include <string.h>

static size_t recurrent_bytes(const struct lk_session *s) {
    return lk_recurrent_saved_bytes(&s->model->net->hp);
}

static size_t logits_bytes(const struct lk_session *s) {
    return (size_t)s->model->net->hp.n_vocab * sizeof(float);
}

/* Bytes of saved states. */
static size_t states_bytes(const struct lk_session *s) {
    return recurrent_bytes(s) + (s->absorb ? lk_absorb_saved_bytes(s->absorb) : 0);
}

/* ---- writing ---- */

static bool count_bytes(void *user, const void *data, size_t n) {
    (void)data;
    *(uint64_t *)user += n;
    return true;
}

static bool write_checkpoint(const struct lk_session *s, const struct lk_checkpoint *at,
                             const struct lk_cache *later, const struct lk_writer *writer) {
    struct lk_saved_checkpoint head = {
        .n_tok = at->n_tok, .logits = at->logits ? logits_bytes(s) : 0, .states = states_bytes(s)};
    lk_cache_write_counts(at->cache, &(struct lk_writer){count_bytes, &head.counts});
    lk_cache_write_part(at->cache, later, &(struct lk_writer){count_bytes, &head.rows});
    return writer->put(writer->user, &head, sizeof head) &&
           (!head.logits || writer->put(writer->user, at->logits, head.logits)) &&
           (!head.states || writer->put(writer->user, at->states, head.states)) &&
           lk_cache_write_counts(at->cache, writer) &&
           lk_cache_write_part(at->cache, later, writer);
}

bool lk_checkpoints_write(const struct lk_session *s, const struct lk_writer *writer) {
    const struct lk_checkpoints *c = &s->checkpoints;
    bool ok = true;
    for (int i = s->model->cluster ? -1 : c->n - 1; ok && i >= 0; i--)
        ok = write_checkpoint(s, &c->at[i], i + 1 < c->n ? c->at[i + 1].cache : s->cache, writer);
    return ok;
}

/* ---- reading ---- */

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
    if (saved->head.states != states_bytes(s))
        return "the states of a checkpoint have another size";
    if (recurrent_bytes(s) && !lk_recurrent_check(&s->model->net->hp, saved->states))
        return "the states of a checkpoint are invalid";
    if (s->absorb && !lk_absorb_check(s->absorb, saved->states + recurrent_bytes(s)))
        return "the states of a checkpoint are invalid";
    return NULL;
}

lk_status lk_checkpoints_check(const struct lk_session *s, const void *data, uint64_t size,
                               const void *counts, size_t n_tok, lk_err *err) {
    lk_status status = LK_OK;
    uint64_t max_tok = n_tok;
    for (uint64_t at = 0; status == LK_OK && at < size;) {
        struct saved saved;
        lk_err why;
        if (!read_checkpoint(data, size, &at, &saved))
            return lk_fail(err, LK_E_FORMAT, "its checkpoints are truncated");
        if (saved.head.n_tok == 0 || saved.head.n_tok > max_tok)
            return lk_fail(err, LK_E_FORMAT, "its checkpoints are not in order");
        const char *reason = check_checkpoint(s, &saved);
        if (reason) return lk_fail(err, LK_E_FORMAT, "%s", reason);
        status = lk_cache_check(s->cache, saved.counts, saved.head.counts, saved.rows,
                                saved.head.rows, counts, (int64_t)saved.head.n_tok, &why);
        if (status != LK_OK) lk_fail(err, status, "a checkpoint: %s", why.msg);
        max_tok = saved.head.n_tok - 1;
        counts = saved.counts;
    }
    return status;
}

/* Choose which of n saved checkpoints, whose n_tok are in at [n] in ascending order, the session
 * keeps, as if it had taken them. bytes [n]: of the file. Returns their number. */
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

/* Load a checkpoint, whose rows are a part of `later`. False without memory. */
static bool load_checkpoint(struct lk_session *s, const struct saved *saved, struct lk_cache *later,
                            struct lk_checkpoint *out) {
    size_t recurrent = recurrent_bytes(s);
    if (!lk_checkpoint_alloc(s, saved->head.n_tok, saved->head.logits > 0, out)) return false;
    if (!lk_cache_restore_part(out->cache, later, saved->counts, saved->rows, saved->head.rows)) {
        lk_checkpoint_free(s, out);
        return false;
    }
    if (out->logits) memcpy(out->logits, saved->logits, saved->head.logits);
    if (recurrent) memcpy(out->states, saved->states, recurrent);
    if (s->absorb) { /* what is not saved of them is constant */
        char *absorbed = (char *)out->states + recurrent;
        memcpy(absorbed, s->absorb->state, lk_absorb_state_bytes(s->absorb));
        memcpy(absorbed, saved->states + recurrent, lk_absorb_saved_bytes(s->absorb));
    }
    return true;
}

/* Load the checkpoints in keep [n_keep], which is in ascending order of n_tok. Each is read as a
 * part of the next newer one, so one that is not kept is freed after the next older one is loaded.
 */
static void load_chosen(struct lk_session *s, const void *data, uint64_t size,
                        const struct lk_checkpoint *keep, int n_keep) {
    struct lk_checkpoints *c = &s->checkpoints;
    struct lk_checkpoint passing = {0}; /* not kept; cache NULL: none */
    struct lk_cache *later = s->cache;
    struct saved saved;
    for (uint64_t at = 0; n_keep > 0 && read_checkpoint(data, size, &at, &saved);) {
        struct lk_checkpoint now;
        if (!load_checkpoint(s, &saved, later, &now)) break;
        if (passing.cache) lk_checkpoint_free(s, &passing);
        passing.cache = NULL;
        later = now.cache;
        if (saved.head.n_tok == keep[n_keep - 1].n_tok) {
            memmove(&c->at[1], &c->at[0], (size_t)c->n++ * sizeof *c->at);
            c->at[0] = now;
            n_keep--;
        } else {
            passing = now;
        }
    }
    if (passing.cache) lk_checkpoint_free(s, &passing);
}

void lk_checkpoints_load(struct lk_session *s, const void *data, uint64_t size) {
    struct lk_checkpoints *c = &s->checkpoints;
    struct saved saved;
    int n = 0;
    for (uint64_t at = 0; at < size && read_checkpoint(data, size, &at, &saved);) n++;
    if (n == 0 || c->cap == 0) return;
    size_t n_at = (size_t)n * sizeof(struct lk_checkpoint), n_bytes = (size_t)n * sizeof(uint64_t);
    struct lk_checkpoint *keep = lk_alloc(&c->ledger, LK_FOR_OTHER, n_at);
    uint64_t *bytes = lk_alloc(&c->ledger, LK_FOR_OTHER, n_bytes);
    if (keep && bytes) {
        uint64_t at = 0, start = 0;
        for (int i = n - 1; i >= 0 && read_checkpoint(data, size, &at, &saved); i--) {
            keep[i] = (struct lk_checkpoint){.n_tok = saved.head.n_tok};
            bytes[i] = at - start;
            start = at;
        }
        load_chosen(s, data, size, keep, choose(s, keep, bytes, n));
        lk_checkpoints_fit_bytes(s);
    }
    lk_release(&c->ledger, LK_FOR_OTHER, keep, n_at);
    lk_release(&c->ledger, LK_FOR_OTHER, bytes, n_bytes);
}
