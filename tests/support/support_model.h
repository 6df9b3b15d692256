/* Tiny random models, sessions on them and tokens for them. What cannot be had fails the test with the reason. */
#ifndef LK_TESTS_SUPPORT_MODEL_H
#define LK_TESTS_SUPPORT_MODEL_H

#include "lowkey.h"
#include "tiny_gguf.h"

#include <stdint.h>

/* The model, to be freed. Its file was one of its own in TMPDIR, or in /tmp, and is gone. `opts` may be NULL. */
lk_model *open_tiny(const struct tiny_spec *spec, const lk_model_opts *opts);

/* The preset of that name with a context of at least n_ctx, as a model that computes with n_threads; to be freed. */
lk_model *open_preset(const char *preset, int n_ctx, int n_threads);

/* A session of up to n_ctx tokens (0: the model's context), to be freed, and after it the recipe that was made of the text. */
lk_session *open_session(lk_model *model, const char *text, int n_ctx, lk_recipe **recipe);

/* n tokens of the model's vocabulary: the same ones for the same seed and size of the vocabulary. */
void random_tokens(int32_t *tok, int n, const lk_model *model, uint64_t seed);

#endif
