/* Plans of a cluster, and statistics of its parts. */
#include "attention/latents.h"
#include "cache/cache.h"
#include "cluster/cluster.h"
#include "engine/plan.h"
#include "engine/session_stats.h"
#include "recipe/recipe_check.h"

/* Can n_peer peers divide a session of the model, in its stages? */
static lk_status check_peers(const lk_model *model, const lk_recipe *recipe, int32_t n_peer,
                             lk_err *err) {
    int32_t n_stage = lk_cluster_n_stage(model);
    if (n_peer < 1 || n_peer > LK_MAX_PEERS || n_peer % n_stage)
        return lk_fail(
            err, LK_E_ARG,
            "the number of ranks is %d; it must be 1 to %d, and a multiple of the number of "
            "stages, %d",
            n_peer, LK_MAX_PEERS, n_stage);
    lk_features features = lk_recipe_features(recipe);
    if (n_peer > n_stage) features |= lk_feature_bit(LK_FEATURE_DIVIDED_ROWS);
    if (n_stage > 1) features |= lk_feature_bit(LK_FEATURE_DIVIDED_LAYERS);
    const struct lk_combination_rule *rule = n_peer > 1 ? lk_combination_check(features) : NULL;
    return rule ? lk_fail(err, LK_E_UNSUPPORTED, "%s", rule->reason) : LK_OK;
}

lk_status lk_plan_make_peers(const lk_model *model, const lk_recipe *recipe,
                             const lk_session_opts *opts, int32_t n_peer, lk_plan *out,
                             lk_err *err) {
    lk_status status = check_peers(model, recipe, n_peer, err);
    if (status) return status;
    int32_t n_share = n_peer / lk_cluster_n_stage(model);
    return lk_plan_part(model, recipe, opts, (struct lk_share){0, n_share}, out, err);
}

lk_status lk_plan_exchanges(const lk_model *model, const lk_recipe *recipe, int32_t n_peer,
                            lk_cluster_stats *out, lk_err *err) {
    const struct lk_hparams *hp = &model->net->hp;
    struct lk_cache_shape shape = lk_model_cache_shape(model);
    struct lk_ledger ledger = {0};
    struct lk_cache *cache = NULL;
    uint64_t bytes = 0, others = (uint64_t)n_peer - 1;
    lk_status status = check_peers(model, recipe, n_peer, err);
    if (!status && lk_cluster_n_stage(model) > 1)
        status = lk_fail(err, LK_E_UNSUPPORTED,
                         "exchanges between stages are not planned; use one stage");
    shape.place.share = (struct lk_share){0, n_peer};
    if (!status) status = lk_cache_alloc(&cache, recipe, &shape, &ledger, err);
    if (status) return status;
    *out = (lk_cluster_stats){.n_exchange = n_peer > 1 ? LK_EVAL_EXCHANGES : 0};
    for (int layer = 0; n_peer > 1 && layer < hp->n_layer; layer++) {
        const struct lk_kv *kv = cache->kv[hp->index[layer]];
        if (hp->is_recurrent[layer] || !lk_kv_is_divided(&kv[LK_K])) continue;
        out->n_exchange++;
        bytes += sizeof(float) * (uint64_t)hp->n_head *
                 lk_attn_joined_floats(lk_hparams_heads(hp, layer).d, lk_attn_v_rank(&kv[LK_V]));
    }
    out->bytes = out->bytes_sent = bytes * others;
    lk_cache_free(cache);
    return LK_OK;
}

uint64_t lk_plan_max_peer_tokens(uint64_t n_tok, int32_t n_peer) {
    uint64_t stripes = n_tok / LK_STRIPE, n = (uint64_t)n_peer;
    if (n_peer <= 1) return n_tok;
    return stripes / n * LK_STRIPE + (stripes % n ? LK_STRIPE : n_tok % LK_STRIPE);
}

lk_session_stats lk_session_get_peer_stats(const lk_session *s) { return lk_session_own_stats(s); }

uint64_t lk_session_peer_bytes(lk_session *s, int32_t peer) {
    uint64_t part;
    lk_session_sum_stats(s, peer, &part);
    return part;
}

uint64_t lk_session_max_peer_bytes(lk_session *s) { return lk_session_peer_bytes(s, -1); }
