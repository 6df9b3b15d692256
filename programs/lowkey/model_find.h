/* Finds the model file. */
#ifndef LK_LOWKEY_MODEL_FIND_H
#define LK_LOWKEY_MODEL_FIND_H

#include <stdbool.h>

/* The file to open: `given`, else $LOWKEY_MODEL, else the default model in
 * ${LOWKEY_CACHE:-~/.cache/lowkey}/models. `fetch`: download the default model if it is missing.
 * Returns a STATUS_*, after printing an error. *path is owned: free. */
int model_find(const char *given, bool fetch, char **path);

#endif
