/* The file format of saved sessions. Numbers are little-endian. Sections follow each other without
 * gaps:
 *
 *   | struct lk_session_header |
 *   | recipe   its text                                      |
 *   | tokens   i32 [n_tok]                                   |
 *   | logits   f32 [n_vocab] of the last token, or nothing   |
 *   | sampler  see token/sampling.h, or nothing              |
 *   | states   see engine/absorb.h, or nothing               |
 *   | counts   see cache/cache_save.h                        |
 *   | rows     see cache/cache_save.h: nearly all of the file |
 *   | checkpoints  see engine/checkpoint.h, or nothing   |
 *   | prefill  that was cut short, see engine/prefill_save.h, or nothing: it also has the tokens,
 *   |          states, counts and rows before              |
 *
 * Files of version 5 have no prefill, files of version 4 no checkpoints either, and no entries for
 * them in the header.
 *
 * The header and every section have a 64-bit XXH3 checksum. Checksums detect damage, not malice, so
 * everything that is read is validated as well. */
#ifndef LK_ENGINE_SESSION_SAVE_H
#define LK_ENGINE_SESSION_SAVE_H

#include <stdint.h>

enum lk_section {
    LK_SECTION_RECIPE,
    LK_SECTION_TOKENS,
    LK_SECTION_LOGITS,
    LK_SECTION_SAMPLER,
    LK_SECTION_STATES,
    LK_SECTION_COUNTS,
    LK_SECTION_ROWS,
    LK_SECTION_CHECKPOINTS,
    LK_SECTION_PREFILL,
    LK_N_SECTION
};

enum {
    LK_SESSION_VERSION = 6,
    LK_SESSION_VERSION_5 = 5,
    LK_SESSION_VERSION_4 = 4,
    LK_SESSION_ORDER = 0x01020304,
    LK_SAVED_MTP = 4
};

#define LK_SESSION_MAGIC "lowkeyKV"

struct lk_session_header {
    char magic[8];
    uint32_t version;
    uint32_t order;   /* LK_SESSION_ORDER in the byte order of the machine that wrote the file */
    uint64_t model;   /* lk_net's fingerprint */
    uint64_t sidecar; /* fingerprint of the sidecar that the recipe reads; 0: none */
    uint64_t weights; /* 0; in older files LK_SAVED_MTP, rows of a layer that is not computed, or
                       * other bits, weights that the sidecar replaced */
    uint64_t size;    /* of the whole file */
    struct {
        uint64_t size, hash;
    } section[LK_N_SECTION];
    uint64_t hash; /* of the header up to here */
};

/* Sections of a file of this version; 0: it cannot be read. */
static inline int lk_session_sections(uint32_t version) {
    return version == LK_SESSION_VERSION     ? LK_N_SECTION
           : version == LK_SESSION_VERSION_5 ? LK_SECTION_PREFILL
           : version == LK_SESSION_VERSION_4 ? LK_SECTION_CHECKPOINTS
                                             : 0;
}

#endif
