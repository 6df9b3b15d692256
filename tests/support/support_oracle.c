/* libllama's forward pass, as a reference. */
#include "support_oracle.h"

#include <stdio.h>

static void log_errors_only(enum ggml_log_level level, const char *text, void *user) {
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

bool oracle_open(struct oracle *oracle, const char *path, struct llama_model *model, int n_ctx,
                 enum ggml_type k, enum ggml_type v, bool flash, int n_threads) {
    llama_log_set(log_errors_only, NULL);
    *oracle = (struct oracle){.model = model};
    if (!model) oracle->model = llama_model_load_from_file(path, llama_model_default_params());
    if (!oracle->model) return false;
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = n_ctx;
    params.n_batch = params.n_ubatch = n_ctx < 512 ? n_ctx : 512;
    params.n_threads = params.n_threads_batch = n_threads;
    params.type_k = k;
    params.type_v = v;
    params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    oracle->ctx = llama_init_from_model(oracle->model, params);
    oracle->n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(oracle->model));
    return oracle->ctx != NULL;
}

void oracle_close(struct oracle *oracle, bool close_model) {
    if (oracle->ctx) llama_free(oracle->ctx);
    if (close_model && oracle->model) llama_model_free(oracle->model);
    *oracle = (struct oracle){0};
}

const float *oracle_eval(struct oracle *oracle, const int32_t *tok, int n, int pos) {
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    batch.n_tokens = n;
    for (int i = 0; i < n; i++) {
        batch.token[i] = tok[i];
        batch.pos[i] = pos + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    int status = llama_decode(oracle->ctx, batch);
    llama_batch_free(batch);
    return status == 0 ? llama_get_logits(oracle->ctx) : NULL;
}

void oracle_clear(struct oracle *oracle) {
    llama_memory_clear(llama_get_memory(oracle->ctx), true);
}

bool oracle_write_f32(const char *from, const char *to) {
    llama_log_set(log_errors_only, NULL);
    struct llama_model_quantize_params params = llama_model_quantize_default_params();
    params.ftype = LLAMA_FTYPE_ALL_F32;
    params.allow_requantize = true;
    params.nthread = 2;
    return llama_model_quantize(from, to, &params) == 0;
}
