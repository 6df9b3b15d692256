/* Named recipes. Those named after a paper have its settings, as far as a cache can: rows before
 * RoPE need a sidecar, and the newest rows are not quantized until they fill a tile. Ours were
 * chosen by measurement (docs/results/quality.md). They have a window of rot8, not int8, between
 * the body and the exact rows, because a single outlier channel of K uses up the range of int8. */
#include "recipe/presets.h"

#include "codec/added.h"

#include <strings.h>

static const struct {
    const char *name, *text, *note, *compress;
} presets[] = {
    {"f16", "all: f16", "the full cache in half precision: exact, the reference for the others",
     NULL},
    {"selective", "sink 16: f16; body: int8; window 256: f16",
     "Selective: 8 bits per value; the first 16 and the newest 256 tokens stay exact", NULL},
    {"kivi-4", "body: kivi4; residual 128: f16",
     "KIVI at 4 bits: K per channel, V per token, in groups of 32", NULL},
    {"kivi-2", "body: kivi2; residual 128: f16",
     "KIVI at 2 bits: K per channel, V per token, in groups of 32", NULL},
    {"atom-4", "all: asym4", "Atom at 4 bits: a scale and a zero point per token and head", NULL},
    {"compressed", "sink 16(shift): f16; body: none; window 256: f16",
     "the baseline of Selective: only the first 16 and the newest 256 tokens, positions remapped",
     NULL},
    {"lambda", "sink 4: f16; body: none; window 252: f16",
     "Lambda mask: only the first 4 and the newest 252 tokens, at their original positions", NULL},
    {"streaming", "sink 4(shift): f16; body: none; window 252: f16",
     "StreamingLLM: as lambda, but positions count within the cache; for endless text", NULL},
    {"h2o", "keep 128 by h2o: f16; window 128: f16",
     "H2O: the 128 tokens with the most attention and the newest 128", NULL},
    {"tova", "keep 255 by tova: f16; window 1: f16",
     "TOVA: the last token and the 255 tokens that it attends to most", NULL},
    {"best-4", "sink 4: f16; body: rot4; window 64: f16",
     "4 bits, rotated: very close to the full cache; the safe choice", NULL},
    {"best-3", "sink 4: f16; body: k=rot3 v=rot2; recent 20%: rot4; window 64: rot8",
     "K in 3 bits, V in 2, the newest fifth in 4: small differences at a quarter of the size",
     NULL},
    {"best-2", "sink 4: f16; body: rot2; window 32: rot8",
     "2 bits, rotated: for the longest contexts; answers differ now and then", NULL},
    {"trellis-3",
     "sink 4: f16; body: k=rot3(trellis) v=rot2(trellis); recent 20%: rot4; window 64: rot8",
     "as best-3 with trellis-coded levels: a little less loss, more time to pack a row", NULL},
    {"trellis-2", "sink 4: f16; body: rot2(trellis); window 32: rot8",
     "as best-2 with trellis-coded levels: a third less loss, more time to pack a row", NULL},
    {"trellis-1.5", "sink 4: f16; body: k=rot2(trellis) v=rot1(trellis); window 64: rot8",
     "K in 2 bits, V in 1, trellis-coded: the smallest cache that needs no sidecar", NULL},
    {"best-1.9",
     "sink 4: f16; body: k=latent46%(pre)+rot3(nomean) v=latent100%+rot2; window 64: rot8",
     "K in half of its components, V in the directions it uses: the smallest cache, but slow at "
     "long contexts",
     "--method palu --mean --svd output"},
    {"palu", "all: k=latent(pre)+asym3(hadamard) v=latent+asym3(hadamard); eager",
     "Palu: latents in 3 bits, ranks of the sidecar, K before RoPE; nothing is ever exact",
     "--method palu"},
    {"palu-rot", "all: k=latent50%(pre)+rot3(nomean,nosigma) v=latent50%+rot3",
     "as palu with our codec: half of the components in 3 bits", "--method palu"},
    {"tale", "sink 4: f16; body: k=kivi2 v=latent50%+kivi2; recent 10%: k=kivi4 v=latent100%+kivi4",
     "TALE: K as in KIVI, V at full rank while new and at half rank later", "--method tale"},
};

enum { N_PRESET = sizeof presets / sizeof presets[0] };

bool lk_recipe_preset(size_t i, lk_preset *out) {
    const lk_codec_ops *ops;
    if (i < N_PRESET) {
        *out =
            (lk_preset){presets[i].name, presets[i].text, presets[i].note, presets[i].compress, 0};
        return true;
    }
    i -= N_PRESET;
    for (size_t k = 0; (ops = lk_added_codec(k)); i -= (size_t)ops->n_preset, k++)
        if (i < (size_t)ops->n_preset) {
            *out = ops->preset[i];
            return true;
        }
    return false;
}

static bool is_name(const char *preset, const char *name, size_t len) {
    return strncasecmp(preset, name, len) == 0 && preset[len] == 0;
}

struct lk_named_recipe lk_preset_find(const char *name, size_t len) {
    lk_preset preset;
    for (size_t i = 0; lk_recipe_preset(i, &preset); i++)
        if (is_name(preset.name, name, len))
            return (struct lk_named_recipe){preset.name, preset.text};
    for (size_t i = 0; lk_recipe_tuned(i, &preset); i++)
        if (is_name(preset.name, name, len))
            return (struct lk_named_recipe){preset.name, preset.text};
    return (struct lk_named_recipe){NULL, NULL};
}
