/* Checks of a request's headers that libmicrohttpd leaves to the application. */
#include "serve/headers.h"

#include <microhttpd.h>
#include <string.h>
#include <strings.h>

struct header_counts {
    int n_host, n_length, n_coding;
    const char *invalid; /* name of a header that is not allowed; NULL: none */
};

/* A name may only have the characters of a token (RFC 9110, 5.6.2). So "Host : x" is refused. */
static bool is_token(const char *name) {
    static const char token_chars[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~";
    size_t len = strlen(name);
    return len > 0 && strspn(name, token_chars) == len;
}

static bool has_control_characters(const char *value) {
    for (; *value; value++)
        if (((unsigned char)*value < ' ' && *value != '\t') || *value == 127) return true;
    return false;
}

static enum MHD_Result count_header(void *user, enum MHD_ValueKind kind, const char *name,
                                    const char *value) {
    struct header_counts *counts = user;
    (void)kind;
    if (!is_token(name) || (value && has_control_characters(value))) counts->invalid = name;
    counts->n_host += strcasecmp(name, "Host") == 0;
    counts->n_length += strcasecmp(name, "Content-Length") == 0;
    counts->n_coding += strcasecmp(name, "Transfer-Encoding") == 0;
    return MHD_YES;
}

bool lk_headers_check(const struct lk_exchange *x, struct lk_api_error *error) {
    struct header_counts counts = {0};
    const char *coding = lk_exchange_header(x, "Transfer-Encoding");
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, count_header, &counts);
    if (counts.invalid)
        return lk_api_error_set(error, 400, "invalid_header", NULL,
                                "the header '%.60s' has characters that are not allowed",
                                counts.invalid);
    if (counts.n_host > 1 || (counts.n_host == 0 && !x->is_http_1_0))
        return lk_api_error_set(error, 400, "invalid_header", NULL,
                                "the request must have exactly one Host header, but has %d",
                                counts.n_host);
    if (counts.n_length + counts.n_coding > 1)
        return lk_api_error_set(error, 400, "invalid_header", NULL,
                                "the length of the body is given more than once: send either "
                                "Content-Length or Transfer-Encoding");
    if (coding && (x->is_http_1_0 || strcasecmp(coding, "chunked") != 0))
        return lk_api_error_set(error, 400, "invalid_header", NULL,
                                "Transfer-Encoding is '%.40s', but must be chunked, in HTTP/1.1",
                                coding);
    return true;
}
