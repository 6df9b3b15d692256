/* Opens a model: identifies its family and name, reads the hyperparameters, binds and loads the
 * tensors. */
#include "model/net.h"

#include "base/ascii.h"
#include "base/closest.h"
#include "base/hash.h"
#include "base/log.h"
#include "kernels/kernels.h"
#include "model/bind.h"
#include "model/experts.h"
#include "model/gguf_read.h"
#include "model/recurrence_nodes.h"
#include "model/vocab_check.h"
#include "model/weights.h"

#include "gguf.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

/* ---- families ---- */

static const struct lk_family *const families[] = {
    &lk_family_llama,    &lk_family_qwen2,    &lk_family_qwen3,     &lk_family_qwen3moe,
    &lk_family_gemma2,   &lk_family_gemma3,   &lk_family_gemma4,    &lk_family_phi3,
    &lk_family_smollm3,  &lk_family_mistral3, &lk_family_granite,   &lk_family_olmo2,
    &lk_family_stablelm, &lk_family_falcon,   &lk_family_bloom,     &lk_family_gpt2,
    &lk_family_gpt_oss,  &lk_family_qwen35,   &lk_family_deepseek2, &lk_family_lfm2,
    &lk_family_refact,
};

/* The family with the architecture name `arch`, or NULL. */
static const struct lk_family *family_find(const char *arch) {
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        for (const char *const *name = families[i]->arch; *name; name++)
            if (strcmp(*name, arch) == 0) return families[i];
    }
    return NULL;
}

/* The family with the most similar architecture name, which *name is set to; NULL if none is
 * similar. */
static const struct lk_family *family_nearest(const char *arch, const char **name) {
    struct lk_closest close = {.word = arch, .len = strlen(arch)};
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        for (const char *const *known = families[i]->arch; *known; known++)
            lk_closest_offer(&close, *known);
    *name = close.name;
    return close.name ? family_find(close.name) : NULL;
}

/* "llama, qwen2, ...", for messages. Static. */
static const char *family_names(void) {
    return "llama, qwen2, qwen3, qwen3moe, qwen35, qwen35moe, qwen3next, gemma2, gemma3, gemma4, "
           "phi3, smollm3, mistral3, granite, granitemoe, granitehybrid, olmo2, stablelm, falcon, "
           "bloom, gpt2, gpt-oss, deepseek2, lfm2, lfm2moe, refact";
}

/* Opens a model: identifies its family, reads the hyperparameters, binds and loads the tensors. */

/* ---- the model's name: of the file, or general.name ---- */

static bool is_alnum(char c) { return isalnum((unsigned char)c) != 0; }

/* Q4_K_M, IQ2_XXS, TQ1_0 and so on. */
static bool is_quantization(const char *tag, size_t len) {
    size_t at = len > 0 && strchr("IiTt", tag[0]) ? 1 : 0;
    if (at + 2 > len || (tag[at] != 'Q' && tag[at] != 'q') || !lk_is_digit(tag[at + 1]))
        return false;
    for (at += 2; at < len; at++)
        if (!is_alnum(tag[at]) && tag[at] != '_') return false;
    return true;
}

/* 00001-of-00003 */
static bool is_shard(const char *tag, size_t len) {
    if (len != 14 || memcmp(tag + 5, "-of-", 4) != 0) return false;
    for (size_t i = 0; i < len; i++)
        if ((i < 5 || i > 8) && !lk_is_digit(tag[i])) return false;
    return true;
}

/* True if tag[0..len) says how the weights are stored, not which model it is. */
static bool is_storage_tag(const char *tag, size_t len) {
    /* "UD", "i1" and "imat" are how the quantization was chosen. */
    static const char *const word[] = {"gguf",  "f16",       "f32", "bf16", "fp16", "fp32",
                                       "mxfp4", "mxfp4_moe", "ud",  "i1",   "imat"};
    for (size_t i = 0; i < sizeof word / sizeof word[0]; i++)
        if (strlen(word[i]) == len && strncasecmp(tag, word[i], len) == 0) return true;
    return is_quantization(tag, len) || is_shard(tag, len);
}

/* Length of `name` without the tags at its end. */
static size_t length_without_tags(const char *name) {
    size_t len = strlen(name);
    for (size_t at = 1; at < len; at++) {
        bool separator = strchr(".-_", name[at]) != NULL;
        if (separator && is_storage_tag(name + at + 1, len - at - 1)) {
            len = at;
            at = 0;
        }
    }
    return len;
}

static bool contains_word(const char *text, const char *word, size_t len) {
    for (; *text; text++)
        if (strncasecmp(text, word, len) == 0) return true;
    return false;
}

/* See lk_model_name. Shorter words than 3 characters would be found by chance. */
static bool is_confirmed(const char *name, size_t len, const char *general_name) {
    size_t n_word = 0;
    bool has_digit = false;
    while (n_word < len && is_alnum(name[n_word])) n_word++;
    for (size_t i = 0; i < len; i++) has_digit |= lk_is_digit(name[i]);
    return has_digit && n_word >= 3 && contains_word(general_name, name, n_word);
}

void lk_model_name(char *out, size_t cap, const char *path, const char *general_name) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t len = length_without_tags(name);
    if (*general_name && !is_confirmed(name, len, general_name)) {
        name = general_name;
        len = strlen(general_name);
    }
    if (len > cap - 1) len = cap - 1;
    memcpy(out, name, len);
    out[len] = 0;
}

/* Opens a model: identifies its family, reads the hyperparameters, binds and loads the tensors. */

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
    net->family = family_nearest(net->arch, &nearest);
    if (!net->family)
        return lk_fail(err, LK_E_UNSUPPORTED, "architecture \"%s\" is not supported; supported: %s",
                       text, family_names());
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
    net->family = family_find(arch);
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

/* ---- the layers that are held here ---- */

/* Bytes of a bound tensor, in the type that it is computed with. */
static uint64_t bound_bytes(const struct lk_loader *ld, const struct lk_bind *b) {
    int64_t ne[3];
    lk_bound_shape(ld, b, ne);
    bool f32 = ld->opts.f32 || b->use == LK_USE_VECTOR;
    return (uint64_t)ggml_row_size(f32 ? GGML_TYPE_F32 : lk_bound_type(ld, b), ne[0]) *
           (uint64_t)(ne[1] * ne[2]);
}

/* The layer of a bound tensor; -1: it belongs to none. */
static int layer_of(const struct lk_net *net, const struct lk_bind *b) {
    uintptr_t at = (uintptr_t)b->dst, first = (uintptr_t)net->layer;
    size_t n = (size_t)net->hp.n_layer * sizeof *net->layer;
    return at >= first && at < first + n ? (int)((at - first) / sizeof *net->layer) : -1;
}

/* Does only what follows the last layer use the tensor? */
static bool is_of_head(const struct lk_net *net, const struct lk_bind *b) {
    return b->dst == &net->output || b->dst == &net->output_b || b->dst == &net->output_norm ||
           b->dst == &net->output_norm_b;
}

/* Does only what precedes the first layer use the tensor? Positions that were learned are a
 * property of the model too, and their table is small. */
static bool is_of_embedding(const struct lk_net *net, const struct lk_bind *b) {
    if (net->hp.n_embd_layer > 0) return false; /* layers look the tokens up, too */
    return b->dst == &net->tok_embd || b->dst == &net->tok_norm || b->dst == &net->tok_norm_b;
}

/* Sum up the weights of each layer, bytes [n_layer]. The logits' matrix belongs to the last one. */
static void sum_layer_bytes(const struct lk_net *net, const struct lk_loader *ld, uint64_t *bytes) {
    int n_layer = net->hp.n_layer;
    for (size_t i = 0; i < ld->n_bind; i++) {
        const struct lk_bind *b = &ld->bind[i];
        int layer = is_of_head(net, b) ? n_layer - 1 : layer_of(net, b);
        if (layer < 0 || layer >= n_layer || b->use == LK_USE_TABLE) continue;
        bytes[layer] += bound_bytes(ld, b);
    }
}

/* Choose the layers, and leave out the tensors that only the others use. Sets the net's
 * matrix_bytes and table_bytes. */
static lk_status choose_layers(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    struct lk_hparams *hp = &net->hp;
    const struct lk_layer_choice *choice = ld->opts.choice;
    uint64_t layer_bytes[LK_MAX_LAYERS] = {0};
    lk_status status = LK_OK;
    net->first_layer = 0;
    net->end_layer = hp->n_layer;
    sum_layer_bytes(net, ld, layer_bytes);
    if (choice)
        status =
            choice->choose(hp, layer_bytes, choice->user, &net->first_layer, &net->end_layer, err);
    hp->held_recurrent[0] = hp->held_recurrent[1] = 0;
    for (int layer = 0; layer < net->end_layer; layer++)
        hp->held_recurrent[layer >= net->first_layer] += hp->is_recurrent[layer] != 0;
    hp->held_recurrent[1] += hp->held_recurrent[0];
    for (size_t i = 0; i < ld->n_bind; i++) {
        struct lk_bind *b = &ld->bind[i];
        int layer = layer_of(net, b);
        b->is_elsewhere = (layer >= 0 && !lk_net_has(net, layer)) ||
                          (is_of_head(net, b) && net->end_layer < hp->n_layer) ||
                          (is_of_embedding(net, b) && net->first_layer > 0);
        uint64_t *bytes = b->use == LK_USE_TABLE ? &net->table_bytes : &net->matrix_bytes;
        *bytes += b->is_elsewhere ? 0 : bound_bytes(ld, b);
    }
    return status;
}

/* ---- the layers that a device computes ---- */

/* Does only lowkey's own code read the tensor, on the CPU? */
static bool is_read_by_lowkey(const struct lk_net *net, const struct lk_bind *b) {
    int layer = layer_of(net, b);
    if (layer < 0) return false;
    const struct lk_layer *l = &net->layer[layer];
    bool recurrence = b->dst == &l->conv || b->dst == &l->conv_b || b->dst == &l->skip;
    return b->dst == &l->attn_sinks || (recurrence && !lk_net_recurs_there(net, layer));
}

/* Where a copy for the device's layers goes of a tensor that layers share; NULL: there is none. */
static struct ggml_tensor **copy_on_device(struct lk_net *net, const struct lk_bind *b) {
    if (b->dst == &net->rope_factors) return &net->rope_factors_on_device;
    if (b->dst == &net->layer_proj) return &net->layer_proj_on_device;
    return b->dst == &net->layer_proj_norm ? &net->layer_proj_norm_on_device : NULL;
}

/* Open the device, and bind the tensors of its layers to its memory. The logits' matrix goes with
 * the last layer. Embeddings stay on the CPU, as in llama.cpp: their rows are looked up. */
static lk_status choose_device(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    int32_t n_layer = net->hp.n_layer, n = ld->opts.n_on_device;
    if (lk_ggml_device_is_cpu(ld->opts.device)) {
        if (n <= 0) return LK_OK;
        return lk_fail(err, LK_E_ARG, "%d layers cannot be on a device: none is named", n);
    }
    if (n > n_layer)
        return lk_fail(err, LK_E_ARG, "%d layers cannot be on the device; the model has %d", n,
                       n_layer);
    if (!lk_net_has_all(net))
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "processes that divide the layers cannot use a device");
    if (n < 0) return LK_OK;
    lk_status status = lk_ggml_device_open(&net->device, ld->opts.device, ld->opts.max_device_bytes,
                                           !net->header_only, ld->ledger, err);
    if (status) return status;
    ld->device = net->device;
    net->first_on_device = n ? n_layer - n : 0;
    if (net->hp.n_recurrent > 0)
        net->recurrence_lack = lk_recurrence_refused(&net->hp.recurrence, net->device, ld->ledger);
    size_t n_bind = ld->n_bind;
    for (size_t i = 0; i < n_bind; i++) {
        struct lk_bind *b = &ld->bind[i];
        b->on_device = b->use != LK_USE_TABLE && !is_read_by_lowkey(net, b) &&
                       (is_of_head(net, b) || layer_of(net, b) >= net->first_on_device);
        struct lk_bind copy = *b;
        copy.dst = copy_on_device(net, b);
        copy.on_device = true;
        if (!copy.dst) continue;
        if (copy.use == LK_USE_TABLE) copy.use = LK_USE_MATRIX;
        ld->bind[ld->n_bind++] = copy; /* there is room: a model has fewer tensors of its own */
    }
    return LK_OK;
}

/* Load the net from ld's file, which is open. */
static lk_status load_net(struct lk_net *net, struct lk_loader *ld, lk_err *err) {
    lk_status status = identify_family(net, ld, err);
    if (!status) status = bind_family(net, ld, err);
    if (!status) status = choose_layers(net, ld, err);
    if (!status) status = choose_device(net, ld, err);
    if (status) return status;
    size_t n_ffn = 0;
    for (int i = 0; ld->opts.ffn_adapter && i < net->hp.n_layer * LK_N_FFN_ADAPTED; i++)
        n_ffn += ld->opts.ffn_adapter[i].rank > 0;
    if (n_ffn != ld->n_ffn_adapted)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "the adapter changes feed-forward layers, which is not supported for %s "
                       "models",
                       ld->reader.arch);
    net->file_bytes = ld->file.size;
    for (size_t i = 0; !ld->opts.f32 && i < ld->n_bind; i++)
        if (!ld->bind[i].is_elsewhere)
            net->adapter_bytes += lk_bound_adapter_bytes(ld, &ld->bind[i]);
    net->fingerprint = file_fingerprint(ld);
    net->identity = norms_hash(ld);
    status =
        lk_weights_load(&net->map, ld, &net->n_param, &net->weight_bytes, &net->device_bytes, err);
    if (!status) net->repacked = lk_weights_repacked(net->map);
    if (!status) net->ggml_products = ld->opts.no_repack;
    return status;
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
    ld.reader.header_only = ld.opts.header_only;
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
    lk_weights_free(net->map, net->device, ledger);
    lk_ggml_device_free(net->device, ledger);
    size_t n_layer = (size_t)net->hp.n_layer;
    lk_release(ledger, LK_FOR_OTHER, net->layer, n_layer * sizeof *net->layer);
    lk_hparams_free(&net->hp, ledger);
    lk_release(ledger, LK_FOR_OTHER, net, sizeof *net);
}
