/* An inspection (lk_inspect) as a picture: heat maps of layers by levels, and the distance of
 * attention by layer. */
#ifndef LK_REPORT_INSPECT_DRAW_H
#define LK_REPORT_INSPECT_DRAW_H

#include "lowkey_lab.h"

#include <stdio.h>

/* Write an SVG document. LK_E_IO if it cannot be written. */
lk_status lk_inspection_draw(const lk_inspection *inspection, const char *title, FILE *out,
                             lk_err *err);

#endif
