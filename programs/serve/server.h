/* The server: models behind an OpenAI-compatible HTTP API.
 *
 *   client --> http -> route -> openai_chat -> request -> completion -> scheduler -> slots
 *   client <-- http <- sse or JSON <- response <- event ring <- detokenizer <--+
 *
 * Each loaded model has a scheduler (models.h), whose thread owns all its sessions. Every
 * connection has a thread of its own, which receives the request, hands it to a worker, waits for
 * events and writes them. A client that reads slowly fills its event ring; its jobs are skipped
 * until there is room again. When a client disconnects, its jobs end.
 *
 * Nothing that a client sends decides how much memory, time or room the server uses; the limits do.
 * A request passes these stations, and each refuses with a true reason before the next one spends
 * anything:
 *
 *   connections.c  holds every open connection with a state and a deadline. It shuts down what is
 *                  late, and the least useful connection if there are too many.
 *   http.c         checks form, path, key and origin when the headers are there, and charges the
 *                  announced body.
 *   budget.c       is a ledger with a limit. Everything that a request holds besides its cache is
 *                  charged to it in advance. Prices are upper bounds, cheaper to compute than the
 *                  work.
 *   models.c       finds the model, and loads it if it is not.
 *   workers.c      runs what needs a processor and no model: parsing, tokenizing, grammars. Each is
 *                  bounded by its input's length, and tokenizing by the tokens that can be used.
 *   scheduler.c    queues, admits by fair shares, and reserves the cache. running.c gives each
 *                  answer one token per step and parks an answer that no client reads.
 *
 * Endpoints of other APIs are translations: a foreign body becomes the JSON of an OpenAI chat and
 * goes through the same parser, and events become the blocks of that API (answer.h). A grammar is
 * the client's program, so its recognizer counts steps; an answer that exceeds them ends alone.
 *
 * A second thread writes and reads sessions on disk. A session belongs to it until the scheduler
 * takes it back. */
#ifndef LK_SERVE_SERVER_H
#define LK_SERVE_SERVER_H

#include "base/err.h"
#include "lowkey_serve.h"

/* A model that is loaded when a request names it. */
struct lk_model_entry {
    const char *id;                     /* its name in the API */
    const char *path;                   /* of its file; errors for clients do not show it */
    lk_model_info info;                 /* of its header */
    int32_t n_ctx;                      /* max tokens of a session */
    uint64_t weight_bytes, cache_bytes; /* that it needs, at most */
};

struct lk_turn; /* see scheduler.h */

struct lk_server_opts {
    lk_model *model;          /* must outlive the server, like everything below */
    int32_t n_rank;           /* processes that divide the caches, or 1 (lowkey_cluster.h) */
    const char *id;           /* name of the model in the API */
    const char *const *alias; /* [n_alias] other names of it, which /v1/models lists too */
    size_t n_alias;
    /* [n_entry] models instead of `model`; 0: there is only that one. `load` is called by one
     * thread: it opens a model and sets what opts has of it, from `model` to `recipe_name`, n_ctx
     * and max_bytes. `unload` frees that. Together the loaded ones have max_model_bytes. */
    const struct lk_model_entry *entry;
    size_t n_entry;
    lk_status (*load)(void *load_user, size_t i, lk_progress progress, void *progress_user,
                      struct lk_server_opts *opts, lk_err *err);
    void (*unload)(void *load_user, size_t i);
    void *load_user; /* of these two */
    uint64_t max_model_bytes;
    double load_s;        /* max time that a request waits for its model */
    struct lk_turn *turn; /* of the loaded models; made by lk_server_start. NULL: there is one */
    bool strict_model; /* refuse requests for models with other names; otherwise any name will do */
    /* [n_recipe] recipes that requests may select by their text; the first is the default */
    const lk_recipe *const *recipe;
    /* [n_recipe] their names in replies and requests, or NULL for the text; NULL: all NULL */
    const char *const *recipe_name;
    size_t n_recipe;
    const char *host;       /* address to listen on, e.g. "127.0.0.1" */
    int port;               /* 0: any free port */
    const char *const *key; /* [n_key] API keys; n_key 0: no key is required */
    size_t n_key;
    const char *const *allowed_host; /* [n_allowed_host] names that Host may have, see auth.h */
    size_t n_allowed_host;
    const char *origin;  /* allowed web origin besides the server's own; "*": any; NULL: none */
    int32_t n_ctx;       /* max tokens of a session */
    size_t n_predict;    /* max tokens of an answer */
    int64_t seed;        /* of requests that give none; -1: a random one for each */
    size_t n_parallel;   /* max jobs that run at the same time */
    size_t n_queue;      /* max jobs that wait */
    size_t n_checkpoint; /* of each session (lk_session_opts) */
    uint64_t checkpoint_bytes; /* the same */
    size_t n_connection;       /* max open connections */
    size_t n_per_address;   /* max open connections of an address, except for loopback addresses */
    double header_s;        /* max time from the start of a request to the end of its headers */
    double body_s;          /* max time of a body, plus 1 second per 64 KiB received */
    double idle_s;          /* max time between two requests of a connection */
    double send_s;          /* max time without a byte of a reply, see serve/connections.h */
    size_t max_body;        /* max bytes of a request body */
    uint64_t max_bytes;     /* max bytes of all sessions' caches and scratch memory, on a rank */
    uint64_t request_bytes; /* max bytes of all requests in work, without caches */
    double queue_s;         /* max time in the queue */
    double time_s;          /* max time spent on an answer, prefill included */
    double slice_s;         /* max time between decode steps while a prompt is prefilled */
    const lk_call_words
        *call_words; /* of the model; made with its scheduler. NULL: the usual ones */
    /* Earlier responses that requests may continue; made by lk_server_start. */
    struct lk_response_store *responses;
    struct lk_call_store *calls; /* of earlier answers; made by lk_server_start */
    bool drafts;                 /* decode with drafts, if the recipe allows it: lk_drafter_new */
    bool parse_special;          /* prompts of /v1/completions may spell control tokens */
    const char *session_dir;     /* directory of saved sessions; NULL: no file is read or written */
    uint64_t store_bytes;        /* max bytes that the server stores there on its own; 0: none */
    /* Called with one line per request, from several threads; NULL: no log. */
    void (*log)(void *user, const char *line);
    /* Called with messages for the operator, from several threads; may be NULL. */
    void (*note)(void *user, const char *line);
    /* Called by the scheduler's thread between its steps, so that a watchdog notices if it is
     * stuck; may be NULL. */
    void (*beat)(void *user);
    void *user;
};

/* Defaults for everything except the model or the entries, its id, the recipes and n_ctx. */
struct lk_server_opts lk_server_defaults(void);

struct lk_server;

/* Start a server that runs on its own threads. The caller owns *out and frees it with
 * lk_server_stop. LK_E_ARG: an option or the address is invalid. LK_E_IO: cannot listen on the
 * address. For a recipe the errors of lk_server_check_recipe. */
lk_status lk_server_start(struct lk_server **out, const struct lk_server_opts *opts, lk_err *err);

/* The port that the server listens on. */
int lk_server_port(const struct lk_server *server);

/* What became of the sessions in memory. */
struct lk_stored {
    size_t n_stored, n_lost; /* written to the store; should have been written */
    lk_err why;              /* of the last one that was lost */
};

/* Refuse new connections and requests, fail all running requests, and store all sessions. Clients
 * may still be receiving their replies. */
struct lk_stored lk_server_close(struct lk_server *server);

/* Close, let clients receive their replies for up to 5 seconds, and free everything. False if a
 * request cannot be ended. Its thread then still uses the server and the model, so the process must
 * exit without freeing them. NULL is allowed. */
bool lk_server_stop(struct lk_server *server);

#endif
