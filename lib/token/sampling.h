/* From logits to a token, by libllama's samplers. */
#ifndef LK_TOKEN_SAMPLING_H
#define LK_TOKEN_SAMPLING_H

#include "base/writer.h"
#include "token/vocab.h"

struct lk_sampling;

/* `vocab` is borrowed until lk_sampling_free; it needs a tokenizer only for a grammar, and to know ends.
 * LK_E_ARG for options out of range, LK_E_FORMAT for a grammar that does not parse (libllama's parser
 * then writes its reason to stderr, past every log callback).
 * *out is owned: lk_sampling_free. */
lk_status lk_sampling_new(struct lk_sampling **out, const struct lk_vocab *vocab,
                          const lk_sampler_opts *opts, lk_err *err);
void lk_sampling_free(struct lk_sampling *s);

/* Choose a token from logits [n_vocab] and remember it. LK_E_ARG for NaN or +infinity among the logits,
 * and where all are -infinity; LK_E_FORMAT where no token fits the grammar, or the biases leave none. */
lk_status lk_sampling_next(struct lk_sampling *s, const float *logits, int32_t n_vocab,
                           int32_t *tok, lk_err *err);

/* How a sampler came to stand where it does: its options as text, and what it has drawn and chosen, which
 * restoring does again.
 *
 *   | struct lk_saved_sampling | i32 tok[n_tok] |
 */
enum { LK_SAMPLING_OPTIONS = 248 };

struct lk_saved_sampling {
    char options[LK_SAMPLING_OPTIONS];
    uint64_t n_draw;
    uint32_t seed, n_tok;
};

/* False when the sink refuses. */
bool lk_sampling_put(const struct lk_sampling *s, const struct lk_writer *sink);

/* Stand where the saved sampler stood, for logits of n_vocab tokens. A sampler with other options stays as
 * it is: *restored says which. LK_E_FORMAT where `data` is no sampler's state; the sampler is as new then. */
lk_status lk_sampling_restore(struct lk_sampling *s, const void *data, size_t n, int32_t n_vocab,
                              bool *restored, lk_err *err);

#endif
