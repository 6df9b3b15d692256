/* Drafts from a smaller model. */
#include "engine/draft_model.h"

#include "engine/session_state.h"

#include <string.h>

/* A less probable token is not drafted: it is probably wrong, like those after it. */
static const float min_probability_log = -0.7f; /* one half */

struct draft_model {
    struct lk_ledger *ledger;
    struct lk_recipe *recipe;
    struct lk_session *session;
    int32_t n_vocab; /* of the other session's model */
    size_t n_same;   /* tokens that both sessions have in common, at least */
    uint64_t n_cut;  /* of the other session, when they were compared */
};

/* ---- the same vocabulary ---- */

/* Sizes of vocabularies of one family differ by tokens that only fill up a matrix. */
static lk_status check_vocabulary(const struct lk_model *a, const struct lk_model *b, lk_err *err) {
    lk_model_info x = lk_model_get_info(a), y = lk_model_get_info(b);
    int32_t n = x.n_vocab < y.n_vocab ? x.n_vocab : y.n_vocab;
    for (int32_t tok = 0; tok < n; tok++) {
        size_t n_a, n_b;
        const char *text_a = lk_token_text(a, tok, &n_a), *text_b = lk_token_text(b, tok, &n_b);
        if (n_a == n_b && memcmp(text_a, text_b, n_a) == 0 &&
            lk_token_is_control(a, tok) == lk_token_is_control(b, tok))
            continue;
        return lk_fail(
            err, LK_E_ARG,
            "the draft model has another vocabulary: its token %d differs; use a smaller "
            "model of the same family",
            tok);
    }
    const int32_t max_difference = 1024;
    if (x.n_vocab - n <= max_difference && y.n_vocab - n <= max_difference) return LK_OK;
    return lk_fail(err, LK_E_ARG,
                   "the draft model has another vocabulary: %d tokens, not %d; use a smaller model "
                   "of the same family",
                   y.n_vocab, x.n_vocab);
}

/* ---- drafting ---- */

/* Cut the draft session back to the tokens that both have. */
static lk_status cut_back(struct draft_model *d, const struct lk_session *s) {
    struct lk_session *own = d->session;
    size_t n = d->n_cut == s->n_cut ? d->n_same : 0;
    while (n < own->n_tok && n < s->n_tok && own->tok[n] == s->tok[n]) n++;
    d->n_cut = s->n_cut;
    d->n_same = n;
    if (n == own->n_tok) return LK_OK;
    if (n == 0) lk_session_clear(own);
    return n == 0 ? LK_OK : lk_session_truncate(own, n, NULL);
}

/* Evaluate what the draft session lacks, and `next`. */
static lk_status catch_up(struct draft_model *d, const struct lk_session *s, int32_t next) {
    int32_t tok[LK_DRAFT_TOKENS + 1];
    struct lk_session *own = d->session;
    lk_status status = cut_back(d, s);
    if (status == LK_OK && s->n_tok - own->n_tok > LK_DRAFT_TOKENS)
        status = lk_session_sync(own, s->tok, s->n_tok, NULL, NULL);
    if (status != LK_OK) return status;
    d->n_same = s->n_tok;
    size_t n = s->n_tok - own->n_tok;
    if (n) memcpy(tok, s->tok + own->n_tok, n * sizeof *tok);
    tok[n] = next;
    return lk_session_eval(own, tok, n + 1, false, NULL);
}

static int look(void *self, const struct lk_session *s, int32_t next) {
    const struct draft_model *d = self;
    return s->n_tok + 1 < (size_t)d->session->opts.n_ctx &&
                   next < d->session->model->net->hp.n_vocab
               ? 0
               : -1;
}

/* A draft model that fails drafts nothing. */
static size_t draft(void *self, struct lk_session *s, int32_t next, int32_t *out, size_t n) {
    struct draft_model *d = self;
    lk_status status = catch_up(d, s, next);
    for (size_t i = 0; i < n; i++) {
        lk_token_logprob top;
        if (status == LK_OK && i > 0)
            status = lk_session_eval(d->session, &out[i - 1], 1, false, NULL);
        if (status == LK_OK) status = lk_session_logprobs(d->session, -1, 0, NULL, &top, 1, NULL);
        if (status != LK_OK || top.logprob < min_probability_log || top.tok >= d->n_vocab) return i;
        out[i] = top.tok;
    }
    return n;
}

static void free_model(void *self) {
    struct draft_model *d = self;
    lk_session_free(d->session);
    lk_recipe_free(d->recipe);
    lk_release(d->ledger, LK_FOR_OTHER, d, sizeof *d);
}

lk_status lk_draft_model_open(struct lk_draft_source *out, const struct lk_session *s,
                              struct lk_model *draft_model, lk_err *err) {
    if (draft_model->net->hp.n_recurrent > 0)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "no drafts: the draft model has recurrent layers, whose states cannot go "
                       "back after each pass; use lookup");
    lk_status status = check_vocabulary(s->model, draft_model, err);
    if (status != LK_OK) return status;
    struct draft_model *d = lk_alloc(&s->model->ledger, LK_FOR_OTHER, sizeof *d);
    if (!d) return lk_fail(err, LK_E_NOMEM, "out of memory for a draft model");
    *d = (struct draft_model){
        .ledger = &s->model->ledger, .n_vocab = s->model->net->hp.n_vocab, .n_cut = s->n_cut};
    lk_session_opts opts = {.n_ctx = s->opts.n_ctx};
    int32_t trained = draft_model->net->hp.n_ctx_train;
    if (opts.n_ctx > trained) opts.n_ctx = trained;
    status = lk_recipe_parse(&d->recipe, "f16", err);
    if (status == LK_OK) status = lk_session_new(&d->session, draft_model, d->recipe, &opts, err);
    if (status == LK_OK)
        *out = (struct lk_draft_source){look, draft, free_model, d, .is_free = false};
    else
        free_model(d);
    return status;
}
