/* Saved sessions, edited. */
#ifndef LK_TESTS_SUPPORT_SESSION_H
#define LK_TESTS_SUPPORT_SESSION_H

#include <stddef.h>
#include <stdint.h>

/* The file's bytes, to be freed; NULL where it cannot be read. */
uint8_t *read_file(const char *path, size_t *size);
int write_file(const char *path, const uint8_t *data, size_t size); /* 1 on success */

/* Make the checksums and the size of an edited saved session right, as far as its sections fit into it. */
void seal_session(uint8_t *data, size_t size);

#endif
