/* lowkey serve: an OpenAI-compatible HTTP server. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* SOCK_CLOEXEC */
#endif
#include "auto_recipe.h"
#include "base/clock.h"
#include "cmd.h"
#include "common.h"
#include "generate.h"
#include "interrupt.h"
#include "output.h"
#include "sandbox.h"
#include "serve/connections.h"
#include "serve_models.h"
#include "text.h"
#include "xalloc.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifndef _WIN32
#include <sys/resource.h>
#endif
#ifdef __linux__
#include <sys/socket.h>
#include <sys/un.h>
#endif

enum { MAX_KEYS = 256 };

/* ---- the service manager: sd_notify, datagrams on the Unix socket $NOTIFY_SOCKET ----
 *
 * systemd's, so only on Linux. */

struct notify {
    int fd;            /* -1: there is no service manager */
    double interval_s; /* between signs of life; 0: none are expected */
    double last_beat;
};

#ifdef __linux__

/* Half of the time after which the manager acts: a late sign of life does no harm. */
static double watchdog_interval(void) {
    const char *time = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (!time || (pid && strtol(pid, NULL, 10) != (long)getpid())) return 0;
    double seconds = 1e-6 * strtod(time, NULL);
    return seconds > 0 ? seconds / 2 : 0;
}

static void notify_close(struct notify *notify) {
    if (notify->fd >= 0) close(notify->fd);
    notify->fd = -1;
    notify->interval_s = 0;
}

/* Connect to the socket, and read how often the watchdog expects signs of life. */
static void notify_open(struct notify *notify) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv("NOTIFY_SOCKET");
    size_t len = path ? strlen(path) : 0;
    *notify = (struct notify){.fd = -1};
    if (len < 2 || len >= sizeof address.sun_path || (*path != '/' && *path != '@')) return;
    memcpy(address.sun_path, path, len);
    if (*path == '@') address.sun_path[0] = 0; /* an abstract name */
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    notify->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (notify->fd >= 0 && connect(notify->fd, (struct sockaddr *)&address, size) == 0) {
        notify->interval_s = watchdog_interval();
        return;
    }
    notify_close(notify);
}

/* Send a message, e.g. "READY=1". It is lost if the socket does not accept it at once. */
static void notify_send(const struct notify *notify, const char *message) {
    if (notify->fd >= 0) send(notify->fd, message, strlen(message), MSG_DONTWAIT | MSG_NOSIGNAL);
}

#else

static void notify_open(struct notify *notify) { *notify = (struct notify){.fd = -1}; }

static void notify_close(struct notify *notify) { notify->interval_s = 0; }

static void notify_send(const struct notify *notify, const char *message) {
    (void)notify, (void)message;
}

#endif

/* Send a sign of life if it is time for one. Called by one thread only. */
static void notify_beat(struct notify *notify) {
    double now = notify->interval_s > 0 ? lk_now() : 0;
    if (notify->interval_s <= 0 || now - notify->last_beat < notify->interval_s) return;
    notify->last_beat = now;
    notify_send(notify, "WATCHDOG=1");
}

/* ---- options ---- */

struct serve {
    struct serve_model one;      /* the only model */
    struct serve_models several; /* or these */
    struct lk_buf keys;
    const char *key[MAX_KEYS];
    size_t n_key;
    struct notify notify;
};

static struct opt_group network_options(struct serve_args *a) {
    return (struct opt_group){
        "Network",
        {
            {0, "host", "ADDRESS", "address to listen on (default 127.0.0.1: this machine only)",
             OPT_TEXT, &a->host},
            {0, "port", "N", "port (default 8080); 0: any free one", OPT_INT, &a->port, 0, 65535},
            {0, "api-key-file", "FILE", "API keys, one per line (default: no key is required)",
             OPT_TEXT, &a->key_file},
            {0, "name", "NAME",
             "name of the model in the API (default: from the file); if repeated, the others are "
             "aliases",
             OPT_TEXTS, &a->name},
            {0, "strict-model", NULL, "refuse requests for a model of another name", OPT_FLAG,
             &a->strict_model, .rare = true},
            {0, "allow-origin", "ORIGIN",
             "web origin that may use the API besides the server's own", OPT_TEXT, &a->origin,
             .rare = true},
            {0, "allow-host", "NAME",
             "host name that requests without a key may use besides localhost and IP addresses, "
             "for example host.docker.internal; may be repeated",
             OPT_TEXTS, &a->allow_host, .rare = true},
            {0, "log", NULL, "log one line per request to stderr", OPT_FLAG, &a->log},
            {0, "parse-special", NULL,
             "parse control tokens in prompts of /v1/completions, for clients that fill in the "
             "middle",
             OPT_FLAG, &a->parse_special, .rare = true},
            {0, "sandbox", NULL,
             "once the model is open, give up access to files outside of --session-dir, new "
             "sockets, processes and most system calls (Linux)",
             OPT_FLAG, &a->sandbox},
            {0, "connections", "N", "maximum number of open connections (default 256)", OPT_INT,
             &a->connections, 1, 4096, .rare = true},
            {0, "connections-per-address", "N",
             "maximum number of them from one address, except loopback (default 64)", OPT_INT,
             &a->per_address, 1, 4096, .rare = true},
            {0, "max-body", "MIB", "maximum size of a request body (default 8)", OPT_INT,
             &a->max_body, 1, 1024, .rare = true},
            {0, "request-memory", "MIB",
             "maximum memory of the requests being processed, without caches (default 256)",
             OPT_INT, &a->request_memory, 1, 1 << 20, .rare = true},
        }};
}

static struct opt_group cache_options(struct serve_args *a) {
    return (struct opt_group){
        "Cache",
        {
            {'k', "kv", "RECIPE", KV_HELP, OPT_TEXTS, &a->kv, .complete = KV_WORDS},
            memory_option(&a->auto_kv),
            tune_option(&a->auto_kv),
            {0, "allow-kv", "RECIPE",
             "recipe that requests may select besides --kv; presets: all presets; may be repeated",
             OPT_TEXTS, &a->allow_kv},
            {'c', "ctx", "N", "maximum number of tokens in a session (default: as trained)",
             OPT_INT, &a->ctx, 2, 1 << 24},
            {0, "cache-limit", "MIB",
             "limit for the caches of all sessions, on each rank (default: half of the free "
             "memory)",
             OPT_INT, &a->cache_limit, 1, 1 << 24},
            {0, "ctx-checkpoints", "N",
             "maximum number of earlier states that a session keeps, so that an edited "
             "conversation continues from one instead of being prefilled again (default 64)",
             OPT_INT, &a->checkpoints, 0, 1000, .rare = true},
            {0, "checkpoint-memory", "MIB",
             "maximum memory of these states (default: 64, or a quarter of an f16 cache of the "
             "context if that is more); 8 states are always kept",
             OPT_INT, &a->checkpoint_memory, 1, 1 << 24, .rare = true},
            {0, "session-dir", "DIR",
             "folder where clients save sessions, and where the server stores them on its own, so "
             "that conversations continue after a restart (default: no file is read or written)",
             OPT_TEXT, &a->session_dir},
            {0, "store-limit", "MIB",
             "limit for what the server stores on its own (default 4096); 0: nothing", OPT_INT,
             &a->store_limit, 0, 1 << 24},
        }};
}

/* The model's options, and more for several models. */
static struct opt_group serve_model_options(struct serve_args *a) {
    const struct opt more[] = {
        {0, "models", "FOLDER",
         "serve all GGUF files in FOLDER; as with several -m, a model is loaded when a request "
         "names it",
         OPT_TEXT, &a->folder, .complete = "DIR"},
        {0, "max-memory", "MIB",
         "several models: limit for the weights and caches of the loaded ones; those not used for "
         "longest are unloaded (default: 7/8 of the free memory)",
         OPT_INT, &a->max_memory, 1, 1 << 24},
        {0, "load-time", "S", "several models: maximum seconds to wait for one (default 300)",
         OPT_REAL, &a->load_s, 0, 86400, .rare = true}};
    struct opt_group group = model_options(&a->model, MODEL_RUN);
    size_t n = 0;
    while (group.opt[n].name) n++;
    group.opt[0].kind = OPT_TEXTS;
    group.opt[0].to = &a->file;
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) group.opt[n++] = more[i];
    return group;
}

static int read_args(const struct command *command, int argc, char **argv, struct serve_args *a) {
    const struct opt_group groups[] = {
        network_options(a),
        cache_options(a),
        serve_model_options(a),
        {"Answers",
         {
             {0, "chat-template-file", "FILE",
              "chat template (Jinja) to use instead of the model file's", OPT_TEXT,
              &a->chat_template},
             {'n', "tokens", "N",
              "maximum number of tokens of an answer (default: the rest of the context)", OPT_INT,
              &a->n, 1, 1 << 24},
             {0, "seed", "N",
              "random seed of requests that give none (default -1: another for each)", OPT_INT,
              &a->seed, -1, UINT32_MAX, .rare = true},
             {0, "parallel", "N",
              "maximum number of answers of a client at the same time (default 8)", OPT_INT,
              &a->parallel, 1, 64},
             {0, "queue", "N", "maximum number of answers that wait (default 64)", OPT_INT,
              &a->queue, 1, 1024},
             {0, "queue-time", "S", "maximum seconds in the queue (default 60)", OPT_REAL,
              &a->queue_s, 0, 86400, .rare = true},
             {0, "time-limit", "S", "maximum seconds of work on an answer (default 600)", OPT_REAL,
              &a->time_s, 0.001, 86400},
             {0, "slice", "MS",
              "while a prompt is prefilled, other answers decode at least every MS (default 50)",
              OPT_REAL, &a->slice_ms, 0, 60000, .rare = true},
             draft_option(&a->draft),
         }},
    };
    return args_read(command, groups, sizeof groups / sizeof groups[0], argc, argv, NULL);
}

/* Remove blanks at both ends of a line. */
static char *trim(char *line) {
    static const char blanks[] = " \t";
    line += strspn(line, blanks);
    size_t len = strlen(line);
    while (len > 0 && strchr(blanks, line[len - 1])) len--;
    line[len] = 0;
    return line;
}

/* Each line of the file that is not blank is a key. Messages must not show keys. */
static int read_keys(const char *path, struct serve *s) {
    enum { MAX_FILE_BYTES = 64 * 1024, MIN_KEY_LEN = 8 };
    if (!path) return STATUS_OK;
    int status = read_text_file(path, "API keys", MAX_FILE_BYTES, &s->keys);
    if (status) return status;
    char *rest = s->keys.at;
    for (int number = 1; rest; number++) {
        char *line = rest;
        size_t len = strcspn(line, "\r\n");
        rest = line[len] ? line + len + (strncmp(line + len, "\r\n", 2) == 0 ? 2 : 1) : NULL;
        line[len] = 0;
        line = trim(line);
        if (!*line) continue;
        if (s->n_key == MAX_KEYS)
            return print_error("%s has too many keys; the maximum is %d", path, MAX_KEYS);
        for (const char *c = line; *c; c++)
            if ((unsigned char)*c <= ' ' || *c == 127)
                return print_error("%s, line %d: a key must not contain spaces", path, number);
        if (strlen(line) < MIN_KEY_LEN)
            return print_error("%s, line %d: the key is too short; use at least %d characters",
                               path, number, MIN_KEY_LEN);
        s->key[s->n_key++] = line;
    }
    return s->n_key ? STATUS_OK : print_error("%s contains no keys; write one per line", path);
}

static void print_line(void *user, const char *line) {
    (void)user;
    print_error("%s", line);
}

static void beat(void *user) { notify_beat(&((struct serve *)user)->notify); }

/* Raise the limit of open files to what *n connections need, or lower *n to what the limit allows.
 * Without descriptors the listener could not accept connections, and would try again and again. */
static int reserve_descriptors(size_t *n) {
#ifdef _WIN32 /* has no such limit */
    (void)n;
#else
    enum { OTHERS = 48 }; /* the model, session files, logs, the listener */
    struct rlimit limit;
    rlim_t fixed = OTHERS + LK_SPARE_CONNECTIONS, need = fixed + *n;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= need) return STATUS_OK;
    limit.rlim_cur = limit.rlim_max < need ? limit.rlim_max : need;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur >= need) return STATUS_OK;
    if (limit.rlim_cur <= fixed)
        return print_error("the limit of open files is %llu, but the server needs at least %llu; "
                           "raise it with 'ulimit -n'",
                           (unsigned long long)limit.rlim_cur, (unsigned long long)fixed + 1);
    *n = (size_t)(limit.rlim_cur - fixed);
    print_error("at most %zu connections, because the limit of open files is %llu; raise it with "
                "'ulimit -n'",
                *n, (unsigned long long)limit.rlim_cur);
#endif
    return STATUS_OK;
}

static struct lk_server_opts server_opts(const struct serve_args *a, struct serve *s) {
    struct lk_server_opts o = lk_server_defaults();
    o.n_rank = lk_cluster_n_peer(a->model.cluster);
    o.strict_model = a->strict_model;
    o.allowed_host = a->allow_host.item;
    o.n_allowed_host = a->allow_host.n;
    o.key = s->key;
    o.n_key = s->n_key;
    o.origin = a->origin;
    o.parse_special = a->parse_special;
    o.drafts = is_draft_on(a->draft);
    if (a->host) o.host = a->host;
    if (a->n) o.n_predict = (size_t)a->n;
    o.port = (int)a->port;
    o.n_parallel = (size_t)a->parallel;
    o.n_queue = (size_t)a->queue;
    o.n_checkpoint = (size_t)a->checkpoints;
    o.checkpoint_bytes = (uint64_t)a->checkpoint_memory << 20;
    o.n_connection = (size_t)a->connections;
    o.n_per_address = (size_t)a->per_address;
    o.max_body = (size_t)a->max_body << 20;
    o.request_bytes = (uint64_t)a->request_memory << 20;
    o.max_bytes = (uint64_t)a->cache_limit << 20; /* 0: set when the model is open */
    o.queue_s = a->queue_s;
    o.time_s = a->time_s;
    if (a->load_s >= 0) o.load_s = a->load_s;
    o.slice_s = 1e-3 * a->slice_ms;
    o.seed = a->seed;
    o.session_dir = a->session_dir;
    o.store_bytes = (uint64_t)a->store_limit << 20;
    o.log = a->log ? print_line : NULL;
    o.note = print_line;
    o.beat = s->notify.interval_s > 0 ? beat : NULL;
    o.user = s;
    return o;
}

static void print_address(const struct lk_server_opts *o, int port) {
    char bytes[NUMBER_BUF], all[NUMBER_BUF], title[RECIPE_TITLE];
    const char *open = strchr(o->host, ':') ? "[" : "", *close = *open ? "]" : "";
    if (o->n_entry)
        printf("%zu models at http://%s%s%s:%d, memory limit %s, %s of it for the caches of each. "
               "Press Ctrl-C to stop.\n",
               o->n_entry, open, o->host, close, port, format_bytes(all, o->max_model_bytes),
               format_bytes(bytes, o->max_bytes));
    else
        printf("%s at http://%s%s%s:%d, cache %s, context %d, memory limit %s. Press Ctrl-C to "
               "stop.\n",
               o->id, open, o->host, close, port, recipe_title(o->model, o->recipe[0], title),
               o->n_ctx, format_bytes(bytes, o->max_bytes));
    bool loopback = strncmp(o->host, "127.", 4) == 0 || strcmp(o->host, "::1") == 0 ||
                    strcmp(o->host, "localhost") == 0;
    if (!loopback && !o->n_key)
        print_error(
            "warning: everyone who can connect to %s can use this server; see --api-key-file",
            o->host);
    fflush(stdout);
}

#ifdef __linux__

static int enter_sandbox(const struct lk_server_opts *o, struct sandbox *sandbox) {
    char line[SANDBOX_LINE];
    lk_err err = {0};
    if (sandbox_enter(sandbox, o->session_dir, o->port, &err)) return print_lk_error(&err);
    print_error("%s", sandbox_describe(sandbox, line));
    return STATUS_OK;
}

static int seal_sandbox(const struct sandbox *sandbox) {
    lk_err err = {0};
    return sandbox_seal(sandbox, &err) ? print_lk_error(&err) : STATUS_OK;
}

#else

static int enter_sandbox(const struct lk_server_opts *o, struct sandbox *sandbox) {
    (void)o, (void)sandbox;
    return print_error("--sandbox needs Landlock or seccomp, which only Linux has");
}

static int seal_sandbox(const struct sandbox *sandbox) {
    (void)sandbox;
    return STATUS_OK;
}

#endif

static const char *plural(size_t n) { return n == 1 ? "" : "s"; }

static int print_stored(const struct lk_stored *stored) {
    if (stored->n_lost)
        return print_error("stopped: %zu session%s stored, %zu lost: %s", stored->n_stored,
                           plural(stored->n_stored), stored->n_lost, stored->why.msg);
    if (stored->n_stored)
        print_error("stopped: %zu session%s stored", stored->n_stored, plural(stored->n_stored));
    return STATUS_OK;
}

/* Signals are handled only here: all other threads start with them blocked. */
static int serve_until_signal(const struct lk_server_opts *o, const struct notify *notify,
                              bool use_sandbox) {
    struct lk_server *server = NULL;
    struct sandbox sandbox = {0};
    lk_err err = {0};
    stop_catch();
    int status = use_sandbox ? enter_sandbox(o, &sandbox) : STATUS_OK;
    if (!status && lk_server_start(&server, o, &err)) status = print_lk_error(&err);
    if (!status && use_sandbox) status = seal_sandbox(&sandbox);
    if (status) {
        stop_release();
        lk_server_stop(server);
        return status;
    }
    print_address(o, lk_server_port(server));
    notify_send(notify, "READY=1");
    stop_wait();
    notify_send(notify, "STOPPING=1");
    stop_exit_on_next();
    struct lk_stored stored = lk_server_close(server);
    status = print_stored(&stored);
    if (lk_server_stop(server)) return status;
    /* A thread still works. The sessions are stored, and there is nothing else to save. */
    print_error("stopped: a request could not be ended within 10 seconds");
    fflush(stdout);
    _exit(status);
}

int cmd_serve(const struct command *command, int argc, char **argv) {
    struct serve_args a = {.model.cluster = command->cluster,
                           .port = 8080,
                           .parallel = 8,
                           .queue = 64,
                           .checkpoints = 64,
                           .connections = 256,
                           .per_address = 64,
                           .max_body = 8,
                           .request_memory = 256,
                           .store_limit = 4096,
                           .queue_s = 60,
                           .load_s = -1,
                           .time_s = 600,
                           .slice_ms = 50,
                           .seed = -1};
    struct serve s = {0};
    int read = read_args(command, argc, argv, &a);
    if (read != ARGS_RUN) return read;
    int status = drafting_check(a.draft);
    if (a.sandbox && a.model.cluster)
        status = print_error("--sandbox: several ranks need the rights that it gives up; start "
                             "them in a container instead");
    if (!status) status = serve_recipes_open(&a, &s.one);
    if (!status) status = read_keys(a.key_file, &s);
    notify_open(&s.notify);
    a.model.n_ctx = a.ctx;
    a.n_here = command->n_local_rank > 1 ? command->n_local_rank : 1;
    if (!status) {
        bool several = serve_models_are_several(&a);
        struct lk_server_opts o = server_opts(&a, &s);
        if (!several && a.file.n) a.model.model = a.file.item[0];
        if (several)
            status = serve_models_find(&a, &s.several, &o);
        else if (a.max_memory || a.load_s >= 0)
            status = print_error("--max-memory and --load-time are for several models; "
                                 "--cache-limit limits the caches of one");
        else
            status = serve_model_open(&a, &s.one, &o);
        if (!status) status = reserve_descriptors(&o.n_connection);
        if (!status) status = serve_until_signal(&o, &s.notify, a.sandbox);
    }
    notify_close(&s.notify);
    free(s.keys.at);
    serve_models_free(&s.several);
    serve_model_free(&s.one);
    return status;
}
