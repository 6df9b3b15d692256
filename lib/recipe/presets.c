/* The recipes that have a name. Those named after a paper keep its settings; ours were chosen by
 * measurement (docs/quality.md). A window between the body and the exact rows is rot8 and not int8,
 * because one outlier channel of K takes all of int8's range. */
#include "recipe/presets.h"

#include <strings.h>

static const lk_preset presets[] = {
    {"f16", "all: f16",
     "the full cache in half floats: exact, and what the others are measured against", NULL},
    {"selective", "sink 16: f16; body: int8; window 256: f16",
     "Selective: 8 bits a value between 16 exact first and 256 exact newest tokens", NULL},
    {"kivi-4", "body: kivi4; residual 128: f16",
     "KIVI at 4 bits: K per channel, V per token, in groups of 32", NULL},
    {"kivi-2", "body: kivi2; residual 128: f16",
     "KIVI at 2 bits: K per channel, V per token, in groups of 32", NULL},
    {"compressed", "sink 16: f16; body: none; window 256: f16",
     "Selective's baseline: 16 first and 256 newest tokens, the others dropped", NULL},
    {"lambda", "sink 4: f16; body: none; window 252: f16",
     "Lambda mask: the 4 first and the 252 newest tokens, positions as they were", NULL},
    {"streaming", "sink 4(shift): f16; body: none; window 252: f16",
     "StreamingLLM: the same, positions counted within the cache; reads without end", NULL},
    {"h2o", "keep 128 by h2o: f16; window 128: f16",
     "H2O: 128 tokens that got most attention and the 128 newest", NULL},
    {"tova", "keep 255 by tova: f16; window 1: f16",
     "TOVA: the 255 tokens that the last one attended to most, and itself", NULL},
    {"best-4", "sink 4: f16; body: rot4; window 64: f16",
     "4 bits, rotated: very near the full cache; the safe choice", NULL},
    {"best-3", "sink 4: f16; body: k=rot3 v=rot2; recent 20%: rot4; window 64: rot8",
     "K in 3 and V in 2 bits, 4 for the newest fifth: small differences at a quarter of the bytes",
     NULL},
    {"best-2", "sink 4: f16; body: rot2; window 32: rot8",
     "2 bits, rotated: for the longest contexts; answers differ now and then", NULL},
    {"best-1.9",
     "sink 4: f16; body: k=latent46%(pre)+rot3(nomean) v=latent100%+rot2; window 64: rot8",
     "K in half its components, V in the directions that it uses: fewest bytes; K is slow to read "
     "far back",
     "--method palu --mean --svd output"},
    {"palu", "all: k=latent50%(pre)+rot3(nomean,nosigma) v=latent50%+rot3",
     "Palu: half of the components in 3 bits, K from before RoPE; no row stays exact",
     "--method palu"},
    {"tale", "sink 4: f16; body: k=kivi2 v=latent50%+kivi2; recent 10%: k=kivi4 v=latent100%+kivi4",
     "TALE: K as KIVI keeps it; V of full rank while it is new, of half later", "--method tale"},
};

enum { N_PRESET = sizeof presets / sizeof presets[0] };

lk_preset lk_recipe_preset(size_t i) {
    static const lk_preset none = {NULL, NULL, NULL, NULL};
    return i < N_PRESET ? presets[i] : none;
}

const lk_preset *lk_preset_find(const char *name, size_t len) {
    for (size_t i = 0; i < N_PRESET; i++) {
        if (strncasecmp(presets[i].name, name, len) == 0 && presets[i].name[len] == 0)
            return &presets[i];
    }
    return NULL;
}
