/* A lowkey session as a backend. */
#include "eval/backend_lowkey.h"

#include "lowkey_lab.h"

#include <stdlib.h>

struct session_backend {
    lk_recipe *recipe;
    lk_session *session;
    lk_session *saved; /* NULL until the first save */
    size_t n_prompt;   /* tokens of the running prefill */
};

static lk_session *session_of(const struct lk_backend *backend) {
    return ((const struct session_backend *)backend->self)->session;
}

/* Report the session's progress: the tokens since the last report. */
static bool prompt_progress(void *user, uint64_t done, uint64_t total) {
    struct lk_backend *backend = user;
    struct session_backend *self = backend->self;
    double n_done = total ? (double)self->n_prompt * (double)done / (double)total : 0;
    double n = n_done - backend->n_reported;
    backend->n_reported = n_done;
    return !backend->progress || backend->progress(backend->user, n);
}

static void session_backend_close(struct lk_backend *backend) {
    struct session_backend *self = backend->self;
    lk_session_free(self->saved);
    lk_session_free(self->session);
    lk_recipe_free(self->recipe);
    free(self);
}

static lk_status session_backend_open(struct lk_backend *backend, struct lk_model_pair *models,
                                      lk_err *err) {
    struct session_backend *self = backend->self = calloc(1, sizeof *self);
    if (!self) return lk_fail(err, LK_E_NOMEM, "no memory for a backend");
    lk_session_opts opts = {.n_ctx = backend->n_ctx, .progress = prompt_progress, .user = backend};
    lk_status status = lk_recipe_parse(&self->recipe, backend->kv, err);
    if (!status) status = lk_session_new(&self->session, models->lowkey, self->recipe, &opts, err);
    if (status) session_backend_close(backend);
    return status;
}

static void session_backend_clear(struct lk_backend *backend) {
    lk_session_clear(session_of(backend));
}

static lk_status session_backend_prefill(struct lk_backend *backend, const int32_t *tok, size_t n,
                                         lk_err *err) {
    struct session_backend *self = backend->self;
    self->n_prompt = n;
    return lk_session_sync(self->session, tok, n, NULL, err);
}

static lk_status session_backend_prefill_all(struct lk_backend *const *backend, size_t n_backend,
                                             const int32_t *tok, size_t n, lk_err *err) {
    lk_session **session = malloc(n_backend * sizeof *session);
    if (!session) return lk_fail(err, LK_E_NOMEM, "no memory for %zu backends", n_backend);
    for (size_t i = 0; i < n_backend; i++) session[i] = session_of(backend[i]);
    ((struct session_backend *)backend[0]->self)->n_prompt = n;
    lk_status status = lk_prefill_all(session, n_backend, tok, n, err);
    free(session);
    return status;
}

static lk_status session_backend_save(struct lk_backend *backend, lk_err *err) {
    struct session_backend *self = backend->self;
    lk_session_opts opts = {.n_ctx = backend->n_ctx};
    lk_status status = LK_OK;
    if (!self->saved)
        status = lk_session_new(&self->saved, backend->model, self->recipe, &opts, err);
    return status ? status : lk_session_copy(self->saved, self->session, err);
}

static lk_status session_backend_restore(struct lk_backend *backend, lk_err *err) {
    struct session_backend *self = backend->self;
    return lk_session_copy(self->session, self->saved, err);
}

static lk_status session_backend_eval(struct lk_backend *backend, const int32_t *tok, size_t n,
                                      bool all, lk_err *err) {
    return lk_session_eval(session_of(backend), tok, n, all, err);
}

static const float *session_backend_logits(const struct lk_backend *backend, int32_t i) {
    return lk_session_logits(session_of(backend), i);
}

static lk_session_stats session_backend_stats(const struct lk_backend *backend) {
    return lk_session_get_stats(session_of(backend));
}

const struct lk_backend_ops lk_backend_lowkey = {
    .open = session_backend_open,
    .close = session_backend_close,
    .clear = session_backend_clear,
    .prefill = session_backend_prefill,
    .prefill_all = session_backend_prefill_all,
    .save = session_backend_save,
    .restore = session_backend_restore,
    .eval = session_backend_eval,
    .logits = session_backend_logits,
    .stats = session_backend_stats,
};

lk_session *lk_backend_session(const struct lk_backend *backend) {
    return backend->ops == &lk_backend_lowkey ? session_of(backend) : NULL;
}
