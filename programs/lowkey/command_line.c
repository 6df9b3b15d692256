#include "command_line.h"

#include "text.h"

#include <stdlib.h>
#include <string.h>

char *command_line(int argc, char **argv) {
    struct text line = {0};
    text_add(&line, "lowkey", 6);
    for (int i = 0; i < argc; i++) {
        bool plain =
            *argv[i] &&
            argv[i][strspn(
                argv[i],
                "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./,:=%+@")] == 0;
        char *word = text_clean(argv[i]);
        text_add(&line, plain ? " " : " '", plain ? 1 : 2);
        for (const char *c = word; *c; c++) {
            if (*c == '\'')
                text_add(&line, "'\\''", 4);
            else
                text_add(&line, c, 1);
        }
        if (!plain) text_add(&line, "'", 1);
        free(word);
    }
    return line.at;
}
