/* Finds the recipe that 'auto' stands for. */
#include "auto_recipe.h"

#include "output.h"
#include "text.h"
#include "xalloc.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *auto_recipe_path(const lk_model *model, const char *end) {
    const char *cache = getenv("LOWKEY_CACHE"), *home = getenv("HOME");
    uint64_t identity = lk_model_get_info(model).identity;
    if (cache && *cache) return xasprintf("%s/recipes/%016" PRIx64 "%s", cache, identity, end);
    if (home && *home)
        return xasprintf("%s/.cache/lowkey/recipes/%016" PRIx64 "%s", home, identity, end);
    return NULL;
}

static char *stored_path(const lk_model *model, int size) {
    const char end[] = {'-', 'a', 'u', 't', 'o', '-', (char)('0' + size), 0};
    return auto_recipe_path(model, end);
}

/* The preset of this size that was tuned for the model; NULL: there is none. */
static const char *tuned_preset(const lk_model *model, int size) {
    const char end[] = {'-', (char)('0' + size), 0};
    lk_preset preset;
    for (size_t i = 0; lk_model_tuned(model, i, &preset); i++) {
        size_t len = strlen(preset.name);
        if (len > 2 && strcmp(preset.name + len - 2, end) == 0) return preset.name;
    }
    return NULL;
}

/* Read a stored recipe without its comments. text->at is NULL if there is none. */
static int read_stored(const char *path, struct lk_buf *text) {
    enum { MAX_BYTES = 64 * 1024 };
    struct lk_buf all = {0};
    *text = (struct lk_buf){0};
    if (!path || access(path, F_OK) != 0) return STATUS_OK;
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
static int open_stored(const lk_model *model, int size, lk_recipe **out) {
    lk_err err = {0};
    struct lk_buf text;
    char *path = stored_path(model, size);
    int status = read_stored(path, &text);
    if (!status && text.at && lk_recipe_parse(out, text.at, &err))
        status = print_error("%s: %s; delete it to tune again", path, err.msg);
    lk_buf_free(&text);
    free(path);
    return status;
}

int auto_recipe_of_size(const lk_model *model, int size, bool stored, lk_recipe **out) {
    const char best[] = {'b', 'e', 's', 't', '-', (char)('0' + size), 0};
    *out = NULL;
    int status = stored ? open_stored(model, size, out) : STATUS_OK;
    if (status || *out) return status;
    const char *preset = tuned_preset(model, size);
    return recipe_open(preset ? preset : best, out);
}

int auto_recipes_open(const struct model_args *of, const lk_model *model, struct recipes *recipes) {
    int status = STATUS_OK;
    for (size_t i = 0; !status && i < recipes->n; i++)
        if (!recipes->item[i])
            status = auto_recipe_of_size(model, auto_size(recipes->name[i]), !of->cluster,
                                         &recipes->item[i]);
    return status;
}

bool auto_recipe_exists(const lk_model *model, int size) {
    char *path = stored_path(model, size);
    bool exists = tuned_preset(model, size) || (path && access(path, F_OK) == 0);
    free(path);
    return exists;
}

const char *auto_recipe_name(const lk_model *model, const lk_recipe *recipe) {
    static const char *const name[AUTO_SIZES] = {"auto-4", "auto-3", "auto-2"};
    bool same = false;
    int i = 0;
    for (; !same && i < AUTO_SIZES; i++) {
        lk_recipe *stored = NULL;
        if (!open_stored(model, AUTO_SIZE - i, &stored) && stored)
            same = strcmp(lk_recipe_text(stored), lk_recipe_text(recipe)) == 0;
        lk_recipe_free(stored);
    }
    return same ? name[i - 1] : NULL;
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
