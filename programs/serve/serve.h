/* The server: HTTP in OpenAI's form in front of one model.
 *
 *   client --http--> route --> ask (what is wanted, checked) --> call --> scheduler --> sessions
 *   client <--sse/json-- route <-- events, bounded <-----------------------+
 *
 * One thread, the scheduler's, owns the model's sessions. Each connection has a thread, which reads the
 * request, waits for events and writes them. A client that reads slowly fills its queue and is passed
 * over until there is room; one that is gone ends its work. */
#ifndef LK_SERVE_SERVE_H
#define LK_SERVE_SERVE_H

#include "base/err.h"

struct lk_serve_opts {
    lk_model *model; /* outlives the server, as does all below */
    const char *id;  /* the model's name for clients */
    const lk_recipe *const *
        recipe; /* [n_recipe] those that may be asked for by their text; the first is the default */
    size_t n_recipe;
    const char *host;       /* address to listen on: "127.0.0.1" */
    int port;               /* 0: any free one */
    const char *const *key; /* [n_key] API keys; none: no key is asked for */
    size_t n_key;
    const char *origin;      /* web origin that may use the server besides its own; NULL: none */
    int32_t n_ctx;           /* most tokens of a session */
    size_t n_predict;        /* most tokens of an answer */
    size_t n_parallel;       /* most answers made at once */
    size_t n_queue;          /* most answers waiting to be begun */
    size_t n_connection;     /* most connections */
    size_t max_body;         /* bytes of a request */
    uint64_t max_bytes;      /* of all sessions' caches and scratch together */
    double queue_s;          /* longest wait to be begun */
    double time_s;           /* longest time to work on an answer */
    double slice_s;          /* while a prompt is read, others decode at least this often */
    const char *session_dir; /* folder of saved sessions; NULL: no file is read or written */
    uint64_t store_bytes;    /* most that the server keeps there by itself; 0: nothing */
    void (*log)(void *user,
                const char *line); /* a line for each request; NULL: none; from several threads */
    void (*note)(void *user, const char *line); /* what the operator should know; likewise */
    void *user;
};

/* Defaults for everything but the model, its name and the recipes. */
struct lk_serve_opts lk_serve_defaults(void);

/* Can the model have sessions of this recipe and opts->n_ctx tokens? Errors as lk_session_new and lk_plan_make. */
lk_status lk_serve_try(const struct lk_serve_opts *opts, const lk_recipe *recipe, lk_err *err);

struct lk_server;

/* Listen and serve on threads of its own. *out is owned: lk_server_stop. LK_E_ARG for an address that is
 * none, LK_E_IO where it cannot be listened on; for a recipe what lk_serve_try says. */
lk_status lk_server_start(struct lk_server **out, const struct lk_serve_opts *opts, lk_err *err);

/* The port it listens on. */
int lk_server_port(const struct lk_server *server);

/* Take no more connections, end the work under way with an error to its clients, and free everything. */
void lk_server_stop(struct lk_server *server);

#endif
