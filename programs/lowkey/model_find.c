/* Finds the model file and downloads the default model. */
#include "model_find.h"

#include "interrupt.h"
#include "output.h"
#include "xalloc.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef LOWKEY_DATADIR
#define LOWKEY_DATADIR "/usr/local/share/lowkey"
#endif

extern char **environ;

static const char default_model[] = "SmolLM2-135M-Instruct.Q4_1.gguf";

/* NULL if neither $LOWKEY_CACHE nor $HOME is set. */
static char *default_model_path(void) {
    const char *cache = getenv("LOWKEY_CACHE"), *home = getenv("HOME");
    if (cache && *cache) return xasprintf("%s/models/%s", cache, default_model);
    if (home && *home) return xasprintf("%s/.cache/lowkey/models/%s", home, default_model);
    return NULL;
}

/* Path of the fetch-model script, relative to the program in a build or an installation: free it.
 * NULL if it is missing. */
static char *find_fetch_script(void) {
    static const char *const folder[] = {"../scripts", "../../scripts", "../share/lowkey"};
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n > 0) {
        self[n] = 0;
        char *slash = strrchr(self, '/');
        if (slash) *slash = 0;
        for (size_t i = 0; slash && i < sizeof folder / sizeof folder[0]; i++) {
            char *script = xasprintf("%s/%s/fetch-model", self, folder[i]);
            if (access(script, X_OK) == 0) return script;
            free(script);
        }
    }
    char *script = xasprintf("%s/fetch-model", LOWKEY_DATADIR);
    if (access(script, X_OK) == 0) return script;
    free(script);
    return NULL;
}

/* Run the script with its stdout on our stderr: our stdout is for answers. */
static int run_fetch_script(char *script) {
    posix_spawn_file_actions_t actions;
    char *argv[] = {script, NULL};
    pid_t child;
    int status = 0, failed;
    if (posix_spawn_file_actions_init(&actions)) return print_error("cannot run %s", script);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    failed = posix_spawn(&child, script, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed) return print_error("cannot run %s: %s", script, strerror(failed));
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    if (interrupted()) return STATUS_INTERRUPTED;
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        return print_error("cannot download the model; give one with -m FILE.gguf");
    return STATUS_OK;
}

static int fetch_default_model(const char *path) {
    char *script = find_fetch_script();
    if (!script)
        return print_error("no model: give one with -m FILE.gguf, or run lowkey's script "
                           "fetch-model, which downloads one to %s",
                           path);
    fprintf(stderr, "lowkey: downloading the default model (98 MB) with %s\n", script);
    int status = run_fetch_script(script);
    free(script);
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

int model_find(const char *given, bool fetch, char **path) {
    const char *named = given ? given : getenv("LOWKEY_MODEL");
    int status = STATUS_OK;
    if (named && (*named || given)) {
        *path = xasprintf("%s", named);
        status = check_model_file(*path);
    } else {
        *path = default_model_path();
        if (!*path) return print_error("no model: give one with -m FILE.gguf");
        if (access(*path, R_OK)) {
            if (fetch)
                status = fetch_default_model(*path);
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
