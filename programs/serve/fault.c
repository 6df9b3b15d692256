#include "serve/fault.h"

#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Messages quote what clients sent: whole characters only, on one line. */
static void make_clean(char *msg) {
    for (char *c = msg; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127) *c = ' ';
    msg[lk_utf8_valid(msg, strlen(msg))] = 0;
}

bool lk_fault_set(struct lk_fault *fault, int status, const char *code, const char *param,
                  const char *format, ...) {
    va_list args;
    *fault = (struct lk_fault){.status = status, .code = code, .param = param};
    va_start(args, format);
    vsnprintf(fault->msg, sizeof fault->msg, format, args);
    va_end(args);
    make_clean(fault->msg);
    return false;
}

bool lk_fault_of(struct lk_fault *fault, const lk_err *err, const char *param) {
    const char *msg = err->msg[0] ? err->msg : lk_status_name(err->code);
    switch (err->code) {
    case LK_E_ARG:
    case LK_E_FORMAT: return lk_fault_set(fault, 400, "invalid_value", param, "%s", msg);
    case LK_E_UNSUPPORTED: return lk_fault_set(fault, 400, "unsupported", param, "%s", msg);
    case LK_E_FULL: return lk_fault_set(fault, 400, "context_length_exceeded", param, "%s", msg);
    case LK_E_NOMEM: return lk_fault_set(fault, 503, "out_of_memory", param, "%s", msg);
    default: return lk_fault_set(fault, 500, "internal_error", param, "%s", msg);
    }
}

bool lk_fault_of_work(struct lk_fault *fault, const lk_err *err) {
    if (err->code != LK_E_ARG) return lk_fault_of(fault, err, NULL);
    return lk_fault_set(fault, 500, "internal_error", NULL, "%s",
                        err->msg[0] ? err->msg : lk_status_name(err->code));
}

static const char *type_of(int status) {
    if (status == 401) return "authentication_error";
    if (status == 403) return "permission_error";
    if (status == 404) return "not_found_error";
    if (status == 429) return "rate_limit_error";
    return status < 500 ? "invalid_request_error" : "server_error";
}

json_t *lk_fault_json(const struct lk_fault *fault) {
    return json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", fault->msg, "type",
                     type_of(fault->status), "param", fault->param, "code", fault->code);
}
