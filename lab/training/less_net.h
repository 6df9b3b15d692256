/* LESS's networks of one layer as a ggml graph that can be differentiated and stepped by Adam.
 *
 * For queries at positions where rows are gone, the error that dropping them makes in the residual stream is
 *
 *   a' - a = c (phi H - (phi z) sparse) / (1 + c (phi z)) + residual,    c = e^(level - log_sum)
 *   loss   = mean |W_O (a' - a)|^2 / mean |W_O residual|^2
 *
 * which is Eq. 3 minus full attention, divided by e^log_sum (see absorb/less.h and offline/less_data.h):
 * 1 is what the policy alone gives, 0 full attention. H and z of all queries at once: what the rows that go
 * between a query and the next one add to a state, and of that the sum up to each query, which is a product
 * with a triangle of ones. The paper masks the product of all psi with all phi (section 3.2), which is the
 * same and more work.
 *
 * gelu, which ggml does not differentiate, is silu(u) / p with p = 2 sqrt(2/pi) (1 + 0.044715 x^2), u = x p. */
#ifndef LK_TRAINING_LESS_NET_H
#define LK_TRAINING_LESS_NET_H

#include "absorb/less.h"
#include "training/less_data.h"

/* What one step sees. */
struct lk_less_size {
    struct lk_less_shape shape;
    int n_embd;
    int n_query;   /* queries of a sequence that a step looks at */
    int n_between; /* rows that go up to the first, and between two of them, at most */
    float dropout; /* share of hidden values that a step of learning does without */
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
    struct lk_model *model; /* whose threads compute */
    struct lk_ledger *ledger;
    size_t n_weight;               /* floats of all parameters */
    float *weight, *mean, *square; /* [n_weight] in ggml's order, and Adam's two moments */
    float *level;                  /* [n_head] */
    size_t n_input;
    float *input; /* [n_input] what a step sees */
    void *mem;    /* of ctx */
    size_t mem_size;
    struct ggml_context *ctx;   /* headers of parameters and inputs */
    struct lk_less_nodes *node; /* these */
    struct lk_graph learn, judge;
    float norm; /* mean |W_O residual|^2 of the sequence, by which losses are divided */
};

/* A net with `size` and random weights of `seed`, s1 as in the paper; W_O [n_embd][n_head * d_head]. *out is owned. */
lk_status lk_less_net_new(struct lk_less_net **out, const struct lk_less_size *size, uint64_t seed,
                          const float *wo, struct lk_model *model, struct lk_ledger *ledger,
                          lk_err *err);
void lk_less_net_free(struct lk_less_net *net);

/* Random weights again, moments zero: uniform in +-sqrt(6 / (inputs + outputs)), s2 1e-4. s1 is 1e-4 in the paper, which
 * makes the state's share small at first. A step of Adam moves it by the rate, which is many times that: with levels that
 * see to the share, s1 is better 1. */
void lk_less_net_reset(struct lk_less_net *net, float s1, uint64_t seed);

/* Another layer's W_O. */
void lk_less_net_set_wo(struct lk_less_net *net, const float *wo);

/* Let the next step see the queries query [n_query], in order, of an example. Rows of which there are more than
 * n_between between two queries are left out. */
void lk_less_net_show(struct lk_less_net *net, const struct lk_less_example *example,
                      const int32_t *query);

/* One step of Adam (without weight decay), the nth from 1; *loss is from before it. Hidden values are
 * dropped by `seed`. */
lk_status lk_less_net_learn(struct lk_less_net *net, float rate, int64_t nth, uint64_t seed,
                            float *loss, lk_err *err);

/* The loss without dropout, and *base = mean |W_O residual|^2 / norm. */
lk_status lk_less_net_judge(struct lk_less_net *net, float *loss, float *base, lk_err *err);

/* Weights and levels of networks as absorb/less.h has them, of the net's shape, in place of random ones. */
void lk_less_net_import(struct lk_less_net *net, const struct lk_less_maps *maps);

/* Weights as absorb/less.h wants them, rounded to halves where it does; out [lk_less_map_bytes()], *maps points into it. */
void lk_less_net_export(const struct lk_less_net *net, const float *weight, void *out,
                        struct lk_less_maps *maps);

/* Where the parts of such a block of weights lie; the reference computes with them. */
void lk_less_maps_at(const struct lk_less_shape *shape, const void *block,
                     struct lk_less_maps *maps);

/* Repeatable random numbers: the nth number of `seed`. */
uint64_t lk_less_random(uint64_t seed, uint64_t nth);

#endif
