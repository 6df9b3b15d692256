/* The engine's own view of a model and a session. */
#ifndef LK_ENGINE_ENGINE_H
#define LK_ENGINE_ENGINE_H

#include "attention/attention.h"
#include "cache/cache.h"
#include "engine/absorb.h"
#include "model/net.h"
#include "sidecar/sidecar.h"
#include "token/vocab.h"

#include "ggml-alloc.h"
#include "ggml-cpu.h"

#include <pthread.h>

enum { LK_MAX_CTX = 1 << 24 }; /* tokens of a session */

struct lk_model {
    struct lk_ledger ledger; /* weights and handles */
    struct lk_net *net;
    struct lk_vocab *vocab;
    struct lk_sidecar *sidecar; /* or NULL */
    struct lk_rope *rope;       /* [2] of full and of sliding layers, NULL: it does not rotate */
    const struct lk_kernels *kernels;
    struct ggml_threadpool *pool; /* the threads that compute; used, with `work`, under `lock` */
    uint8_t *work;
    size_t work_size;
    pthread_mutex_t lock;
    int n_thread;
};

/* A ggml graph with the memory it computes in. */
struct lk_graph {
    void *mem; /* of ctx: tensors' headers and the graph */
    size_t mem_size;
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    ggml_gallocr_t alloc;
    size_t alloc_size; /* as entered in the ledger */
    struct ggml_tensor *tok, *pos, *x_in, *x_out, *logits;
    struct ggml_tensor *out; /* rows that have logits, where not all have; else NULL */
    int n_tok, n_out;
    bool needs_scores; /* it tells policies what rows get */
    bool grads;        /* set before lk_graph_begin: it can be differentiated */
};

struct lk_session;

/* One sequence of a pass: rows [row, row + n_tok) of the pass are its newest tokens. */
struct lk_seq {
    struct lk_session *session;
    const struct lk_kv
        *read[2]; /* K and V that its queries attend to; NULL: its cache's, layer by layer */
    int row, n_tok;
    int n_range; /* of the attention under way: lk_attn_ranges */
    float *
        attn_scores; /* where the weights go that rows get (lk_attn_accumulate_scores), in layers whose
                                          policy listens */
    size_t partial;     /* where its part of the pass's attn.partial begins */
    _Atomic int failed; /* a custom node could not do its work (lk_status) */
};

/* What the custom nodes of one layer's attention find through their userdata. */
struct lk_layer_job {
    struct lk_pass *pass;
    int layer;
};

/* Sequences that go through the layers together, and the memory that they compute in. Rows of all
 * sequences follow each other in one graph; what is particular to a sequence the nodes find in `seq`, so
 * that the graph serves any sequences of the same number of rows. */
struct lk_pass {
    struct lk_model *model;
    struct lk_ledger *ledger;
    struct lk_graph graph;       /* kept from call to call while its shape fits */
    struct lk_layer_job *job;    /* [n_layer] */
    struct lk_attn attn;         /* what all sequences and layers have in common */
    size_t n_partial, n_scratch; /* floats */
    struct lk_seq *seq;          /* [n_seq], room for seq_cap */
    size_t n_seq, seq_cap;
};

/* Sees each layer's call of attention in a step, on one thread, when the step's rows are in the cache
 * and none has been coded again. */
struct lk_watch {
    void (*see)(void *user, int layer, const struct lk_attn *attn); /* NULL: nobody watches */
    void *user;
};

struct lk_session {
    struct lk_ledger ledger; /* cache and scratch */
    struct lk_model *model;
    const struct lk_recipe *recipe;
    lk_session_opts opts;
    struct lk_cache *cache;
    struct lk_pass pass; /* for evaluating it alone; a lk_batch has another */
    struct lk_watch watch;
    struct lk_absorb
        *absorb; /* what was let go, where the recipe says so and lk_session_absorb was called */
    struct lk_cache_widths width; /* of the cache's levels */
    float *logits;                /* [n_logits][n_vocab] */
    size_t logits_cap;            /* rows that fit */
    int32_t n_logits;
    int32_t *tok; /* [n_ctx] what the session has seen */
    size_t n_tok;
};

struct lk_batch {
    struct lk_ledger ledger; /* scratch */
    struct lk_pass pass;
};

struct lk_sampler {
    struct lk_sampling *sampling; /* token/sampling.h */
};

/* graph.c: memory and running of ggml graphs. Node counts include the graph's own. */
lk_status lk_graph_begin(struct lk_graph *graph, int n_node, struct lk_ledger *ledger, lk_err *err);
/* n 32-bit integers that are set before each run. */
struct ggml_tensor *lk_graph_input(struct lk_graph *graph, size_t n);
/* A node that is computed, after `after` [n_after], for what it does; its value is nothing. */
struct ggml_tensor *lk_graph_effect(struct ggml_context *ctx, ggml_custom_op_t op,
                                    struct ggml_tensor **after, int n_after, void *user);
lk_status lk_graph_finish(struct lk_graph *graph, struct lk_ledger *ledger, lk_err *err);
/* Take the memory that running the finished graph wants. */
lk_status lk_graph_ready(struct lk_graph *graph, struct lk_model *model, lk_err *err);
/* Compute it. A failure may come after nodes have done their work, but not for memory where lk_graph_ready took it. */
lk_status lk_graph_run(struct lk_graph *graph, struct lk_model *model, lk_err *err);
/* Positions first, first + 1, ... of rows [row, row + n) into graph->pos, where the family reads them at all. */
void lk_graph_set_positions(struct lk_graph *graph, size_t row, size_t first, size_t n);
void lk_graph_free(struct lk_graph *graph, struct lk_ledger *ledger);

/* step.c: an empty pass; `ledger` is borrowed. Memory for attention is taken when it is first wanted. */
lk_status lk_pass_open(struct lk_pass *pass, struct lk_model *model, struct lk_ledger *ledger,
                       lk_err *err);
void lk_pass_close(struct lk_pass *pass);

/* step.c: empty the pass and make room for n sequences. */
lk_status lk_pass_begin(struct lk_pass *pass, size_t n_seq, lk_err *err);
/* step.c: a sequence's n_tok rows, behind those of the sequences before it. */
struct lk_seq *lk_pass_add(struct lk_pass *pass, struct lk_session *session, int n_tok);
/* step.c: memory for the attention of the pass's sequences. */
lk_status lk_pass_reserve(struct lk_pass *pass, lk_err *err);
/* step.c: the graph of the pass's n_row rows, n_out of which have logits; then the rows' tokens, their
 * positions and which have logits are set in it, and lk_graph_run computes it. */
lk_status lk_pass_build(struct lk_pass *pass, int n_row, int n_out, lk_err *err);

/* batch.c: lk_batch_eval, in the memory of `pass`. */
lk_status lk_pass_eval(struct lk_pass *pass, lk_batch_item *item, size_t n, lk_err *err);

/* prefill.c: read a prompt into an empty session, exactly and layer by layer. */
lk_status lk_prefill(struct lk_session *session, const int32_t *tok, size_t n_tok, lk_err *err);

/* prefill.c: read one prompt into n > 0 sessions of one model, whatever their recipes, as lk_session_sync would
 * read it into each of them when empty. What they held is forgotten; tok: of the vocabulary. Exact rows are
 * computed once for all sessions but those whose policies choose rows; the first session's progress is called.
 * After a failure all are empty. */
lk_status lk_prefill_all(struct lk_session *const *session, size_t n, const int32_t *tok,
                         size_t n_tok, lk_err *err);

/* step.c: the slots of a sequence's layer, or NULL. */
const struct lk_evict *lk_seq_evict(const struct lk_seq *seq, int layer);

/* step.c: nodes that attend with pre's queries to what each sequence of the pass reads, once `ready` is
 * computed, and with it the sequences' n_range; the result is [n_tok][n_head * d_head]. last:
 * lk_combine_node, or what calls it. */
struct ggml_tensor *lk_attention_nodes(struct ggml_context *ctx, struct lk_layer_job *job,
                                       const struct lk_pre *pre, struct ggml_tensor *ready,
                                       ggml_custom_op_t last);
void lk_combine_node(struct ggml_tensor *dst, int ith, int nth, void *userdata);

/* session.c: let a session whose recipe says `absorb` do so, `less` by the networks of `sidecar`, which must
 * outlive it. lk_session_new does so where it can. The session is empty. Errors as lk_absorb_new, and LK_E_UNSUPPORTED for models with sliding
 * windows or ALiBi. */
lk_status lk_session_absorb(struct lk_session *session, const struct lk_sidecar *sidecar,
                            lk_err *err);

/* session.c: memory for a step of n tokens, and nothing absorbed where the session is empty. */
lk_status lk_session_reserve_absorb(struct lk_session *session, int n_tok, lk_err *err);

/* session.c: may these tokens be appended? */
lk_status lk_session_check(const struct lk_session *session, const int32_t *tok, size_t n_tok,
                           lk_err *err);
/* session.c: room for n rows of logits; those that are there stay. */
lk_status lk_session_reserve_logits(struct lk_session *session, size_t n, lk_err *err);

/* repeat.c: reach a depth without computing it. Append n_tok tokens whose K and V rows are those that
 * `source`, a session of the same model with exact f16 rows, holds, again and again from where the
 * session stands. The rows age as any others; there are no logits afterwards. The session's progress
 * is called. After a failure the session is empty. */
lk_status lk_session_repeat(struct lk_session *session, const struct lk_session *source,
                            size_t n_tok, lk_err *err);

/* rope.c: give a model whose keys are rotated its ropes. */
lk_status lk_model_add_ropes(struct lk_model *model, lk_err *err);

/* The cache's shape for a model. */
struct lk_cache_shape lk_model_cache_shape(const struct lk_model *model);

#endif
