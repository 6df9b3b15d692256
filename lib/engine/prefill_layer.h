/* A layer of an exact prefill (prefill.h). */
#ifndef LK_ENGINE_PREFILL_LAYER_H
#define LK_ENGINE_PREFILL_LAYER_H

#include "engine/session_state.h"

enum { LK_PREFILL_CHUNK = LK_EVAL_MAX, LK_PREFILL_NODES = 2 * LK_LAYER_NODES };

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
    const int32_t *tok; /* [n_tok] */
    /* [kind of layer][K, V]; the second kind: with a window, if layers share rows */
    struct lk_exact_rows exact_kv[2][2];
    struct lk_exact_rows *exact; /* [2] of the current layer */
    struct lk_layer_job job;     /* of the current layer */
    float *attn_scores;          /* [n_tok][n_head_kv]; NULL if no policy needs scores */
    struct lk_scored_row *order; /* [n_head_kv][n_tok] scratch of lk_evict_select; NULL if unused */
    struct lk_evict_scratch scratch; /* bytes of attn_scores and order */
    struct lk_graph graph;
    bool embeds; /* x becomes the hidden states after the final norm, and no logits are computed */
};

/* Let the exact rows be those of the current layer, or of the layer whose rows it attends to. */
void lk_prefill_choose_exact(struct lk_prefill *p);

/* Memory of the layer's rows. A planned checkpoint without memory, on any rank, is dropped. */
lk_status lk_prefill_alloc_layer(struct lk_prefill *p, lk_err *err);

/* Tokens [at, at + n) through `layer`: p->x is replaced, or p->graph.logits computed. Does nothing
 * on ranks of other stages. before: what happened on this rank before the chunk. The result is that
 * of all ranks. */
lk_status lk_prefill_run_chunk(struct lk_prefill *p, int layer, size_t at, size_t n,
                               lk_status before, lk_err *err);

#endif
