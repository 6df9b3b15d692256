/* A ggml graph, the memory it lives in, and its execution.
 *
 *   lk_graph_begin    an empty graph with room for nodes
 *   (caller)          creates nodes in graph->ctx and expands graph->graph
 *   lk_graph_finish   allocates the tensors
 *   (caller)          writes the inputs
 *   lk_graph_run      computes; may be repeated with other inputs
 *
 * All memory is entered in the ledger that the caller passes, as scratch.
 *
 * A model may have layers on a device (model/ggml_device.h). Their graphs consist of pieces, which
 * are computed one after the other, each on the CPU or on the device:
 *
 *   CPU      inputs, embeddings |             | store, attend |                    | ...
 *   device                      | pre of l    |               | post of l, pre l+1 |
 *
 * If a session's rows are on the same device, store and attend are pieces of commands to it
 * (lk_graph_command), whose operands stay there, and nothing waits between the layers.
 *
 * lk_graph_enter starts a piece, and lk_graph_use makes a tensor of an earlier piece an operand of
 * the current one. What pieces exchange has memory of its own, so that pieces of one place share
 * the memory of everything else. Only the host writes inputs and reads outputs: inputs belong to
 * the first piece and outputs to the last one, and both of these are on the CPU. Without a device a
 * graph is one piece, and the two functions do nothing. */
#ifndef LK_ENGINE_GRAPH_H
#define LK_ENGINE_GRAPH_H

#include "engine/model.h"
#include "model/ggml_device.h"

#include "ggml-alloc.h"

enum lk_graph_place { LK_ON_CPU, LK_ON_DEVICE, LK_GRAPH_PLACES };

/* Issues commands to a device. Their operands' data are addresses of the device. */
typedef void (*lk_graph_commands)(void *user);

/* Nodes that are computed together. Headers of its tensors follow each other in lk_graph.mem. */
struct lk_piece {
    struct ggml_cgraph *graph;
    enum lk_graph_place place;
    lk_graph_commands issue; /* instead of nodes, on a device; or NULL */
    void *user;
};

/* A tensor that another piece than its own uses. */
struct lk_link {
    struct ggml_tensor *from, *to; /* `to` is a leaf with the same layout */
    int from_piece, to_piece;      /* the piece of `from`, and the first one that uses `to` */
    int last;                      /* the last piece that uses `to` */
    bool copied;                   /* places differ; else both have the same memory */
};

/* Memory in one place. */
struct lk_graph_memory {
    ggml_gallocr_t alloc;         /* of tensors that one piece uses */
    size_t alloc_size;            /* bytes of alloc's buffer, as entered in the ledger */
    ggml_backend_buffer_t shared; /* tensors that several pieces use; NULL: there are none */
    size_t shared_size;           /* bytes, as entered in the ledger */
};

struct lk_graph {
    void *mem; /* [mem_size] tensor headers and the graphs of the pieces */
    size_t mem_size;
    size_t n_node; /* capacity */
    struct ggml_context *ctx;
    struct ggml_cgraph *graph; /* of the current piece; afterwards of the last one */
    struct lk_graph_memory memory[LK_GRAPH_PLACES];
    struct lk_piece *piece; /* [n_piece], room for 1 + max_piece */
    struct lk_link *link;   /* [n_link], room for LK_PIECE_LINKS * max_piece */
    int n_piece, n_link;
    size_t pieces_size; /* bytes of both */

    /* Tensors that the caller sets. NULL after lk_graph_begin. */
    struct ggml_tensor *tok, *pos; /* i32 [n_tok] */
    struct ggml_tensor *x_in, *x_out, *logits;
    struct ggml_tensor *out; /* i32 [n_out] rows that have logits; NULL if all have */

    /* Properties of the graph, set by the caller. */
    int n_tok, n_out;
    bool needs_scores; /* it accumulates attention scores for eviction policies */
    bool divided;      /* it gathers partial attention of several processes */
    bool on_card;      /* rows and weights are on one device (lk_pass_on_card) */

    /* Set before lk_graph_begin. */
    bool grads; /* room for a backward graph */
    struct lk_ggml_device
        *device;    /* of pieces that are not computed on the CPU; NULL: there are none */
    int max_piece;  /* pieces after the first one */
    int piece_node; /* nodes of such a piece, at most; 0: LK_PIECE_NODES */
};

enum {
    LK_PIECE_LINKS = 12 /* links per piece */,
    LK_PIECE_NODES = 256 /* of a layer's pieces, if its attention is between them */
};

/* Before lk_graph_begin: let the graph have pieces on the model's device, if there is one, for
 * n_layer layers. */
void lk_graph_set_device(struct lk_graph *graph, const struct lk_model *model, int n_layer);

/* Start a graph of up to n_node nodes, including those that ggml adds. Drops the previous one.
 * LK_E_NOMEM. */
lk_status lk_graph_begin(struct lk_graph *graph, int n_node, struct lk_ledger *ledger, lk_err *err);

/* Continue in `place`: nodes that are created from now on are computed there, after all earlier
 * nodes. Does nothing if the current piece is there, or if the graph has no device. */
void lk_graph_enter(struct lk_graph *graph, enum lk_graph_place place);

/* Add a piece that calls issue(user) in its turn. Tensors that are created for it have no
 * operations: the commands write them. The next nodes need lk_graph_enter. */
void lk_graph_command(struct lk_graph *graph, lk_graph_commands issue, void *user);

/* The tensor t, of this piece or of an earlier one, as an operand of nodes of the current piece.
 * NULL if t is NULL. */
struct ggml_tensor *lk_graph_use(struct lk_graph *graph, struct ggml_tensor *t);

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

/* Compute the finished graph. On return a device has computed its pieces, too. After a failure,
 * LK_E_NOMEM or LK_E_IO (of the device), some nodes may have run. */
lk_status lk_graph_run(struct lk_graph *graph, struct lk_model *model, lk_err *err);

/* Write `size` bytes to an input of the finished graph, from its byte `at` on. Does nothing if no
 * node reads the tensor, which then has no memory. */
void lk_graph_set(struct ggml_tensor *t, size_t at, const void *data, size_t size);

/* Read `size` bytes of an output of the computed graph, from its byte `at` on. */
void lk_graph_get(const struct ggml_tensor *t, size_t at, void *data, size_t size);

/* Write positions first, first + 1, ... for rows [row, row + n) to graph->pos. Does nothing if the
 * model family does not use positions. */
void lk_graph_set_positions(struct lk_graph *graph, size_t row, size_t first, size_t n);

void lk_graph_free(struct lk_graph *graph, struct lk_ledger *ledger);

#endif
