/* Drafts from the text itself. */
#include "engine/draft_lookup.h"

#include "engine/draft_pace.h"
#include "engine/ngram_index.h"
#include "engine/session_state.h"

struct draft_lookup {
    struct lk_ledger *ledger;
    struct lk_ngram_index index;
    uint64_t n_cut; /* of the session when its tokens were added */
};

static void update_index(struct draft_lookup *d, const struct lk_session *s) {
    if (d->n_cut != s->n_cut || d->index.n_tok > s->n_tok) lk_ngram_index_clear(&d->index);
    d->n_cut = s->n_cut;
    lk_ngram_index_extend(&d->index, s->tok, s->n_tok);
}

/* 2, 3, 4, 8 or 16 tokens that are the same, or more. */
static int look(void *self, const struct lk_session *s, int32_t next) {
    struct draft_lookup *d = self;
    update_index(d, s);
    int n = lk_ngram_index_find(&d->index, s->tok, next, NULL, 0);
    return n == 0 ? -1 : n < 4 ? n - LK_NGRAM_MIN : n < 8 ? 2 : n < LK_NGRAM_MATCH ? 3 : 4;
}

static size_t draft(void *self, struct lk_session *s, int32_t next, int32_t *out, size_t n) {
    const struct draft_lookup *d = self;
    return lk_ngram_index_find(&d->index, s->tok, next, out, n) ? n : 0;
}

static void free_lookup(void *self) {
    struct draft_lookup *d = self;
    lk_ngram_index_free(&d->index, d->ledger);
    lk_release(d->ledger, LK_FOR_OTHER, d, sizeof *d);
}

lk_status lk_draft_lookup_open(struct lk_draft_source *out, const struct lk_session *s,
                               lk_err *err) {
    struct lk_ledger *ledger = &s->model->ledger;
    struct draft_lookup *d = lk_alloc(ledger, LK_FOR_OTHER, sizeof *d);
    if (d) d->ledger = ledger;
    if (!d || !lk_ngram_index_init(&d->index, (size_t)s->opts.n_ctx, ledger)) {
        lk_release(ledger, LK_FOR_OTHER, d, sizeof *d);
        return lk_fail(err, LK_E_NOMEM, "out of memory for drafts from %d tokens", s->opts.n_ctx);
    }
    d->n_cut = s->n_cut;
    *out = (struct lk_draft_source){look, draft, free_lookup, d, .is_free = true};
    return LK_OK;
}
