/* The codecs of lab/baselines in tests. */
#ifndef LK_SUPPORT_BASELINES_H
#define LK_SUPPORT_BASELINES_H

#include "codec/added.h"
#include "lowkey_lab.h"

#include <stdlib.h>

static inline void register_baselines(void) {
    if (lk_baselines_register(NULL) != LK_OK) abort();
}

/* The codec that a word of a recipe names ("kvquant3"). */
static inline struct lk_codec baseline_codec(const char *word) {
    struct lk_codec codec;
    register_baselines();
    if (!lk_added_parse(word, &codec)) abort();
    return codec;
}

#endif
