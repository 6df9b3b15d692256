/* An error of the HTTP API: a status code and an error object in OpenAI's form. */
#ifndef LK_SERVE_API_ERROR_H
#define LK_SERVE_API_ERROR_H

#include "base/err.h"

#include <jansson.h>

struct lk_api_error {
    int status;          /* HTTP status; 0: no error */
    const char *code;    /* e.g. "model_not_found"; static, or NULL */
    const char *param;   /* the invalid field; static, or NULL */
    int retry_s;         /* value of Retry-After; 0: no such header */
    char msg[600];       /* one line of valid UTF-8 */
    size_t n_tok, n_ctx; /* lk_api_error_set_too_long; otherwise 0 */
    /* Not an error: parts of the request that are served without, such as images, and the kind of
     * the first one. */
    size_t n_omitted;
    char omitted[40];
    char ignored[300]; /* names of fields that are not known, "a, b" (serve/fields.h) */
};

/* Fill `error` with a printf-formatted message. Always returns false, so that a failing function
 * can end with "return lk_api_error_set(...)". */
bool lk_api_error_set(struct lk_api_error *error, int status, const char *code, const char *param,
                      const char *format, ...) __attribute__((format(printf, 5, 6)));

/* 400: a prompt of n_tok tokens does not fit a context of n_ctx. Clients compact a conversation
 * when they find certain words in the message, and take the numbers from it. These are the words of
 * OpenAI's chats; the errors of other APIs (json functions of their files) have their own. */
bool lk_api_error_set_too_long(struct lk_api_error *error, const char *param, size_t n_tok,
                               size_t n_ctx);

/* The same error with other words. */
struct lk_api_error lk_api_error_in_words(const struct lk_api_error *error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Count a part of the request that is left out. Always returns true. */
bool lk_api_omit(struct lk_api_error *error, const char *kind);

/* List a field that is ignored, with a prefix to its name. Characters that a header cannot have
 * become '?'. */
void lk_api_ignore(struct lk_api_error *error, const char *prefix, const char *name);

/* Convert a library error that was caused by a request. An invalid request becomes 400. A shortage
 * or failure of the server becomes 503 or 500. */
bool lk_api_error_from_request(struct lk_api_error *error, const lk_err *err, const char *param);

/* Like lk_api_error_from_request, but for errors after the request was accepted: LK_E_ARG is then
 * an error of the server, 500. LK_E_FORMAT stays 400: no token matches the client's grammar. */
bool lk_api_error_from_work(struct lk_api_error *error, const lk_err *err);

/* 503: the server is stopping. */
bool lk_api_error_set_stopping(struct lk_api_error *error);

/* {"error": {"message", "type", "param", "code"}}, a new reference; NULL if out of memory. */
json_t *lk_api_error_json(const struct lk_api_error *error);

#endif
