/* Recipes of `lowkey tune` as text: what is measured, and what is found.
 *
 *   sink 4: f16; body: k=rot3 v=rot2; layers 2-3, 7: k=rot4 v=rot2; layers 5 heads 1: rot4;
 *   recent 20%: rot4; layers 0 recent: rot5; window 32: rot8
 *
 * Each head group has its own bits for K and V in the body and, unless there is none, in the level
 * `recent`. Most groups have the codecs of the level, the others are overrides. */
#ifndef LK_TUNE_TUNE_TEXT_H
#define LK_TUNE_TUNE_TEXT_H

#include "base/buf.h"

#include <stdint.h>

enum lk_tune_age { LK_TUNE_BODY, LK_TUNE_RECENT, LK_TUNE_AGES };

/* KV heads of a layer that have the same bits. */
struct lk_tune_group {
    int layer;
    uint64_t heads; /* bit h: head h; 0: all heads */
};

/* Bits of the codec rot, or 16 for f16: [age][side]. */
struct lk_tune_bits {
    uint8_t of[LK_TUNE_AGES][2];
};

/* Which codes have a trellis: those of up to this many bits. With one they lose less in the same
 * bytes; without one all CPUs read them fast. */
enum lk_tune_trellis { LK_TUNE_NO_TRELLIS = 0, LK_TUNE_TRELLIS = 4 };

/* Append the recipe whose head groups have these bits. group: [n], layer after layer. `recent`:
 * percent of the level of that name; 0: none. Memory failures are the buffer's. */
void lk_tune_print(struct lk_buf *out, const struct lk_tune_group *group,
                   const struct lk_tune_bits *bits, int n, int recent,
                   enum lk_tune_trellis trellis);

/* Append what quantizes one side of one group, for a recipe that is exact otherwise:
 * "layers 3: k=rot2(trellis) v=f16". If the layer has other heads, these have 8 bits, because the
 * heads of a layer have codecs of one kind. */
void lk_tune_print_probe(struct lk_buf *out, const struct lk_tune_group *group, int side, int bits);

/* Append "k=rot2(trellis) v=f16", or the other way around. */
void lk_tune_print_side(struct lk_buf *out, int side, int bits);

/* Append " heads 0-2, 5", or nothing for all heads. */
void lk_tune_print_heads(struct lk_buf *out, uint64_t heads);

/* Append the codec of so many bits: "rot3(trellis)", "rot6", or "f16" for 16. */
void lk_tune_print_codec(struct lk_buf *out, int bits, enum lk_tune_trellis trellis);

#endif
