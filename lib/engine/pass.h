/* A pass: the newest tokens of one or several sequences go through all layers together.
 *
 *   embed -> [ pre -> store -> attend -> combine -> post ] x n_layer -> head, age
 *
 * Rows of all sequences follow each other in one matrix. ggml computes everything outside of
 * attention for all rows at once. Custom nodes do the rest for each sequence:
 *
 *   store     appends the K and V rows to the caches
 *   attend    computes partial softmaxes over ranges of each cache
 *   gather    if a cache's rows are divided (cache/held.h): joins the ranges, and gathers what the
 *             other processes have joined
 *   combine   joins the ranges, or what was gathered
 *   age       re-encodes cache rows of all layers that are old enough
 *
 * A layer that attends to the rows of an earlier one stores none. Statistics of queries and scores
 * for policies belong to the layer that stored the rows. In a recurrent layer, the custom nodes
 * update the sequences' states instead. Rows age once no layer reads them any more, so that a
 * device moves the rows of all layers at once.
 *
 * The graph has the layers that are held here. If they are not all, hidden states come and go
 * instead of tokens and logits.
 *
 * The custom nodes find the sequences in lk_pass.seq, so one graph serves any sequences with the
 * same number of rows. Nodes of recurrences on a device name the sequences' states: then the graph
 * is made again for other sequences. */
#ifndef LK_ENGINE_PASS_H
#define LK_ENGINE_PASS_H

#include "attention/attention.h"
#include "engine/graph.h"
#include "lowkey_serve.h"

struct lk_session;

/* One sequence of a pass. Rows [row, row + n_tok) of the pass are its newest tokens. */
struct lk_seq {
    struct lk_session *session;
    lk_batch_entry *entry;         /* that it evaluates (batch.h), or NULL */
    const struct lk_kv *source[2]; /* K and V to attend to; NULL: the session's cache, each layer */
    struct lk_absorb *absorb;      /* sums to attend to in addition, or NULL */
    int row, n_tok;
    int n_out;          /* its last n_out rows get logits */
    bool drafts;        /* its rows can be dropped again (cache/cache.h) */
    int n_range;        /* of the current layer's attention (lk_attn_ranges) */
    float *attn_scores; /* receives the current layer's scores if its policy needs them */
    size_t partial;     /* offset of its part in the pass's attn.partial */
    _Atomic int failed; /* lk_status of a custom node that failed; the following ones skip it */
};

/* userdata of the custom nodes, or of the commands to a device, of one layer. */
struct lk_layer_job {
    struct lk_pass *pass;
    int layer; /* of the model */
    int index; /* of the layer among all of its kind: with a cache, or recurrent */
    struct lk_layer_heads heads; /* of a layer with attention */
    bool stores;                 /* it has K and V of its own: not an earlier layer's */
    bool observes; /* queries are shown to the caches; not if their rows are dropped again */
    struct ggml_tensor *tok;               /* on_card.h: the layer's token input, or NULL */
    struct ggml_tensor *q, *rows[2], *out; /* on_card.h: q, K, V, and the result of attention */
};

struct lk_pass {
    struct lk_model *model;
    struct lk_ledger *ledger;    /* of the pass's memory; borrowed */
    struct lk_graph graph;       /* reused while its shape fits */
    struct lk_layer_job *job;    /* [n_layer] */
    struct lk_attn attn;         /* what all sequences and layers have in common */
    size_t n_partial, n_scratch; /* floats of attn.partial and attn.scratch */
    float *joined, *gathered;    /* partials of this process, and of all, in the current layer */
    size_t n_joined, n_gathered; /* floats */
    float *hidden;      /* [n_row][n_embd] states from, or to, layers that are not held here */
    size_t n_hidden;    /* floats */
    struct lk_seq *seq; /* [n_seq], room for seq_cap */
    size_t n_seq, seq_cap;
    uint64_t *bound; /* [n_bound] what the graph names of its sequences, room for seq_cap */
    size_t n_bound;
    int n_row, n_out;      /* sums over these sequences */
    size_t partial_needed; /* floats of attn.partial that they need */
    size_t joined_needed;  /* the same of `joined` */
};

/* An empty pass. Memory for attention is allocated by lk_pass_reserve_attn. LK_E_NOMEM;
 * LK_E_ARG for a model without weights. */
lk_status lk_pass_init(struct lk_pass *pass, struct lk_model *model, struct lk_ledger *ledger,
                       lk_err *err);
void lk_pass_free(struct lk_pass *pass);

/* Remove all sequences and make room for n_seq. LK_E_NOMEM. */
lk_status lk_pass_reset(struct lk_pass *pass, size_t n_seq, lk_err *err);

/* Add a sequence with n_tok rows after those that are there; its last n_out rows get logits. There
 * is room. */
struct lk_seq *lk_pass_add(struct lk_pass *pass, struct lk_session *session, int n_tok, int n_out);

/* The job of a layer in a pass. */
struct lk_layer_job lk_pass_job(struct lk_pass *pass, int layer);

/* Allocate memory for the attention of the pass's sequences. LK_E_NOMEM. */
lk_status lk_pass_reserve_attn(struct lk_pass *pass, lk_err *err);

/* Make the pass ready to compute: memory for attention, and the graph over all layers that are
 * held here. The caller then sets the graph's tok, pos and out, and x_in if it has one.
 * LK_E_NOMEM. */
lk_status lk_pass_build(struct lk_pass *pass, lk_err *err);

/* Append and age the pass's rows in the layers that are not held here. */
void lk_pass_count_rows(struct lk_pass *pass);

/* Nodes of a layer before and after its attention or recurrence, on the device if the layer is
 * there. lk_pre_to_cpu brings q, k, v, mixed, decay and beta to the CPU, and adds the layer's token
 * input. tok: tokens, NULL for families without token inputs. attn: anywhere. */
struct lk_qkv lk_pre_nodes(struct lk_graph *graph, const struct lk_net *net, int layer,
                           struct ggml_tensor *x, struct ggml_tensor *pos);
void lk_pre_to_cpu(struct lk_graph *graph, const struct lk_net *net, int layer,
                   struct ggml_tensor *tok, struct lk_qkv *pre);
struct ggml_tensor *lk_post_nodes(struct lk_graph *graph, const struct lk_net *net, int layer,
                                  const struct lk_qkv *pre, struct ggml_tensor *attn);

/* Nodes that store the rows of `pre`, and show the queries to the caches. The result is the node to
 * wait for. */
struct ggml_tensor *lk_store_nodes(struct ggml_context *ctx, struct lk_layer_job *job,
                                   const struct lk_qkv *pre);

/* Nodes that attend with the queries of `pre` once `ready` is computed. The result has the shape
 * [n_tok][n_head * d_head]. */
struct ggml_tensor *lk_attention_nodes(struct ggml_context *ctx, struct lk_layer_job *job,
                                       const struct lk_qkv *pre, struct ggml_tensor *ready);

#endif
