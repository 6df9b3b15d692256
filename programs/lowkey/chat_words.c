/* Words of a command's line. */
#include "chat_words.h"

#include "xalloc.h"

#include <string.h>

char *chat_next_word(const char **text) {
    const char *s = *text + strspn(*text, " \t");
    struct lk_buf word = {0};
    char quote = 0;
    if (!*s) return NULL;
    xbuf_add(&word, "", 0);
    for (; *s && (quote || !strchr(" \t", *s)); s++) {
        if (*s == quote)
            quote = 0;
        else if (!quote && (*s == '"' || *s == '\''))
            quote = *s;
        else if (*s == '\\' && quote != '\'' && s[1])
            xbuf_add(&word, ++s, 1);
        else
            xbuf_add(&word, s, 1);
    }
    *text = s + strspn(s, " \t");
    return word.at;
}
