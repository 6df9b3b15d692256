/* A file's bytes, read-only in memory. */
#ifndef LK_MODEL_MAPPING_H
#define LK_MODEL_MAPPING_H

#include "base/err.h"

struct lk_mapping {
    uint8_t *data; /* page-aligned */
    size_t size;
};

lk_status lk_mapping_open(struct lk_mapping *out, const char *path, lk_err *err);
void lk_mapping_close(struct lk_mapping *map);

/* Let the system forget the whole pages inside [data, data + size): they were copied elsewhere. */
void lk_mapping_forget(const struct lk_mapping *map, const void *data, size_t size);

/* Ask for large pages under memory that nothing was written to yet; where there are none, nothing happens. */
void lk_mapping_enlarge(void *data, size_t size);

#endif
