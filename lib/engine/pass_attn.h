/* The attention calls of a pass's sequences, and the memory that they need. */
#ifndef LK_ENGINE_PASS_ATTN_H
#define LK_ENGINE_PASS_ATTN_H

#include "attention/attention.h"

struct ggml_tensor;
struct lk_cache_needs;
struct lk_cache_shape;
struct lk_hparams;
struct lk_layer_job;
struct lk_model;
struct lk_recipe;
struct lk_seq;

/* Does the sequence attend to rows on a device? Prompts attend to exact rows in RAM. */
bool lk_device_has_rows(const struct lk_seq *seq);

/* What the attention of all sequences to a layer has in common. */
struct lk_attn lk_pass_attn(const struct lk_layer_job *job);

/* Floats of attn.partial for n_tok rows of a sequence, in any layer. latent: channels of the widest
 * latents of V. */
size_t lk_pass_partial_floats(const struct lk_hparams *hp, int latent, int n_tok, int n_thread);

/* lk_read_floats for the widest heads of the model. */
size_t lk_pass_read_floats(const struct lk_recipe *recipe, int64_t n_ctx,
                           const struct lk_hparams *hp);

/* Bytes that a session with these needs has on the device of `shape`, next to rows: what its cache
 * has there, rows on their way, the sums of evicted rows (0: it has none), and for passes of up to
 * `chunk` tokens queries (of sinks that shift, twice), partial sums and scores. At most: what it
 * may need later counts, too. */
uint64_t lk_pass_device_bytes(const struct lk_model *model, const struct lk_cache_shape *shape,
                              const struct lk_cache_needs *needs, uint64_t sums, uint64_t chunk);

/* The queries of row `row` of a matrix of all rows [n_row][n_head][d_head + d_rope]. */
const float *lk_pass_queries(const struct lk_attn *attn, const struct ggml_tensor *q, int row);

/* The attention call of sequence i in the job's layer. q and out are matrices of all rows,
 * [n_row][n_head][d_head + d_rope] and [n_row][n_head * d_head], or NULL. */
struct lk_attn lk_pass_seq_attn(const struct lk_layer_job *job, size_t i,
                                const struct ggml_tensor *q, const struct ggml_tensor *out);

#endif
