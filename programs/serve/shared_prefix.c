/* Detection and copies of prefixes that several requests share. */
#include "serve/shared_prefix.h"

#include "lowkey_cluster.h"
#include "serve/tokens.h"

#include <string.h>

/* Does the session hold exactly the slot's tokens, so that it can be copied? */
static bool can_be_copied(const struct lk_slot *slot) {
    if (slot->job ? slot->job->result.truncated : slot->discard) return false;
    return slot->n_tok > 0 && (!slot->job || slot->job->state == LK_JOB_DECODING);
}

struct lk_slot_source lk_shared_prefix_choose(struct lk_slots *slots, struct lk_job *job) {
    const struct lk_prompt *p = job->prompt;
    size_t recipe = job->completion->request.recipe, n_common_max = 0, n_reuse = 0;
    struct lk_slot_source source = {.reuse = lk_slots_match(slots, job)};
    if (job->tok) return source; /* nothing to choose: a chat continues */
    /* Recipes that evict rows share whole prompts only: which rows of a shorter prefix stay would
     * be decided before the question is known. */
    bool whole = lk_recipe_evicts(slots->opts->recipe[recipe]);
    if (source.reuse) n_reuse = lk_session_reusable(source.reuse->session, p->tok, p->n_tok);
    /* Prefer to continue the matching slot if that truncates little of it. */
    bool prefer_reuse = n_reuse > 0 && source.reuse->n_tok - n_reuse < LK_SHARED_PREFIX_MIN;
    size_t n_best = n_reuse;
    for (size_t i = 0; i < slots->n; i++) {
        struct lk_slot *s = slots->slot[i];
        if (s->recipe != recipe || !can_be_copied(s)) continue;
        size_t n = lk_session_reusable(s->session, p->tok, p->n_tok),
               n_common = lk_tokens_common_prefix(s->tok, s->n_tok, p->tok, p->n_tok);
        if (whole && n_common < p->n_tok) continue;
        if (n_common > n_common_max) n_common_max = n_common;
        if (n < LK_SHARED_PREFIX_MIN || n < n_best || (n == n_reuse && prefer_reuse)) continue;
        n_best = n;
        source.copy_from = s;
        source.copy_whole = n == s->n_tok;
    }
    if (source.copy_from) source.reuse = NULL;
    if (n_common_max >= LK_SHARED_PREFIX_MIN && n_common_max >= n_best + LK_SHARED_PREFIX_MIN)
        source.n_prefix = n_common_max;
    return source;
}

enum lk_room lk_shared_prefix_make_room(struct lk_slots *slots, const struct lk_slot_source *source,
                                        uint64_t need) {
    struct lk_slot *from = source->copy_from;
    uint64_t shared = from && source->copy_whole ? lk_session_immutable_bytes(from->session) : 0;
    if (from) from->pinned = true;
    enum lk_room room = lk_slots_make_room(slots, source->reuse, need > shared ? need - shared : 0);
    if (from) from->pinned = false;
    return room;
}

void lk_shared_prefix_keep(struct lk_slots *slots, struct lk_slot *slot, const int32_t *tok,
                           size_t n_tok) {
    lk_session_stats stats = lk_session_get_rank_stats(slot->session);
    struct lk_slot *kept = NULL;
    /* Require room for all of the session, because the original will continue and copy blocks that
     * are shared now. */
    if (lk_slots_make_room(slots, NULL, stats.cache_bytes + stats.scratch_bytes) != LK_ROOM_NOW)
        return;
    if (lk_slots_add(slots, slot->recipe, &kept, NULL) != LK_OK) return;
    if (lk_slot_copy(kept, slot, true, NULL) != LK_OK) {
        lk_slots_remove(slots, kept);
        return;
    }
    memcpy(kept->tok, tok, n_tok * sizeof *tok);
    kept->n_tok = n_tok;
    kept->is_prefix = true;
    kept->last_used = lk_now();
}
