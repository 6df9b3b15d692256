/* A lowkey session as a subject. */
#include "engine/engine.h"
#include "eval/subject.h"

#include <stdlib.h>

struct lowkey_subject {
    lk_recipe *recipe;
    lk_session *session, *saved; /* saved: NULL until wanted */
    size_t n_prompt;
};

static bool prompt_progress(void *user, uint64_t done, uint64_t total) {
    struct lk_subject *s = user;
    struct lowkey_subject *self = s->self;
    double now = total ? (double)self->n_prompt * (double)done / (double)total : 0,
           n = now - s->ticked;
    s->ticked = now;
    return !s->tick || s->tick(s->user, n);
}

static void close_lowkey(struct lk_subject *s) {
    struct lowkey_subject *self = s->self;
    lk_session_free(self->saved);
    lk_session_free(self->session);
    lk_recipe_free(self->recipe);
    free(self);
}

static lk_status open_lowkey(struct lk_subject *s, struct lk_models *models, lk_err *err) {
    struct lowkey_subject *self = s->self = calloc(1, sizeof *self);
    if (!self) return lk_fail(err, LK_E_NOMEM, "no memory for a subject");
    lk_session_opts opts = {.n_ctx = s->n_ctx, .progress = prompt_progress, .user = s};
    lk_status status = lk_recipe_parse(&self->recipe, s->kv, err);
    if (status == LK_OK)
        status = lk_session_new(&self->session, models->lowkey, self->recipe, &opts, err);
    if (status != LK_OK) close_lowkey(s);
    return status;
}

static void clear_lowkey(struct lk_subject *s) {
    struct lowkey_subject *self = s->self;
    struct lk_predictor predictor = lk_session_predictor(self->session);
    predictor.clear(predictor.self);
}

static lk_status prompt_lowkey(struct lk_subject *s, const int32_t *tok, size_t n, lk_err *err) {
    struct lowkey_subject *self = s->self;
    self->n_prompt = n;
    return lk_session_sync(self->session, tok, n, NULL, err);
}

static lk_status prompt_all_lowkey(struct lk_subject *const *s, size_t n_subject,
                                   const int32_t *tok, size_t n, lk_err *err) {
    lk_session **session = malloc(n_subject * sizeof *session);
    if (!session) return lk_fail(err, LK_E_NOMEM, "no memory for %zu subjects", n_subject);
    for (size_t i = 0; i < n_subject; i++) session[i] = lk_subject_session(s[i]);
    ((struct lowkey_subject *)s[0]->self)->n_prompt = n;
    lk_status status = lk_prefill_all(session, n_subject, tok, n, err);
    free(session);
    return status;
}

static lk_status save_lowkey(struct lk_subject *s, lk_err *err) {
    struct lowkey_subject *self = s->self;
    lk_session_opts opts = {.n_ctx = s->n_ctx};
    lk_status status =
        self->saved ? LK_OK : lk_session_new(&self->saved, s->model, self->recipe, &opts, err);
    return status == LK_OK ? lk_session_copy(self->saved, self->session, err) : status;
}

static lk_status restore_lowkey(struct lk_subject *s, lk_err *err) {
    struct lowkey_subject *self = s->self;
    return lk_session_copy(self->session, self->saved, err);
}

static lk_status read_lowkey(struct lk_subject *s, const int32_t *tok, size_t n, bool all,
                             lk_err *err) {
    return lk_session_eval(((struct lowkey_subject *)s->self)->session, tok, n, all, err);
}

static const float *logits_lowkey(const struct lk_subject *s, int32_t i) {
    return lk_session_logits(((struct lowkey_subject *)s->self)->session, i);
}

static lk_session_stats stats_lowkey(const struct lk_subject *s) {
    return lk_session_get_stats(((struct lowkey_subject *)s->self)->session);
}

const struct lk_subject_kind lk_subject_lowkey = {
    .open = open_lowkey,
    .close = close_lowkey,
    .clear = clear_lowkey,
    .prompt = prompt_lowkey,
    .prompt_all = prompt_all_lowkey,
    .save = save_lowkey,
    .restore = restore_lowkey,
    .read = read_lowkey,
    .logits = logits_lowkey,
    .stats = stats_lowkey,
};

lk_session *lk_subject_session(const struct lk_subject *s) {
    return s->kind == &lk_subject_lowkey ? ((struct lowkey_subject *)s->self)->session : NULL;
}
