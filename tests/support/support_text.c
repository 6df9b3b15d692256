/* Large texts for tests. */
#include "support_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *repeat_text(const char *before, const char *piece, int n, const char *after) {
    size_t cap = strlen(before) + (strlen(piece) + 8) * (size_t)n + strlen(after) + 1;
    char *text = malloc(cap), *at = text + sprintf(text, "%s", before);
    const char *mark = strstr(piece, "%d");
    for (int i = 0; i < n; i++)
        at += mark ? sprintf(at, "%.*s%d%s", (int)(mark - piece), piece, i, mark + 2)
                   : sprintf(at, "%s", piece);
    sprintf(at, "%s", after);
    return text;
}
