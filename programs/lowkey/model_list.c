/* Looks for model files in the folders of programs that download them. */
#include "model_list.h"

#include "base/closest.h"
#include "base/os.h"
#include "output.h"
#include "xalloc.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { MAX_DEPTH = 6, MAX_ENTRIES = 20000, MAX_MANIFEST = 1 << 20 };

/* A walk through the folders of one program. */
struct walk {
    struct model_list *list;
    const char *source, *root;
    size_t n_entry; /* seen so far */
    void (*visit)(struct walk *walk, const char *path, const struct stat *info);
};

/* ---- walking ---- */

static int compare_names(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The names in a folder that are not hidden, in order; *n is 0 if it cannot be read. */
static char **list_folder(const char *folder, size_t *n) {
    char **name = NULL;
    DIR *dir = opendir(folder);
    *n = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        if (*n % 64 == 0) name = xrealloc(name, (*n + 64) * sizeof *name);
        name[(*n)++] = xasprintf("%s", entry->d_name);
    }
    if (dir) closedir(dir);
    if (*n) qsort(name, *n, sizeof *name, compare_names);
    return name;
}

/* Visit the files below `folder`, in the order of their names. */
static void walk_folder(struct walk *walk, const char *folder, int depth) {
    size_t n = 0;
    char **name = depth < MAX_DEPTH ? list_folder(folder, &n) : NULL;
    for (size_t i = 0; i < n; i++) {
        struct stat info;
        char *path = xasprintf("%s/%s", folder, name[i]);
        bool seen = walk->n_entry++ >= MAX_ENTRIES || stat(path, &info) != 0;
        if (!seen && S_ISDIR(info.st_mode)) walk_folder(walk, path, depth + 1);
        if (!seen && S_ISREG(info.st_mode)) walk->visit(walk, path, &info);
        free(path);
        free(name[i]);
    }
    free(name);
}

/* Takes `name` and `path`. */
static void add_model(struct walk *walk, char *name, char *path, uint64_t bytes) {
    struct model_list *list = walk->list;
    bool is_again = false; /* in a snapshot of another commit, or behind a link */
    for (size_t i = 0; i < list->n; i++)
        is_again |= list->item[i].source == walk->source && list->item[i].bytes == bytes &&
                    strcmp(list->item[i].name, name) == 0;
    if (is_again || list->n == MODEL_LIST_MAX) {
        free(name);
        free(path);
        return;
    }
    list->item[list->n++] = (struct found_model){name, path, walk->source, bytes};
}

/* ---- files ---- */

/* The number of parts and which one this is, of a name that ends in "-00001-of-00003". */
static bool split_part(const char *name, unsigned *part, unsigned *n_part) {
    size_t len = strlen(name);
    return len > 15 && sscanf(name + len - 15, "-%5u-of-%5u", part, n_part) == 2;
}

/* Bytes of all parts of a model whose first one is `path`. */
static uint64_t split_bytes(const char *path, unsigned n_part) {
    size_t stem = strlen(path) - strlen("-00001-of-00003.gguf");
    uint64_t sum = 0;
    struct stat info;
    for (unsigned i = 1; i <= n_part && i <= MODEL_LIST_MAX; i++) {
        char *part = xasprintf("%.*s-%05u-of-%05u.gguf", (int)stem, path, i, n_part);
        if (stat(part, &info) == 0) sum += (uint64_t)info.st_size;
        free(part);
    }
    return sum;
}

char *model_file_name(const char *path) {
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    size_t len = strlen(file);
    unsigned part, n_part;
    if (len > 5 && strcasecmp(file + len - 5, ".gguf") == 0) len -= 5;
    char *name = xasprintf("%.*s", (int)len, file);
    if (split_part(name, &part, &n_part)) name[len - 15] = 0;
    return name;
}

static void visit_gguf(struct walk *walk, const char *path, const struct stat *info) {
    const char *file = strrchr(path, '/') + 1;
    size_t len = strlen(file);
    unsigned part = 1, n_part = 1;
    if (len < 6 || strcasecmp(file + len - 5, ".gguf") != 0 || lk_os_strcasestr(file, "mmproj"))
        return;
    char *stem = xasprintf("%.*s", (int)len - 5, file);
    bool is_split = split_part(stem, &part, &n_part);
    free(stem);
    if (part == 1)
        add_model(walk, model_file_name(path), xasprintf("%s", path),
                  is_split ? split_bytes(path, n_part) : (uint64_t)info->st_size);
}

/* ---- ollama ---- */

/* The digest of the model's layer, 64 hexadecimal digits; NULL: there is none. Borrowed. */
static const char *model_digest(const json_t *manifest) {
    static const char type[] = "application/vnd.ollama.image.model", prefix[] = "sha256:";
    size_t i;
    json_t *layer;
    json_array_foreach(json_object_get(manifest, "layers"), i, layer) {
        const char *media = json_string_value(json_object_get(layer, "mediaType")),
                   *digest = json_string_value(json_object_get(layer, "digest"));
        if (!media || !digest || strcmp(media, type) != 0) continue;
        if (strncmp(digest, prefix, strlen(prefix)) != 0) return NULL;
        digest += strlen(prefix);
        return strlen(digest) == 64 && strspn(digest, "0123456789abcdef") == 64 ? digest : NULL;
    }
    return NULL;
}

static void visit_manifest(struct walk *walk, const char *path, const struct stat *info) {
    if (info->st_size > MAX_MANIFEST) return;
    json_t *manifest = json_load_file(path, 0, NULL);
    const char *digest = model_digest(manifest), *tag = strrchr(path, '/'), *model = tag;
    while (model > path && model[-1] != '/') model--;
    struct stat blob;
    char *file = digest ? xasprintf("%s/blobs/sha256-%s", walk->root, digest) : NULL;
    if (file && stat(file, &blob) == 0)
        add_model(walk, xasprintf("%.*s:%s", (int)(tag - model), model, tag + 1), file,
                  (uint64_t)blob.st_size);
    else
        free(file);
    json_decref(manifest);
}

/* ---- the list ---- */

/* A folder, as an environment variable and what follows it, or a path below the home folder. */
struct place {
    const char *source, *variable, *below;
    bool is_ollama;
};

static const struct place places[] = {
    {"lowkey", "LOWKEY_CACHE", "/models", false},
    {"lowkey", "HOME", "/.cache/lowkey/models", false},
    {"Hugging Face", "HF_HUB_CACHE", "", false},
    {"Hugging Face", "HF_HOME", "/hub", false},
    {"Hugging Face", "HOME", "/.cache/huggingface/hub", false},
    {"LM Studio", "HOME", "/.lmstudio/models", false},
    {"LM Studio", "HOME", "/.cache/lm-studio/models", false},
    {"llama.cpp", "LLAMA_CACHE", "", false},
    {"llama.cpp", "HOME", "/.cache/llama.cpp", false},
    {"ollama", "OLLAMA_MODELS", "", true},
    {"ollama", "HOME", "/.ollama/models", true},
    {"ollama", NULL, "/usr/share/ollama/.ollama/models", true},
};

static void walk_place(struct model_list *list, const struct place *place) {
    const char *base = place->variable ? getenv(place->variable) : "";
    if (!base || (place->variable && !*base)) return;
    char *root = xasprintf("%s%s", base, place->below),
         *start = xasprintf("%s%s", root, place->is_ollama ? "/manifests" : "");
    struct walk walk = {.list = list,
                        .source = place->source,
                        .root = root,
                        .visit = place->is_ollama ? visit_manifest : visit_gguf};
    walk_folder(&walk, start, 0);
    free(start);
    free(root);
}

struct model_list *model_list_make(void) {
    struct model_list *list = xmalloc(sizeof *list);
    list->n = 0;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) walk_place(list, &places[i]);
    return list;
}

struct model_list *model_list_folder(const char *folder) {
    struct model_list *list = xmalloc(sizeof *list);
    list->n = 0;
    struct walk walk = {.list = list, .source = "folder", .root = folder, .visit = visit_gguf};
    walk_folder(&walk, folder, 0);
    return list;
}

void model_list_free(struct model_list *list) {
    for (size_t i = 0; i < list->n; i++) {
        free(list->item[i].name);
        free(list->item[i].path);
    }
    free(list);
}

/* ---- looking one up ---- */

static bool is_named(const struct found_model *model, const char *name) {
    size_t len = strlen(model->name);
    return strcasecmp(model->name, name) == 0 || /* ollama's default tag is "latest" */
           (strncasecmp(model->name, name, strlen(name)) == 0 &&
            strcmp(model->name + strlen(name), ":latest") == 0) ||
           (strncasecmp(model->name, name, len) == 0 && strcasecmp(name + len, ".gguf") == 0);
}

int model_list_find(const char *name, char **path) {
    struct model_list *list = model_list_make();
    const struct found_model *found = NULL;
    struct lk_closest closest = {.word = name, .len = strlen(name)};
    struct lk_buf several = {0};
    size_t n = 0;
    int status = STATUS_OK;
    for (size_t i = 0; !found && i < list->n; i++)
        if (is_named(&list->item[i], name)) found = &list->item[i];
    for (size_t i = 0; !found && i < list->n; i++) {
        lk_closest_offer(&closest, list->item[i].name);
        if (lk_os_strcasestr(list->item[i].name, name) && n++ < 4)
            xbuf_printf(&several, "%s%.100s", n > 1 ? ", " : "", list->item[i].name);
    }
    for (size_t i = 0; !found && n == 1 && i < list->n; i++)
        if (lk_os_strcasestr(list->item[i].name, name)) found = &list->item[i];
    if (found)
        *path = xasprintf("%s", found->path);
    else if (n)
        status = print_error("model: '%s' may be %s%s; give more of the name", name,
                             lk_buf_cstr(&several), n > 4 ? ", ..." : "");
    else
        status =
            print_error("model: cannot open %s: No such file or directory, and no model has this "
                        "name%s%s%s; 'lowkey models' lists what is on this machine, 'lowkey pull' "
                        "what it can download",
                        name, closest.name ? " (did you mean '" : "",
                        closest.name ? closest.name : "", closest.name ? "'?)" : "");
    lk_buf_free(&several);
    model_list_free(list);
    return status;
}
