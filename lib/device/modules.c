/* Loads device modules and lists what they find. Nothing is remembered here: the dynamic linker
 * knows what is loaded, and a module counts its devices. */
#include "device/modules.h"

#include "base/os.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* A kind of device. The devices of a numbered kind are its name and a number. */
static const struct kind {
    const char *name, *file;
    bool numbered;
} kinds[] = {
    {"cuda", "liblowkey-cuda.so", true},
    {"emulated", "liblowkey-emulated.so", false}, /* for tests */
};

enum { N_KIND = sizeof kinds / sizeof kinds[0], PATH_SIZE = 4096 };

/* Number of the device that `name` means in this kind; -1: none. */
static int number_of(const struct kind *kind, const char *name) {
    size_t len = strlen(kind->name);
    if (strncasecmp(name, kind->name, len) != 0) return -1;
    const char *digits = name + len;
    if (!kind->numbered) return *digits ? -1 : 0;
    if (digits[0] < '0' || digits[0] > '9' || strlen(digits) > 3) return -1;
    if (digits[0] == '0' && digits[1]) return -1;
    char *end;
    long n = strtol(digits, &end, 10);
    return *end ? -1 : (int)n;
}

static const struct kind *find_kind(const char *name, int *number) {
    for (int i = 0; i < N_KIND; i++)
        if ((*number = number_of(&kinds[i], name)) >= 0) return &kinds[i];
    return NULL;
}

static void to_folder(char *path) {
    char *slash = lk_os_last_slash(path);
    if (slash)
        *slash = 0;
    else
        snprintf(path, PATH_SIZE, ".");
}

/* The folder of the shared library, or of the program if the library is linked into it. False if
 * the system does not say. */
static bool own_folder(char out[PATH_SIZE]) {
    bool shared = lk_os_code_path(&kinds, out, PATH_SIZE) && strstr(out, ".so");
    if (!shared && !lk_os_program_path(out, PATH_SIZE)) return false;
    to_folder(out);
    return true;
}

/* The file of a module. False if it is missing: `path` is the folder that should have it. */
static bool find_file(const struct kind *kind, char path[PATH_SIZE]) {
    static const char *const below[] = {"", "/lowkey", "/../lib/lowkey", "/../lib"};
    const char *given = getenv("LOWKEY_MODULES");
    char own[PATH_SIZE];
    if (given && *given)
        snprintf(own, sizeof own, "%s", given);
    else if (!own_folder(own))
        snprintf(own, sizeof own, "/usr/lib/lowkey");
    size_t n = given && *given ? 1 : sizeof below / sizeof below[0];
    for (size_t i = 0; i < n; i++) {
        char file[PATH_SIZE + 64];
        snprintf(file, sizeof file, "%s%s/%s", own, below[i], kind->file);
        if (strlen(file) < PATH_SIZE && access(file, R_OK) == 0) {
            memcpy(path, file, strlen(file) + 1);
            return true;
        }
    }
    snprintf(path, PATH_SIZE, "%s", own);
    return false;
}

/* NULL with a message if the module cannot be used. */
static const struct lk_module *load(const struct kind *kind, lk_err *err) {
    char path[PATH_SIZE];
    if (!find_file(kind, path)) {
        lk_fail(err, LK_E_UNSUPPORTED,
                "%s is not in %s: build lowkey with -DLOWKEY_CUDA=ON, or set LOWKEY_MODULES",
                kind->file, path);
        return NULL;
    }
    char why[256];
    void *handle = lk_os_load(path, why, sizeof why);
    if (!handle) {
        lk_fail(err, LK_E_UNSUPPORTED, "cannot load %s: %s", kind->file, why);
        return NULL;
    }
    const struct lk_module *(*entry)(int abi);
    *(void **)&entry = lk_os_symbol(handle, LK_MODULE_SYMBOL);
    const struct lk_module *module = entry ? entry(LK_MODULE_ABI) : NULL;
    bool same = module && strcmp(module->version, lk_version()) == 0;
    if (!same)
        lk_fail(err, LK_E_UNSUPPORTED, "%s is of %s%s, not of lowkey %s: build both together", path,
                module ? "lowkey " : "another version", module ? module->version : "",
                lk_version());
    return same ? module : NULL;
}

static void name_device(const struct kind *kind, int number, char name[32]) {
    if (kind->numbered)
        snprintf(name, 32, "%s%d", kind->name, number);
    else
        snprintf(name, 32, "%s", kind->name);
}

bool lk_device_list(size_t index, lk_device_info *out) {
    for (int i = 0; i < N_KIND; i++) {
        const struct lk_module *module = load(&kinds[i], NULL);
        size_t count = module ? (size_t)module->count() : 0;
        if (index >= count) {
            index -= count;
            continue;
        }
        memset(out, 0, sizeof *out);
        lk_err err = {0};
        if (module->describe((int)index, out, &err))
            snprintf(out->text, sizeof out->text, "%.150s", err.msg);
        name_device(&kinds[i], (int)index, out->name);
        return true;
    }
    return false;
}

char *lk_device_missing(char *line, size_t size) {
    lk_device_info info;
    if (size > 0) line[0] = 0;
    if (lk_device_list(0, &info)) return line;
    lk_err err = {0};
    if (load(&kinds[0], &err))
        snprintf(line, size, "%s finds none: is its driver installed?", kinds[0].file);
    else
        snprintf(line, size, "%s", err.msg);
    return line;
}

bool lk_device_has_name(const char *name) {
    int number;
    return find_kind(name, &number) != NULL;
}

lk_status lk_device_open(const char *name, struct lk_device **device, lk_err *err) {
    *device = NULL;
    int number;
    const struct kind *kind = find_kind(name, &number);
    if (!kind) return lk_fail(err, LK_E_ARG, "no device is named '%.30s'", name);
    lk_err why = {0};
    const struct lk_module *module = load(kind, &why);
    if (!module) return lk_fail(err, LK_E_UNSUPPORTED, "device %s: %.200s", name, why.msg);
    int count = module->count();
    if (number >= count)
        return lk_fail(err, LK_E_ARG, "device %s: there are %d devices of this kind", name, count);
    lk_status status = module->open(number, device, &why);
    if (status) return lk_fail(err, status, "device %s: %.200s", name, why.msg);
    name_device(kind, number, (*device)->name);
    return LK_OK;
}

void lk_device_close(struct lk_device *device) {
    if (device) device->call->close(device);
}
