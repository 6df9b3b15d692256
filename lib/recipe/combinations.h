/* What can be combined in a recipe: one table for the parser, `lowkey recipes --combinations`,
 * docs/papers/methods.md and tests/engine/test_combinations.c.
 *
 * A recipe has features: codecs, kinds of levels, policies and so on. A rule names two of them that
 * make no sense together, and says why. Whatever no rule names is allowed. lowkey.h declares
 * lk_recipe_combination, which lists all pairs. */
#ifndef LK_RECIPE_COMBINATIONS_H
#define LK_RECIPE_COMBINATIONS_H

#include "lowkey.h"
#include "recipe/policy.h"

enum lk_feature {
    /* codecs */
    LK_FEATURE_F16,
    LK_FEATURE_INT8,
    LK_FEATURE_ROT,
    LK_FEATURE_KIVI,
    LK_FEATURE_ASYM,
    LK_FEATURE_ADDED_ROWS,   /* by the program (lowkey_codec.h): packs each row by itself */
    LK_FEATURE_ADDED_BLOCKS, /* packs blocks of rows */
    LK_FEATURE_LATENT,       /* of V, or of K after RoPE */
    LK_FEATURE_LATENT_PRE,
    /* levels */
    LK_FEATURE_SINK,
    LK_FEATURE_SHIFT,
    LK_FEATURE_BODY,  /* keeps all rows; the body of other layers may have a limit */
    LK_FEATURE_NONE,  /* keeps no rows, in some layer */
    LK_FEATURE_KEEPS, /* by the first policy; then one for each of enum lk_policy_kind */
    LK_FEATURE_KEEPS_LAST = LK_FEATURE_KEEPS + LK_N_POLICY - 2,
    LK_FEATURE_PERCENT, /* a policy's limit in percent of the tokens seen */
    LK_FEATURE_WINDOW,
    LK_FEATURE_RESIDUAL,
    LK_FEATURE_LAYERS,       /* other codecs in some layers */
    LK_FEATURE_LAYERS_LIMIT, /* another limit, or 'none', in some layers */
    LK_FEATURE_HEADS,        /* other codecs of some heads */
    LK_FEATURE_LESS,
    LK_FEATURE_EAGER,
    LK_FEATURE_READ, /* a share of the tiles */
    /* of the model */
    LK_FEATURE_SLIDING,
    LK_FEATURE_LEARNED,
    LK_FEATURE_ALIBI,
    LK_FEATURE_SOFTCAP,
    LK_FEATURE_SHARED,    /* latent attention: V is a part of K too */
    LK_FEATURE_TWO_HEADS, /* layers with a window have other heads than the others */
    LK_FEATURE_RECURRENT,
    LK_FEATURE_BORROWED, /* layers that attend to the rows of an earlier layer */
    /* of the run */
    LK_FEATURE_DIVIDED_ROWS,   /* several processes divide the rows (cache/held.h) */
    LK_FEATURE_DIVIDED_LAYERS, /* and the layers */
    LK_N_FEATURE
};

/* A set of features. */
typedef uint64_t lk_features;
static inline lk_features lk_feature_bit(enum lk_feature f) { return (lk_features)1 << f; }

/* None of the features a can be combined with b, unless the recipe also has one of `unless`.
 * Messages point to b. */
struct lk_combination_rule {
    lk_features a;
    enum lk_feature b;
    lk_features unless;
    const char *reason; /* one line: what is wrong and what to do */
};

/* The first rule that a recipe with these features breaks, or NULL. Static. */
const struct lk_combination_rule *lk_combination_check(lk_features features);

/* As in the table, for example "keep by h2o". Static. */
const char *lk_feature_name(enum lk_feature f);

#endif
