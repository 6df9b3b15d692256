/* Tiny random models as GGUF files, which libllama can also load. */
#ifndef LK_TESTS_TINY_GGUF_H
#define LK_TESTS_TINY_GGUF_H

#include "tiny_presets.h"

#include "gguf.h"

/* Write the model. False on failure. */
bool tiny_gguf_write(const char *path, const struct tiny_spec *spec);

/* Same as above, but call edit(gguf, user) before the file is written, to damage or extend it. */
bool tiny_gguf_write_edited(const char *path, const struct tiny_spec *spec,
                            void (*edit)(struct gguf_context *, void *), void *user);

#endif
