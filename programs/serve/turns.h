/* Turns: which messages of a conversation leave when it does not fit its context.
 *
 *     | system ... | user, answer, calls, results | user, answer | ... | newest user ... |
 *       stay         the oldest turns leave, each of them whole           stays
 *
 * A client sends the whole conversation with every request, also the messages that were left out
 * before. If the cut moved with each question, the rows of a session would never be reused. So cuts
 * are only made at the first turn after each multiple of a number of bytes, counted from the start
 * of the conversation: a cut stays until the rest does not fit again. */
#ifndef LK_SERVE_TURNS_H
#define LK_SERVE_TURNS_H

#include <stddef.h>

struct lk_turn_message {
    const char *role; /* "system", "developer", "user", "assistant" or "tool" */
    size_t n_byte;    /* of its content and calls */
};

/* The number of system messages at the start, which stay. */
size_t lk_turns_head(const struct lk_turn_message *m, size_t n);

/* The next cut after `cut`, which is the last one tried, or 0: messages [lk_turns_head, cut) leave.
 * 0: there is none, because only the newest turn would be left already. Try cuts in turn until the
 * rest fits n_ctx tokens; there are a few at most. */
size_t lk_turns_next_cut(const struct lk_turn_message *m, size_t n, size_t n_ctx, size_t cut);

#endif
