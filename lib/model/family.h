/* The model families that lowkey supports. */
#ifndef LK_MODEL_FAMILY_H
#define LK_MODEL_FAMILY_H

#include "model/net.h"

/* The family with the architecture name `arch`, or NULL. */
const struct lk_family *lk_family_find(const char *arch);

/* The family with the most similar architecture name, which *name is set to; NULL if none is
 * similar. */
const struct lk_family *lk_family_nearest(const char *arch, const char **name);

/* "llama, qwen2, ...", for messages. Static. */
const char *lk_family_names(void);

/* Each is defined in family_NAME.c. */
extern const struct lk_family lk_family_llama, lk_family_qwen2, lk_family_qwen3, lk_family_qwen3moe,
    lk_family_gemma2, lk_family_gemma3, lk_family_gemma4, lk_family_phi3, lk_family_smollm3,
    lk_family_mistral3, lk_family_granite, lk_family_olmo2, lk_family_stablelm, lk_family_falcon,
    lk_family_bloom, lk_family_gpt2, lk_family_gpt_oss, lk_family_qwen35, lk_family_deepseek2,
    lk_family_lfm2;

#endif
