#include "serve/route.h"

#include "serve/field.h"
#include "serve/page.h"
#include "serve/sse.h"
#include "serve/state.h"

#include <stdlib.h>
#include <string.h>

/* ---- completions ---- */

/* The next event of a call; false when the client hung up, which is looked for also while events come. */
static bool next_event(struct lk_exchange *x, struct lk_call *call, struct lk_event *event) {
    const double look_s = 0.25;
    for (;;) {
        double now = lk_now();
        if (now - x->looked >= look_s) {
            x->looked = now;
            if (!lk_exchange_alive(x)) return false;
        }
        if (lk_call_pop(call, look_s, event)) return true;
    }
}

static void reply_whole(struct lk_exchange *x, struct lk_call *call, struct lk_event *event) {
    struct lk_answer answer;
    bool good = lk_answer_begin(&answer, call, &x->server->opts, ++x->server->n_call);
    for (bool more = good; more;) {
        if (event->kind == LK_EVENT_FAULT) {
            lk_reply_fault(x, &call->fault);
            good = false;
        } else {
            good = lk_answer_take(&answer, event);
        }
        more = good && !lk_answer_complete(&answer);
        if (more) good = more = next_event(x, call, event);
    }
    if (good) lk_reply_json(x, 200, lk_answer_whole(&answer));
    lk_answer_free(&answer);
    call->gone = true;
    lk_call_release(call);
}

/* The status of a reply is that of its first event: what waits in the queue may yet be refused. */
static void complete(struct lk_exchange *x, struct lk_ask *ask) {
    struct lk_fault fault = {0};
    struct lk_event first;
    struct lk_call *call = NULL;
    if (lk_ask_prepare(ask, &x->server->opts, &fault))
        call = lk_call_new(ask, x->server->opts.model, &fault);
    if (!call) {
        lk_reply_fault(x, &fault);
        return;
    }
    if (!lk_scheduler_submit(x->server->scheduler, call, &fault)) {
        lk_reply_fault(x, &fault);
        lk_call_release(call);
        return;
    }
    lk_exchange_working(x, true);
    if (!next_event(x, call, &first)) {
        call->gone = true;
        lk_call_release(call);
    } else if (call->ask.stream && first.kind != LK_EVENT_FAULT) {
        lk_sse_reply(x, call, &first);
    } else {
        reply_whole(x, call, &first);
    }
    lk_exchange_working(x, false);
}

static void chat_completions(struct lk_exchange *x) {
    struct lk_ask ask;
    struct lk_fault fault = {0};
    if (lk_ask_chat(&ask, &x->server->opts, x->body.at, x->body.len, &fault))
        complete(x, &ask);
    else
        lk_reply_fault(x, &fault);
    lk_ask_free(&ask);
}

static void completions(struct lk_exchange *x) {
    struct lk_ask ask;
    struct lk_fault fault = {0};
    if (lk_ask_completion(&ask, &x->server->opts, x->body.at, x->body.len, &fault))
        complete(x, &ask);
    else
        lk_reply_fault(x, &fault);
    lk_ask_free(&ask);
}

/* ---- tokens ---- */

static bool make_tokens(struct lk_exchange *x, const json_t *body, json_t **out,
                        struct lk_fault *fault) {
    const char *text = NULL;
    bool special = false;
    int32_t *tok = NULL;
    size_t n = 0;
    lk_err err = {0};
    if (!lk_field_text(body, "content", &text, fault) ||
        !lk_field_bool(body, "add_special", &special, fault))
        return false;
    if (!text) return lk_fault_set(fault, 400, "missing_field", "content", "'content' is missing");
    if (lk_tokenize(x->server->opts.model, text, strlen(text), special, &tok, &n, &err))
        return lk_fault_of(fault, &err, "content");
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(tok[i]));
    lk_tokens_free(tok);
    *out = json_pack("{s:o}", "tokens", list);
    return true;
}

static bool make_text(struct lk_exchange *x, const json_t *body, json_t **out,
                      struct lk_fault *fault) {
    const json_t *list = json_object_get(body, "tokens"), *tok;
    struct lk_buf text = {0};
    size_t i;
    if (!json_is_array(list))
        return lk_fault_set(fault, 400, "missing_field", "tokens",
                            "'tokens' must be an array of token numbers");
    json_array_foreach(list, i, tok) {
        char piece[512];
        json_int_t id = json_integer_value(tok);
        if (!json_is_integer(tok) || id < 0 ||
            id >= lk_model_get_info(x->server->opts.model).n_vocab) {
            lk_buf_free(&text);
            return lk_fault_set(fault, 400, "invalid_value", "tokens",
                                "tokens[%zu] is no token of this model", i);
        }
        size_t len = lk_token_text(x->server->opts.model, (int32_t)id, piece, sizeof piece);
        lk_buf_add(&text, piece, len < sizeof piece ? len : sizeof piece - 1);
    }
    *out = json_pack("{s:o}", "content", lk_json_text(text.at ? text.at : "", text.len));
    lk_buf_free(&text);
    return true;
}

static void reply_made(struct lk_exchange *x, bool (*make)(struct lk_exchange *, const json_t *,
                                                           json_t **, struct lk_fault *)) {
    struct lk_fault fault = {0};
    json_t *out = NULL, *body = lk_body_parse(x->body.at, x->body.len, &fault);
    if (body && make(x, body, &out, &fault))
        lk_reply_json(x, 200, out);
    else
        lk_reply_fault(x, &fault);
    json_decref(body);
}

static void tokenize(struct lk_exchange *x) { reply_made(x, make_tokens); }
static void detokenize(struct lk_exchange *x) { reply_made(x, make_text); }

/* ---- what there is ---- */

static void models(struct lk_exchange *x) {
    lk_reply_json(x, 200,
                  json_pack("{s:s, s:[o]}", "object", "list", "data", lk_state_model(x->server)));
}

static void health(struct lk_exchange *x) {
    lk_reply_json(x, 200, json_pack("{s:s}", "status", "ok"));
}
static void slots(struct lk_exchange *x) { lk_reply_json(x, 200, lk_state_slots(x->server)); }

static void metrics(struct lk_exchange *x) {
    struct lk_buf out = {0};
    lk_metrics_print(&x->server->metrics, &out);
    if (!out.failed) lk_reply_text(x, 200, "text/plain; version=0.0.4", out.at, out.len);
    lk_buf_free(&out);
}

static void page(struct lk_exchange *x) {
    lk_reply_static(x, 200, "text/html; charset=utf-8", lk_page, lk_page_len);
}

/* ---- the table ---- */

static const struct route {
    const char *method, *path;
    bool open; /* no key is needed */
    void (*handle)(struct lk_exchange *x);
} routes[] = {
    {"POST", "/v1/chat/completions", false, chat_completions},
    {"POST", "/v1/completions", false, completions},
    {"GET", "/v1/models", false, models},
    {"POST", "/tokenize", false, tokenize},
    {"POST", "/detokenize", false, detokenize},
    {"GET", "/slots", false, slots},
    {"GET", "/metrics", false, metrics},
    {"GET", "/health", true, health},
    {"GET", "/", true, page},
};

/* "/v1/models/NAME". */
static bool one_model(struct lk_exchange *x) {
    static const char prefix[] = "/v1/models/";
    struct lk_fault fault;
    const char *name = x->path + sizeof prefix - 1;
    if (strncmp(x->path, prefix, sizeof prefix - 1) != 0 || strcmp(x->method, "GET") != 0)
        return false;
    if (strcmp(name, x->server->opts.id) == 0) {
        lk_reply_json(x, 200, lk_state_model(x->server));
    } else {
        lk_fault_set(&fault, 404, "model_not_found", "model",
                     "there is no model '%.100s' here, but '%.100s'", name, x->server->opts.id);
        lk_reply_fault(x, &fault);
    }
    return true;
}

static void not_found(struct lk_exchange *x, bool path_known) {
    struct lk_fault fault;
    if (path_known)
        lk_fault_set(&fault, 405, "method_not_allowed", NULL, "%.10s is not what %.100s answers to",
                     x->method, x->path);
    else
        lk_fault_set(&fault, 404, "not_found", NULL, "there is nothing at %.100s", x->path);
    lk_reply_fault(x, &fault);
}

void lk_route(struct lk_exchange *x) {
    struct lk_fault fault = {0};
    const struct route *found = NULL;
    bool path_known = false;
    const char *method = strcmp(x->method, "HEAD") == 0 ? "GET" : x->method;
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (strcmp(x->path, routes[i].path) != 0) continue;
        path_known = true;
        if (strcmp(method, routes[i].method) == 0) found = &routes[i];
    }
    if (strcmp(x->method, "OPTIONS") == 0 && x->server->opts.origin)
        lk_reply_text(x, 204, "", "", 0);
    else if (!(found && found->open) && !lk_guard(x, &fault))
        lk_reply_fault(x, &fault);
    else if (found)
        found->handle(x);
    else if (!one_model(x) && !lk_route_slot(x))
        not_found(x, path_known);
}
