/* Checks that a file is a complete, consistent GGUF file. The check runs on the raw bytes before
 * ggml reads them, because ggml aborts on many kinds of damage. */
#ifndef LK_MODEL_GGUF_CHECK_H
#define LK_MODEL_GGUF_CHECK_H

#include "base/err.h"
#include "base/ledger.h"

/* LK_OK if every count, length, type, shape and offset in data[0..size) is valid, no name occurs
 * twice and the data of each tensor lies inside the file. Otherwise LK_E_FORMAT, LK_E_UNSUPPORTED
 * or LK_E_NOMEM. */
lk_status lk_gguf_check(const uint8_t *data, size_t size, struct lk_ledger *ledger, lk_err *err);

#endif
