/* A file mapped into memory, read-only. */
#ifndef LK_MODEL_MAPPING_H
#define LK_MODEL_MAPPING_H

#include "base/err.h"

struct lk_mapping {
    uint8_t *data; /* page-aligned */
    size_t size;
};

/* The whole file, which must be regular and not empty. Errors: LK_E_IO, LK_E_FORMAT. */
lk_status lk_mapping_open(struct lk_mapping *out, const char *path, lk_err *err);
void lk_mapping_close(struct lk_mapping *map);

/* Tell the system that the whole pages inside [data, data + size) are no longer needed, because
 * they were copied. */
void lk_mapping_drop_pages(const struct lk_mapping *map, const void *data, size_t size);

/* Ask for huge pages for memory that has not been written yet. A no-op if the system has none. */
void lk_advise_huge_pages(void *data, size_t size);

#endif
