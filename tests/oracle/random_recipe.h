/* Random recipes, sidecars and scripts of operations. */
#ifndef LK_TESTS_RANDOM_RECIPE_H
#define LK_TESTS_RANDOM_RECIPE_H

#include "plain_cache.h"

enum { MAX_RECIPE_PARTS = 16, MAX_PART = 160, MAX_OPS = 24 };

/* Parts of a recipe, without the ';' between them. */
struct random_recipe {
    char part[MAX_RECIPE_PARTS][MAX_PART];
    int n;
};

/* A recipe for the model. Most are valid; parsing and creating a session decide. */
void random_recipe(struct random *r, const struct plain_model *model, struct random_recipe *out);

/* An eager one that stores nothing but latents, of the sidecar's ranks and of K before RoPE. */
void random_latent_recipe(struct random *r, const struct plain_model *model,
                          struct random_recipe *out);

/* Join the parts: text [size]. */
void join_recipe(const struct random_recipe *recipe, char *text, size_t size);

/* Does a recipe need a sidecar, have codecs other than f16, evict by scores? */
bool needs_sidecar(const struct lk_recipe *recipe);
bool is_lossy(const struct lk_recipe *recipe);
bool is_ranked(const struct lk_recipe *recipe);

/* Does it have a residual whose rows are equalized, which waits for as many rows as statistics need
 * again when it is empty? Sizes in percent? */
bool has_equalized_residual(const struct lk_recipe *recipe);
bool has_percentages(const struct lk_recipe *recipe);

/* Bases of all sides and layers, and networks of LESS. */
struct random_sidecar {
    struct plain_basis *basis[N_PLAIN_BASIS]; /* [n_layer] */
    struct plain_less *less;                  /* [n_layer] */
    int n_layer;
};

/* Full-rank: every basis keeps all components, and up inverts down. */
struct random_sidecar random_sidecar(struct random *r, const struct plain_model *model,
                                     bool full_rank);
void free_random_sidecar(struct random_sidecar *sidecar);

/* Write it for a model with this fingerprint. False on failure. */
bool write_random_sidecar(const struct random_sidecar *sidecar, const struct plain_model *model,
                          uint64_t fingerprint, const char *path);

/* One operation on sessions. Sessions are numbered from 0; some numbers may be empty. */
enum op_kind {
    OP_PROMPT, /* make session a hold exactly n tokens: a new text */
    OP_STEPS,  /* evaluate n tokens one by one */
    OP_EVAL,   /* evaluate n tokens at once */
    OP_BATCH,  /* evaluate up to n tokens of every session in one pass */
    OP_FORK,   /* copy session a to a new one */
    OP_SAVE,   /* save session a, and load it into a new one that has to continue alike */
    OP_CUT,    /* make it hold all but its last n tokens, and one other token */
    OP_CLEAR,  /* empty it */
    N_OP
};

struct op {
    enum op_kind kind;
    int a, n;
    uint64_t seed; /* of its tokens */
};

/* A script for up to n_ctx tokens in a session. Returns the number of operations. */
int random_script(struct random *r, int n_ctx, bool long_prompts, struct op *out);

const char *op_name(enum op_kind kind);

#endif
