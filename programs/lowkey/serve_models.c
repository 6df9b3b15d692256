/* The models of `lowkey serve`. */
#include "serve_models.h"

#include "auto_recipe.h"
#include "available.h"
#include "model_find.h"
#include "model_list.h"
#include "output.h"
#include "serve/models.h"
#include "text.h"
#include "xalloc.h"

#include <stdlib.h>
#include <string.h>

/* ---- recipes ---- */

/* Is the recipe one of the first n? */
static bool is_among(const struct recipes *list, size_t n, const lk_recipe *recipe) {
    size_t i = 0;
    while (i < n && strcmp(lk_recipe_text(list->item[i]), lk_recipe_text(recipe)) != 0) i++;
    return i < n;
}

static int add_recipe(struct recipes *to, const char *kv) {
    if (to->n == MAX_LIST) return print_error("too many recipes; the maximum is %d", MAX_LIST);
    int status = recipe_open(kv, &to->item[to->n]);
    if (!status) to->n++;
    return status;
}

int serve_recipes_open(const struct serve_args *a, struct serve_model *s) {
    struct recipes *out = &s->recipes;
    if (a->kv.n > 1)
        return print_error("'serve' takes only one --kv; allow other recipes with --allow-kv");
    s->is_auto = !a->kv.n || auto_size(a->kv.item[0]);
    /* If it depends on the model, any recipe stands for it until then. */
    int status = add_recipe(out, s->is_auto ? "best-4" : a->kv.item[0]);
    for (size_t i = 0; !status && i < a->allow_kv.n; i++) {
        if (auto_size(a->allow_kv.item[i])) continue; /* depends on the model */
        if (strcmp(a->allow_kv.item[i], "presets") != 0) {
            status = add_recipe(out, a->allow_kv.item[i]);
            continue;
        }
        lk_preset preset;
        for (size_t k = 0; !status && lk_recipe_preset(k, &preset); k++) {
            if (preset.compress && !a->model.sidecar) continue;
            status = add_recipe(out, preset.name);
            if (!status) s->from_presets[out->n - 1] = true;
        }
        s->allow_tuned = true;
    }
    return status;
}

/* May requests select the recipe of 'auto' of this size? With --allow-kv auto-N; with presets, if
 * one is stored. */
static bool is_auto_allowed(const struct serve_args *a, const struct serve_model *s,
                            const struct auto_name *size) {
    bool named = false;
    for (size_t i = 0; i < a->allow_kv.n; i++)
        named |= auto_size(a->allow_kv.item[i]) == size->size;
    return named || (s->allow_tuned && auto_recipe_exists(s->model, size));
}

/* Add it, unless it is there already. */
static int add_auto_recipe(const struct serve_args *a, struct serve_model *s,
                           const struct auto_name *size) {
    struct recipes *to = &s->recipes;
    lk_recipe *recipe = NULL;
    if (to->n == MAX_LIST) return print_error("too many recipes; the maximum is %d", MAX_LIST);
    int status = auto_recipe_of_size(s->model, size, !a->model.cluster, &recipe);
    if (recipe && is_among(to, to->n, recipe))
        lk_recipe_free(recipe);
    else if (recipe)
        to->item[to->n++] = recipe;
    return status;
}

/* What depends on the model: the default recipe, and the presets that were tuned for it. */
static int add_tuned_recipes(const struct serve_args *a, struct serve_model *s) {
    lk_recipe **first = &s->recipes.item[0];
    if (s->is_auto) {
        lk_recipe_free(*first);
        *first = NULL;
    }
    int status = auto_recipe_open(&a->auto_kv, &a->model, s->model, &a->kv, first);
    if (!*first) s->recipes.n = 0;
    bool tunes = !status && s->is_auto && !a->auto_kv.memory && !serve_models_are_several(a) &&
                 auto_recipes_make_later(&a->model, s->model, &a->kv);
    if (tunes)
        print_error("while the server is idle, a better cache for this model is looked for; the "
                    "next start will use it (--kv best-4: never)");
    for (int i = 0; !status && i < AUTO_SIZES; i++)
        if (is_auto_allowed(a, s, &auto_names[i])) status = add_auto_recipe(a, s, &auto_names[i]);
    lk_preset preset;
    for (size_t i = 0; !status && s->allow_tuned && lk_model_tuned(s->model, i, &preset); i++) {
        status = add_recipe(&s->recipes, preset.name);
        if (!status) s->from_presets[s->recipes.n - 1] = true;
    }
    return status;
}

/* Drop the recipes added by "presets" that this model does not support, or that come earlier. */
static void drop_unsupported_presets(struct lk_server_opts *o, struct serve_model *s) {
    size_t n = 0;
    for (size_t i = 0; i < s->recipes.n; i++) {
        lk_recipe *recipe = s->recipes.item[i];
        if (s->from_presets[i] &&
            (is_among(&s->recipes, n, recipe) || lk_server_check_recipe(o, recipe, NULL)))
            lk_recipe_free(recipe);
        else
            s->recipes.item[n++] = recipe;
    }
    o->n_recipe = s->recipes.n = n;
    o->recipe = (const lk_recipe *const *)s->recipes.item;
    for (size_t i = 0; i < n; i++)
        s->recipe_name[i] = auto_recipe_name(s->model, s->recipes.item[i]);
    o->recipe_name = s->recipe_name;
}

/* Use the template of the file, if one is given, and say now if chats cannot be served. */
static int set_chat_template(const char *path, lk_model *model) {
    enum { MAX_TEMPLATE = 1 << 20 };
    struct lk_buf text = {0};
    lk_err err = {0};
    int status = path ? read_text_file(path, "chat template", MAX_TEMPLATE, &text) : STATUS_OK;
    if (!status && path && lk_model_set_chat_template(model, lk_buf_cstr(&text), &err))
        status = print_error("the chat template %s cannot be used: %s", path, err.msg);
    lk_buf_free(&text);
    if (!path && lk_model_check_chat_template(model, &err))
        print_error("warning: chats will be refused: %s; give a template in Jinja with "
                    "--chat-template-file FILE",
                    err.msg);
    return status;
}

/* A name of the model in the API, owned. Characters that are special in URLs become '-'. */
static char *model_id(char *id) {
    for (char *c = id; *c; c++)
        if (*c == ' ' || *c == '/' || *c == '?' || *c == '#' || *c == '%') *c = '-';
    if (*id) return id;
    free(id);
    return xasprintf("model");
}

static void set_names(const struct serve_args *a, struct serve_model *s) {
    for (size_t i = 0; i < a->name.n; i++)
        s->name[s->n_name++] = model_id(printable_copy(a->name.item[i]));
    if (s->n_name == 0) s->name[s->n_name++] = model_id(model_name(s->model));
}

/* ---- one model ---- */

/* Bytes that caches need for a short question and its answer; 0: the recipe does not fit the
 * model, which has an error of its own. */
static uint64_t least_cache_bytes(const lk_model *model, const lk_recipe *recipe, int32_t n_ctx) {
    enum { LEAST = 256 }; /* tokens */
    lk_session_opts opts = {.n_ctx = n_ctx < LEAST ? n_ctx : LEAST};
    lk_plan plan;
    if (lk_plan_make(model, recipe, &opts, &plan, NULL)) return 0;
    return plan.peak_bytes - plan.weight_bytes + plan.device_cache_bytes;
}

/* Refuse a limit under which no request could be answered. */
static lk_status check_limit(const struct lk_server_opts *o, lk_err *err) {
    char need[NUMBER_BUF], have[NUMBER_BUF];
    uint64_t bytes = least_cache_bytes(o->model, o->recipe[0], o->n_ctx);
    if (!o->max_bytes)
        return lk_fail(err, LK_E_ARG,
                       "cannot determine the free memory; set a limit with --cache-limit MIB");
    if (bytes <= o->max_bytes) return LK_OK;
    return lk_fail(
        err, LK_E_NOMEM,
        "the limit for caches is %s, but a short answer needs %s; use --cache-limit %llu "
        "or more",
        format_bytes(have, o->max_bytes), format_bytes(need, bytes),
        (unsigned long long)(bytes >> 20) + 1);
}

/* Set what the server's options have of an open model. */
static int set_opts(const struct serve_args *a, struct serve_model *s, struct lk_server_opts *o) {
    o->model = s->model;
    o->n_ctx = a->ctx ? (int32_t)a->ctx : lk_model_get_info(s->model).n_ctx_train;
    int status = set_chat_template(a->chat_template, s->model);
    if (!status) status = add_tuned_recipes(a, s);
    if (!status) drop_unsupported_presets(o, s);
    return status;
}

int serve_model_open(const struct serve_args *a, struct serve_model *s, struct lk_server_opts *o) {
    lk_err err = {0};
    int status = model_open(&a->model, true, &s->model);
    if (!status) status = set_opts(a, s, o);
    if (status) return status;
    if (!a->cache_limit) o->max_bytes = available_bytes("") / 2 / (uint64_t)a->n_here;
    set_names(a, s);
    o->id = s->name[0];
    o->alias = (const char *const *)s->name + 1;
    o->n_alias = s->n_name - 1;
    warn_beyond_training(s->model, o->n_ctx);
    return check_limit(o, &err) ? print_lk_error(&err) : STATUS_OK;
}

void serve_model_free(struct serve_model *s) {
    for (size_t i = 0; i < s->n_name; i++) free(s->name[i]);
    recipes_free(&s->recipes);
    lk_model_free(s->model);
    *s = (struct serve_model){0};
}

/* ---- several models ---- */

static lk_status load_model(void *user, size_t i, lk_progress progress, void *progress_user,
                            struct lk_server_opts *o, lk_err *err) {
    struct serve_models *models = user;
    const struct serve_args *a = models->args;
    struct serve_model *s = &models->open[i];
    lk_model_opts opts;
    bool good = !model_opts_from_args(&a->model, &opts) && !serve_recipes_open(a, s);
    opts.progress = progress;
    opts.user = progress_user;
    lk_status status = LK_E_ARG;
    if (good) status = lk_model_open(&s->model, models->entry[i].path, &opts, err);
    if (good && !status && set_opts(a, s, o)) good = false;
    if (!good) status = lk_fail(err, LK_E_ARG, "its recipes cannot be used; see the server's log");
    o->id = models->entry[i].id;
    if (!status) status = check_limit(o, err);
    if (status) serve_model_free(s);
    return status;
}

static void unload_model(void *user, size_t i) {
    struct serve_models *models = user;
    serve_model_free(&models->open[i]);
}

bool serve_models_are_several(const struct serve_args *a) { return a->folder || a->file.n > 1; }

/* Options that are for one model. */
static int check_options(const struct serve_args *a) {
    const struct {
        bool given;
        const char *name;
    } of_one[] = {{a->model.sidecar, "sidecar"},
                  {a->model.lora, "lora"},
                  {a->chat_template, "chat-template-file"},
                  {a->name.n, "name"},
                  {a->auto_kv.memory, "memory"},
                  {a->auto_kv.tune, "tune"},
                  {a->sandbox, "sandbox"},
                  {a->model.cluster, "stages"},
                  {a->strict_model, "strict-model"}};
    for (size_t i = 0; i < sizeof of_one / sizeof of_one[0]; i++)
        if (of_one[i].given)
            return print_error("--%s is for a server with one model; give one -m and no --models",
                               of_one[i].name);
    return STATUS_OK;
}

/* Bytes of the weights in memory: resident copies of them, or the pages of the file. */
static uint64_t weight_bytes(const lk_model_info *info) {
    return info->file_bytes > info->weight_bytes ? info->file_bytes : info->weight_bytes;
}

static char *copy_text(const char *text) { return text ? xasprintf("%s", text) : NULL; }

/* Add a model; takes `id` and `path`. A file that does not run is left out with a line. */
static int add_entry(struct serve_models *to, char *id, char *path, uint64_t cache_bytes) {
    lk_model_opts opts;
    lk_model *header = NULL;
    lk_err err = {0};
    int status = model_opts_from_args(&to->args->model, &opts);
    opts.header_only = true;
    for (size_t i = 0; i < to->n; i++)
        if (strcmp(to->entry[i].id, id) == 0 && !status)
            status =
                print_error("two models are called %s: %s and %s", id, to->entry[i].path, path);
    if (!status && lk_model_open(&header, path, &opts, &err))
        print_error("left out %s: %s", id, err.msg);
    if (status || !header) {
        free(id);
        free(path);
        return status;
    }
    lk_model_info info = lk_model_get_info(header);
    struct lk_model_entry entry = {.id = id,
                                   .path = path,
                                   .info = info,
                                   .n_ctx =
                                       to->args->ctx ? (int32_t)to->args->ctx : info.n_ctx_train,
                                   .weight_bytes = weight_bytes(&info),
                                   .cache_bytes = cache_bytes};
    /* What the header lends. */
    entry.info.arch = copy_text(info.arch);
    entry.info.name = copy_text(info.name);
    entry.info.device = NULL;
    lk_model_free(header);
    to->entry = xrealloc(to->entry, (to->n + 1) * sizeof *to->entry);
    to->entry[to->n++] = entry;
    return STATUS_OK;
}

/* The name of -m FILE: the file's, or what was given to look it up. */
static char *given_id(const char *given, const char *path) {
    return model_id(strchr(given, '/') || strcmp(given, path) == 0 ? model_file_name(path)
                                                                   : printable_copy(given));
}

static int find_files(struct serve_models *to, uint64_t cache_bytes) {
    const struct serve_args *a = to->args;
    int status = STATUS_OK;
    for (size_t i = 0; !status && i < a->file.n; i++) {
        char *path = NULL;
        status = model_find(a->file.item[i], false, &path);
        if (!status) status = add_entry(to, given_id(a->file.item[i], path), path, cache_bytes);
    }
    if (status || !a->folder) return status;
    struct model_list *list = model_list_folder(a->folder);
    if (!list->n) status = print_error("--models: no file *.gguf in %s", a->folder);
    for (size_t i = 0; !status && i < list->n; i++)
        status = add_entry(to, model_id(printable_copy(list->item[i].name)),
                           copy_text(list->item[i].path), cache_bytes);
    model_list_free(list);
    return status;
}

int serve_models_find(const struct serve_args *a, struct serve_models *to,
                      struct lk_server_opts *o) {
    enum { PART = 4 }; /* of the memory, for the caches of one model */
    uint64_t available = available_bytes(""), spare = available / 8;
    char have[NUMBER_BUF];
    to->args = a;
    int status = check_options(a);
    if (status) return status;
    o->max_model_bytes = a->max_memory ? (uint64_t)a->max_memory << 20 : available - spare;
    if (!a->cache_limit) o->max_bytes = o->max_model_bytes / PART;
    if (!o->max_model_bytes)
        return print_error("cannot determine the free memory; set a limit with --max-memory MIB");
    status = find_files(to, o->max_bytes);
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < to->n; i++) {
        uint64_t need = to->entry[i].weight_bytes + to->entry[i].cache_bytes;
        if (need < least) least = need;
        if (!status && need > o->max_model_bytes)
            print_error("warning: model %s needs %.0f MiB, %.0f of them for caches, but "
                        "--max-memory allows %.0f; requests for it will be refused",
                        to->entry[i].id, (double)(need >> 20),
                        (double)(to->entry[i].cache_bytes >> 20),
                        (double)(o->max_model_bytes >> 20));
    }
    if (!status && !to->n) status = print_error("none of these models can be served");
    if (!status && least > o->max_model_bytes)
        status = print_error("no model fits the limit of %s; use --max-memory %llu or more",
                             format_bytes(have, o->max_model_bytes),
                             (unsigned long long)(least >> 20) + 1);
    to->open = xmalloc((to->n + 1) * sizeof *to->open);
    memset(to->open, 0, (to->n + 1) * sizeof *to->open);
    o->entry = to->entry;
    o->n_entry = to->n;
    o->load_user = to;
    o->load = load_model;
    o->unload = unload_model;
    return status;
}

void serve_models_free(struct serve_models *s) {
    for (size_t i = 0; i < s->n; i++) {
        free((char *)s->entry[i].id);
        free((char *)s->entry[i].path);
        free((char *)s->entry[i].info.arch);
        free((char *)s->entry[i].info.name);
    }
    free(s->entry);
    free(s->open);
}
