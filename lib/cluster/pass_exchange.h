/* What the ranks exchange while they compute a pass. */
#ifndef LK_CLUSTER_PASS_EXCHANGE_H
#define LK_CLUSTER_PASS_EXCHANGE_H

#include "cluster/cluster.h"

/* Set the functions of the peers that passes call. */
void lk_cluster_set_exchanges(struct lk_peers *peers);

#endif
