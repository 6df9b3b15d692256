/* The LESS networks of one layer as a differentiable ggml graph, trained with Adam.
 *
 * For queries at positions where rows are missing, the error in the residual stream that dropping
 * them makes is
 *
 *   a' - a = c (phi H - (phi z) sparse) / (1 + c (phi z)) + residual,    c = e^(level - log_sum)
 *   e = |W_O (a' - a)|^2,   b = |W_O residual|^2
 *   loss = mean weight e / (norm floor + b (1 - floor)),   norm = mean b of the sequence
 *
 * a' - a is Eq. 3 minus full attention, divided by e^log_sum (see absorb/less.h and
 * training/less_data.h). With e = b the loss is the policy's alone, with e = 0 attention is
 * that of the full cache.
 *
 * floor = 1 is the paper's loss. Few queries then decide it: those that miss the most. A smaller
 * floor makes an error at queries to which the policy does little harm count as well.
 *
 * H and z of all queries are computed at once: the contribution of the rows evicted between a query
 * and the next one, then its running sum over the queries as a product with a triangle of ones. The
 * paper masks the product of all psi with all phi instead (section 3.2): the same result, more
 * work.
 *
 * ggml cannot differentiate gelu. It is written as silu(u) / p with p = 2 sqrt(2/pi) (1 + 0.044715
 * x^2) and u = x p. */
#ifndef LK_TRAINING_LESS_NET_H
#define LK_TRAINING_LESS_NET_H

#include "absorb/less.h"
#include "training/less_data.h"

/* The shape of one step. */
struct lk_less_size {
    struct lk_less_shape shape;
    int n_embd;
    int n_query;   /* queries per sequence and step */
    int n_between; /* maximum number of rows evicted between two of these queries */
    float dropout; /* share of hidden units dropped in a training step */
    float floor;   /* 0 < floor <= 1 */
};

enum lk_less_param {
    LK_PHI_W1,
    LK_PHI_W2,
    LK_PSI_W1,
    LK_PSI_W2,
    LK_PSI_W3,
    LK_PSI_S1,
    LK_PSI_S2,
    LK_N_LESS_PARAM
};

struct lk_less_net {
    struct lk_less_size size;
    struct lk_model *model; /* its threads compute */
    struct lk_ledger *ledger;
    size_t n_weight;               /* floats of all parameters */
    float *weight, *mean, *square; /* [n_weight] in ggml's order, and Adam's two moments */
    float *gradient;               /* [n_weight] sum since the last step */
    int n_gradient;                /* number of sequences in it */
    float *level;                  /* [n_head] */
    size_t n_input;
    float *input; /* [n_input] inputs of a step */
    void *mem;    /* of ctx */
    size_t mem_size;
    struct ggml_context *ctx;    /* headers of parameters and inputs */
    struct lk_less_nodes *node;  /* these tensors */
    struct lk_graph train_graph; /* forward with dropout, backward */
    struct lk_graph eval_graph;  /* forward without dropout */
    float norm;                  /* for the next inputs */
};

/* A net with random weights of `seed`, s1 as in the paper. wo: W_O [n_embd][n_head * d_head].
 * *out is owned: lk_less_net_free. */
lk_status lk_less_net_new(struct lk_less_net **out, const struct lk_less_size *size, uint64_t seed,
                          const float *wo, struct lk_model *model, struct lk_ledger *ledger,
                          lk_err *err);
void lk_less_net_free(struct lk_less_net *net);

/* Random weights and zero moments again. Weights are uniform in +-sqrt(6 / (inputs + outputs)), s2
 * is 1e-4. s1 is 1e-4 in the paper, which makes the state's share small at first. A step of Adam
 * changes s1 by the learning rate, which is many times 1e-4: with levels, which set the share, 1 is
 * a better s1. */
void lk_less_net_reset(struct lk_less_net *net, float s1, uint64_t seed);

/* Use another layer's W_O. */
void lk_less_net_set_wo(struct lk_less_net *net, const float *wo);

/* Set the inputs of the next step, for which `norm` is set. weight [n_query]: what the loss of each
 * query counts, or NULL: 1. query [n_query]: increasing, of an example. If more
 * than n_between rows are evicted between two queries, the excess rows are ignored. The first ones
 * may be -1, no query: each makes room for n_between rows that are evicted before query 0, for
 * example those of a prompt. */
void lk_less_net_set_input(struct lk_less_net *net, const struct lk_less_example *example,
                           const int32_t *query, const float *weight);

/* Add the gradient of the loss for the current inputs. `seed` selects the hidden units to drop. */
lk_status lk_less_net_add_gradient(struct lk_less_net *net, uint64_t seed, float *loss,
                                   lk_err *err);

/* One step of Adam without weight decay, the nth from 1, along the mean of the gradients added
 * since the last step. */
void lk_less_net_step(struct lk_less_net *net, float rate, int64_t nth);

/* Means over the queries of the current inputs. */
struct lk_less_loss {
    float loss, base; /* the loss without dropout, and the policy's alone */
    float power;      /* mean b */
};
lk_status lk_less_net_eval(struct lk_less_net *net, struct lk_less_loss *out, lk_err *err);

/* Replace weights and levels by trained networks' with the net's shape. */
void lk_less_net_import(struct lk_less_net *net, const struct lk_less_maps *maps);

/* Convert weights to the format of absorb/less.h, some of them to half floats. out
 * [lk_less_map_bytes()]; *maps points into it. */
void lk_less_net_export(const struct lk_less_net *net, const float *weight, void *out,
                        struct lk_less_maps *maps);

/* Set the pointers of *maps into such a block of weights. They compute with the reference
 * kernels. */
void lk_less_maps_at(const struct lk_less_shape *shape, const void *block,
                     struct lk_less_maps *maps);

#endif
