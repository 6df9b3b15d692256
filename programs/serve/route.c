/* The router and its handlers. */
#include "serve/route.h"

#include "serve/auth.h"
#include "serve/info_json.h"
#include "serve/json_field.h"
#include "serve/json_text.h"
#include "serve/openai_chat.h"
#include "serve/openai_completion.h"
#include "serve/page.h"
#include "serve/response.h"
#include "serve/route_slots.h"
#include "serve/sse.h"

#include <stdlib.h>
#include <string.h>

/* ---- completions ---- */

/* Wait for the next event of a completion. Returns false if the client disconnected, which is also
 * checked while events arrive. */
static bool wait_event(struct lk_exchange *x, struct lk_completion *completion,
                       struct lk_event *event) {
    const double check_s = 0.25;
    for (;;) {
        double now = lk_now();
        if (now - x->alive_check_time >= check_s) {
            x->alive_check_time = now;
            if (!lk_exchange_is_alive(x)) return false;
        }
        if (lk_completion_pop(completion, check_s, event)) return true;
    }
}

/* Collect all events, the first one included, and reply with one JSON object. */
static void reply_json(struct lk_exchange *x, struct lk_completion *completion,
                       struct lk_event *event) {
    struct lk_response response;
    bool good =
        lk_response_init(&response, completion, &x->server->opts, ++x->server->n_completion);
    for (bool more = good; more;) {
        if (event->kind == LK_EVENT_ERROR) {
            lk_exchange_reply_error(x, &completion->error);
            good = false;
        } else {
            good = lk_response_add_event(&response, event);
        }
        more = good && !lk_response_is_complete(&response);
        if (more) good = more = wait_event(x, completion, event);
    }
    if (good) lk_exchange_reply_json(x, 200, lk_response_json(&response));
    lk_response_free(&response);
    lk_completion_abandon(completion);
}

/* Tokenize the request, submit it, and reply. The HTTP status depends on the first event, because
 * a job that waits in the queue may still be refused. */
static void run_completion(struct lk_exchange *x, struct lk_request *request) {
    struct lk_api_error error = {0};
    struct lk_event first;
    struct lk_completion *completion = NULL;
    if (lk_request_prepare(request, &x->server->opts, &error))
        completion = lk_completion_new(request, x->server->opts.model, &error);
    if (!completion) {
        lk_exchange_reply_error(x, &error);
        return;
    }
    if (!lk_scheduler_submit(x->server->scheduler, completion, &error)) {
        lk_exchange_reply_error(x, &error);
        lk_completion_release(completion);
        return;
    }
    if (!wait_event(x, completion, &first))
        lk_completion_abandon(completion);
    else if (completion->request.stream && first.kind != LK_EVENT_ERROR)
        lk_sse_reply(x, completion, &first);
    else
        reply_json(x, completion, &first);
}

static void handle_chat_completions(struct lk_exchange *x) {
    struct lk_request request;
    struct lk_api_error error = {0};
    if (lk_openai_chat_parse(&request, &x->server->opts, x->body.at, x->body.len, &error))
        run_completion(x, &request);
    else
        lk_exchange_reply_error(x, &error);
    lk_request_free(&request);
}

static void handle_completions(struct lk_exchange *x) {
    struct lk_request request;
    struct lk_api_error error = {0};
    if (lk_openai_completion_parse(&request, &x->server->opts, x->body.at, x->body.len, &error))
        run_completion(x, &request);
    else
        lk_exchange_reply_error(x, &error);
    lk_request_free(&request);
}

/* ---- tokens ---- */

static bool tokenize(const lk_model *model, const json_t *body, json_t **out,
                     struct lk_api_error *error) {
    const char *text = NULL;
    bool special = false;
    int32_t *tok = NULL;
    size_t n = 0;
    lk_err err = {0};
    if (!lk_json_field_string(body, "content", &text, error) ||
        !lk_json_field_bool(body, "add_special", &special, error))
        return false;
    if (!text)
        return lk_api_error_set(error, 400, "missing_field", "content", "'content' is missing");
    if (lk_tokenize(model, text, strlen(text), special, &tok, &n, &err))
        return lk_api_error_from_request(error, &err, "content");
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(tok[i]));
    lk_tokens_free(tok);
    *out = json_pack("{s:o}", "tokens", list);
    return true;
}

static bool detokenize(const lk_model *model, const json_t *body, json_t **out,
                       struct lk_api_error *error) {
    const json_t *list = json_object_get(body, "tokens"), *tok;
    int32_t n_vocab = lk_model_get_info(model).n_vocab;
    struct lk_buf text = {0};
    size_t i;
    if (!json_is_array(list))
        return lk_api_error_set(error, 400, "missing_field", "tokens",
                                "'tokens' must be an array of token ids");
    json_array_foreach(list, i, tok) {
        char token_text[512];
        json_int_t id = json_integer_value(tok);
        if (!json_is_integer(tok) || id < 0 || id >= n_vocab) {
            lk_buf_free(&text);
            return lk_api_error_set(error, 400, "invalid_value", "tokens",
                                    "tokens[%zu] is not a token id of this model", i);
        }
        size_t len = lk_token_text(model, (int32_t)id, token_text, sizeof token_text);
        lk_buf_append(&text, token_text, len);
    }
    *out = json_pack("{s:o}", "content", lk_json_from_bytes(text.at ? text.at : "", text.len));
    lk_buf_free(&text);
    return true;
}

/* Parse the body, and reply with the JSON that `convert` makes of it. */
static void reply_converted(struct lk_exchange *x,
                            bool (*convert)(const lk_model *, const json_t *, json_t **,
                                            struct lk_api_error *)) {
    struct lk_api_error error = {0};
    json_t *out = NULL, *body = lk_json_parse_body(x->body.at, x->body.len, &error);
    if (body && convert(x->server->opts.model, body, &out, &error))
        lk_exchange_reply_json(x, 200, out);
    else
        lk_exchange_reply_error(x, &error);
    json_decref(body);
}

static void handle_tokenize(struct lk_exchange *x) { reply_converted(x, tokenize); }

static void handle_detokenize(struct lk_exchange *x) { reply_converted(x, detokenize); }

/* ---- state of the server ---- */

static void handle_models(struct lk_exchange *x) {
    lk_exchange_reply_json(
        x, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", lk_model_json(x->server)));
}

static void handle_health(struct lk_exchange *x) {
    lk_exchange_reply_json(x, 200, json_pack("{s:s}", "status", "ok"));
}

static void handle_slots(struct lk_exchange *x) {
    lk_exchange_reply_json(x, 200, lk_slots_json(x->server));
}

static void handle_metrics(struct lk_exchange *x) {
    struct lk_buf out = {0};
    lk_metrics_print(&x->server->metrics, &out);
    if (!out.failed) lk_exchange_reply_text(x, 200, "text/plain; version=0.0.4", out.at, out.len);
    lk_buf_free(&out);
}

static void handle_page(struct lk_exchange *x) {
    lk_exchange_reply_static(x, 200, "text/html; charset=utf-8", lk_page, lk_page_len);
}

/* GET /v1/models/NAME */
static void handle_model(struct lk_exchange *x) {
    struct lk_api_error error;
    const char *name = x->path + strlen("/v1/models/");
    if (strcmp(name, x->server->opts.id) == 0) {
        lk_exchange_reply_json(x, 200, lk_model_json(x->server));
        return;
    }
    lk_api_error_set(&error, 404, "model_not_found", "model",
                     "model '%.100s' not found; this server has '%.100s'", name,
                     x->server->opts.id);
    lk_exchange_reply_error(x, &error);
}

static void handle_preflight(struct lk_exchange *x) { lk_exchange_reply_text(x, 204, "", "", 0); }

/* ---- the table ---- */

struct lk_route {
    const char *method, *path; /* a path that ends with '/' is a prefix, except for "/" */
    bool is_public;            /* no API key is required */
    void (*handle)(struct lk_exchange *x);
};

static const struct lk_route routes[] = {
    {"POST", "/v1/chat/completions", false, handle_chat_completions},
    {"POST", "/v1/completions", false, handle_completions},
    {"GET", "/v1/models", false, handle_models},
    {"GET", "/v1/models/", false, handle_model},
    {"POST", "/tokenize", false, handle_tokenize},
    {"POST", "/detokenize", false, handle_detokenize},
    {"GET", "/slots", false, handle_slots},
    {"POST", "/slots/", false, lk_route_slot},
    {"GET", "/metrics", false, handle_metrics},
    {"GET", "/health", true, handle_health},
    {"GET", "/", true, handle_page},
};
static const struct lk_route preflight = {"OPTIONS", "", true, handle_preflight};

static bool path_matches(const char *path, const char *pattern) {
    size_t len = strlen(pattern);
    if (len > 1 && pattern[len - 1] == '/') return strncmp(path, pattern, len) == 0 && path[len];
    return strcmp(path, pattern) == 0;
}

bool lk_route_find(struct lk_exchange *x, struct lk_api_error *error) {
    const struct lk_route *found = NULL;
    bool path_known = false;
    const char *method = strcmp(x->method, "HEAD") == 0 ? "GET" : x->method;
    if (strcmp(x->method, "OPTIONS") == 0 && x->server->opts.origin) found = &preflight;
    for (size_t i = 0; !found && i < sizeof routes / sizeof routes[0]; i++) {
        if (!path_matches(x->path, routes[i].path)) continue;
        path_known = true;
        if (strcmp(method, routes[i].method) == 0) found = &routes[i];
    }
    if (!(found && found->is_public) && !lk_auth_check(x, error)) return false;
    x->route = found;
    if (found) return true;
    if (path_known)
        return lk_api_error_set(error, 405, "method_not_allowed", NULL,
                                "method %.10s is not allowed for %.100s", x->method, x->path);
    return lk_api_error_set(error, 404, "not_found", NULL, "%.100s not found", x->path);
}

void lk_route(struct lk_exchange *x) { x->route->handle(x); }
