/* lowkey_cluster.h - several processes that hold one cache and compute together (docs/cluster.md).
 *
 * The processes are called peers here, and ranks by MPI and the programs. Each opens the same model
 * and computes the same layers. The rows of a session's cache are divided: each peer holds some
 * positions and attends to them, and the peers combine their partial results in every layer.
 *
 * With several stages (lk_cluster_set_stages) the layers are divided, too: the peers of a stage
 * have the weights and the cache of its layers only, and hidden states go from stage to stage.
 *
 *   peer 0       lk_cluster_new, lk_model_open_cluster, then everything of lowkey.h as usual
 *   other peers  lk_cluster_new, lk_cluster_follow, which returns when peer 0 frees its cluster
 *
 * The following peers repeat what peer 0 does with the model and its sessions. The library has no
 * network code: the program supplies functions that exchange bytes (lk_transport). */
#ifndef LOWKEY_CLUSTER_H
#define LOWKEY_CLUSTER_H

#include "lowkey.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How peers exchange bytes. All peers call gather and broadcast in the same order, and every send
 * has its receive. One thread at a time calls them. Each returns false if a peer is lost. */
typedef struct {
    int32_t own, n_peer; /* this is peer `own` of n_peer */
    void *user;
    /* The n bytes `own` of every peer, in the order of peers, into all [n_peer][n]. */
    bool (*gather)(void *user, const void *own, size_t n, void *all);
    /* The n bytes `data` of peer `from` to every peer. */
    bool (*broadcast)(void *user, int32_t from, void *data, size_t n);
    bool (*send)(void *user, int32_t to, const void *data, size_t n);
    bool (*receive)(void *user, int32_t from, void *data, size_t n);
    /* This peer cannot go on in the middle of an exchange: end all peers. May return; all functions
     * then return false on every peer. */
    void (*abort)(void *user, const char *why);
} lk_transport;

typedef struct lk_cluster lk_cluster;

/* Join a cluster of at least one peer. All peers must be of this version of the library. *out is
 * owned: lk_cluster_free, after its models. LK_E_ARG, LK_E_IO, LK_E_UNSUPPORTED, LK_E_NOMEM. */
lk_status lk_cluster_new(lk_cluster **out, const lk_transport *transport, lk_err *err);

/* On peer 0, the other peers return from lk_cluster_follow. */
void lk_cluster_free(lk_cluster *cluster);

/* On peers other than 0: repeat what peer 0 does until it ends. Errors that peer 0 learns of too do
 * not end this call. LK_E_IO: a peer was lost. LK_E_FORMAT: a message is not as it should be. */
lk_status lk_cluster_follow(lk_cluster *cluster, lk_err *err);

/* On peer 0: divide the layers of the models that are opened from now on into n_stage stages (at
 * first 1). The peers of a stage divide the rows of its layers. LK_E_ARG if n_stage is not a
 * divisor of the number of peers. */
lk_status lk_cluster_set_stages(lk_cluster *cluster, int32_t n_stage, lk_err *err);

/* On peer 0: lk_model_open on every peer. The file must exist on every machine under this path, and
 * must be the same. opts->header_only is not possible. Errors of lk_model_open of
 * any peer, LK_E_FORMAT if the peers' models differ, and LK_E_UNSUPPORTED if the model has too few
 * layers for the stages.
 *
 * A session of the model divides its rows if its recipe allows that (docs/cluster.md); else
 * lk_session_new returns LK_E_UNSUPPORTED. Bytes of lk_session_get_stats and lk_session_get_level
 * are sums over all peers.
 *
 * Several threads of peer 0 may use sessions of the model: their calls take turns. In a progress
 * callback of a session, all functions may be called for other sessions, and get_stats and
 * get_level for this one too; other threads then have their turn. */
lk_status lk_model_open_cluster(lk_model **out, const char *path, const lk_model_opts *opts,
                                lk_cluster *cluster, lk_err *err);

/* What a peer has of the weights. */
typedef struct {
    int32_t stage, n_stage;
    int32_t first_layer, n_layer; /* layers [first_layer, first_layer + n_layer) */
    uint64_t weight_bytes;        /* that each token is multiplied by, loaded or mapped */
    uint64_t table_bytes;         /* of tables whose rows are looked up: embeddings */
} lk_peer_weights;

/* The part of a peer. False if there is no such peer; without a cluster there is peer 0 only. */
bool lk_model_get_peer(const lk_model *model, int32_t peer, lk_peer_weights *out);

/* For plans: lk_model_open of what a peer of one stage of n_stage would have, without a cluster and
 * with opts->header_only only. Also LK_E_ARG, and LK_E_UNSUPPORTED if the model has too few
 * layers. */
lk_status lk_model_open_stage(lk_model **out, const char *path, const lk_model_opts *opts,
                              int32_t stage, int32_t n_stage, lk_err *err);

/* lk_plan_make for each of n_peer peers, or of those of a stage if the model is that of a stage
 * (lk_model_open_stage; n_peer is that of all stages): what the one with the largest part of the
 * cache will need. f16_bytes is the whole cache's, and bits_per_value what the peer holds of it.
 * Also LK_E_ARG, and LK_E_UNSUPPORTED for a recipe that peers cannot divide. */
lk_status lk_plan_make_peers(const lk_model *model, const lk_recipe *recipe,
                             const lk_session_opts *opts, int32_t n_peer, lk_plan *out,
                             lk_err *err);

/* Exchanges since the cluster was made, as this peer counts them. */
typedef struct {
    uint64_t n_exchange;
    uint64_t bytes;      /* received by this peer */
    uint64_t bytes_sent; /* by this peer; once for each other peer */
    double seconds;      /* spent in exchanges, waiting for other peers included */
} lk_cluster_stats;
lk_cluster_stats lk_cluster_get_stats(const lk_cluster *cluster);

int32_t lk_cluster_n_peer(const lk_cluster *cluster); /* 1 for NULL */

/* What each of n_peer peers exchanges to decode one token; seconds are 0. Errors of
 * lk_plan_make_peers, and LK_E_UNSUPPORTED for a model with several stages. */
lk_status lk_plan_exchanges(const lk_model *model, const lk_recipe *recipe, int32_t n_peer,
                            lk_cluster_stats *out, lk_err *err);

/* The number of tokens, of n_tok, whose rows are on the peer that holds most of them, in layers
 * that peers divide. */
uint64_t lk_plan_max_peer_tokens(uint64_t n_tok, int32_t n_peer);

/* lk_session_get_stats with the bytes of this peer alone, without an exchange. Peer 0 has the first
 * rows of a cache, so no other peer of its stage has more of its bytes. */
lk_session_stats lk_session_get_peer_stats(const lk_session *session);

/* Bytes of a session's cache on the peer that holds most of them, and on peer `peer`. */
uint64_t lk_session_max_peer_bytes(lk_session *session);
uint64_t lk_session_peer_bytes(lk_session *session, int32_t peer);

#ifdef __cplusplus
}
#endif
#endif
