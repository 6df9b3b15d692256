/* A ggml graph, the memory it lives in, and its execution.
 *
 *   lk_graph_begin    an empty graph with room for nodes
 *   (caller)          creates nodes in graph->ctx and expands graph->graph
 *   lk_graph_finish   allocates the tensors
 *   (caller)          writes the inputs
 *   lk_graph_run      computes; may be repeated with other inputs
 *
 * All memory is entered in the ledger that the caller passes, as scratch. */
#ifndef LK_ENGINE_GRAPH_H
#define LK_ENGINE_GRAPH_H

#include "engine/model.h"

#include "ggml-alloc.h"

struct lk_graph {
    void *mem; /* [mem_size] tensor headers and the graph */
    size_t mem_size;
    size_t n_node; /* capacity */
    struct ggml_context *ctx;
    struct ggml_cgraph *graph;
    ggml_gallocr_t alloc;
    size_t alloc_size; /* bytes of alloc's buffer, as entered in the ledger */

    /* Tensors that the caller sets. NULL after lk_graph_begin. */
    struct ggml_tensor *tok, *pos; /* i32 [n_tok] */
    struct ggml_tensor *x_in, *x_out, *logits;
    struct ggml_tensor *out; /* i32 [n_out] rows that have logits; NULL if all have */

    /* Properties of the graph, set by the caller. */
    int n_tok, n_out;
    bool needs_scores; /* it accumulates attention scores for eviction policies */
    bool divided;      /* it gathers partial attention of several processes */
    bool grads;        /* set before lk_graph_begin: room for a backward graph */
};

/* Start a graph of up to n_node nodes, including those that ggml adds. Drops the previous one.
 * LK_E_NOMEM. */
lk_status lk_graph_begin(struct lk_graph *graph, int n_node, struct lk_ledger *ledger, lk_err *err);

/* An input of n 32-bit integers. */
struct ggml_tensor *lk_graph_input(struct lk_graph *graph, size_t n);

/* A node that runs `op` for its side effect, after after[0..n_after). Its value is unused. */
struct ggml_tensor *lk_graph_effect(struct ggml_context *ctx, ggml_custom_op_t op,
                                    struct ggml_tensor **after, int n_after, void *user);

/* Allocate the tensors of the complete graph. LK_E_NOMEM. */
lk_status lk_graph_finish(struct lk_graph *graph, struct lk_ledger *ledger, lk_err *err);

/* Allocate the scratch memory that ggml needs to compute the finished graph, so that lk_graph_run
 * does not run out of memory because of its size. LK_E_NOMEM. */
lk_status lk_graph_reserve_work(struct lk_graph *graph, struct lk_model *model, lk_err *err);

/* Compute the finished graph. After a failure, LK_E_NOMEM, some nodes may have run. */
lk_status lk_graph_run(struct lk_graph *graph, struct lk_model *model, lk_err *err);

/* Write positions first, first + 1, ... for rows [row, row + n) to graph->pos. Does nothing if the
 * model family does not use positions. */
void lk_graph_set_positions(struct lk_graph *graph, size_t row, size_t first, size_t n);

void lk_graph_free(struct lk_graph *graph, struct lk_ledger *ledger);

#endif
