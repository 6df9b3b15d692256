/* The models of a server. Each has options, sessions and a scheduler of its own; what a request
 * needs of the model is in its struct lk_served.
 *
 *   on disk -> loading -> loaded -> leaving -> on disk
 *
 * A server with lk_server_opts.model has this one, which is always loaded. One with entries loads a
 * model when a request names it. A thread does that, one model after the other and in the order of
 * the requests. If there is no room for it among max_model_bytes, models without requests leave,
 * the least recently used one first; their sessions are stored if the server has a session
 * directory, and dropped if not. If all others are in use, requests for these that come later wait
 * too, so that there will be room.
 *
 * Loaded models compute in turn, a decode step or a chunk of a prefill each (struct lk_turn): all
 * of them use the same processors. */
#ifndef LK_SERVE_MODELS_H
#define LK_SERVE_MODELS_H

#include "serve/scheduler.h"

enum lk_served_state { LK_SERVED_ON_DISK, LK_SERVED_LOADING, LK_SERVED_LOADED, LK_SERVED_LEAVING };

struct lk_served_waiter;

struct lk_served {
    const struct lk_model_entry *entry; /* NULL: the server's only model */
    /* While the model is loaded: the server's options with what it changes. */
    struct lk_server_opts opts;
    lk_call_words call_words; /* opts points here */
    struct lk_scheduler *scheduler;
    struct lk_metrics metrics; /* also of earlier times when it was loaded */
    /* Under the lock of lk_models. */
    enum lk_served_state state;
    size_t n_user;                    /* requests that use it */
    struct lk_served_waiter *waiters; /* requests that wait for it */
    struct lk_api_error failure;      /* of the last attempt to load it */
    double last_used, keep_s;         /* time; seconds without requests after which it leaves:
                                         INFINITY: when there is no room, -1: the last one then */
    uint64_t n_load, n_unload;
};

struct lk_models;

/* Check that the model supports sessions with this recipe and opts->n_ctx tokens. Errors as for
 * lk_session_new and lk_plan_make. */
lk_status lk_server_check_recipe(const struct lk_server_opts *opts, const lk_recipe *recipe,
                                 lk_err *err);

/* Start the server's only model, or the thread that loads the entries. `opts` is borrowed. The
 * caller owns *out and ends it with lk_models_stop. The errors of lk_scheduler_start and
 * lk_server_check_recipe. */
lk_status lk_models_start(struct lk_models **out, const struct lk_server_opts *opts, lk_err *err);

size_t lk_models_count(const struct lk_models *models);
struct lk_served *lk_models_at(struct lk_models *models, size_t i);

/* Can models be loaded and unloaded? */
bool lk_models_are_several(const struct lk_models *models);

/* The model of this name, also with ollama's tag ":latest"; the only one has any name unless
 * strict_model. NULL: there is none. */
struct lk_served *lk_models_find(struct lk_models *models, const char *name);

/* The model of requests that name none: the one used last, or else the first. */
struct lk_served *lk_models_default(struct lk_models *models);

/* Load the model if it is not, and keep it until lk_models_release. `keep_waiting` is called about
 * four times a second meanwhile; if it returns false, the result is false and error->status is 0.
 * False otherwise: see `error`. */
bool lk_models_use(struct lk_models *models, struct lk_served *served,
                   bool (*keep_waiting)(void *user), void *user, struct lk_api_error *error);

/* The same only if it is loaded now. False: it is not. */
bool lk_models_use_loaded(struct lk_models *models, struct lk_served *served);
void lk_models_release(struct lk_models *models, struct lk_served *served);

/* Set served->keep_s. With 0 a loaded model leaves when no request uses it. */
void lk_models_keep(struct lk_models *models, struct lk_served *served, double keep_s);

/* Seconds until it leaves if no request uses it; INFINITY: only when there is no room. */
double lk_models_left(struct lk_models *models, struct lk_served *served);

/* Its state now. */
enum lk_served_state lk_models_state(struct lk_models *models, struct lk_served *served);

/* Properties of the model and the context of its sessions, loaded or not. */
lk_model_info lk_served_info(const struct lk_served *served);
const char *lk_served_id(const struct lk_served *served);
int32_t lk_served_n_ctx(const struct lk_served *served);

/* Append the metrics of all models together with `server`'s, and loads and bytes by model. */
void lk_models_print_metrics(struct lk_models *models, const struct lk_metrics *server,
                             struct lk_buf *out);

/* Fail all requests, store all sessions, and load nothing from now on. Adds to *stored. */
void lk_models_close(struct lk_models *models, struct lk_stored *stored);

/* Close, and free everything. NULL is allowed. */
void lk_models_stop(struct lk_models *models);

#endif
