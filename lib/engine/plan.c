/* Predicted memory of a session, by the block arithmetic of the cache itself, without running. */
#include "engine/plan.h"

#include "attention/latents.h"
#include "device/device.h"
#include "engine/absorb.h"
#include "engine/device_rows.h"
#include "engine/model.h"
#include "engine/pass.h"
#include "engine/pass_attn.h"
#include "engine/prefill_state.h"
#include "engine/recurrent.h"
#include "lowkey_serve.h"
#include "model/blocks.h"
#include "model/experts.h"

/* Bytes of the sums that a recipe with `absorb` keeps of evicted rows. */
static lk_status estimate_absorb(const lk_model *model, const lk_recipe *recipe,
                                 struct lk_absorb_bytes *bytes, lk_err *err) {
    *bytes = (struct lk_absorb_bytes){0};
    if (!recipe->absorbs) return LK_OK;
    if (!model->sidecar)
        return lk_fail(err, LK_E_ARG,
                       "'absorb less' needs a sidecar with networks for this model; `lowkey train "
                       "less` makes one");
    return lk_absorb_estimate(model->sidecar, model->net->hp.n_head, bytes, err);
}

/* Tensors that exist at the same time in a layer's graph. */
enum {
    N_HIDDEN = 4,      /* [n_embd] x, its norm, what attention and what the feed-forward adds */
    N_FFN = 3,         /* [n_ff] gate, up, and their product */
    N_QUERY = 2,       /* [n_head][d_query] before and after RoPE */
    N_ROW = 2,         /* K and V, of the widest layer */
    N_LAYER_INPUT = 2, /* [n_embd_layer] what a layer reads of the token, and its gate */
    N_VALUE = 2,       /* [n_head][d_value] latent attention: before and after W_V */
    N_LOGITS = 2       /* [n_vocab] of the session, and of the graph */
};

/* Floats of the activations of one token in a layer. */
static uint64_t layer_floats(const struct lk_hparams *hp) {
    uint64_t n_head = (uint64_t)hp->n_head;
    uint64_t ffn = hp->n_expert ? lk_experts_width(hp) : (uint64_t)N_FFN * hp->n_ff;
    int32_t d_query = lk_hparams_d_query(hp);
    if (hp->d_head_swa > d_query) d_query = hp->d_head_swa;
    uint64_t heads =
        N_QUERY * n_head * d_query + N_ROW * (uint64_t)(lk_hparams_max_width(hp) + hp->d_rope);
    if (hp->d_rope > 0) /* queries in the latents' domain, from their two parts, and values */
        heads += n_head * (hp->d_head + hp->d_nope + hp->d_rope + N_VALUE * hp->d_value);
    return (uint64_t)N_HIDDEN * hp->n_embd + ffn + heads +
           (uint64_t)N_LAYER_INPUT * hp->n_embd_layer;
}

/* Does a prompt attend on the card with the weights? */
static bool prompt_is_there(const lk_model *model, const struct lk_device *rows,
                            const struct lk_cache_needs *needs) {
    return model->net->device && !model->prompt_lack && lk_net_has_all(model->net) &&
           !needs->evicts && lk_model_is_card(model, rows);
}

lk_status lk_plan_part(const lk_model *model, const lk_recipe *recipe, const lk_session_opts *opts,
                       struct lk_share share, lk_plan *out, lk_err *err) {
    const struct lk_hparams *hp = &model->net->hp;
    int32_t n_ctx = opts && opts->n_ctx ? opts->n_ctx : hp->n_ctx_train;
    if (n_ctx < 1 || n_ctx > LK_MAX_CTX)
        return lk_fail(err, LK_E_ARG, "the context length is %d; it must be 1 to %d", n_ctx,
                       LK_MAX_CTX);
    uint64_t n_tok = (uint64_t)n_ctx;
    bool chunked = recipe->eager || (opts && opts->chunked_prefill);
    struct lk_cache_shape shape = lk_model_cache_shape(model);
    shape.place.share = share;
    shape.device = model->cache_device;
    struct lk_absorb_bytes sums;
    struct lk_cache_needs needs;
    lk_status status = LK_OK;
    if (opts && opts->device) /* opened once, and kept by the model */
        status = lk_model_device((struct lk_model *)model, opts->device, &shape.device, err);
    if (!status) status = lk_cache_estimate(recipe, &shape, n_ctx, &needs, err);
    if (!status) status = estimate_absorb(model, recipe, &sums, err);
    if (status) return status;
    if (shape.device && shape.device->uses_host) sums.there = sums.networks_there = 0;
    uint64_t there = lk_recurrent_there_bytes(model->net),
             cache = needs.cache + sums.states + lk_recurrent_ram_bytes(model->net) + there;

    uint64_t logits = N_LOGITS * (uint64_t)hp->n_vocab * sizeof(float);
    uint64_t attn = sizeof(float) *
                    (lk_pass_partial_floats(hp, needs.width.latent, LK_EVAL_MAX, model->n_thread) +
                     lk_attn_scratch_floats(needs.width.part) * model->n_thread);
    if (share.n > 1) /* joined partials of this process, gathered ones of all */
        attn += sizeof(float) * LK_EVAL_MAX * hp->n_head * (1 + (uint64_t)share.n) *
                lk_attn_joined_floats(hp->d_head, needs.width.latent);
    attn += sizeof(float) * lk_pass_read_floats(recipe, n_ctx, hp) * model->n_thread;
    uint64_t chunk = n_tok < LK_EVAL_MAX ? n_tok : LK_EVAL_MAX;
    uint64_t activations = chunk * layer_floats(hp) * sizeof(float) +
                           lk_linear_scratch_bytes(model->net, (int64_t)chunk);
    bool card = !chunked && prompt_is_there(model, shape.device, &needs);
    size_t n_replay = 0;
    if (!chunked) status = lk_replay_count(model, recipe, n_tok, &n_replay, err);
    if (status) return status;
    uint64_t exact = chunked ? chunk * lk_cache_f16_bytes(&shape, 1)
                             : lk_prefill_bytes(model->net, card, n_tok, n_replay);
    uint64_t select = chunked ? 0 : needs.evict_scratch.attn_scores + needs.evict_scratch.ranked;

    uint64_t sidecar = lk_model_sidecar_bytes(model, recipe, needs.latents);
    *out = (lk_plan){.n_tok = n_tok,
                     .cache_bytes = cache,
                     .f16_bytes = lk_cache_f16_bytes(&shape, n_ctx),
                     .weight_bytes = model->net->weight_bytes - model->net->adapter_bytes + sidecar,
                     .scratch_bytes = logits + attn + activations + needs.scratch,
                     .sidecar_bytes = sidecar,
                     .derived_bytes = needs.derived,
                     .device_cache_bytes = needs.device + there,
                     .device_scratch_bytes =
                         lk_pass_device_bytes(model, &shape, &needs, sums.there, chunk),
                     .device_shared_bytes = needs.device_shared};
    if (shape.device) out->device_shared_bytes += sums.networks_there;
    if (model->net->device)
        out->device_bytes = model->net->device_bytes + activations +
                            (card ? lk_prefill_card_bytes(model->net, n_tok) : 0);
    out->peak_bytes =
        out->weight_bytes + cache - out->device_cache_bytes + out->scratch_bytes + exact + select;
    out->bits_per_value = 16.0 * cache / out->f16_bytes;
    return LK_OK;
}

lk_status lk_plan_make(const lk_model *model, const lk_recipe *recipe, const lk_session_opts *opts,
                       lk_plan *out, lk_err *err) {
    return lk_plan_part(model, recipe, opts, model->place.share, out, err);
}

uint64_t lk_plan_bytes(const lk_plan *plan, uint64_t n_session) {
    return plan->sidecar_bytes + n_session * (plan->cache_bytes + plan->derived_bytes);
}
