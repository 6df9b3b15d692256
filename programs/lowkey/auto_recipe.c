/* Finds the recipe that 'auto' stands for. */
#include "auto_recipe.h"

#include "base/atomic_file.h"
#include "base/os.h"
#include "output.h"
#include "text.h"
#include "xalloc.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const struct auto_name auto_names[AUTO_SIZES] = {
    {"auto-4", "best-4", 4}, {"auto-3", "best-3", 3}, {"auto-2", "best-2", 2}};

const struct auto_name *auto_name_of(const struct string_list *kv) {
    int size = kv->n ? auto_size(kv->item[0]) : 0, i = AUTO_SIZES - 1;
    while (i > 0 && auto_names[i].size != size) i--;
    return &auto_names[i];
}

char *auto_recipe_path(const lk_model *model, const struct auto_name *size) {
    const char *cache = getenv("LOWKEY_CACHE"), *home = lk_os_home();
    bool has_cache = cache && *cache;
    if (!has_cache && (!home || !*home)) return NULL;
    return xasprintf("%s%s/recipes/%016" PRIx64 "%s%s", has_cache ? cache : home,
                     has_cache ? "" : "/.cache/lowkey", lk_model_get_info(model).identity,
                     size ? "-" : ".state", size ? size->name : "");
}

/* The preset of this size that was tuned for the model; NULL: there is none. */
static const char *tuned_preset(const lk_model *model, const struct auto_name *size) {
    lk_preset preset;
    for (size_t i = 0; lk_model_tuned(model, i, &preset); i++) {
        const char *end = strrchr(preset.name, '-');
        if (end && strtol(end + 1, NULL, 10) == size->size) return preset.name;
    }
    return NULL;
}

/* The recipe of this size for a model that was not tuned. Caches of other engines with 8-bit keys
 * change the predictions of gpt-oss a lot, and ours have not been measured with its weights. */
static const char *untuned_preset(const lk_model *model, const struct auto_name *size) {
    bool is_default = size == &auto_names[0];
    return is_default && strcmp(lk_model_get_info(model).arch, "gpt-oss") == 0 ? "f16"
                                                                               : size->preset;
}

/* Read a stored recipe without its comments. text->at is NULL if there is none. */
static int read_stored(const char *path, struct lk_buf *text) {
    enum { MAX_BYTES = 64 * 1024 };
    struct lk_buf all = {0};
    *text = (struct lk_buf){0};
    lk_err err = {0};
    bool exists = false;
    if (path && lk_file_exists(&exists, path, &err)) return print_lk_error(&err);
    if (!exists) return STATUS_OK;
    int status = read_text_file(path, "recipe", MAX_BYTES, &all);
    for (const char *line = status ? NULL : lk_buf_cstr(&all); line && *line;) {
        size_t len = strcspn(line, "\n");
        if (*line != '#') xbuf_add(text, line, len + (line[len] == '\n'));
        line += len + (line[len] == '\n');
    }
    if (!status) xbuf_add(text, "", 0);
    lk_buf_free(&all);
    return status;
}

/* *out stays NULL if nothing is stored. */
static int open_stored(const lk_model *model, const struct auto_name *size, lk_recipe **out) {
    lk_err err = {0};
    struct lk_buf text;
    char *path = auto_recipe_path(model, size);
    int status = read_stored(path, &text);
    if (!status && text.at && lk_recipe_parse(out, text.at, &err))
        status = print_error("%s: %s; delete it to tune again", path, err.msg);
    lk_buf_free(&text);
    free(path);
    return status;
}

int auto_recipe_of_size(const lk_model *model, const struct auto_name *size, bool stored,
                        lk_recipe **out) {
    *out = NULL;
    int status = stored ? open_stored(model, size, out) : STATUS_OK;
    if (status || *out) return status;
    const char *preset = tuned_preset(model, size);
    return recipe_open(preset ? preset : untuned_preset(model, size), out);
}

int auto_recipes_open(const struct model_args *of, const lk_model *model, struct recipes *recipes) {
    int status = STATUS_OK;
    for (size_t i = 0; !status && i < recipes->n; i++) {
        const struct string_list kv = {.item = {recipes->name[i]}, .n = 1};
        if (!recipes->item[i])
            status = auto_recipe_of_size(model, auto_name_of(&kv), !of->cluster, &recipes->item[i]);
    }
    return status;
}

bool auto_recipe_exists(const lk_model *model, const struct auto_name *size) {
    char *path = auto_recipe_path(model, size);
    bool exists = tuned_preset(model, size);
    if (!exists && path && lk_file_exists(&exists, path, NULL)) exists = true;
    free(path);
    return exists;
}

const char *auto_recipe_name(const lk_model *model, const lk_recipe *recipe) {
    bool same = false;
    int i = 0;
    for (; !same && i < AUTO_SIZES; i++) {
        lk_recipe *stored = NULL;
        if (!open_stored(model, &auto_names[i], &stored) && stored)
            same = strcmp(lk_recipe_text(stored), lk_recipe_text(recipe)) == 0;
        lk_recipe_free(stored);
    }
    return same ? auto_names[i - 1].name : NULL;
}

const char *recipe_title(const lk_model *model, const lk_recipe *recipe, char buf[RECIPE_TITLE]) {
    const char *text = lk_recipe_text(recipe), *name = auto_recipe_name(model, recipe);
    char label[RECIPE_LABEL];
    lk_preset preset;
    for (size_t i = 0; lk_model_tuned(model, i, &preset); i++)
        if (strcmp(preset.name, text) == 0) {
            snprintf(buf, RECIPE_TITLE, "%s, tuned for this model", text);
            return buf;
        }
    if (name)
        snprintf(buf, RECIPE_TITLE, "%s, tuned for this model", name);
    else
        snprintf(buf, RECIPE_TITLE, "%s", recipe_label(recipe, label));
    return buf;
}
