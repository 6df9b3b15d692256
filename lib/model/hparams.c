/* Reads hyperparameters and rejects models that lowkey does not compute correctly. */
#include "model/hparams.h"

#include "model/gguf_read.h"

#include "gguf.h"

#include <math.h>
#include <string.h>

enum {
    MAX_EMBD = 1 << 17,
    MAX_FF = 1 << 20,
    MAX_HEADS = 1024,
    MAX_D_HEAD = 512,
    MAX_LATENT = 1024
};

/* Reject models that need computations this library does not have. */
static lk_status check_supported(const struct lk_gguf_reader *r, lk_err *err) {
    bool causal = true;
    lk_status status = lk_gguf_read_bool(r, ".attention.causal", LK_OPTIONAL, &causal, err);
    if (status) return status;
    if (!causal)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "the model's attention is not causal; only decoders are supported");
    return LK_OK;
}

static lk_status check_heads(const struct lk_hparams *hp, int32_t d_value, lk_err *err) {
    if (hp->n_head_kv > hp->n_head || hp->n_head % hp->n_head_kv != 0) {
        return lk_fail(err, LK_E_FORMAT, "%d query heads are not a multiple of %d key-value heads",
                       hp->n_head, hp->n_head_kv);
    }
    if (d_value != hp->d_head) {
        return lk_fail(
            err, LK_E_UNSUPPORTED,
            "key heads have %d channels and value heads %d; only equal sizes are supported",
            hp->d_head, d_value);
    }
    if (hp->d_head < 16 || hp->d_head > MAX_D_HEAD || hp->d_head % 16 != 0) {
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "heads have %d channels; multiples of 16 up to %d are supported", hp->d_head,
                       MAX_D_HEAD);
    }
    return LK_OK;
}

/* One number for all layers or, if layers may differ, the largest. */
static lk_status read_count(const struct lk_hparams *hp, const struct lk_gguf_reader *r, bool vary,
                            const char *key, enum lk_need need, int hi, int32_t *out, lk_err *err) {
    int32_t each[LK_MAX_LAYERS] = {0}, max = 0;
    if (!vary) return lk_gguf_read_int(r, key, need, 1, hi, out, err);
    lk_status status =
        lk_gguf_read_layers(r, key, need, 0, hi, hp->n_layer + hp->n_next, each, err);
    for (int i = 0; !status && i < hp->n_layer; i++) max = each[i] > max ? each[i] : max;
    if (status || max > 0) *out = status ? *out : max;
    return !status && max == 0 && lk_gguf_find_key(r, key) >= 0
               ? lk_fail(err, LK_E_FORMAT, "key %s%s is 0 for all layers", r->arch, key)
               : status;
}

static lk_status read_head_counts(struct lk_hparams *hp, const struct lk_gguf_reader *r, bool vary,
                                  lk_err *err) {
    int32_t d_key = 0, d_value = 0;
    lk_status status =
        lk_gguf_read_int(r, ".attention.head_count", LK_REQUIRED, 1, MAX_HEADS, &hp->n_head, err);
    if (status) return status;
    hp->n_head_kv = hp->n_head;
    status = read_count(hp, r, vary, ".attention.head_count_kv", LK_OPTIONAL, MAX_HEADS,
                        &hp->n_head_kv, err);
    if (!status)
        status =
            lk_gguf_read_int(r, ".attention.key_length", LK_OPTIONAL, 1, MAX_EMBD, &d_key, err);
    if (!status)
        status =
            lk_gguf_read_int(r, ".attention.value_length", LK_OPTIONAL, 1, MAX_EMBD, &d_value, err);
    if (status) return status;
    if ((!d_key || !d_value) && hp->n_embd % hp->n_head != 0) {
        return lk_fail(err, LK_E_FORMAT,
                       "the embedding length %d is not a multiple of the %d heads", hp->n_embd,
                       hp->n_head);
    }
    hp->d_head = d_key ? d_key : hp->n_embd / hp->n_head;
    hp->attn_scale = 1.0f / sqrtf((float)hp->d_head);
    return check_heads(hp, d_value ? d_value : hp->n_embd / hp->n_head, err);
}

/* The heads of a model with latent attention: one KV head, whose latents are values. */
static lk_status read_latent_heads(struct lk_hparams *hp, const struct lk_gguf_reader *r,
                                   lk_err *err) {
    int32_t d_key = 0, d_row = 0;
    lk_status status =
        lk_gguf_read_int(r, ".attention.head_count", LK_REQUIRED, 1, MAX_HEADS, &hp->n_head, err);
    if (!status && lk_gguf_find_key(r, ".attention.key_length_mla") < 0)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "the file has no key %s.attention.key_length_mla, because an old program "
                       "wrote it; convert the model again",
                       r->arch);
    if (!status)
        status = lk_gguf_read_int(r, ".attention.kv_lora_rank", LK_REQUIRED, 16, MAX_LATENT,
                                  &hp->d_head, err);
    if (!status)
        status =
            lk_gguf_read_int(r, ".attention.key_length", LK_REQUIRED, 1, MAX_EMBD, &d_row, err);
    if (!status)
        status =
            lk_gguf_read_int(r, ".attention.key_length_mla", LK_REQUIRED, 1, MAX_EMBD, &d_key, err);
    if (!status)
        status = lk_gguf_read_int(r, ".attention.value_length_mla", LK_REQUIRED, 1, MAX_EMBD,
                                  &hp->d_value, err);
    if (status) return status;
    hp->n_head_kv = 1;
    hp->d_rope = d_row - hp->d_head;
    hp->d_nope = d_key - hp->d_rope;
    bool fits = hp->d_head % 16 == 0 && hp->d_rope >= 16 && hp->d_rope <= MAX_D_HEAD &&
                hp->d_rope % 16 == 0 && hp->d_nope >= 1;
    if (fits) return LK_OK;
    return lk_fail(err, LK_E_UNSUPPORTED,
                   "latents of %d channels in rows of %d, for keys of %d channels, are not "
                   "supported: latents and rotary parts have multiples of 16, rotary parts at most "
                   "%d",
                   hp->d_head, d_row, d_key, MAX_D_HEAD);
}

lk_status lk_hparams_read(struct lk_hparams *hp, const struct lk_gguf_reader *r, bool has_latents,
                          bool vary, struct lk_ledger *ledger, lk_err *err) {
    lk_status status = check_supported(r, err);
    if (!status)
        status =
            lk_gguf_read_int(r, ".block_count", LK_REQUIRED, 1, LK_MAX_LAYERS, &hp->n_layer, err);
    if (!status)
        status = lk_gguf_read_int(r, ".nextn_predict_layers", LK_OPTIONAL, 0, LK_MAX_LAYERS,
                                  &hp->n_next, err);
    if (!status && hp->n_next >= hp->n_layer)
        return lk_fail(err, LK_E_FORMAT, "all %d layers predict further tokens", hp->n_layer);
    hp->n_layer -= hp->n_next;
    if (!status)
        status =
            lk_gguf_read_int(r, ".embedding_length", LK_REQUIRED, 1, MAX_EMBD, &hp->n_embd, err);
    /* A mixture of experts may have no other network. */
    enum lk_need need = lk_gguf_find_key(r, ".expert_count") < 0 ? LK_REQUIRED : LK_OPTIONAL;
    if (!status)
        status = read_count(hp, r, vary, ".feed_forward_length", need, MAX_FF, &hp->n_ff, err);
    if (!status)
        status = lk_gguf_read_int(r, ".pooling_type", LK_OPTIONAL, 0, INT32_MAX, &hp->pooling, err);
    if (!status)
        status = lk_gguf_read_int(r, ".context_length", LK_REQUIRED, 1, INT32_MAX, &hp->n_ctx_train,
                                  err);
    if (!status)
        status = has_latents ? read_latent_heads(hp, r, err) : read_head_counts(hp, r, vary, err);
    hp->n_head_kv_swa = hp->n_head_kv;
    hp->d_head_swa = hp->d_head;
    if (status) return status;
    hp->rope_mode = -1;
    hp->yarn_beta_fast = 32.0f;
    hp->yarn_beta_slow = 1.0f;
    hp->embd_scale = hp->residual_scale = hp->logit_scale = 1.0f;
    size_t n_layer = (size_t)(hp->n_layer + hp->n_next);
    hp->is_swa = lk_alloc(ledger, LK_FOR_OTHER, n_layer);
    hp->no_rope = lk_alloc(ledger, LK_FOR_OTHER, n_layer);
    hp->is_recurrent = lk_alloc(ledger, LK_FOR_OTHER, n_layer);
    hp->index = lk_alloc(ledger, LK_FOR_OTHER, n_layer * sizeof *hp->index);
    if (!hp->is_swa || !hp->no_rope || !hp->is_recurrent || !hp->index)
        return lk_fail(err, LK_E_NOMEM, "not enough memory for the hyperparameters");
    return LK_OK;
}

void lk_hparams_free(struct lk_hparams *hp, struct lk_ledger *ledger) {
    size_t n_layer = (size_t)(hp->n_layer + hp->n_next);
    lk_release(ledger, LK_FOR_OTHER, hp->is_swa, n_layer);
    lk_release(ledger, LK_FOR_OTHER, hp->no_rope, n_layer);
    lk_release(ledger, LK_FOR_OTHER, hp->is_recurrent, n_layer);
    lk_release(ledger, LK_FOR_OTHER, hp->index, n_layer * sizeof *hp->index);
}

void lk_hparams_number_layers(struct lk_hparams *hp) {
    int32_t n[2] = {0, 0};
    for (int i = 0; i < hp->n_layer - hp->n_shared; i++)
        hp->index[i] = n[hp->is_recurrent[i] != 0]++;
    hp->n_recurrent = hp->held_recurrent[1] = n[1];
    for (int i = hp->n_layer - hp->n_shared, from; i < hp->n_layer; i++) {
        for (from = hp->n_layer - hp->n_shared - 1; hp->is_swa[from] != hp->is_swa[i]; from--) {}
        hp->index[i] = hp->index[from];
    }
}

/* YaRN's attention factor follows from the scale; with log_mul, from the ratio of two of them.
 * ggml multiplies by 1 + 0.1 ln(1/scale), so that part is divided out here. Without log_mul, the
 * rest differs from 1 only if the context is not extended. */
static void set_yarn_factors(struct lk_rope_args *rope, float log_mul) {
    float factor = 1.0f / rope->scale, longer = factor <= 1.0f ? 0 : 0.1f * logf(factor);
    float magnitude = (1.0f + longer) / (log_mul == 0 ? 1.0f : 1.0f + longer * log_mul);
    rope->ext_factor = 1.0f;
    rope->attn_factor *= magnitude / (1.0f + 0.1f * logf(factor));
}

static lk_status check_rope(const struct lk_hparams *hp, float factor, lk_err *err) {
    if (hp->n_rot > hp->d_head || hp->n_rot % 2 != 0) {
        return lk_fail(
            err, LK_E_FORMAT,
            "RoPE over %d of %d channels is not possible; the number must be even and at most "
            "the head size",
            hp->n_rot, hp->d_head);
    }
    if (!(hp->rope[0].base > 0))
        return lk_fail(err, LK_E_FORMAT, "the rope base is %g, expected a positive number",
                       hp->rope[0].base);
    if (!(factor >= 0))
        return lk_fail(err, LK_E_FORMAT, "the rope scaling factor is %g, expected at least 0",
                       factor);
    return LK_OK;
}

static lk_status read_yarn_betas(struct lk_hparams *hp, const struct lk_gguf_reader *r,
                                 lk_err *err) {
    lk_status status =
        lk_hparams_read_scale(r, ".rope.scaling.yarn_beta_fast", &hp->yarn_beta_fast, err);
    return status
               ? status
               : lk_hparams_read_scale(r, ".rope.scaling.yarn_beta_slow", &hp->yarn_beta_slow, err);
}

lk_status lk_hparams_read_rope(struct lk_hparams *hp, const struct lk_gguf_reader *r, int mode,
                               lk_err *err) {
    const char *kind = "linear";
    float factor = 0, log_mul = 0; /* absent or 0: no scaling */
    struct lk_rope_args *rope = &hp->rope[0];
    *rope = (struct lk_rope_args){.base = 10000.0f, .scale = 1.0f, .attn_factor = 1.0f};
    hp->rope_mode = mode;
    hp->n_rot = hp->d_head;
    hp->n_ctx_orig = hp->n_ctx_train;
    lk_status status =
        lk_gguf_read_int(r, ".rope.dimension_count", LK_OPTIONAL, 2, MAX_D_HEAD, &hp->n_rot, err);
    if (!status) status = lk_gguf_read_float(r, ".rope.freq_base", LK_OPTIONAL, &rope->base, err);
    if (!status)
        status = lk_gguf_read_int(r, ".rope.scaling.original_context_length", LK_OPTIONAL, 1,
                                  INT32_MAX, &hp->n_ctx_orig, err);
    if (!status) status = lk_gguf_read_str(r, ".rope.scaling.type", LK_OPTIONAL, &kind, err);
    /* The key's old name, then the current one. */
    if (!status) status = lk_gguf_read_float(r, ".rope.scale_linear", LK_OPTIONAL, &factor, err);
    if (!status) status = lk_gguf_read_float(r, ".rope.scaling.factor", LK_OPTIONAL, &factor, err);
    if (!status)
        status = lk_gguf_read_float(r, ".rope.scaling.attn_factor", LK_OPTIONAL, &rope->attn_factor,
                                    err);
    if (!status)
        status =
            lk_gguf_read_float(r, ".rope.scaling.yarn_log_multiplier", LK_OPTIONAL, &log_mul, err);
    if (!status) status = read_yarn_betas(hp, r, err);
    if (!status) status = check_rope(hp, factor, err);
    if (status) return status;
    bool none = strcmp(kind, "none") == 0, yarn = strcmp(kind, "yarn") == 0;
    if (!none && !yarn && strcmp(kind, "linear") != 0 && strcmp(kind, "longrope") != 0)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "rope scaling \"%.32s\" is not supported; supported: none, linear, yarn, "
                       "longrope",
                       kind);
    hp->n_rot_swa = hp->n_rot;
    if (factor != 0 && !none) rope->scale = 1.0f / factor;
    if (yarn) set_yarn_factors(rope, log_mul);
    hp->rope[1] = *rope;
    return LK_OK;
}

/* Which layers use the sliding window: either a period p (the last of each p layers has full
 * attention) or one flag per layer. */
static lk_status read_window_pattern(struct lk_hparams *hp, const struct lk_gguf_reader *r,
                                     int32_t period, lk_err *err) {
    static const char key[] = ".attention.sliding_window_pattern";
    int64_t id = lk_gguf_find_key(r, key);
    if (id >= 0 && gguf_get_kv_type(r->gguf, id) == GGUF_TYPE_ARRAY) {
        enum gguf_type type = gguf_get_arr_type(r->gguf, id);
        bool wide = type == GGUF_TYPE_UINT32 || type == GGUF_TYPE_INT32;
        if ((!wide && type != GGUF_TYPE_BOOL) ||
            gguf_get_arr_n(r->gguf, id) != (size_t)hp->n_layer) {
            return lk_fail(err, LK_E_FORMAT, "key %s is not a list of %d flags",
                           gguf_get_key(r->gguf, id), hp->n_layer);
        }
        const void *data = gguf_get_arr_data(r->gguf, id);
        for (int i = 0; i < hp->n_layer; i++) {
            hp->is_swa[i] =
                wide ? ((const uint32_t *)data)[i] != 0 : ((const uint8_t *)data)[i] != 0;
        }
        return LK_OK;
    }
    lk_status status = lk_gguf_read_int(r, key, LK_OPTIONAL, 0, INT32_MAX, &period, err);
    for (int i = 0; !status && i < hp->n_layer; i++)
        hp->is_swa[i] = period == 0 || i % period < period - 1;
    return status;
}

lk_status lk_hparams_read_window(struct lk_hparams *hp, const struct lk_gguf_reader *r, int period,
                                 lk_err *err) {
    float *base = &hp->rope[1].base;
    lk_status status = lk_gguf_read_int(r, ".attention.sliding_window", LK_OPTIONAL, 0, INT32_MAX,
                                        &hp->n_swa, err);
    if (status || hp->n_swa == 0) return status;
    status = lk_gguf_read_float(r, ".rope.freq_base_swa", LK_OPTIONAL, base, err);
    if (!status && !(*base > 0))
        return lk_fail(err, LK_E_FORMAT,
                       "the rope base of sliding-window layers is %g, expected a positive "
                       "number",
                       *base);
    return status ? status : read_window_pattern(hp, r, period, err);
}

lk_status lk_hparams_read_scale(const struct lk_gguf_reader *r, const char *key, float *out,
                                lk_err *err) {
    float scale = 0;
    lk_status status = lk_gguf_read_float(r, key, LK_OPTIONAL, &scale, err);
    if (!status && scale < 0)
        return lk_fail(err, LK_E_FORMAT, "key %s%s is %g, expected a positive number", r->arch, key,
                       scale);
    if (!status && scale > 0) *out = scale;
    return status;
}

static lk_status read_eps(struct lk_hparams *hp, const struct lk_gguf_reader *r, const char *key,
                          lk_err *err) {
    lk_status status = lk_gguf_read_float(r, key, LK_REQUIRED, &hp->norm_eps, err);
    if (!status && !(hp->norm_eps >= 0)) /* ggml asserts on it */
        return lk_fail(err, LK_E_FORMAT, "key %s%s is negative", r->arch, key);
    return status;
}

lk_status lk_hparams_read_rms_eps(struct lk_hparams *hp, const struct lk_gguf_reader *r,
                                  lk_err *err) {
    return read_eps(hp, r, ".attention.layer_norm_rms_epsilon", err);
}

lk_status lk_hparams_read_layer_norm_eps(struct lk_hparams *hp, const struct lk_gguf_reader *r,
                                         lk_err *err) {
    hp->layer_norms = true;
    return read_eps(hp, r, ".attention.layer_norm_epsilon", err);
}
