/* FNV-1a, a 64-bit hash, for recognizing files that belong to the same inputs. */
#ifndef LK_BASE_FNV1A_H
#define LK_BASE_FNV1A_H

#include <stddef.h>
#include <stdint.h>

/* Hash of no bytes. */
#define LK_FNV1A_INIT 0xcbf29ce484222325u

/* Hash of the bytes hashed so far, followed by data[0..size). */
static inline uint64_t lk_fnv1a(uint64_t hash, const void *data, size_t size) {
    const uint8_t *byte = data;
    for (size_t i = 0; i < size; i++) hash = (hash ^ byte[i]) * 0x100000001b3u;
    return hash;
}

#endif
