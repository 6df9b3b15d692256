/* The icon that browsers ask for: a key, 16 x 16 pixels, in the ICO format. */
#ifndef LK_SERVE_FAVICON_H
#define LK_SERVE_FAVICON_H

#include <stddef.h>

extern const unsigned char lk_favicon[];
extern const size_t lk_favicon_len;

#endif
