/* Lookup of named recipes. lowkey.h declares what lists them. */
#ifndef LK_RECIPE_PRESETS_H
#define LK_RECIPE_PRESETS_H

#include "lowkey.h"

struct lk_named_recipe {
    const char *name, *text; /* static; NULL if there is none */
};

/* The preset of any kind with that name (`len` bytes, no zero bytes, any case). */
struct lk_named_recipe lk_preset_find(const char *name, size_t len);

#endif
