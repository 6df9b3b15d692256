/* Large texts for tests. */
#ifndef LK_TESTS_TEXT_H
#define LK_TESTS_TEXT_H

/* `n` copies of `piece`, with "%d" replaced by the number, between two texts. Owned: free(). */
char *repeat_text(const char *before, const char *piece, int n, const char *after);

#endif
