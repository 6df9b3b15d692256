/* What several commands share: the options for the model, the cache and sampling, and opening what
 * they name. Functions that return int return a STATUS_*, after printing an error if it is not
 * STATUS_OK. */
#ifndef LK_LOWKEY_COMMON_H
#define LK_LOWKEY_COMMON_H

#include "args.h"
#include "base/buf.h"
#include "lowkey_cluster.h"

/* The completions and the help of --kv for commands that take one recipe. */
#define KV_WORDS "RECIPE auto auto-3 auto-2"
#define KV_HELP                                                                                    \
    "preset, recipe, file with a recipe, or auto, auto-3, auto-2 (default auto: tuned for the "    \
    "model, or best-4; see 'lowkey recipes')"

enum { MAX_PROMPT_BYTES = 256 * 1024 * 1024 };

/* Print a library error; STATUS_INTERRUPTED without a message if it is LK_E_CANCELLED. */
int print_lk_error(const lk_err *err);

/* ---- model ---- */

struct model_args {
    const char *model, *weights, *kernels, *sidecar, *lora, *device, *cache_device;
    double lora_scale; /* 0: 1 */
    int64_t threads;
    int64_t layers;      /* on the device; 0: all */
    int64_t stages;      /* 0: --stages is not given, one */
    int64_t n_ctx;       /* not an option: set by commands with a context length; 0: as trained */
    lk_cluster *cluster; /* not an option: of the command; NULL: this process is alone */
    bool no_mmap;
    bool no_repack;   /* not an option: set by commands that read weights */
    bool header_only; /* not an option: set by commands that need no weights */
};

/* What a command does with the model: says which of the options have an effect, or are needed. */
enum model_use {
    MODEL_RUN = 1,         /* it runs, perhaps on several ranks */
    MODEL_RUN_ALONE = 2,   /* it runs in this process */
    MODEL_FITTED = 4,      /* a recipe or a sidecar is fitted to it and its sidecar */
    MODEL_PLANNED = 8,     /* its memory is computed */
    MODEL_SHOWN = 16,      /* it is described */
    MODEL_CALIBRATED = 32, /* bases are computed for it */
};
struct opt_group model_options(struct model_args *args, enum model_use use);

/* The library's options, without a progress callback. */
int model_opts_from_args(const struct model_args *args, lk_model_opts *out);

/* Open --model, or the default model. `fetch`: download the default model if it is missing. */
int model_open(const struct model_args *args, bool fetch, lk_model **out);

/* The model's name from its file, safe to print: free it. */
char *model_name(const lk_model *model);

/* ---- texts ---- */

struct tokens {
    int32_t *at; /* [n] owned: free */
    size_t n;
};

/* Read a text file, which must not be empty ("-": standard input). Free with lk_buf_free. */
int read_text(const char *path, struct lk_buf *text);

/* The tokens of a text for lk_compare, after the begin-of-sequence token if the model has one.
 * Control tokens that the text happens to spell ("<unk>") stay text. */
int tokenize_text(const lk_model *model, const struct lk_buf *text, struct tokens *out);

/* Both at once. */
int read_tokens(const lk_model *model, const char *path, struct tokens *out);

/* Append different made-up sentences, enough for n tokens. */
void make_sentences(struct lk_buf *text, size_t n);

/* ---- recipes ---- */

/* Parse a preset, a recipe, or a file that contains a recipe. */
int recipe_open(const char *kv, lk_recipe **out);

/* A recipe's text for a line of prose: if it is long, its beginning and "...". */
enum { RECIPE_LABEL = 80 };
const char *recipe_label(const lk_recipe *recipe, char buf[RECIPE_LABEL]);

/* 4 for "auto" and "auto-4", 3 and 2 for "auto-3" and "auto-2", whose recipes depend on the model
 * (auto_recipe.h); 0 for other recipes. */
int auto_size(const char *kv);

/* The recipes of all --kv options, or `fallback` if there are none. Free with recipes_free. */
struct recipes {
    lk_recipe *item[MAX_LIST];  /* NULL: 'auto', until auto_recipes_open */
    const char *name[MAX_LIST]; /* for tables: a file's name, or the text; borrowed */
    size_t n;
};
int recipes_open(const struct string_list *kv, const char *fallback, struct recipes *out);
void recipes_free(struct recipes *recipes);

/* The recipe of a command that takes one --kv. *out stays NULL if there is none or it is 'auto';
 * then auto_recipe_open has to follow when the model is open. */
int open_single_recipe(const struct command *command, const struct string_list *kv,
                       lk_recipe **out);

/* ---- session ---- */

/* What 'auto' in --kv, or no --kv, stands for (auto_recipe.h). */
struct auto_args {
    int64_t memory; /* MiB of the cache at n_ctx tokens; 0: the size of a preset */
    bool tune;      /* tune before the start, unless it was done */
};
struct opt memory_option(struct auto_args *args);
struct opt tune_option(struct auto_args *args);

struct session_args {
    struct string_list kv;
    struct auto_args auto_kv;
    int64_t ctx, max_memory;
    bool stream;
    int32_t n_checkpoint; /* not an option: as in lk_session_opts */
};

struct opt_group session_options(struct session_args *args);

/* Limit in bytes for cache and scratch of a rank: its share of --max-memory, or of the memory that
 * is free now. 0: none. */
uint64_t session_limit(const struct session_args *args);

/* Print a warning if n_ctx tokens are more than the model was trained for. */
void warn_beyond_training(const lk_model *model, int64_t n_ctx);

/* `progress` is called during prefill. */
int session_open(const struct session_args *args, lk_model *model, const lk_recipe *recipe,
                 lk_progress progress, void *user, lk_session **out);

/* ---- sampling ---- */

struct sampler_args {
    double temperature, top_p, min_p, repeat_penalty;
    int64_t top_k, repeat_last_n, seed;
    bool greedy, ignore_eos;
    const char *grammar_file;
};

/* Nothing is given yet: numbers are NaN or negative. */
struct sampler_args sampler_args_default(void);
struct opt_group sampler_options(struct sampler_args *args);

/* Set what was not given to what the model file recommends, else to the defaults
 * (lk_model_sampling). To be called before sampler_open. */
void sampler_args_complete(struct sampler_args *args, const lk_model *model);
int sampler_open(const struct sampler_args *args, const lk_model *model, lk_sampler **out);

/* ---- output files ---- */

/* Print an error and return STATUS_ERROR if a file cannot be written at `path`: for a check before
 * long work. Leaves nothing behind. */
int check_writable(const char *path);

/* ---- memory: errors that name the need, the limit and what would fit ---- */

/* Print why memory ran out for a session that was to hold n_tok tokens. Errors other than
 * LK_E_NOMEM are printed as they are. Returns a STATUS_*. */
int print_memory_error(const struct session_args *args, const lk_model *model,
                       const lk_recipe *recipe, size_t n_tok, const lk_err *err);

/* Print an error and return STATUS_ERROR if n_tok tokens cannot be evaluated, because their cache
 * alone is larger than --max-memory or the free memory: before minutes of prefill. */
int check_memory(const struct session_args *args, const lk_model *model, const lk_recipe *recipe,
                 size_t n_tok);

#endif
