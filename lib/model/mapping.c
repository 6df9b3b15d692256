/* Maps files and advises the system about pages. */
#define _DEFAULT_SOURCE /* madvise */
#include "model/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

lk_status lk_mapping_open(struct lk_mapping *out, const char *path, lk_err *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return lk_fail(err, LK_E_IO, "cannot open %s: %s", path, strerror(errno));
    struct stat info;
    lk_status status = LK_OK;
    void *data = MAP_FAILED;
    if (fstat(fd, &info) != 0) {
        status = lk_fail(err, LK_E_IO, "cannot read %s: %s", path, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        status = lk_fail(err, LK_E_IO, "%s is not a regular file", path);
    } else if (info.st_size == 0) {
        status = lk_fail(err, LK_E_FORMAT, "%s is empty", path);
    } else {
        data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            status = lk_fail(err, LK_E_IO, "cannot map %s: %s", path, strerror(errno));
    }
    close(fd);
    if (status) return status;
    out->data = data;
    out->size = (size_t)info.st_size;
    return LK_OK;
}

void lk_mapping_close(struct lk_mapping *map) {
    if (map->data) munmap(map->data, map->size);
    map->data = NULL;
    map->size = 0;
}

void lk_mapping_drop_pages(const struct lk_mapping *map, const void *data, size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t begin = (size_t)((const uint8_t *)data - map->data);
    size_t end = (begin + size) / page * page;
    begin = (begin + page - 1) / page * page;
    if (begin < end) madvise(map->data + begin, end - begin, MADV_DONTNEED);
}

void lk_advise_huge_pages(void *data, size_t size) {
#ifdef MADV_HUGEPAGE
    enum { HUGE_PAGE = 2 << 20 }; /* on most systems; smaller regions may not contain one */
    size_t page = (size_t)sysconf(_SC_PAGESIZE), before = (page - (uintptr_t)data % page) % page;
    if (size >= 2 * HUGE_PAGE)
        madvise((uint8_t *)data + before, (size - before) / page * page, MADV_HUGEPAGE);
#else
    (void)data, (void)size;
#endif
}
