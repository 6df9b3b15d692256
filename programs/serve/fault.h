/* What a client is told when its request fails: an HTTP status and an error in OpenAI's form. */
#ifndef LK_SERVE_FAULT_H
#define LK_SERVE_FAULT_H

#include "base/err.h"

#include <jansson.h>

struct lk_fault {
    int status;        /* of HTTP; 0: all is well */
    const char *code;  /* "model_not_found"; static, or NULL */
    const char *param; /* the field that is wrong; static, or NULL */
    int retry_s;       /* Retry-After; 0: none */
    char msg[600];     /* one line */
};

/* Fill `fault` with a printf-formatted line; returns false, so that a failing function ends with it. */
bool lk_fault_set(struct lk_fault *fault, int status, const char *code, const char *param,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));

/* The same from a library's error: what was wrong with the request is 400, what lacks here 503 or 500. */
bool lk_fault_of(struct lk_fault *fault, const lk_err *err, const char *param);

/* The same for work on a request that was accepted: an argument that is wrong then is this server's. (LK_E_FORMAT is the
 * client's, a grammar that no token fits.) */
bool lk_fault_of_work(struct lk_fault *fault, const lk_err *err);

/* {"error": {"message", "type", "param", "code"}}; NULL without memory. */
json_t *lk_fault_json(const struct lk_fault *fault);

#endif
