#include "model_find.h"

#include "progress.h"
#include "say.h"

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

/* NULL where neither $LOWKEY_CACHE nor $HOME is set. */
static char *default_path(void) {
    const char *cache = getenv("LOWKEY_CACHE"), *home = getenv("HOME");
    if (cache && *cache) return must_print("%s/models/%s", cache, default_model);
    if (home && *home) return must_print("%s/.cache/lowkey/models/%s", home, default_model);
    return NULL;
}

/* The script that downloads the default model: beside a build or in an installation. */
static char *fetch_script(void) {
    static const char *const beside[] = {"../scripts", "../../scripts", "../share/lowkey"};
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n > 0) {
        self[n] = 0;
        char *slash = strrchr(self, '/');
        if (slash) *slash = 0;
        for (size_t i = 0; slash && i < sizeof beside / sizeof beside[0]; i++) {
            char *script = must_print("%s/%s/fetch-model", self, beside[i]);
            if (access(script, X_OK) == 0) return script;
            free(script);
        }
    }
    char *script = must_print("%s/fetch-model", LOWKEY_DATADIR);
    if (access(script, X_OK) == 0) return script;
    free(script);
    return NULL;
}

/* Run the script with its output on stderr: stdout belongs to the answers. */
static int run_script(char *script) {
    posix_spawn_file_actions_t actions;
    char *argv[] = {script, NULL};
    pid_t child;
    int status = 0, failed;
    if (posix_spawn_file_actions_init(&actions)) return complain("cannot run %s", script);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    failed = posix_spawn(&child, script, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed) return complain("cannot run %s: %s", script, strerror(failed));
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    if (interrupted()) return STATUS_INTERRUPTED;
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        return complain("the model could not be fetched; give another with -m FILE.gguf");
    return STATUS_OK;
}

static int fetch_default(const char *path) {
    char *script = fetch_script();
    if (!script)
        return complain("no model: give one with -m FILE.gguf, or run the fetch-model script that "
                        "comes with lowkey "
                        "(it puts one at %s)",
                        path);
    fprintf(stderr, "lowkey: no model yet; fetching the default one (98 MB) with %s\n", script);
    int status = run_script(script);
    free(script);
    if (!status && access(path, R_OK)) status = complain("the fetched model is not at %s", path);
    return status;
}

static int check_file(const char *path) {
    struct stat info;
    if (stat(path, &info)) return complain("model: cannot open %s: %s", path, strerror(errno));
    if (S_ISDIR(info.st_mode)) return complain("model: %s is a directory", path);
    return STATUS_OK;
}

int model_find(const char *given, bool fetch, char **path) {
    const char *named = given ? given : getenv("LOWKEY_MODEL");
    int status = STATUS_OK;
    if (named && (*named || given)) {
        *path = must_print("%s", named);
        status = check_file(*path);
    } else {
        *path = default_path();
        if (!*path) return complain("no model: give one with -m FILE.gguf");
        if (access(*path, R_OK)) {
            if (fetch)
                status = fetch_default(*path);
            else
                status = complain("no model: give one with -m FILE.gguf, or fetch the default one "
                                  "with 'lowkey chat'");
        }
    }
    if (status) {
        free(*path);
        *path = NULL;
    }
    return status;
}
