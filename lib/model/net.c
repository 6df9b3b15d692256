/* Opens a model: identifies its family, reads the hyperparameters, binds and loads the tensors. */
#include "model/net.h"

#include "base/fnv1a.h"
#include "base/log.h"
#include "kernels/kernels.h"
#include "model/bind.h"
#include "model/bound_rows.h"
#include "model/experts.h"
#include "model/family.h"
#include "model/gguf_check.h"
#include "model/model_name.h"
#include "model/vocab_check.h"
#include "model/weights.h"

#include "gguf.h"

#include <string.h>

static void close_loader(struct lk_loader *ld) {
    size_t n_tensors = ld->reader.gguf ? (size_t)gguf_get_n_tensors(ld->reader.gguf) : 0;
    lk_release(ld->ledger, LK_FOR_OTHER, ld->used, n_tensors + 1);
    lk_release(ld->ledger, LK_FOR_OTHER, ld->bind, ld->cap_bind * sizeof *ld->bind);
    lk_release(ld->ledger, LK_FOR_OTHER, ld->concat, ld->cap_concat * sizeof *ld->concat);
    if (ld->reader.gguf) gguf_free(ld->reader.gguf);
    lk_mapping_close(&ld->file);
}

/* n_vocab is the number of tokens in the vocabulary. Without a vocabulary it is the architecture's
 * vocab_size, and without that key the number of rows of the token embeddings. */
static lk_status count_vocab(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    enum { MAX_VOCAB = 1 << 24 };
    int32_t *n_vocab = &net->hp.n_vocab;
    lk_status status = lk_vocab_check(&ld->reader, ld->ledger, n_vocab, err);
    if (status || *n_vocab > 0) return status;
    status = lk_gguf_read_int(&ld->reader, ".vocab_size", LK_OPTIONAL, 1, MAX_VOCAB, n_vocab, err);
    if (status || *n_vocab > 0) return status;
    int64_t id = gguf_find_tensor(ld->reader.gguf, "token_embd.weight");
    int64_t rows = id < 0 ? 1 : gguf_get_tensor_ne(ld->reader.gguf, id)[1];
    if (rows > MAX_VOCAB)
        return lk_fail(err, LK_E_FORMAT, "tensor token_embd.weight has %lld rows", (long long)rows);
    *n_vocab = (int32_t)rows;
    return LK_OK;
}

/* Read the keys of net->family and bind its tensors. */
static lk_status bind_family(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    lk_status status = lk_hparams_read(&net->hp, &ld->reader, net->family->has_latents,
                                       net->family->layers_vary, ld->ledger, err);
    if (!status) status = lk_experts_read(&net->hp, &ld->reader, err);
    if (!status && net->hp.n_expert > 0 && !net->family->has_experts)
        status = lk_fail(err, LK_E_UNSUPPORTED,
                         "the model is a mixture of %d experts, which lowkey does not compute for "
                         "%s models",
                         net->hp.n_expert, ld->reader.arch);
    if (!status) status = count_vocab(net, ld, err);
    if (status) return status;
    ld->n_expert = net->hp.n_expert;
    ld->n_head = net->hp.n_head;
    size_t n_layer = (size_t)net->hp.n_layer;
    size_t n_tensors = (size_t)gguf_get_n_tensors(ld->reader.gguf);
    ld->used = lk_alloc(ld->ledger, LK_FOR_OTHER, n_tensors + 1);
    ld->cap_bind = n_layer * LK_LAYER_BINDS + LK_MODEL_BINDS;
    ld->bind = lk_alloc(ld->ledger, LK_FOR_OTHER, ld->cap_bind * sizeof *ld->bind);
    ld->cap_concat = n_layer * LK_LAYER_CONCATS;
    ld->concat = lk_alloc(ld->ledger, LK_FOR_OTHER, ld->cap_concat * sizeof *ld->concat);
    net->layer = lk_alloc(ld->ledger, LK_FOR_OTHER, n_layer * sizeof *net->layer);
    if (!ld->used || !ld->bind || !ld->concat || !net->layer)
        return lk_fail(err, LK_E_NOMEM, "not enough memory for %zu layers", n_layer);
    status = net->family->load(net, ld, err);
    if (!status) lk_hparams_number_layers(&net->hp);
    if (!status && lk_hparams_cached(&net->hp) == 0)
        return lk_fail(
            err, LK_E_UNSUPPORTED,
            "no layer of the model has attention; lowkey needs at least one with a KV cache");
    if (!status) lk_bind_skip_layers(ld, net->hp.n_layer, net->hp.n_next);
    return status ? status : lk_bind_check_all_used(ld, err);
}

/* The error for a file of an unknown architecture: how it differs from that of the most similar
 * name. */
static lk_status fail_unknown(struct lk_net *net, struct lk_loader *ld, const char *arch,
                              lk_err *err) {
    char text[64];
    const char *nearest;
    lk_err why = {0};
    lk_printable(text, arch, strlen(arch));
    net->family = lk_family_nearest(net->arch, &nearest);
    if (!net->family)
        return lk_fail(err, LK_E_UNSUPPORTED, "architecture \"%s\" is not supported; supported: %s",
                       text, lk_family_names());
    strncpy(net->arch, nearest, sizeof net->arch - 1);
    if (!bind_family(net, ld, &why))
        strncpy(why.msg, "the file has its keys and tensors, but the computation may differ",
                sizeof why.msg - 1);
    return lk_fail(err, LK_E_UNSUPPORTED,
                   "architecture \"%s\" is not supported; of the supported ones, %s is nearest: "
                   "%.200s",
                   text, nearest, why.msg);
}

/* Set arch, name and family. */
static lk_status identify_family(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    const char *arch = "", *name = "", *kind = "model";
    char text[64];
    if (gguf_find_key(ld->reader.gguf, "lowkey.sidecar.version") >= 0)
        return lk_fail(
            err, LK_E_FORMAT,
            "the file holds a sidecar, not a model; pass the model with -m and this file "
            "with --sidecar");
    lk_status status =
        lk_gguf_read_str(&ld->reader, "general.architecture", LK_REQUIRED, &arch, err);
    if (!status) status = lk_gguf_read_str(&ld->reader, "general.name", LK_OPTIONAL, &name, err);
    if (!status) status = lk_gguf_read_str(&ld->reader, "general.type", LK_OPTIONAL, &kind, err);
    if (status) return status;
    if (strcmp(kind, "model") != 0) {
        return lk_fail(err, LK_E_UNSUPPORTED, "the GGUF file holds a %s, not a model",
                       lk_printable(text, kind, strlen(kind)));
    }
    net->family = lk_family_find(arch);
    strncpy(net->arch, arch, sizeof net->arch - 1); /* fits if it equals a family's name */
    lk_model_name(net->name, sizeof net->name, ld->path, name);
    memcpy(ld->reader.arch, net->arch, sizeof net->arch);
    return net->family ? LK_OK : fail_unknown(net, ld, arch, err);
}

/* FNV-1a over all bytes before the tensor data and over 64 samples of the data. */
static uint64_t file_fingerprint(const struct lk_loader *ld) {
    enum { SAMPLES = 64, SAMPLE_BYTES = 512 };
    const uint8_t *data = ld->file.data;
    size_t start = gguf_get_data_offset(ld->reader.gguf), size = ld->file.size;
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < start && i < size; i++) hash = (hash ^ data[i]) * 1099511628211u;
    for (size_t s = 0; start < size && s < SAMPLES; s++) {
        size_t at = start + (size - start) / SAMPLES * s;
        for (size_t i = at; i < size && i < at + SAMPLE_BYTES; i++)
            hash = (hash ^ data[i]) * 1099511628211u;
    }
    return hash;
}

/* The sum of hashes over the name and the weights of each norm. Files of the same model may differ
 * in quantization and in the order of tensors, but have the norms in f32. */
static uint64_t norms_hash(const struct lk_loader *ld) {
    static const char end[] = "norm.weight";
    const struct gguf_context *gguf = ld->reader.gguf;
    const uint8_t *data = (const uint8_t *)ld->file.data + gguf_get_data_offset(gguf);
    uint64_t sum = 0;
    for (int64_t i = 0; i < gguf_get_n_tensors(gguf); i++) {
        const char *name = gguf_get_tensor_name(gguf, i);
        size_t len = strlen(name), n_end = sizeof end - 1;
        bool is_norm = len >= n_end && strcmp(name + len - n_end, end) == 0;
        if (!is_norm || gguf_get_tensor_type(gguf, i) != GGML_TYPE_F32) continue;
        uint64_t hash = lk_fnv1a(LK_FNV1A_INIT, name, len);
        sum +=
            lk_fnv1a(hash, data + gguf_get_tensor_offset(gguf, i), gguf_get_tensor_size(gguf, i));
    }
    return sum;
}

/* Load the net from ld's file, which is open. */
static lk_status load_net(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    lk_status status = identify_family(net, ld, err);
    if (!status) status = bind_family(net, ld, err);
    if (!status) status = lk_stages_divide(net, ld, err);
    if (status) return status;
    net->file_bytes = ld->file.size;
    for (size_t i = 0; !ld->opts.f32 && i < ld->n_bind; i++)
        if (!ld->bind[i].is_elsewhere)
            net->adapter_bytes += lk_bound_adapter_bytes(ld, &ld->bind[i]);
    net->fingerprint = file_fingerprint(ld);
    net->identity = norms_hash(ld);
    return lk_weights_load(&net->map, ld, &net->n_param, &net->weight_bytes, err);
}

lk_status lk_net_open(struct lk_net **out, const char *path, const struct lk_net_opts *opts,
                      struct lk_ledger *ledger, lk_err *err) {
    lk_redirect_logs();
    struct lk_loader ld = {.ledger = ledger, .path = path};
    if (opts) ld.opts = *opts;
    struct lk_net *net = lk_alloc(ledger, LK_FOR_OTHER, sizeof *net);
    if (!net) return lk_fail(err, LK_E_NOMEM, "not enough memory for the model");
    net->header_only = ld.opts.header_only;
    net->kernels = ld.opts.kernels ? ld.opts.kernels : lk_kernels_choose(NULL);
    lk_err why = {0};
    lk_status status = lk_gguf_open(&ld.file, &ld.reader, path, ledger, &why);
    if (!status) status = load_net(net, &ld, &why);
    if (status && strstr(why.msg, path))
        lk_fail(err, status, "%s", why.msg);
    else if (status)
        lk_fail(err, status, "%.300s: %s", path, why.msg);
    close_loader(&ld);
    if (status) {
        lk_net_free(net, ledger);
        return status;
    }
    *out = net;
    return LK_OK;
}

void lk_net_free(struct lk_net *net, struct lk_ledger *ledger) {
    if (!net) return;
    lk_weights_free(net->map, ledger);
    size_t n_layer = (size_t)net->hp.n_layer;
    lk_release(ledger, LK_FOR_OTHER, net->layer, n_layer * sizeof *net->layer);
    lk_hparams_free(&net->hp, ledger);
    lk_release(ledger, LK_FOR_OTHER, net, sizeof *net);
}
