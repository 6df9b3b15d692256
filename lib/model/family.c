/* Looks a family up by its architecture name. */
#include "model/family.h"

#include "base/closest.h"

#include <string.h>

static const struct lk_family *const families[] = {
    &lk_family_llama,    &lk_family_qwen2,    &lk_family_qwen3,     &lk_family_qwen3moe,
    &lk_family_gemma2,   &lk_family_gemma3,   &lk_family_gemma4,    &lk_family_phi3,
    &lk_family_smollm3,  &lk_family_mistral3, &lk_family_granite,   &lk_family_olmo2,
    &lk_family_stablelm, &lk_family_falcon,   &lk_family_bloom,     &lk_family_gpt2,
    &lk_family_gpt_oss,  &lk_family_qwen35,   &lk_family_deepseek2, &lk_family_lfm2,
};

const struct lk_family *lk_family_find(const char *arch) {
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        for (const char *const *name = families[i]->arch; *name; name++)
            if (strcmp(*name, arch) == 0) return families[i];
    }
    return NULL;
}

const struct lk_family *lk_family_nearest(const char *arch, const char **name) {
    struct lk_closest close = {.word = arch, .len = strlen(arch)};
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        for (const char *const *known = families[i]->arch; *known; known++)
            lk_closest_offer(&close, *known);
    *name = close.name;
    return close.name ? lk_family_find(close.name) : NULL;
}

const char *lk_family_names(void) {
    return "llama, qwen2, qwen3, qwen3moe, qwen35, qwen35moe, qwen3next, gemma2, gemma3, gemma4, "
           "phi3, smollm3, mistral3, granite, granitemoe, granitehybrid, olmo2, stablelm, falcon, "
           "bloom, gpt2, gpt-oss, "
           "deepseek2, lfm2, lfm2moe";
}
