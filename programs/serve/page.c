/* Looks up the files of the web page. The build writes the table lk_page_files. */
#include "serve/page.h"

#include <string.h>

extern const struct lk_page_file lk_page_files[]; /* ends with a name of NULL */

const struct lk_page_file *lk_page_find(const char *name) {
    for (const struct lk_page_file *file = lk_page_files; file->name; file++)
        if (strcmp(file->name, name) == 0) return file;
    return NULL;
}
