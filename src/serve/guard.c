/* Who may use the server. */
#include "serve/route.h"

#include <string.h>
#include <strings.h>

bool lk_same_secret(const char *given, const char *key) {
    size_t n = strlen(given), m = strlen(key);
    volatile unsigned char differ = n != m;
    for (size_t i = 0; i < n; i++) differ |= (unsigned char)(given[i] ^ key[m ? i % m : 0]);
    return differ == 0;
}

static bool has_key(const struct lk_exchange *x, struct lk_fault *fault) {
    const struct lk_serve_opts *o = &x->server->opts;
    const char *given = lk_exchange_header(x, "Authorization");
    bool good = false;
    if (!given || strncasecmp(given, "Bearer ", 7) != 0)
        return lk_fault_set(fault, 401, "missing_api_key", NULL, "an API key is needed, in a header 'Authorization: Bearer KEY'");
    for (size_t i = 0; i < o->n_key; i++) good |= lk_same_secret(given + 7, o->key[i]);
    return good || lk_fault_set(fault, 401, "invalid_api_key", NULL, "the API key is not one of this server's");
}

/* The name in a Host header is this machine's own. A page elsewhere whose name was made to lead here
 * (DNS rebinding) sends its own name. */
static bool is_local_name(const struct lk_exchange *x, const char *host) {
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};
    size_t len = *host == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i]) == len && strncasecmp(host, names[i], len) == 0) return true;
    return strlen(x->server->opts.host) == len && strncasecmp(host, x->server->opts.host, len) == 0;
}

/* Pages of other origins do not get to use a server that asks for no key. */
static bool is_own_origin(const struct lk_exchange *x, const char *origin, const char *host) {
    const char *other = x->server->opts.origin, *name = strstr(origin, "://");
    if (other && (strcmp(other, "*") == 0 || strcmp(other, origin) == 0)) return true;
    return name && host && strcasecmp(name + 3, host) == 0;
}

bool lk_guard(const struct lk_exchange *x, struct lk_fault *fault) {
    const char *host = lk_exchange_header(x, "Host"), *origin = lk_exchange_header(x, "Origin");
    if (x->server->opts.n_key) return has_key(x, fault);
    if (x->server->loopback && host && !is_local_name(x, host))
        return lk_fault_set(fault, 403, "wrong_host", NULL, "this server listens to its own machine; ask it as localhost");
    if (origin && !is_own_origin(x, origin, host))
        return lk_fault_set(fault, 403, "wrong_origin", NULL, "pages of %.100s may not use this server", origin);
    return true;
}
