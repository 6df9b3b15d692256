/* Sessions: memory, the state they stand at, and what they report. */
#include "cache/cache_save.h"
#include "engine/engine.h"
#include "model/blocks.h"

#include <stdio.h>
#include <string.h>

struct lk_cache_shape lk_model_cache_shape(const struct lk_model *model) {
    const struct lk_hparams *hp = &model->net->hp;
    return (struct lk_cache_shape){
        .n_layer = hp->n_layer,
        .n_head_kv = hp->n_head_kv,
        .d_head = hp->d_head,
        .n_swa = hp->n_swa,
        .is_swa = hp->n_swa > 0 ? hp->is_swa : NULL,
        .basis = model->sidecar ? (const struct lk_basis *const *)model->sidecar->basis : NULL,
        .rope = model->rope,
        .n_ctx = hp->n_ctx_train,
        .kernels = model->kernels};
}

static lk_status choose_n_ctx(struct lk_session *s, lk_err *err) {
    const struct lk_net *net = s->model->net;
    int32_t trained = net->hp.n_ctx_train;
    if (s->opts.n_ctx == 0) s->opts.n_ctx = trained;
    if (s->opts.n_ctx < 1 || s->opts.n_ctx > LK_MAX_CTX)
        return lk_fail(err, LK_E_ARG, "a context of %d tokens is not possible; give 1 to %d",
                       s->opts.n_ctx, LK_MAX_CTX);
    if (net->pos_embd && s->opts.n_ctx > trained)
        return lk_fail(
            err, LK_E_ARG,
            "this model has learned positions for %d tokens; a context of %d is not possible",
            trained, s->opts.n_ctx);
    return LK_OK;
}

static lk_status take_memory(struct lk_session *s, lk_err *err) {
    s->tok = lk_alloc(&s->ledger, LK_FOR_OTHER, s->opts.n_ctx * sizeof *s->tok);
    if (!s->tok) return lk_fail(err, LK_E_NOMEM, "no memory for a session");
    s->width = lk_cache_measure(s->cache);
    return lk_pass_open(&s->pass, s->model, &s->ledger, err);
}

/* Sinks that shift need positions that can be taken back. */
static lk_status check_shift(const struct lk_session *s, lk_err *err) {
    for (int i = 0; s->model->net->pos_embd && i < s->recipe->n_level; i++)
        if (s->recipe->level[i].shift)
            return lk_fail(
                err, LK_E_UNSUPPORTED,
                "this model has learned positions, and sinks cannot shift; leave '(shift)' out");
    return LK_OK;
}

lk_status lk_session_new(lk_session **out, lk_model *model, const lk_recipe *recipe,
                         const lk_session_opts *opts, lk_err *err) {
    struct lk_session *s = lk_alloc(&model->ledger, LK_FOR_OTHER, sizeof *s);
    if (!s) return lk_fail(err, LK_E_NOMEM, "no memory for a session");
    s->model = model;
    s->recipe = recipe;
    if (opts) s->opts = *opts;
    s->ledger.limit = s->opts.max_bytes;
    s->ledger.common = &model->ledger;
    struct lk_cache_shape shape = lk_model_cache_shape(model);
    lk_status status = choose_n_ctx(s, err);
    if (status == LK_OK) status = check_shift(s, err);
    if (status == LK_OK) status = lk_cache_new(&s->cache, recipe, &shape, &s->ledger, err);
    if (status == LK_OK) status = take_memory(s, err);
    if (status != LK_OK) {
        lk_session_free(s);
        return status;
    }
    if (recipe->absorbs == LK_ABSORB_PERFORMER || (recipe->absorbs && model->sidecar))
        status = lk_session_absorb(s, model->sidecar, err);
    if (status == LK_OK)
        *out = s;
    else
        lk_session_free(s);
    return status;
}

void lk_session_free(lk_session *s) {
    if (!s) return;
    lk_pass_close(&s->pass);
    lk_cache_free(s->cache);
    lk_absorb_free(s->absorb);
    lk_release(&s->ledger, LK_FOR_SCRATCH, s->logits,
               s->logits_cap * s->model->net->hp.n_vocab * sizeof(float));
    lk_release(&s->ledger, LK_FOR_OTHER, s->tok, s->opts.n_ctx * sizeof *s->tok);
    lk_release(&s->model->ledger, LK_FOR_OTHER, s, sizeof *s);
}

lk_status lk_session_absorb(struct lk_session *s, const struct lk_sidecar *sidecar, lk_err *err) {
    const struct lk_hparams *hp = &s->model->net->hp;
    if (!s->recipe->absorbs) return lk_fail(err, LK_E_ARG, "the recipe does not say 'absorb'");
    if (hp->n_swa > 0 || hp->alibi_max_bias > 0)
        return lk_fail(err, LK_E_UNSUPPORTED, "to absorb rows is not possible with %s",
                       hp->n_swa > 0 ? "sliding windows" : "ALiBi");
    struct lk_less_shape heads = {
        .n_head = hp->n_head, .n_head_kv = hp->n_head_kv, .d_head = hp->d_head};
    struct lk_absorb *absorb = NULL;
    lk_status status =
        s->recipe->absorbs == LK_ABSORB_LESS
            ? lk_absorb_new(&absorb, sidecar, hp->n_head, s->model->kernels, &s->ledger, err)
            : lk_absorb_new_random(&absorb, &heads, hp->attn_scale, hp->n_layer, &s->ledger, err);
    if (status != LK_OK) return status;
    lk_absorb_free(s->absorb); /* another sidecar's, which nothing was absorbed by */
    s->absorb = absorb;
    s->cache->leave = (struct lk_evict_hook){lk_absorb_row, absorb};
    return LK_OK;
}

lk_status lk_session_reserve_absorb(struct lk_session *s, int n_tok, lk_err *err) {
    if (!s->recipe->absorbs) return LK_OK;
    if (!s->absorb)
        return lk_fail(err, LK_E_ARG,
                       "'absorb less' needs a sidecar with networks for this model; `lowkey train "
                       "less` makes one");
    if (s->n_tok == 0) lk_absorb_clear(s->absorb);
    return lk_absorb_reserve(s->absorb, n_tok, err);
}

lk_status lk_session_reserve_logits(struct lk_session *s, size_t n, lk_err *err) {
    if (n <= s->logits_cap) return LK_OK;
    size_t row = s->model->net->hp.n_vocab * sizeof(float);
    float *logits = lk_alloc(&s->ledger, LK_FOR_SCRATCH, n * row);
    if (!logits) return lk_fail(err, LK_E_NOMEM, "no memory for %zu rows of logits", n);
    if (s->n_logits)
        memcpy(logits, s->logits, s->n_logits * row); /* of use where what follows fails */
    lk_release(&s->ledger, LK_FOR_SCRATCH, s->logits, s->logits_cap * row);
    s->logits = logits;
    s->logits_cap = n;
    return LK_OK;
}

void lk_session_clear(struct lk_session *s) {
    lk_cache_clear(s->cache);
    s->n_tok = 0;
    s->n_logits = 0;
}

lk_status lk_session_copy(lk_session *s, lk_session *from, lk_err *err) {
    if (s == from) return LK_OK;
    if (s->model != from->model || s->recipe->absorbs != from->recipe->absorbs ||
        !lk_cache_same_levels(s->cache, from->cache))
        return lk_fail(err, LK_E_ARG,
                       "a session can be made like another only with the same model and recipe");
    if (from->n_tok > (size_t)s->opts.n_ctx)
        return lk_fail(err, LK_E_FULL, "%zu tokens do not fit into a context of %d", from->n_tok,
                       s->opts.n_ctx);
    const float *logits = lk_session_logits(from, -1);
    lk_session_clear(s);
    lk_status status = logits ? lk_session_reserve_logits(s, 1, err) : LK_OK;
    if (status == LK_OK) status = lk_cache_copy(s->cache, from->cache, err);
    if (status == LK_OK && s->recipe->absorbs) status = lk_session_reserve_absorb(s, 1, err);
    if (status != LK_OK) return status;
    if (s->absorb && from->absorb) lk_absorb_copy(s->absorb, from->absorb);
    memcpy(s->tok, from->tok, from->n_tok * sizeof *s->tok);
    s->n_tok = from->n_tok;
    if (!logits) return LK_OK;
    memcpy(s->logits, logits, s->model->net->hp.n_vocab * sizeof *logits);
    s->n_logits = 1;
    return LK_OK;
}

static lk_status check_tokens(const struct lk_session *s, const int32_t *tok, size_t n_tok,
                              lk_err *err) {
    int32_t n_vocab = s->model->net->hp.n_vocab;
    for (size_t i = 0; i < n_tok; i++)
        if (tok[i] < 0 || tok[i] >= n_vocab)
            return lk_fail(err, LK_E_ARG, "token %zu is %d; the vocabulary has 0 to %d", i, tok[i],
                           n_vocab - 1);
    return LK_OK;
}

lk_status lk_session_check(const struct lk_session *s, const int32_t *tok, size_t n_tok,
                           lk_err *err) {
    if (n_tok < 1 || n_tok > LK_EVAL_MAX)
        return lk_fail(err, LK_E_ARG, "%zu tokens at once; give 1 to %d", n_tok, LK_EVAL_MAX);
    if (s->n_tok + n_tok > (size_t)s->opts.n_ctx)
        return lk_fail(err, LK_E_FULL, "the context of %d tokens is full; use a larger one",
                       s->opts.n_ctx);
    return check_tokens(s, tok, n_tok, err);
}

lk_status lk_session_eval(lk_session *s, const int32_t *tok, size_t n_tok, bool all, lk_err *err) {
    lk_batch_item item = {.session = s, .tok = tok, .n_tok = n_tok, .all = all};
    lk_status status = lk_pass_eval(&s->pass, &item, 1, err);
    if (status != LK_OK || item.err.code == LK_OK) return status;
    return lk_fail(err, item.err.code, "%s", item.err.msg);
}

lk_status lk_session_reserve(lk_session *s, size_t n_tok, lk_err *err) {
    size_t left = s->opts.n_ctx - s->n_tok;
    if (n_tok > left) n_tok = left;
    return lk_cache_reserve(s->cache, n_tok, err);
}

/* The common prefix; less than all of tok where the last one's logits are not there. 0 where the cache cannot be
 * cut back to it. */
size_t lk_session_reusable(const struct lk_session *s, const int32_t *tok, size_t n_tok) {
    size_t n = 0;
    while (n < s->n_tok && n < n_tok && s->tok[n] == tok[n]) n++;
    if (n == n_tok && n == s->n_tok && s->n_logits > 0) return n;
    if (n == n_tok) n--;
    return n == s->n_tok || (n > 0 && lk_cache_cuts_back(s->cache, n)) ? n : 0;
}

/* Append tok[s->n_tok .. n_tok) in portions, the large ones first: they are read faster, and small ones
 * need less memory. */
static lk_status extend(struct lk_session *s, const int32_t *tok, size_t n_tok, lk_err *err) {
    const size_t least = 32;
    for (size_t portion = LK_EVAL_MAX; s->n_tok < n_tok;) {
        size_t at = s->n_tok, n = n_tok - at < portion ? n_tok - at : portion;
        lk_status status = lk_session_eval(s, tok + at, n, false, err);
        if (status == LK_E_NOMEM && n > least && s->n_tok == at) {
            lk_graph_free(&s->pass.graph, &s->ledger); /* its memory would not shrink */
            portion = n / 2;
            continue;
        }
        if (status != LK_OK) return status;
        uint64_t n_layer = s->cache->shape.n_layer;
        if (s->opts.progress &&
            !s->opts.progress(s->opts.user, s->n_tok * n_layer, n_tok * n_layer))
            return lk_fail(err, LK_E_CANCELLED, "cancelled while reading the prompt");
    }
    return LK_OK;
}

/* To the first n > 0 tokens, whose logits are not there. */
static void cut_back(struct lk_session *s, size_t n) {
    lk_cache_truncate(s->cache, n);
    s->n_tok = n;
    s->n_logits = 0;
}

lk_status lk_session_sync(lk_session *s, const int32_t *tok, size_t n_tok, size_t *n_reused,
                          lk_err *err) {
    if (n_tok == 0) return lk_fail(err, LK_E_ARG, "there are no tokens to read");
    if (n_tok > (size_t)s->opts.n_ctx)
        return lk_fail(err, LK_E_FULL,
                       "%zu tokens do not fit into a context of %d; use a larger one", n_tok,
                       s->opts.n_ctx);
    lk_status status = check_tokens(s, tok, n_tok, err);
    if (status != LK_OK) return status;
    size_t n = lk_session_reusable(s, tok, n_tok);
    if (n == 0)
        lk_session_clear(s);
    else if (n < s->n_tok)
        cut_back(s, n);
    if (n < n_tok)
        status = n == 0 && !s->opts.chunked_prefill ? lk_prefill(s, tok, n_tok, err)
                                                    : extend(s, tok, n_tok, err);
    if (status == LK_OK && n_reused) *n_reused = n;
    return status;
}

const float *lk_session_logits(const lk_session *s, int32_t i) {
    if (i < 0) i += s->n_logits;
    return i >= 0 && i < s->n_logits ? s->logits + (size_t)i * s->model->net->hp.n_vocab : NULL;
}

uint64_t lk_session_immutable_bytes(const lk_session *s) {
    return lk_cache_immutable_bytes(s->cache);
}

size_t lk_session_n_tok(const lk_session *s) { return s->n_tok; }

const int32_t *lk_session_tokens(const lk_session *s) { return s->tok; }

lk_session_stats lk_session_get_stats(const lk_session *s) {
    struct lk_cache_bytes b = lk_cache_count(s->cache);
    uint64_t state =
        s->absorb ? lk_absorb_state_bytes(s->absorb) : 0; /* the cache takes it for padding */
    lk_session_stats stats = {.n_tok = s->n_tok,
                              .code_bytes = b.code,
                              .scale_bytes = b.scale,
                              .exact_bytes = b.exact,
                              .padding_bytes = b.padding - state,
                              .state_bytes = state,
                              .cache_bytes = b.code + b.scale + b.exact + b.padding,
                              .shared_bytes = atomic_load(&s->ledger.borrowed),
                              .f16_bytes = lk_cache_f16_bytes(&s->cache->shape, s->n_tok),
                              .scratch_bytes = lk_ledger_bytes(&s->ledger, LK_FOR_SCRATCH)};
    if (s->n_tok == 0) return stats;
    stats.bits_per_value = 16.0 * stats.cache_bytes / stats.f16_bytes;
    stats.bytes_per_token = (double)stats.cache_bytes / s->n_tok;
    return stats;
}

/* The stream's level made from the recipe's i-th, or -1. */
static int find_level(const struct lk_kv *kv, int spec) {
    for (int i = 0; i < kv->n_level; i++)
        if (kv->rule[i].spec == spec) return i;
    return -1;
}

/* A layer whose levels speak for all: the first that has this one, with full attention if any has, and as the recipe says
 * of layers that it does not name. -1: none has it. */
static int typical_layer(const struct lk_session *s, int spec) {
    const struct lk_cache_shape *shape = &s->cache->shape;
    int typical = -1, most = -1;
    for (int layer = 0; layer < shape->n_layer; layer++) {
        if (find_level(&s->cache->kv[layer][LK_K], spec) < 0 &&
            find_level(&s->cache->kv[layer][LK_V], spec) < 0)
            continue;
        bool full = !shape->is_swa || !shape->is_swa[layer];
        int speaks = 2 * full + !lk_recipe_names_layer(s->recipe, layer, shape->n_layer);
        if (speaks > most) typical = layer, most = speaks;
    }
    return typical;
}

bool lk_session_get_level(const lk_session *s, size_t i, lk_level_stats *out) {
    const struct lk_recipe *recipe = s->recipe;
    if (i > (size_t)recipe->n_level) return false;
    lk_level_stats sum = {0};
    int typical = typical_layer(s, (int)i);
    for (int layer = 0; layer < s->cache->shape.n_layer; layer++)
        for (int side = 0; side < 2; side++) {
            const struct lk_kv *kv = &s->cache->kv[layer][side];
            int level = find_level(kv, (int)i);
            if (level < 0) continue;
            *(side == LK_K ? &sum.k_bytes : &sum.v_bytes) +=
                kv->level[level].n_block * kv->level[level].block_bytes;
            if (layer != typical) continue;
            *(side == LK_K ? &sum.k_rows : &sum.v_rows) = kv->fill[level].rows;
            lk_codec_print(&kv->rule[level].codec, side, side == LK_K ? sum.k_codec : sum.v_codec,
                           sizeof sum.k_codec);
        }
    bool staging = i == (size_t)recipe->n_level;
    if (staging && typical < 0) return false;
    snprintf(sum.name, sizeof sum.name, "%s", staging ? "newest" : recipe->level[i].name);
    *out = sum;
    return true;
}
