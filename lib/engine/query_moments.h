/* A prototype: scores of rows by the moments of a prompt's queries; see query_moments.c. */
#ifndef LK_QUERY_MOMENTS_H
#define LK_QUERY_MOMENTS_H

#include "engine/prefill_state.h"

/* Count the queries [n][n_head][d] of a chunk, after RoPE. */
void lk_query_moments_add(struct lk_prefill *p, const float *q, int n, int n_head, int d);

/* Write the scores of all rows of the layer to p->attn_scores [n_tok][n_kv]. */
void lk_query_moments_score(struct lk_prefill *p);

#endif
