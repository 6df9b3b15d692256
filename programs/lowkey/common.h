/* What several verbs share: the options for model, session and sampling, and what is made of them. */
#ifndef LK_LOWKEY_COMMON_H
#define LK_LOWKEY_COMMON_H

#include "args.h"
#include "lowkey.h"

struct model_args {
    const char *model, *weights, *kernels, *sidecar;
    int64_t threads;
    bool no_mmap, no_repack; /* no_repack: no option, for verbs that read weights */
};

struct opt_group model_options(struct model_args *args);

/* Each of these returns a program status, STATUS_OK or what to end with after a message. */

/* The library's options, without a progress. */
int model_options_read(const struct model_args *args, lk_model_opts *out);

/* Open --model, or the default model where none is given; `fetch`: download that one if need be. */
int model_open(const struct model_args *args, bool fetch, lk_model **out);

/* A preset, a recipe, or the name of a file that holds one. */
int recipe_open(const char *kv, lk_recipe **out);

/* Recipes of all --kv, or of `fallback` where none is given. Free with recipes_free. */
struct recipes {
    lk_recipe *item[LIST_MOST];
    size_t n;
};
int recipes_open(const struct texts *kv, const char *fallback, struct recipes *out);
void recipes_free(struct recipes *recipes);

/* The only --kv of a verb that takes one. */
int recipe_only(const struct verb *verb, const struct texts *kv, lk_recipe **out);

struct session_args {
    struct texts kv;
    int64_t ctx, max_memory;
    bool stream;
};

struct opt_group session_options(struct session_args *args);

/* The progress is of reading prompts. */
int session_open(const struct session_args *args, lk_model *model, const lk_recipe *recipe,
                 lk_progress progress, void *user, lk_session **out);

struct sampler_args {
    double temperature, top_p, min_p, repeat_penalty;
    int64_t top_k, repeat_last_n, seed;
    bool greedy, ignore_eos;
    const char *grammar_file;
};

struct sampler_args sampler_args_default(void);
struct opt_group sampler_options(struct sampler_args *args);
int sampler_open(const struct sampler_args *args, const lk_model *model, lk_sampler **out);

/* The model's name from its file, fit to print. To be freed. */
char *model_name(const lk_model *model);

/* Print a library error; returns the status to end with. */
int complain_of(const lk_err *err);

enum { PROMPT_BYTES_MOST = 256 * 1024 * 1024 };

/* What run and chat keep their cache by: nearer to the full cache than the noise of quantised weights. */
#define DEFAULT_RECIPE "best-4"

#endif
