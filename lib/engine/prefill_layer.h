/* A layer of an exact prefill (prefill.h). */
#ifndef LK_ENGINE_PREFILL_LAYER_H
#define LK_ENGINE_PREFILL_LAYER_H

#include "engine/session_state.h"

enum {
    LK_PREFILL_CHUNK = LK_EVAL_MAX,
    LK_PREFILL_NODES = 2 * LK_LAYER_NODES,
    LK_EXACT_KINDS = 2 /* of layers: all; those with a window, if layers share rows */
};

/* Exact K or V rows of a layer: one level with one block, with room for all tokens. */
struct lk_exact_rows {
    struct lk_kv kv;
    struct lk_arena arena; /* whose only block has the rows */
    struct lk_slab slab;
    lk_block block;
    void *rows;  /* [n_head_kv][n_tok][d_head] f16 */
    size_t size; /* bytes of the rows, with room for the layers that use it */
};

struct lk_prefill {
    struct lk_session *s;              /* the first session: its pass and ledger are used */
    struct lk_session *const *session; /* [n_session] receive the rows */
    size_t n_session;
    const struct lk_net *net;
    size_t n_tok;
    float *x; /* [n_tok][n_embd] hidden states */
    size_t x_size;
    const int32_t *tok;                               /* [n_tok] */
    struct lk_exact_rows exact_kv[LK_EXACT_KINDS][2]; /* [kind of layer][K, V] */
    struct lk_exact_rows *exact;                      /* [2] of the current layer */
    struct lk_layer_job job;                          /* of the current layer */
    float *attn_scores;          /* [n_tok][n_head_kv]; NULL if no policy needs scores */
    struct lk_scored_row *order; /* [n_head_kv][n_tok] scratch of lk_evict_select; NULL if unused */
    struct lk_evict_scratch scratch; /* bytes of attn_scores and order */
    struct lk_graph graph;
    /* [n_embd] or NULL. Not NULL: x becomes the hidden states after the final norm, which are
     * pooled to it, and no logits are computed. */
    float *embedding;
    lk_pooling pooling;
};

/* Make p->job and p->exact those of a layer, or of the layer whose rows it attends to, and find
 * memory for its rows. A planned checkpoint without memory, in any process, is dropped. The result
 * is that of all processes. */
lk_status lk_prefill_prepare_layer(struct lk_prefill *p, int layer, lk_err *err);

/* Tokens [at, at + n) through `layer`: prepare finds all memory, and compute replaces p->x, or
 * computes p->graph.logits. Neither does anything in a process without the layer. compute: LK_E_IO
 * if a process is lost; LK_E_NOMEM if ggml cannot start, which ends all. */
lk_status lk_prefill_prepare_chunk(struct lk_prefill *p, int layer, size_t at, size_t n,
                                   lk_err *err);
lk_status lk_prefill_compute_chunk(struct lk_prefill *p, int layer, size_t at, size_t n,
                                   lk_err *err);

#endif
