/* Reads, writes and repairs saved sessions. */
#include "support_session.h"

#include "engine/session_save.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

uint8_t *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    uint8_t *data = NULL;
    long end = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    if (end >= 0 && fseek(file, 0, SEEK_SET) == 0) data = malloc((size_t)end + 1);
    if (data && fread(data, 1, (size_t)end, file) != (size_t)end) {
        free(data);
        data = NULL;
    }
    fclose(file);
    *size = data ? (size_t)end : 0;
    return data;
}

bool write_file(const char *path, const uint8_t *data, size_t size) {
    FILE *file = fopen(path, "wb");
    if (!file) return false;
    bool ok = fwrite(data, 1, size, file) == size;
    return fclose(file) == 0 && ok;
}

void seal_session(uint8_t *data, size_t size) {
    struct lk_session_header header;
    if (size < sizeof header) return;
    memcpy(&header, data, sizeof header);
    int n_section = lk_session_sections(header.version);
    if (n_section == 0) n_section = LK_N_SECTION;
    size_t hashed = offsetof(struct lk_session_header, section) +
                    (size_t)n_section * sizeof *header.section,
           at = hashed + sizeof header.hash;
    for (int i = 0; i < n_section; i++) {
        if (header.section[i].size > size - at) break;
        header.section[i].hash = XXH3_64bits(data + at, header.section[i].size);
        at += header.section[i].size;
    }
    header.size = size;
    uint64_t hash = XXH3_64bits(&header, hashed);
    memcpy(data, &header, hashed);
    memcpy(data + hashed, &hash, sizeof hash);
}
