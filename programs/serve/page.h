/* The web page page.html, embedded into the program by the build (cmake/embed.cmake). */
#ifndef LK_SERVE_PAGE_H
#define LK_SERVE_PAGE_H

#include <stddef.h>

extern const char lk_page[];
extern const size_t lk_page_len;

#endif
