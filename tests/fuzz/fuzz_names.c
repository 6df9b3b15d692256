/* Fuzz target: names of saved sessions, and API keys. A name that is accepted is one component of a
 * path in the session directory and not a temporary or the server's own; others give one line of
 * error. Two keys are equal if and only if their bytes are. */
#define _GNU_SOURCE /* memfd_create */
#include "base/atomic_file.h"
#include "fuzz_input.h"
#include "serve/auth.h"
#include "serve/store.h"

static char dir[512];
static struct lk_store *store;

static void open_store(void) {
    static struct lk_server_opts opts;
    static struct lk_metrics metrics;
    const char *tmp = getenv("TMPDIR");
    static lk_recipe *recipe;
    snprintf(dir, sizeof dir, "%.300s/lowkey-fuzz-names-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(dir) || lk_recipe_parse(&recipe, "f16", NULL) != LK_OK) abort();
    opts = lk_server_defaults();
    opts.recipe = (const lk_recipe *const *)&recipe;
    opts.n_recipe = 1;
    opts.session_dir = dir;
    if (lk_store_open(&store, &opts, &metrics, NULL) != LK_OK) abort();
    rmdir(dir); /* paths are only made, not opened */
}

static void check_name(const char *name, bool must_exist) {
    char path[LK_MAX_PATH] = "";
    struct lk_api_error error = {0};
    if (!lk_store_path(store, name, must_exist, path, &error)) {
        if (error.status < 400 || !error.msg[0] || strchr(error.msg, '\n')) abort();
        return;
    }
    const char *last = strrchr(path, '/');
    size_t len = strlen(name);
    if (must_exist || !last || strcmp(last + 1, name) != 0 || len > LK_SESSION_NAME_MAX) abort();
    if (name[0] == '.' || name[0] == '-' || strcmp(name, "store") == 0) abort();
    if (len > 4 && strcmp(name + len - 4, ".new") == 0) abort();
    for (size_t i = 0; i < len; i++)
        if (name[i] <= ' ' || name[i] > '~' || strchr("/\\'\"$`;&|<>*?~", name[i])) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!store) open_store();
    char *name = fuzz_string(data, size), *half = fuzz_string(data, size / 2),
         *other = fuzz_string(data + size / 2, size - size / 2);
    check_name(name, false);
    check_name(name, true);
    if (lk_auth_secret_equal(half, other) != (strcmp(half, other) == 0)) abort();
    if (!lk_auth_secret_equal(name, name)) abort();
    free(name);
    free(half);
    free(other);
    return 0;
}
