/* Words of a command's line, with quotes. */
#ifndef LK_LOWKEY_CHAT_WORDS_H
#define LK_LOWKEY_CHAT_WORDS_H

/* Remove the next word of `*text`: up to a blank that is not quoted with '' or "" or a backslash.
 * Returns the word without the quotes: free it. NULL if no word is left. */
char *chat_next_word(const char **text);

#endif
