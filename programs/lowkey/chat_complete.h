/* Completion with Tab: names of commands and files. A line_completer of line_reader.h. */
#ifndef LK_LOWKEY_CHAT_COMPLETE_H
#define LK_LOWKEY_CHAT_COMPLETE_H

#include "base/buf.h"

void chat_complete(const char *before, struct lk_buf *insert, struct lk_buf *choices);

#endif
