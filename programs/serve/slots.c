/* The server's sessions: memory accounting, matching of prompts, eviction. */
#include "serve/slots.h"

#include "lowkey_cluster.h"
#include "lowkey_serve.h"
#include "serve/tokens.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ----
 *
 * If several ranks divide the caches, the bytes are those of this one, which is rank 0. The others
 * hold no more, and every rank has a limit of its own memory. */

/* Is the disk thread writing to the session? */
static bool is_loading(const struct lk_slot *slot) {
    return slot->command.kind == LK_SLOT_CMD_FETCH || slot->command.kind == LK_SLOT_CMD_RESTORE;
}

static uint64_t immutable_shared_bytes(const struct lk_slot *slot, const lk_session_stats *s) {
    return slot->immutable_bytes < s->shared_bytes ? slot->immutable_bytes : s->shared_bytes;
}

/* Bytes of a slot, without shared memory, which is counted once for all slots. A busy slot counts
 * with what it may need, minus the shared bytes that it will never copy. */
static uint64_t slot_bytes(const struct lk_slot *slot) {
    if (is_loading(slot)) return slot->reserved;
    lk_session_stats s = lk_session_get_peer_stats(slot->session);
    uint64_t bytes = s.cache_bytes + s.scratch_bytes;
    if (slot->job && slot->reserved > bytes) bytes = slot->reserved;
    return bytes + s.checkpoint_bytes -
           (slot->job ? immutable_shared_bytes(slot, &s) : s.shared_bytes);
}

/* Bytes that only this session holds now. */
static uint64_t own_bytes(const struct lk_slot *slot) {
    lk_session_stats s = lk_session_get_peer_stats(slot->session);
    return s.cache_bytes + s.scratch_bytes + s.checkpoint_bytes - s.shared_bytes;
}

static uint64_t all_shared_bytes(const struct lk_slots *slots) {
    return lk_model_get_info(slots->opts->model).shared_bytes;
}

/* Bytes of all slots, shared memory counted once. With `keep` (may be NULL): of all other slots,
 * and without the shared bytes that `keep` will never copy. */
static uint64_t total_bytes(const struct lk_slots *slots, const struct lk_slot *keep) {
    uint64_t sum = all_shared_bytes(slots);
    for (size_t i = 0; i < slots->n; i++)
        if (slots->slot[i] != keep) sum += slot_bytes(slots->slot[i]);
    if (!keep) return sum;
    lk_session_stats s = lk_session_get_peer_stats(keep->session);
    return sum - immutable_shared_bytes(keep, &s);
}

/* Bytes that would be free if all idle slots except `keep` were evicted. */
static uint64_t evictable_bytes(const struct lk_slots *slots, const struct lk_slot *keep) {
    uint64_t sum = 0, shared = all_shared_bytes(slots), shared_used = 0;
    for (size_t i = 0; i < slots->n; i++) {
        const struct lk_slot *slot = slots->slot[i];
        bool stays = (keep && slot == keep) || slot->job || slot->pinned;
        if (!stays)
            sum += slot_bytes(slot);
        else if (!is_loading(slot))
            shared_used += lk_session_get_peer_stats(slot->session).shared_bytes;
    }
    return sum + shared - (shared_used < shared ? shared_used : shared);
}

uint64_t lk_slots_busy_bytes(const struct lk_slots *slots) {
    return total_bytes(slots, NULL) - evictable_bytes(slots, NULL);
}

/* ---- matching ---- */

/* Set the job's tokens to those of the slot, followed by those of the rest of the prompt's text.
 * The text of an answer may tokenize differently from the tokens that were decoded, so the slot's
 * own tokens are kept. False if they do not fit the context, or memory runs out. */
static bool continue_slot_tokens(const struct lk_slots *slots, const struct lk_slot *slot,
                                 struct lk_job *job) {
    size_t n_rest = 0;
    int32_t *rest = NULL, *tok = NULL;
    /* The text continues. NOLINTNEXTLINE(clang-analyzer-core.NullDereference) */
    const char *text = job->prompt->text + slot->text.len;
    lk_tokenize(slots->opts->model, text, strlen(text), LK_TOKENIZE_MARKED,
                (size_t)slots->opts->n_ctx, &rest, &n_rest, NULL);
    size_t n_tok = slot->n_tok + n_rest;
    if (rest && n_rest > 0 && n_tok < (size_t)slots->opts->n_ctx) tok = malloc(n_tok * sizeof *tok);
    if (tok) {
        if (slot->n_tok) memcpy(tok, slot->tok, slot->n_tok * sizeof *tok);
        memcpy(tok + slot->n_tok, rest, n_rest * sizeof *tok);
        free(job->tok);
        job->tok = tok;
        job->n_tok = n_tok;
    }
    lk_tokens_free(rest);
    return tok != NULL;
}

/* The idle slot with the longest text that the job's prompt continues. */
static struct lk_slot *match_text(struct lk_slots *slots, struct lk_job *job) {
    struct lk_slot *best = NULL;
    for (size_t i = 0; i < slots->n; i++) {
        struct lk_slot *s = slots->slot[i];
        if (s->job || s->recipe != job->completion->request.recipe) continue;
        if (best && s->text.len <= best->text.len) continue;
        if (lk_job_continues_text(job, &s->text)) best = s;
    }
    return best && continue_slot_tokens(slots, best, job) ? best : NULL;
}

struct lk_slot *lk_slots_match(struct lk_slots *slots, struct lk_job *job) {
    const struct lk_prompt *p = job->prompt;
    struct lk_slot *best = match_text(slots, job);
    size_t n_best = 0;
    if (best) return best;
    for (size_t i = 0; i < slots->n; i++) {
        struct lk_slot *s = slots->slot[i];
        if (s->job || s->is_prefix || s->discard || s->recipe != job->completion->request.recipe)
            continue;
        size_t n = lk_tokens_common_prefix(s->tok, s->n_tok, p->tok, p->n_tok);
        if (s->is_partial && lk_session_reusable(s->session, p->tok, p->n_tok) == 0) continue;
        /* Truncating a cache may require to rebuild it, and it loses another conversation. So that
         * is done only if most of both is the same. */
        bool extends = n == s->n_tok && n > 0, mostly = 2 * n >= s->n_tok && 2 * n >= p->n_tok;
        if (n > n_best && (extends || mostly)) {
            best = s;
            n_best = n;
        }
    }
    return best;
}

void lk_slots_after_load(struct lk_slots *slots, struct lk_slot *slot, struct lk_job *job) {
    lk_buf_free(&slot->text);
    slot->n_tok = lk_session_suspended(slot->session, NULL);
    slot->is_partial = slot->n_tok > 0;
    if (!slot->is_partial) slot->n_tok = lk_session_n_tok(slot->session);
    memcpy(slot->tok, lk_session_tokens(slot->session), slot->n_tok * sizeof *slot->tok);
    lk_tokens_to_marked_text(slots->opts->model, slot->tok, slot->n_tok, &slot->text);
    const struct lk_prompt *p = job ? job->prompt : NULL;
    if (p && lk_tokens_common_prefix(slot->tok, slot->n_tok, p->tok, p->n_tok) == slot->n_tok)
        lk_buf_free(&slot->text); /* its tokens match; its text may end within a word */
    else if (job && lk_job_continues_text(job, &slot->text))
        continue_slot_tokens(slots, slot, job);
}

/* ---- adding and removing ---- */

static void free_slot(struct lk_slot *slot) {
    lk_session_free(slot->session);
    lk_buf_free(&slot->text);
    free(slot->tok);
    free(slot);
}

void lk_slots_remove(struct lk_slots *slots, struct lk_slot *slot) {
    for (size_t i = 0; i < slots->n; i++)
        if (slots->slot[i] == slot) {
            slots->slot[i] = slots->slot[--slots->n];
            break;
        }
    free_slot(slot);
}

void lk_slots_remove_discarded(struct lk_slots *slots) {
    for (size_t i = slots->n; i-- > 0;) {
        struct lk_slot *s = slots->slot[i];
        if (s->discard && !s->job && s->command.kind == LK_SLOT_CMD_NONE) lk_slots_remove(slots, s);
    }
}

/* Does the first slot go before the second one if memory is short? */
static bool goes_first(const struct lk_slot *a, const struct lk_slot *b) {
    return a->is_partial != b->is_partial ? a->is_partial : a->last_used < b->last_used;
}

static struct lk_slot *choose_evicted(const struct lk_slots *slots, const struct lk_slot *keep) {
    struct lk_slot *first = NULL;
    for (size_t i = 0; i < slots->n; i++) {
        struct lk_slot *s = slots->slot[i];
        if (!s->job && !s->pinned && s != keep && s->command.kind == LK_SLOT_CMD_NONE &&
            (!first || goes_first(s, first)))
            first = s;
    }
    return first;
}

enum lk_room lk_slots_make_room(struct lk_slots *slots, const struct lk_slot *keep, uint64_t need) {
    uint64_t total = total_bytes(slots, keep), max = slots->opts->max_bytes, evicting = 0;
    size_t n_evicting = 0;
    if (total - evictable_bytes(slots, keep) + need > max) return LK_ROOM_NEVER;
    for (size_t i = 0; i < slots->n; i++)
        if (slots->slot[i]->evicting) evicting += slot_bytes(slots->slot[i]), n_evicting++;
    while (total - evicting + need > max || (!keep && slots->n - n_evicting == LK_MAX_SLOT)) {
        struct lk_slot *evicted = choose_evicted(slots, keep);
        if (!evicted) return LK_ROOM_SOON; /* the other idle slots have disk commands */
        if (slots->store_evicted && slots->store_evicted(slots->store_user, evicted)) {
            evicted->evicting = true;
            evicting += slot_bytes(evicted);
            n_evicting++;
            continue;
        }
        lk_slots_remove(slots, evicted);
        total = total_bytes(slots, keep);
    }
    return total + need <= max && (keep || slots->n < LK_MAX_SLOT) ? LK_ROOM_NOW : LK_ROOM_SOON;
}

/* The next number that no session has. */
static int next_id(struct lk_slots *slots) {
    for (;;) {
        slots->last_id = slots->last_id < LK_MAX_SLOT_ID ? slots->last_id + 1 : 1;
        bool used = false;
        for (size_t i = 0; i < slots->n; i++) used |= slots->slot[i]->id == slots->last_id;
        if (!used) return slots->last_id;
    }
}

/* The session keeps this callback; the slot's own one changes. */
static bool forward_progress(void *user, uint64_t done, uint64_t total) {
    struct lk_slot *slot = user;
    return !slot->progress || slot->progress(slot->user, done, total);
}

lk_status lk_slots_add(struct lk_slots *slots, size_t recipe, struct lk_slot **out, lk_err *err) {
    struct lk_slot *slot = calloc(1, sizeof *slot);
    int32_t *tok = calloc((size_t)slots->opts->n_ctx, sizeof *tok);
    if (!slot || !tok || slots->n == LK_MAX_SLOT) {
        free(slot);
        free(tok);
        return lk_fail(err, LK_E_NOMEM, "out of memory: cannot create a session");
    }
    lk_session_opts opts = {.n_ctx = slots->opts->n_ctx,
                            .n_checkpoint = (int32_t)slots->opts->n_checkpoint,
                            .checkpoint_bytes = slots->opts->checkpoint_bytes,
                            .progress = forward_progress,
                            .user = slot};
    lk_status status =
        lk_session_new(&slot->session, slots->opts->model, slots->opts->recipe[recipe], &opts, err);
    slot->tok = tok;
    slot->recipe = recipe;
    slot->id = next_id(slots);
    if (status) {
        free_slot(slot);
        return status;
    }
    slots->slot[slots->n++] = slot;
    *out = slot;
    return LK_OK;
}

lk_status lk_slot_copy(struct lk_slot *slot, struct lk_slot *from, bool whole, lk_err *err) {
    lk_status status = lk_session_copy(slot->session, from->session, err);
    if (!status) from->immutable_bytes = lk_session_immutable_bytes(from->session);
    if (!status && whole) slot->immutable_bytes = from->immutable_bytes;
    from->last_used = lk_now();
    return status;
}

void lk_slot_set_prompt(struct lk_slot *slot, const struct lk_job *job) {
    lk_buf_free(&slot->text);
    memcpy(slot->tok, job->tok, job->n_tok * sizeof *slot->tok);
    slot->n_tok = job->n_tok;
    slot->is_partial = false;
    slot->immutable_bytes = lk_session_immutable_bytes(slot->session);
    if (job->completion->request.chat) lk_buf_append_str(&slot->text, job->prompt->text);
}

void lk_slot_append(struct lk_slot *slot, const lk_model *model, int32_t tok) {
    slot->tok[slot->n_tok++] = tok;
    if (slot->text.len) lk_token_append_marked(model, tok, &slot->text);
}

/* Must the bytes and levels of the last snapshot be counted again? */
static bool is_outdated(const struct lk_slot *slot, double now, double max_age) {
    const struct lk_slot_snapshot *last = &slot->last;
    if (slot->last_time == 0 || last->loading) return true;
    if (slot->job || max_age == 0) return now - slot->last_time >= max_age;
    return last->busy || last->stats.n_tok != lk_session_n_tok(slot->session);
}

/* Count the bytes of the session and of its levels. */
static void count_bytes(const struct lk_slot *slot, struct lk_slot_snapshot *snap) {
    snap->stats = lk_session_get_stats(slot->session);
    snap->n_level = 0;
    while (snap->n_level < LK_SNAPSHOT_LEVELS &&
           lk_session_get_level(slot->session, snap->n_level, &snap->level[snap->n_level]))
        snap->n_level++;
}

struct lk_slot_snapshot lk_slot_take_snapshot(struct lk_slot *slot, double now, double max_age) {
    struct lk_slot_snapshot snap = slot->last;
    bool loading = is_loading(slot), outdated = !loading && is_outdated(slot, now, max_age);
    if (loading) snap = (struct lk_slot_snapshot){0};
    if (outdated) count_bytes(slot, &snap);
    if (outdated || loading) slot->last_time = now;
    snap.id = slot->id;
    snap.is_prefix = slot->is_prefix;
    snap.recipe = slot->recipe;
    snap.loading = loading;
    snap.saving = slot->command.kind == LK_SLOT_CMD_SAVE || slot->command.kind == LK_SLOT_CMD_STORE;
    /* A busy session's bytes must be counted once more when it is idle. */
    snap.busy = slot->job != NULL;
    slot->last = snap;
    if (loading) return snap;
    snap.rank_bytes = own_bytes(slot);
    snap.stats.n_tok = lk_session_n_tok(slot->session);
    if (!slot->job) {
        snap.idle_s = now - slot->last_used;
        snap.n_prompt = lk_session_suspended(slot->session, &snap.n_processed);
        return snap;
    }
    const struct lk_job *job = slot->job;
    double decode_s = now - job->decode_time;
    snap.prefill = job->state != LK_JOB_DECODING;
    snap.n_prompt = job->n_tok;
    snap.n_processed = snap.prefill ? job->n_processed : job->n_tok;
    snap.n_reused = job->result.n_reused;
    snap.n_decoded = job->result.n_decoded;
    if (!snap.prefill && decode_s > 0) snap.tokens_per_second = (double)snap.n_decoded / decode_s;
    return snap;
}

void lk_slots_free(struct lk_slots *slots) {
    for (size_t i = 0; i < slots->n; i++) free_slot(slots->slot[i]);
    slots->n = 0;
}
