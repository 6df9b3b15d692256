/* Loading, unloading and finding of models, and the requests that wait for one. */
#include "serve/models.h"

#include "base/os.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* A request that waits for a model: on the stack of its thread. */
struct lk_served_waiter {
    struct lk_served_waiter *next;
    uint64_t ticket; /* smaller: it came earlier */
    bool failed;     /* the model could not be loaded: served->failure */
};

struct lk_models {
    const struct lk_server_opts *opts;
    struct lk_turn turn;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t changed;
    _Atomic bool closing;
    uint64_t n_ticket;
    uint64_t held_up; /* ticket of the request whose model waits for room; 0: none */
    struct lk_served *last;
    size_t n;
    struct lk_served served[];
};

/* ---- properties ---- */

size_t lk_models_count(const struct lk_models *m) { return m->n; }

struct lk_served *lk_models_at(struct lk_models *m, size_t i) {
    return &m->served[i];
}

bool lk_models_are_several(const struct lk_models *m) { return m->served[0].entry != NULL; }

lk_model_info lk_served_info(const struct lk_served *s) {
    return s->entry ? s->entry->info : lk_model_get_info(s->opts.model);
}

const char *lk_served_id(const struct lk_served *s) { return s->entry ? s->entry->id : s->opts.id; }

int32_t lk_served_n_ctx(const struct lk_served *s) {
    return s->entry ? s->entry->n_ctx : s->opts.n_ctx;
}

struct lk_served *lk_models_find(struct lk_models *m, const char *name) {
    static const char tag[] = ":latest"; /* ollama's default */
    size_t len = strlen(name), tag_len = sizeof tag - 1;
    if (!lk_models_are_several(m)) {
        bool known = !m->opts->strict_model || strcmp(name, m->opts->id) == 0;
        for (size_t i = 0; i < m->opts->n_alias; i++) known |= strcmp(name, m->opts->alias[i]) == 0;
        return known ? m->served : NULL;
    }
    for (size_t i = 0; i < m->n; i++)
        if (strcmp(name, m->served[i].entry->id) == 0) return &m->served[i];
    if (len > tag_len && strcmp(name + len - tag_len, tag) == 0) len -= tag_len;
    for (size_t i = 0; i < m->n; i++) {
        const char *id = m->served[i].entry->id;
        if (strlen(id) == len && strncasecmp(name, id, len) == 0) return &m->served[i];
    }
    return NULL;
}

struct lk_served *lk_models_default(struct lk_models *m) {
    pthread_mutex_lock(&m->lock);
    struct lk_served *last = m->last;
    pthread_mutex_unlock(&m->lock);
    return last;
}

enum lk_served_state lk_models_state(struct lk_models *m, struct lk_served *s) {
    pthread_mutex_lock(&m->lock);
    enum lk_served_state state = s->state;
    pthread_mutex_unlock(&m->lock);
    return state;
}

/* ---- requests; the lock is held in the static functions of this part ---- */

static void wait_changed(struct lk_models *m, double seconds) {
    lk_os_wait_until(&m->changed, &m->lock, lk_now() + seconds);
}

static void add_user(struct lk_models *m, struct lk_served *s) {
    s->n_user++;
    s->last_used = lk_now();
    m->last = s;
}

static void remove_waiter(struct lk_served *s, const struct lk_served_waiter *waiter) {
    struct lk_served_waiter **at = &s->waiters;
    while (*at != waiter) at = &(*at)->next;
    *at = waiter->next;
}

/* The ticket of the oldest request that waits for the model; 0: none waits. */
static uint64_t first_ticket(const struct lk_served *s) {
    uint64_t first = 0;
    for (const struct lk_served_waiter *w = s->waiters; w; w = w->next)
        if (!w->failed && (!first || w->ticket < first)) first = w->ticket;
    return first;
}

/* May the request use the model? It may not while one that came earlier waits for room. */
static bool is_ready(const struct lk_models *m, const struct lk_served *s, uint64_t ticket) {
    return s->state == LK_SERVED_LOADED && (!m->held_up || ticket <= m->held_up);
}

bool lk_models_use(struct lk_models *m, struct lk_served *s, bool (*keep_waiting)(void *user),
                   void *user, struct lk_api_error *error) {
    const double check_s = 0.25;
    double start = lk_now();
    bool good = false, alive = true;
    pthread_mutex_lock(&m->lock);
    struct lk_served_waiter waiter = {.next = s->waiters, .ticket = ++m->n_ticket};
    s->waiters = &waiter;
    for (;;) {
        good = !m->closing && is_ready(m, s, waiter.ticket);
        if (good || m->closing || waiter.failed || !alive || lk_now() - start > m->opts->load_s)
            break;
        pthread_cond_broadcast(&m->changed);
        wait_changed(m, check_s);
        if (is_ready(m, s, waiter.ticket) || waiter.failed) continue;
        pthread_mutex_unlock(&m->lock);
        alive = keep_waiting(user);
        pthread_mutex_lock(&m->lock);
    }
    remove_waiter(s, &waiter);
    *error = (struct lk_api_error){0};
    if (good) {
        add_user(m, s);
    } else if (m->closing) {
        lk_api_error_set_stopping(error);
    } else if (waiter.failed) {
        *error = s->failure;
    } else if (alive) {
        lk_api_error_set(error, 503, "model_loading", "model",
                         "model '%.100s' could not be loaded within %.0f seconds (--load-time)",
                         lk_served_id(s), m->opts->load_s);
        error->retry_s = 5;
    }
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    return good;
}

bool lk_models_use_loaded(struct lk_models *m, struct lk_served *s) {
    pthread_mutex_lock(&m->lock);
    bool loaded = s->state == LK_SERVED_LOADED;
    if (loaded) s->n_user++;
    pthread_mutex_unlock(&m->lock);
    return loaded;
}

void lk_models_release(struct lk_models *m, struct lk_served *s) {
    if (!s) return;
    pthread_mutex_lock(&m->lock);
    if (--s->n_user == 0) pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

void lk_models_keep(struct lk_models *m, struct lk_served *s, double keep_s) {
    pthread_mutex_lock(&m->lock);
    s->keep_s = keep_s;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

double lk_models_left(struct lk_models *m, struct lk_served *s) {
    pthread_mutex_lock(&m->lock);
    double left_s = s->keep_s < 0 ? INFINITY : s->last_used + s->keep_s - lk_now();
    pthread_mutex_unlock(&m->lock);
    return left_s > 0 ? left_s : 0;
}

/* ---- loading and unloading ---- */

static void note(const struct lk_models *m, const char *line) {
    if (m->opts->note) m->opts->note(m->opts->user, line);
}

lk_status lk_server_check_recipe(const struct lk_server_opts *o, const lk_recipe *recipe,
                                 lk_err *err) {
    lk_session_opts session_opts = {.n_ctx = o->n_ctx};
    lk_session *session = NULL;
    lk_plan plan;
    lk_err why = {0};
    lk_status status = lk_session_new(&session, o->model, recipe, &session_opts, &why);
    lk_session_free(session);
    if (!status) status = lk_plan_make(o->model, recipe, &session_opts, &plan, &why);
    if (!status) return LK_OK;
    return lk_fail(err, status, "'%.100s' with a context of %d: %s", lk_recipe_text(recipe),
                   o->n_ctx, why.msg);
}

/* Start the scheduler of a model that is open. */
static lk_status start_served(struct lk_served *s, lk_err *err) {
    lk_status status = LK_OK;
    for (size_t i = 0; !status && i < s->opts.n_recipe; i++)
        status = lk_server_check_recipe(&s->opts, s->opts.recipe[i], err);
    if (status) return status;
    /* A template that writes no calls is an error of the requests that need one. */
    s->opts.call_words = NULL;
    if (!lk_chat_call_words(s->opts.model, &s->call_words, NULL))
        s->opts.call_words = &s->call_words;
    return lk_scheduler_start(&s->scheduler, &s->opts, &s->metrics, err);
}

static bool may_go_on(void *user, uint64_t done, uint64_t total) {
    const struct lk_models *m = user;
    (void)done;
    (void)total;
    return !m->closing;
}

/* An error for clients: without the path of the file. */
static void set_failure(struct lk_served *s, const lk_err *err) {
    const char *path = s->entry->path, *at = strstr(err->msg, path), *reason = err->msg;
    if (at) reason = at + strlen(path) + strspn(at + strlen(path), ": ");
    lk_api_error_set(&s->failure, err->code == LK_E_NOMEM ? 503 : 500, "model_not_loaded", "model",
                     "model '%.100s' cannot be loaded: %s", s->entry->id,
                     *reason ? reason : lk_status_name(err->code));
}

static uint64_t entry_bytes(const struct lk_model_entry *entry) {
    return entry->weight_bytes + entry->cache_bytes;
}

static double mib(uint64_t bytes) { return (double)bytes / (1 << 20); }

/* The lock is held, but not meanwhile. */
static void load(struct lk_models *m, struct lk_served *s) {
    size_t i = (size_t)(s - m->served);
    char line[600];
    lk_err err = {0};
    double start = lk_now();
    s->state = LK_SERVED_LOADING;
    pthread_mutex_unlock(&m->lock);
    s->opts = *m->opts;
    lk_status status = m->opts->load(m->opts->load_user, i, may_go_on, m, &s->opts, &err);
    s->opts.turn = &m->turn;
    s->opts.strict_model = false; /* the name was checked */
    if (!status && (status = start_served(s, &err))) m->opts->unload(m->opts->load_user, i);
    if (status)
        snprintf(line, sizeof line, "model %.100s: %.400s", s->entry->id, err.msg);
    else
        snprintf(line, sizeof line, "loaded model %.100s in %.1f s", s->entry->id,
                 lk_now() - start);
    if (!m->closing) note(m, line);
    pthread_mutex_lock(&m->lock);
    s->state = status ? LK_SERVED_ON_DISK : LK_SERVED_LOADED;
    s->last_used = lk_now();
    s->keep_s = INFINITY;
    s->n_load += !status;
    if (!status) return;
    set_failure(s, &err);
    for (struct lk_served_waiter *w = s->waiters; w; w = w->next) w->failed = true;
}

/* Current values, which an unloaded model has not. */
static void reset_gauges(struct lk_metrics *metrics) {
    metrics->waiting = metrics->active = metrics->parked = metrics->sessions = 0;
    metrics->cache_bytes = metrics->shared_bytes = metrics->max_bytes = 0;
}

static void note_unloaded(const struct lk_models *m, const struct lk_served *s,
                          const struct lk_stored *stored, size_t n_session) {
    char line[600];
    if (!stored)
        snprintf(line, sizeof line,
                 "unloaded model %.100s: %zu session%s dropped; --session-dir would store them",
                 s->entry->id, n_session, n_session == 1 ? "" : "s");
    else if (stored->n_lost)
        snprintf(line, sizeof line, "unloaded model %.100s: %zu session%s stored, %zu lost: %.300s",
                 s->entry->id, stored->n_stored, stored->n_stored == 1 ? "" : "s", stored->n_lost,
                 stored->why.msg);
    else
        snprintf(line, sizeof line, "unloaded model %.100s: %zu session%s stored", s->entry->id,
                 stored->n_stored, stored->n_stored == 1 ? "" : "s");
    note(m, line);
}

/* The lock is held, but not meanwhile. */
static void unload(struct lk_models *m, struct lk_served *s) {
    s->state = LK_SERVED_LEAVING;
    pthread_mutex_unlock(&m->lock);
    size_t n_session = s->metrics.sessions;
    lk_scheduler_finish(s->scheduler);
    const struct lk_disk *disk = lk_scheduler_disk(s->scheduler);
    note_unloaded(m, s, disk ? lk_disk_get_stored(disk) : NULL, n_session);
    lk_scheduler_stop(s->scheduler);
    s->scheduler = NULL;
    m->opts->unload(m->opts->load_user, (size_t)(s - m->served));
    reset_gauges(&s->metrics);
    pthread_mutex_lock(&m->lock);
    s->state = LK_SERVED_ON_DISK;
    s->n_unload++;
}

/* The model that is to be loaded next, or NULL. */
static struct lk_served *next_wanted(struct lk_models *m, uint64_t *ticket) {
    struct lk_served *best = NULL;
    for (size_t i = 0; i < m->n; i++) {
        struct lk_served *s = &m->served[i];
        uint64_t first = s->state == LK_SERVED_ON_DISK ? first_ticket(s) : 0;
        if (!first || (best && first > *ticket)) continue;
        best = s;
        *ticket = first;
    }
    return best;
}

/* Does the first one leave before the second one? */
static bool leaves_first(const struct lk_served *a, const struct lk_served *b) {
    return (a->keep_s < 0) != (b->keep_s < 0) ? b->keep_s < 0 : a->last_used < b->last_used;
}

/* The model that leaves to make room for a request; NULL: all are in use. */
static struct lk_served *choose_leaving(struct lk_models *m, uint64_t ticket) {
    struct lk_served *first = NULL;
    for (size_t i = 0; i < m->n; i++) {
        struct lk_served *s = &m->served[i];
        uint64_t waits = first_ticket(s);
        bool may = s->state == LK_SERVED_LOADED && !s->n_user && (!waits || waits > ticket);
        if (may && (!first || leaves_first(s, first))) first = s;
    }
    return first;
}

/* A model that no request has used for its keep_s; or NULL, and *wait_s is at most the time until
 * there will be one. */
static struct lk_served *choose_expired(struct lk_models *m, double *wait_s) {
    double now = lk_now();
    for (size_t i = 0; i < m->n; i++) {
        struct lk_served *s = &m->served[i];
        if (s->state != LK_SERVED_LOADED || s->n_user || s->waiters || s->keep_s < 0) continue;
        double left_s = s->last_used + s->keep_s - now;
        if (left_s <= 0) return s;
        if (left_s < *wait_s) *wait_s = left_s;
    }
    return NULL;
}

static uint64_t loaded_bytes(const struct lk_models *m) {
    uint64_t sum = 0;
    for (size_t i = 0; i < m->n; i++)
        if (m->served[i].state != LK_SERVED_ON_DISK) sum += entry_bytes(m->served[i].entry);
    return sum;
}

/* Fail the requests of a model that can never be loaded. */
static void refuse_too_large(struct lk_models *m, struct lk_served *s) {
    lk_api_error_set(&s->failure, 400, "model_too_large", "model",
                     "model '%.100s' needs %.0f MiB, %.0f of them for caches, but models may use "
                     "%.0f MiB (--max-memory)",
                     s->entry->id, ceil(mib(entry_bytes(s->entry))), mib(s->entry->cache_bytes),
                     mib(m->opts->max_model_bytes));
    for (struct lk_served_waiter *w = s->waiters; w; w = w->next) w->failed = true;
}

/* One step of the thread: load or unload a model, or wait. The lock is held. */
static void make_progress(struct lk_models *m) {
    double wait_s = 60;
    uint64_t ticket = 0, max = m->opts->max_model_bytes;
    struct lk_served *wanted = next_wanted(m, &ticket), *old = choose_expired(m, &wait_s);
    m->held_up = 0;
    if (old) {
        unload(m, old);
    } else if (!wanted) {
        wait_changed(m, wait_s);
        return;
    } else if (entry_bytes(wanted->entry) > max) {
        refuse_too_large(m, wanted);
    } else if (loaded_bytes(m) + entry_bytes(wanted->entry) <= max) {
        load(m, wanted);
    } else if ((old = choose_leaving(m, ticket))) {
        m->held_up = ticket;
        unload(m, old);
    } else {
        m->held_up = ticket;
        wait_changed(m, wait_s);
        return;
    }
    pthread_cond_broadcast(&m->changed);
}

static void *run_thread(void *user) {
    struct lk_models *m = user;
    pthread_mutex_lock(&m->lock);
    while (!m->closing) make_progress(m);
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* ---- metrics ---- */

static uint64_t weight_bytes(const struct lk_served *s) {
    if (s->entry) return s->entry->weight_bytes;
    lk_model_info info = lk_model_get_info(s->opts.model);
    return info.file_bytes > info.weight_bytes ? info.file_bytes : info.weight_bytes;
}

/* A line for each model, whose name is the value of a label. */
static void print_by_model(struct lk_models *m, const char *name, const char *type,
                           const char *help, uint64_t (*value)(const struct lk_served *s),
                           struct lk_buf *out) {
    lk_buf_printf(out, "# HELP lowkey_%s %s\n# TYPE lowkey_%s %s\n", name, help, name, type);
    for (size_t i = 0; i < m->n; i++) {
        lk_buf_printf(out, "lowkey_%s{model=\"", name);
        for (const char *c = lk_served_id(&m->served[i]); *c; c++)
            lk_buf_printf(out, "%s%c", *c == '"' || *c == '\\' ? "\\" : "", *c);
        pthread_mutex_lock(&m->lock);
        uint64_t n = value(&m->served[i]);
        pthread_mutex_unlock(&m->lock);
        lk_buf_printf(out, "\"} %" PRIu64 "\n", n);
    }
}

static uint64_t get_loads(const struct lk_served *s) { return s->n_load; }

static uint64_t get_unloads(const struct lk_served *s) { return s->n_unload; }

static uint64_t get_loaded_bytes(const struct lk_served *s) {
    return s->state == LK_SERVED_LOADED ? weight_bytes(s) : 0;
}

void lk_models_print_metrics(struct lk_models *m, const struct lk_metrics *server,
                             struct lk_buf *out) {
    struct lk_metrics sum = {0};
    uint64_t stored = 0, stored_bytes = 0; /* of one directory */
    lk_metrics_add(&sum, server);
    for (size_t i = 0; i < m->n; i++) {
        const struct lk_metrics *its = &m->served[i].metrics;
        lk_metrics_add(&sum, its);
        if (its->stored > stored) stored = its->stored;
        if (its->stored_bytes > stored_bytes) stored_bytes = its->stored_bytes;
    }
    sum.stored = stored;
    sum.stored_bytes = stored_bytes;
    sum.ranks = (uint64_t)m->opts->n_rank;
    lk_metrics_print(&sum, out);
    print_by_model(m, "model_loads_total", "counter", "Times that a model was loaded.", get_loads,
                   out);
    print_by_model(m, "model_unloads_total", "counter", "Times that a model was unloaded.",
                   get_unloads, out);
    print_by_model(m, "model_loaded_bytes", "gauge",
                   "Bytes of the weights of a model; 0: it is not loaded.", get_loaded_bytes, out);
}

/* ---- start and stop ---- */

static void init_locks(struct lk_models *m) {
    pthread_mutex_init(&m->lock, NULL);
    lk_os_cond_init(&m->changed);
    lk_turn_init(&m->turn);
}

lk_status lk_models_start(struct lk_models **out, const struct lk_server_opts *opts, lk_err *err) {
    size_t n = opts->n_entry ? opts->n_entry : 1;
    struct lk_models *m = calloc(1, sizeof *m + n * sizeof m->served[0]);
    lk_status status = LK_OK;
    if (!m) return lk_fail(err, LK_E_NOMEM, "out of memory: cannot start the models");
    m->opts = opts;
    m->n = n;
    m->last = m->served;
    init_locks(m);
    for (size_t i = 0; i < opts->n_entry; i++)
        m->served[i] = (struct lk_served){.entry = &opts->entry[i], .keep_s = INFINITY};
    if (opts->n_entry) {
        m->has_thread = pthread_create(&m->thread, NULL, run_thread, m) == 0;
        if (!m->has_thread)
            status = lk_fail(err, LK_E_NOMEM, "cannot start the models: thread creation failed");
    } else {
        m->served[0] = (struct lk_served){
            .opts = *opts, .state = LK_SERVED_LOADED, .keep_s = INFINITY, .n_load = 1};
        status = start_served(&m->served[0], err);
    }
    if (status)
        lk_models_stop(m);
    else
        *out = m;
    return status;
}

void lk_models_close(struct lk_models *m, struct lk_stored *stored) {
    pthread_mutex_lock(&m->lock);
    bool closed = m->closing;
    m->closing = true;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    if (closed) return;
    if (m->has_thread) pthread_join(m->thread, NULL);
    for (size_t i = 0; i < m->n; i++)
        if (m->served[i].scheduler) lk_scheduler_close(m->served[i].scheduler);
    for (size_t i = 0; i < m->n; i++) {
        struct lk_scheduler *scheduler = m->served[i].scheduler;
        if (!scheduler) continue;
        lk_scheduler_finish(scheduler); /* threads that wait for events receive the final error */
        const struct lk_disk *disk = lk_scheduler_disk(scheduler);
        if (!disk) continue;
        const struct lk_stored *its = lk_disk_get_stored(disk);
        stored->n_stored += its->n_stored;
        stored->n_lost += its->n_lost;
        if (its->n_lost) stored->why = its->why;
    }
}

void lk_models_stop(struct lk_models *m) {
    struct lk_stored stored = {0};
    if (!m) return;
    lk_models_close(m, &stored);
    for (size_t i = 0; i < m->n; i++) {
        struct lk_served *s = &m->served[i];
        bool open = s->entry && s->scheduler;
        lk_scheduler_stop(s->scheduler);
        if (open) m->opts->unload(m->opts->load_user, i);
    }
    lk_turn_destroy(&m->turn);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    free(m);
}
