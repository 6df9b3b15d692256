/* Context shift of a session. */
#include "engine/session_state.h"
#include "lowkey_shift.h"

#include <string.h>

bool lk_session_shiftable(const lk_session *s, const char **why) {
    const struct lk_net *net = s->model->net;
    const char *reason = NULL;
    if (lk_recipe_evicts(s->recipe))
        reason = "the recipe evicts rows, so its cache has a fixed size: use a longer context, "
                 "which costs 4 bytes a token";
    else if (net->pos_embd)
        reason = "this model has learned positions, which end with the context";
    else if (net->hp.attn_temp != 0)
        reason = "this model scales attention by the position in the text";
    else if (s->model->cluster)
        reason = "the rows are divided over several ranks: use a longer context";
    if (why) *why = reason;
    return !reason;
}

lk_status lk_session_shift(lk_session *s, size_t n_keep, size_t n_drop, size_t *n_kept,
                           size_t *n_dropped, lk_err *err) {
    const char *why;
    if (!lk_session_shiftable(s, &why))
        return lk_fail(err, LK_E_UNSUPPORTED, "no context shift: %s", why);
    if (n_keep > s->n_tok) n_keep = s->n_tok;
    if (n_drop == 0) n_drop = (s->n_tok - n_keep) / 2;
    if (n_drop > s->n_tok) n_drop = s->n_tok;
    struct lk_shift shift = {(int64_t)n_keep, (int64_t)n_drop};
    if (!lk_cache_plan_shift(s->cache, &shift))
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "no context shift: there is no whole block of rows between the %lld tokens "
                       "that are kept and the newest ones; keep fewer, or use a longer context",
                       (long long)shift.n_keep);
    if (lk_cache_n_shifted(s->cache) + shift.n_drop + s->opts.n_ctx > LK_SHIFT_POSITIONS)
        return lk_fail(err, LK_E_FULL,
                       "no context shift: the text has more than %d tokens, which RoPE cannot tell "
                       "apart exactly; start again",
                       LK_SHIFT_POSITIONS - s->opts.n_ctx);
    lk_checkpoints_drop(s, (size_t)shift.n_keep);
    lk_cache_shift(s->cache, &shift);
    n_keep = (size_t)shift.n_keep;
    n_drop = (size_t)shift.n_drop;
    memmove(s->tok + n_keep, s->tok + n_keep + n_drop,
            (s->n_tok - n_keep - n_drop) * sizeof *s->tok);
    s->n_tok -= n_drop;
    s->n_pass = 0;
    s->n_cut++;
    if (n_kept) *n_kept = n_keep;
    if (n_dropped) *n_dropped = n_drop;
    return LK_OK;
}
