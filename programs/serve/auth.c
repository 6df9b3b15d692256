/* Access control: API keys, and without keys the checks of Host and Origin. */
#include "serve/auth.h"

#include "serve/socket.h"

#include <string.h>
#include <strings.h>

bool lk_auth_secret_equal(const char *given, const char *key) {
    size_t n = strlen(given), m = strlen(key);
    volatile unsigned char differ = n != m;
    for (size_t i = 0; i < n; i++) differ |= (unsigned char)(given[i] ^ key[m ? i % m : 0]);
    return differ == 0;
}

/* The key that a request carries: as a bearer token, or in Anthropic's header. NULL: none. */
static const char *given_key(const struct lk_exchange *x) {
    static const char scheme[] = "Bearer ";
    const char *given = lk_exchange_header(x, "Authorization");
    if (given && strncasecmp(given, scheme, sizeof scheme - 1) == 0)
        return given + sizeof scheme - 1;
    return lk_exchange_header(x, "x-api-key");
}

static bool check_api_key(const struct lk_exchange *x, struct lk_api_error *error) {
    const struct lk_server_opts *o = &x->server->opts;
    const char *given = given_key(x);
    bool valid = false;
    if (!given)
        return lk_api_error_set(error, 401, "missing_api_key", NULL,
                                "an API key is required: send the header 'Authorization: Bearer "
                                "KEY'");
    for (size_t i = 0; i < o->n_key; i++) valid |= lk_auth_secret_equal(given, o->key[i]);
    return valid || lk_api_error_set(error, 401, "invalid_api_key", NULL, "the API key is invalid");
}

/* Parse a Host header: a name or an IPv4 address, or an IPv6 address in brackets, and perhaps ":"
 * and a port. The part before the port is copied to name[cap], without brackets. */
static bool parse_host(const char *host, char *name, size_t cap, bool *is_v6) {
    static const char name_chars[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    static const char v6_chars[] = "0123456789abcdefABCDEF:.";
    bool v6 = *is_v6 = *host == '[';
    size_t len = strspn(host += v6, v6 ? v6_chars : name_chars);
    if (len == 0 || len >= cap) return false;
    memcpy(name, host, len);
    name[len] = 0;
    host += len;
    if (v6 && *host++ != ']') return false;
    if (*host == ':') host += 1 + strspn(host + 1, "0123456789");
    return *host == 0;
}

/* Is the host an IP address, localhost, or a name that --host or --allow-host gives? With rebinding
 * a page of another site points its own name at this machine. Its requests then carry that name in
 * the Host header, so other names are refused. */
static bool is_allowed_host(const struct lk_exchange *x, const char *host) {
    char name[64];
    struct in6_addr address;
    bool is_v6;
    if (!parse_host(host, name, sizeof name, &is_v6)) return false;
    if (is_v6) return inet_pton(AF_INET6, name, &address) == 1;
    const struct lk_server_opts *o = &x->server->opts;
    for (size_t i = 0; i < o->n_allowed_host; i++)
        if (strcasecmp(name, o->allowed_host[i]) == 0) return true;
    return inet_pton(AF_INET, name, &address) == 1 || strcasecmp(name, "localhost") == 0 ||
           strcasecmp(name, o->host) == 0;
}

/* Is the origin the server's own (same as Host), or the one that --allow-origin permits? */
static bool is_allowed_origin(const struct lk_exchange *x, const char *origin, const char *host) {
    const char *allowed = x->server->opts.origin, *name = strstr(origin, "://");
    if (allowed && (strcmp(allowed, "*") == 0 || strcmp(allowed, origin) == 0)) return true;
    return name && host && strcasecmp(name + 3, host) == 0;
}

bool lk_auth_check(const struct lk_exchange *x, struct lk_api_error *error) {
    const char *host = lk_exchange_header(x, "Host"), *origin = lk_exchange_header(x, "Origin");
    if (x->server->opts.n_key) return check_api_key(x, error);
    if (host && !is_allowed_host(x, host))
        return lk_api_error_set(error, 403, "wrong_host", NULL,
                                "host '%.60s' is not allowed: without API keys, use localhost or "
                                "the IP address of this server, or start it with --allow-host "
                                "%.60s or --api-key-file",
                                host, host);
    if (origin && !is_allowed_origin(x, origin, host))
        return lk_api_error_set(error, 403, "wrong_origin", NULL,
                                "origin '%.100s' is not allowed; see --allow-origin", origin);
    return true;
}

uint64_t lk_auth_client(const struct lk_exchange *x) {
    const struct lk_server_opts *o = &x->server->opts;
    const char *given = given_key(x);
    for (size_t i = 0; given && i < o->n_key; i++)
        if (lk_auth_secret_equal(given, o->key[i])) return i + 1;
    return lk_exchange_address_hash(x);
}
