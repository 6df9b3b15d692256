/* Lookup of named recipes. lowkey.h declares lk_recipe_preset, which lists them. */
#ifndef LK_RECIPE_PRESETS_H
#define LK_RECIPE_PRESETS_H

#include "lowkey.h"

/* The preset with that name (`len` bytes, no zero bytes, any case), or NULL. Static. */
const lk_preset *lk_preset_find(const char *name, size_t len);

#endif
