/* Drafters: when to draft, how much, and what became of it. */
#include "engine/draft_lookup.h"
#include "engine/draft_pace.h"
#include "engine/ngram_index.h"
#include "engine/session_state.h"
#include "lowkey_draft.h"

_Static_assert((int)LK_DRAFT_MAX == (int)LK_DRAFT_TOKENS, "passes of drafts have one limit");

struct lk_drafter {
    struct lk_ledger *ledger; /* of the model: the session may be freed first */
    struct lk_session *session;
    struct lk_draft_lookup lookup;
    struct lk_draft_pace pace;
    int kind;         /* of the last drafts */
    int32_t expected; /* the token after pass[0], if it was looked up but not drafted; else -1 */
    lk_draft_stats stats;
};

uint64_t lk_drafter_bytes(const lk_model *model, int32_t n_ctx, size_t n_tok) {
    const struct lk_hparams *hp = &model->net->hp;
    return sizeof(struct lk_drafter) + lk_ngram_index_bytes((size_t)n_ctx) +
           n_tok * hp->n_vocab * sizeof(float) + lk_recurrent_drafts_bytes(hp, (int)n_tok);
}

lk_status lk_drafter_new(lk_drafter **out, lk_session *session, lk_err *err) {
    const char *why;
    lk_session_draftable(session, 1, &why);
    if (why) return lk_fail(err, LK_E_UNSUPPORTED, "no drafts: %s", why);
    struct lk_ledger *ledger = &session->model->ledger;
    struct lk_drafter *d = lk_alloc(ledger, LK_FOR_OTHER, sizeof *d);
    if (!d) return lk_fail(err, LK_E_NOMEM, "out of memory for drafts");
    d->ledger = ledger;
    d->session = session;
    d->expected = -1;
    lk_status status = lk_draft_lookup_init(&d->lookup, session, err);
    if (status == LK_OK)
        *out = d;
    else
        lk_release(ledger, LK_FOR_OTHER, d, sizeof *d);
    return status;
}

void lk_drafter_free(lk_drafter *d) {
    if (!d) return;
    lk_draft_lookup_free(&d->lookup, d->ledger);
    lk_release(d->ledger, LK_FOR_OTHER, d, sizeof *d);
}

size_t lk_drafter_next(lk_drafter *d, int32_t *pass, size_t n_max, size_t n_other) {
    if (d->expected >= 0) lk_draft_pace_judge(&d->pace, d->kind, 1, pass[0] == d->expected);
    d->expected = -1;
    if (n_max > LK_DRAFT_MAX) n_max = LK_DRAFT_MAX;
    if (n_max > 1) n_max = lk_session_draftable(d->session, n_max, NULL);
    if (n_max < 2) return 1;
    d->kind = lk_draft_lookup_kind(&d->lookup, d->session, pass[0]);
    if (d->kind < 0) return 1;
    size_t n = lk_draft_pace_choose(&d->pace, d->kind, n_max - 1, n_other);
    if (n == 0) { /* learn how often it would have been right */
        lk_draft_lookup_find(&d->lookup, d->session, pass[0], &d->expected, 1);
        return 1;
    }
    return 1 + lk_draft_lookup_find(&d->lookup, d->session, pass[0], pass + 1, n);
}

void lk_drafter_report(lk_drafter *d, size_t n_tok, size_t n_kept, size_t n_other, double seconds) {
    if (n_tok < 1 || n_kept < 1 || n_kept > n_tok) return;
    lk_draft_pace_measure(&d->pace, n_tok + n_other, seconds);
    if (n_tok > 1) lk_draft_pace_judge(&d->pace, d->kind, n_tok - 1, n_kept - 1);
    d->stats.n_pass++;
    d->stats.n_drafted += n_tok - 1;
    d->stats.n_accepted += n_kept - 1;
}

lk_draft_stats lk_drafter_get_stats(const lk_drafter *d) { return d->stats; }
