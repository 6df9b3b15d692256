/* Writing, checking and loading the checkpoints of saved sessions. */
#include "engine/checkpoint_save.h"

#include "cache/cache.h"
#include "cache/cache_check.h"
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

static void write_checkpoint(const struct lk_session *s, const struct lk_checkpoint *at,
                             const struct lk_cache *later, struct lk_saving *saving) {
    uint64_t n_row = 0;
    struct lk_saving counting = {.ranks = saving->ranks, .ok = true, .n_byte = &n_row};
    struct lk_saved_checkpoint head = {
        .n_tok = at->n_tok, .logits = at->logits ? logits_bytes(s) : 0, .states = states_bytes(s)};
    lk_cache_write_counts(at->cache, &(struct lk_writer){count_bytes, &head.counts});
    lk_cache_write_part(at->cache, later, &counting);
    struct lk_peers *peers = s->model->peers;
    head.rows = peers ? peers->sum(peers, n_row, &saving->ok) : n_row;
    lk_saving_put(saving, 0, &head, sizeof head);
    lk_saving_put(saving, 0, at->logits, head.logits);
    lk_recurrent_write(s->model->net, at->states, saving);
    if (s->absorb)
        lk_saving_put(saving, 0, (const char *)at->states + lk_recurrent_bytes(&s->model->net->hp),
                      lk_absorb_saved_bytes(s->absorb));
    if (saving->ok && saving->writer) saving->ok = lk_cache_write_counts(at->cache, saving->writer);
    lk_cache_write_part(at->cache, later, saving);
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

/* What loading needs. Rank 0 chooses. */
struct loading {
    struct lk_session *session;
    struct lk_restoring *from;
    size_t n_counts;
    uint8_t *counts;            /* [n_counts] of a checkpoint */
    struct lk_checkpoint *keep; /* [n_saved] on rank 0, room for all: n_tok, in ascending order */
    uint64_t *bytes;            /* [n_saved] on rank 0 */
    int n_saved;
    int32_t n_keep; /* that are still to come */
};

/* Rank 0: choose among the checkpoints in data [size]. */
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
 * memory on a rank. */
static bool load_checkpoint(struct loading *l, struct lk_cache *later, struct lk_checkpoint *out,
                            bool *keep) {
    struct lk_session *s = l->session;
    struct lk_peers *peers = s->model->peers;
    struct lk_saved_checkpoint head = {0};
    lk_restoring_get(l->from, &head, sizeof head);
    *keep = l->keep && head.n_tok == l->keep[l->n_keep - 1].n_tok;
    if (peers) peers->broadcast(peers, keep, sizeof *keep);
    bool made = lk_checkpoint_alloc(s, head.n_tok, head.logits > 0, out);
    bool ok = made && lk_cache_copy(out->cache, later, NULL) == LK_OK;
    if (lk_agree_all(peers, ok)) {
        lk_restoring_get(l->from, out->logits, head.logits);
        lk_recurrent_restore(s->model->net, out->states, l->from);
        if (s->absorb) { /* what is not saved of them is constant */
            char *absorbed = (char *)out->states + lk_recurrent_bytes(&s->model->net->hp);
            memcpy(absorbed, s->absorb->state, lk_absorb_state_bytes(s->absorb));
            lk_restoring_get(l->from, absorbed, lk_absorb_saved_bytes(s->absorb));
        }
        lk_restoring_get(l->from, l->counts, l->n_counts);
        ok = !l->from->lost && lk_cache_restore_part(out->cache, l->counts, l->from);
        if (lk_agree_all(peers, ok && !l->from->lost)) return true;
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
    struct lk_peers *peers = s->model->peers;
    struct lk_ledger *ledger = &s->checkpoints.ledger;
    struct loading l = {.session = s, .from = from};
    uint64_t n_counts = 0;
    if (from->n_left + from->n_piece == 0 || s->checkpoints.cap == 0) return;
    lk_cache_write_counts(s->cache, &(struct lk_writer){count_bytes, &n_counts});
    l.n_counts = n_counts;
    size_t n_spare = peers ? lk_cache_max_block_bytes(s->cache) : 0, n_room = l.n_counts + n_spare;
    uint8_t *room = lk_alloc(ledger, LK_FOR_OTHER, n_room);
    if (!peers) {
        if (room) choose_checkpoints(&l, (const uint8_t *)from->piece, from->n_piece);
    } else if (lk_agree_all(peers, room != NULL)) {
        if (peers->exchange->rank == 0)
            choose_checkpoints(&l, (const uint8_t *)from->data, from->n_left);
        peers->broadcast(peers, &l.n_keep, sizeof l.n_keep);
    }
    l.counts = room;
    from->spare = room + l.n_counts;
    load_chosen(&l);
    lk_checkpoints_fit_bytes(s);
    lk_release(ledger, LK_FOR_OTHER, l.keep, (size_t)l.n_saved * sizeof *l.keep);
    lk_release(ledger, LK_FOR_OTHER, l.bytes, (size_t)l.n_saved * sizeof *l.bytes);
    lk_release(ledger, LK_FOR_OTHER, room, n_room);
}
