/* Finds and checks the adapters of a sidecar. */
#include "engine/adapters.h"

#include <stdio.h>
#include <string.h>

int32_t lk_adapter_inputs(const struct lk_hparams *hp, enum lk_adapted which) {
    return which == LK_ADAPT_O ? hp->n_head * hp->d_head : hp->n_embd;
}

int32_t lk_adapter_outputs(const struct lk_hparams *hp, enum lk_adapted which) {
    if (which == LK_ADAPT_O) return hp->n_embd;
    return (which == LK_ADAPT_Q ? hp->n_head : hp->n_head_kv) * hp->d_head;
}

void lk_adapter_tensor_name(char name[64], int layer, enum lk_adapted which, char part) {
    snprintf(name, 64, "blk.%d.%s.weight.lora_%c", layer, lk_adapted_name(which), part);
}

static size_t adapters_bytes(const struct lk_hparams *hp) {
    return (size_t)hp->n_layer * LK_N_ADAPTED * sizeof(struct lk_adapter);
}

static const struct lk_sidecar_tensor *find_part(const struct lk_sidecar *s, int layer,
                                                 enum lk_adapted which, char part) {
    char name[64];
    lk_adapter_tensor_name(name, layer, which, part);
    for (size_t i = 0; i < s->n_tensor; i++)
        if (strcmp(s->tensor[i].name, name) == 0) return &s->tensor[i];
    return NULL;
}

static lk_status check_part(const struct lk_sidecar_tensor *t, int32_t ne0, int32_t ne1,
                            lk_err *err) {
    if (t->type == LK_SIDECAR_F16 && t->ne[0] == ne0 && t->ne[1] == ne1 && t->ne[2] == 1)
        return LK_OK;
    return lk_fail(err, LK_E_FORMAT,
                   "tensor %s of the sidecar is [%d, %d, %d], expected [%d, %d, 1] of f16", t->name,
                   t->ne[0], t->ne[1], t->ne[2], ne0, ne1);
}

/* The adapter of one weight; *n_found counts its tensors. */
static lk_status read_adapter(const struct lk_sidecar *s, const struct lk_hparams *hp, int layer,
                              enum lk_adapted which, struct lk_adapter *out, size_t *n_found,
                              lk_err *err) {
    const struct lk_sidecar_tensor *a = find_part(s, layer, which, 'a'),
                                   *b = find_part(s, layer, which, 'b');
    if (!a && !b) return LK_OK;
    if (!a || !b)
        return lk_fail(err, LK_E_FORMAT, "the sidecar has %s but not the other factor",
                       a ? a->name : b->name);
    int32_t n_in = lk_adapter_inputs(hp, which), n_out = lk_adapter_outputs(hp, which),
            rank = a->ne[1], max = n_in < n_out ? n_in : n_out;
    if (max > LK_MAX_ADAPTER_RANK) max = LK_MAX_ADAPTER_RANK;
    if (rank > max)
        return lk_fail(err, LK_E_FORMAT,
                       "tensor %s of the sidecar has rank %d, at most %d is useful", a->name, rank,
                       max);
    lk_status status = check_part(a, n_in, rank, err);
    if (!status) status = check_part(b, rank, n_out, err);
    if (status) return status;
    *out = (struct lk_adapter){.rank = rank, .a = a->data, .b = b->data};
    *n_found += 2;
    return LK_OK;
}

/* The first tensor of an adapter that no weight of the model has. */
static lk_status fail_unknown(const struct lk_sidecar *s, const struct lk_adapter *adapter,
                              const struct lk_hparams *hp, lk_err *err) {
    const char *name = "";
    for (size_t i = 0; i < s->n_tensor; i++) {
        const void *data = s->tensor[i].data;
        bool known = !strstr(s->tensor[i].name, ".weight.lora_");
        for (int j = 0; !known && j < hp->n_layer * LK_N_ADAPTED; j++)
            known = data == adapter[j].a || data == adapter[j].b;
        if (!known) name = s->tensor[i].name;
    }
    return lk_fail(
        err, LK_E_FORMAT,
        "tensor %s of the sidecar is an adapter of a weight that the model does not have "
        "or that adapters do not change",
        name);
}

lk_status lk_adapters_new(struct lk_adapter **out, const struct lk_sidecar *s,
                          const struct lk_hparams *hp, struct lk_ledger *ledger, lk_err *err) {
    size_t n_tensor = 0, n_found = 0;
    for (size_t i = 0; i < s->n_tensor; i++)
        n_tensor += strstr(s->tensor[i].name, ".weight.lora_") != NULL;
    *out = NULL;
    if (n_tensor == 0) return LK_OK;
    struct lk_adapter *adapter = lk_alloc(ledger, LK_FOR_OTHER, adapters_bytes(hp));
    if (!adapter) return lk_fail(err, LK_E_NOMEM, "out of memory for %d layers", hp->n_layer);
    lk_status status = LK_OK;
    for (int i = 0; !status && i < hp->n_layer * LK_N_ADAPTED; i++)
        status = read_adapter(s, hp, i / LK_N_ADAPTED, (enum lk_adapted)(i % LK_N_ADAPTED),
                              &adapter[i], &n_found, err);
    if (!status && n_found < n_tensor) status = fail_unknown(s, adapter, hp, err);
    if (!status)
        *out = adapter;
    else
        lk_adapters_free(adapter, hp, ledger);
    return status;
}

void lk_adapters_free(struct lk_adapter *adapter, const struct lk_hparams *hp,
                      struct lk_ledger *ledger) {
    lk_release(ledger, LK_FOR_OTHER, adapter, adapter ? adapters_bytes(hp) : 0);
}
