/* The LESS networks of one layer as a differentiable ggml graph, trained with Adam.
 *
 * For queries at positions where rows are missing, the error in the residual stream that dropping
 * them makes is
 *
 *   a' - a = c (phi H - (phi z) sparse) / (1 + c (phi z)) + residual,    c = e^(level - log_sum)
 *   loss   = mean |W_O (a' - a)|^2 / mean |W_O residual|^2
 *
 * which is Eq. 3 minus full attention, divided by e^log_sum (see absorb/less.h and
 * training/less_data.h). Loss 1 is the policy alone, 0 is full attention.
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
    float *level;                  /* [n_head] */
    size_t n_input;
    float *input; /* [n_input] inputs of a step */
    void *mem;    /* of ctx */
    size_t mem_size;
    struct ggml_context *ctx;    /* headers of parameters and inputs */
    struct lk_less_nodes *node;  /* these tensors */
    struct lk_graph train_graph; /* forward with dropout, backward, Adam */
    struct lk_graph eval_graph;  /* forward without dropout */
    float norm; /* mean |W_O residual|^2 of the sequence; losses are divided by it */
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

/* Set the inputs of the next step: the queries query [n_query], increasing, of an example. If more
 * than n_between rows are evicted between two queries, the excess rows are ignored. */
void lk_less_net_set_input(struct lk_less_net *net, const struct lk_less_example *example,
                           const int32_t *query);

/* One training step of Adam without weight decay, the nth from 1. *loss is the loss before the
 * step. `seed` selects the hidden units to drop. */
lk_status lk_less_net_train_step(struct lk_less_net *net, float rate, int64_t nth, uint64_t seed,
                                 float *loss, lk_err *err);

/* The loss without dropout, and *base = mean |W_O residual|^2 / norm. */
lk_status lk_less_net_eval(struct lk_less_net *net, float *loss, float *base, lk_err *err);

/* Replace weights and levels by those of trained networks with the net's shape. */
void lk_less_net_import(struct lk_less_net *net, const struct lk_less_maps *maps);

/* Convert weights to the format of absorb/less.h, some of them to half floats. out
 * [lk_less_map_bytes()]; *maps points into it. */
void lk_less_net_export(const struct lk_less_net *net, const float *weight, void *out,
                        struct lk_less_maps *maps);

/* Set the pointers of *maps into such a block of weights. They compute with the reference
 * kernels. */
void lk_less_maps_at(const struct lk_less_shape *shape, const void *block,
                     struct lk_less_maps *maps);

/* Reproducible random numbers: the nth number of `seed`. */
uint64_t lk_less_random(uint64_t seed, uint64_t nth);

#endif
