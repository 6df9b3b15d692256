/* Text in HTML and XML documents. */
#ifndef LK_REPORT_HTML_H
#define LK_REPORT_HTML_H

#include <stdio.h>

/* Write `text` with markup characters escaped. Characters that XML cannot hold become U+FFFD. */
void lk_html_escape(FILE *out, const char *text);

/* Write the markup `before`, escaped `text` and the markup `after`. */
void lk_html_text(FILE *out, const char *before, const char *text, const char *after);

#endif
