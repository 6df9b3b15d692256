/* What the peers exchange while they compute a pass, save and load. */
#ifndef LK_CLUSTER_PEER_EXCHANGE_H
#define LK_CLUSTER_PEER_EXCHANGE_H

#include "cluster/cluster.h"

/* Set the functions of c->peers that passes call, and those of c->link. */
void lk_cluster_set_exchanges(struct lk_cluster *c);

#endif
