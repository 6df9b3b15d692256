/* Soft cap of attention scores, as in Gemma 2: cap * tanh(score / cap), before the softmax. */
#ifndef LK_ATTENTION_SOFTCAP_H
#define LK_ATTENTION_SOFTCAP_H

struct lk_attn;

/* Cap n scores q.k, before scaling. Does nothing without a cap. */
void lk_softcap_scores(const struct lk_attn *attn, float *s, int n);

#endif
