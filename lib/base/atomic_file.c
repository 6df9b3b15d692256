/* Atomic files: temporary file, lock, fsync, rename, fsync of the folder. */
#include "base/atomic_file.h"

#include "base/os.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int lk_lock_file(int fd) {
    if (lk_os_lock(fd) == 0) return 0;
    /* A network file system may have no locks. */
    bool none = errno == ENOLCK || errno == ENOTSUP || errno == ENOSYS || errno == EINVAL;
    return none ? 0 : errno;
}

/* Lock `fd`. Returns 0 or an errno value: EWOULDBLOCK if another process has the lock, or renamed
 * the file between our open and our lock. */
static int lock_named(int fd, const char *name) {
    struct stat opened, named;
    int failed = lk_lock_file(fd);
    if (failed) return failed;
    if (fstat(fd, &opened)) return errno;
    if (stat(name, &named)) return errno == ENOENT ? EWOULDBLOCK : errno;
    bool same = opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
    return same ? 0 : EWOULDBLOCK;
}

/* Open the folder of `path`, which is shorter than LK_MAX_PATH. Returns -1 and sets errno on
 * failure. */
static int open_folder(const char *path) {
    char folder[LK_MAX_PATH];
    const char *slash = lk_os_last_slash(path);
    size_t len = slash ? (size_t)(slash - path) : 0;
    if (slash == path) len = 1; /* the root */
    memcpy(folder, path, len);
    folder[len] = 0;
    return lk_os_open_folder(len ? folder : ".");
}

/* Open NAME.new, empty and locked, with at most the permissions in `mode`. */
static lk_status open_temporary(struct lk_atomic_file *f, int mode, lk_err *err) {
    const int access = LK_OS_WRITE | LK_OS_CREATE | LK_OS_NO_LINK;
    int fd = lk_os_open(f->temporary, access | LK_OS_NEW, mode);
    bool is_new = fd >= 0;
    if (!is_new) fd = lk_os_open(f->temporary, access, mode);
    if (fd < 0) return lk_fail(err, LK_E_IO, "cannot write %s: %s", f->temporary, strerror(errno));
    int failed = lock_named(fd, f->temporary);
    if (failed) {
        if (is_new && failed != EWOULDBLOCK) unlink(f->temporary);
        close(fd);
        return lk_fail(err, LK_E_IO, "cannot write %s: %s", f->path,
                       failed == EWOULDBLOCK ? "another process is writing it" : strerror(failed));
    }
    /* A file left by another writer may have other permissions. */
    bool ready = lk_os_restrict(fd, mode) == 0 && ftruncate(fd, 0) == 0;
    f->file = ready ? fdopen(fd, "wb") : NULL;
    if (f->file) return LK_OK;
    lk_status status = lk_fail(err, LK_E_IO, "cannot write %s: %s", f->temporary, strerror(errno));
    unlink(f->temporary);
    close(fd);
    return status;
}

static lk_status open_with_mode(struct lk_atomic_file *f, const char *path, int mode, lk_err *err) {
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return lk_fail(err, LK_E_IO, "cannot write %s: not a regular file", path);
    int n = snprintf(f->temporary, sizeof f->temporary, "%s.new", path);
    if (n < 0 || (size_t)n >= sizeof f->temporary)
        return lk_fail(err, LK_E_IO, "cannot write a file: its path is too long (%zu bytes)",
                       strlen(path));
    f->path = path;
    f->folder = open_folder(path); /* now, because after renaming it is too late to fail */
    if (f->folder < 0)
        return lk_fail(err, LK_E_IO, "cannot write %s: cannot open its folder: %s", path,
                       strerror(errno));
    lk_status status = open_temporary(f, mode, err);
    if (status) close(f->folder);
    return status;
}

lk_status lk_atomic_file_open(struct lk_atomic_file *f, const char *path, lk_err *err) {
    return open_with_mode(f, path, S_IRUSR | S_IWUSR, err);
}

lk_status lk_atomic_file_open_public(struct lk_atomic_file *f, const char *path, lk_err *err) {
    return open_with_mode(f, path, 0666, err);
}

lk_status lk_atomic_file_close(struct lk_atomic_file *f, lk_status status, lk_err *err) {
    bool complete = !status && !ferror(f->file) && fflush(f->file) == 0 &&
                    lk_os_sync(fileno(f->file)) == 0 && lk_os_replace(f->temporary, f->path) == 0;
    if (!status && !complete)
        status = lk_fail(err, LK_E_IO, "cannot write %s: %s", f->path, strerror(errno));
    if (status) unlink(f->temporary);
    fclose(f->file); /* also releases the lock, now that nothing has the temporary name */
    /* The new name is durable once its folder is synced. Some file systems cannot sync folders. */
    if (!status && lk_os_sync(f->folder) != 0 && errno != EINVAL && errno != ENOTSUP)
        status =
            lk_fail(err, LK_E_IO, "cannot sync the folder of %s: %s", f->path, strerror(errno));
    close(f->folder);
    return status;
}

lk_status lk_open_if_there(FILE **file, const char *path, lk_err *err) {
    *file = lk_os_open_to_read(path);
    if (*file || errno == ENOENT) return LK_OK;
    return lk_fail(err, LK_E_IO, "cannot read %s: %s", path, strerror(errno));
}

lk_status lk_file_exists(bool *exists, const char *path, lk_err *err) {
    *exists = access(path, F_OK) == 0;
    if (*exists || errno == ENOENT) return LK_OK;
    return lk_fail(err, LK_E_IO, "cannot read %s: %s", path, strerror(errno));
}

lk_status lk_atomic_file_check(const char *path, lk_err *err) {
    struct lk_atomic_file f;
    lk_status status = open_with_mode(&f, path, S_IRUSR | S_IWUSR, err);
    if (status) return status;
    lk_atomic_file_close(&f, LK_E_CANCELLED, NULL);
    return LK_OK;
}
