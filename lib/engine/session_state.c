/* Memory and bookkeeping of one session. Nothing here evaluates tokens. */
#include "engine/session_state.h"

#include "engine/absorb_device.h"
#include "engine/prefill_state.h"

#include <string.h>

void lk_session_drop_tokens(struct lk_session *s) {
    lk_prefill_drop(s);
    lk_cache_clear(s->cache);
    lk_checkpoints_drop(s, 0);
    if (s->absorb) lk_absorb_clear(s->absorb);
    lk_recurrent_clear(s);
    s->n_tok = s->n_pass = 0;
    s->n_cut++;
    s->n_logits = 0;
}

void lk_session_drop_suspended(struct lk_session *s) {
    if (s->suspended) lk_session_drop_tokens(s);
}

lk_status lk_session_check_tokens(const struct lk_session *s, const int32_t *tok, size_t n_tok,
                                  lk_err *err) {
    int32_t n_vocab = s->model->net->hp.n_vocab;
    for (size_t i = 0; i < n_tok; i++)
        if (tok[i] < 0 || tok[i] >= n_vocab)
            return lk_fail(err, LK_E_ARG, "token %zu has id %d; the vocabulary has ids 0 to %d", i,
                           tok[i], n_vocab - 1);
    return LK_OK;
}

lk_status lk_session_check_text(const struct lk_session *s, const int32_t *tok, size_t n_tok,
                                lk_err *err) {
    if (n_tok == 0) return lk_fail(err, LK_E_ARG, "there are no tokens to evaluate");
    if (n_tok > (size_t)s->opts.n_ctx)
        return lk_fail(err, LK_E_FULL,
                       "%zu tokens do not fit a context of %d; use a larger context length", n_tok,
                       s->opts.n_ctx);
    return lk_session_check_tokens(s, tok, n_tok, err);
}

lk_status lk_session_reserve_logits(struct lk_session *s, size_t n, lk_err *err) {
    if (n <= s->logits_cap) return LK_OK;
    size_t row = s->model->net->hp.n_vocab * sizeof(float);
    float *logits = lk_alloc(&s->ledger, LK_FOR_SCRATCH, n * row);
    if (!logits) return lk_fail(err, LK_E_NOMEM, "out of memory for %zu rows of logits", n);
    if (s->n_logits) memcpy(logits, s->logits, s->n_logits * row); /* the evaluation may yet fail */
    lk_release(&s->ledger, LK_FOR_SCRATCH, s->logits, s->logits_cap * row);
    s->logits = logits;
    s->logits_cap = n;
    return LK_OK;
}

lk_status lk_session_reserve_absorb(struct lk_session *s, int n_tok, lk_err *err) {
    if (!s->recipe->absorbs) return LK_OK;
    if (!s->absorb)
        return lk_fail(err, LK_E_ARG,
                       "'absorb less' needs a sidecar with networks for this model; `lowkey train "
                       "less` makes one");
    return lk_absorb_reserve(s->absorb, n_tok, err);
}

lk_status lk_session_enable_absorb(struct lk_session *s, const struct lk_sidecar *sidecar,
                                   lk_err *err) {
    if (!s->recipe->absorbs) return lk_fail(err, LK_E_ARG, "the recipe has no 'absorb'");
    struct lk_absorb *absorb = NULL;
    lk_status status = lk_absorb_new(&absorb, sidecar, s->model->net->hp.n_head, s->model->kernels,
                                     &s->ledger, err);
    if (status) return status;
    lk_absorb_free(s->absorb); /* empty: the session has no tokens */
    s->absorb = absorb;
    status = lk_absorb_use_device(absorb, s->model, s->cache, err);
    if (status) {
        lk_absorb_free(absorb);
        s->absorb = NULL;
        return status;
    }
    s->cache->evict_hook = (struct lk_evict_hook){lk_absorb_row, absorb};
    return LK_OK;
}
