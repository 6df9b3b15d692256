/* Finds the model file and downloads the default model. */
#include "model_find.h"

#include "available.h"
#include "base/os.h"
#include "interrupt.h"
#include "model_list.h"
#include "output.h"
#include "xalloc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef LOWKEY_DATADIR
#define LOWKEY_DATADIR "/usr/local/share/lowkey"
#endif

/* The models that scripts/fetch-model downloads for users who name none, the best one first. */
struct default_model {
    const char *name; /* for fetch-model */
    const char *file, *size;
    uint64_t min_available; /* bytes for the file, a cache of some thousand tokens, and others */
};
static const struct default_model default_models[] = {
    {"qwen2.5-coder-0.5b", "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf", "469 MiB",
     (uint64_t)1536 << 20},
    {"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "94 MiB", 0},
};
enum { N_DEFAULT_MODELS = sizeof default_models / sizeof default_models[0] };

/* NULL if neither $LOWKEY_CACHE nor $HOME is set. */
static char *models_file(const char *file) {
    const char *cache = getenv("LOWKEY_CACHE"), *home = lk_os_home();
    if (cache && *cache) return xasprintf("%s/models/%s", cache, file);
    if (home && *home) return xasprintf("%s/.cache/lowkey/models/%s", home, file);
    return NULL;
}

/* The best model that fits in the free memory: one that is on disk, else one to download. Sets
 * *path, which is owned, or NULL as models_file does. */
static const struct default_model *choose_default_model(char **path) {
    uint64_t available = available_bytes("");
    size_t best = N_DEFAULT_MODELS - 1; /* fits in any memory */
    for (size_t i = 0; i < N_DEFAULT_MODELS; i++) {
        const struct default_model *model = &default_models[i];
        if (available && available < model->min_available) continue;
        *path = models_file(model->file);
        if (!*path || access(*path, R_OK) == 0) return model;
        free(*path);
        if (i < best) best = i;
    }
    *path = models_file(default_models[best].file);
    return &default_models[best];
}

/* Path of the fetch-model script, relative to the program in a build or an installation: free it.
 * NULL if it is missing. */
static char *find_fetch_script(void) {
    static const char *const folder[] = {"../scripts", "../../scripts", "../share/lowkey",
                                         "../../../share/lowkey"};
    char self[4096];
    if (lk_os_program_path(self, sizeof self)) {
        char *slash = lk_os_last_slash(self);
        if (slash) *slash = 0;
        for (size_t i = 0; slash && i < sizeof folder / sizeof folder[0]; i++) {
            char *script = xasprintf("%s/%s/fetch-model", self, folder[i]);
            if (lk_os_can_run(script)) return script;
            free(script);
        }
    }
    char *script = xasprintf("%s/fetch-model", LOWKEY_DATADIR);
    if (lk_os_can_run(script)) return script;
    free(script);
    return NULL;
}

/* Run the script with its stdout on our stderr: our stdout is for answers. */
static int run_fetch_script(char *script, const char *argument, bool to_stderr) {
    int failed;
    char *copy = xasprintf("%s", argument), *argv[] = {script, copy, NULL};
    int status = lk_os_run_program(argv, to_stderr, &failed);
    free(copy);
    if (failed) return print_error("cannot run %s: %s", script, strerror(failed));
    if (interrupted()) return STATUS_INTERRUPTED;
    return status == 0 ? STATUS_OK : STATUS_ERROR;
}

int model_pull(const char *name) {
    char *script = find_fetch_script();
    if (!script) return print_error("lowkey's script fetch-model is missing; install it again");
    int status = run_fetch_script(script, name ? name : "--list", false);
    free(script);
    return status;
}

/* On a terminal: may the model be downloaded? */
static bool ask_to_download(const struct default_model *model) {
    char answer[16] = "";
    fprintf(stderr, "No model is given with -m. Download the default one, %s (%s)? [Y/n] ",
            model->name, model->size);
    return fgets(answer, sizeof answer, stdin) && strchr("yY\n", answer[0]);
}

static int fetch_default_model(const struct default_model *model, const char *path) {
    char *script = find_fetch_script();
    if (!script)
        return print_error("no model: give one with -m FILE.gguf, or run lowkey's script "
                           "fetch-model, which downloads one to %s",
                           path);
    bool terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
    if (!terminal || !ask_to_download(model)) {
        int status = print_error("no model: give one with -m FILE.gguf, or download %s (%s) with "
                                 "'lowkey pull %s'",
                                 model->name, model->size, model->name);
        free(script);
        return interrupted() ? STATUS_INTERRUPTED : status;
    }
    int status = run_fetch_script(script, model->name, true);
    free(script);
    if (status == STATUS_ERROR)
        return print_error("cannot download the model; give one with -m FILE.gguf");
    if (!status && access(path, R_OK))
        status = print_error("the downloaded model is not at %s", path);
    return status;
}

static int check_model_file(const char *path) {
    struct stat info;
    if (stat(path, &info)) return print_error("model: cannot open %s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode)) return print_error("model: %s is a directory", path);
    return STATUS_OK;
}

/* Is it a name to look up, rather than the path of a file that is missing? */
static bool is_model_name(const char *given) {
    const char *slash = lk_os_last_slash(given);
    return *given && !slash && access(given, F_OK) != 0 && errno == ENOENT;
}

int model_find(const char *given, bool fetch, char **path) {
    const char *named = given ? given : getenv("LOWKEY_MODEL");
    int status = STATUS_OK;
    if (named && (*named || given)) {
        *path = NULL;
        if (is_model_name(named)) status = model_list_find(named, path);
        if (!status && !*path) *path = xasprintf("%s", named);
        if (!status) status = check_model_file(*path);
    } else {
        const struct default_model *model = choose_default_model(path);
        if (!*path) return print_error("no model: give one with -m FILE.gguf");
        if (access(*path, R_OK)) {
            if (fetch)
                status = fetch_default_model(model, *path);
            else
                status = print_error("no model: give one with -m FILE.gguf, or download the "
                                     "default model with 'lowkey chat'");
        }
    }
    if (status) {
        free(*path);
        *path = NULL;
    }
    return status;
}
