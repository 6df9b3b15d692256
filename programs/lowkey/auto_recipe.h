/* The recipe that 'auto' stands for: one for the model at hand.
 *
 *   auto, auto-4    of the size of best-4
 *   auto-3, auto-2  of the sizes of best-3 and best-2
 *
 * It is the recipe that `lowkey tune` stored for the model, else the preset of this size that was
 * tuned for it, else the preset best-N. But `auto` is f16 for gpt-oss until it was tuned, and for
 * a model that loses too much by the measurements of `lowkey tune`. In $LOWKEY_CACHE/recipes or
 * ~/.cache/lowkey/recipes are:
 *
 *   IDENTITY-auto-N    a recipe file, with comments
 *   IDENTITY.state     what was measured, for other sizes
 *
 * IDENTITY: lk_model_info.identity in 16 hexadecimal digits; all quantizations of a model have the
 * same. Functions that return int return a STATUS_*, after printing an error. */
#ifndef LK_LOWKEY_AUTO_RECIPE_H
#define LK_LOWKEY_AUTO_RECIPE_H

#include "common.h"

enum { AUTO_CTX = 8192 }; /* tokens whose bytes count */

/* The sizes, the default one first. */
struct auto_name {
    const char *name, *preset; /* "auto-4", "best-4" */
    int size;                  /* 4, which tuned presets have at the end of their names */
};
enum { AUTO_SIZES = 3 };
extern const struct auto_name auto_names[AUTO_SIZES];

/* The size that --kv asks for, which is 'auto' or was not given. */
const struct auto_name *auto_name_of(const struct string_list *kv);

/* Open the recipe of a size. `stored`: that of `lowkey tune` may be used. */
int auto_recipe_of_size(const lk_model *model, const struct auto_name *size, bool stored,
                        lk_recipe **out);

/* Open those of the list that are 'auto'. */
int auto_recipes_open(const struct model_args *of, const lk_model *model, struct recipes *recipes);

/* "auto-3" if that is what the recipe is for this model, as stored; else NULL. Static. */
const char *auto_recipe_name(const lk_model *model, const lk_recipe *recipe);

/* Is there a recipe of this size that was tuned for the model? True if that cannot be said: opening
 * it reports the reason, and nothing replaces it. */
bool auto_recipe_exists(const lk_model *model, const struct auto_name *size);

/* The recipe's name or text for a line of prose, with ", tuned for this model" if it was. */
enum { RECIPE_TITLE = 128 };
const char *recipe_title(const lk_model *model, const lk_recipe *recipe, char buf[RECIPE_TITLE]);

/* The path of a stored recipe, or of the measurements with size NULL: free it. NULL if neither
 * $LOWKEY_CACHE nor $HOME is set. */
char *auto_recipe_path(const lk_model *model, const struct auto_name *size);

/* ---- tuning (auto_tune.c) ---- */

/* Most tokens of a chunk that an estimate is made on: AUTO_MAX_CHUNK, or as many as the model was
 * trained for. */
enum { AUTO_MAX_CHUNK = 4096 };
size_t auto_max_chunk(const lk_model *model);

/* Tune the recipes of all sizes for the model and store them. tok: the text, at least 256 tokens;
 * NULL: one that the program has. `progress`: NULL, or what it is called with. */
int auto_recipes_make(lk_model *model, const struct tokens *tok, lk_progress progress, void *user);

/* The same unless there are recipes for the model, with a progress line: --tune. */
int auto_recipes_make_now(lk_model *model);

/* Open the recipe of --kv, which is 'auto' or was not given, unless *recipe is open. args: NULL if
 * the command has no such options. */
int auto_recipe_open(const struct auto_args *args, const struct model_args *of, lk_model *model,
                     const struct string_list *kv, lk_recipe **recipe);

/* Start a process that tunes while this one runs and the machine is idle (`lowkey tune --while`),
 * unless there is a recipe of the size of --kv, tuning does not fit the free memory, or
 * $LOWKEY_TUNE is 0. Returns whether it was started. */
bool auto_recipes_make_later(const struct model_args *args, const lk_model *model,
                             const struct string_list *kv);

/* Wait until the machine is idle, and give up priority. False once process `pid` has ended. */
bool auto_recipes_wait(int64_t pid);

/* Open a recipe that holds n_ctx tokens in max_bytes: --memory. What was stored for the model is
 * used, and made first if it is missing. */
int auto_recipe_fit(lk_model *model, uint64_t max_bytes, int32_t n_ctx, lk_recipe **out);

#endif
