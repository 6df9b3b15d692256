/* The loss of each side of each head group, estimated from one prefill.
 *
 * The prompt of a chunk is computed once, into a full cache and into one that quantizes all rows
 * but the sinks and a window. What follows never computes the prompt again: rows of the second
 * cache replace rows of the first one, side by side and layer by layer.
 *
 *   power    of the change of the attention's output after W_O that quantized rows of one group and
 *            side cause, for the queries of the last tokens; also with the newest rows exact, and
 *            with the smaller errors of keys with more bits
 *   anchor   of a layer, or of two: KL of the last tokens' predictions, if the errors of all V rows
 *            are multiplied by a factor so large that the rounding of activations does not matter
 *
 *   KL(group, side) = anchor(layers) / (factor^2 power of their V) x power(group, side)
 *
 * and 1.4 times as much for K. Anchors and powers are sums over the chunks. The attention's output
 * is linear in V, so the factor is exact. An anchor has in it whatever follows the layer: norms,
 * residual stream, later layers, vocabulary. */
#ifndef LK_TUNE_ESTIMATE_H
#define LK_TUNE_ESTIMATE_H

#include "tune/measure_set.h"

/* Fill t->loss from an estimate on t->probes, at the first of t->bits and the next two numbers of
 * bits that a recipe can have. The log gets each anchor, from which an interrupted run continues,
 * and then the loss of each group and side, by bits and age. LK_E_CANCELLED, LK_E_IO, LK_E_FULL,
 * LK_E_NOMEM. */
lk_status lk_estimate_groups(struct lk_tune *t, lk_err *err);

#endif
