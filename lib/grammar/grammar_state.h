/* Which texts a grammar allows: an Earley recognizer over bytes.
 *
 * A state is a position in a text. It holds sets of items. An item says: the alternative of rule
 * `target` that began at set `origin` has matched up to symbol `pos`, which has matched `count`
 * times. A set that equals an older one is that one, and each set remembers which set follows after
 * which class of bytes, so texts that repeat a structure cost one look-up per byte. Sets that the
 * newest one does not refer to, directly or through others, are freed from time to time: memory
 * depends on how deeply a text is nested, not on its length.
 *
 * Work is counted in steps: items made and items looked at. The steps of one byte are bounded by
 * LK_GRAMMAR_MAX_STEPS, whatever the grammar is, and the bytes of a state too. */
#ifndef LK_TOKEN_GRAMMAR_STATE_H
#define LK_TOKEN_GRAMMAR_STATE_H

#include "grammar/grammar.h"
#include "grammar/token_bytes.h"

struct lk_grammar_state;

/* A step takes 5 to 70 ns. */
enum {
    LK_GRAMMAR_MAX_STEPS = 1 << 15,  /* of one byte */
    LK_GRAMMAR_MASK_STEPS = 1 << 19, /* of all tokens in lk_grammar_mask */
    LK_GRAMMAR_MAX_BYTES = 8 << 20,  /* that a position in a text may need */
};

/* The state at the start of a text. `grammar` is shared. *out is owned: lk_grammar_state_free. */
lk_status lk_grammar_state_new(struct lk_grammar_state **out, struct lk_grammar *grammar,
                               lk_err *err);
void lk_grammar_state_free(struct lk_grammar_state *state);

/* Back to the start of a text. */
void lk_grammar_reset(struct lk_grammar_state *state);

/* Can the text so far be followed by these n bytes? lk_grammar_accept also moves after them if so.
 * Errors do not move: LK_E_UNSUPPORTED if a byte needs too many steps or too much memory,
 * LK_E_NOMEM. */
lk_status lk_grammar_allows(struct lk_grammar_state *state, const char *bytes, size_t n,
                            bool *allowed, lk_err *err);
lk_status lk_grammar_accept(struct lk_grammar_state *state, const char *bytes, size_t n,
                            bool *accepted, lk_err *err);

/* Is the text so far complete? */
bool lk_grammar_is_complete(const struct lk_grammar_state *state);

/* Set allowed[i / 64] bit i % 64 for each token i of `tokens` whose text may follow, and clear the
 * others; allowed is [(n_vocab + 63) / 64]. Errors as in lk_grammar_allows, and LK_E_UNSUPPORTED if
 * all tokens together need more than LK_GRAMMAR_MASK_STEPS. */
lk_status lk_grammar_mask(struct lk_grammar_state *state, const struct lk_token_bytes *tokens,
                          uint64_t *allowed, lk_err *err);

/* Bytes of memory, without the grammar, and steps so far. */
size_t lk_grammar_state_bytes(const struct lk_grammar_state *state);
uint64_t lk_grammar_state_steps(const struct lk_grammar_state *state);

#endif
