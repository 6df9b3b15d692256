/* Start and stop of the server: checks the options, starts the scheduler and the HTTP listener. */
#include "serve/server.h"

#include "serve/call_store.h"
#include "serve/http.h"
#include "serve/response_store.h"

#include <stdlib.h>
#include <time.h>

struct lk_server_opts lk_server_defaults(void) {
    return (struct lk_server_opts){.n_rank = 1,
                                   .host = "127.0.0.1",
                                   .port = 8080,
                                   .n_predict = 1 << 20,
                                   .n_parallel = 8,
                                   .n_queue = 64,
                                   .n_checkpoint = 64,
                                   .n_connection = 256,
                                   .n_per_address = 64,
                                   .header_s = 10,
                                   .body_s = 10,
                                   .idle_s = 60,
                                   .send_s = 60,
                                   .max_body = 8u << 20,
                                   .max_bytes = 1u << 30,
                                   .request_bytes = 256u << 20,
                                   .queue_s = 60,
                                   .load_s = 300,
                                   .time_s = 600,
                                   .slice_s = 0.05,
                                   .seed = -1};
}

static lk_status check_server_opts(const struct lk_server_opts *o, lk_err *err) {
    bool complete = o->n_entry ? o->load && o->unload : o->model && o->id && o->n_recipe;
    if (!complete)
        return lk_fail(err, LK_E_ARG, "a server requires a model, a model name and a recipe");
    if (o->port < 0 || o->port > 65535)
        return lk_fail(err, LK_E_ARG, "port %d is invalid; give 1 to 65535, or 0 for any free port",
                       o->port);
    if (o->n_parallel < 1 || o->n_parallel > LK_MAX_PARALLEL)
        return lk_fail(err, LK_E_ARG, "cannot run %zu answers in parallel; give 1 to %d",
                       o->n_parallel, LK_MAX_PARALLEL);
    if ((!o->n_entry && o->n_ctx < 2) || o->n_connection < 1 || o->n_per_address < 1 ||
        o->max_body < 1 || o->n_queue < 1 || o->n_predict < 1)
        return lk_fail(err, LK_E_ARG,
                       "the limits for context, connections, queue, body and answer must not be 0");
    return LK_OK;
}

/* Enough to keep up with a model; more would take its cores. */
enum { N_WORKER = 2 };

lk_status lk_server_start(struct lk_server **out, const struct lk_server_opts *opts, lk_err *err) {
    lk_status status = check_server_opts(opts, err);
    if (status) return status;
    struct lk_server *s = calloc(1, sizeof *s);
    if (!s) return lk_fail(err, LK_E_NOMEM, "out of memory: cannot start the server");
    s->opts = *opts;
    s->listen_fd = -1;
    s->started = (int64_t)time(NULL);
    lk_budget_init(&s->budget, s->opts.request_bytes, &s->metrics);
    s->opts.responses = lk_response_store_new();
    s->opts.calls = lk_call_store_new();
    if (!s->opts.responses || !s->opts.calls)
        status = lk_fail(err, LK_E_NOMEM, "out of memory: cannot start the server");
    if (!status) status = lk_workers_start(&s->workers, N_WORKER, err);
    if (!status) status = lk_models_start(&s->models, &s->opts, err);
    if (!status) status = lk_http_start(s, err);
    if (status)
        lk_server_stop(s);
    else
        *out = s;
    return status;
}

int lk_server_port(const struct lk_server *server) { return server->port; }

struct lk_stored lk_server_close(struct lk_server *s) {
    lk_http_close(s);
    lk_workers_close(s->workers);
    lk_models_close(s->models, &s->stored);
    return s->stored;
}

bool lk_server_stop(struct lk_server *s) {
    const double grace_s = 5;
    if (!s) return true;
    /* The sessions first: a connection's thread may still work for a long time. */
    if (s->models) lk_server_close(s);
    if (!lk_http_stop(s, grace_s)) return false;
    lk_workers_stop(s->workers);
    lk_models_stop(s->models);
    lk_response_store_free(s->opts.responses);
    lk_call_store_free(s->opts.calls);
    free(s);
    return true;
}
