/* Attention calls of sequences. */
#include "engine/pass_attn.h"

#include "attention/read.h"
#include "engine/pass.h"
#include "engine/session_state.h"

bool lk_device_has_rows(const struct lk_seq *seq) {
    return seq->session->rows.device && !seq->source[LK_K];
}

struct lk_attn lk_pass_attn(const struct lk_layer_job *job) {
    struct lk_attn attn = job->pass->attn;
    attn.n_head_kv = job->heads.n_kv;
    attn.d_head = job->heads.d;
    return attn;
}

size_t lk_pass_partial_floats(const struct lk_hparams *hp, int latent, int n_tok, int n_thread) {
    size_t full = lk_attn_partial_floats(hp->n_head, hp->n_head_kv, hp->d_head + latent, n_tok,
                                         n_thread),
           swa = lk_attn_partial_floats(hp->n_head, hp->n_head_kv_swa, hp->d_head_swa + latent,
                                        n_tok, n_thread);
    return full > swa ? full : swa;
}

size_t lk_pass_read_floats(const struct lk_recipe *recipe, int64_t n_ctx,
                           const struct lk_hparams *hp) {
    size_t full = lk_read_floats(recipe, n_ctx, hp->n_head, hp->n_head_kv, hp->d_head),
           swa = lk_read_floats(recipe, n_ctx, hp->n_head, hp->n_head_kv_swa, hp->d_head_swa);
    return full > swa ? full : swa;
}

uint64_t lk_pass_device_bytes(const struct lk_model *model, const struct lk_cache_shape *shape,
                              const struct lk_cache_needs *needs, uint64_t sums, uint64_t chunk) {
    const struct lk_hparams *hp = &model->net->hp;
    uint64_t width = hp->d_head + hp->d_rope, staged = chunk > LK_MAX_MOVE ? chunk : LK_MAX_MOVE,
             n_range = (uint64_t)needs->n_range + (sums > 0);
    if (!shape->device) return 0;
    if ((uint64_t)hp->d_head_swa > width) width = hp->d_head_swa;
    uint64_t partial = lk_pass_partial_floats(hp, needs->width.latent, chunk, model->n_thread),
             there = chunk * hp->n_head * n_range * (width + LK_ATTN_SUMS),
             score = needs->evict_scratch.attn_scores + chunk * hp->n_head * sizeof(float);
    uint64_t floats = 2 * chunk * hp->n_head * width + (partial > there ? partial : there) +
                      staged * (lk_cache_width(shape, LK_K) + lk_cache_width(shape, LK_V));
    return floats * sizeof(float) + score + score / 8 + needs->device_scratch + sums +
           needs->device_packets + needs->device_packets / 4; /* tables grow by a quarter */
}

const float *lk_pass_queries(const struct lk_attn *attn, const struct ggml_tensor *q, int row) {
    return (const float *)q->data + (size_t)row * attn->n_head * (attn->d_head + attn->d_rope);
}

struct lk_attn lk_pass_seq_attn(const struct lk_layer_job *job, size_t i,
                                const struct ggml_tensor *q, const struct ggml_tensor *out) {
    const struct lk_seq *seq = &job->pass->seq[i];
    const struct lk_kv *cache = seq->session->cache->kv[job->index];
    struct lk_attn attn = lk_pass_attn(job);
    attn.k = seq->source[LK_K] ? seq->source[LK_K] : &cache[LK_K];
    attn.v = seq->source[LK_V] ? seq->source[LK_V] : &cache[LK_V];
    attn.is_prompt = seq->source[LK_K] && seq->source[LK_V];
    attn.rope = lk_cache_rope(&seq->session->cache->shape, job->index);
    const struct ggml_tensor *sinks = job->pass->model->net->layer[job->layer].attn_sinks;
    if (sinks) attn.sink = sinks->data;
    attn.n_tok = seq->n_tok;
    attn.thread_offset = (int)i;
    if (!seq->source[LK_K] && !seq->source[LK_V]) attn.read = seq->session->recipe->read;
    attn.read_scratch = seq->session->read_scratch;
    attn.read_floats = seq->session->read_floats;
    if (attn.read > 0) attn.read_count = seq->session->read_count;
    attn.partial += seq->partial;
    attn.restored = lk_device_has_rows(seq) && !seq->session->rows.device->uses_host;
    if (q) attn.q = lk_pass_queries(&attn, q, seq->row);
    if (out) attn.out = (float *)out->data + (size_t)seq->row * attn.n_head * attn.d_head;
    return attn;
}
