/* From logits to a token, by libllama's samplers. */
#ifndef LK_TOKEN_SAMPLING_H
#define LK_TOKEN_SAMPLING_H

#include "token/vocab.h"

struct lk_sampling;

/* `vocab` is borrowed until lk_sampling_free; it needs a tokenizer only for a grammar.
 * LK_E_ARG for options out of range, LK_E_FORMAT for a grammar that does not parse (libllama's parser
 * then writes its reason to stderr, past every log callback).
 * *out is owned: lk_sampling_free. */
lk_status lk_sampling_new(struct lk_sampling **out, const struct lk_vocab *vocab, const lk_sampler_opts *opts, lk_err *err);
void      lk_sampling_free(struct lk_sampling *s);

/* Choose a token from logits [n_vocab] and remember it. LK_E_FORMAT for NaN or +infinity among the logits,
 * and where no token fits the grammar. */
lk_status lk_sampling_next(struct lk_sampling *s, const float *logits, int32_t n_vocab, int32_t *tok, lk_err *err);

#endif
