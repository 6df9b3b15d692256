/* Codecs as a recipe writes them (recipe.h has the grammar). */
#ifndef LK_RECIPE_RECIPE_CODEC_H
#define LK_RECIPE_RECIPE_CODEC_H

#include "codec/codec.h"
#include "recipe/recipe_scan.h"

/* Does the word begin a codec? */
bool lk_recipe_names_codec(const char *word);

/* Names to choose from, for messages. Static. */
extern const char lk_recipe_codec_names[];

/* Read CODEC | 'k=' CODEC 'v=' CODEC, in either order: side[LK_K] and side[LK_V]. */
lk_status lk_recipe_read_codecs(struct lk_scan *scan, struct lk_codec side[2]);

#endif
