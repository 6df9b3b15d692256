/* Parser of codecs in a recipe (grammar in recipe.h). */
#ifndef LK_RECIPE_RECIPE_CODEC_H
#define LK_RECIPE_RECIPE_CODEC_H

#include "codec/codec.h"
#include "recipe/recipe_scan.h"

/* Whether a codec can start with this word. */
bool lk_recipe_names_codec(const char *word);

/* Write the names of all codecs, for messages. */
void lk_recipe_codec_names(char *buf, size_t cap);

/* Read CODEC | 'k=' CODEC 'v=' CODEC, in either order, into side[LK_K] and side[LK_V]. */
lk_status lk_recipe_read_codecs(struct lk_scan *scan, struct lk_codec side[2]);

#endif
