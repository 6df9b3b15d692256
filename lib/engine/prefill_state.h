/* What an exact prefill holds, and a prefill that was cut short. */
#ifndef LK_ENGINE_PREFILL_STATE_H
#define LK_ENGINE_PREFILL_STATE_H

#include "engine/prefill_card.h"
#include "engine/replay.h"
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
    float *x; /* [n_tok + n_replay][n_embd] hidden states; NULL: none are in RAM */
    size_t x_size;
    bool has_begun;     /* there is memory, and x */
    const int32_t *tok; /* [n_tok] */
    int32_t *replay;    /* [n_replay] (replay.h), or NULL */
    size_t n_replay;
    int layer; /* the next step: of the layers */
    size_t at; /* and of the tokens, then of the replay's, if the layer is prepared */
    bool is_prepared;
    struct lk_exact_rows exact_kv[LK_EXACT_KINDS][2]; /* [kind of layer][K, V] */
    struct lk_exact_rows *exact;                      /* [2] of the current layer */
    struct lk_layer_job job;                          /* of the current layer */
    float *attn_scores;          /* [n_tok][n_head_kv]; NULL if no policy needs scores */
    struct lk_scored_row *order; /* [n_head_kv][n_tok] scratch of lk_evict_select; NULL if unused */
    struct lk_evict_scratch scratch; /* bytes of attn_scores and order */
    struct lk_graph graph;
    struct lk_prefill_card card; /* of layers that attend there (prefill_card.h) */
    /* [n_embd] or NULL. Not NULL: x becomes the hidden states after the final norm, which are
     * pooled to it, and no logits are computed. */
    float *embedding;
    lk_pooling pooling;
};

/* Bytes of exact K and V that a prefill holds in RAM per token: one layer's, and one more's if
 * later layers attend to them. card: layers that can are on the card. */
uint64_t lk_prefill_exact_bytes(const struct lk_net *net, bool card);

/* Exact rows that a layer has room for: of the prompt, and of a chunk of the replay. */
static inline size_t lk_prefill_rows(size_t n_tok, size_t n_replay) {
    return n_tok + (n_replay < LK_PREFILL_CHUNK ? n_replay : LK_PREFILL_CHUNK);
}

/* Bytes in RAM of hidden states, exact rows and a replay's tokens, likewise. */
uint64_t lk_prefill_bytes(const struct lk_net *net, bool card, size_t n_tok, size_t n_replay);

/* Does a layer of the prefill attend on the card? Its x is there too. */
static inline bool lk_prefill_is_there(const struct lk_prefill *p, int layer) {
    return p->card.used && lk_prefill_card_has(p->net, layer);
}

/* If a session has a memory limit, check that the whole prompt of p fits before the first token is
 * computed. LK_E_NOMEM. */
lk_status lk_prefill_check_limit(const struct lk_prefill *p, const struct lk_session *s,
                                 lk_err *err);

/* The replay that a policy of p needs; none of a prefill for an embedding. LK_E_NOMEM. */
lk_status lk_prefill_set_replay(struct lk_prefill *p, lk_err *err);

/* Tokens of the prompt and its replay; those from `at` on, up to the end of a chunk; the position
 * of the first of these. A chunk of the replay follows the prompt directly. */
static inline size_t lk_prefill_end(const struct lk_prefill *p) { return p->n_tok + p->n_replay; }
static inline const int32_t *lk_prefill_tok(const struct lk_prefill *p, size_t at) {
    return at < p->n_tok ? p->tok + at : p->replay + (at - p->n_tok);
}
static inline size_t lk_prefill_pos(const struct lk_prefill *p, size_t at) {
    return at < p->n_tok ? at : p->n_tok;
}

/* Memory for all tokens of p; lk_prefill_alloc_rows: without hidden states, if no layer is
 * computed. The caller frees what was allocated, also after a failure: LK_E_NOMEM. */
lk_status lk_prefill_alloc(struct lk_prefill *p, lk_err *err);
lk_status lk_prefill_alloc_rows(struct lk_prefill *p, lk_err *err);
void lk_prefill_free(struct lk_prefill *p);

/* ---- a prefill that was cut short ----
 *
 * It stays in its session (lk_session.suspended), which has no tokens then, with all that the next
 * step needs: hidden states, the exact rows of the layer, the encoded rows of the layers before it,
 * the states of recurrent layers, and the planned checkpoints. Its tokens are session->tok. */

/* A prefill of session->tok[0..n_tok), before its first step, as session->suspended. LK_E_NOMEM. */
lk_status lk_prefill_suspend_new(struct lk_session *session, size_t n_tok, lk_err *err);

/* Drop the suspended prefill, if there is one, and its checkpoints. The cache's rows stay. */
void lk_prefill_drop(struct lk_session *session);

/* What a prefill has done, in tokens through all layers. */
size_t lk_prefill_done(const struct lk_prefill *p);

/* How many of tok[0..n_tok) need not be computed if the suspended prefill is completed first: what
 * it has done, in tokens through all layers, minus what tok does not need. 0 if the prefill is
 * worth nothing for it, or there is none. */
size_t lk_prefill_saved(const struct lk_session *session, const int32_t *tok, size_t n_tok);

#endif
