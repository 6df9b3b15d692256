/* Recurrent layers in ggml's operators, for devices; kernels/recurrence.h has the formulas, and
 * what computes them on the CPU.
 *
 * A layer's state in the memory of a device, f32. Parts are transposed, as the operators need
 * them:
 *
 *   | the last n_conv - 1 rows of projections, oldest first [channels][n_conv - 1] |
 *   | S of all heads [n_v_head][d_value][d_key], unless LK_SHORT_CONV              | */
#ifndef LK_MODEL_RECURRENCE_NODES_H
#define LK_MODEL_RECURRENCE_NODES_H

#include "model/net.h"

/* Nodes of one sequence in one layer, ggml's views included. */
enum { LK_RECURRENCE_NODES = 48 };

/* What a recurrence needs of the projections of its tokens. f32, rows without gaps. */
struct lk_recurrence_input {
    struct ggml_tensor *mixed;   /* [n_tok][channels] */
    struct ggml_tensor *gate[2]; /* [n_tok][n_v_head] LK_DELTA_RULE: decay and beta; LK_STATE_SPACE:
                                  * what beta is the softplus of, and NULL; LK_SHORT_CONV: NULL */
};

/* A state is at byte `at` of a tensor, which has memory. `to` may be `from`. zero: i32 [1]. */
struct lk_recurrence_states {
    struct ggml_tensor *from, *to, *zero;
    size_t from_at, to_at;
};

/* What the device needs of the projections of all tokens. */
struct lk_recurrence_input lk_recurrence_input_of(const struct lk_recurrence_shape *shape,
                                                  const struct lk_qkv *pre);

/* The recurrence of the tokens of `in` in a layer with weights `l`: output [n_tok][n_v_head *
 * d_value]. Nodes that write the state are added to `graph`. */
struct ggml_tensor *lk_recurrence_there(const struct lk_recurrence_shape *shape,
                                        const struct lk_layer *l, struct ggml_context *ctx,
                                        struct ggml_cgraph *graph,
                                        const struct lk_recurrence_input *in,
                                        const struct lk_recurrence_states *states);

/* Copy a layer's state from this form to kernels/recurrence.h's, or back. */
void lk_recurrence_from_there(const struct lk_recurrence_shape *shape, const float *from,
                              float *to);
void lk_recurrence_to_there(const struct lk_recurrence_shape *shape, const float *from, float *to);

/* Recurrent layers that the device computes, and the longest run of such layers. */
int lk_recurrence_count_there(const struct lk_net *net);
int lk_recurrence_run_there(const struct lk_net *net);

/* Why a device cannot compute recurrences of this shape, or NULL. */
const char *lk_recurrence_refused(const struct lk_recurrence_shape *shape,
                                  const struct lk_ggml_device *device, struct lk_ledger *ledger);

#endif
