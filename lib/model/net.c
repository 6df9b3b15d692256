#include "base/log.h"
#include "kernels/kernels.h"
#include "model/family.h"
#include "model/gguf_check.h"
#include "model/loader.h"

#include "gguf.h"

#include <string.h>

static void loader_close(struct lk_loader *ld) {
    size_t n_tensors = ld->reader.gguf ? (size_t)gguf_get_n_tensors(ld->reader.gguf) : 0;
    lk_release(ld->ledger, LK_FOR_OTHER, ld->used, n_tensors + 1);
    lk_release(ld->ledger, LK_FOR_OTHER, ld->bind, ld->cap_bind * sizeof *ld->bind);
    lk_release(ld->ledger, LK_FOR_OTHER, ld->join, ld->cap_join * sizeof *ld->join);
    if (ld->reader.gguf) gguf_free(ld->reader.gguf);
    lk_mapping_close(&ld->file);
}

/* Map the file, check it, and let gguf read the very bytes that were checked. */
static lk_status loader_open(struct lk_loader *ld, const char *path, lk_err *err) {
    lk_status status = lk_mapping_open(&ld->file, path, err);
    if (status == LK_OK) status = lk_gguf_check(ld->file.data, ld->file.size, ld->ledger, err);
    if (status != LK_OK) return status;
    ld->reader.gguf = gguf_init_from_buffer(ld->file.data, ld->file.size,
                                            (struct gguf_init_params){.no_alloc = true});
    if (!ld->reader.gguf)
        return lk_fail(err, LK_E_FORMAT, "ggml cannot read the GGUF file %s", path);
    ld->used = lk_alloc(ld->ledger, LK_FOR_OTHER, (size_t)gguf_get_n_tensors(ld->reader.gguf) + 1);
    return ld->used ? LK_OK : lk_fail(err, LK_E_NOMEM, "no memory to read the model file");
}

/* Architecture and name. */
static lk_status identify(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    const char *arch = "", *name = "", *kind = "model";
    char text[64];
    if (gguf_find_key(ld->reader.gguf, "lowkey.sidecar.version") >= 0)
        return lk_fail(err, LK_E_FORMAT,
                       "the file holds a sidecar, not a model; give the model with -m and this "
                       "file with --sidecar");
    lk_status status = lk_read_text(&ld->reader, "general.architecture", LK_REQUIRED, &arch, err);
    if (status == LK_OK)
        status = lk_read_text(&ld->reader, "general.name", LK_OPTIONAL, &name, err);
    if (status == LK_OK)
        status = lk_read_text(&ld->reader, "general.type", LK_OPTIONAL, &kind, err);
    if (status != LK_OK) return status;
    if (strcmp(kind, "model") != 0) {
        return lk_fail(err, LK_E_UNSUPPORTED, "the GGUF file holds a %s, not a model",
                       lk_printable(text, kind, strlen(kind)));
    }
    net->family = lk_family_find(arch);
    if (!net->family) {
        return lk_fail(err, LK_E_UNSUPPORTED, "architecture \"%s\"; supported are %s",
                       lk_printable(text, arch, strlen(arch)), lk_family_names());
    }
    strncpy(net->arch, arch, sizeof net->arch - 1); /* short: it equals a family's name */
    strncpy(net->name, name, sizeof net->name - 1);
    memcpy(ld->reader.arch, net->arch, sizeof net->arch);
    return LK_OK;
}

/* Hash of everything before the tensors' data, and of 64 samples of the data. */
static uint64_t fingerprint(const struct lk_loader *ld) {
    enum { SAMPLES = 64, SAMPLE_BYTES = 512 };
    const uint8_t *data = ld->file.data;
    size_t start = gguf_get_data_offset(ld->reader.gguf), size = ld->file.size;
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < start && i < size; i++) hash = (hash ^ data[i]) * 1099511628211u;
    for (size_t s = 0; start < size && s < SAMPLES; s++) {
        size_t at = start + (size - start) / SAMPLES * s;
        for (size_t i = at; i < size && i < at + SAMPLE_BYTES; i++)
            hash = (hash ^ data[i]) * 1099511628211u;
    }
    return hash;
}

/* Tokens of the vocabulary, else the architecture's key, else rows of the embedding. */
static lk_status count_vocab(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    enum { MAX_VOCAB = 1 << 24 };
    lk_status status = lk_vocab_check(&ld->reader, ld->ledger, &net->hp.n_vocab, err);
    if (status != LK_OK || net->hp.n_vocab > 0) return status;
    status =
        lk_read_int(&ld->reader, ".vocab_size", LK_OPTIONAL, 1, MAX_VOCAB, &net->hp.n_vocab, err);
    if (status != LK_OK || net->hp.n_vocab > 0) return status;
    int64_t id = gguf_find_tensor(ld->reader.gguf, "token_embd.weight");
    int64_t rows = id < 0 ? 1 : gguf_get_tensor_ne(ld->reader.gguf, id)[1];
    if (rows > MAX_VOCAB)
        return lk_fail(err, LK_E_FORMAT, "tensor token_embd.weight has %lld rows", (long long)rows);
    net->hp.n_vocab = (int32_t)rows;
    return LK_OK;
}

static lk_status load(struct lk_net *net, struct lk_loader *ld, const char *path, lk_err *err) {
    lk_status status = loader_open(ld, path, err);
    if (status == LK_OK) status = identify(net, ld, err);
    if (status == LK_OK) status = lk_hparams_read(&net->hp, &ld->reader, ld->ledger, err);
    if (status == LK_OK) status = count_vocab(net, ld, err);
    if (status != LK_OK) return status;
    size_t n_layer = (size_t)net->hp.n_layer;
    ld->cap_bind = n_layer * LK_LAYER_BINDS + LK_MODEL_BINDS;
    ld->bind = lk_alloc(ld->ledger, LK_FOR_OTHER, ld->cap_bind * sizeof *ld->bind);
    ld->cap_join = n_layer * LK_LAYER_JOINS;
    ld->join = lk_alloc(ld->ledger, LK_FOR_OTHER, ld->cap_join * sizeof *ld->join);
    net->layer = lk_alloc(ld->ledger, LK_FOR_OTHER, n_layer * sizeof *net->layer);
    if (!ld->bind || !ld->join || !net->layer)
        return lk_fail(err, LK_E_NOMEM, "no memory for %zu layers", n_layer);
    status = net->family->load(net, ld, err);
    if (status == LK_OK) status = lk_bind_complete(ld, err);
    if (status != LK_OK) return status;
    net->file_bytes = ld->file.size;
    net->fingerprint = fingerprint(ld);
    return lk_weights_load(&net->map, ld, &net->n_param, &net->weight_bytes, err);
}

lk_status lk_net_open(struct lk_net **out, const char *path, const struct lk_net_opts *opts,
                      struct lk_ledger *ledger, lk_err *err) {
    lk_silence_logs();
    struct lk_loader ld = {.ledger = ledger};
    if (opts) ld.opts = *opts;
    struct lk_net *net = lk_alloc(ledger, LK_FOR_OTHER, sizeof *net);
    if (!net) return lk_fail(err, LK_E_NOMEM, "no memory for the model");
    net->kernels = ld.opts.kernels ? ld.opts.kernels : lk_kernels_choose(NULL);
    lk_status status = load(net, &ld, path, err);
    loader_close(&ld);
    if (status != LK_OK) {
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
    lk_release(ledger, LK_FOR_OTHER, net->hp.is_swa, n_layer);
    lk_release(ledger, LK_FOR_OTHER, net, sizeof *net);
}
