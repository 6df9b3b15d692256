/* The table of open connections, and the thread that shuts down the ones that exceed their time. */
#include "serve/connections.h"

#include "base/clock.h"
#include "base/os.h"
#include "serve/socket.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* An address that has connections. */
struct peer {
    struct peer *next;
    unsigned char key[16]; /* an IPv4 address as in IPv6, or the first 64 bits of an IPv6 address */
    bool is_loopback;
    size_t n_entry; /* connections that point here */
    size_t n_open;  /* connections that are neither shut nor refused */
};

struct lk_connection {
    struct lk_connection *next, *prev;
    struct lk_connections *owner;
    struct peer *peer;
    int fd;
    enum lk_connection_state state;
    double since;   /* time of the last change of state */
    size_t n_bytes; /* of the body received so far, or of the reply */
    bool shut;      /* its socket was shut down */
    bool refused;   /* it has no place: its request gets an error */
};

struct lk_connections {
    const struct lk_server_opts *opts;
    pthread_t thread;
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t changed;
    struct lk_connection *first;
    struct peer *peers;
    size_t n_entry, n_open, n_refused; /* n_open: neither shut nor refused */
    double wake_time;                  /* when the thread looks again */
    bool draining, ending;
};

/* ---- addresses; the lock is held ---- */

static void address_key(const struct sockaddr *address, struct peer *out) {
    static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    memset(out, 0, sizeof *out);
    if (address->sa_family == AF_INET) {
        memcpy(&v4, address, sizeof v4);
        memcpy(out->key, mapped, sizeof mapped);
        memcpy(out->key + sizeof mapped, &v4.sin_addr, sizeof v4.sin_addr);
    } else if (address->sa_family == AF_INET6) {
        memcpy(&v6, address, sizeof v6);
        memcpy(out->key, &v6.sin6_addr, sizeof out->key);
    }
    if (memcmp(out->key, mapped, sizeof mapped) == 0) {
        out->is_loopback = out->key[sizeof mapped] == 127;
        return;
    }
    out->is_loopback = memcmp(out->key, &in6addr_loopback, sizeof out->key) == 0;
    memset(out->key + 8, 0, sizeof out->key - 8); /* a host usually has a whole /64 */
}

/* Find or add the entry of an address. NULL if out of memory. */
static struct peer *find_peer(struct lk_connections *c, const struct sockaddr *address) {
    struct peer wanted, *peer;
    address_key(address, &wanted);
    for (peer = c->peers; peer; peer = peer->next)
        if (memcmp(peer->key, wanted.key, sizeof wanted.key) == 0 &&
            peer->is_loopback == wanted.is_loopback)
            return peer;
    peer = malloc(sizeof *peer);
    if (!peer) return NULL;
    *peer = wanted;
    peer->next = c->peers;
    c->peers = peer;
    return peer;
}

static void release_peer(struct lk_connections *c, struct peer *peer) {
    if (--peer->n_entry > 0) return;
    struct peer **at = &c->peers;
    while (*at != peer) at = &(*at)->next;
    *at = peer->next;
    free(peer);
}

/* ---- shutting down; the lock is held ---- */

static void give_up_place(struct lk_connection *x) {
    if (x->shut) return;
    if (x->refused) {
        x->owner->n_refused--;
    } else {
        x->owner->n_open--;
        x->peer->n_open--;
    }
}

/* The connection's thread notices it and closes the connection. */
static void shut_connection(struct lk_connection *x) {
    if (x->shut) return;
    give_up_place(x);
    x->shut = true;
    lk_socket_shut(x->fd);
}

static void refuse_connection(struct lk_connection *x) {
    give_up_place(x);
    x->refused = true;
    x->owner->n_refused++;
}

/* How easily can a connection be shut down for another one? 0: not at all. */
static int uselessness(const struct lk_connection *x) {
    switch (x->state) {
    case LK_CONNECTION_HEADER:
    case LK_CONNECTION_IDLE: return 2;
    case LK_CONNECTION_BODY: return 1;
    default: return 0;
    }
}

/* Should `a` be shut down rather than `b`? */
static bool is_less_useful(const struct lk_connection *a, const struct lk_connection *b) {
    if (a->peer->n_open != b->peer->n_open) return a->peer->n_open > b->peer->n_open;
    if (uselessness(a) != uselessness(b)) return uselessness(a) > uselessness(b);
    return a->since < b->since;
}

/* Shut down another connection than `newcomer`, of the address `peer` if that is not NULL. False if
 * all of them are in use. */
static bool make_place(struct lk_connections *c, const struct lk_connection *newcomer,
                       const struct peer *peer) {
    struct lk_connection *worst = NULL;
    for (struct lk_connection *x = c->first; x; x = x->next) {
        if (x == newcomer || x->shut || x->refused || uselessness(x) == 0) continue;
        if (peer && x->peer != peer) continue;
        if (!worst || is_less_useful(x, worst)) worst = x;
    }
    if (worst) shut_connection(worst);
    return worst != NULL;
}

static void shut_oldest_refused(struct lk_connections *c) {
    struct lk_connection *oldest = NULL;
    for (struct lk_connection *x = c->first; x; x = x->next)
        if (x->refused && !x->shut && (!oldest || x->since < oldest->since)) oldest = x;
    if (oldest) shut_connection(oldest);
}

/* Enforce the limits for a new connection. */
static void admit(struct lk_connections *c, struct lk_connection *x) {
    const struct peer *peer = x->peer;
    bool crowded_peer = !peer->is_loopback && peer->n_open > c->opts->n_per_address;
    if (!crowded_peer && c->n_open <= c->opts->n_connection) return;
    if (!make_place(c, x, crowded_peer ? peer : NULL)) refuse_connection(x);
    if (c->n_refused > LK_SPARE_CONNECTIONS / 4) shut_oldest_refused(c);
}

/* ---- deadlines; the lock is held ---- */

static double deadline(const struct lk_connection *x) {
    const struct lk_server_opts *o = x->owner->opts;
    double more = (double)x->n_bytes / LK_MIN_BYTES_PER_SECOND;
    switch (x->state) {
    case LK_CONNECTION_HEADER: return x->since + o->header_s;
    case LK_CONNECTION_BODY: return x->since + fmin(o->body_s + more, o->time_s);
    case LK_CONNECTION_SENDING: return x->since + o->send_s + more;
    case LK_CONNECTION_IDLE: return x->since + o->idle_s;
    default: return INFINITY;
    }
}

static void wait_until(struct lk_connections *c, double time) {
    lk_os_wait_until(&c->changed, &c->lock, time);
}

static void *run_thread(void *user) {
    const double min_sleep_s = 0.05, max_sleep_s = 60;
    struct lk_connections *c = user;
    pthread_mutex_lock(&c->lock);
    while (!c->ending) {
        double now = lk_now();
        c->wake_time = now + max_sleep_s;
        for (struct lk_connection *x = c->first; x; x = x->next) {
            if (x->shut) continue;
            double end = deadline(x);
            if (end <= now)
                shut_connection(x);
            else
                c->wake_time = fmin(c->wake_time, end);
        }
        c->wake_time = fmax(c->wake_time, now + min_sleep_s);
        wait_until(c, c->wake_time);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Wake the thread if it would sleep for too long. */
static void watch(const struct lk_connection *x) {
    if (deadline(x) < x->owner->wake_time) pthread_cond_broadcast(&x->owner->changed);
}

/* ---- connections ---- */

/* A connection that was shut down holds a spare place until its thread has ended and it was
 * removed. The listener's thread removes such connections after each new one. It closes new ones if
 * no place is left. So the more spare places are held, the longer it waits for these threads. */
static void pace_listener(const struct lk_connections *c, size_t n_entry) {
    size_t n_spare = n_entry > c->opts->n_connection ? n_entry - c->opts->n_connection : 0;
    int ms = n_spare > LK_SPARE_CONNECTIONS * 3 / 4 ? 10 : n_spare > LK_SPARE_CONNECTIONS / 2;
    if (ms) lk_os_sleep(1e-3 * ms);
}

struct lk_connection *lk_connections_add(struct lk_connections *c, int fd,
                                         const struct sockaddr *address) {
    struct lk_connection *x = calloc(1, sizeof *x);
    if (!x) return NULL;
    pthread_mutex_lock(&c->lock);
    x->peer = find_peer(c, address);
    if (!x->peer) {
        pthread_mutex_unlock(&c->lock);
        free(x);
        return NULL;
    }
    x->owner = c;
    x->fd = fd;
    x->since = lk_now();
    x->next = c->first;
    if (x->next) x->next->prev = x;
    c->first = x;
    c->n_entry++;
    c->n_open++;
    x->peer->n_entry++;
    x->peer->n_open++;
    admit(c, x);
    if (c->draining) shut_connection(x);
    watch(x);
    size_t n_entry = c->n_entry;
    pthread_mutex_unlock(&c->lock);
    pace_listener(c, n_entry);
    return x;
}

void lk_connections_remove(struct lk_connection *x) {
    if (!x) return;
    struct lk_connections *c = x->owner;
    pthread_mutex_lock(&c->lock);
    give_up_place(x);
    if (x->prev)
        x->prev->next = x->next;
    else
        c->first = x->next;
    if (x->next) x->next->prev = x->prev;
    release_peer(c, x->peer);
    c->n_entry--;
    if (c->n_entry == 0) pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    free(x);
}

bool lk_connection_is_refused(const struct lk_connection *x) {
    if (!x) return false;
    pthread_mutex_lock(&x->owner->lock);
    bool refused = x->refused;
    pthread_mutex_unlock(&x->owner->lock);
    return refused;
}

bool lk_connection_set_state(struct lk_connection *x, enum lk_connection_state state,
                             size_t n_bytes) {
    if (!x) return true;
    pthread_mutex_lock(&x->owner->lock);
    x->state = state;
    x->n_bytes = n_bytes;
    x->since = lk_now();
    if (x->owner->draining && uselessness(x) == 2) shut_connection(x);
    bool open = !x->shut;
    if (open) watch(x);
    pthread_mutex_unlock(&x->owner->lock);
    return open;
}

void lk_connection_start_request(struct lk_connection *x) {
    if (!x) return;
    pthread_mutex_lock(&x->owner->lock);
    if (x->state == LK_CONNECTION_IDLE) {
        x->state = LK_CONNECTION_HEADER;
        x->since = lk_now();
        watch(x);
    }
    pthread_mutex_unlock(&x->owner->lock);
}

void lk_connection_add_received(struct lk_connection *x, size_t n_bytes) {
    if (!x) return;
    pthread_mutex_lock(&x->owner->lock);
    x->n_bytes += n_bytes;
    pthread_mutex_unlock(&x->owner->lock);
}

/* ---- start and stop ---- */

lk_status lk_connections_start(struct lk_connections **out, const struct lk_server_opts *opts,
                               lk_err *err) {
    struct lk_connections *c = calloc(1, sizeof *c);
    if (!c) return lk_fail(err, LK_E_NOMEM, "out of memory: cannot start the listener");
    c->opts = opts;
    pthread_mutex_init(&c->lock, NULL);
    lk_os_cond_init(&c->changed);
    if (pthread_create(&c->thread, NULL, run_thread, c) == 0) {
        *out = c;
        return LK_OK;
    }
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
    return lk_fail(err, LK_E_NOMEM, "cannot start the listener: thread creation failed");
}

void lk_connections_stop(struct lk_connections *c) {
    if (!c) return;
    pthread_mutex_lock(&c->lock);
    c->ending = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

void lk_connections_drain(struct lk_connections *c) {
    pthread_mutex_lock(&c->lock);
    c->draining = true;
    for (struct lk_connection *x = c->first; x; x = x->next)
        if (uselessness(x) == 2) shut_connection(x);
    pthread_mutex_unlock(&c->lock);
}

bool lk_connections_are_draining(struct lk_connections *c) {
    pthread_mutex_lock(&c->lock);
    bool draining = c->draining;
    pthread_mutex_unlock(&c->lock);
    return draining;
}

bool lk_connections_wait(struct lk_connections *c, double seconds) {
    double end = lk_now() + seconds;
    pthread_mutex_lock(&c->lock);
    while (c->n_entry > 0 && lk_now() < end) wait_until(c, end);
    bool all = c->n_entry == 0;
    pthread_mutex_unlock(&c->lock);
    return all;
}

void lk_connections_shut_all(struct lk_connections *c) {
    pthread_mutex_lock(&c->lock);
    for (struct lk_connection *x = c->first; x; x = x->next) shut_connection(x);
    pthread_mutex_unlock(&c->lock);
}
