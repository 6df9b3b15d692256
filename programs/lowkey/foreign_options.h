/* Options of llama.cpp, ollama and vLLM that lowkey does not have, and what to use here instead. */
#ifndef LK_LOWKEY_FOREIGN_OPTIONS_H
#define LK_LOWKEY_FOREIGN_OPTIONS_H

#include <stddef.h>

/* Write one sentence about the option `arg` ("-ngl", "--cache-type-k=q8_0") to `out`, which has
 * `cap` bytes. `value` is the argument after it, NULL if there is none. Returns NULL for an option
 * that is not known, otherwise `out`. */
const char *foreign_option_advice(const char *arg, const char *value, char *out, size_t cap);

#endif
