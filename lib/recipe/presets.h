#ifndef LK_RECIPE_PRESETS_H
#define LK_RECIPE_PRESETS_H

#include "lowkey.h"

/* The preset of that name (`len` bytes, without zeros, any case), or NULL. Static. */
const lk_preset *lk_preset_find(const char *name, size_t len);

#endif
