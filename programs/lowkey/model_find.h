/* Finds the model file. */
#ifndef LK_LOWKEY_MODEL_FIND_H
#define LK_LOWKEY_MODEL_FIND_H

#include <stdbool.h>

/* The file to open: `given`, else $LOWKEY_MODEL, else the default model in
 * ${LOWKEY_CACHE:-~/.cache/lowkey}/models. The default model is the best of a few that fits in the
 * free memory; one that is on disk comes first. `fetch`: if none is on disk, offer to download it
 * on a terminal, else say how.
 * Returns a STATUS_*, after printing an error. *path is owned: free. */
int model_find(const char *given, bool fetch, char **path);

#endif
