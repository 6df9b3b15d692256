/* The router and its handlers. */
#include "serve/route.h"

#include "serve/anthropic.h"
#include "serve/auth.h"
#include "serve/info_json.h"
#include "serve/json_field.h"
#include "serve/json_text.h"
#include "serve/ollama.h"
#include "serve/ollama_info.h"
#include "serve/openai_responses.h"
#include "serve/page.h"
#include "serve/route_slots.h"
#include "serve/sse.h"

#include <stdlib.h>
#include <string.h>

/* ---- events of a completion ---- */

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

static void reply_out_of_memory(struct lk_exchange *x) {
    struct lk_api_error error;
    lk_api_error_set(&error, 503, "out_of_memory", NULL, "out of memory: the response was lost");
    lk_exchange_reply_error(x, &error);
}

/* Collect all events, the first one included, and reply with one JSON object. */
static void reply_json(struct lk_exchange *x, struct lk_completion *completion,
                       struct lk_event *event) {
    struct lk_response response;
    struct lk_buf text = {0};
    bool good =
        lk_response_init(&response, completion, &x->server->opts, ++x->server->n_completion);
    bool alive = true;
    while (good && alive && event->kind != LK_EVENT_ERROR) {
        good = lk_response_add_event(&response, event);
        if (lk_response_is_complete(&response)) break;
        alive = good && wait_event(x, completion, event);
    }
    if (good && alive && event->kind != LK_EVENT_ERROR) good = x->protocol->whole(&response, &text);
    lk_response_free(&response);
    if (!good)
        reply_out_of_memory(x);
    else if (alive && event->kind == LK_EVENT_ERROR)
        lk_exchange_reply_error(x, &completion->error);
    else if (alive)
        lk_exchange_reply_text(x, 200, "application/json", text.at, text.len);
    lk_buf_free(&text);
    lk_completion_abandon(completion);
}

/* ---- work outside the model, on a worker ---- */

/* What a worker makes of a request. */
struct work {
    struct lk_exchange *x;
    double start_time;
    struct lk_charge charge;
    struct lk_completion *completion; /* result of make_completion */
    bool (*convert)(const struct lk_server_opts *opts, const json_t *body, struct lk_buf *out,
                    struct lk_api_error *error);
    struct lk_buf out; /* result of convert_body, or a reply that needs no completion */
    struct lk_api_error error;
};

/* The client of a queued task may leave, and its time in the queue is limited. */
static bool keep_waiting(void *user) {
    struct work *work = user;
    double waited = lk_now() - work->start_time, max = work->x->server->opts.queue_s;
    if (waited > max) {
        lk_api_error_set(&work->error, 503, "overloaded", NULL,
                         "the request waited %.0f seconds to be parsed; the workers are busy",
                         waited);
        work->error.retry_s = 2;
        return false;
    }
    return lk_exchange_is_alive(work->x);
}

/* Charge for the copies of the body that parsing makes. */
static bool charge_body(struct work *work, int n_body) {
    const struct lk_buf *body = &work->x->body;
    uint64_t bytes = lk_json_parsed_bytes(lk_buf_cstr(body), body->len);
    return lk_charge_add(&work->charge, bytes * (uint64_t)n_body, &work->error);
}

/* Parse the request, tokenize its prompts and compile its grammar. The order is from cheap to
 * expensive, and each step is charged before it starts. */
static void make_completion(void *arg) {
    struct work *work = arg;
    struct lk_exchange *x = work->x;
    const struct lk_server_opts *opts = &x->server->opts;
    struct lk_request request = {0};
    if (!charge_body(work, x->protocol->n_body)) return;
    if (!x->protocol->parse(&request, opts, x->body.at, x->body.len, &work->error))
        ;
    else if (request.n_msg + request.n_prompt == 0)
        lk_buf_add_json(&work->out, x->protocol->empty(opts));
    else if (lk_charge_add(&work->charge, lk_request_bytes(&request), &work->error) &&
             lk_request_prepare(&request, opts, &work->error))
        work->completion = lk_completion_new(&request, &work->charge, opts, &work->error);
    lk_request_free(&request);
}

static void convert_body(void *arg) {
    struct work *work = arg;
    const struct lk_exchange *x = work->x;
    if (!charge_body(work, 1)) return;
    json_t *body = lk_json_parse_body(x->body.at, x->body.len, &work->error);
    if (body && work->convert(&x->server->opts, body, &work->out, &work->error) && work->out.failed)
        lk_api_error_set(&work->error, 503, "out_of_memory", NULL, "out of memory: response");
    json_decref(body);
}

/* Run `fn` on a worker. False: a reply was sent, or the client is gone. */
static bool run_work(struct work *work, void (*fn)(void *arg)) {
    struct lk_exchange *x = work->x;
    work->start_time = lk_now();
    work->charge.budget = &x->server->budget;
    enum { LARGE = 256 << 10 }; /* bytes of body, some milliseconds of work */
    bool ran =
        lk_workers_run(x->server->workers, x->body.len > LARGE, fn, work, keep_waiting, work);
    lk_buf_free(&x->body);
    lk_charge_release(&x->charge);
    if (!ran && !work->error.status) {
        if (!lk_exchange_is_alive(x)) return false;
        lk_api_error_set_stopping(&work->error);
    }
    if (work->error.status) lk_exchange_reply_error(x, &work->error);
    return work->error.status == 0;
}

/* ---- completions ---- */

/* Submit the request and reply. The HTTP status depends on the first event, because a job that
 * waits in the queue may still be refused. */
static void handle_completion(struct lk_exchange *x) {
    struct work work = {.x = x};
    struct lk_event first;
    bool made = run_work(&work, make_completion);
    lk_charge_release(&work.charge); /* what the completion did not take over */
    struct lk_completion *completion = work.completion;
    if (made && !completion) {
        lk_exchange_reply_text(x, 200, "application/json", work.out.at, work.out.len);
        lk_buf_free(&work.out);
        return;
    }
    if (made) completion->client = lk_auth_client(x);
    if (made && !lk_scheduler_submit(x->server->scheduler, completion, &work.error)) {
        lk_exchange_reply_error(x, &work.error);
        lk_completion_release(completion);
        made = false;
    }
    if (made && !wait_event(x, completion, &first))
        lk_completion_abandon(completion);
    else if (made && completion->request.stream && first.kind != LK_EVENT_ERROR)
        lk_sse_reply(x, completion, &first);
    else if (made)
        reply_json(x, completion, &first);
}

/* ---- tokens ---- */

/* Prepare a request as if it were to be answered, and count its tokens. */
static void count_prompt(void *arg) {
    struct work *work = arg;
    struct lk_exchange *x = work->x;
    const struct lk_server_opts *opts = &x->server->opts;
    struct lk_request request = {0};
    if (!charge_body(work, x->protocol->n_body)) return;
    if (x->protocol->parse(&request, opts, x->body.at, x->body.len, &work->error) &&
        lk_charge_add(&work->charge, lk_request_bytes(&request), &work->error) &&
        lk_request_prepare(&request, opts, &work->error))
        lk_buf_add_json(&work->out, lk_anthropic_count_json(&request));
    lk_request_free(&request);
}

static void handle_count(struct lk_exchange *x) {
    struct work work = {.x = x};
    if (run_work(&work, count_prompt))
        lk_exchange_reply_text(x, 200, "application/json", work.out.at, work.out.len);
    lk_charge_release(&work.charge);
    lk_buf_free(&work.out);
}

/* Longest list of tokens that is converted in one request. */
static size_t max_tokens(const struct lk_server_opts *opts) {
    enum { MIN = 1 << 16 };
    return opts->n_ctx > MIN ? (size_t)opts->n_ctx : MIN;
}

static bool tokenize(const struct lk_server_opts *opts, const json_t *body, struct lk_buf *out,
                     struct lk_api_error *error) {
    const char *text = NULL;
    bool begin = false, control = false;
    int32_t *tok = NULL;
    size_t n = 0;
    lk_err err = {0};
    if (!lk_json_field_string(body, "content", &text, error) ||
        !lk_json_field_bool(body, "add_special", &begin, error) ||
        !lk_json_field_bool(body, "parse_special", &control, error))
        return false;
    if (!text)
        return lk_api_error_set(error, 400, "missing_field", "content", "'content' is missing");
    unsigned flags = (begin ? LK_TOKENIZE_BEGIN : 0) | (control ? LK_TOKENIZE_CONTROL : 0);
    if (lk_tokenize(opts->model, text, strlen(text), flags, max_tokens(opts), &tok, &n, &err))
        return lk_api_error_from_request(error, &err, "content");
    lk_buf_append_str(out, "{\"tokens\":[");
    for (size_t i = 0; i < n; i++) lk_buf_printf(out, "%s%d", i ? "," : "", tok[i]);
    lk_buf_append_str(out, "]}");
    lk_tokens_free(tok);
    return true;
}

static bool detokenize(const struct lk_server_opts *opts, const json_t *body, struct lk_buf *out,
                       struct lk_api_error *error) {
    const json_t *list = json_object_get(body, "tokens"), *tok;
    int32_t n_vocab = lk_model_get_info(opts->model).n_vocab;
    enum { MAX_TEXT = 1 << 20 };
    struct lk_buf text = {.max = MAX_TEXT};
    size_t i;
    if (!json_is_array(list))
        return lk_api_error_set(error, 400, "missing_field", "tokens",
                                "'tokens' must be an array of token ids");
    if (json_array_size(list) > max_tokens(opts))
        return lk_api_error_set(error, 400, "invalid_value", "tokens",
                                "'tokens' has %zu elements; the maximum is %zu",
                                json_array_size(list), max_tokens(opts));
    json_array_foreach(list, i, tok) {
        size_t len;
        json_int_t id = json_integer_value(tok);
        if (!json_is_integer(tok) || id < 0 || id >= n_vocab) {
            lk_buf_free(&text);
            return lk_api_error_set(error, 400, "invalid_value", "tokens",
                                    "tokens[%zu] is not a token id of this model", i);
        }
        const char *token_text = lk_token_text(opts->model, (int32_t)id, &len);
        lk_buf_append(&text, token_text, len);
    }
    if (text.failed) {
        lk_buf_free(&text);
        return lk_api_error_set(error, 413, "text_too_long", "tokens",
                                "the text of the tokens has more than %d bytes; convert them in "
                                "parts",
                                MAX_TEXT);
    }
    lk_buf_append_str(out, "{\"content\":");
    lk_buf_add_json(out, lk_json_from_bytes(lk_buf_cstr(&text), text.len));
    lk_buf_append_str(out, "}");
    lk_buf_free(&text);
    return true;
}

/* Reply with the JSON text that `convert` makes of the body. */
static void reply_converted(struct lk_exchange *x,
                            bool (*convert)(const struct lk_server_opts *, const json_t *,
                                            struct lk_buf *, struct lk_api_error *)) {
    struct work work = {.x = x, .convert = convert};
    if (run_work(&work, convert_body))
        lk_exchange_reply_text(x, 200, "application/json", work.out.at, work.out.len);
    lk_charge_release(&work.charge);
    lk_buf_free(&work.out);
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
    struct lk_metrics *metrics = &x->server->metrics;
    struct lk_buf out = {0};
    metrics->request_bytes = lk_budget_bytes(&x->server->budget);
    metrics->request_max_bytes = x->server->opts.request_bytes;
    lk_metrics_print(metrics, &out);
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

/* ---- ollama ---- */

static void handle_ollama_show(struct lk_exchange *x) { reply_converted(x, lk_ollama_show); }

static void handle_ollama_tags(struct lk_exchange *x) {
    lk_exchange_reply_json(x, 200, lk_ollama_tags_json(x->server));
}

static void handle_ollama_ps(struct lk_exchange *x) {
    lk_exchange_reply_json(x, 200, lk_ollama_ps_json(x->server));
}

static void handle_ollama_version(struct lk_exchange *x) {
    lk_exchange_reply_json(x, 200, lk_ollama_version_json());
}

static void handle_ollama_embed(struct lk_exchange *x) {
    struct lk_api_error error;
    lk_api_error_set(&error, 501, "not_supported", NULL,
                     "this server makes no embeddings: use another server for them");
    lk_exchange_reply_error(x, &error);
}

/* What changes the list of models. */
static void handle_ollama_models(struct lk_exchange *x) {
    struct lk_api_error error;
    lk_api_error_set(&error, 501, "not_supported", NULL,
                     "%.100s is not supported: this server has one model, '%.100s', which is given "
                     "at its start with 'lowkey serve -m FILE'",
                     x->path, x->server->opts.id);
    lk_exchange_reply_error(x, &error);
}

static void handle_preflight(struct lk_exchange *x) { lk_exchange_reply_text(x, 204, "", "", 0); }

/* ---- the table ---- */

struct lk_route {
    const char *method, *path; /* a path that ends with '/' is a prefix, except for "/" */
    bool is_public;            /* no API key is required */
    void (*handle)(struct lk_exchange *x);
    const struct lk_protocol *protocol; /* NULL: errors have OpenAI's form */
};

static const struct lk_route routes[] = {
    {"POST", "/v1/chat/completions", false, handle_completion, &lk_openai_chat},
    {"POST", "/v1/completions", false, handle_completion, &lk_openai_completion},
    {"POST", "/v1/responses", false, handle_completion, &lk_openai_responses},
    {"POST", "/v1/messages", false, handle_completion, &lk_anthropic},
    {"POST", "/v1/messages/count_tokens", false, handle_count, &lk_anthropic_count},
    {"POST", "/api/chat", false, handle_completion, &lk_ollama_chat},
    {"POST", "/api/generate", false, handle_completion, &lk_ollama_generate},
    {"POST", "/api/show", false, handle_ollama_show, &lk_ollama_other},
    {"GET", "/api/tags", false, handle_ollama_tags, &lk_ollama_other},
    {"GET", "/api/ps", false, handle_ollama_ps, &lk_ollama_other},
    {"GET", "/api/version", false, handle_ollama_version, &lk_ollama_other},
    {"POST", "/api/embed", false, handle_ollama_embed, &lk_ollama_other},
    {"POST", "/api/embeddings", false, handle_ollama_embed, &lk_ollama_other},
    {"POST", "/api/pull", false, handle_ollama_models, &lk_ollama_other},
    {"POST", "/api/push", false, handle_ollama_models, &lk_ollama_other},
    {"POST", "/api/create", false, handle_ollama_models, &lk_ollama_other},
    {"POST", "/api/copy", false, handle_ollama_models, &lk_ollama_other},
    {"DELETE", "/api/delete", false, handle_ollama_models, &lk_ollama_other},
    {"GET", "/v1/models", false, handle_models, NULL},
    {"GET", "/v1/models/", false, handle_model, NULL},
    {"POST", "/tokenize", false, handle_tokenize, NULL},
    {"POST", "/detokenize", false, handle_detokenize, NULL},
    {"GET", "/slots", false, handle_slots, NULL},
    {"POST", "/slots/", false, lk_route_slot, NULL},
    {"GET", "/metrics", false, handle_metrics, NULL},
    {"GET", "/health", true, handle_health, NULL},
    {"GET", "/", true, handle_page, NULL},
};
static const struct lk_route preflight = {"OPTIONS", "", true, handle_preflight, NULL};

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
        x->protocol = routes[i].protocol;
        if (strcmp(method, routes[i].method) == 0) found = &routes[i];
    }
    if (!path_known && strncmp(x->path, "/api/", 5) == 0) x->protocol = &lk_ollama_other;
    if (!(found && found->is_public) && !lk_auth_check(x, error)) return false;
    x->route = found;
    if (found) return true;
    if (path_known)
        return lk_api_error_set(error, 405, "method_not_allowed", NULL,
                                "method %.10s is not allowed for %.100s", x->method, x->path);
    return lk_api_error_set(error, 404, "not_found", NULL, "%.100s not found", x->path);
}

void lk_route(struct lk_exchange *x) { x->route->handle(x); }
