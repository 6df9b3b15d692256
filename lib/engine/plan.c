/* What a context will need, by the cache's own arithmetic, without running. */
#include "engine/engine.h"

/* Bytes of the states that a recipe sums dropped rows up in. */
static lk_status foresee_states(const lk_model *model, const lk_recipe *recipe, uint64_t *bytes,
                                lk_err *err) {
    *bytes = 0;
    if (!recipe->absorbs) return LK_OK;
    const struct lk_hparams *hp = &model->net->hp;
    if (recipe->absorbs == LK_ABSORB_PERFORMER) {
        struct lk_less_shape heads = {
            .n_head = hp->n_head, .n_head_kv = hp->n_head_kv, .d_head = hp->d_head};
        *bytes = lk_absorb_estimate_random(&heads, hp->n_layer);
        return LK_OK;
    }
    if (!model->sidecar)
        return lk_fail(err, LK_E_ARG,
                       "'absorb less' needs a sidecar with networks for this model; `lowkey train "
                       "less` makes one");
    return lk_absorb_estimate(model->sidecar, hp->n_head, bytes, err);
}

lk_status lk_plan_make(const lk_model *model, const lk_recipe *recipe, size_t n_tok,
                       bool chunked_prefill, lk_plan *out, lk_err *err) {
    if (n_tok < 1 || n_tok > LK_MAX_CTX)
        return lk_fail(err, LK_E_ARG, "a plan for %zu tokens is not possible; give 1 to %d", n_tok,
                       LK_MAX_CTX);
    const struct lk_hparams *hp = &model->net->hp;
    struct lk_cache_shape shape = lk_model_cache_shape(model);
    uint64_t states;
    struct lk_cache_needs needs;
    lk_status status = lk_cache_estimate(recipe, &shape, (int64_t)n_tok, &needs, err);
    if (status == LK_OK) status = foresee_states(model, recipe, &states, err);
    if (status != LK_OK) return status;
    uint64_t cache = needs.cache + states;

    uint64_t logits = (uint64_t)hp->n_vocab * sizeof(float);
    uint64_t attn = sizeof(float) * (lk_attn_partial_floats(hp->n_head, hp->n_head_kv,
                                                            hp->d_head + needs.width.latent,
                                                            LK_EVAL_MAX, model->n_thread) +
                                     lk_attn_scratch_floats(needs.width.part) * model->n_thread);
    uint64_t width = 4ull * hp->n_embd + 3ull * hp->n_ff +
                     (uint64_t)(2 * hp->n_head + 2 * hp->n_head_kv) * hp->d_head;
    uint64_t portion = n_tok < LK_EVAL_MAX ? n_tok : LK_EVAL_MAX,
             row = 2ull * hp->n_head_kv * hp->d_head * sizeof(uint16_t);
    uint64_t batch =
        portion * width * sizeof(float) + lk_widened_bytes(model->net, (int64_t)portion);
    uint64_t hidden = chunked_prefill ? 0 : (uint64_t)n_tok * hp->n_embd * sizeof(float);
    uint64_t exact =
        chunked_prefill ? portion * hp->n_layer * row : n_tok * row; /* not coded yet */
    uint64_t choice = chunked_prefill ? 0 : needs.choice.attn_scores + needs.choice.order;

    *out = (lk_plan){.n_tok = n_tok,
                     .cache_bytes = cache,
                     .f16_bytes = lk_cache_f16_bytes(&shape, n_tok),
                     .weight_bytes =
                         model->net->weight_bytes + (model->sidecar ? model->sidecar->bytes : 0),
                     .scratch_bytes = 2 * logits + attn + batch + needs.scratch};
    out->peak_bytes = out->weight_bytes + cache + out->scratch_bytes + hidden + exact + choice;
    out->bits_per_value = 16.0 * cache / out->f16_bytes;
    return LK_OK;
}
