/* Atomic files: temporary file, lock, fsync, rename, fsync of the folder. */
#define _DEFAULT_SOURCE /* flock, O_NOFOLLOW */
#include "base/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether `name` still refers to the file open as `fd`. Its last writer may have renamed it between
 * our open and our lock. */
static bool is_still_named(int fd, const char *name) {
    struct stat opened, named;
    return fstat(fd, &opened) == 0 && stat(name, &named) == 0 && opened.st_ino == named.st_ino &&
           opened.st_dev == named.st_dev;
}

/* Open the folder of `path`, which is shorter than LK_MAX_PATH. Returns -1 and sets errno on
 * failure. */
static int open_folder(const char *path) {
    char folder[LK_MAX_PATH];
    const char *slash = strrchr(path, '/');
    size_t len = slash ? (size_t)(slash - path) : 0;
    if (slash == path) len = 1; /* the root */
    memcpy(folder, path, len);
    folder[len] = 0;
    return open(len ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* Open NAME.new, empty and locked, with at most the permissions in `mode`. */
static lk_status open_temporary(struct lk_atomic_file *f, mode_t mode, lk_err *err) {
    struct stat info;
    int fd = open(f->temporary, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd < 0) return lk_fail(err, LK_E_IO, "cannot write %s: %s", f->temporary, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 || !is_still_named(fd, f->temporary)) {
        close(fd);
        return lk_fail(err, LK_E_IO, "cannot write %s: another process is writing it", f->path);
    }
    /* A file left by another writer may have other permissions. */
    bool ready = fstat(fd, &info) == 0 &&
                 fchmod(fd, mode & (info.st_mode | S_IRUSR | S_IWUSR)) == 0 &&
                 ftruncate(fd, 0) == 0;
    f->file = ready ? fdopen(fd, "w") : NULL;
    if (f->file) return LK_OK;
    lk_status status = lk_fail(err, LK_E_IO, "cannot write %s: %s", f->temporary, strerror(errno));
    unlink(f->temporary);
    close(fd);
    return status;
}

static lk_status open_with_mode(struct lk_atomic_file *f, const char *path, mode_t mode,
                                lk_err *err) {
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
                    fsync(fileno(f->file)) == 0 && rename(f->temporary, f->path) == 0;
    if (!status && !complete)
        status = lk_fail(err, LK_E_IO, "cannot write %s: %s", f->path, strerror(errno));
    if (status) unlink(f->temporary);
    fclose(f->file); /* also releases the lock, now that nothing has the temporary name */
    /* The new name is durable once its folder is synced. Some file systems cannot sync folders. */
    if (!status && fsync(f->folder) != 0 && errno != EINVAL && errno != ENOTSUP)
        status =
            lk_fail(err, LK_E_IO, "cannot sync the folder of %s: %s", f->path, strerror(errno));
    close(f->folder);
    return status;
}

lk_status lk_atomic_file_check(const char *path, lk_err *err) {
    struct lk_atomic_file f;
    lk_status status = open_with_mode(&f, path, S_IRUSR | S_IWUSR, err);
    if (status) return status;
    lk_atomic_file_close(&f, LK_E_CANCELLED, NULL);
    return LK_OK;
}
