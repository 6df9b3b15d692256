/* Tables of names that people try, and the search for the closest one. */
#include "recipe/recipe_suggest.h"

#include "base/closest.h"
#include "codec/added.h"
#include "recipe/presets.h"

#include <string.h>
#include <strings.h>

/* Of equally close names the first is taken. */
static const char *const codec_name[] = {
    "f16",  "int8", "kivi4",  "kivi2", "rot8",  "rot7",  "rot6",  "rot5",  "rot4",  "rot3",
    "rot2", "rot1", "latent", "asym4", "asym3", "asym2", "asym8", "asym5", "asym6", "asym7"};

static const char *const keyword[] = {
    "sink",    "body",   "keep",   "all",     "recent", "window",   "residual", "layers", "heads",
    "absorb",  "eager",  "read",   "skip",    "none",   "shift",    "first",    "last",   "less",
    "mean",    "nomean", "sigma",  "nosigma", "lloyd",  "uniform",  "g32",      "g64",    "g128",
    "context", "random", "newest", "h2o",     "tova",   "hadamard", "trellis"};

/* Cache types of llama.cpp, vLLM and others. Sizes and errors: docs/results/quality.md. */
static const struct {
    const char *name, *advice;
} cache_type[] = {
    {"f32", "f16 is the most exact cache here"},
    {"bf16", "use f16"},
    {"fp16", "use f16"},
    {"auto", "use f16 for an exact cache, best-4 for a small one"},
    {"q8_0", "selective has about its size; best-4 has half of it, with a KL of 0.001 to 0.002"},
    {"q8", "selective has about the size of q8_0; best-4 has half of it"},
    {"fp8", "selective has about its size; best-4 has half of it"},
    {"fp8_e4m3", "selective has about its size; best-4 has half of it"},
    {"fp8_e5m2", "selective has about its size; best-4 has half of it"},
    {"q6_0", "best-4 is smaller and has a smaller error than q5_1"},
    {"q5_1", "best-4 is smaller and has a smaller error"},
    {"q5_0", "best-4 is smaller"},
    {"q5", "best-4 is smaller and has a smaller error than q5_1"},
    {"q4_1", "best-4 has about its size"},
    {"q4_0", "best-4 has about its size and a much smaller error"},
    {"q4", "best-4 has about the size of q4_0 and a much smaller error"},
    {"q4_k", "best-4 has about its size"},
    {"iq4_nl", "best-4 has about its size"},
    {"int4", "best-4 has about its size"},
    {"fp4", "best-4 has about its size"},
    {"nvfp4", "best-4 has about its size"},
    {"turbo4", "best-4 has about its size"},
    {"q3_k", "best-3 has about its size"},
    {"turbo3", "best-3 has about its size"},
    {"int3", "best-3 has about its size"},
    {"q2_k", "best-2 has about its size"},
    {"turbo2", "best-2 has about its size"},
    {"int2", "best-2 has about its size"},
    {"kivi", "use kivi-4 or kivi-2"},
    {"atom", "use atom-4"},
    {"best", "use best-4, best-3 or best-2"},
    {"default", "use best-4"},
    {"none", "use f16"},
    {"snapkv", "use h2o or tova"},
    {"streamingllm", "use streaming"},
};

enum {
    N_CODEC = sizeof codec_name / sizeof codec_name[0],
    N_KEYWORD = sizeof keyword / sizeof keyword[0],
    N_CACHE_TYPE = sizeof cache_type / sizeof cache_type[0],
};

static void offer_codecs(struct lk_closest *close) {
    const lk_codec_ops *ops;
    for (size_t i = 0; i < N_CODEC; i++) lk_closest_offer(close, codec_name[i]);
    for (size_t i = 0; (ops = lk_added_codec(i)); i++) lk_closest_offer(close, ops->example);
}

lk_status lk_recipe_fail_name(const struct lk_scan *scan, const char *name, size_t len) {
    char text[64];
    struct lk_closest close = {.word = name, .len = len};
    lk_printable(text, name, len);
    for (size_t i = 0; i < N_CACHE_TYPE; i++)
        if (strncasecmp(cache_type[i].name, name, len) == 0 && !cache_type[i].name[len])
            return lk_fail(scan->err, LK_E_FORMAT, "'%s' is not a recipe: %s", text,
                           cache_type[i].advice);
    lk_preset preset;
    for (size_t i = 0; lk_recipe_preset(i, &preset); i++) lk_closest_offer(&close, preset.name);
    for (size_t i = 0; lk_recipe_tuned(i, &preset); i++) lk_closest_offer(&close, preset.name);
    offer_codecs(&close);
    if (close.name)
        return lk_fail(scan->err, LK_E_FORMAT, "'%s' is not a recipe: did you mean %s?", text,
                       close.name);
    return lk_fail(scan->err, LK_E_FORMAT,
                   "'%s' is not a recipe: neither a preset, such as best-4, nor a codec, such as "
                   "rot4",
                   text);
}

const char *lk_recipe_closest_word(const char *word, size_t len) {
    struct lk_closest close = {.word = word, .len = len};
    offer_codecs(&close);
    for (size_t i = 0; i < N_KEYWORD; i++) lk_closest_offer(&close, keyword[i]);
    return close.name && close.distance > 0 ? close.name : NULL;
}
