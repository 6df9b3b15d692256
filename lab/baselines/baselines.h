/* Codecs of other projects, which the papers are compared with, as codecs that anybody can add
 * (lowkey_codec.h). lowkey_lab.h declares lk_baselines_register. */
#ifndef LK_BASELINES_BASELINES_H
#define LK_BASELINES_BASELINES_H

#include "codec/codec.h"
#include "lowkey_codec.h"

#include <string.h>

enum {
    LK_KVQUANT_ROWS = 128,
    LK_KVARN_ROWS = 128,
    LK_KVARN_STEPS = 16,
    LK_KVARN_MAX_D_HEAD = 1024, /* a block of floats is on the stack */
    LK_HQQ_STEPS = 20,
};

extern const lk_codec_ops lk_hqq_ops, lk_kvquant_ops, lk_kvarn_ops, lk_oscar_ops, lk_nf4_ops;

/* Whether a word is `name` and a number of bits between `min` and `max`, which it sets. */
static inline bool lk_parse_bits(const char *word, const char *name, int min, int max,
                                 lk_codec_param *param) {
    size_t len = strlen(name);
    if (strncmp(word, name, len) != 0 || word[len] < '0' + min || word[len] > '0' + max ||
        word[len + 1])
        return false;
    param->bits = (uint8_t)(word[len] - '0');
    return true;
}

static inline enum lk_side lk_shape_side(const lk_codec_shape *shape) {
    return shape->value ? LK_V : LK_K;
}

#endif
