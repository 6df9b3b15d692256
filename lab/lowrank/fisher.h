/* Fisher information of the key and value projections: how much the loss of predicting a text moves with them
 * (Palu, section 3.3).
 *
 * The gradient of the mean cross-entropy of a window's next tokens is taken for each W_K and W_V by ggml's automatic
 * differentiation, on the family's own graph with plain causal attention; g is the gradient of one weight in
 * one window, n the number of windows. By KV head, whose rows of W these are:
 *
 *   as the paper says    sum over weights of  (sum of g^2 over windows) / n
 *   as its code does     sum over weights of  sqrt((sum of g^2 over windows) / n); divided by their number where
 *                        ranks are shared out
 *
 * The code also shifts the labels twice (it shifts them, and so does the library that it calls): it looks at
 * the prediction of the token after the next. `shift` says which is wanted.
 *
 * ggml can differentiate what the families llama, qwen2 and qwen3 are made of. It cannot: layer norm and GELU (falcon,
 * bloom, gpt2), GEGLU (gemma3), ALiBi (bloom). Weights must be f32. */
#ifndef LK_LOWRANK_FISHER_H
#define LK_LOWRANK_FISHER_H

#include "engine/engine.h"

struct lk_fisher {
    struct lk_ledger *ledger;
    int32_t n_layer, n_head_kv, n_row, n_in; /* n_row x n_in: one W */
    uint64_t n;                              /* windows */
    float *square;                           /* [n_layer][K, V][n_row][n_in] sum of g^2 */
};

/* LK_E_UNSUPPORTED for a model that cannot be differentiated. */
lk_status lk_fisher_check(const struct lk_net *net, lk_err *err);

/* For a model that can be; asked again. */
lk_status lk_fisher_new(struct lk_fisher *f, struct lk_model *model, struct lk_ledger *ledger,
                        lk_err *err);
void lk_fisher_free(struct lk_fisher *f);

/* Add the gradients of windows of n_ctx tokens of tok[0..n_tok); what is left over is not read. shift: 1, or 2 as in
 * Palu's code. `progress` counts tokens. *loss (may be NULL): mean loss, in nats. */
lk_status lk_fisher_read(struct lk_fisher *f, struct lk_model *model, const int32_t *tok,
                         size_t n_tok, int n_ctx, int shift, lk_progress progress, void *user,
                         double *loss, lk_err *err);

enum lk_fisher_as { LK_FISHER_PAPER, LK_FISHER_CODE, LK_N_FISHER_AS };

/* The score of heads [first, first + n) of a layer's side; its sum over weights, or its mean as in the code. */
double lk_fisher_score(const struct lk_fisher *f, int layer, enum lk_side side, int first, int n,
                       enum lk_fisher_as as);

#endif
