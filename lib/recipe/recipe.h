/* A recipe: the levels that the K and V rows of a token pass through as it ages.
 *
 *   recipe   := preset | codecs | part { ';' part } [';']      codecs alone mean 'all' ':' codecs
 *   part     := range ':' codecs
 *   range    := 'sink' N            the first N tokens, forever
 *             | 'sink' N '(' 'shift' ')'   same, with positions counted among the rows in the cache
 *             | 'body'              everything between the other levels
 *             | 'all'               same, if it is the only level
 *             | 'keep' SPAN 'by' POLICY    a body of limited size; the policy selects the rows that
 *                                   stay. A percentage is of the tokens seen so far, or, followed
 *                                   by 'of context', of the model's maximum context
 *             | 'recent' SPAN       a window of the newest tokens that are not in a newer level
 *             | 'window' SPAN       same; by convention the newest window
 *             | 'residual' N        KIVI's buffer: K fills to N tokens and empties, V slides
 *             | 'absorb' 'less'     (without codecs) rows evicted from the body are summed up in a
 *                                   state, by networks from the sidecar
 *             | 'eager'             (without codecs) rows are projected and encoded before any
 *                                   query attends to them, even those of a prompt. Without it, a
 *                                   prompt attends to exact rows, and the newest rows stay exact.
 *                                   In layers whose body has a limit, rows are projected before and
 *                                   encoded after attention, which the policy needs
 *             | 'read' N '%'        (without codecs) decoding reads the N per cent of the tiles
 *                                   that promise the most attention (attention/read.h)
 *             | 'layers' LIST [ 'recent' | 'window' ]     other codecs in some layers, for the body
 *                                   or the only level that is called 'recent' or 'window'. LIST is
 *                                   comma-separated: 'first' N, 'last' N, I, I '-' J (layers count
 *                                   from 0).
 *                                   For the body, 'keep' SPAN 'by' POLICY ':' before the codecs
 *                                   also sets another size, and 'none' drops the rows
 *             | [ 'layers' LIST ] 'heads' LIST [ 'recent' | 'window' ]     the same for some KV
 *                                   heads, of these layers or of all. LIST: I, I '-' J. The heads
 *                                   of a layer differ only in bits and codebooks
 *   SPAN     := N | N '%'           tokens, or percent of the tokens seen so far
 *   codecs   := CODEC | 'k=' CODEC 'v=' CODEC     in either order
 *             | 'none'                            body and layers only: the rows are dropped
 *   POLICY   := newest | random | h2o [ '(' mean ')' ] | tova [ '(' apart ')' ]       (policy.h)
 *   CODEC    := LATENTS | [ LATENTS '+' ] NAME [ '(' OPTION { ',' OPTION } ')' ]
 *   LATENTS  := 'latent' [ N '%' ] [ '(pre)' ]    coordinates in the sidecar's basis: N percent of
 *                                   the rank (default: the sidecar's recommendation), in f16
 *                                   unless a NAME follows. pre: of K before RoPE
 *   NAME     := f16 | int8 | kivi2 | kivi4 | rot1 .. rot8 | asym2 .. asym8
 *             | ADDED               a codec that the program registered (lowkey_codec.h), with
 *                                   options of its own
 *   OPTION   := g32 | g64 | g128      group size: kivi (default g32) and asym
 *                                   (default: the whole row is one group)
 *             | hadamard              asym: rotate the row before it is quantized
 *             | mean | nomean         rot: center (default: K yes, V no)
 *             | sigma | nosigma       rot: equalize (default: K yes, V no)
 *             | lloyd | uniform       rot: codebook (default: lloyd for 2 to 4 bits)
 *             | trellis               rot of 1 to 4 bits: levels that depend on the next codes too
 *
 * After 'keep', ':' and the codecs may be omitted: the rows are then f16. If the codecs pack whole
 * tiles, the size is rounded up to whole tiles. In layers with a sliding window, which limits the
 * rows already, 'keep' is a body like any other.
 *
 * Levels are listed from the oldest to the newest. The newest rows stay exact f16 until they make a
 * batch. Case and white space do not matter, '#' starts a comment, and a line break between parts
 * works like ';'. An older level has at most as many bits as the newer level that its rows come
 * from, and at most its rank if they are latents: what is older than latents is latents too.
 * combinations.h has the table of what makes no sense together. */
#ifndef LK_RECIPE_RECIPE_H
#define LK_RECIPE_RECIPE_H

#include "base/err.h"
#include "codec/codec.h"
#include "recipe/policy.h"

/* Limits of a recipe. A window limit is in tokens, for all windows together. */
enum {
    LK_MAX_LEVEL = 8,
    LK_MAX_OVERRIDE = 512,
    LK_MAX_NAMED_HEAD = 64,
    LK_MAX_HEAD_CODECS = 8, /* of a layer, besides those of most heads */
    LK_MAX_SINK = 1024,
    LK_MAX_WINDOW = 1000000,
    LK_MAX_LAYER = 1024
};

enum lk_range { LK_SINK, LK_BODY, LK_RECENT, LK_RESIDUAL };

/* How many rows a body keeps, and which. */
struct lk_limit {
    struct lk_policy policy; /* LK_POLICY_NONE: no limit */
    uint32_t n_tok;          /* 0 if the size is a percentage, or nothing is kept */
    float percent;           /* of the tokens seen so far, or of the model's context */
    bool of_context;
};

/* KV heads that use other codecs than the rest of a level. */
struct lk_head_codecs {
    uint64_t heads; /* bit h: head h */
    struct lk_codec k, v;
};

struct lk_level_spec {
    enum lk_range range;
    char name[48];  /* for messages: "sink 4", "body", "recent 10%" */
    uint32_t n_tok; /* sink, recent, residual: tokens; 0 if the size is a percentage */
    float percent;  /* recent: percent of the tokens seen so far; 0 if the size is in tokens */
    struct lk_limit limit; /* body */
    bool shift;            /* sink */
    struct lk_codec k, v;
    int n_head_codecs; /* a head is in at most one of these */
    struct lk_head_codecs head_codecs[LK_MAX_HEAD_CODECS];
};

/* Layers [first, last], or some of their heads, use k and v in one level. Negative numbers count
 * from the end: -1 is the last layer. */
struct lk_override {
    int32_t first, last;
    uint64_t heads; /* bit h: KV head h; 0: all heads */
    int32_t level;  /* index of the body or of a window */
    struct lk_codec k, v;
    struct lk_limit limit; /* LK_POLICY_NONE: the limit of the level */
};

struct lk_recipe {
    char *text;
    int n_level;
    struct lk_level_spec level[LK_MAX_LEVEL]; /* oldest first; exactly one body */
    int n_override;
    struct lk_override override[LK_MAX_OVERRIDE];
    /* Evicted rows are passed to lk_evict_hook (cache/evict.h), even if the body keeps no rows. */
    bool absorbs;
    bool eager; /* rows age before the pass that they arrive in attends, and are latents from the
                   start if the newest level holds latents */
    float read; /* share of the tiles (attention/read.h); 0: all are read */
};

/* Whether the limit keeps no rows at all. */
static inline bool lk_limit_is_zero(const struct lk_limit *limit) {
    return limit->policy.kind != LK_POLICY_NONE && limit->n_tok == 0 && limit->percent == 0;
}

#endif
