/* The graph of one layer with adapters and a lossy cache, and its gradient (lora_net.h). */
#ifndef LK_TRAINING_LORA_LAYER_H
#define LK_TRAINING_LORA_LAYER_H

#include "training/lora_net.h"

enum lk_lora_pass {
    LK_LORA_TEACH,    /* exact rows, no adapters: attn, out */
    LK_LORA_ROWS,     /* q, exact and body rows without delta */
    LK_LORA_FORWARD,  /* out */
    LK_LORA_BACKWARD, /* dx, da, db from dy */
    LK_LORA_MATCH,    /* loss, da, db for the target dy of attention */
};

/* Tensors are valid until the graph's next use. */
struct lk_lora_layer {
    struct lk_lora_net *net;
    enum lk_lora_pass pass;
    int layer;
    const float *x, *dy; /* [n_tok][n_embd] */
    float norm;          /* of LK_LORA_MATCH: the gradient is that of norm * loss */

    struct ggml_tensor *q;                      /* [n_tok][n_head][d_head] after RoPE */
    struct ggml_tensor *exact[2], *body[2];     /* [n_tok][n_head_kv][d_head], K after RoPE */
    struct ggml_tensor *attn, *out, *loss, *dx; /* loss: |attn - target|^2 */
    struct ggml_tensor *da[LK_N_ADAPTED], *db[LK_N_ADAPTED]; /* as A and B */
};

/* Create the nodes of the pass in g, which is empty. May throw. */
void lk_lora_layer_build(struct lk_lora_layer *layer, struct lk_graph *g);

#endif
