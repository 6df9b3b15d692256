/* Looks up the files of the web page. The build writes the table lk_page_files. */
#include "serve/page.h"

#include <string.h>

extern const struct lk_page_file lk_page_files[]; /* ends with a name of NULL */

const struct lk_page_file *lk_page_find(const char *name) {
    for (const struct lk_page_file *file = lk_page_files; file->name; file++)
        if (strcmp(file->name, name) == 0) return file;
    return NULL;
}

/* An icon of 198 bytes: a directory with one image, its header, two colors, pixels and mask. */

/* clang-format off */
const unsigned char lk_favicon[] = {
    0, 0, 1, 0, 1, 0, 16, 16, 2, 0, 1, 0, 1, 0, 176, 0, 0, 0, 22, 0, 0, 0, 40, 0, 0, 0, 16, 0, 0,
    0, 32, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 2,
    0, 0, 0, 0, 0, 0, 0, 208, 128, 48, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0, 126,
    102, 0, 0, 195, 102, 0, 0, 195, 255, 0, 0, 195, 252, 0, 0, 195, 0, 0, 0, 195, 0, 0, 0, 126, 0,
    0, 0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 0, 0, 255, 255,
    0, 0, 255, 255, 0, 0, 195, 255, 0, 0, 129, 153, 0, 0, 60, 153, 0, 0, 60, 0, 0, 0, 60, 3, 0, 0,
    60, 255, 0, 0, 60, 255, 0, 0, 129, 255, 0, 0, 195, 255, 0, 0, 255, 255, 0, 0, 255, 255, 0, 0,
    255, 255, 0, 0, 255, 255, 0, 0,
};
/* clang-format on */

const size_t lk_favicon_len = sizeof lk_favicon;
