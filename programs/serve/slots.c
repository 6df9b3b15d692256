#include "serve/disk.h"

#include <stdlib.h>
#include <string.h>

/* The disk's thread changes the session. */
static bool is_loading(const struct lk_serve_slot *slot) {
    return slot->order.kind == LK_ORDER_FETCH || slot->order.kind == LK_ORDER_RESTORE;
}

static uint64_t lent(const struct lk_serve_slot *slot, const lk_session_stats *s) {
    return slot->lent < s->shared_bytes ? slot->lent : s->shared_bytes;
}

/* What a slot holds that is not counted with what all share; at work what it may come to hold, but for what it will
 * share for good. */
static uint64_t held(const struct lk_serve_slot *slot) {
    if (is_loading(slot)) return slot->need;
    lk_session_stats s = lk_session_get_stats(slot->session);
    uint64_t bytes = s.cache_bytes + s.scratch_bytes;
    if (!slot->job) return bytes - s.shared_bytes;
    return (slot->need > bytes ? slot->need : bytes) - lent(slot, &s);
}

static uint64_t shared(const struct lk_serve_slots *slots) {
    return lk_model_get_info(slots->opts->model).shared_bytes;
}

uint64_t lk_serve_slots_bytes(const struct lk_serve_slots *slots,
                              const struct lk_serve_slot *other) {
    uint64_t sum = shared(slots);
    for (size_t i = 0; i < slots->n; i++)
        if (slots->slot[i] != other) sum += held(slots->slot[i]);
    if (!other) return sum;
    lk_session_stats s = lk_session_get_stats(other->session);
    return sum - lent(other, &s);
}

uint64_t lk_serve_slots_idle_bytes(const struct lk_serve_slots *slots,
                                   const struct lk_serve_slot *other) {
    uint64_t sum = 0, all = shared(slots),
             used = 0; /* used: of what is shared, by those that stay */
    for (size_t i = 0; i < slots->n; i++) {
        const struct lk_serve_slot *slot = slots->slot[i];
        bool stays = slot == other || slot->job || slot->pinned;
        if (!stays)
            sum += held(slot);
        else if (!is_loading(slot))
            used += lk_session_get_stats(slot->session).shared_bytes;
    }
    return sum + all - (used < all ? used : all);
}

/* ---- which one to go on with ---- */

/* Tokens of a text that goes on where another ended: without the token that begins texts. */
static int32_t *tokenize_rest(const lk_model *model, const char *text, size_t *n_tok) {
    int32_t *begin = NULL, *tok = NULL;
    size_t n_begin = 0, n = 0;
    if (lk_tokenize(model, "", 0, true, &begin, &n_begin, NULL) == LK_OK &&
        lk_tokenize(model, text, strlen(text), true, &tok, &n, NULL) == LK_OK) {
        if (n >= n_begin && memcmp(tok, begin, n_begin * sizeof *tok) == 0) {
            n -= n_begin;
            memmove(tok, tok + n_begin, n * sizeof *tok);
        }
        *n_tok = n;
    }
    lk_tokens_free(begin);
    return tok;
}

static bool set_tokens(struct lk_job *job, const int32_t *a, size_t n_a, const int32_t *b,
                       size_t n_b) {
    int32_t *tok = malloc((n_a + n_b + 1) * sizeof *tok);
    if (!tok) return false;
    if (n_a) memcpy(tok, a, n_a * sizeof *tok);
    if (n_b) memcpy(tok + n_a, b, n_b * sizeof *tok);
    free(job->tok);
    job->tok = tok;
    job->n_tok = n_a + n_b;
    return true;
}

/* A chat goes on: its text begins with all the text of a slot. An answer written out and read again may
 * split into other tokens than those it was made of, so the slot's own tokens are kept. */
static bool goes_on(const struct lk_serve_slot *slot, const struct lk_job *job) {
    const char *text = job->prompt->text;
    return job->call->ask.chat && slot->text.len > 0 && !slot->text.failed &&
           strncmp(text, slot->text.at, slot->text.len) == 0 && text[slot->text.len];
}

static bool go_on(const struct lk_serve_slots *slots, const struct lk_serve_slot *slot,
                  struct lk_job *job) {
    size_t n = 0;
    int32_t *rest = tokenize_rest(slots->opts->model, job->prompt->text + slot->text.len, &n);
    bool good = rest && n > 0 && slot->n_tok + n < (size_t)slots->opts->n_ctx &&
                set_tokens(job, slot->tok, slot->n_tok, rest, n);
    lk_tokens_free(rest);
    return good;
}

static struct lk_serve_slot *match_text(struct lk_serve_slots *slots, struct lk_job *job) {
    struct lk_serve_slot *best = NULL;
    for (size_t i = 0; i < slots->n; i++) {
        struct lk_serve_slot *s = slots->slot[i];
        if (s->job || s->recipe != job->call->ask.recipe || (best && s->text.len <= best->text.len))
            continue;
        if (goes_on(s, job)) best = s;
    }
    return best && go_on(slots, best, job) ? best : NULL;
}

struct lk_serve_slot *lk_serve_slots_match(struct lk_serve_slots *slots, struct lk_job *job) {
    const struct lk_prompt *p = job->prompt;
    struct lk_serve_slot *best = match_text(slots, job);
    size_t most = 0;
    if (best) return best;
    for (size_t i = 0; i < slots->n; i++) {
        struct lk_serve_slot *s = slots->slot[i];
        if (s->job || s->prefix || s->recipe != job->call->ask.recipe) continue;
        size_t n = lk_tokens_common(s->tok, s->n_tok, p->tok, p->n_tok);
        /* A cache that must be cut back may have to be built anew, and another's conversation would be
         * lost: only where most of both is the same. */
        bool extends = n == s->n_tok && n > 0, mostly = 2 * n >= s->n_tok && 2 * n >= p->n_tok;
        if (n > most && (extends || mostly)) {
            best = s;
            most = n;
        }
    }
    return best;
}

void lk_serve_slots_loaded(struct lk_serve_slots *slots, struct lk_serve_slot *slot,
                           struct lk_job *job) {
    lk_buf_free(&slot->text);
    slot->n_tok = lk_session_n_tok(slot->session);
    memcpy(slot->tok, lk_session_tokens(slot->session), slot->n_tok * sizeof *slot->tok);
    lk_tokens_text(slots->opts->model, slot->tok, slot->n_tok, &slot->text);
    if (job && goes_on(slot, job)) go_on(slots, slot, job);
}

/* ---- their lives ---- */

static void free_slot(struct lk_serve_slot *slot) {
    lk_session_free(slot->session);
    lk_buf_free(&slot->text);
    free(slot->tok);
    free(slot);
}

void lk_serve_slots_drop(struct lk_serve_slots *slots, struct lk_serve_slot *slot) {
    for (size_t i = 0; i < slots->n; i++)
        if (slots->slot[i] == slot) {
            slots->slot[i] = slots->slot[--slots->n];
            break;
        }
    free_slot(slot);
}

static struct lk_serve_slot *longest_idle(const struct lk_serve_slots *slots,
                                          const struct lk_serve_slot *keep) {
    struct lk_serve_slot *oldest = NULL;
    for (size_t i = 0; i < slots->n; i++) {
        struct lk_serve_slot *s = slots->slot[i];
        if (!s->job && !s->pinned && s != keep && s->order.kind == LK_ORDER_NONE &&
            (!oldest || s->used < oldest->used))
            oldest = s;
    }
    return oldest;
}

enum lk_room lk_serve_slots_make_room(struct lk_serve_slots *slots,
                                      const struct lk_serve_slot *keep, uint64_t need) {
    uint64_t all = lk_serve_slots_bytes(slots, keep), most = slots->opts->max_bytes, leaving = 0;
    size_t n_leaving = 0;
    if (all - lk_serve_slots_idle_bytes(slots, keep) + need > most) return LK_ROOM_NOT;
    for (size_t i = 0; i < slots->n; i++)
        if (slots->slot[i]->leaving) leaving += held(slots->slot[i]), n_leaving++;
    while (all - leaving + need > most || (!keep && slots->n - n_leaving == LK_MAX_SLOT)) {
        struct lk_serve_slot *oldest = longest_idle(slots, keep);
        if (!oldest) return LK_ROOM_SOON; /* the others are at the disk */
        if (slots->disk && lk_disk_store(slots->disk, oldest)) {
            oldest->leaving = true;
            leaving += held(oldest);
            n_leaving++;
            continue;
        }
        lk_serve_slots_drop(slots, oldest);
        all = lk_serve_slots_bytes(slots, keep);
    }
    return all + need <= most && (keep || slots->n < LK_MAX_SLOT) ? LK_ROOM_NOW : LK_ROOM_SOON;
}

static bool pass_on(void *user, uint64_t done, uint64_t total) {
    struct lk_serve_slot *slot = user;
    return !slot->progress || slot->progress(slot->user, done, total);
}

lk_status lk_serve_slots_add(struct lk_serve_slots *slots, size_t recipe,
                             struct lk_serve_slot **out, lk_err *err) {
    struct lk_serve_slot *slot = calloc(1, sizeof *slot);
    int32_t *tok = calloc((size_t)slots->opts->n_ctx, sizeof *tok);
    if (!slot || !tok || slots->n == LK_MAX_SLOT) {
        free(slot);
        free(tok);
        return lk_fail(err, LK_E_NOMEM, "no memory for a session");
    }
    lk_session_opts opts = {.n_ctx = slots->opts->n_ctx, .progress = pass_on, .user = slot};
    lk_status status =
        lk_session_new(&slot->session, slots->opts->model, slots->opts->recipe[recipe], &opts, err);
    slot->tok = tok;
    slot->recipe = recipe;
    slot->id = ++slots->last_id;
    if (status != LK_OK) {
        free_slot(slot);
        return status;
    }
    slots->slot[slots->n++] = slot;
    *out = slot;
    return LK_OK;
}

lk_status lk_slot_copy(struct lk_serve_slot *slot, struct lk_serve_slot *from, bool whole,
                       lk_err *err) {
    lk_status status = lk_session_copy(slot->session, from->session, err);
    if (status == LK_OK) from->lent = lk_session_immutable_bytes(from->session);
    if (status == LK_OK && whole) slot->lent = from->lent;
    from->used = lk_now();
    return status;
}

void lk_slot_set(struct lk_serve_slot *slot, const struct lk_job *job) {
    lk_buf_free(&slot->text);
    memcpy(slot->tok, job->tok, job->n_tok * sizeof *slot->tok);
    slot->n_tok = job->n_tok;
    if (job->call->ask.chat) lk_buf_text(&slot->text, job->prompt->text);
}

void lk_slot_extend(struct lk_serve_slot *slot, int32_t tok, const char *piece, size_t len) {
    slot->tok[slot->n_tok++] = tok;
    if (slot->text.len) lk_buf_add(&slot->text, piece, len);
}

struct lk_slot_view lk_slot_look(const struct lk_serve_slot *slot, double now) {
    struct lk_slot_view v = {.id = slot->id,
                             .busy = slot->job != NULL,
                             .prefix = slot->prefix,
                             .recipe = slot->recipe,
                             .loading = is_loading(slot)};
    v.saving = slot->order.kind == LK_ORDER_SAVE || slot->order.kind == LK_ORDER_STORE;
    if (v.loading) return v;
    v.stats = lk_session_get_stats(slot->session);
    while (v.n_level < LK_VIEW_LEVELS &&
           lk_session_get_level(slot->session, v.n_level, &v.level[v.n_level]))
        v.n_level++;
    if (!slot->job) {
        v.idle_s = now - slot->used;
        return v;
    }
    const struct lk_job *job = slot->job;
    double decoding = now - job->read;
    v.reading = job->state != LK_JOB_DECODING;
    v.n_prompt = job->n_tok;
    v.n_reused = job->outcome.n_reused;
    v.n_made = job->outcome.n_made;
    if (!v.reading && decoding > 0) v.tokens_per_second = (double)v.n_made / decoding;
    return v;
}

void lk_serve_slots_free(struct lk_serve_slots *slots) {
    for (size_t i = 0; i < slots->n; i++) free_slot(slots->slot[i]);
    slots->n = 0;
}
