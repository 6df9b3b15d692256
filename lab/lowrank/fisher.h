/* Fisher information of the key and value projections: how sensitive the loss on a text is to them
 * (Palu, section 3.3).
 *
 * ggml differentiates the mean cross-entropy of a window's next tokens with respect to each W_K and
 * W_V, on the family's own graph with plain causal attention. With g the gradient of one weight
 * in one window and n the number of windows, the score of a KV head is the sum of
 * (sum of g^2 over windows) / n over its rows of W.
 *
 * ggml can differentiate the operations of llama, qwen2 and qwen3. It cannot differentiate layer
 * norm and GELU (falcon, bloom, gpt2), GEGLU (gemma3) or ALiBi (bloom). Weights must be f32. */
#ifndef LK_LOWRANK_FISHER_H
#define LK_LOWRANK_FISHER_H

#include "engine/session_state.h"

struct lk_fisher {
    struct lk_ledger *ledger;
    int32_t n_layer, n_head_kv, n_row, n_in; /* n_row x n_in: one W */
    uint64_t n;                              /* windows */
    float *square;                           /* [n_layer][K, V][n_row][n_in] sum of g^2 */
};

/* LK_E_UNSUPPORTED if the model cannot be differentiated. */
lk_status lk_fisher_check(const struct lk_net *net, lk_err *err);

/* Empty sums; also checks. */
lk_status lk_fisher_new(struct lk_fisher *f, struct lk_model *model, struct lk_ledger *ledger,
                        lk_err *err);
void lk_fisher_free(struct lk_fisher *f);

/* A text and how to differentiate its loss. */
struct lk_fisher_text {
    const int32_t *tok; /* [n_tok] */
    size_t n_tok;
    int n_ctx;            /* tokens of a window; a shorter rest is ignored */
    lk_progress progress; /* may be NULL; counts tokens */
    void *user;
};

/* Add the gradients of a text. *loss (may be NULL): mean loss, in nats. */
lk_status lk_fisher_add(struct lk_fisher *f, struct lk_model *model,
                        const struct lk_fisher_text *text, double *loss, lk_err *err);

/* The score of KV heads [first, first + n) of a layer's K or V. */
double lk_fisher_score(const struct lk_fisher *f, int layer, enum lk_side side, int first, int n);

#endif
