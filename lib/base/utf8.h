/* Validity of text, checked before libllama sees it: its tokenizers throw on broken UTF-8. */
#ifndef LK_BASE_UTF8_H
#define LK_BASE_UTF8_H

#include <stddef.h>

/* Length of the longest valid UTF-8 beginning of text[0..len): len if all of it is valid. */
size_t lk_utf8_valid(const char *text, size_t len);

#endif
