/* Where the model is when nobody says. */
#ifndef LK_LOWKEY_MODEL_FIND_H
#define LK_LOWKEY_MODEL_FIND_H

#include <stdbool.h>

/* The file to open: `given`, else $LOWKEY_MODEL, else the default model in
 * ${LOWKEY_CACHE:-~/.cache/lowkey}/models, which `fetch` downloads where it is absent.
 * Returns a program status; *path is to be freed. */
int model_find(const char *given, bool fetch, char **path);

#endif
