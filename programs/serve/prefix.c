#include "serve/prefix.h"

#include "serve/store.h"

#include <string.h>

/* Does the session stand after the slot's tokens, and may it be copied? */
static bool is_steady(const struct lk_serve_slot *slot) {
    return slot->n_tok > 0 && (!slot->job || slot->job->state == LK_JOB_DECODING);
}

struct lk_start lk_prefix_start(struct lk_serve_slots *slots, struct lk_job *job) {
    const struct lk_prompt *p = job->prompt;
    size_t recipe = job->call->ask.recipe, most = 0, n_take = 0;
    struct lk_start start = {.take = lk_serve_slots_match(slots, job)};
    /* A chat that goes on. And where rows are let go, which ones stay would be decided before the question is known. */
    if (job->tok || lk_recipe_evicts(slots->opts->recipe[recipe])) return start;
    if (start.take) n_take = lk_session_reusable(start.take->session, p->tok, p->n_tok);
    bool takes =
        n_take > 0 && start.take->n_tok - n_take < LK_MIN_PREFIX; /* little of it would be lost */
    size_t n_start = n_take;
    for (size_t i = 0; i < slots->n; i++) {
        struct lk_serve_slot *s = slots->slot[i];
        if (s->recipe != recipe || !is_steady(s)) continue;
        size_t n = lk_session_reusable(s->session, p->tok, p->n_tok),
               alike = lk_tokens_common(s->tok, s->n_tok, p->tok, p->n_tok);
        if (alike > most) most = alike;
        if (n < LK_MIN_PREFIX || n < n_start || (n == n_take && takes)) continue;
        n_start = n;
        start.copy = s;
        start.whole = n == s->n_tok;
    }
    if (start.copy) start.take = NULL;
    if (most >= LK_MIN_PREFIX && most >= n_start + LK_MIN_PREFIX) start.n_keep = most;
    return start;
}

enum lk_room lk_prefix_make_room(struct lk_serve_slots *slots, const struct lk_start *start,
                                 uint64_t need) {
    uint64_t lent =
        start->copy && start->whole ? lk_session_immutable_bytes(start->copy->session) : 0;
    if (start->copy) start->copy->pinned = true;
    enum lk_room room = lk_serve_slots_make_room(slots, start->take, need > lent ? need - lent : 0);
    if (start->copy) start->copy->pinned = false;
    return room;
}

void lk_prefix_keep(struct lk_serve_slots *slots, struct lk_serve_slot *slot, const int32_t *tok,
                    size_t n_tok) {
    lk_session_stats stats = lk_session_get_stats(slot->session);
    struct lk_serve_slot *kept = NULL;
    /* Room for all that it holds: the other will let go of some of it and go on. */
    if (lk_serve_slots_make_room(slots, NULL, stats.cache_bytes + stats.scratch_bytes) !=
        LK_ROOM_NOW)
        return;
    if (lk_serve_slots_add(slots, slot->recipe, &kept, NULL) != LK_OK) return;
    if (lk_slot_copy(kept, slot, true, NULL) != LK_OK) {
        lk_serve_slots_drop(slots, kept);
        return;
    }
    memcpy(kept->tok, tok, n_tok * sizeof *tok);
    kept->n_tok = n_tok;
    kept->prefix = true;
    kept->used = lk_now();
}
