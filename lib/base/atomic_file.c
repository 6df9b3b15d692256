#define _DEFAULT_SOURCE /* flock, O_NOFOLLOW */
#include "base/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Is the file that `fd` is locked through still the one of that name? Its last writer may have renamed it
 * between our opening and our locking it. */
static bool still_named(int fd, const char *name) {
    struct stat mine, named;
    return fstat(fd, &mine) == 0 && stat(name, &named) == 0 && mine.st_ino == named.st_ino &&
           mine.st_dev == named.st_dev;
}

/* The folder of `path`, which is shorter than LK_MAX_PATH; -1 with errno. */
static int open_folder(const char *path) {
    char folder[LK_MAX_PATH];
    const char *slash = strrchr(path, '/');
    size_t len = slash ? (size_t)(slash - path) : 0;
    if (slash == path) len = 1; /* the root */
    memcpy(folder, path, len);
    folder[len] = 0;
    return open(len ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* NAME.new, empty and locked. Others may do with it at most what `mode` says. */
static lk_status open_temporary(struct lk_atomic_file *f, mode_t mode, lk_err *err) {
    struct stat info;
    int fd = open(f->temporary, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd < 0) return lk_fail(err, LK_E_IO, "cannot write %s: %s", f->temporary, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 || !still_named(fd, f->temporary)) {
        close(fd);
        return lk_fail(err, LK_E_IO, "cannot write %s: another process is writing it", f->path);
    }
    /* One that was left may have been anybody's. */
    bool mine = fstat(fd, &info) == 0 &&
                fchmod(fd, mode & (info.st_mode | S_IRUSR | S_IWUSR)) == 0 && ftruncate(fd, 0) == 0;
    f->file = mine ? fdopen(fd, "w") : NULL;
    if (f->file) return LK_OK;
    lk_status status = lk_fail(err, LK_E_IO, "cannot write %s: %s", f->temporary, strerror(errno));
    unlink(f->temporary);
    close(fd);
    return status;
}

static lk_status open_whole(struct lk_atomic_file *f, const char *path, mode_t mode, lk_err *err) {
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return lk_fail(err, LK_E_IO, "cannot write %s: it is no ordinary file", path);
    int n = snprintf(f->temporary, sizeof f->temporary, "%s.new", path);
    if (n < 0 || (size_t)n >= sizeof f->temporary)
        return lk_fail(err, LK_E_IO, "cannot write a file: its name has %zu bytes", strlen(path));
    f->path = path;
    f->folder = open_folder(path); /* now: behind the renaming it would be too late to fail */
    if (f->folder < 0)
        return lk_fail(err, LK_E_IO, "cannot write %s: its folder cannot be opened: %s", path,
                       strerror(errno));
    lk_status status = open_temporary(f, mode, err);
    if (status != LK_OK) close(f->folder);
    return status;
}

lk_status lk_atomic_file_open(struct lk_atomic_file *f, const char *path, lk_err *err) {
    return open_whole(f, path, S_IRUSR | S_IWUSR, err);
}

lk_status lk_atomic_file_open_public(struct lk_atomic_file *f, const char *path, lk_err *err) {
    return open_whole(f, path, 0666, err);
}

/* A new name is as durable as the folder that holds it. Some file systems cannot sync folders, and say so. */
static bool sync_folder(int fd) { return fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP; }

lk_status lk_atomic_file_close(struct lk_atomic_file *f, lk_status status, lk_err *err) {
    bool whole = status == LK_OK && !ferror(f->file) && fflush(f->file) == 0 &&
                 fsync(fileno(f->file)) == 0 && rename(f->temporary, f->path) == 0;
    if (status == LK_OK && !whole)
        status = lk_fail(err, LK_E_IO, "cannot write %s: %s", f->path, strerror(errno));
    if (status != LK_OK) unlink(f->temporary);
    fclose(f->file); /* which gives up the lock, now that the name is free */
    if (status == LK_OK && !sync_folder(f->folder))
        status =
            lk_fail(err, LK_E_IO, "cannot sync the folder of %s: %s", f->path, strerror(errno));
    close(f->folder);
    return status;
}
