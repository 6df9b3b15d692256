/* Editing saved sessions. */
#ifndef LK_TESTS_SUPPORT_SESSION_H
#define LK_TESTS_SUPPORT_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Read a whole file. Free the result with free(). NULL if it cannot be read. */
uint8_t *read_file(const char *path, size_t *size);

/* Write a whole file. False on failure. */
bool write_file(const char *path, const uint8_t *data, size_t size);

/* Recompute the checksums and the size in an edited session file, for the sections that fit into
 * it. */
void seal_session(uint8_t *data, size_t size);

#endif
