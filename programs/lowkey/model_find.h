/* Finds the model file. */
#ifndef LK_LOWKEY_MODEL_FIND_H
#define LK_LOWKEY_MODEL_FIND_H

#include <stdbool.h>

/* The file to open: `given` or $LOWKEY_MODEL, which is a path or the name of a model on this
 * machine (model_list.h), else the default model in ${LOWKEY_CACHE:-~/.cache/lowkey}/models. The
 * default model is the best of a few that fits in the free memory; one that is on disk comes first.
 * `fetch`: if none is on disk, offer to download it on a terminal, else say how.
 * Returns a STATUS_*, after printing an error. *path is owned: free. */
int model_find(const char *given, bool fetch, char **path);

/* Download a model by its name in scripts/fetch-model, which prints its path or what failed; NULL:
 * list the names. Returns a STATUS_*. */
int model_pull(const char *name);

#endif
