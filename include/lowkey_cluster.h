/* lowkey_cluster.h - several processes that hold one cache and compute together (docs/cluster.md).
 *
 * The processes are called ranks, as in MPI. Each opens the same model and computes the same
 * layers. The rows of a session's cache are divided: each rank holds some positions and attends to
 * them, and the ranks combine their partial results in every layer.
 *
 * With several stages (lk_cluster_set_stages) the layers are divided, too: the ranks of a stage
 * have the weights and the cache of its layers only, and hidden states go from stage to stage. The
 * sessions of lk_batch_eval go through them in groups then, if that is faster.
 *
 *   rank 0       lk_cluster_new, lk_model_open_cluster, then everything of lowkey.h as usual
 *   other ranks  lk_cluster_new, lk_cluster_follow, which returns when rank 0 frees its cluster
 *
 * The following ranks repeat what rank 0 does with the model and its sessions. The library has no
 * network code: the program supplies functions that exchange bytes (lk_ranks). */
#ifndef LOWKEY_CLUSTER_H
#define LOWKEY_CLUSTER_H

#include "lowkey.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How ranks exchange bytes. All ranks call gather and broadcast in the same order, and every send
 * has its receive. One thread at a time calls them. Each returns false if a rank is lost. */
typedef struct {
    int32_t rank, n_rank;
    void *user;
    /* The n bytes `own` of every rank, in the order of ranks, into all [n_rank][n]. */
    bool (*gather)(void *user, const void *own, size_t n, void *all);
    /* The n bytes `data` of rank `from` to every rank. */
    bool (*broadcast)(void *user, int32_t from, void *data, size_t n);
    bool (*send)(void *user, int32_t to, const void *data, size_t n);
    bool (*receive)(void *user, int32_t from, void *data, size_t n);
    /* This rank cannot go on in the middle of an exchange: end all ranks. May return; all functions
     * then return false on every rank. */
    void (*abort)(void *user, const char *why);
} lk_ranks;

typedef struct lk_cluster lk_cluster;

/* Join a cluster of at least one rank. All ranks must be of this version of the library. *out is
 * owned: lk_cluster_free, after its models. LK_E_ARG, LK_E_IO, LK_E_UNSUPPORTED, LK_E_NOMEM. */
lk_status lk_cluster_new(lk_cluster **out, const lk_ranks *ranks, lk_err *err);

/* On rank 0, the other ranks return from lk_cluster_follow. */
void lk_cluster_free(lk_cluster *cluster);

/* On ranks other than 0: repeat what rank 0 does until it ends. Errors that rank 0 learns of too do
 * not end this call. LK_E_IO: a rank was lost. LK_E_FORMAT: a message is not as it should be. */
lk_status lk_cluster_follow(lk_cluster *cluster, lk_err *err);

/* On rank 0: divide the layers of the models that are opened from now on into n_stage stages (at
 * first 1). The ranks of a stage divide the rows of its layers. LK_E_ARG if n_stage is not a
 * divisor of the number of ranks. */
lk_status lk_cluster_set_stages(lk_cluster *cluster, int32_t n_stage, lk_err *err);

/* On rank 0: lk_model_open on every rank. The file must exist on every machine under this path, and
 * must be the same. opts->header_only is not possible. Errors of lk_model_open of
 * any rank, LK_E_FORMAT if the ranks' models differ, and LK_E_UNSUPPORTED if the model has too few
 * layers for the stages.
 *
 * A session of the model divides its rows if its recipe allows that (docs/cluster.md); else
 * lk_session_new returns LK_E_UNSUPPORTED. Bytes of lk_session_get_stats and lk_session_get_level
 * are sums over all ranks.
 *
 * Several threads of rank 0 may use sessions of the model: their calls take turns. In a progress
 * callback of a session, all functions may be called for other sessions, and get_stats and
 * get_level for this one too; other threads then have their turn. */
lk_status lk_model_open_cluster(lk_model **out, const char *path, const lk_model_opts *opts,
                                lk_cluster *cluster, lk_err *err);

/* What a rank has of the weights. */
typedef struct {
    int32_t stage, n_stage;
    int32_t first_layer, n_layer; /* layers [first_layer, first_layer + n_layer) */
    uint64_t weight_bytes;        /* that each token is multiplied by, loaded or mapped */
    uint64_t table_bytes;         /* of tables whose rows are looked up: embeddings */
} lk_rank_weights;

/* The part of a rank. False if there is no such rank; without a cluster there is rank 0 only. */
bool lk_model_get_rank(const lk_model *model, int32_t rank, lk_rank_weights *out);

/* For plans: lk_model_open of what a rank of one stage of n_stage would have, without a cluster and
 * with opts->header_only only. Also LK_E_ARG, and LK_E_UNSUPPORTED if the model has too few
 * layers. */
lk_status lk_model_open_stage(lk_model **out, const char *path, const lk_model_opts *opts,
                              int32_t stage, int32_t n_stage, lk_err *err);

/* lk_plan_make for each of n_rank ranks, or of those of a stage if the model is that of a stage
 * (lk_model_open_stage; n_rank is that of all stages): what the one with the largest part of the
 * cache will need. f16_bytes is the whole cache's, and bits_per_value what the rank holds of it.
 * Also LK_E_ARG, and LK_E_UNSUPPORTED for a recipe that ranks cannot divide. */
lk_status lk_plan_make_ranks(const lk_model *model, const lk_recipe *recipe,
                             const lk_session_opts *opts, int32_t n_rank, lk_plan *out,
                             lk_err *err);

/* Exchanges since the cluster was made, as this rank counts them. */
typedef struct {
    uint64_t n_exchange;
    uint64_t bytes;      /* received by this rank */
    uint64_t bytes_sent; /* by this rank; once for each other rank */
    double seconds;      /* spent in exchanges, waiting for other ranks included */
} lk_cluster_stats;
lk_cluster_stats lk_cluster_get_stats(const lk_cluster *cluster);

int32_t lk_cluster_n_rank(const lk_cluster *cluster); /* 1 for NULL */

/* What each of n_rank ranks exchanges to decode one token; seconds are 0. Errors of
 * lk_plan_make_ranks, and LK_E_UNSUPPORTED for a model with several stages. */
lk_status lk_plan_exchanges(const lk_model *model, const lk_recipe *recipe, int32_t n_rank,
                            lk_cluster_stats *out, lk_err *err);

/* The number of tokens, of n_tok, whose rows are on the rank that holds most of them, in layers
 * that ranks divide. */
uint64_t lk_plan_max_rank_tokens(uint64_t n_tok, int32_t n_rank);

/* lk_session_get_stats with the bytes of this rank alone, without an exchange. Rank 0 has the first
 * rows of a cache, so no other rank of its stage has more of its bytes. */
lk_session_stats lk_session_get_rank_stats(const lk_session *session);

/* Bytes of a session's cache on the rank that holds most of them, and on rank `rank`. */
uint64_t lk_session_max_rank_bytes(lk_session *session);
uint64_t lk_session_rank_bytes(lk_session *session, int32_t rank);

#ifdef __cplusplus
}
#endif
#endif
