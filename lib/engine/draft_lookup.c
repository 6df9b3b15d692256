/* Drafts from the text itself. */
#include "engine/draft_lookup.h"

#include "engine/session_state.h"

static void update_index(struct lk_draft_lookup *d, const struct lk_session *s) {
    if (d->n_cut != s->n_cut || d->index.n_tok > s->n_tok) lk_ngram_index_clear(&d->index);
    d->n_cut = s->n_cut;
    lk_ngram_index_extend(&d->index, s->tok, s->n_tok);
}

int lk_draft_lookup_kind(struct lk_draft_lookup *d, const struct lk_session *s, int32_t next) {
    update_index(d, s);
    int n = lk_ngram_index_find(&d->index, s->tok, next, NULL, 0);
    return n == 0 ? -1 : n < 4 ? n - LK_NGRAM_MIN : n < 8 ? 2 : n < LK_NGRAM_MATCH ? 3 : 4;
}

size_t lk_draft_lookup_find(const struct lk_draft_lookup *d, const struct lk_session *s,
                            int32_t next, int32_t *out, size_t n) {
    return lk_ngram_index_find(&d->index, s->tok, next, out, n) ? n : 0;
}

lk_status lk_draft_lookup_init(struct lk_draft_lookup *d, const struct lk_session *s, lk_err *err) {
    if (!lk_ngram_index_init(&d->index, (size_t)s->opts.n_ctx, &s->model->ledger))
        return lk_fail(err, LK_E_NOMEM, "out of memory for drafts from %d tokens", s->opts.n_ctx);
    d->n_cut = s->n_cut;
    return LK_OK;
}

void lk_draft_lookup_free(struct lk_draft_lookup *d, struct lk_ledger *ledger) {
    lk_ngram_index_free(&d->index, ledger);
}
