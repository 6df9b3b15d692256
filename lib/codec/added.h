/* Codecs that the program registered (lowkey_codec.h). */
#ifndef LK_CODEC_ADDED_H
#define LK_CODEC_ADDED_H

#include "codec/ops.h"
#include "lowkey_codec.h"

extern const struct lk_coding_ops lk_added_ops;

/* The i-th registered codec; NULL if there are fewer. */
const lk_codec_ops *lk_added_codec(size_t i);

/* The registered codec that a word of a recipe names, in *codec. False if there is none. */
bool lk_added_parse(const char *word, struct lk_codec *codec);

#endif
