/* Operations as messages from peer 0, which the other peers repeat (lk_cluster_follow). */
#ifndef LK_CLUSTER_MESSAGES_H
#define LK_CLUSTER_MESSAGES_H

#include "cluster/cluster.h"

/* Opening a model: what struct lk_op has no member for. */
struct lk_open_op {
    struct lk_op op; /* first */
    lk_model **out;
    const lk_model_opts *opts;
    struct lk_cluster *cluster;
};

/* Send an operation to the other peers. LK_E_IO if a peer is lost, LK_E_NOMEM. */
lk_status lk_message_send(struct lk_cluster *c, const struct lk_op *op, lk_err *err);

#endif
