#include "new_file.h"

#include "say.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int new_file_open(struct new_file *f, const char *path) {
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode))
        return complain("cannot write %s: it is no ordinary file", path);
    f->path = path;
    f->temporary = must_print("%s.XXXXXX", path);
    int fd = mkstemp(f->temporary);
    f->file = fd < 0 ? NULL : fdopen(fd, "w");
    if (f->file) return STATUS_OK;
    int why = errno;
    if (fd >= 0) {
        close(fd);
        unlink(f->temporary);
    }
    free(f->temporary);
    return complain("cannot write %s: %s", path, strerror(why));
}

int new_file_close(struct new_file *f, int status) {
    enum { FOR_ALL = 0666 };
    mode_t mask = umask(0); /* mkstemp leaves the file to its owner alone */
    umask(mask);
    bool whole = status || (fchmod(fileno(f->file), FOR_ALL & ~mask) == 0 && fflush(f->file) == 0 &&
                            fsync(fileno(f->file)) == 0);
    whole = fclose(f->file) == 0 && whole;
    if (!status && (!whole || rename(f->temporary, f->path)))
        status = complain("cannot write %s: %s", f->path, strerror(errno));
    if (status) unlink(f->temporary);
    free(f->temporary);
    return status;
}

int new_file_try(const char *path) {
    struct new_file file;
    if (new_file_open(&file, path)) return STATUS_BAD;
    new_file_close(&file, STATUS_BAD);
    return STATUS_OK;
}
