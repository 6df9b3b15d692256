#define _DEFAULT_SOURCE /* flock, O_NOFOLLOW */
#include "base/whole_file.h"

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
    return fstat(fd, &mine) == 0 && stat(name, &named) == 0 && mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
}

lk_status lk_whole_file_open(struct lk_whole_file *f, const char *path, lk_err *err) {
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) return lk_fail(err, LK_E_IO, "cannot write %s: it is no ordinary file", path);
    int n = snprintf(f->temporary, sizeof f->temporary, "%s.new", path);
    if (n < 0 || (size_t)n >= sizeof f->temporary) return lk_fail(err, LK_E_IO, "cannot write a file: its name has %zu bytes", strlen(path));
    int fd = open(f->temporary, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    if (fd < 0) return lk_fail(err, LK_E_IO, "cannot write %s: %s", f->temporary, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 || !still_named(fd, f->temporary)) {
        close(fd);
        return lk_fail(err, LK_E_IO, "cannot write %s: another process is writing it", path);
    }
    f->path = path;
    bool mine = fchmod(fd, S_IRUSR | S_IWUSR) == 0 && ftruncate(fd, 0) == 0; /* one that was left may have been anybody's */
    f->file = mine ? fdopen(fd, "w") : NULL;
    if (f->file) return LK_OK;
    lk_status status = lk_fail(err, LK_E_IO, "cannot write %s: %s", f->temporary, strerror(errno));
    unlink(f->temporary);
    close(fd);
    return status;
}

/* A new name is as durable as the folder that holds it. */
static bool sync_folder(const char *path) {
    char folder[LK_PATH_ROOM];
    const char *slash = strrchr(path, '/');
    size_t len = slash ? (size_t)(slash - path) : 0;
    if (slash == path) len = 1; /* the root */
    memcpy(folder, path, len);
    folder[len] = 0;
    int fd = open(len ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return false;
    bool ok = fsync(fd) == 0;
    close(fd);
    return ok;
}

lk_status lk_whole_file_close(struct lk_whole_file *f, lk_status status, lk_err *err) {
    bool whole = status == LK_OK && !ferror(f->file) && fflush(f->file) == 0 && fsync(fileno(f->file)) == 0 &&
                 rename(f->temporary, f->path) == 0;
    if (status == LK_OK && !whole) status = lk_fail(err, LK_E_IO, "cannot write %s: %s", f->path, strerror(errno));
    if (status != LK_OK) unlink(f->temporary);
    fclose(f->file); /* which gives up the lock, now that the name is free */
    if (status == LK_OK && !sync_folder(f->path)) status = lk_fail(err, LK_E_IO, "cannot sync the folder of %s: %s", f->path, strerror(errno));
    return status;
}
