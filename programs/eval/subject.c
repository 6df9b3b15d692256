#include "eval/subject.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char PREFIX[] = "llama.cpp:";

lk_status lk_models_open(struct lk_models *models, lk_err *err) {
    lk_model_opts opts = models->opts;
    if (models->lowkey) return LK_OK;
    if (models->tokens_only) {
        opts.weights = LK_WEIGHTS_AS_SHIPPED;
        opts.no_repack = true;
        opts.no_mmap = false;
    }
    return lk_model_open(&models->lowkey, models->path, &opts, err);
}

bool lk_subject_is_llama(const char *kv) { return strncmp(kv, PREFIX, sizeof PREFIX - 1) == 0; }

const char *lk_subject_full(const char *kv) {
    return lk_subject_is_llama(kv) ? "llama.cpp:f16" : "f16";
}

lk_status lk_subject_check(const char *kv, lk_err *err) {
    static const char *const type[] = {"f16",  "q8_0", "q5_1",   "q5_0",
                                       "q4_1", "q4_0", "iq4_nl", "plain"};
    if (!lk_subject_is_llama(kv)) {
        lk_recipe *recipe;
        lk_status status = lk_recipe_parse(&recipe, kv, err);
        if (status == LK_OK) lk_recipe_free(recipe);
        return status;
    }
    for (size_t i = 0; i < sizeof type / sizeof type[0]; i++)
        if (strcmp(kv + sizeof PREFIX - 1, type[i]) == 0) return LK_OK;
    return lk_fail(err, LK_E_ARG,
                   "'%s' is no cache type of llama.cpp that is measured here; give f16, q8_0, "
                   "q5_1, q5_0, q4_1, q4_0, iq4_nl or plain",
                   kv + sizeof PREFIX - 1);
}

lk_status lk_subject_open(struct lk_subject **out, struct lk_models *models, const char *kv,
                          int32_t n_ctx, lk_err *err) {
    lk_status status = lk_subject_check(kv, err);
    if (status == LK_OK) status = lk_models_open(models, err);
    if (status != LK_OK) return status;
    struct lk_subject *s = calloc(1, sizeof *s);
    if (!s) return lk_fail(err, LK_E_NOMEM, "no memory for a subject");
    lk_model_info info = lk_model_get_info(models->lowkey);
    s->kind = lk_subject_is_llama(kv) ? &lk_subject_llama : &lk_subject_lowkey;
    s->kv = kv;
    s->n_ctx = n_ctx > 0 ? n_ctx : info.n_ctx_train;
    s->n_vocab = (size_t)info.n_vocab;
    s->model = models->lowkey;
    status = s->kind->open(s, models, err);
    if (status != LK_OK)
        free(s);
    else
        *out = s;
    return status;
}

void lk_subject_close(struct lk_subject *s) {
    if (!s) return;
    s->kind->close(s);
    free(s);
}

lk_status lk_subject_tick(struct lk_subject *s, double n, lk_err *err) {
    if (s->tick && !s->tick(s->user, n)) return lk_fail(err, LK_E_CANCELLED, "cancelled");
    return LK_OK;
}

void lk_subject_clear(struct lk_subject *s) { s->kind->clear(s); }

lk_status lk_subject_prompt(struct lk_subject *s, const int32_t *tok, size_t n, lk_err *err) {
    if (n == 0) return lk_fail(err, LK_E_ARG, "there are no tokens to read");
    if (n > (size_t)s->n_ctx)
        return lk_fail(err, LK_E_FULL,
                       "%zu tokens do not fit into a context of %d; use a larger one", n, s->n_ctx);
    s->ticked = 0;
    lk_status status = s->kind->prompt(s, tok, n, err);
    return status == LK_OK ? lk_subject_tick(s, (double)n - s->ticked, err) : status;
}

lk_status lk_subjects_prompt(struct lk_subject *const *s, size_t n, const int32_t *tok,
                             size_t n_tok, lk_err *err) {
    bool together = n > 1 && s[0]->kind->prompt_all;
    lk_status status = LK_OK;
    for (size_t i = 0; i < n; i++) lk_subject_clear(s[i]);
    if (together) {
        s[0]->ticked = 0;
        status = s[0]->kind->prompt_all(s, n, tok, n_tok, err);
        if (status == LK_OK)
            status = lk_subject_tick(s[0], (double)(n * n_tok) - s[0]->ticked, err);
    }
    for (size_t i = 0; status == LK_OK && !together && i < n; i++)
        status = lk_subject_prompt(s[i], tok, n_tok, err);
    return status;
}

lk_status lk_subject_save(struct lk_subject *s, lk_err *err) { return s->kind->save(s, err); }

lk_status lk_subject_restore(struct lk_subject *s, lk_err *err) { return s->kind->restore(s, err); }

lk_status lk_subject_read(struct lk_subject *s, const int32_t *tok, size_t n, bool all,
                          lk_err *err) {
    if (n == 0 || (all && n > LK_EVAL_MAX))
        return lk_fail(err, LK_E_ARG, "%zu tokens at once; give 1 to %d", n, LK_EVAL_MAX);
    for (size_t at = 0; at < n;) {
        size_t part = n - at < LK_EVAL_MAX ? n - at : LK_EVAL_MAX;
        lk_status status = s->kind->read(s, tok + at, part, all, err);
        if (status == LK_OK) status = lk_subject_tick(s, (double)part, err);
        if (status != LK_OK) return status;
        at += part;
    }
    return LK_OK;
}

const float *lk_subject_logits(const struct lk_subject *s, int32_t i) {
    return s->kind->logits(s, i);
}

lk_session_stats lk_subject_stats(const struct lk_subject *s) { return s->kind->stats(s); }

int32_t lk_most_probable(const float *logits, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

/* Does the text that ends with these tokens contain `stop` within the last token or across it? */
static bool contains(const struct lk_subject *s, const int32_t *tok, size_t n, const char *stop) {
    enum { ROOM = 1024 };
    char text[ROOM + 1], piece[ROOM + 1];
    size_t len = 0, most = strlen(stop) + 128, first = n;
    /* Enough of the last tokens to hold `stop`; it was not there a token ago. */
    while (first > 0 && len < most && n - first < 64)
        len += lk_token_text(s->model, tok[--first], piece, sizeof piece);
    len = 0;
    for (size_t i = first; i < n && len < ROOM; i++)
        len += lk_token_text(s->model, tok[i], text + len, ROOM + 1 - len);
    text[len < ROOM ? len : ROOM] = 0;
    return strstr(text, stop) != NULL;
}

lk_status lk_subject_generate(struct lk_subject *s, size_t n_most, const char *stop, int32_t *out,
                              size_t *n, lk_err *err) {
    size_t kept = 0;
    while (kept < n_most) {
        const float *logits = lk_subject_logits(s, -1);
        if (!logits) return lk_fail(err, LK_E_ARG, "nothing was read that could be continued");
        int32_t tok = lk_most_probable(logits, s->n_vocab);
        if (lk_token_ends(s->model, tok)) break;
        out[kept++] = tok;
        if (kept == n_most || (stop && contains(s, out, kept, stop))) break;
        lk_status status = lk_subject_read(s, &tok, 1, false, err);
        if (status != LK_OK) return status;
    }
    *n = kept;
    return LK_OK;
}

double lk_nll(const float *logits, size_t n, int32_t tok) {
    float max = logits[0];
    for (size_t i = 1; i < n; i++) max = fmaxf(max, logits[i]);
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += expf(logits[i] - max);
    return max + log(sum) - logits[tok];
}

lk_status lk_subject_nll(struct lk_subject *s, const int32_t *tok, size_t n_given, size_t n,
                         double *sum, float *each, lk_err *err) {
    if (n_given == 0 || n_given >= n)
        return lk_fail(err, LK_E_ARG, "nothing to score after %zu of %zu tokens", n_given, n);
    lk_status status = lk_subject_prompt(s, tok, n_given, err);
    if (status != LK_OK) return status;
    double total = lk_nll(lk_subject_logits(s, -1), s->n_vocab, tok[n_given]);
    if (each) each[0] = (float)total;
    for (size_t at = n_given; at + 1 < n;) { /* the last token is predicted, not read */
        size_t part = n - 1 - at < LK_EVAL_MAX ? n - 1 - at : LK_EVAL_MAX;
        status = lk_subject_read(s, tok + at, part, true, err);
        if (status != LK_OK) return status;
        for (size_t i = 0; i < part; i++) {
            double nll = lk_nll(lk_subject_logits(s, (int32_t)i), s->n_vocab, tok[at + i + 1]);
            if (each) each[at + i + 1 - n_given] = (float)nll;
            total += nll;
        }
        at += part;
    }
    *sum = total;
    return LK_OK;
}

static void predictor_clear(void *self) { lk_subject_clear(self); }

static lk_status predictor_read(void *self, const int32_t *tok, size_t n, bool all, lk_err *err) {
    return lk_subject_read(self, tok, n, all, err);
}

static const float *predictor_logits(void *self, int32_t row) {
    return lk_subject_logits(self, row);
}

struct lk_predictor lk_subject_predictor(struct lk_subject *s) {
    return (struct lk_predictor){
        .self = s, .clear = predictor_clear, .read = predictor_read, .logits = predictor_logits};
}
