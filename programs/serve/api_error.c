/* Errors of the HTTP API: status codes, and error objects in OpenAI's form. */
#include "serve/api_error.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool lk_api_error_set(struct lk_api_error *error, int status, const char *code, const char *param,
                      const char *format, ...) {
    va_list args;
    *error = (struct lk_api_error){.status = status, .code = code, .param = param};
    va_start(args, format);
    vsnprintf(error->msg, sizeof error->msg, format, args);
    va_end(args);
    /* Messages quote input of clients: keep them on one line, and cut them at invalid UTF-8. */
    for (char *c = error->msg; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127) *c = ' ';
    error->msg[lk_utf8_valid_prefix(error->msg, strlen(error->msg))] = 0;
    return false;
}

bool lk_api_error_set_too_long(struct lk_api_error *error, const char *param, size_t n_tok,
                               size_t n_ctx) {
    lk_api_error_set(error, 400, "context_length_exceeded", param,
                     "This model's maximum context length is %zu tokens. However, your request has "
                     "%zu tokens, which exceeds the available context size. Please reduce the "
                     "length of the messages.",
                     n_ctx, n_tok);
    error->n_tok = n_tok;
    error->n_ctx = n_ctx;
    return false;
}

struct lk_api_error lk_api_error_in_words(const struct lk_api_error *error, const char *format,
                                          ...) {
    struct lk_api_error out = *error;
    va_list args;
    va_start(args, format);
    vsnprintf(out.msg, sizeof out.msg, format, args);
    va_end(args);
    return out;
}

bool lk_api_omit(struct lk_api_error *error, const char *kind) {
    if (error->n_omitted++ == 0) {
        size_t n = 0; /* a word: it becomes a part of a line */
        for (; kind[n] > ' ' && kind[n] < 127 && n + 1 < sizeof error->omitted; n++)
            error->omitted[n] = kind[n];
        error->omitted[n] = 0;
    }
    return true;
}

void lk_api_ignore(struct lk_api_error *error, const char *prefix, const char *name) {
    size_t used = strlen(error->ignored), cap = sizeof error->ignored;
    int n =
        snprintf(error->ignored + used, cap - used, "%s%s%.60s", used ? ", " : "", prefix, name);
    if (n < 0 || (size_t)n >= cap - used) {
        error->ignored[used] = 0; /* there is no room for all of it */
        return;
    }
    for (char *c = error->ignored + used; *c; c++)
        if (*c < ' ' || *c > '~') *c = '?';
}

bool lk_api_error_from_request(struct lk_api_error *error, const lk_err *err, const char *param) {
    const char *msg = err->msg[0] ? err->msg : lk_status_name(err->code);
    switch (err->code) {
    case LK_E_ARG:
    case LK_E_FORMAT: return lk_api_error_set(error, 400, "invalid_value", param, "%s", msg);
    case LK_E_UNSUPPORTED: return lk_api_error_set(error, 400, "unsupported", param, "%s", msg);
    case LK_E_FULL:
        return lk_api_error_set(error, 400, "context_length_exceeded", param, "%s", msg);
    case LK_E_NOMEM: return lk_api_error_set(error, 503, "out_of_memory", param, "%s", msg);
    default: return lk_api_error_set(error, 500, "internal_error", param, "%s", msg);
    }
}

bool lk_api_error_from_work(struct lk_api_error *error, const lk_err *err) {
    if (err->code != LK_E_ARG) return lk_api_error_from_request(error, err, NULL);
    return lk_api_error_set(error, 500, "internal_error", NULL, "%s",
                            err->msg[0] ? err->msg : lk_status_name(err->code));
}

bool lk_api_error_set_stopping(struct lk_api_error *error) {
    return lk_api_error_set(error, 503, "stopping", NULL, "the server is stopping");
}

static const char *error_type(int status) {
    if (status == 401) return "authentication_error";
    if (status == 403) return "permission_error";
    if (status == 404) return "not_found_error";
    if (status == 429) return "rate_limit_error";
    return status < 500 ? "invalid_request_error" : "server_error";
}

json_t *lk_api_error_json(const struct lk_api_error *error) {
    json_t *json = json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", error->msg, "type",
                             error_type(error->status), "param", error->param, "code", error->code);
    if (!error->n_ctx) return json;
    json_t *inner = json_object_get(json, "error"); /* llama-server's names */
    json_object_set_new(inner, "n_prompt_tokens", json_integer((json_int_t)error->n_tok));
    json_object_set_new(inner, "n_ctx", json_integer((json_int_t)error->n_ctx));
    return json;
}
