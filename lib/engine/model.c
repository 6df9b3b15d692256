/* Models: opening, facts, and the functions on text and tokens. */
#include "engine/model.h"

#include "base/cpus.h"
#include "base/cxx_call.h"
#include "base/os.h"
#include "base/spin_wait.h"
#include "device/modules.h"
#include "engine/adapters.h"
#include "engine/graph.h"
#include "engine/operation.h"
#include "lowkey_serve.h"
#include "model/blocks.h"
#include "model/exact_attention.h"
#include "model/lora.h"
#include "model/recurrence_nodes.h"
#include "pretend/pretend.h"
#include "template/jinja.h"
#include "token/chat_format.h"
#include "token/tokenize.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int default_threads(void) {
    struct lk_cpus cpus = lk_cpus_read("");
    return lk_cpus_threads(&cpus);
}

/* May throw. */
static void create_pool(void *arg) {
    struct lk_model *model = arg;
    struct ggml_threadpool_params params = ggml_threadpool_params_default(model->n_thread);
    if (lk_ggml_sleeps()) params.poll = 0; /* idle threads sleep at once */
    model->pool = ggml_threadpool_new(&params);
}

struct pool_call {
    struct lk_model *model;
    lk_status status;
    lk_err *err;
};

static void call_create_pool(void *arg) {
    struct pool_call *call = arg;
    call->status = lk_cxx_call(create_pool, call->model, call->err);
}

/* The threads start with the signals blocked that a program may wait for: its own threads get them.
 * Real-time signals are not blocked; a program may send them to every thread. */
static lk_status start_threads(struct lk_model *model, lk_err *err) {
    struct pool_call call = {.model = model, .err = err};
    lk_os_run_without_signals(call_create_pool, &call);
    if (!call.status && model->pool) return LK_OK;
    return lk_fail(err, LK_E_NOMEM, "out of memory for %d threads; use fewer with -t",
                   model->n_thread);
}

static lk_status open_sidecar(struct lk_model *model, const struct lk_net *net, const char *path,
                              lk_err *err) {
    const struct lk_hparams *hp = &net->hp;
    if (hp->d_rope > 0)
        return lk_fail(
            err, LK_E_UNSUPPORTED,
            "sidecars are not supported for models with latent attention; open the model "
            "without");
    struct lk_sidecar_model of = {.fingerprint = net->fingerprint,
                                  .n_layer = lk_hparams_cached(hp),
                                  .n_head_kv = hp->n_head_kv,
                                  .d_head = hp->d_head};
    lk_status status = lk_sidecar_open(&model->sidecar, path, &of, &model->ledger, err);
    return status ? status : lk_latent_store_new(&model->latents, &model->ledger, err);
}

/* Open the weights with the adapters of the sidecar or of opts->lora, if there are any, added to
 * them. Those files are opened first, which needs only the header. */
static lk_status open_net(struct lk_model *model, const char *path, const lk_model_opts *opts,
                          struct lk_net_opts net_opts, lk_err *err) {
    struct lk_net_opts header_only = {
        .header_only = true, .n_ctx = net_opts.n_ctx, .kernels = net_opts.kernels};
    struct lk_net *header = NULL;
    if (opts->sidecar && opts->lora)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "a sidecar is made for weights without an adapter; give only one of them");
    if (!opts->sidecar && !opts->lora)
        return lk_net_open(&model->net, path, &net_opts, &model->ledger, err);
    lk_status status = lk_net_open(&header, path, &header_only, &model->ledger, err);
    if (!status && opts->lora)
        status = lk_lora_open(&model->lora, opts->lora, opts->lora_scale ? opts->lora_scale : 1,
                              &header->hp, &model->ledger, err);
    if (!status && opts->sidecar) status = open_sidecar(model, header, opts->sidecar, err);
    if (!status && opts->sidecar)
        status = lk_adapters_new(&model->adapter, model->sidecar, &header->hp, &model->ledger, err);
    net_opts.adapter = model->lora ? model->lora->adapter : model->adapter;
    net_opts.ffn_adapter = model->lora ? model->lora->ffn : NULL;
    if (!status) status = lk_net_open(&model->net, path, &net_opts, &model->ledger, err);
    if (!status && model->lora) /* saved sessions belong to the changed weights */
        model->net->fingerprint ^= model->lora->fingerprint;
    if (status && header) {
        lk_adapters_free(model->adapter, &header->hp, &model->ledger);
        model->adapter = NULL;
    }
    lk_net_free(header, &model->ledger);
    return status;
}

lk_status lk_model_open_layers(lk_model **out, const char *path, const lk_model_opts *opts,
                               const struct lk_layer_choice *choice, lk_err *err) {
    static const lk_model_opts defaults;
    if (!opts) opts = &defaults;
    if (opts->n_threads < 0 || opts->n_threads > GGML_MAX_N_THREADS)
        return lk_fail(err, LK_E_ARG, "the number of threads is %d; it must be 1 to %d",
                       opts->n_threads, GGML_MAX_N_THREADS);
    if (opts->n_ctx < 0 || opts->n_ctx > LK_MAX_CTX)
        return lk_fail(err, LK_E_ARG, "the longest context is %d; it must be 1 to %d", opts->n_ctx,
                       LK_MAX_CTX);
    const struct lk_kernels *kernels = lk_kernels_choose(opts->kernels);
    if (!kernels) {
        char names[100];
        lk_kernels_names(names, sizeof names);
        return lk_fail(err, LK_E_UNSUPPORTED, "this CPU has no kernels named '%.30s'; it has %s",
                       opts->kernels, names);
    }
    struct lk_ledger ledger = {0}; /* the model's own ledger does not exist yet */
    struct lk_model *model = lk_alloc(&ledger, LK_FOR_OTHER, sizeof *model);
    if (!model) return lk_fail(err, LK_E_NOMEM, "out of memory for a model");
    pthread_mutex_init(&model->lock, NULL);
    pthread_mutex_init(&model->device_lock, NULL);
    model->n_thread = opts->n_threads ? opts->n_threads : default_threads();
    model->kernels = kernels;
    model->kernels_lack = lk_kernels_slow_reason();
    struct lk_net_opts net = {.f32 = opts->weights == LK_WEIGHTS_F32,
                              .no_mmap = opts->no_mmap,
                              .no_repack = opts->no_repack,
                              .header_only = opts->header_only,
                              .choice = choice,
                              .n_ctx = opts->n_ctx,
                              .device = opts->device,
                              .n_on_device = opts->n_device_layers,
                              .max_device_bytes = opts->max_device_bytes,
                              .kernels = kernels,
                              .progress = opts->progress,
                              .user = opts->user};
    lk_status status = open_net(model, path, opts, net, err);
    char first[4096]; /* libllama opens a split model by its first file */
    bool is_part = lk_gguf_part_path(path, 1, first, sizeof first);
    if (!status) status = lk_vocab_open(&model->vocab, is_part ? first : path, err);
    if (!status && !opts->header_only) status = start_threads(model, err);
    if (!status && !opts->header_only) status = lk_model_add_ropes(model, err);
    if (!status) status = lk_model_device(model, opts->cache_device, &model->cache_device, err);
    if (!status) model->prompt_lack = lk_exact_attention_refused(model->net, &model->ledger);
    if (status)
        lk_model_free(model);
    else
        *out = model;
    return status;
}

lk_status lk_model_open(lk_model **out, const char *path, const lk_model_opts *opts, lk_err *err) {
    return lk_model_open_layers(out, path, opts, NULL, err);
}

static lk_status free_model(struct lk_op *op, lk_err *err) {
    struct lk_model *model = op->model;
    (void)err;
    for (int i = 0; i < model->n_device; i++) model->device[i]->call->close(model->device[i]);
    if (model->pool) ggml_threadpool_free(model->pool);
    lk_vocab_free(model->vocab);
    lk_release(&model->ledger, LK_FOR_WEIGHTS, model->rope,
               model->rope ? 2 * sizeof *model->rope : 0);
    lk_latent_store_free(model->latents);
    if (model->net) lk_adapters_free(model->adapter, &model->net->hp, &model->ledger);
    lk_lora_free(model->lora);
    lk_sidecar_close(model->sidecar);
    lk_net_free(model->net, &model->ledger);
    lk_release(&model->ledger, LK_FOR_SCRATCH, model->work, model->work_size);
    lk_release(&model->ledger, LK_FOR_OTHER, model->parts, model->parts_bytes);
    pthread_mutex_destroy(&model->lock);
    pthread_mutex_destroy(&model->device_lock);
    free(model); /* not in a ledger */
    return LK_OK;
}

void lk_model_free(lk_model *model) {
    if (!model) return;
    lk_op_run(model, &(struct lk_op){.kind = LK_OP_MODEL_FREE, .run = free_model, .model = model},
              NULL);
}

static lk_status open_device(struct lk_model *model, const char *name, struct lk_device **out,
                             lk_err *err) {
    if (model->n_device == LK_MODEL_DEVICES)
        return lk_fail(err, LK_E_ARG, "a model's sessions can use %d devices at most",
                       LK_MODEL_DEVICES);
    lk_status status = strcmp(name, LK_PRETEND_NAME) == 0
                           ? lk_pretend_open(out, &model->ledger, err)
                           : lk_device_open(name, out, err);
    if (!status) model->device[model->n_device++] = *out;
    return status;
}

lk_status lk_model_device(struct lk_model *model, const char *name, struct lk_device **out,
                          lk_err *err) {
    lk_status status = LK_OK;
    *out = NULL;
    if (!name || strcmp(name, "cpu") == 0) return LK_OK;
    pthread_mutex_lock(&model->device_lock);
    for (int i = 0; i < model->n_device; i++)
        if (strcasecmp(model->device[i]->name, name) == 0) *out = model->device[i];
    if (!*out) status = open_device(model, name, out, err);
    pthread_mutex_unlock(&model->device_lock);
    return status;
}

lk_status lk_model_check_weights(const struct lk_model *model, lk_err *err) {
    if (!model->net->header_only) return LK_OK;
    return lk_fail(err, LK_E_ARG,
                   "the model was opened without its weights; open it without header_only");
}

lk_status lk_model_check_dense(const struct lk_model *model, lk_err *err) {
    lk_status status = lk_model_check_weights(model, err);
    if (!status && model->net->device)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "bases, adapters and networks are made of weights in RAM; open the model "
                       "without a device");
    if (!status && model->net->hp.d_rope > 0)
        status =
            lk_fail(err, LK_E_UNSUPPORTED,
                    "the model has latent attention; bases, adapters and networks are made for "
                    "models with keys and values of their own only");
    if (!status && model->net->hp.norms_v)
        return lk_fail(err, LK_E_UNSUPPORTED,
                       "%s models normalize V after its projection; bases, adapters and networks "
                       "are not made for them",
                       model->net->arch);
    if (status || model->net->hp.n_recurrent == 0) return status;
    return lk_fail(
        err, LK_E_UNSUPPORTED,
        "%d of the model's %d layers are recurrent; bases, adapters and networks are made "
        "for models with attention in every layer only",
        model->net->hp.n_recurrent, model->net->hp.n_layer);
}

/* In memory: small tensors, what sessions read of the bases, and what adapters add to weights. */
static uint64_t sidecar_bytes(const struct lk_model *model) {
    return model->sidecar->bytes + lk_latent_store_bytes(model->latents) +
           model->net->adapter_bytes;
}

/* Bytes that are held on a device. */
static uint64_t device_bytes(const struct lk_ggml_device *device) {
    uint64_t sum = 0;
    for (int i = 0; device && i < LK_N_PURPOSE; i++)
        sum += lk_ledger_bytes(&device->ledger, (enum lk_purpose)i);
    return sum;
}

bool lk_model_is_card(const struct lk_model *model, const struct lk_device *rows) {
    const struct lk_ggml_device *device = model->net->device;
    return rows && device && !rows->uses_host && strcasecmp(rows->name, device->name) == 0;
}

/* Why prompts attend in RAM, or NULL. */
static const char *prompt_lack(const struct lk_model *model) {
    if (!model->net->device || model->prompt_lack) return model->prompt_lack;
    return lk_model_is_card(model, model->cache_device) ? NULL
                                                        : "caches are not on the same device";
}

lk_model_info lk_model_get_info(const lk_model *model) {
    const struct lk_net *net = model->net;
    const struct lk_hparams *hp = &net->hp;
    struct lk_cache_shape shape = lk_model_cache_shape(model);
    struct lk_special_tokens special = lk_vocab_special(model->vocab);
    return (lk_model_info){.arch = net->arch,
                           .name = net->name,
                           .kernels = model->kernels->name,
                           .kernels_lack = model->kernels_lack,
                           .tokenizer_lack = lk_vocab_lack(model->vocab),
                           .sidecar_method = model->sidecar ? model->sidecar->info.method : NULL,
                           .sidecar_bytes = model->sidecar ? sidecar_bytes(model) : 0,
                           .sidecar_file_bytes = model->sidecar ? model->sidecar->file.size : 0,
                           .identity = net->identity,
                           .n_param = net->n_param,
                           .file_bytes = net->file_bytes,
                           .weight_bytes = net->weight_bytes - net->adapter_bytes,
                           .n_layer = hp->n_layer,
                           .n_cached = lk_hparams_cached(hp),
                           .n_embd = hp->n_embd,
                           .n_head = hp->n_head,
                           .n_head_kv = hp->n_head_kv,
                           .d_head = hp->d_head,
                           .d_rope = hp->d_rope,
                           .n_value = lk_cache_f16_bytes(&shape, 1) / sizeof(uint16_t),
                           .shared_bytes = lk_ledger_bytes(&model->ledger, LK_FOR_CACHE) +
                                           lk_ledger_bytes(&model->device_ledger, LK_FOR_CACHE),
                           .n_vocab = hp->n_vocab,
                           .n_ctx_train = hp->n_ctx_train,
                           .n_swa = hp->n_swa,
                           .n_threads = model->n_thread,
                           .device = net->device ? net->device->name : NULL,
                           .n_device_layers = net->device ? hp->n_layer - net->first_on_device : 0,
                           .prompt_lack = prompt_lack(model),
                           .n_device_recurrent = lk_recurrence_count_there(net),
                           .recurrence_lack = net->recurrence_lack,
                           .device_weight_bytes = net->device_bytes,
                           .device_bytes = device_bytes(net->device),
                           .bos = special.bos,
                           .eos = special.eos,
                           .eot = special.eot,
                           .is_adapted = model->adapter || model->lora};
}

bool lk_model_tuned(const lk_model *model, size_t i, lk_preset *out) {
    lk_preset preset;
    for (size_t k = 0; lk_recipe_tuned(k, &preset); k++) {
        if (preset.model != model->net->identity || i-- > 0) continue;
        *out = preset;
        return true;
    }
    return false;
}

lk_fim_tokens lk_model_get_fim_tokens(const lk_model *model) {
    return lk_vocab_fim_tokens(model->vocab);
}

uint64_t lk_model_sidecar_bytes(const struct lk_model *model, const struct lk_recipe *recipe,
                                uint64_t latents) {
    bool reads = model->sidecar && (latents || recipe->absorbs);
    return (reads ? model->sidecar->bytes + latents : 0) + model->net->adapter_bytes;
}

struct lk_cache_shape lk_model_cache_shape(const struct lk_model *model) {
    const struct lk_hparams *hp = &model->net->hp;
    return (struct lk_cache_shape){
        .n_layer = lk_hparams_cached(hp),
        .n_head_kv = hp->n_head_kv,
        .d_head = hp->d_head,
        .d_rope = hp->d_rope,
        .n_swa = hp->n_swa,
        .n_head_kv_swa = hp->n_head_kv_swa,
        .d_head_swa = hp->d_head_swa,
        .is_swa = hp->n_swa > 0 ? hp->is_swa : NULL,
        .basis = model->sidecar ? (const struct lk_basis *const *)model->sidecar->basis : NULL,
        .latents = model->latents,
        .rope = model->rope,
        .no_rope = hp->n_recurrent > 0 ? NULL : hp->no_rope, /* hybrids rotate in all layers */
        .n_ctx = hp->n_ctx_train,
        .n_head = hp->n_head,
        .place = model->place,
        .kernels = model->kernels};
}

lk_status lk_tokenize(const lk_model *model, const char *text, size_t len, unsigned flags,
                      size_t n_max, int32_t **tok, size_t *n_tok, lk_err *err) {
    return lk_vocab_tokenize(model->vocab, text, len, flags, n_max, tok, n_tok, err);
}

const char *lk_model_chat_template(const lk_model *model) {
    return lk_vocab_chat_template_text(model->vocab);
}

lk_status lk_model_set_chat_template(lk_model *model, const char *text, lk_err *err) {
    return lk_vocab_set_chat_template(model->vocab, text, err);
}

lk_status lk_model_check_chat_template(const lk_model *model, lk_err *err) {
    const struct lk_chat_template *parsed;
    return lk_vocab_chat_template(model->vocab, &parsed, err);
}

void lk_tokens_free(int32_t *tok) { free(tok); }

void lk_text_free(char *text) { free(text); }

const char *lk_token_text(const lk_model *model, int32_t tok, size_t *len) {
    return lk_vocab_token_text(model->vocab, tok, len);
}

bool lk_token_is_control(const lk_model *model, int32_t tok) {
    return lk_vocab_is_control(model->vocab, tok);
}

bool lk_token_ends(const lk_model *model, int32_t tok) {
    return lk_vocab_is_eog(model->vocab, tok);
}

lk_status lk_chat_format(const lk_model *model, const lk_message *msg, size_t n_msg, bool reply,
                         char **text, lk_err *err) {
    return lk_vocab_chat_format(model->vocab, msg, n_msg, reply, text, err);
}

lk_status lk_chat_format_json(const lk_model *model, const lk_chat *chat, char **text,
                              lk_err *err) {
    return lk_vocab_chat_format_json(model->vocab, chat, text, err);
}

uint64_t lk_chat_bytes(uint64_t n_json) { return lk_jinja_max_bytes(n_json); }

lk_status lk_chat_call_words(const lk_model *model, lk_call_words *words, lk_err *err) {
    return lk_vocab_call_words(model->vocab, words, err);
}

/* ---- rotation ----
 *
 * The rotation parameters of a model, measured on what ggml's rope operator does to marked rows.
 *
 * A row with 1 in the first channel of each pair becomes (m cos a, m sin a) of the pair's angle a.
 * Position 1 gives the speed of each pair, because no pair turns by half a circle per position.
 * Each doubling of the position doubles the error of the speed so far and so adds one bit. */

enum { N_MARK = 13, NODES = 16 }; /* positions 1, 2, 4, ..., 4096 */

static int rotated_channels(const struct lk_hparams *hp, int layer) {
    return hp->is_swa[layer] ? hp->n_rot_swa : hp->n_rot;
}

/* Rotate marked rows to these positions. The result is in graph->x_out, [N_MARK][n_rot]. */
static lk_status rotate_marks(struct lk_graph *graph, struct lk_model *model, int layer,
                              bool halves, lk_err *err) {
    int n_rot = rotated_channels(&model->net->hp, layer);
    lk_status status = lk_graph_begin(graph, NODES, &model->ledger, err);
    if (status) return status;
    graph->x_in = ggml_new_tensor_3d(graph->ctx, GGML_TYPE_F32, n_rot, 1, N_MARK);
    graph->pos = ggml_new_tensor_1d(graph->ctx, GGML_TYPE_I32, N_MARK);
    ggml_set_input(graph->x_in);
    ggml_set_input(graph->pos);
    struct lk_net on_cpu = *model->net; /* a layer of a device turns alike */
    on_cpu.device = NULL;
    graph->x_out = lk_apply_rope(&on_cpu, graph->ctx, layer, graph->x_in, graph->pos);
    ggml_set_output(graph->x_out);
    ggml_build_forward_expand(graph->graph, graph->x_out);
    status = lk_graph_finish(graph, &model->ledger, err);
    if (status) return status;
    float row[2 * LK_MAX_PAIR] = {0};
    for (int pair = 0; pair < n_rot / 2; pair++) row[halves ? pair : 2 * pair] = 1;
    for (int32_t mark = 0, pos = 1; mark < N_MARK; mark++, pos *= 2) {
        lk_graph_set(graph->pos, (size_t)mark * sizeof pos, &pos, sizeof pos);
        lk_graph_set(graph->x_in, (size_t)(mark * n_rot) * sizeof *row, row,
                     (size_t)n_rot * sizeof *row);
    }
    return lk_graph_run(graph, model, err);
}

static lk_status measure_rope(struct lk_rope *rope, struct lk_model *model, int layer,
                              lk_err *err) {
    const double turn = 6.28318530717958647692;
    const struct lk_hparams *hp = &model->net->hp;
    bool halves = hp->rope_mode != GGML_ROPE_TYPE_NORMAL;
    int n_rot = rotated_channels(hp, layer), n_pair = n_rot / 2, next = halves ? n_pair : 1;
    struct lk_graph graph = {0};
    lk_status status = rotate_marks(&graph, model, layer, halves, err);
    if (!status) {
        float x[2 * LK_MAX_PAIR * N_MARK];
        lk_graph_get(graph.x_out, 0, x, ggml_nbytes(graph.x_out));
        double speed[LK_MAX_PAIR];
        for (int pair = 0; pair < n_pair; pair++) {
            speed[pair] = 0;
            for (int mark = 0; mark < N_MARK; mark++) {
                const float *at = x + mark * n_rot + (halves ? pair : 2 * pair);
                double pos = (double)(1 << mark);
                speed[pair] += remainder(atan2(at[next], at[0]) - pos * speed[pair], turn) / pos;
            }
        }
        lk_rope_init(rope, n_pair, halves, hypotf(x[0], x[next]), speed);
    }
    lk_graph_free(&graph, &model->ledger);
    return status;
}

lk_status lk_model_add_ropes(struct lk_model *model, lk_err *err) {
    const struct lk_hparams *hp = &model->net->hp;
    if (hp->rope_mode < 0) return LK_OK;
    model->rope = lk_alloc(&model->ledger, LK_FOR_WEIGHTS, 2 * sizeof *model->rope);
    if (!model->rope) return lk_fail(err, LK_E_NOMEM, "out of memory for the model's rotations");
    lk_status status = LK_OK;
    bool measured[2] = {false, false};
    for (int layer = 0; !status && layer < hp->n_layer; layer++) {
        bool swa = hp->n_swa > 0 && hp->is_swa[layer];
        if (hp->is_recurrent[layer]) continue;
        if (!measured[swa]) status = measure_rope(&model->rope[swa], model, layer, err);
        measured[swa] = true;
    }
    return status;
}
