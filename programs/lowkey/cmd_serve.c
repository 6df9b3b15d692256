/* lowkey serve: the model over HTTP. */
#include "available.h"
#include "commands.h"
#include "common.h"
#include "say.h"
#include "serve/serve.h"
#include "text.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { KEY_MOST = 256 };

struct serve_args {
    struct model_args model;
    struct texts kv, allow_kv;
    const char *host, *key_file, *origin, *name, *session_dir;
    int64_t port, ctx, n, parallel, queue, connections, cache_limit, store_limit, max_body;
    double queue_s, time_s, slice_ms;
    bool log;
};

struct serve {
    lk_model *model;
    struct recipes recipes;
    bool preset[LIST_MOST]; /* of the recipes: nobody named it, so it may be left out */
    struct text keys;
    const char *key[KEY_MOST];
    size_t n_key;
    char *id;
};

static enum args_result read_args(const struct verb *verb, int argc, char **argv,
                                  struct serve_args *a) {
    const struct opt_group groups[] = {
        {"Network",
         {
             {0, "host", "ADDRESS", "address to listen on (default 127.0.0.1: this machine only)",
              OPT_TEXT, &a->host, 0, 0},
             {0, "port", "N", "port (default 8080); 0: any free one", OPT_INT, &a->port, 0, 65535},
             {0, "api-key-file", "FILE", "API keys, one a line; without it no key is asked for",
              OPT_TEXT, &a->key_file, 0, 0},
             {0, "allow-origin", "ORIGIN",
              "web origin whose pages may use the server (default: none but its own)", OPT_TEXT,
              &a->origin, 0, 0},
             {0, "connections", "N", "most connections (default 256)", OPT_INT, &a->connections, 1,
              4096},
             {0, "max-body", "MIB", "largest request (default 8)", OPT_INT, &a->max_body, 1, 1024},
             {0, "name", "NAME", "what clients call the model (default: its own name)", OPT_TEXT,
              &a->name, 0, 0},
             {0, "log", NULL, "a line for each request, on stderr", OPT_FLAG, &a->log, 0, 0},
         }},
        model_options(&a->model),
        {"Cache",
         {
             {'k', "kv", "RECIPE",
              "what caches are kept by (default " DEFAULT_RECIPE "; see 'lowkey recipes')",
              OPT_TEXTS, &a->kv, 0, 0},
             {0, "allow-kv", "RECIPE",
              "what requests may ask for besides, or 'presets' for all of these", OPT_TEXTS,
              &a->allow_kv, 0, 0},
             {'c', "ctx", "N", "most tokens of a session (default: the model's trained length)",
              OPT_INT, &a->ctx, 2, 1 << 24},
             {0, "cache-limit", "MIB",
              "of all sessions together (default: half of what the system has free)", OPT_INT,
              &a->cache_limit, 1, 1 << 24},
         }},
        {"Disk",
         {
             {0, "session-dir", "DIR",
              "folder of saved sessions; without it no file is read or written", OPT_TEXT,
              &a->session_dir, 0, 0},
             {0, "store-limit", "MIB",
              "of sessions kept there to go on with (default 4096); 0: none", OPT_INT,
              &a->store_limit, 0, 1 << 24},
         }},
        {"Work",
         {
             {0, "parallel", "N", "most answers made at once (default 8)", OPT_INT, &a->parallel, 1,
              64},
             {0, "queue", "N", "most answers waiting for that (default 64)", OPT_INT, &a->queue, 1,
              1 << 16},
             {0, "queue-time", "S", "longest wait in seconds (default 60)", OPT_REAL, &a->queue_s,
              0, 86400},
             {0, "time-limit", "S", "longest work on an answer in seconds (default 600)", OPT_REAL,
              &a->time_s, 0.001, 86400},
             {'n', "tokens", "N", "most tokens of an answer (default: what the context holds)",
              OPT_INT, &a->n, 1, 1 << 24},
             {0, "slice", "MS",
              "while a prompt is read, answers go on at least every MS (default 50)", OPT_REAL,
              &a->slice_ms, 0, 60000},
         }},
    };
    int first;
    return args_read(verb, groups, sizeof groups / sizeof groups[0], argc, argv, &first);
}

static int add_recipe(struct recipes *to, const char *kv) {
    if (to->n == LIST_MOST) return complain("more than %d recipes", LIST_MOST);
    int status = recipe_open(kv, &to->item[to->n]);
    if (!status) to->n++;
    return status;
}

/* The default first, then what is allowed besides, each once. */
static int open_recipes(const struct serve_args *a, struct serve *s) {
    struct recipes *out = &s->recipes;
    if (a->kv.n > 1) return complain("'serve' takes one --kv; others are allowed with --allow-kv");
    int status = add_recipe(out, a->kv.n ? a->kv.item[0] : DEFAULT_RECIPE);
    for (size_t i = 0; !status && i < a->allow_kv.n; i++) {
        if (strcmp(a->allow_kv.item[i], "presets") != 0) {
            status = add_recipe(out, a->allow_kv.item[i]);
            continue;
        }
        for (size_t k = 0; !status && lk_recipe_preset(k).name; k++) {
            lk_preset preset = lk_recipe_preset(k);
            bool there = strcmp(lk_recipe_text(out->item[0]), preset.name) == 0,
                 can = !preset.sidecar || a->model.sidecar;
            if (!can || there) continue;
            status = add_recipe(out, preset.name);
            if (!status) s->preset[out->n - 1] = true;
        }
    }
    return status;
}

/* Presets that this model cannot have are not among 'presets'. */
static void leave_out_presets(struct lk_serve_opts *o, struct serve *s) {
    size_t n = 0;
    for (size_t i = 0; i < s->recipes.n; i++) {
        if (s->preset[i] && lk_serve_try(o, s->recipes.item[i], NULL) != LK_OK)
            lk_recipe_free(s->recipes.item[i]);
        else
            s->recipes.item[n++] = s->recipes.item[i];
    }
    o->n_recipe = s->recipes.n = n;
}

/* The lines of the file that are not empty. */
static int read_keys(const char *path, struct serve *s) {
    enum { FILE_MOST = 64 * 1024 };
    char *rest = NULL;
    if (!path) return STATUS_OK;
    if (!read_text(path, "API keys", FILE_MOST, &s->keys)) return STATUS_BAD;
    for (char *line = strtok_r(s->keys.at, "\r\n", &rest); line;
         line = strtok_r(NULL, "\r\n", &rest)) {
        if (s->n_key == KEY_MOST) return complain("%s has more than %d keys", path, KEY_MOST);
        s->key[s->n_key++] = line;
    }
    return s->n_key ? STATUS_OK : complain("%s has no keys: write one on each line", path);
}

/* What clients call the model, without what a path would make something else of. */
static char *model_id(const char *given, const lk_model *model) {
    char *id = given ? text_clean(given) : model_name(model);
    for (char *c = id; *c; c++)
        if (*c == ' ' || *c == '/' || *c == '?' || *c == '#' || *c == '%') *c = '-';
    if (*id) return id;
    free(id);
    return must_print("model");
}

static void print_line(void *user, const char *line) {
    (void)user;
    complain("%s", line);
}

static struct lk_serve_opts options(const struct serve_args *a, const struct serve *s) {
    struct lk_serve_opts o = lk_serve_defaults();
    o.model = s->model;
    o.id = s->id;
    o.recipe = (const lk_recipe *const *)s->recipes.item;
    o.n_recipe = s->recipes.n;
    o.key = s->key;
    o.n_key = s->n_key;
    o.origin = a->origin;
    o.n_ctx = a->ctx ? (int32_t)a->ctx : lk_model_get_info(s->model).n_ctx_train;
    if (a->host) o.host = a->host;
    if (a->n) o.n_predict = (size_t)a->n;
    o.port = (int)a->port;
    o.n_parallel = (size_t)a->parallel;
    o.n_queue = (size_t)a->queue;
    o.n_connection = (size_t)a->connections;
    o.max_body = (size_t)a->max_body << 20;
    o.max_bytes = a->cache_limit ? (uint64_t)a->cache_limit << 20 : available_bytes("") / 2;
    o.queue_s = a->queue_s;
    o.time_s = a->time_s;
    o.slice_s = 1e-3 * a->slice_ms;
    o.session_dir = a->session_dir;
    o.store_bytes = (uint64_t)a->store_limit << 20;
    o.log = a->log ? print_line : NULL;
    o.note = print_line;
    return o;
}

static void say_where(const struct lk_serve_opts *o, int port) {
    char bytes[NUMBER_ROOM];
    const char *open = strchr(o->host, ':') ? "[" : "", *close = *open ? "]" : "";
    printf("%s at http://%s%s%s:%d, cache %s, context %d, %s for all sessions. Ctrl-C ends it.\n",
           o->id, open, o->host, close, port, lk_recipe_text(o->recipe[0]), o->n_ctx,
           say_bytes(bytes, o->max_bytes));
    bool near = strncmp(o->host, "127.", 4) == 0 || strcmp(o->host, "::1") == 0 ||
                strcmp(o->host, "localhost") == 0;
    if (!near && !o->n_key)
        complain("anybody who reaches %s can use this server; see --api-key-file", o->host);
    fflush(stdout);
}

/* Signals are taken here and nowhere else: all threads are started with them blocked. */
static int serve_until_signal(const struct lk_serve_opts *o) {
    struct lk_server *server = NULL;
    lk_err err = {0};
    sigset_t ends, before;
    int signal_number;
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, &before);
    int status = lk_server_start(&server, o, &err) ? complain_of(&err) : STATUS_OK;
    if (!status) {
        say_where(o, lk_server_port(server));
        sigwait(&ends, &signal_number);
        signal(SIGINT, SIG_DFL); /* again: at once */
        signal(SIGTERM, SIG_DFL);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    lk_server_stop(server);
    return status;
}

int serve_verb(const struct verb *verb, int argc, char **argv) {
    struct serve_args a = {.port = 8080,
                           .parallel = 8,
                           .queue = 64,
                           .connections = 256,
                           .max_body = 8,
                           .store_limit = 4096,
                           .queue_s = 60,
                           .time_s = 600,
                           .slice_ms = 50};
    struct serve s = {0};
    enum args_result read = read_args(verb, argc, argv, &a);
    if (read != ARGS_RUN) return read == ARGS_HELP ? STATUS_OK : STATUS_BAD;
    int status = open_recipes(&a, &s);
    if (!status) status = read_keys(a.key_file, &s);
    if (!status) status = model_open(&a.model, false, &s.model);
    if (!status) {
        s.id = model_id(a.name, s.model);
        struct lk_serve_opts o = options(&a, &s);
        leave_out_presets(&o, &s);
        status = o.max_bytes ? serve_until_signal(&o)
                             : complain("the system does not say that it has any memory free: give "
                                        "--cache-limit MIB");
    }
    free(s.id);
    free(s.keys.at);
    recipes_free(&s.recipes);
    lk_model_free(s.model);
    return status;
}
