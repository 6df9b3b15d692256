/* A recipe: the levels through which a token's K and V age, from oldest to newest.
 *
 *   recipe   := preset | codecs | part { ';' part } [';']      codecs alone: 'all' ':' codecs
 *   part     := range ':' codecs
 *   range    := 'sink' N          the first N tokens, for good
 *             | 'sink' N '(' 'shift' ')'   the same; positions are counted among held rows
 *             | 'body'            everything between the others
 *             | 'all'             the same, where there is nothing else
 *             | 'keep' SPAN 'by' POLICY    a body of that size; the policy says which rows stay. Per cent
 *                                 are of the tokens seen, or with 'of context' behind them of the
 *                                 longest context that the model was trained for
 *             | 'recent' SPAN     a window of the newest tokens not in a newer level
 *             | 'window' SPAN     the same; by custom the newest one
 *             | 'residual' N      KIVI's buffer: K fills up to N and empties at once, V slides
 *             | 'absorb' FEATURES (no codecs) what the body lets go is summed up in a state: 'less', by
 *                                 networks of the sidecar, or 'performer', by features that nobody trained
 *             | 'layers' LIST     other codecs for the body in some layers; LIST is comma-separated
 *                                 from: 'first' N, 'last' N, I, I '-' J (layers count from 0);
 *                                 'keep' SPAN 'by' POLICY ':' before the codecs: another size too
 *   SPAN     := N | N '%'         tokens, or per cent of the tokens seen
 *   codecs   := CODEC | 'k=' CODEC 'v=' CODEC     in either order
 *             | 'none'                            body only: such rows are dropped
 *   POLICY   := newest | random | h2o [ '(' mean ')' ] | tova [ '(' apart ')' ]     (policy/policy.h)
 *   CODEC    := LATENTS | [ LATENTS '+' ] NAME [ '(' OPTION { ',' OPTION } ')' ]
 *   LATENTS  := 'latent' [ N '%' ] [ '(pre)' ]   coordinates in the sidecar's basis: N per cent of the
 *                                           rank (default: as the sidecar recommends), in f16 unless a
 *                                           NAME follows; pre: of K before RoPE
 *   NAME     := f16 | int8 | kivi2 | kivi4 | rot1 .. rot8
 *   OPTION   := g32 | g64 | g128              kivi: group size (default g32)
 *             | mean | nomean                 rot: centre (default: K yes, V no)
 *             | sigma | nosigma               rot: equalise (default: K yes, V no)
 *             | lloyd | uniform               rot: levels (default: lloyd for 2 to 4 bits)
 *
 * Behind 'keep' ':' and codecs may be left out, which means f16. Codecs of whole tiles round its size up to
 * whole tiles. In layers with a sliding window, which is a limit already, it is a body like any other.
 *
 * Levels are listed oldest first; the newest rows are exact f16 until they make a batch. Case and
 * white space do not matter, '#' begins a comment, and between parts a line's end serves as ';'.
 * An older level has at most the bits of the newer one that its rows come from, and, of latents, at most
 * the rank: what is older than latents is latents. */
#ifndef LK_RECIPE_RECIPE_H
#define LK_RECIPE_RECIPE_H

#include "base/err.h"
#include "codec/codec.h"
#include "recipe/policy.h"

enum { LK_MAX_LEVEL = 8, LK_MAX_OVERRIDE = 16 };

enum lk_range { LK_SINK, LK_BODY, LK_RECENT, LK_RESIDUAL };

/* How many rows a body keeps, and which. */
struct lk_limit {
    struct lk_policy policy; /* LK_POLICY_NONE: no limit */
    uint32_t n_tok;          /* 0 where per cent are used, or nothing is kept */
    float percent;           /* of the tokens seen, or of the model's context */
    bool of_context;
};

struct lk_level_spec {
    enum lk_range range;
    char name[48];         /* as printed: "sink 4", "body", "recent 10%" */
    uint32_t n_tok;        /* sink, recent, residual: tokens; 0 where per cent is used */
    float percent;         /* recent: of the tokens seen; 0 where tokens are used */
    struct lk_limit limit; /* body */
    bool shift;            /* sink */
    struct lk_codec k, v;
};

/* Layers [first, last], counted from the end where negative (-1 is the last), use k and v in the body. */
struct lk_override {
    int32_t first, last;
    struct lk_codec k, v;
    struct lk_limit limit; /* the body's own where the policy is LK_POLICY_NONE */
};

enum lk_absorbing { LK_ABSORB_NOTHING, LK_ABSORB_LESS, LK_ABSORB_PERFORMER };

struct lk_recipe {
    char *text;
    int n_level;
    struct lk_level_spec level[LK_MAX_LEVEL]; /* oldest first; exactly one body */
    int n_override;
    struct lk_override override[LK_MAX_OVERRIDE];
    enum lk_absorbing
        absorbs; /* rows that go are told of (slots.h: lk_evict_hook) even where none is kept */
};

/* The levels as they hold in layer `layer` of `n_layer`: out[n_level], overrides applied; where two
 * overrides name a layer, the later one holds. */
void lk_recipe_levels(const struct lk_recipe *recipe, int layer, int n_layer,
                      struct lk_level_spec *out);

/* Does an override name this layer? */
bool lk_recipe_names_layer(const struct lk_recipe *recipe, int layer, int n_layer);

/* Is this a limit of no rows at all? */
static inline bool lk_limit_none(const struct lk_limit *limit) {
    return limit->policy.keep != LK_POLICY_NONE && limit->n_tok == 0 && limit->percent == 0;
}

#endif
