/* Sessions: creation, evaluation, reuse of a common prefix, and copies. */
#include "engine/session.h"

#include "cache/cache_check.h"
#include "engine/batch.h"
#include "engine/device_rows.h"
#include "engine/pass.h"
#include "engine/pass_attn.h"
#include "engine/prefill.h"
#include "engine/prefill_state.h"
#include "lowkey_serve.h"
#include "recipe/recipe_check.h"
#include "recipe/recipe_levels.h"

#include <string.h>

/* ---- creation ---- */

static size_t read_scratch_bytes(const struct lk_session *s) {
    return s->model->n_thread * s->read_floats * sizeof(float);
}

static lk_status set_n_ctx(struct lk_session *s, lk_err *err) {
    const struct lk_net *net = s->model->net;
    int32_t trained = net->hp.n_ctx_train;
    if (s->opts.n_ctx == 0) s->opts.n_ctx = trained;
    if (s->opts.n_ctx < 1 || s->opts.n_ctx > LK_MAX_CTX)
        return lk_fail(err, LK_E_ARG, "the context length is %d; it must be 1 to %d", s->opts.n_ctx,
                       LK_MAX_CTX);
    if (net->hp.n_ctx_rope > 0 && s->opts.n_ctx > net->hp.n_ctx_rope)
        return lk_fail(err, LK_E_ARG,
                       "the context length is %d, but the model was opened for contexts of at most "
                       "%d tokens, for which its RoPE (LongRoPE) differs; open it with a longer "
                       "n_ctx",
                       s->opts.n_ctx, net->hp.n_ctx_rope);
    if (net->pos_embd && s->opts.n_ctx > trained)
        return lk_fail(err, LK_E_ARG,
                       "the context length is %d, but this model has learned positions for %d "
                       "tokens only",
                       s->opts.n_ctx, trained);
    return LK_OK;
}

/* What the recipe has must be possible with this model. */
static lk_status check_combinations(const struct lk_session *s, bool divided, lk_err *err) {
    const struct lk_net *net = s->model->net;
    lk_features features = lk_recipe_features(s->recipe);
    if (net->hp.n_swa > 0) features |= lk_feature_bit(LK_FEATURE_SLIDING);
    if (net->hp.alibi_max_bias > 0) features |= lk_feature_bit(LK_FEATURE_ALIBI);
    if (net->hp.attn_softcap > 0) features |= lk_feature_bit(LK_FEATURE_SOFTCAP);
    if (net->hp.d_rope > 0) features |= lk_feature_bit(LK_FEATURE_SHARED);
    if (lk_hparams_mixed(&net->hp)) features |= lk_feature_bit(LK_FEATURE_TWO_HEADS);
    if (net->pos_embd) features |= lk_feature_bit(LK_FEATURE_LEARNED);
    if (net->hp.n_recurrent > 0) features |= lk_feature_bit(LK_FEATURE_RECURRENT);
    if (net->hp.n_shared > 0) features |= lk_feature_bit(LK_FEATURE_BORROWED);
    if (divided) features |= lk_feature_bit(LK_FEATURE_DIVIDED_ROWS);
    if (!lk_net_has_all(net)) features |= lk_feature_bit(LK_FEATURE_DIVIDED_LAYERS);
    const struct lk_combination_rule *rule = lk_combination_check(features);
    return rule ? lk_fail(err, LK_E_UNSUPPORTED, "%s", rule->reason) : LK_OK;
}

static lk_status init_session(struct lk_session *s, bool whole, lk_err *err) {
    struct lk_cache_shape shape = lk_model_cache_shape(s->model);
    if (whole) shape.place.share = (struct lk_share){0};
    lk_status status = set_n_ctx(s, err);
    if (!status) status = check_combinations(s, shape.place.share.n > 1, err);
    if (!status) status = lk_device_rows_open(s, s->opts.device, s->opts.max_device_bytes, err);
    s->opts.device = NULL; /* the caller's text */
    shape.n_pos = s->opts.n_ctx;
    shape.device = s->rows.device;
    shape.device_ledger = &s->rows.ledger;
    if (!status) status = lk_cache_new(&s->cache, s->recipe, &shape, &s->ledger, err);
    if (!status) status = lk_device_rows_check(s, err);
    if (status) return status;
    s->tok = lk_alloc(&s->ledger, LK_FOR_OTHER, s->opts.n_ctx * sizeof *s->tok);
    if (!s->tok) return lk_fail(err, LK_E_NOMEM, "out of memory for a session");
    status = lk_recurrent_new(s, err);
    if (status) return status;
    s->width = lk_cache_max_widths(s->cache);
    if (s->recipe->read > 0) {
        const struct lk_hparams *hp = &s->model->net->hp;
        s->read_floats = lk_pass_read_floats(s->recipe, s->opts.n_ctx, hp);
        s->read_scratch = lk_alloc(&s->ledger, LK_FOR_SCRATCH, read_scratch_bytes(s));
        s->read_count =
            lk_alloc(&s->ledger, LK_FOR_OTHER, s->model->n_thread * sizeof *s->read_count);
        if (!s->read_scratch || !s->read_count)
            return lk_fail(err, LK_E_NOMEM, "out of memory for a session");
    }
    status = lk_pass_init(&s->pass, s->model, &s->ledger, err);
    if (!status) status = lk_checkpoints_init(s, err);
    if (status) return status;
    const struct lk_sidecar *sidecar = s->model->sidecar;
    if (s->recipe->absorbs && sidecar) return lk_session_enable_absorb(s, sidecar, err);
    return LK_OK;
}

static lk_status create_session(lk_session **out, lk_model *model, const lk_recipe *recipe,
                                const lk_session_opts *opts, bool whole, lk_err *err) {
    struct lk_session *s = lk_alloc(&model->ledger, LK_FOR_OTHER, sizeof *s);
    if (!s) return lk_fail(err, LK_E_NOMEM, "out of memory for a session");
    s->model = model;
    s->recipe = recipe;
    if (opts) s->opts = *opts;
    s->ledger.limit = s->opts.max_bytes;
    s->ledger.common = &model->ledger;
    lk_status status = init_session(s, whole, err);
    if (!status)
        *out = s;
    else
        lk_session_free(s);
    return status;
}

static lk_status run_new(struct lk_op *op, lk_err *err) {
    return create_session(op->created, op->model, op->recipe, op->opts, op->flag, err);
}

lk_status lk_session_new_held(lk_session **out, lk_model *model, const lk_recipe *recipe,
                              const lk_session_opts *opts, bool whole, lk_err *err) {
    static const lk_session_opts defaults;
    lk_session *s = NULL;
    lk_status status = lk_op_run(model,
                                 &(struct lk_op){.kind = LK_OP_SESSION_NEW,
                                                 .run = run_new,
                                                 .model = model,
                                                 .recipe = recipe,
                                                 .opts = opts ? opts : &defaults,
                                                 .flag = whole,
                                                 .created = &s},
                                 err);
    if (!status)
        *out = s;
    else
        lk_session_free(s);
    return status;
}

lk_status lk_session_new(lk_session **out, lk_model *model, const lk_recipe *recipe,
                         const lk_session_opts *opts, lk_err *err) {
    return lk_session_new_held(out, model, recipe, opts, false, err);
}

static lk_status run_free(struct lk_op *op, lk_err *err) {
    struct lk_session *s = op->session;
    (void)err;
    lk_prefill_drop(s);
    lk_checkpoints_free(s);
    lk_pass_free(&s->pass);
    lk_absorb_free(s->absorb);
    lk_cache_free(s->cache);
    lk_device_rows_free(s);
    lk_recurrent_drafts_free(s);
    lk_recurrent_free(s);
    lk_release(&s->ledger, LK_FOR_SCRATCH, s->logits,
               s->logits_cap * s->model->net->hp.n_vocab * sizeof(float));
    lk_release(&s->ledger, LK_FOR_OTHER, s->tok, s->opts.n_ctx * sizeof *s->tok);
    lk_release(&s->ledger, LK_FOR_SCRATCH, s->read_scratch, read_scratch_bytes(s));
    lk_release(&s->ledger, LK_FOR_OTHER, s->read_count, s->model->n_thread * sizeof *s->read_count);
    lk_release(&s->model->ledger, LK_FOR_OTHER, s, sizeof *s);
    return LK_OK;
}

void lk_session_free(lk_session *s) {
    struct lk_op op = {.kind = LK_OP_SESSION_FREE, .run = run_free, .session = s};
    if (s) lk_op_run(s->model, &op, NULL);
}

/* ---- evaluation ---- */

static lk_status run_reserve(struct lk_op *op, lk_err *err) {
    lk_session_drop_suspended(op->session);
    size_t left = op->session->opts.n_ctx - op->session->n_tok;
    lk_status status = lk_cache_reserve(op->session->cache, op->n < left ? op->n : left, err);
    if (!status && !lk_device_reserve_scores(op->session, 0))
        return lk_fail(err, LK_E_NOMEM, "out of memory for the scores of rows");
    return status;
}

lk_status lk_session_reserve(lk_session *s, size_t n_tok, lk_err *err) {
    struct lk_op op = {.kind = LK_OP_RESERVE, .run = run_reserve, .session = s, .n = n_tok};
    return lk_op_run(s->model, &op, err);
}

void lk_session_cancel(lk_session *s) { atomic_store(&s->cancelled, 1); }

static lk_status run_clear(struct lk_op *op, lk_err *err) {
    (void)err;
    lk_session_drop_tokens(op->session);
    atomic_store(&op->session->cancelled, 0);
    return LK_OK;
}

void lk_session_clear(lk_session *s) {
    struct lk_op op = {.kind = LK_OP_CLEAR, .run = run_clear, .session = s};
    lk_op_run(s->model, &op, NULL);
}

/* ---- reuse of a common prefix ---- */

static size_t common_prefix(const struct lk_session *s, const int32_t *tok, size_t n_tok) {
    size_t n = 0;
    while (n < s->n_tok && n < n_tok && s->tok[n] == tok[n]) n++;
    return n;
}

/* How many of the n_common first tokens stay if the session is extended or cut back to become
 * n_tok tokens. */
static size_t can_keep(const struct lk_session *s, size_t n_common, size_t n_tok) {
    size_t n = n_common;
    if (n == n_tok && n == s->n_tok && s->n_logits > 0) return n;
    if (n == n_tok) n--; /* the last token's logits have to be computed again */
    if (n == s->n_tok) return n;
    return n > 0 && !s->recurrent && lk_cache_can_truncate(s->cache, (int64_t)n) ? n : 0;
}

/* How many of the n_common first tokens stay, and from which checkpoint; NULL: from none. A replay
 * scores a whole prompt: if less than half of the tokens would stay, none does. */
static size_t find_kept(const struct lk_session *s, size_t n_common, size_t n_tok,
                        const struct lk_checkpoint **from) {
    size_t n = can_keep(s, n_common, n_tok);
    *from = lk_checkpoints_find(s, n_common, n_tok);
    if (*from && (*from)->n_tok > n)
        n = (*from)->n_tok;
    else
        *from = NULL;
    if (n >= n_tok - n || !lk_recipe_replays(s->recipe)) return n;
    *from = NULL;
    return 0;
}

/* How many of the text's tokens a prefill evaluates. Those after the last mark are a question about
 * the others, if these are at least half of the text: they are not replayed. */
static size_t count_prefill(const struct lk_session *s, const size_t *mark, size_t n_mark,
                            size_t n_tok) {
    size_t n = 0;
    for (size_t i = 0; i < n_mark && lk_recipe_replays(s->recipe); i++)
        if (mark[i] > n && mark[i] < n_tok) n = mark[i];
    return n > 0 && n >= n_tok - n ? n : n_tok;
}

size_t lk_session_reusable(const lk_session *s, const int32_t *tok, size_t n_tok) {
    const struct lk_checkpoint *from;
    if (s->suspended) return lk_prefill_saved(s, tok, n_tok);
    return find_kept(s, common_prefix(s, tok, n_tok), n_tok, &from);
}

/* Keep as many of the tokens that the session has in common with tok as it can; *n is their number.
 * LK_E_NOMEM: the session is empty. */
static lk_status cut_back(struct lk_session *s, const int32_t *tok, size_t n_tok, size_t *n,
                          lk_err *err) {
    size_t n_common = common_prefix(s, tok, n_tok);
    const struct lk_checkpoint *from;
    *n = find_kept(s, n_common, n_tok, &from);
    lk_checkpoints_drop(s, n_common); /* the others are of tokens that go */
    if (from) {
        lk_err why = {0};
        lk_status status = lk_session_reserve_logits(s, 1, &why);
        if (!status) status = lk_checkpoints_restore(s, from, &why);
        status = lk_agree(s->model, status, &why);
        if (status) {
            lk_session_drop_tokens(s);
            lk_fail(err, status, "%s", why.msg);
        }
        return status;
    }
    if (*n == 0) {
        lk_session_drop_tokens(s);
    } else if (*n < s->n_tok) {
        lk_cache_truncate(s->cache, (int64_t)*n);
        s->n_tok = *n;
        s->n_pass = 0;
        s->n_cut++;
        s->n_logits = 0;
    }
    return LK_OK;
}

/* lk_session_extend, with a stop at each planned checkpoint. */
static lk_status extend_by_parts(struct lk_session *s, const int32_t *tok, size_t n_tok,
                                 lk_err *err) {
    lk_status status = LK_OK;
    while (!status && s->checkpoints.n_planned > 0) {
        size_t n = s->checkpoints.planned[0].n_tok;
        lk_checkpoints_drop_planned(s, 0);
        status = lk_session_extend(s, tok, n, err);
        if (!status) lk_checkpoints_take(s, false);
    }
    return status ? status : lk_session_extend(s, tok, n_tok, err);
}

static lk_status sync_tokens(lk_session *s, const int32_t *tok, size_t n_tok, const size_t *mark,
                             size_t n_mark, size_t *n_reused, lk_err *err) {
    lk_status status = lk_session_check_text(s, tok, n_tok, err);
    if (status) return status;
    size_t n = 0, n_saved = lk_prefill_saved(s, tok, n_tok);
    if (n_saved == 0)
        lk_session_drop_suspended(s);
    else
        status = lk_prefill_resume(s, err);
    if (!status) status = cut_back(s, tok, n_tok, &n, err);
    if (!status) lk_checkpoints_plan(s, mark, n_mark, n, n_tok);
    bool by_parts = s->opts.chunked_prefill || (s->recipe->eager && s->checkpoints.n_planned > 0);
    size_t n_prefill = n == 0 && !by_parts ? count_prefill(s, mark, n_mark, n_tok) : 0;
    if (!status && n_prefill > 0) status = lk_prefill_one(s, tok, n_prefill, err);
    if (!status && n_prefill > 0 && n_prefill < n_tok) {
        lk_checkpoints_take(s, true);
        lk_checkpoints_plan(s, mark, n_mark, n_prefill, n_tok);
    }
    if (!status && n_prefill < n_tok) status = extend_by_parts(s, tok, n_tok, err);
    while (!s->suspended && s->checkpoints.n_planned > 0) /* after a failure */
        lk_checkpoints_drop_planned(s, s->checkpoints.n_planned - 1);
    if (status) return status;
    const struct lk_checkpoint *last = lk_checkpoints_find(s, n_tok, n_tok);
    if (!last || !last->logits || n_tok - last->n_tok >= LK_CHECKPOINT_GAP)
        lk_checkpoints_take(s, true);
    if (n_reused) *n_reused = n_saved > 0 ? n_saved : n;
    return LK_OK;
}

static lk_status run_sync(struct lk_op *op, lk_err *err) {
    return sync_tokens(op->session, op->tok, op->n, op->mark, op->n_mark, op->n_reused, err);
}

lk_status lk_session_sync_marked(lk_session *s, const int32_t *tok, size_t n_tok,
                                 const size_t *mark, size_t n_mark, size_t *n_reused, lk_err *err) {
    struct lk_op op = {.kind = LK_OP_SYNC,
                       .run = run_sync,
                       .session = s,
                       .tok = tok,
                       .n = n_tok,
                       .mark = mark,
                       .n_mark = n_mark,
                       .n_reused = n_reused};
    return lk_op_run(s->model, &op, err);
}

lk_status lk_session_sync(lk_session *s, const int32_t *tok, size_t n_tok, size_t *n_reused,
                          lk_err *err) {
    return lk_session_sync_marked(s, tok, n_tok, NULL, 0, n_reused, err);
}

/* ---- copies ---- */

/* Do both have the same networks, or neither any? */
static bool have_same_states(const struct lk_session *a, const struct lk_session *b) {
    return !a->absorb == !b->absorb && (!a->absorb || a->absorb->sidecar == b->absorb->sidecar);
}

static lk_status copy_session(lk_session *s, lk_session *from, lk_err *err) {
    if (s->model != from->model ||
        s->cache->shape.place.share.n != from->cache->shape.place.share.n ||
        s->recipe->absorbs != from->recipe->absorbs || s->rows.device != from->rows.device ||
        !lk_cache_same_levels(s->cache, from->cache) || !have_same_states(s, from))
        return lk_fail(
            err, LK_E_ARG,
            "a session can be copied only to one with the same model, recipe and device");
    if (from->n_tok > (size_t)s->opts.n_ctx)
        return lk_fail(err, LK_E_FULL, "%zu tokens do not fit a context of %d", from->n_tok,
                       s->opts.n_ctx);
    const float *logits = lk_session_logits(from, -1);
    lk_err why = {0};
    lk_session_drop_tokens(s);
    if (from->suspended) return LK_OK; /* it has no tokens */
    from->n_pass = 0;                  /* its newest block becomes shared */
    lk_status status = logits ? lk_session_reserve_logits(s, 1, &why) : LK_OK;
    if (!status) status = lk_cache_copy(s->cache, from->cache, &why);
    if (!status) status = lk_recurrent_copy(s, from, &why);
    status = lk_agree(s->model, status, &why);
    if (status) {
        lk_cache_clear(s->cache);
        lk_recurrent_clear(s);
        return lk_fail(err, status, "%s", why.msg);
    }
    if (s->absorb) lk_absorb_copy(s->absorb, from->absorb);
    memcpy(s->tok, from->tok, from->n_tok * sizeof *s->tok);
    s->n_tok = from->n_tok;
    lk_checkpoints_copy(s, from);
    if (!logits) return LK_OK;
    memcpy(s->logits, logits, s->model->net->hp.n_vocab * sizeof *logits);
    s->n_logits = 1;
    return LK_OK;
}

static lk_status run_copy(struct lk_op *op, lk_err *err) {
    return copy_session(op->session, op->other, err);
}

lk_status lk_session_copy(lk_session *s, lk_session *from, lk_err *err) {
    struct lk_op op = {.kind = LK_OP_COPY, .run = run_copy, .session = s, .other = from};
    return s == from ? LK_OK : lk_op_run(s->model, &op, err);
}
