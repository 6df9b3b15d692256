/* A session as a file. Numbers are little-endian, sections follow each other without gaps:
 *
 *   | struct lk_session_header |
 *   | recipe   its text                                                           |
 *   | tokens   i32 [n_tok]                                                        |
 *   | logits   f32 [n_vocab] of the last token, or nothing                        |
 *   | sampler  token/sampling.h, or nothing                                       |
 *   | counts   cache/save.h                                                       |
 *   | rows     cache/save.h: nearly all of the file                               |
 *
 * Every section has its XXH3 (64 bits), and so has the header. What these find is damage, not malice: all
 * that is read is checked besides. */
#ifndef LK_ENGINE_SESSION_FILE_H
#define LK_ENGINE_SESSION_FILE_H

#include "base/err.h"
#include "base/writer.h"

#include <stdint.h>

enum lk_section {
    LK_SECTION_RECIPE,
    LK_SECTION_TOKENS,
    LK_SECTION_LOGITS,
    LK_SECTION_SAMPLER,
    LK_SECTION_COUNTS,
    LK_SECTION_ROWS,
    LK_N_SECTION
};

enum { LK_SESSION_VERSION = 1, LK_SESSION_ORDER = 0x01020304 };

#define LK_SESSION_MAGIC "lowkeyKV"

struct lk_session_header {
    char magic[8];
    uint32_t version, order; /* order: LK_SESSION_ORDER, as this machine writes it */
    uint64_t model;          /* lk_net's fingerprint */
    uint64_t sidecar;        /* of the recipe's sidecar; 0: none */
    uint64_t size;           /* of the file */
    struct {
        uint64_t size, hash;
    } section[LK_N_SECTION];
    uint64_t hash; /* of the header up to here */
};

#endif
