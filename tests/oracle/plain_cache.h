/* The plain account of a session's cache, in double precision: for K and V of each layer a list of
 * levels, each a list of rows. A row has, for each KV head, the position of its token, its score
 * and its numbers as the level's codec left them. It restates what a recipe means (the rules in
 * cache/level.h, recipe/policy.h, sidecar/basis.h, absorb/less.h), without blocks, kernels or code
 * of lib/cache and lib/attention. From the library come parsed recipes, and the codecs' reference
 * for packing and unpacking a block.
 *
 * Rounding decides two kinds of questions: which of two equal scores is lower, and on which side of
 * a border a number is quantized. So that one such case does not change all that follows, the
 * account may be given what the engine saw: its f16 rows of new tokens (they must agree with the
 * account's own), what an eager recipe made of them before attention (it must be as good), its
 * channel statistics (the same), and its choice between scores that are nearly equal (counted). */
#ifndef LK_TESTS_PLAIN_CACHE_H
#define LK_TESTS_PLAIN_CACHE_H

#include "plain_model.h"
#include "recipe/recipe.h"
#include "support.h"

#include <stdint.h>

enum { PLAIN_MAX_LEVEL = LK_MAX_LEVEL + 1, PLAIN_MAX_PART = 16 };

/* The networks of `absorb less` in one layer, as floats: layouts as in absorb/less.h. */
struct plain_less {
    int n_hidden, n_feature, n_phi, n_psi;
    float *phi_w1, *phi_w2, *phi_level, *psi_w1, *psi_w2, *psi_w3, *psi_s1, *psi_s2;
};

/* The bases of one side of a layer: z = down (x - mean), x' = mean + up^T z (sidecar/basis.h). */
struct plain_basis {
    int n_group, width, n_comp;
    float *down, *up; /* [n_group][n_comp][width] */
    float *mean;      /* [n_group][width], or NULL */
    int *rank;        /* [n_group] recommended */
};

enum { PLAIN_K, PLAIN_KPRE, PLAIN_V, N_PLAIN_BASIS }; /* keys after and before RoPE, values */

/* What the engine saw and decided. `user` is the first argument of all functions. */
struct plain_engine {
    void *user;
    /* K or V [n_head_kv][d_head] of the i-th token of the current evaluation, and then of a replay,
     * as the engine stored it in f16; NULL: the account uses its own */
    const float *(*row)(void *user, int layer, int side, int i);
    /* what the engine held of a token in a level [n_head_kv * d_head], as in plain_row.x, when the
     * layer attended; NULL: it was not there. Of eager recipes. */
    const float *(*stored)(void *user, int layer, int side, int level, int pos);
    /* channel statistics of a part of a level (heads' rows, or latents) */
    const float *(*sigma)(void *user, int layer, int side, bool latents, int part);
    /* does the engine hold this position after the evaluation? */
    bool (*holds)(void *user, int layer, int head, int pos);
    /* which of n rows k [n][d_head] the engine evicted after those that the account evicted */
    int (*next_evicted)(void *user, int layer, int head, const double *const *k, int n);
    /* the account evicts a row */
    void (*evicted)(void *user, int layer, int head, int pos, const double *k, const double *v);
};

/* What all caches of a recipe have in common. */
struct plain_setting {
    const struct plain_model *model;
    const struct lk_recipe *recipe;
    const struct plain_basis *basis[N_PLAIN_BASIS]; /* [n_layer] each */
    const struct plain_less *less;                  /* [n_layer], or NULL */
    const int32_t *request; /* [n_request] what precedes a part of a replay */
    int n_request;
    struct plain_engine engine;
    double tie;           /* scores that differ by less than this share count as equal */
    double noise;         /* relative error added to what is quantized and ranked; 0: none */
    bool query_noise;     /* queries are off by up to half a step of 8 bits, as in fast kernels */
    struct random random; /* of the noise */
    int n_tie;            /* choices between nearly equal scores that followed the engine */
    bool adopts;          /* use the engine's rows in place of the account's own */
    double worst_row;     /* largest error of the engine's rows, from the account's own (NMSE) */
    double worst_sigma;   /* largest relative error of the engine's channel statistics */
    int worst_layer;      /* where that was */
};

struct plain_row {
    bool latent;
    bool coded;    /* some part was quantized at least once */
    int *pos;      /* [n_head_kv] */
    double *score; /* [n_head_kv], of K's rows */
    double *x;     /* [n_head_kv][d_head] as stored: heads' rows, or latents of a group at the place
                       of its first head */
    double *seen;  /* [n_head_kv][d_head] what attention sees */
};

/* A level, restated from the recipe. */
struct plain_level {
    struct lk_codec codec;                   /* of most parts */
    struct lk_codec of_part[PLAIN_MAX_PART]; /* of each part: bits and codebooks may differ */
    bool is_sink, shift;
    int block_rows; /* rows that are packed together */
    int batch;      /* rows that leave at a time; 0: none leaves */
    int batch_in;   /* rows that arrive at a time */
    int keep;       /* rows that stay when a batch leaves, or a percentage of all tokens */
    double percent;
    int calibrate; /* rows that the newer level has to hold before the first batch */
    struct lk_policy policy;
    int max_rows; /* with a policy: rows, or a percentage of all tokens */
    double max_percent;

    const struct plain_basis *basis; /* NULL: heads' rows */
    bool pre;                        /* latents of K before RoPE */
    int n_part, n_head, d_part;      /* parts, KV heads of a part, channels of the widest part */
    int rank[PLAIN_MAX_PART];        /* channels of each part */

    struct plain_row **row;
    int n, cap;
    int skip;     /* rows that already left the first block */
    char **block; /* [n_block][n_part] with a policy and a codec that packs rows together */
    int n_block;
};

/* Channel statistics of rows, or of latents. The account computes them to compare them; it uses the
 * engine's, which round differently. */
struct plain_sigma {
    int n, n_part;
    bool known;
    double *power; /* [n_part][n] sum of q^2, NULL if nothing is equalized */
};

struct plain_kv {
    struct plain_level level[PLAIN_MAX_LEVEL];
    struct plain_sigma sigma[2]; /* of rows, of latents */
    int n_level;
    int first; /* evicted rows */
};

struct plain_layer_cache {
    struct plain_kv kv[2];
    bool evicts;   /* rows leave by a policy, or are summed up */
    int unit;      /* adjacent KV heads that keep the same rows, because they share latents */
    double *state; /* [n_head_kv][n_feature][d_head + 1], or NULL */
};

struct plain_cache {
    struct plain_setting *set;
    struct plain_layer_cache *layer;
    int n_tok;
    int n_feature; /* of the states; 0: none */
};

struct plain_row *plain_copy_row(const struct plain_cache *cache, const struct plain_row *from);
void plain_free_row(struct plain_row *row);

struct plain_cache *plain_cache_new(struct plain_setting *set);
struct plain_cache *plain_cache_copy(const struct plain_cache *from);
void plain_cache_free(struct plain_cache *cache);
void plain_cache_clear(struct plain_cache *cache);

/* Remove the newest tokens until n_tok remain. False if a row of theirs has left the newest level,
 * or if an older query would need a row that was evicted since. */
bool plain_cache_truncate(struct plain_cache *cache, int n_tok);

/* Append row x [n_head_kv][d_head] of the token at `pos` to K or V. */
void plain_cache_append(struct plain_cache *cache, int layer, int side, int pos, const double *x);

/* Age the rows of a layer. n_tok: tokens seen. */
void plain_cache_age(struct plain_cache *cache, int layer, int n_tok);

/* What an eager recipe does before attention: the same, but nothing is dropped, and nothing moves
 * if the body has a limit. */
void plain_cache_encode(struct plain_cache *cache, int layer, int n_tok);

/* Store a whole prompt in an empty layer: exact rows k, v [n][n_head_kv][d_head] and the scores
 * [n][n_head_kv] that its attention gave them. */
void plain_cache_prompt(struct plain_cache *cache, int layer, int n, const double *k,
                        const double *v, const double *score);

/* ---- plain_levels.c ---- */

/* The levels of K or V of a layer, empty. Returns their number. */
int plain_levels(const struct plain_setting *set, int layer, int side, struct plain_level *out);

/* Whether the rows of a layer are judged by a replay of the prompt. */
bool plain_replays(const struct plain_cache *cache, int layer);

/* Whether a layer evicts by a policy or sums up. */
bool plain_layer_evicts(const struct plain_setting *set, int layer);

/* The next batch to move: n rows from level `from` to the next older one; 0: none. rows [n_level]:
 * rows held. */
int plain_next_move(const struct plain_level *level, const int *rows, int n_level, int n_tok,
                    int *from);

/* How many of n arriving rows a level has room for. */
int plain_room(const struct plain_level *level, int rows, int n_tok, int n);

/* Rows that leave the front of a level because no later query of a sliding-window layer sees
 * them. */
int plain_droppable(const struct plain_level *level, int rows, int skip, int first, int n_tok,
                    int n_swa);

/* ---- plain_codec.c ---- */

/* What becomes of rows in a level: project, quantize, reconstruct. The rows are consecutive; if the
 * codec packs rows together they are whole blocks. */
void plain_store(struct plain_cache *cache, int layer, int side, struct plain_level *level,
                 struct plain_row **row, int n);

/* Heads [head, head + unit) of row `at`, in a level with a policy, become `from`'s. */
void plain_replace(struct plain_cache *cache, int layer, int side, struct plain_level *level,
                   int at, int head, int unit, const struct plain_row *from);

/* A copy of a row as a level stores it, before it is quantized. Free it with plain_free_row. */
struct plain_row *plain_projected(const struct plain_cache *cache, int layer,
                                  const struct plain_level *level, const struct plain_row *row);

/* ---- plain_sigma.c ---- */

void plain_sigma_init(struct plain_cache *cache);
void plain_sigma_clear(struct plain_kv *kv);
void plain_sigma_copy(struct plain_kv *to, const struct plain_kv *from);

/* Sum up queries q [n][n_head][d_head] of one call. */
void plain_observe(struct plain_cache *cache, int layer, const double *q, int n);

/* The first rows are about to enter level `to`: statistics of n rows. Nothing if they are known. */
void plain_calibrate(struct plain_cache *cache, int layer, int side, const struct plain_level *to,
                     struct plain_row *const *row, int n);

/* ---- plain_absorb.c ---- */

void plain_absorb_init(struct plain_cache *cache);

/* Add a row of a KV head, k and v [d_head], to the layer's state. */
void plain_absorb_row(struct plain_cache *cache, int layer, int head, const double *k,
                      const double *v);

/* sum += phi z, out [d_head] += phi H for a query head. Weights are relative to e^max. */
void plain_absorb_attend(const struct plain_cache *cache, int layer, int head, const double *q,
                         double max, double *sum, double *out);

#endif
