/* Is this a whole, consistent GGUF file? Runs on the raw bytes before ggml reads them, because ggml
 * treats much of what can be wrong in a file as a programming error and aborts. */
#ifndef LK_MODEL_GGUF_CHECK_H
#define LK_MODEL_GGUF_CHECK_H

#include "base/err.h"
#include "base/ledger.h"

/* LK_OK: every count, length, type, shape and offset in data[0..size) is sound, no name occurs twice
 * and each tensor's data lies inside the file. LK_E_FORMAT, LK_E_UNSUPPORTED or LK_E_NOMEM otherwise. */
lk_status lk_gguf_check(const uint8_t *data, size_t size, struct lk_ledger *ledger, lk_err *err);

/* Copy `text` for a message: what is not printable ASCII becomes '?', what is long is cut. Returns out. */
const char *lk_printable(char out[64], const char *text, size_t len);

#endif
