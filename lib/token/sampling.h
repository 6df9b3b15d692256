/* Chooses tokens from logits with libllama's samplers. */
#ifndef LK_TOKEN_SAMPLING_H
#define LK_TOKEN_SAMPLING_H

#include "base/buf.h"
#include "token/vocab.h"

struct lk_sampling;

/* `vocab` is borrowed until lk_sampling_free. It needs a tokenizer only for a grammar and for
 * ignore_eos. LK_E_ARG for options out of range; for a grammar that does not parse, the errors of
 * lk_grammar_new. *out is owned: lk_sampling_free. */
lk_status lk_sampling_new(struct lk_sampling **out, const struct lk_vocab *vocab,
                          const lk_sampler_opts *opts, lk_err *err);

/* A sampler in its initial state with the options and biases of `from` and another seed. Both share
 * the compiled grammar. */
lk_status lk_sampling_copy(struct lk_sampling **out, const struct lk_sampling *from, uint32_t seed,
                           lk_err *err);

/* Bytes that a sampler of n_vocab tokens holds or will hold from the first choice on, without those
 * of the compiled grammar; and the latter, 0 without a grammar. */
size_t lk_sampling_bytes(const struct lk_sampling *s, int32_t n_vocab);
size_t lk_sampling_grammar_bytes(const struct lk_sampling *s);
void lk_sampling_free(struct lk_sampling *s);

/* Choose a token from logits [n_vocab] and accept it. LK_E_ARG if a logit is NaN or +infinity, or
 * if all are -infinity. LK_E_FORMAT if the grammar or the biases allow no token. LK_E_UNSUPPORTED
 * if the grammar is too ambiguous. */
lk_status lk_sampling_next(struct lk_sampling *s, const float *logits, int32_t n_vocab,
                           int32_t *tok, lk_err *err);

/* Accept a token that was not chosen. LK_E_ARG: there is no such token. */
lk_status lk_sampling_accept(struct lk_sampling *s, int32_t n_vocab, int32_t tok, lk_err *err);

/* As lk_sampler_set_thoughts. */
void lk_sampling_set_thoughts(struct lk_sampling *s, bool are_thoughts);

/* State of a sampler: its options as text, the number of draws and the accepted tokens. Restoring
 * repeats the draws and accepts the tokens again.
 *
 *   | struct lk_sampling_state | i32 tok[n_tok] |
 */
enum { LK_SAMPLING_OPTIONS = 248 };

struct lk_sampling_state {
    char options[LK_SAMPLING_OPTIONS];
    uint64_t n_draw;
    uint32_t seed, n_tok;
};

/* Write the state. False if the writer fails. */
bool lk_sampling_save(const struct lk_sampling *s, const struct lk_writer *writer);

/* Restore a saved state, for logits of n_vocab tokens. *restored is false if the state was saved
 * with different options; the sampler is not changed then. LK_E_FORMAT if `data` is not a valid
 * state; the sampler is reset then. */
lk_status lk_sampling_restore(struct lk_sampling *s, const void *data, size_t n, int32_t n_vocab,
                              bool *restored, lk_err *err);

#endif
