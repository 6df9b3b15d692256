/* The attention calls of a pass's sequences: what a layer and a sequence give to struct lk_attn,
 * and the memory that calls need. */
#ifndef LK_ENGINE_PASS_CALLS_H
#define LK_ENGINE_PASS_CALLS_H

#include "engine/pass.h"

/* What the attention of all sequences to a layer has in common. */
struct lk_attn lk_pass_attn(const struct lk_layer_job *job);

/* Floats of attn.partial for n_tok rows of a sequence, in any layer. latent: channels of the widest
 * latents of V. */
size_t lk_pass_partial_floats(const struct lk_hparams *hp, int latent, int n_tok, int n_thread);

/* lk_read_floats for the widest heads of the model. */
size_t lk_pass_read_floats(const struct lk_recipe *recipe, int64_t n_ctx,
                           const struct lk_hparams *hp);

/* The queries of row `row` of a matrix of all rows [n_row][n_head][d_head + d_rope]. */
const float *lk_pass_queries(const struct lk_attn *attn, const struct ggml_tensor *q, int row);

/* The attention call of sequence i in the job's layer. q and out are matrices of all rows,
 * [n_row][n_head][d_head + d_rope] and [n_row][n_head * d_head], or NULL. */
struct lk_attn lk_pass_seq_attn(const struct lk_layer_job *job, size_t i,
                                const struct ggml_tensor *q, const struct ggml_tensor *out);

/* Attention of the sequences whose rows are on devices: as many calls at once as are on one. q and
 * out: as above, out in the memory of the device, and then q too, or NULL: partials come to RAM. */
void lk_pass_attend_on_devices(const struct lk_layer_job *job, const struct ggml_tensor *q,
                               const struct ggml_tensor *out);

#endif
