/* Looks a family up by its architecture name. */
#include "model/family.h"

#include <string.h>

static const struct lk_family *const families[] = {
    &lk_family_llama,  &lk_family_qwen2,  &lk_family_qwen3, &lk_family_qwen3moe,
    &lk_family_gemma3, &lk_family_falcon, &lk_family_bloom, &lk_family_gpt2,
};

const struct lk_family *lk_family_find(const char *arch) {
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (strcmp(families[i]->arch, arch) == 0) return families[i];
    }
    return NULL;
}

const char *lk_family_names(void) {
    return "llama, qwen2, qwen3, qwen3moe, gemma3, falcon, bloom, gpt2";
}
