/* The models of `lowkey serve`: their files, recipes and names. One is opened at the start; several
 * are opened when a request names them. Functions that return int return a STATUS_*, after printing
 * an error. */
#ifndef LK_LOWKEY_SERVE_MODELS_H
#define LK_LOWKEY_SERVE_MODELS_H

#include "common.h"
#include "serve/server.h"

/* The options of the command. */
struct serve_args {
    struct model_args model;
    struct string_list file; /* of --model */
    const char *folder;      /* of --models */
    struct string_list kv, allow_kv, name, allow_host;
    struct auto_args auto_kv;
    const char *host, *key_file, *draft, *origin, *session_dir, *chat_template;
    int64_t port, ctx, checkpoints, checkpoint_memory, n, seed, parallel, queue, connections,
        per_address, cache_limit, store_limit, max_body, request_memory, max_memory;
    double queue_s, time_s, slice_ms, load_s; /* load_s: -1 if it is not given */
    int32_t n_here; /* not an option: ranks that share this machine's memory */
    bool log, parse_special, sandbox, strict_model;
};

/* A model that is open, with the recipes that its requests may select. */
struct serve_model {
    lk_model *model;
    struct recipes recipes;
    bool from_presets[MAX_LIST];       /* added by "presets": dropped if the model cannot have it */
    bool allow_tuned;                  /* --allow-kv presets */
    bool is_auto;                      /* recipes.item[0] depends on the model */
    const char *recipe_name[MAX_LIST]; /* of stored recipes; else NULL */
    char *name[MAX_LIST];              /* [n_name] its id and aliases; owned */
    size_t n_name;
};

/* Parse the recipes. Those that depend on the model are added when it is open. */
int serve_recipes_open(const struct serve_args *args, struct serve_model *to);

/* Open --model, and set what `opts` has of it. */
int serve_model_open(const struct serve_args *args, struct serve_model *to,
                     struct lk_server_opts *opts);
void serve_model_free(struct serve_model *model);

/* Several models. */
struct serve_models {
    const struct serve_args *args;
    struct lk_model_entry *entry; /* [n] owned, like what its members point to */
    struct serve_model *open;     /* [n] */
    size_t n;
};

/* Are several models asked for? */
bool serve_models_are_several(const struct serve_args *args);

/* Find the files, read their headers, and set what `opts` has of several models. Files that lowkey
 * cannot run are left out with a line. `opts` has max_bytes: of a model's caches. */
int serve_models_find(const struct serve_args *args, struct serve_models *to,
                      struct lk_server_opts *opts);
void serve_models_free(struct serve_models *models);

#endif
