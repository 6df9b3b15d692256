/* Quotes words for a shell. */
#include "shell_quote.h"

#include "terminal_text.h"
#include "xalloc.h"

#include <stdlib.h>
#include <string.h>

static const char plain_characters[] =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./,:=%+@";

char *quoted_command_line(int argc, char **argv) {
    struct lk_buf line = {0};
    xbuf_add(&line, "lowkey", 6);
    for (int i = 0; i < argc; i++) {
        bool plain = *argv[i] && argv[i][strspn(argv[i], plain_characters)] == 0;
        char *word = printable_copy(argv[i]);
        xbuf_add(&line, plain ? " " : " '", plain ? 1 : 2);
        for (const char *c = word; *c; c++) {
            if (*c == '\'')
                xbuf_add(&line, "'\\''", 4);
            else
                xbuf_add(&line, c, 1);
        }
        if (!plain) xbuf_add(&line, "'", 1);
        free(word);
    }
    return line.at;
}
