/* What all backends share (names of caches, opening, prefill and evaluation in steps, greedy
 * generation and likelihoods), and the backend that is a lowkey session. */
#include "eval/backend.h"

#include "base/buf.h"
#include "lowkey_lab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char LLAMA_PREFIX[] = "llama.cpp:";

bool lk_backend_is_llama(const char *kv) {
    return strncmp(kv, LLAMA_PREFIX, sizeof LLAMA_PREFIX - 1) == 0;
}

const char *lk_backend_full(const char *kv) {
    return lk_backend_is_llama(kv) ? "llama.cpp:f16" : "f16";
}

lk_status lk_backend_check(const char *kv, lk_err *err) {
    static const char *const type[] = {"f16",  "q8_0", "q5_1",   "q5_0",
                                       "q4_1", "q4_0", "iq4_nl", "plain"};
    if (!lk_backend_is_llama(kv)) {
        lk_recipe *recipe;
        lk_status status = lk_recipe_parse(&recipe, kv, err);
        if (!status) lk_recipe_free(recipe);
        return status;
    }
    const char *name = kv + sizeof LLAMA_PREFIX - 1;
    for (size_t i = 0; i < sizeof type / sizeof type[0]; i++)
        if (strcmp(name, type[i]) == 0) return LK_OK;
    return lk_fail(err, LK_E_ARG,
                   "unknown llama.cpp cache type '%s'; use f16, q8_0, q5_1, q5_0, q4_1, q4_0, "
                   "iq4_nl or plain",
                   name);
}

lk_status lk_backend_open(struct lk_backend **out, struct lk_model_pair *models, const char *kv,
                          int32_t n_ctx, lk_err *err) {
    lk_status status = lk_backend_check(kv, err);
    if (!status) status = lk_model_pair_open(models, err);
    if (status) return status;
    struct lk_backend *backend = calloc(1, sizeof *backend);
    if (!backend) return lk_fail(err, LK_E_NOMEM, "no memory for a backend");
    lk_model_info info = lk_model_get_info(models->lowkey);
    backend->ops = lk_backend_is_llama(kv) ? &lk_backend_llama : &lk_backend_lowkey;
    backend->kv = kv;
    backend->n_ctx = n_ctx > 0 ? n_ctx : info.n_ctx_train;
    backend->n_vocab = (size_t)info.n_vocab;
    backend->model = models->lowkey;
    status = backend->ops->open(backend, models, err);
    if (status)
        free(backend);
    else
        *out = backend;
    return status;
}

void lk_backend_close(struct lk_backend *backend) {
    if (!backend) return;
    backend->ops->close(backend);
    free(backend);
}

void lk_backend_clear(struct lk_backend *backend) { backend->ops->clear(backend); }

lk_status lk_backend_prefill(struct lk_backend *backend, const int32_t *tok, size_t n,
                             lk_err *err) {
    if (n == 0) return lk_fail(err, LK_E_ARG, "the prompt is empty");
    if (n > (size_t)backend->n_ctx)
        return lk_fail(err, LK_E_FULL,
                       "%zu tokens do not fit into a context of %d; use a larger one", n,
                       backend->n_ctx);
    backend->n_reported = 0;
    lk_status status = backend->ops->prefill(backend, tok, n, err);
    if (status) return status;
    return lk_backend_report(backend, (double)n - backend->n_reported, err);
}

lk_status lk_backend_prefill_all(struct lk_backend *const *backend, size_t n, const int32_t *tok,
                                 size_t n_tok, lk_err *err) {
    lk_status status = LK_OK;
    for (size_t i = 0; i < n; i++) lk_backend_clear(backend[i]);
    if (n > 1 && backend[0]->ops->prefill_all) {
        backend[0]->n_reported = 0;
        status = backend[0]->ops->prefill_all(backend, n, tok, n_tok, err);
        if (status) return status;
        return lk_backend_report(backend[0], (double)(n * n_tok) - backend[0]->n_reported, err);
    }
    for (size_t i = 0; !status && i < n; i++)
        status = lk_backend_prefill(backend[i], tok, n_tok, err);
    return status;
}

lk_status lk_backend_save(struct lk_backend *backend, lk_err *err) {
    return backend->ops->save(backend, err);
}

lk_status lk_backend_restore(struct lk_backend *backend, lk_err *err) {
    return backend->ops->restore(backend, err);
}

lk_status lk_backend_eval(struct lk_backend *backend, const int32_t *tok, size_t n, bool all,
                          lk_err *err) {
    if (n == 0 || (all && n > LK_EVAL_MAX))
        return lk_fail(err, LK_E_ARG, "%zu tokens in one evaluation; give 1 to %d", n, LK_EVAL_MAX);
    for (size_t at = 0; at < n;) {
        size_t part = n - at < LK_EVAL_MAX ? n - at : LK_EVAL_MAX;
        lk_status status = backend->ops->eval(backend, tok + at, part, all, err);
        if (!status) status = lk_backend_report(backend, (double)part, err);
        if (status) return status;
        at += part;
    }
    return LK_OK;
}

const float *lk_backend_logits(const struct lk_backend *backend, int32_t i) {
    return backend->ops->logits(backend, i);
}

lk_session_stats lk_backend_stats(const struct lk_backend *backend) {
    return backend->ops->stats(backend);
}

int32_t lk_argmax_token(const float *logits, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

/* Whether the text of tok[0..n) contains `stop`. Only the end of the text is searched: the caller
 * asks after every token. */
static bool ends_with_stop(const struct lk_backend *backend, const int32_t *tok, size_t n,
                           const char *stop) {
    struct lk_buf text = {0};
    size_t len, total = 0, min_len = strlen(stop) + 128, first = n;
    while (first > 0 && total < min_len && n - first < 64) {
        lk_token_text(backend->model, tok[--first], &len);
        total += len;
    }
    for (size_t i = first; i < n; i++) {
        const char *piece = lk_token_text(backend->model, tok[i], &len);
        lk_buf_append(&text, piece, len);
    }
    bool found = strstr(lk_buf_cstr(&text), stop) != NULL;
    lk_buf_free(&text);
    return found;
}

/* The token that follows `last` when tokens are ordered by falling logits [n], equal ones by their
 * number; the first one after NO_TOKEN. NO_TOKEN if there is none. */
enum { NO_TOKEN = -1 };
static int32_t next_token(const float *logits, size_t n, int32_t last) {
    int32_t best = NO_TOKEN;
    for (int32_t i = 0; i < (int32_t)n; i++) {
        bool is_after =
            last == NO_TOKEN || logits[i] < logits[last] || (logits[i] == logits[last] && i > last);
        if (is_after && (best == NO_TOKEN || logits[i] > logits[best])) best = i;
    }
    return best;
}

lk_status lk_backend_generate(struct lk_backend *backend, size_t min_tok, size_t max_tok,
                              const char *stop, int32_t *out, size_t *n, lk_err *err) {
    size_t kept = 0;
    for (bool end = false; !end && kept < max_tok;) {
        const float *logits = lk_backend_logits(backend, -1);
        if (!logits) return lk_fail(err, LK_E_ARG, "no logits to continue from; prefill first");
        int32_t tok = NO_TOKEN;
        bool is_mark;
        do { /* more than once only while the answer is too short */
            tok = next_token(logits, backend->n_vocab, tok);
            if (tok == NO_TOKEN) return lk_fail(err, LK_E_ARG, "every token ends the answer");
            is_mark = lk_token_ends(backend->model, tok);
            out[kept] = tok;
            end = is_mark || (stop && ends_with_stop(backend, out, kept + 1, stop));
        } while (end && kept < min_tok);
        kept += !is_mark;
        if (end || kept == max_tok) break;
        lk_status status = lk_backend_eval(backend, &tok, 1, false, err);
        if (status) return status;
    }
    *n = kept;
    return LK_OK;
}

double lk_token_nll(const float *logits, size_t n, int32_t tok) {
    float max = logits[0];
    for (size_t i = 1; i < n; i++) max = fmaxf(max, logits[i]);
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += expf(logits[i] - max);
    return max + log(sum) - logits[tok];
}

lk_status lk_backend_nll(struct lk_backend *backend, const int32_t *tok, size_t n_given, size_t n,
                         double *sum, float *each, lk_err *err) {
    if (n_given == 0 || n_given >= n)
        return lk_fail(err, LK_E_ARG, "nothing to score after %zu of %zu tokens", n_given, n);
    lk_status status = lk_backend_prefill(backend, tok, n_given, err);
    if (status) return status;
    size_t n_vocab = backend->n_vocab;
    double total = lk_token_nll(lk_backend_logits(backend, -1), n_vocab, tok[n_given]);
    if (each) each[0] = (float)total;
    for (size_t at = n_given; at + 1 < n;) { /* the last token is predicted, not evaluated */
        size_t part = n - 1 - at < LK_EVAL_MAX ? n - 1 - at : LK_EVAL_MAX;
        status = lk_backend_eval(backend, tok + at, part, true, err);
        if (status) return status;
        for (size_t i = 0; i < part; i++) {
            const float *logits = lk_backend_logits(backend, (int32_t)i);
            double nll = lk_token_nll(logits, n_vocab, tok[at + i + 1]);
            if (each) each[at + i + 1 - n_given] = (float)nll;
            total += nll;
        }
        at += part;
    }
    *sum = total;
    return LK_OK;
}

static void predictor_clear(void *self) { lk_backend_clear(self); }

static lk_status predictor_eval(void *self, const int32_t *tok, size_t n, bool all, lk_err *err) {
    return lk_backend_eval(self, tok, n, all, err);
}

static const float *predictor_logits(void *self, int32_t i) { return lk_backend_logits(self, i); }

struct lk_predictor lk_backend_predictor(struct lk_backend *backend) {
    return (struct lk_predictor){.self = backend,
                                 .clear = predictor_clear,
                                 .eval = predictor_eval,
                                 .logits = predictor_logits};
}

/* ---- a lowkey session as a backend ---- */

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
