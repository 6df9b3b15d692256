/* Reads adapters in llama.cpp's form, and converts their factors to half floats. */
#include "model/lora.h"

#include "base/hash.h"
#include "model/gguf_read.h"

#include "ggml.h"
#include "gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A weight that can be adapted, by its place in both lists of a layer. */
enum { N_SLOT = LK_N_ADAPTED + LK_N_FFN_ADAPTED };

static const char *slot_name(int slot) {
    static const char *const ffn[LK_N_FFN_ADAPTED] = {"ffn_gate", "ffn_up", "ffn_down"};
    return slot < LK_N_ADAPTED ? lk_adapted_name((enum lk_adapted)slot) : ffn[slot - LK_N_ADAPTED];
}

static void slot_shape(const struct lk_hparams *hp, int slot, int64_t *n_in, int64_t *n_out) {
    if (slot < LK_N_ADAPTED) {
        int64_t n_q = (int64_t)hp->n_head * hp->d_head, n_kv = (int64_t)hp->n_head_kv * hp->d_head;
        *n_in = slot == LK_ADAPT_O ? n_q : hp->n_embd;
        *n_out = slot == LK_ADAPT_O ? hp->n_embd : slot == LK_ADAPT_Q ? n_q : n_kv;
        return;
    }
    bool down = slot - LK_N_ADAPTED == LK_ADAPT_DOWN;
    *n_in = down ? hp->n_ff : hp->n_embd;
    *n_out = down ? hp->n_embd : hp->n_ff;
}

static struct lk_adapter *slot_of(const struct lk_lora *lora, int layer, int slot) {
    return slot < LK_N_ADAPTED ? &lora->adapter[layer * LK_N_ADAPTED + slot]
                               : &lora->ffn[layer * LK_N_FFN_ADAPTED + slot - LK_N_ADAPTED];
}

/* The tensors of each slot of each layer, as indices into the file: factors a and b; -1: none. */
typedef int64_t lora_factors[2];

/* The place of a tensor among them. False: it has another name. */
static bool find_place(const char *name, int n_layer, int *slot, int *part) {
    char exact[64];
    int layer;
    if (sscanf(name, "blk.%4d.", &layer) != 1 || layer < 0 || layer >= n_layer) return false;
    for (int i = 0; i < 2 * N_SLOT; i++) {
        snprintf(exact, sizeof exact, "blk.%d.%s.weight.lora_%c", layer, slot_name(i / 2),
                 "ab"[i % 2]);
        if (strcmp(name, exact) != 0) continue;
        *slot = layer * N_SLOT + i / 2;
        *part = i % 2;
        return true;
    }
    return false;
}

static size_t n_values(const struct gguf_context *gguf, int64_t id) {
    const int64_t *ne = gguf_get_tensor_ne(gguf, id);
    return (size_t)(ne[0] * ne[1]);
}

/* ---- checks ---- */

static lk_status check_info(const struct lk_gguf_reader *r, float *alpha, lk_err *err) {
    const char *type = "", *kind = "";
    *alpha = 0;
    lk_status status = lk_gguf_read_str(r, "general.type", LK_OPTIONAL, &type, err);
    if (!status) status = lk_gguf_read_str(r, "adapter.type", LK_OPTIONAL, &kind, err);
    if (!status) status = lk_gguf_read_float(r, "adapter.lora.alpha", LK_OPTIONAL, alpha, err);
    if (!status && (strcmp(type, "adapter") != 0 || strcmp(kind, "lora") != 0))
        status = lk_fail(err, LK_E_FORMAT,
                         "it is not a LoRA adapter in llama.cpp's form (general.type 'adapter', "
                         "adapter.type 'lora')");
    return status;
}

/* Both factors of a slot, or neither. *n counts their values. */
static lk_status check_slot(const struct gguf_context *gguf, const struct lk_hparams *hp, int slot,
                            const lora_factors id, size_t *n, lk_err *err) {
    int64_t a = id[0], b = id[1], n_in, n_out;
    if (a < 0 && b < 0) return LK_OK;
    if (a < 0 || b < 0)
        return lk_fail(err, LK_E_FORMAT, "it has %s but not the other factor",
                       gguf_get_tensor_name(gguf, a < 0 ? b : a));
    const int64_t *ne_a = gguf_get_tensor_ne(gguf, a), *ne_b = gguf_get_tensor_ne(gguf, b);
    slot_shape(hp, slot, &n_in, &n_out);
    if (ne_a[0] != n_in || ne_b[0] != ne_a[1] || ne_b[1] != n_out || ne_a[2] != 1 || ne_b[2] != 1 ||
        ne_a[1] > LK_MAX_ADAPTER_RANK)
        return lk_fail(err, LK_E_FORMAT,
                       "%s is [%lld, %lld], and its other factor [%lld, %lld]; this model's weight "
                       "has %lld inputs and %lld outputs",
                       gguf_get_tensor_name(gguf, a), (long long)ne_a[0], (long long)ne_a[1],
                       (long long)ne_b[0], (long long)ne_b[1], (long long)n_in, (long long)n_out);
    *n += n_values(gguf, a) + n_values(gguf, b);
    return LK_OK;
}

/* Find the factors of all slots [n_layer * N_SLOT] and check them. *n counts their values. */
static lk_status check_tensors(const struct gguf_context *gguf, const struct lk_hparams *hp,
                               lora_factors *id, size_t *n, lk_err *err) {
    int n_slot = hp->n_layer * N_SLOT, slot, part;
    int64_t n_tensor = gguf_get_n_tensors(gguf);
    if (n_tensor > 2 * n_slot)
        return lk_fail(err, LK_E_FORMAT, "it has %lld tensors; an adapter of this model has %d",
                       (long long)n_tensor, 2 * n_slot);
    for (int i = 0; i < n_slot; i++) id[i][0] = id[i][1] = -1;
    for (int64_t i = 0; i < n_tensor; i++) {
        const char *name = gguf_get_tensor_name(gguf, i);
        if (!find_place(name, hp->n_layer, &slot, &part))
            return lk_fail(err, LK_E_UNSUPPORTED,
                           "it has %s, but only weights of attention and dense feed-forward layers "
                           "can be changed",
                           name);
        id[slot][part] = i;
    }
    *n = 0;
    lk_status status = LK_OK;
    for (int i = 0; !status && i < n_slot; i++)
        status = check_slot(gguf, hp, i % N_SLOT, id[i], n, err);
    if (!status && *n == 0) status = lk_fail(err, LK_E_FORMAT, "it changes no weight");
    return status;
}

/* ---- reading ---- */

static bool read_values(const struct gguf_context *gguf, const uint8_t *data, int64_t id,
                        float *out, float *largest) {
    enum ggml_type type = gguf_get_tensor_type(gguf, id);
    const void *x = data + gguf_get_data_offset(gguf) + gguf_get_tensor_offset(gguf, id);
    size_t n = n_values(gguf, id);
    if (type == GGML_TYPE_F32)
        memcpy(out, x, n * sizeof *out);
    else if (ggml_get_type_traits(type)->to_float)
        ggml_get_type_traits(type)->to_float(x, out, (int64_t)n);
    else
        return false;
    *largest = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(out[i])) return false;
        *largest = fmaxf(*largest, fabsf(out[i]));
    }
    return true;
}

/* Read both factors into half floats at `to`. The scale is divided between them by a power of two,
 * so that the largest values of both are about the same and few become subnormal. */
static lk_status read_slot(struct lk_adapter *out, const struct gguf_context *gguf,
                           const uint8_t *data, const lora_factors id, float scale, float alpha,
                           float *scratch, uint16_t **to, lk_err *err) {
    int64_t rank = gguf_get_tensor_ne(gguf, id[0])[1];
    float largest[2], factor[2];
    for (int i = 0; i < 2; i++)
        if (!read_values(gguf, data, id[i], scratch, &largest[i]))
            return lk_fail(err, LK_E_FORMAT, "%s has values that are not finite, or another type",
                           gguf_get_tensor_name(gguf, id[i]));
    if (alpha != 0) scale *= alpha / (float)rank;
    float b_max = largest[1] * fabsf(scale);
    int shift = b_max > 0 && largest[0] > 0 ? (int)floorf(log2f(largest[0] / b_max) / 2) : 0;
    factor[0] = ldexpf(1, -shift);
    factor[1] = ldexpf(scale, shift);
    const float max_half = 65504;
    for (int i = 0; i < 2; i++) {
        size_t n = n_values(gguf, id[i]);
        if (largest[i] * fabsf(factor[i]) > max_half)
            return lk_fail(err, LK_E_FORMAT, "%s has values that are too large",
                           gguf_get_tensor_name(gguf, id[i]));
        read_values(gguf, data, id[i], scratch, &largest[i]);
        for (size_t k = 0; k < n; k++) scratch[k] *= factor[i];
        ggml_fp32_to_fp16_row(scratch, (ggml_fp16_t *)*to, (int64_t)n);
        *(i == 0 ? &out->a : &out->b) = *to;
        *to += n;
    }
    out->rank = (int32_t)rank;
    return LK_OK;
}

static lk_status alloc_lora(struct lk_lora *lora, size_t n_data, int n_layer, lk_err *err) {
    lora->n_layer = (size_t)n_layer;
    lora->n_data = n_data;
    lora->adapter =
        lk_alloc(lora->ledger, LK_FOR_OTHER, lora->n_layer * LK_N_ADAPTED * sizeof *lora->adapter);
    lora->ffn =
        lk_alloc(lora->ledger, LK_FOR_OTHER, lora->n_layer * LK_N_FFN_ADAPTED * sizeof *lora->ffn);
    lora->data = lk_alloc(lora->ledger, LK_FOR_OTHER, n_data * sizeof *lora->data);
    if (lora->adapter && lora->ffn && lora->data) return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "not enough memory for %zu values", n_data);
}

static lk_status read_slots(struct lk_lora *lora, const struct lk_gguf_reader *r,
                            const struct lk_mapping *file, float scale, const struct lk_hparams *hp,
                            lora_factors *id, lk_err *err) {
    float alpha;
    size_t n;
    lk_status status = check_info(r, &alpha, err);
    if (!status) status = check_tensors(r->gguf, hp, id, &n, err);
    if (!status) status = alloc_lora(lora, n, hp->n_layer, err);
    if (status) return status;
    float *scratch = lk_alloc(lora->ledger, LK_FOR_OTHER, n * sizeof *scratch);
    if (!scratch) return lk_fail(err, LK_E_NOMEM, "not enough memory for %zu values", n);
    uint16_t *to = lora->data;
    for (int i = 0; !status && i < hp->n_layer * N_SLOT; i++)
        if (id[i][0] >= 0)
            status = read_slot(slot_of(lora, i / N_SLOT, i % N_SLOT), r->gguf, file->data, id[i],
                               scale, alpha, scratch, &to, err);
    lk_release(lora->ledger, LK_FOR_OTHER, scratch, n * sizeof *scratch);
    lora->fingerprint = lk_fnv1a(LK_FNV1A_INIT, lora->data, n * sizeof *lora->data);
    return status;
}

static lk_status read_lora(struct lk_lora *lora, const struct lk_gguf_reader *r,
                           const struct lk_mapping *file, float scale, const struct lk_hparams *hp,
                           lk_err *err) {
    size_t size = (size_t)hp->n_layer * N_SLOT * sizeof(lora_factors);
    lora_factors *id = lk_alloc(lora->ledger, LK_FOR_OTHER, size);
    if (!id) return lk_fail(err, LK_E_NOMEM, "not enough memory for the adapter");
    lk_status status = read_slots(lora, r, file, scale, hp, id, err);
    lk_release(lora->ledger, LK_FOR_OTHER, id, size);
    return status;
}

lk_status lk_lora_open(struct lk_lora **out, const char *path, float scale,
                       const struct lk_hparams *hp, struct lk_ledger *ledger, lk_err *err) {
    struct lk_gguf_reader reader = {0};
    struct lk_mapping file = {0};
    lk_err why = {0};
    struct lk_lora *lora = lk_alloc(ledger, LK_FOR_OTHER, sizeof *lora);
    if (!lora) return lk_fail(err, LK_E_NOMEM, "not enough memory for the adapter");
    lora->ledger = ledger;
    lk_status status = lk_gguf_open(&file, &reader, path, ledger, &why);
    if (!status) status = read_lora(lora, &reader, &file, scale, hp, &why);
    if (reader.gguf) gguf_free(reader.gguf);
    lk_mapping_close(&file);
    if (status) {
        lk_lora_free(lora);
        return strstr(why.msg, path) ? lk_fail(err, status, "%s", why.msg)
                                     : lk_fail(err, status, "adapter %.300s: %s", path, why.msg);
    }
    *out = lora;
    return LK_OK;
}

void lk_lora_free(struct lk_lora *lora) {
    if (!lora) return;
    struct lk_ledger *ledger = lora->ledger;
    lk_release(ledger, LK_FOR_OTHER, lora->adapter,
               lora->adapter ? lora->n_layer * LK_N_ADAPTED * sizeof *lora->adapter : 0);
    lk_release(ledger, LK_FOR_OTHER, lora->ffn,
               lora->ffn ? lora->n_layer * LK_N_FFN_ADAPTED * sizeof *lora->ffn : 0);
    lk_release(ledger, LK_FOR_OTHER, lora->data,
               lora->data ? lora->n_data * sizeof *lora->data : 0);
    lk_release(ledger, LK_FOR_OTHER, lora, sizeof *lora);
}
