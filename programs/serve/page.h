/* The web page: the files of programs/serve/page and the library marked, embedded into the program
 * by the build (cmake/embed.cmake). page.html is served as "/", the others as "/page/NAME". */
#ifndef LK_SERVE_PAGE_H
#define LK_SERVE_PAGE_H

#include <stddef.h>

struct lk_page_file {
    const char *name, *type; /* the file's name and its media type; static */
    const char *text;
    const size_t *len;
};

/* The file with this name; NULL if the page does not have it. */
const struct lk_page_file *lk_page_find(const char *name);

/* The icon that browsers ask for: a key, 16 x 16 pixels, in the ICO format. */

extern const unsigned char lk_favicon[];
extern const size_t lk_favicon_len;

#endif
