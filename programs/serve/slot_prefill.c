/* Prefill of a job's prompt, with progress events and cancellation. */
#include "serve/slot_prefill.h"

#include "lowkey_cluster.h"
#include "lowkey_serve.h"
#include "serve/tokens.h"

#include <stdlib.h>
#include <string.h>

/* ---- prefixes that several requests share ---- */

/* Does the session hold exactly the slot's tokens, so that it can be copied? */
static bool can_be_copied(const struct lk_slot *slot) {
    if (!slot->job && slot->discard) return false;
    return slot->n_tok > 0 && !slot->is_partial &&
           (!slot->job || slot->job->state == LK_JOB_DECODING);
}

/* Tokens of the job's chat whose first ones are the slot's, as far as their texts are the
 * same: an answer, or what was read of a prompt that was cancelled, may be cut into other tokens
 * than its text is. NULL if the slot's own tokens reach no further than the prompt's. Owned. */
static int32_t *follow_slot_tokens(const struct lk_slots *slots, const struct lk_slot *slot,
                                   const struct lk_prompt *p, size_t *n_tok) {
    size_t n_same = lk_tokens_common_prefix(slot->tok, slot->n_tok, p->tok, p->n_tok), at_slot,
           at_prompt;
    lk_tokens_common_text(slots->opts->model, slot->tok, slot->n_tok, p->tok, p->n_tok, &at_slot,
                          &at_prompt);
    if (at_slot <= n_same) return NULL;
    *n_tok = at_slot + p->n_tok - at_prompt;
    int32_t *tok = *n_tok < (size_t)slots->opts->n_ctx ? malloc(*n_tok * sizeof *tok) : NULL;
    if (!tok) return NULL;
    memcpy(tok, slot->tok, at_slot * sizeof *tok);
    memcpy(tok + at_slot, p->tok + at_prompt, (p->n_tok - at_prompt) * sizeof *tok);
    return tok;
}

/* Choose a slot by its text if that reuses more than the source does, and set the job's tokens to
 * those that follow the slot's. */
static void choose_by_text(struct lk_slots *slots, struct lk_job *job,
                           struct lk_slot_source *source) {
    const struct lk_slot *chosen = source->reuse ? source->reuse : source->copy_from;
    const struct lk_prompt *p = job->prompt;
    size_t recipe = job->completion->request.recipe;
    size_t n_best = chosen ? lk_session_reusable(chosen->session, p->tok, p->n_tok) : 0;
    bool may_copy = !lk_recipe_evicts(slots->opts->recipe[recipe]);
    for (size_t i = 0; i < slots->n; i++) {
        struct lk_slot *s = slots->slot[i];
        size_t n_tok = 0, n = 0;
        if (s->recipe != recipe || !can_be_copied(s)) continue;
        int32_t *tok = follow_slot_tokens(slots, s, p, &n_tok);
        if (tok) n = lk_session_reusable(s->session, tok, n_tok);
        bool continues = !s->job && !s->is_prefix && s->n_tok - n < LK_SHARED_PREFIX_MIN;
        if (n < n_best + LK_SAME_TEXT_MIN || (!continues && !may_copy)) {
            free(tok);
            continue;
        }
        n_best = n;
        *source = (struct lk_slot_source){.reuse = continues ? s : NULL,
                                          .copy_from = continues ? NULL : s,
                                          .copy_whole = n == s->n_tok};
        free(job->tok);
        job->tok = tok;
        job->n_tok = n_tok;
    }
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
    bool goes_on = source.reuse && source.reuse->is_partial;
    if (!goes_on && n_common_max >= LK_SHARED_PREFIX_MIN &&
        n_common_max >= n_best + LK_SHARED_PREFIX_MIN)
        source.n_prefix = n_common_max;
    if (job->completion->request.chat) choose_by_text(slots, job, &source);
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

/* The session of a busy slot holds exactly tok[0..n_tok): keep a copy of it, if there is room. */
static void shared_prefix_keep(struct lk_slots *slots, struct lk_slot *slot, const int32_t *tok,
                               size_t n_tok) {
    lk_session_stats stats = lk_session_get_peer_stats(slot->session);
    struct lk_slot *kept = NULL;
    /* Require room for all of the session, because the original will continue and copy blocks that
     * are shared now. */
    if (lk_slots_make_room(slots, NULL, stats.cache_bytes + stats.scratch_bytes) != LK_ROOM_NOW)
        return;
    if (lk_slots_add(slots, slot->recipe, &kept, NULL)) return;
    if (lk_slot_copy(kept, slot, true, NULL)) {
        lk_slots_remove(slots, kept);
        return;
    }
    memcpy(kept->tok, tok, n_tok * sizeof *tok);
    kept->n_tok = n_tok;
    kept->is_prefix = true;
    kept->last_used = lk_now();
}

static void push_progress(struct lk_slot_prefill *p, uint64_t done, uint64_t total) {
    const double interval_s = 0.1;
    struct lk_job *job = p->job;
    double now = lk_now();
    /* An exact prefill counts layers, and has none of its tokens before the last one is done. */
    size_t n = lk_session_n_tok(job->slot->session);
    if (n == 0 && total) n = (size_t)((double)p->n_target * ((double)done / (double)total));
    job->n_processed = n;
    job->completion->percent = (int)(100 * job->n_processed / job->n_tok);
    if (!job->completion->request.progress) return;
    if (now - p->last_progress < interval_s && done < total) return;
    p->last_progress = now;
    struct lk_event event = {.kind = LK_EVENT_PROGRESS, .job = job->index, .result = job->result};
    event.result.prompt_s = now - job->start_time;
    event.n_processed = job->n_processed;
    lk_completion_push(job->completion, &event);
}

static bool on_session_progress(void *user, uint64_t done, uint64_t total) {
    struct lk_slot_prefill *p = user;
    push_progress(p, done, total);
    bool go_on = p->on_chunk(p->user);
    bool keeps = !p->job->prompt->in_parts || lk_session_n_tok(p->job->slot->session) > 0,
         may_end = keeps && !p->job->completion->request.stream;
    p->timed_out = may_end && lk_now() - p->job->start_time > p->slots->opts->time_s;
    return go_on && !p->timed_out && !lk_completion_is_over(p->job->completion);
}

/* Evaluate the prompt in small steps through the compressed cache, as `lowkey perplexity` does, and
 * keep the log-probability of each token. Only the logits of one step exist at a time. */
static lk_status score_prompt(struct lk_slot_prefill *p, lk_err *err) {
    struct lk_prompt *prompt = p->job->prompt;
    lk_session *session = p->job->slot->session;
    int n_top = p->job->completion->request.n_top_logprobs;
    size_t n_tok = prompt->n_tok;
    if (prompt->scored && lk_session_n_tok(session) == n_tok) return LK_OK; /* a copy */
    lk_session_clear(session);
    for (size_t at = 0; at < n_tok; at += LK_SCORE_STEP) {
        size_t n = n_tok - at < LK_SCORE_STEP ? n_tok - at : LK_SCORE_STEP;
        lk_status status = lk_session_eval(session, prompt->tok + at, n, true, err);
        for (size_t i = 0; !status && !prompt->scored && i < n && at + i + 1 < n_tok; i++) {
            struct lk_logprob *lp = &prompt->lp[at + i + 1];
            lp->tok = prompt->tok[at + i + 1];
            lp->n_top = n_top;
            status = lk_session_logprobs(session, (int32_t)i, lp->tok, &lp->logprob, lp->top,
                                         (size_t)n_top, err);
        }
        if (status) return status;
        if (!on_session_progress(p, at + n, n_tok))
            return lk_fail(err, LK_E_CANCELLED, "cancelled during prefill");
    }
    prompt->lp[0].tok = prompt->tok[0];
    prompt->scored = true;
    return LK_OK;
}

/* Embed all prompts of the request, one after the other. */
static lk_status embed_prompts(struct lk_slot_prefill *p, lk_err *err) {
    struct lk_request *request = &p->job->completion->request;
    size_t n_embd = (size_t)lk_model_get_info(p->slots->opts->model).n_embd;
    lk_status status = LK_OK;
    for (size_t i = 0; !status && i < request->n_prompt; i++)
        status = lk_session_embed(p->job->slot->session, request->prompt[i].tok,
                                  request->prompt[i].n_tok, request->pooling,
                                  request->embedding + i * n_embd, err);
    return status;
}

/* Make the session hold the first n_tok of the job's tokens, with checkpoints where later prompts
 * may differ. */
static lk_status sync_part(struct lk_slot_prefill *p, size_t n_tok, size_t *n_reused, lk_err *err) {
    const struct lk_job *job = p->job;
    const struct lk_prompt *prompt = job->prompt;
    size_t mark[LK_PROMPT_MARKS], n_mark = 0;
    /* The job may have other tokens of the same text, but not of its end. */
    for (size_t i = 0; i < prompt->n_mark; i++) {
        size_t from_end = prompt->n_tok - prompt->mark[i];
        if (from_end < job->n_tok && job->n_tok - from_end < n_tok)
            mark[n_mark++] = job->n_tok - from_end;
    }
    p->n_target = n_tok;
    return lk_session_sync_marked(job->slot->session, job->tok, n_tok, mark, n_mark, n_reused, err);
}

/* The same, in parts if the prompt is too large and the session holds none of the tokens. */
static lk_status sync_prompt(struct lk_slot_prefill *p, size_t n_tok, size_t *n_reused,
                             lk_err *err) {
    const struct lk_job *job = p->job;
    lk_status status = LK_OK;
    if (job->prompt->in_parts && n_tok > LK_FIRST_PART &&
        lk_session_reusable(job->slot->session, job->tok, n_tok) == 0) {
        status = sync_part(p, LK_FIRST_PART, n_reused, err);
        n_reused = NULL; /* the rest does not count as reused */
    }
    return status ? status : sync_part(p, n_tok, n_reused, err);
}

lk_status lk_slot_prefill_run(struct lk_slot_prefill *p, lk_err *err) {
    struct lk_job *job = p->job;
    struct lk_slot *slot = job->slot;
    size_t *n_reused = &job->result.n_reused;
    lk_status status = LK_OK;
    slot->progress = on_session_progress;
    slot->user = p;
    job->state = LK_JOB_PREFILL;
    job->n_processed = 0;
    *n_reused = lk_session_n_tok(slot->session);
    if (job->n_prefix) {
        status = sync_prompt(p, job->n_prefix, n_reused, err);
        if (!status) shared_prefix_keep(p->slots, slot, job->tok, job->n_prefix);
        n_reused = NULL; /* the rest does not count as reused */
    }
    p->n_target = job->n_tok;
    if (!status && job->completion->request.embed) {
        job->result.n_reused = 0;
        status = embed_prompts(p, err);
    } else if (!status && job->completion->request.score) {
        job->result.n_reused = 0;
        status = score_prompt(p, err);
    } else if (!status) {
        status = sync_prompt(p, job->n_tok, n_reused, err);
    }
    slot->progress = NULL;
    job->decode_time = lk_now();
    job->result.prompt_s = job->decode_time - job->start_time;
    return status;
}

void lk_slot_prefill_keep_partial(struct lk_slots *slots, const struct lk_job *job) {
    struct lk_slot *slot = job->slot;
    const int32_t *tok = lk_session_tokens(slot->session);
    size_t n = lk_session_n_tok(slot->session);
    if (lk_session_suspended(slot->session, NULL) > 0)
        n = lk_session_suspended(slot->session, NULL);
    if (n == slot->n_tok && lk_tokens_common_prefix(tok, n, slot->tok, n) == n) return;
    lk_slots_after_load(slots, slot, NULL);
    /* If the tokens are a part of the prompt, they can be matched as tokens. Their text may end in
     * the middle of a word, so it must not be matched. */
    if (lk_tokens_common_prefix(tok, n, job->prompt->tok, job->prompt->n_tok) == n)
        lk_buf_free(&slot->text);
}
