/* Drafts in a session: the maximum length of a pass, and removing rejected tokens. */
#include "engine/session_state.h"
#include "lowkey_draft.h"

size_t lk_session_draftable(const lk_session *s, size_t n_tok, const char **why) {
    size_t left = (size_t)s->opts.n_ctx - s->n_tok;
    bool leaves_out = s->recipe->read > 0;
    if (why) *why = lk_cache_refuses_drafts(s->cache);
    if (n_tok > left) n_tok = left;
    if (leaves_out && n_tok > LK_DECODE_TOKENS) n_tok = LK_DECODE_TOKENS;
    n_tok = (size_t)lk_cache_draftable(s->cache, (int64_t)n_tok);
    return n_tok > 0 ? n_tok : 1;
}

static lk_status truncate_session(lk_session *s, size_t n_tok, lk_err *err) {
    if (n_tok < 1 || n_tok > s->n_tok)
        return lk_fail(err, LK_E_ARG, "cannot keep %zu of %zu tokens", n_tok, s->n_tok);
    size_t n_drop = s->n_tok - n_tok;
    if (n_drop == 0) return LK_OK;
    if (n_drop < s->n_pass && s->recurrent) {
        lk_status status = lk_recurrent_drafts_repeat(s, (int)(s->n_pass - n_drop), err);
        if (status != LK_OK) {
            lk_session_drop_tokens(s);
            return status;
        }
    }
    if (n_drop < s->n_pass)
        lk_cache_drop_drafts(s->cache, (int64_t)(s->n_pass - n_drop), (int64_t)n_drop);
    else if (s->recurrent || !lk_cache_truncate(s->cache, (int64_t)n_tok))
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "%zu tokens cannot be removed: rows of older levels, or states of tokens "
                       "before the last pass, would have to go back; evaluate the text again",
                       n_drop);
    if (n_drop >= s->n_pass) s->n_cut++;
    lk_checkpoints_drop(s, n_tok);
    s->n_pass = n_drop < s->n_pass ? s->n_pass - n_drop : 0;
    s->n_logits = (size_t)s->n_logits > n_drop ? s->n_logits - (int32_t)n_drop : 0;
    s->n_tok = n_tok;
    return LK_OK;
}

static lk_status run_truncate(struct lk_op *op, lk_err *err) {
    return truncate_session(op->session, op->n, err);
}

lk_status lk_session_truncate(lk_session *s, size_t n_tok, lk_err *err) {
    struct lk_op op = {.kind = LK_OP_TRUNCATE, .run = run_truncate, .session = s, .n = n_tok};
    return lk_op_run(s->model->peers, &op, err);
}
