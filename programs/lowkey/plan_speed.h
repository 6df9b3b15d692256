/* The expected speed of decoding on one rank and on several, from measurements of this machine.
 *
 * A measured line gives the time of a token at depth d (tokens in the cache) in one process:
 *
 *     one(d) = base + per_token * d
 *
 * `base` is mainly reading the weights, `per_token * d` attention to the cache. Ranks divide the
 * cache and not the weights, and exchange partial results:
 *
 *     ranks(d) = base + per_token * part(d) + exchanges * latency + bytes / bandwidth
 *
 * part(d): tokens on the rank that holds most of them. Time that ranks wait for each other because
 * their machines differ, and exchanges at the same time as computing, are not in the model. */
#ifndef LK_LOWKEY_PLAN_SPEED_H
#define LK_LOWKEY_PLAN_SPEED_H

#include "lowkey_cluster.h"

/* Seconds. */
struct decode_cost {
    double base, per_token;
};

struct network {
    double latency;   /* seconds of an exchange of a few bytes */
    double bandwidth; /* bytes per second that a rank receives; 0: not limited */
};

/* Fit the line of the recipe `kv` to the results of `lowkey bench --json` in a file, by least
 * squares of the relative error. `model`: the name of the model that must have been measured.
 * Returns a STATUS_*, after printing an error. */
int decode_cost_read(const char *path, const char *model, const char *kv, struct decode_cost *out);

/* Seconds of a token at depth n_tok on n_rank ranks. exchanged: of lk_plan_exchanges. */
double decode_seconds(const struct decode_cost *cost, const struct network *network,
                      const lk_cluster_stats *exchanged, uint64_t n_tok, int32_t n_rank);

/* The depth from which on n_rank ranks are faster than one, up to a stripe of rows; 0: at every
 * depth that a session can have they are not. */
uint64_t ranks_win_from(const struct decode_cost *cost, const struct network *network,
                        const lk_cluster_stats *exchanged, int32_t n_rank);

#endif
