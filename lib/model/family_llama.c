/* Llama 2 and 3, Mistral, SmolLM and their like. */
#include "model/blocks.h"
#include "model/family.h"

/* Llama 3.1 divides each rotation frequency by a factor of its own, the same in all layers. */
static lk_status bind_rope_factors(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    return lk_bind(ld, &net->rope_factors, "rope_freqs.weight", -1, LK_USE_VECTOR, LK_OPTIONAL,
                   net->hp.n_rot / 2, 1, err);
}

static lk_status load(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    lk_status status = lk_hparams_read_rope(&net->hp, &ld->reader, GGML_ROPE_TYPE_NORMAL, err);
    if (status == LK_OK) status = lk_read_rms_eps(net, ld, err);
    if (status == LK_OK) status = lk_bind_ends(net, ld, false, err);
    if (status == LK_OK) status = bind_rope_factors(net, ld, err);
    return status == LK_OK ? lk_bind_gated_layers(net, ld, err) : status;
}

const struct lk_family lk_family_llama = {"llama",    load,         lk_embed_tokens,
                                          lk_pre_rms, lk_post_silu, lk_head_rms};
