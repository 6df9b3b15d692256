/* Tiny models, and sessions and tokens for them. If something cannot be made, the test fails with
 * the reason. */
#ifndef LK_TESTS_SUPPORT_MODEL_H
#define LK_TESTS_SUPPORT_MODEL_H

#include "lowkey_cluster.h"
#include "tiny_gguf.h"

#include <stdint.h>

/* Write the model to a temporary file, open it, and remove the file. `opts` may be NULL. Free the
 * model with lk_model_free. */
lk_model *open_tiny(const struct tiny_spec *spec, const lk_model_opts *opts);

/* The same on all ranks of a cluster; NULL: without one. */
lk_model *open_tiny_cluster(const struct tiny_spec *spec, const lk_model_opts *opts,
                            lk_cluster *cluster);

/* Open the preset with that name, with a context of at least n_ctx tokens and n_threads threads. */
lk_model *open_preset(const char *preset, int n_ctx, int n_threads);

/* Like open_preset, with the sidecar that write_sidecar makes from `seed` (support_sidecar.h). */
lk_model *open_with_sidecar(const char *preset, int n_ctx, int n_threads, uint64_t seed);

/* The same with other options, whose sidecar is not read. */
lk_model *open_with_sidecar_by(const char *preset, int n_ctx, lk_model_opts opts, uint64_t seed);

/* A new session of up to n_ctx tokens (0: the model's context). The recipe is parsed from `text`.
 * Free the session first, then *recipe. */
lk_session *open_session(lk_model *model, const char *text, int n_ctx, lk_recipe **recipe);

/* Both sessions hold equally many tokens, and the last one's logits have equal bits; otherwise the
 * test fails, and names `what`. */
void assert_same_logits(const lk_session *a, const lk_session *b, const char *what);

/* Fill tok [n] with random tokens of the model's vocabulary. They depend only on the seed and the
 * size of the vocabulary. */
void random_tokens(int32_t *tok, int n, const lk_model *model, uint64_t seed);

/* A change of one key in a tiny model's file, and a part of the error that it must give. */
struct metadata_change {
    const char *key; /* without the architecture */
    int value;       /* -1: remove the key */
    const char *reason;
};

/* Open the preset's file with each change alone: it must be refused for that reason. */
void expect_refused(const char *preset, const struct metadata_change *change, size_t n);

#endif
