/* The engine's own view of a model and a session. */
#ifndef LK_ENGINE_ENGINE_H
#define LK_ENGINE_ENGINE_H

#include "attn/attn.h"
#include "cache/cache.h"
#include "model/model.h"
#include "token/vocab.h"

#include "ggml-alloc.h"
#include "ggml-cpu.h"

#include <pthread.h>

struct lk_model {
    struct lk_ledger       ledger; /* weights and handles */
    struct lk_net         *net;
    struct lk_vocab       *vocab;
    const struct lk_kern  *kern;
    struct ggml_threadpool *pool;   /* the threads that compute; used, with `work`, under `lock` */
    uint8_t               *work;
    size_t                 work_size;
    pthread_mutex_t        lock;
    int                    n_thread;
};

/* A ggml graph with the memory it computes in. */
struct lk_graph {
    void                *mem;    /* of ctx: tensors' headers and the graph */
    size_t               mem_size;
    struct ggml_context *ctx;
    struct ggml_cgraph  *graph;
    ggml_gallocr_t       alloc;
    size_t               alloc_size; /* as entered in the ledger */
    struct ggml_tensor  *tok, *pos, *x_in, *x_out, *logits;
    int                  n_tok;
    bool                 all;    /* logits of every token */
};

struct lk_session;

/* What the custom nodes of one layer's attention find through their userdata. */
struct lk_layer_job {
    struct lk_session      *session;
    int                     layer;
    const struct lk_stream *read[2]; /* K and V that queries attend to: the cache's, or a prompt's exact rows */
    int                     n_range; /* of the attention under way: lk_attn_ranges                            */
};

/* Sees each layer's call of attention in a step, on one thread, when the step's rows are in the cache
 * and none has been coded again. */
struct lk_watch {
    void (*see)(void *user, int layer, const struct lk_attn *attn); /* NULL: nobody watches */
    void  *user;
};

struct lk_session {
    struct lk_ledger     ledger; /* cache and scratch */
    struct lk_model     *model;
    const struct lk_recipe *recipe;
    lk_session_opts      opts;
    struct lk_cache     *cache;
    struct lk_graph      step;     /* kept from call to call while its shape fits       */
    struct lk_layer_job *job;      /* [n_layer]                                         */
    struct lk_attn       attn;     /* the call under way; same for all layers but streams */
    struct lk_watch      watch;
    size_t               n_partial, n_scratch; /* floats */
    float               *logits;   /* [n_logits][n_vocab] */
    size_t               logits_cap; /* rows that fit     */
    int32_t              n_logits;
    int32_t             *tok;      /* [n_ctx] what the session has seen */
    size_t               n_tok;
    _Atomic int          failed;   /* a custom node could not do its work (lk_status) */
};

/* graph.c: memory and running of ggml graphs. Node counts include the graph's own. */
lk_status lk_graph_begin(struct lk_graph *graph, int n_node, struct lk_ledger *ledger, lk_err *err);
lk_status lk_graph_finish(struct lk_graph *graph, struct lk_ledger *ledger, lk_err *err);
lk_status lk_graph_run(struct lk_graph *graph, struct lk_model *model, lk_err *err);
/* Positions first, first + 1, ... into graph->pos, where the family reads them at all. */
void      lk_graph_set_positions(struct lk_graph *graph, size_t first, size_t n);
void      lk_graph_free(struct lk_graph *graph, struct lk_ledger *ledger);

/* step.c: append n_tok tokens, attending through the cache. */
lk_status lk_step(struct lk_session *session, const int32_t *tok, int n_tok, bool all, lk_err *err);

/* prefill.c: read a prompt into an empty session, exactly and layer by layer. */
lk_status lk_prefill(struct lk_session *session, const int32_t *tok, size_t n_tok, lk_err *err);

/* prefill.c: read one prompt into n > 0 sessions of one model, whatever their recipes, as lk_session_sync would
 * read it into each of them when empty. What they held is forgotten; tok: of the vocabulary. Its exact rows are computed once; the first
 * session's progress is called. After a failure all are empty. */
lk_status lk_prefill_all(struct lk_session *const *session, size_t n, const int32_t *tok, size_t n_tok, lk_err *err);

/* step.c: nodes that attend with pre's queries to job->read once `ready` is computed, and with it
 * job->n_range; the result is [n_tok][n_head * d_head]. last: lk_combine_node, or what calls it. */
struct ggml_tensor *lk_attention_nodes(struct ggml_context *ctx, struct lk_layer_job *job, const struct lk_pre *pre,
                                       struct ggml_tensor *ready, ggml_custom_op_t last);
void lk_combine_node(struct ggml_tensor *dst, int ith, int nth, void *userdata);

/* session.c: forget every token; room for n rows of logits. */
void      lk_session_clear(struct lk_session *session);
lk_status lk_session_want_logits(struct lk_session *session, size_t n, lk_err *err);

/* repeat.c: reach a depth without computing it. Append n_tok tokens whose K and V rows are those that
 * `source`, a session of the same model with exact f16 rows, holds, again and again from where the
 * session stands. The rows age as any others; there are no logits afterwards. The session's progress
 * is called. After a failure the session is empty. */
lk_status lk_session_repeat(struct lk_session *session, const struct lk_session *source, size_t n_tok, lk_err *err);

/* repeat.c: make a session stand where `from` stands, with its last logits; both have the same model and
 * recipe. After a failure it is empty. */
lk_status lk_session_copy(struct lk_session *session, const struct lk_session *from, lk_err *err);

/* The cache's shape for a model. */
struct lk_cache_shape lk_model_cache_shape(const struct lk_model *model);

#endif
