/* The state of a session, and the operations on it that evaluating, copying and loading have in
 * common. */
#ifndef LK_ENGINE_SESSION_STATE_H
#define LK_ENGINE_SESSION_STATE_H

#include "engine/absorb.h"
#include "engine/checkpoint.h"
#include "engine/device_rows.h"
#include "engine/model.h"
#include "engine/operation.h"
#include "engine/pass.h"
#include "engine/recurrent.h"

struct lk_prefill;

/* Called with each layer's attention of a pass, on one thread, after the new rows were stored and
 * before any row is re-encoded. NULL: unused. */
struct lk_watch {
    void (*on_attention)(void *user, int layer, const struct lk_attn *attn);
    /* All items' partial sums are there, for lk_attn_combine and lk_attn_accumulate_scores. */
    void (*on_partials)(void *user, int layer, const struct lk_attn *attn, int n_range);
    void *user;
};

struct lk_session {
    struct lk_ledger ledger; /* cache and scratch */
    struct lk_model *model;
    const struct lk_recipe *recipe;
    lk_session_opts opts; /* n_ctx is never 0 here */
    struct lk_cache *cache;
    struct lk_cache_widths width; /* of the cache's levels */
    struct lk_session_rows rows;  /* where the cache's rows are */
    struct lk_absorb *absorb;     /* sums of evicted rows; NULL if the recipe does not absorb */
    /* States of recurrent layers (recurrent.h), in RAM and on the device of the weights. The first
     * is NULL if the model has no such layers, and only then. */
    float *recurrent;
    struct lk_recurrent_device recurrent_there;
    struct lk_recurrent_drafts drafts; /* for going back within a pass of drafts */
    float *read_scratch; /* as in struct lk_attn; NULL if the recipe reads everything */
    size_t read_floats;
    struct lk_read_count
        *read_count;     /* [threads of the model]; NULL if the recipe reads everything */
    struct lk_pass pass; /* for evaluating this session alone; a lk_batch has its own */
    struct lk_watch watch;
    int32_t *tok; /* [n_tok] tokens that the cache stands for, room for n_ctx */
    size_t n_tok;
    uint64_t n_cut;    /* times that other tokens than drafts were removed or replaced */
    size_t n_pass;     /* tokens of the last pass, if it may have drafts; else 0 */
    float *logits;     /* [n_logits][n_vocab] of the last evaluation */
    size_t logits_cap; /* rows that fit */
    int32_t n_logits;  /* 0: none are valid */
    struct lk_checkpoints checkpoints;
    struct lk_prefill *suspended; /* a prefill that was cut short (prefill_state.h), or NULL */
    int32_t number;               /* that the peers know it by */
    _Atomic int cancelled;        /* by lk_session_cancel; reset by the evaluation that it ends */
};

/* Drop all tokens, states, sums of evicted rows, logits and checkpoints, and what a prefill that
 * was cut short has left. */
void lk_session_drop_tokens(struct lk_session *session);

/* The same if a prefill was cut short. Every operation but going on with it begins with this. */
void lk_session_drop_suspended(struct lk_session *session);

/* LK_E_ARG if a token is not in the vocabulary. */
lk_status lk_session_check_tokens(const struct lk_session *session, const int32_t *tok,
                                  size_t n_tok, lk_err *err);

/* Check a whole text for a session: LK_E_ARG if it is empty or a token is not in the vocabulary,
 * LK_E_FULL if it is longer than the context. */
lk_status lk_session_check_text(const struct lk_session *session, const int32_t *tok, size_t n_tok,
                                lk_err *err);

/* Room for n rows of logits. Those that are there stay valid. LK_E_NOMEM. */
lk_status lk_session_reserve_logits(struct lk_session *session, size_t n, lk_err *err);

/* For a session whose recipe absorbs: memory for a step of n_tok tokens. LK_E_ARG without the
 * sidecar that the recipe needs, LK_E_NOMEM. */
lk_status lk_session_reserve_absorb(struct lk_session *session, int n_tok, lk_err *err);

/* Set up an empty session's sums of evicted rows, as the recipe's `absorb less` demands, with the
 * networks of `sidecar`, which must outlive the session. lk_session_new calls this with the model's
 * sidecar. Errors as lk_absorb_new, LK_E_ARG if the recipe does not absorb. */
lk_status lk_session_enable_absorb(struct lk_session *session, const struct lk_sidecar *sidecar,
                                   lk_err *err);

#endif
