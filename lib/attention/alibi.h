/* ALiBi: attention scores are biased by the distance between query and key (Press et al. 2022). */
#ifndef LK_ATTENTION_ALIBI_H
#define LK_ATTENTION_ALIBI_H

#include <stdint.h>

struct lk_attn;

/* Slope of a head, as the reference implementations choose it for any number of heads. */
float lk_alibi_slope(int head, int n_head, float max_bias);

/* Add the bias to scores s [n], before scaling, of a query head at position pos for the rows from
 * index `first` on. Does nothing without ALiBi. */
void lk_alibi_add(const struct lk_attn *attn, int head, int64_t pos, float *s, int64_t first,
                  int n);

#endif
