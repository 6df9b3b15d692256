/* lowkey_codec.h - add a codec: rows of K and V packed in your own way.
 *
 * A program describes a codec by a struct of functions and registers it before it parses recipes.
 * Recipes then name it wherever a codec stands ("body: k=nf4 v=rot3"), and caches store rows with
 * it: with every kind of level, policy and sidecar, in saved sessions and checkpoints. Attention
 * decodes 32 rows at a time to half floats, so a codec needs no kernel, and costs the time of its
 * decoder.
 *
 * docs/add-a-codec.md builds one step by step. lab/baselines/ has the codecs of other projects that
 * the papers are compared with. */
#ifndef LOWKEY_CODEC_H
#define LOWKEY_CODEC_H

#include "lowkey.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LK_CODEC_TILE = 32,      /* rows of a block of a codec that packs each row by itself */
    LK_CODEC_MAX_ROWS = 128, /* of a block */
    LK_CODEC_MAX_ADDED = 16, /* codecs that can be registered */
};

/* The word in a recipe, as parse reads it: "hqq4(g32)" has 4 bits and the option 32. What they mean
 * is up to the codec. Two recipes with the same numbers store the same bytes. */
typedef struct {
    uint8_t bits;
    uint16_t option; /* 0: not given */
} lk_codec_param;

/* One KV head's rows in a block, or their latents. */
typedef struct {
    lk_codec_param param;
    bool value;        /* rows of V; otherwise of K, after RoPE */
    int32_t n_channel; /* of a row: a multiple of 8, 8 to 5120 */
} lk_codec_shape;

/* Functions cannot fail, must not keep state, and may run in several threads at once. All texts are
 * static. A function that may be NULL says so. */
typedef struct lk_codec_ops {
    const char *name;    /* "hqq": letters, digits and _, for messages */
    const char *words;   /* "hqq2 to hqq4", for messages */
    const char *example; /* a word that parse accepts: "hqq4" */
    const char *options; /* "g32, g64 or g128"; NULL: none */

    /* Rows that are encoded together, for codecs whose rows share scales or levels: a multiple of
     * LK_CODEC_TILE, up to LK_CODEC_MAX_ROWS. Newer rows wait as floats, and policies that replace
     * single rows are refused. 0: each row is encoded by itself, in blocks of LK_CODEC_TILE. */
    int32_t block_rows;

    /* Whether `word` names the codec. Sets *param. */
    bool (*parse)(const char *word, lk_codec_param *param);

    /* Whether `word` is an option in parentheses after the name, and not a second one. Sets
     * param->option. NULL: no options */
    bool (*parse_option)(const char *word, lk_codec_param *param);

    /* Write the word with its option, as the parsers read it. */
    void (*print)(const lk_codec_param *param, char *buf, size_t cap);

    /* Channels that belong together: ranks of latents become a multiple of it. NULL: 8 */
    int32_t (*unit)(const lk_codec_param *param);

    /* Why rows of this shape cannot be stored, in one line; NULL if they can. May be NULL. */
    const char *(*reject)(const lk_codec_shape *shape);

    /* Bytes of a block, and how many of them are scales and the like. scale_bytes may be NULL. */
    size_t (*bytes)(const lk_codec_shape *shape);
    size_t (*scale_bytes)(const lk_codec_shape *shape);

    /* Pack rows [row0, row0 + n) of a block. x: n rows of n_channel floats, `stride` floats apart;
     * they may be infinite or NaN. block: aligned to 32 bytes. With block_rows, row0 is 0 and n is
     * block_rows. The same rows always give the same bytes. */
    void (*encode)(const lk_codec_shape *shape, void *block, int32_t row0, int32_t n,
                   const float *x, size_t stride);

    /* Unpack rows [row0, row0 + n). A block from a damaged file holds any bytes: read and write
     * nothing outside of the arrays. */
    void (*decode)(const lk_codec_shape *shape, const void *block, int32_t row0, int32_t n,
                   float *x, size_t stride);

    /* Recipes that use the codec, listed after the library's own. NULL: none */
    const lk_preset *preset;
    int32_t n_preset;
} lk_codec_ops;

/* Register a codec for this process. Borrowed forever. Registering the same struct again changes
 * nothing. LK_E_ARG: a function is missing, or another codec has the same words, or there
 * are LK_CODEC_MAX_ADDED already. May be called from any thread. */
lk_status lk_codec_register(const lk_codec_ops *ops, lk_err *err);

#ifdef __cplusplus
}
#endif

#endif
