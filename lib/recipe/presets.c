/* Named recipes: ours first, as people choose them, then f16 and the papers'. Those named after a
 * paper have its settings, as far as a cache can: rows before
 * RoPE need a sidecar, and the newest rows are not quantized until they fill a tile. Ours were
 * chosen by measurement (docs/results/quality.md). They have a window of rot8, not int8, between
 * the body and the exact rows, because a single outlier channel of K uses up the range of int8. */
#include "recipe/presets.h"

#include "codec/added.h"
#include "lowkey.h"

#include <strings.h>

static const struct {
    const char *name, *text, *note, *compress;
} presets[] = {
    {"best-4", "sink 4: f16; body: rot4; window 64: f16",
     "4 bits, rotated: very close to the full cache; the default", NULL},
    {"best-3", "sink 4: f16; body: k=rot3 v=rot2; recent 20%: rot4; window 64: rot8",
     "K in 3 bits, V in 2, the newest fifth in 4: small differences at a fifth of the size", NULL},
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
    {"palu", "all: k=latent(pre)+asym3(hadamard) v=latent+asym3(hadamard); eager",
     "Palu: latents in 3 bits, ranks of the sidecar, K before RoPE; nothing is ever exact",
     "--method palu --rank 50%"},
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

/* ---- for one model, found by `lowkey tune` (docs/tuning.md has the commands) ---- */

/* The first one of a model is its default. */
static const struct {
    const char *name, *text, *note;
    uint64_t model;
} tuned[] = {
    {"smollm2-135m-4",
     "sink 4: f16; body: k=rot4 v=rot3; layers 0, 11-13, 16, 25, 27: k=rot3 v=rot2; layers"
     " 3: k=rot6 v=rot3; layers 4-6, 9-10, 15: k=rot5 v=rot3; layers 7-8, 14, 24: k=rot5 "
     "v=rot4; layers 17, 20: k=rot6 v=rot4; layers 18, 23: k=rot6 v=rot5; layers 21: rot4;"
     " recent 20%: k=rot6 v=rot5; layers 0-1, 12, 16, 25 recent: rot4; layers 2, 9-10 "
     "recent: k=rot6 v=rot4; layers 8, 14, 17, 24 recent: rot6; layers 11 recent: k=rot4 "
     "v=rot3; layers 13, 19, 29 recent: k=rot5 v=rot4; layers 18, 20, 23 recent: k=rot8 "
     "v=rot6; layers 27 recent: k=rot3 v=rot4; layers 28 recent: rot5; window 32: rot8",
     "for SmolLM2-135M-Instruct: 4.5 bits at 8,192 tokens", 0xcbb396a61f44de27u},
    {"smollm2-135m-3",
     "sink 4: f16; body: k=rot2(trellis) v=rot1(trellis); layers 1, 6-7, 12, 21: "
     "k=rot3(trellis) v=rot1(trellis); layers 3, 9-10, 25: k=rot4(trellis) "
     "v=rot1(trellis); layers 4: k=rot5 v=rot2(trellis); layers 5: k=rot5 v=rot1(trellis); "
     "layers 8: k=rot5 v=rot3(trellis); layers 17, 19-20, 26, 28: k=rot3(trellis) "
     "v=rot2(trellis); layers 23: k=rot5 v=rot4(trellis); layers 24: k=rot4(trellis) "
     "v=rot3(trellis); layers 0, 4 heads 1: k=rot4(trellis) v=rot1(trellis); layers 1 "
     "heads 1: rot2(trellis); layers 2 heads 1-2: k=rot3(trellis) v=rot1(trellis); layers "
     "3 heads 2: k=rot6 v=rot1(trellis); layers 4 heads 2: k=rot3(trellis) "
     "v=rot1(trellis); layers 5 heads 1: k=rot5 v=rot2(trellis); layers 5-6, 27 heads 2: "
     "k=rot4(trellis) v=rot1(trellis); layers 6, 10 heads 1: k=rot5 v=rot1(trellis); "
     "layers 7 heads 2: k=rot6 v=rot3(trellis); layers 8 heads 1-2: k=rot4(trellis) "
     "v=rot1(trellis); layers 9 heads 1-2: k=rot5 v=rot1(trellis); layers 12, 25 heads "
     "1-2: k=rot2(trellis) v=rot1(trellis); layers 14 heads 0: k=rot3(trellis) "
     "v=rot2(trellis); layers 14, 20 heads 1: k=rot4(trellis) v=rot3(trellis); layers 15, "
     "29 heads 2: k=rot4(trellis) v=rot2(trellis); layers 17 heads 1: k=rot5 "
     "v=rot3(trellis); layers 17, 19, 26 heads 2: k=rot2(trellis) v=rot1(trellis); layers "
     "18 heads 2: k=rot6 v=rot4(trellis); layers 20, 23 heads 2: k=rot5 v=rot3(trellis); "
     "layers 21 heads 1-2: k=rot3(trellis) v=rot2(trellis); layers 22 heads 1: "
     "k=rot3(trellis) v=rot2(trellis); layers 23-24 heads 1: k=rot4(trellis) "
     "v=rot2(trellis); layers 28 heads 1: k=rot2(trellis) v=rot1(trellis); layers 28 heads "
     "2: rot2(trellis); recent 40%: rot3(trellis); layers 0, 18 recent: rot2(trellis); "
     "layers 1, 12 recent: k=rot4(trellis) v=rot2(trellis); layers 2 recent: "
     "k=rot3(trellis) v=rot2(trellis); layers 3 recent: k=rot5 v=rot3(trellis); layers "
     "4-5, 9 recent: k=rot6 v=rot3(trellis); layers 6-7, 17, 19-21, 26 recent: "
     "k=rot4(trellis) v=rot3(trellis); layers 8, 23 recent: k=rot6 v=rot5; layers 10 "
     "recent: k=rot6 v=rot2(trellis); layers 11, 13 recent: k=rot2(trellis) "
     "v=rot1(trellis); layers 24 recent: k=rot6 v=rot4(trellis); layers 25 recent: k=rot5 "
     "v=rot2(trellis); layers 28 recent: rot4(trellis); layers 0 heads 1 recent: k=rot6 "
     "v=rot2(trellis); layers 0 heads 2 recent: k=rot2(trellis) v=rot3(trellis); layers 1 "
     "heads 1 recent: rot3(trellis); layers 2 heads 1 recent: k=rot4(trellis) "
     "v=rot3(trellis); layers 2 heads 2 recent: k=rot4(trellis) v=rot2(trellis); layers 3, "
     "6 heads 1 recent: k=rot6 v=rot3(trellis); layers 3 heads 2 recent: k=rot8 "
     "v=rot3(trellis); layers 4 heads 1-2 recent: k=rot4(trellis) v=rot2(trellis); layers "
     "5-6, 10 heads 2 recent: k=rot5 v=rot3(trellis); layers 7 heads 2 recent: k=rot6 "
     "v=rot4(trellis); layers 8 heads 1-2 recent: k=rot5 v=rot3(trellis); layers 11, 16, "
     "18, 28 heads 1 recent: k=rot3(trellis) v=rot2(trellis); layers 11-12 heads 2 recent: "
     "k=rot3(trellis) v=rot1(trellis); layers 12 heads 1 recent: k=rot2(trellis) "
     "v=rot1(trellis); layers 13, 17 heads 2 recent: k=rot3(trellis) v=rot2(trellis); "
     "layers 14 heads 0 recent: k=rot4(trellis) v=rot3(trellis); layers 14, 17 heads 1 "
     "recent: k=rot6 v=rot5; layers 15 heads 0 recent: rot2(trellis); layers 15 heads 2 "
     "recent: k=rot5 v=rot4(trellis); layers 18 heads 2 recent: k=rot8 v=rot6; layers 19, "
     "26 heads 2 recent: k=rot2(trellis) v=rot1(trellis); layers 20 heads 1-2 recent: "
     "k=rot6 v=rot5; layers 21, 29 heads 2 recent: rot4(trellis); layers 22-24 heads 1 "
     "recent: rot4(trellis); layers 24 heads 2 recent: rot5; layers 25 heads 1-2 recent: "
     "k=rot2(trellis) v=rot1(trellis); layers 27 heads 1 recent: rot2(trellis); layers 27 "
     "heads 2 recent: k=rot5 v=rot1(trellis); layers 28 heads 2 recent: rot3(trellis); "
     "layers 29 heads 0 recent: k=rot3(trellis) v=rot2(trellis); window 32: rot8",
     "for SmolLM2-135M-Instruct: 3.3 bits at 8,192 tokens, trellis-coded", 0xcbb396a61f44de27u},
    {"smollm2-135m-2",
     "sink 4: f16; body: k=rot2(trellis) v=rot1(trellis); layers 3, 9-10: k=rot3(trellis) "
     "v=rot1(trellis); layers 4-5: k=rot4(trellis) v=rot1(trellis); layers 8, 24: "
     "k=rot3(trellis) v=rot2(trellis); layers 23: k=rot4(trellis) v=rot3(trellis); layers "
     "0 heads 1: k=rot3(trellis) v=rot1(trellis); layers 3 heads 2: k=rot5 "
     "v=rot1(trellis); layers 4 heads 1-2: k=rot2(trellis) v=rot1(trellis); layers 5-6, 27 "
     "heads 2: k=rot3(trellis) v=rot1(trellis); layers 6, 10 heads 1: k=rot4(trellis) "
     "v=rot1(trellis); layers 7, 20 heads 2: k=rot4(trellis) v=rot2(trellis); layers 8 "
     "heads 1-2: k=rot3(trellis) v=rot1(trellis); layers 9 heads 1-2: k=rot4(trellis) "
     "v=rot1(trellis); layers 14, 20 heads 1: k=rot3(trellis) v=rot2(trellis); layers 15, "
     "23 heads 2: k=rot3(trellis) v=rot2(trellis); layers 17 heads 1: k=rot4(trellis) "
     "v=rot3(trellis); layers 18 heads 2: k=rot4(trellis) v=rot3(trellis); layers 21 heads "
     "2: rot2(trellis); layers 23 heads 1: rot2(trellis); layers 24 heads 1: "
     "k=rot2(trellis) v=rot1(trellis); recent 20%: k=rot2(trellis) v=rot1(trellis); layers "
     "1 recent: k=rot3(trellis) v=rot1(trellis); layers 3, 9 recent: k=rot4(trellis) "
     "v=rot2(trellis); layers 4-5 recent: k=rot5 v=rot2(trellis); layers 6-7, 20-21 "
     "recent: k=rot3(trellis) v=rot2(trellis); layers 8, 23 recent: k=rot5 "
     "v=rot4(trellis); layers 10 recent: k=rot4(trellis) v=rot1(trellis); layers 22 "
     "recent: rot2(trellis); layers 24 recent: k=rot4(trellis) v=rot3(trellis); layers 0 "
     "heads 1 recent: k=rot4(trellis) v=rot1(trellis); layers 0, 28 heads 2 recent: "
     "rot2(trellis); layers 1, 15, 29 heads 1 recent: rot2(trellis); layers 2, 24 heads 1 "
     "recent: k=rot3(trellis) v=rot2(trellis); layers 2 heads 2 recent: k=rot3(trellis) "
     "v=rot1(trellis); layers 3 heads 2 recent: k=rot6 v=rot1(trellis); layers 4 heads 1-2 "
     "recent: k=rot3(trellis) v=rot1(trellis); layers 5, 10 heads 2 recent: "
     "k=rot4(trellis) v=rot2(trellis); layers 6, 9-10 heads 1 recent: k=rot5 "
     "v=rot1(trellis); layers 6, 27 heads 2 recent: k=rot4(trellis) v=rot1(trellis); "
     "layers 7 heads 2 recent: k=rot6 v=rot3(trellis); layers 8 heads 1-2 recent: "
     "k=rot4(trellis) v=rot2(trellis); layers 9 heads 2 recent: k=rot5 v=rot2(trellis); "
     "layers 12 heads 0 recent: k=rot3(trellis) v=rot1(trellis); layers 14, 17 heads 0 "
     "recent: k=rot3(trellis) v=rot2(trellis); layers 14 heads 1 recent: rot4(trellis); "
     "layers 15, 29 heads 2 recent: k=rot4(trellis) v=rot3(trellis); layers 16 heads 0, 2 "
     "recent: rot2(trellis); layers 17 heads 1 recent: k=rot5 v=rot4(trellis); layers 18 "
     "heads 2 recent: k=rot6 v=rot5; layers 19, 26 heads 0-1 recent: k=rot3(trellis) "
     "v=rot2(trellis); layers 20, 23 heads 1 recent: k=rot4(trellis) v=rot3(trellis); "
     "layers 20 heads 2 recent: k=rot5 v=rot4(trellis); layers 21 heads 2 recent: "
     "rot3(trellis); layers 22 heads 1 recent: rot3(trellis); layers 24 heads 2 recent: "
     "rot4(trellis); layers 25 heads 0 recent: k=rot4(trellis) v=rot1(trellis); layers 27 "
     "heads 0 recent: rot2(trellis); layers 28 heads 0 recent: rot3(trellis); window 32: "
     "rot8",
     "for SmolLM2-135M-Instruct: 2.5 bits at 8,192 tokens, trellis-coded", 0xcbb396a61f44de27u},
    {"smollm2-135m-5",
     "sink 4: f16; body: rot6; layers 0: k=rot3 v=rot4; layers 1, 12, 16, 19, 22, 29: rot4; "
     "layers 2, 26: k=rot5 v=rot4; layers 3-5: k=rot6 v=rot5; layers 6, 14-15, 21, 28: "
     "rot5; layers 9-10: k=rot6 v=rot4; layers 11, 13, 25, 27: rot3; recent 10%: rot6; "
     "layers 0 recent: k=rot4 v=rot5; layers 1, 19, 22, 29 recent: rot5; layers 2, 9, 26 "
     "recent: k=rot6 v=rot5; layers 3, 7-8, 20 recent: k=rot8 v=rot6; layers 10 recent: "
     "k=rot8 v=rot5; layers 11-13, 16, 25, 27 recent: rot4; layers 21 recent: k=rot5 "
     "v=rot6; layers 23 recent: rot8; window 32: rot8",
     "for SmolLM2-135M-Instruct: 5.3 bits at 8,192 tokens", 0xcbb396a61f44de27u},
    {"qwen2.5-coder-0.5b-4",
     "sink 4: f16; body: rot3; layers 0-1: k=rot3 v=rot2; layers 2: k=rot4 v=rot2; layers "
     "3, 7, 15: rot4; layers 4-5, 14, 19: k=rot4 v=rot3; layers 9, 11: rot5; layers 13, 17, "
     "20, 23: k=rot5 v=rot4; layers 16, 21-22: k=rot6 v=rot5; recent 20%: k=rot4 v=rot3; "
     "layers 1 recent: rot3; layers 3-5, 14, 19 recent: k=rot5 v=rot4; layers 7, 13, 20, 23 "
     "recent: k=rot6 v=rot5; layers 9, 11, 16, 21-22 recent: rot6; layers 10, 12 recent: "
     "rot4; layers 15, 17 recent: k=rot6 v=rot4; window 32: rot8",
     "for Qwen2.5-Coder-0.5B-Instruct: 4.5 bits at 8,192 tokens", 0x51bcfefaae9724c4u},
    {"qwen2.5-coder-0.5b-3",
     "sink 4: f16; body: k=rot2(trellis) v=rot1(trellis); layers 3, 13, 21-22: "
     "k=rot4(trellis) v=rot3(trellis); layers 5, 19: k=rot3(trellis) v=rot1(trellis); "
     "layers 8: rot2(trellis); layers 11, 20: k=rot3(trellis) v=rot2(trellis); layers 16: "
     "k=rot5 v=rot4(trellis); layers 23: k=rot4(trellis) v=rot2(trellis); layers 3, 5, 8, "
     "19 heads 1: k=rot2(trellis) v=rot1(trellis); layers 4 heads 1: rot2(trellis); layers "
     "7, 23 heads 1: k=rot4(trellis) v=rot3(trellis); layers 9, 11 heads 1: k=rot5 "
     "v=rot4(trellis); layers 14 heads 0: k=rot3(trellis) v=rot1(trellis); layers 15 heads "
     "1: k=rot3(trellis) v=rot2(trellis); layers 16, 20-22 heads 1: k=rot5 "
     "v=rot3(trellis); layers 17 heads 0: k=rot3(trellis) v=rot2(trellis); recent 40%: "
     "k=rot4(trellis) v=rot3(trellis); layers 0, 9 recent: rot2(trellis); layers 1, 4, 7 "
     "recent: k=rot2(trellis) v=rot1(trellis); layers 2 recent: k=rot4(trellis) "
     "v=rot2(trellis); layers 3 recent: k=rot5 v=rot4(trellis); layers 6, 12 recent: "
     "k=rot3(trellis) v=rot2(trellis); layers 8, 10 recent: rot3(trellis); layers 11 "
     "recent: rot4(trellis); layers 13, 21 recent: k=rot6 v=rot5; layers 16 recent: rot6; "
     "layers 22 recent: k=rot6 v=rot4(trellis); layers 23 recent: k=rot5 v=rot3(trellis); "
     "layers 0, 10, 19 heads 1 recent: k=rot3(trellis) v=rot2(trellis); layers 1, 5-6 "
     "heads 1 recent: rot2(trellis); layers 2-3 heads 1 recent: k=rot3(trellis) "
     "v=rot1(trellis); layers 4 heads 1 recent: k=rot4(trellis) v=rot3(trellis); layers 7, "
     "13 heads 1 recent: k=rot5 v=rot4(trellis); layers 8, 18 heads 1 recent: "
     "k=rot2(trellis) v=rot1(trellis); layers 9, 11 heads 1 recent: rot6; layers 12 heads "
     "1 recent: k=rot4(trellis) v=rot2(trellis); layers 14 heads 0 recent: k=rot4(trellis) "
     "v=rot2(trellis); layers 15 heads 1 recent: rot4(trellis); layers 16, 22 heads 1 "
     "recent: k=rot6 v=rot5; layers 20-21, 23 heads 1 recent: k=rot6 v=rot4(trellis); "
     "window 32: rot8",
     "for Qwen2.5-Coder-0.5B-Instruct: 3.3 bits at 8,192 tokens, trellis-coded",
     0x51bcfefaae9724c4u},
    {"qwen2.5-coder-0.5b-2",
     "sink 4: f16; body: k=rot2(trellis) v=rot1(trellis); layers 13, 21: k=rot3(trellis) "
     "v=rot2(trellis); layers 16: k=rot4(trellis) v=rot2(trellis); layers 22: "
     "k=rot3(trellis) v=rot1(trellis); layers 9, 16 heads 1: k=rot3(trellis) "
     "v=rot2(trellis); layers 11 heads 1: k=rot4(trellis) v=rot3(trellis); layers 13 heads "
     "1: k=rot2(trellis) v=rot1(trellis); layers 20-21, 23 heads 1: k=rot3(trellis) "
     "v=rot1(trellis); layers 22 heads 1: k=rot4(trellis) v=rot2(trellis); recent 40%: "
     "k=rot2(trellis) v=rot1(trellis); layers 11, 23 recent: k=rot3(trellis) "
     "v=rot2(trellis); layers 13, 21-22 recent: k=rot4(trellis) v=rot3(trellis); layers 14 "
     "recent: k=rot3(trellis) v=rot1(trellis); layers 15, 20 recent: rot2(trellis); layers "
     "16 recent: k=rot5 v=rot4(trellis); layers 3 heads 0 recent: k=rot4(trellis) "
     "v=rot3(trellis); layers 4, 14 heads 1 recent: rot2(trellis); layers 5, 17, 19 heads "
     "0 recent: k=rot3(trellis) v=rot2(trellis); layers 7, 20, 23 heads 1 recent: "
     "k=rot4(trellis) v=rot3(trellis); layers 8 heads 0 recent: rot2(trellis); layers 9 "
     "heads 1 recent: rot4(trellis); layers 11 heads 1 recent: k=rot5 v=rot4(trellis); "
     "layers 15 heads 1 recent: k=rot3(trellis) v=rot2(trellis); layers 22 heads 1 recent: "
     "k=rot5 v=rot3(trellis); window 32: rot8",
     "for Qwen2.5-Coder-0.5B-Instruct: 2.5 bits at 8,192 tokens, trellis-coded",
     0x51bcfefaae9724c4u},
    {"gemma3-270m-4",
     "sink 4: f16; body: k=rot6 v=rot4; layers 0, 11: k=rot5 v=rot4; layers 2, 4-5: rot4; "
     "layers 3: rot5; layers 6-7, 13-14: k=rot6 v=rot5; layers 8: k=rot8 v=rot4; layers 10: "
     "k=rot8 v=rot5; layers 12: rot6; layers 17: rot3; window 32: rot8",
     "for Gemma 3 270M: 4.5 bits at 8,192 tokens", 0xb2a5c90c1862755fu},
    {"gemma3-270m-3",
     "sink 4: f16; body: k=rot6 v=rot4(trellis); layers 0, 4: k=rot4(trellis) "
     "v=rot3(trellis); layers 2: k=rot5 v=rot3(trellis); layers 3: k=rot5 v=rot4(trellis); "
     "layers 5, 11: k=rot3(trellis) v=rot2(trellis); layers 7, 12-13: k=rot6 v=rot5; "
     "layers 8, 10: k=rot8 v=rot4(trellis); layers 17: k=rot3(trellis) v=rot1(trellis); "
     "recent 10%: k=rot6 v=rot4(trellis); layers 0, 4 recent: k=rot4(trellis) "
     "v=rot3(trellis); layers 2, 17 recent: k=rot5 v=rot3(trellis); layers 3 recent: "
     "k=rot5 v=rot4(trellis); layers 5, 7, 11-13 recent: k=rot6 v=rot5; layers 8, 10 "
     "recent: k=rot8 v=rot4(trellis); window 32: rot8",
     "for Gemma 3 270M: 3.5 bits at 8,192 tokens, trellis-coded", 0xb2a5c90c1862755fu},
    {"gemma3-270m-2",
     "sink 4: f16; body: k=rot4(trellis) v=rot2(trellis); layers 0, 4: rot2(trellis); "
     "layers 2-3, 6: k=rot3(trellis) v=rot2(trellis); layers 5, 11, 17: k=rot2(trellis) "
     "v=rot1(trellis); layers 7, 13: k=rot4(trellis) v=rot3(trellis); layers 8: k=rot6 "
     "v=rot2(trellis); layers 10: k=rot6 v=rot3(trellis); layers 12: k=rot5 "
     "v=rot3(trellis); recent 10%: k=rot4(trellis) v=rot2(trellis); layers 0, 4 recent: "
     "rot2(trellis); layers 2-3, 6 recent: k=rot3(trellis) v=rot2(trellis); layers 5, 7, "
     "11, 13 recent: k=rot4(trellis) v=rot3(trellis); layers 8 recent: k=rot6 "
     "v=rot2(trellis); layers 10 recent: k=rot6 v=rot3(trellis); layers 12 recent: k=rot5 "
     "v=rot3(trellis); layers 17 recent: k=rot3(trellis) v=rot1(trellis); window 32: rot8",
     "for Gemma 3 270M: 2.4 bits at 8,192 tokens, trellis-coded", 0xb2a5c90c1862755fu},
};

enum { N_TUNED = sizeof tuned / sizeof tuned[0] };

bool lk_recipe_tuned(size_t i, lk_preset *out) {
    if (i >= N_TUNED) return false;
    *out = (lk_preset){tuned[i].name, tuned[i].text, tuned[i].note, NULL, tuned[i].model};
    return true;
}
