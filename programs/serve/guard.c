/* Who may use the server. */
#include "serve/route.h"

#include <arpa/inet.h>
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
        return lk_fault_set(fault, 401, "missing_api_key", NULL,
                            "an API key is needed, in a header 'Authorization: Bearer KEY'");
    for (size_t i = 0; i < o->n_key; i++) good |= lk_same_secret(given + 7, o->key[i]);
    return good || lk_fault_set(fault, 401, "invalid_api_key", NULL,
                                "the API key is not one of this server's");
}

/* A page elsewhere whose name was made to lead here (DNS rebinding) sends its own name. What names no page's host is
 * an address, which leads nowhere else, and what names this machine. */
static bool is_own_name(const struct lk_exchange *x, const char *host) {
    char name[64];
    struct in6_addr address;
    bool v6 = *host == '[';
    size_t len = v6 ? strcspn(++host, "]") : strcspn(host, ":");
    if (len >= sizeof name) return false;
    memcpy(name, host, len);
    name[len] = 0;
    if (v6) return host[len] == ']' && inet_pton(AF_INET6, name, &address) == 1;
    return inet_pton(AF_INET, name, &address) == 1 || strcasecmp(name, "localhost") == 0 ||
           strcasecmp(name, x->server->opts.host) == 0;
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
    if (host && !is_own_name(x, host))
        return lk_fault_set(fault, 403, "wrong_host", NULL,
                            "without keys this server is asked as localhost or by its address, not "
                            "as '%.60s'; --api-key-file gives it keys",
                            host);
    if (origin && !is_own_origin(x, origin, host))
        return lk_fault_set(fault, 403, "wrong_origin", NULL,
                            "pages of %.100s may not use this server", origin);
    return true;
}
