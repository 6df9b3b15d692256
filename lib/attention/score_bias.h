/* What some models do to the scores q.k, before they are scaled for the softmax. Callers decide
 * whether a call has a soft cap or ALiBi (struct lk_attn), because most have neither. */
#ifndef LK_ATTENTION_SCORE_BIAS_H
#define LK_ATTENTION_SCORE_BIAS_H

#include <stdint.h>

struct lk_attn;

/* Soft cap of n scores, as in Gemma 2: cap * tanh(score / cap). attn->softcap > 0. */
void lk_softcap_scores(const struct lk_attn *attn, float *s, int n);

/* ALiBi (Press et al. 2022): slope of a head, as the reference implementations choose it for any
 * number of heads. */
float lk_alibi_slope(int head, int n_head, float max_bias);

/* Add ALiBi's bias, the slope times the distance between query and key, to scores s [n] of a query
 * head at position pos for the rows from index `first` on. attn->alibi_max_bias > 0. */
void lk_alibi_add(const struct lk_attn *attn, int head, int64_t pos, float *s, int64_t first,
                  int n);

#endif
