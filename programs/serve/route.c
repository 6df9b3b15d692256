/* The router and its handlers. */
#include "serve/route.h"

#include "serve/answer.h"
#include "serve/anthropic.h"
#include "serve/auth.h"
#include "serve/call_store.h"
#include "serve/embeddings.h"
#include "serve/info_json.h"
#include "serve/json_field.h"
#include "serve/llamacpp.h"
#include "serve/ollama.h"
#include "serve/openai_chat.h"
#include "serve/openai_completion.h"
#include "serve/openai_responses.h"
#include "serve/page.h"
#include "serve/response_store.h"
#include "serve/route_slots.h"
#include "serve/route_tokens.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- completions ---- */

static const struct lk_endpoint chat = {.parse = lk_openai_chat_parse,
                                        .write_whole = lk_response_text,
                                        .write_event = lk_response_write_event,
                                        .write_end = lk_response_write_end,
                                        .write_error = lk_response_write_error};

static void handle_chat_completions(struct lk_exchange *x) { lk_answer(x, &chat); }

static void handle_completions(struct lk_exchange *x) {
    static const struct lk_endpoint endpoint = {.parse = lk_openai_completion_parse,
                                                .write_whole = lk_response_text,
                                                .write_event = lk_response_write_event,
                                                .write_end = lk_response_write_end,
                                                .write_error = lk_response_write_error};
    lk_answer(x, &endpoint);
}

static void handle_llamacpp_completion(struct lk_exchange *x) {
    lk_answer(x, &lk_llamacpp_completion);
}

static void handle_llamacpp_infill(struct lk_exchange *x) { lk_answer(x, &lk_llamacpp_infill); }

static void handle_embeddings(struct lk_exchange *x) { lk_answer(x, &lk_embeddings_endpoint); }

/* ---- state of the server ---- */

static void add_model(const struct lk_exchange *x, struct lk_served *served, const char *name,
                      json_t *list, json_t *models) {
    json_array_append_new(list, lk_model_json(x->server, served, name));
    json_array_append_new(models, lk_codex_model_json(served, name));
}

static void handle_models(struct lk_exchange *x) {
    const struct lk_server_opts *o = &x->server->opts;
    json_t *list = json_array(), *models = json_array();
    for (size_t i = 0; i < lk_models_count(x->server->models); i++) {
        struct lk_served *served = lk_models_at(x->server->models, i);
        add_model(x, served, lk_served_id(served), list, models);
    }
    for (size_t i = 0; i < o->n_alias; i++)
        add_model(x, lk_models_at(x->server->models, 0), o->alias[i], list, models);
    lk_exchange_reply_json(
        x, 200, json_pack("{s:s, s:o, s:o}", "object", "list", "data", list, "models", models));
}

/* Of several models, which ones are loaded. */
static void handle_health(struct lk_exchange *x) {
    struct lk_models *models = x->server->models;
    json_t *json = json_pack("{s:s}", "status", "ok"), *loaded = json_array();
    for (size_t i = 0; i < lk_models_count(models); i++) {
        struct lk_served *served = lk_models_at(models, i);
        if (lk_models_state(models, served) == LK_SERVED_LOADED)
            json_array_append_new(loaded, json_string(lk_served_id(served)));
    }
    json_object_set_new(json, "loaded", loaded);
    lk_exchange_reply_json(x, 200, json);
}

static bool find_model(const struct lk_exchange *x, const char *name, struct lk_served **out,
                       struct lk_api_error *error);

static void handle_slots(struct lk_exchange *x) {
    const char *name = lk_exchange_query(x, "model");
    struct lk_served *served = NULL;
    struct lk_api_error error;
    if (name && !find_model(x, name, &served, &error))
        lk_exchange_reply_error(x, &error);
    else
        lk_exchange_reply_json(x, 200, lk_slots_json(x->server, served));
}

static void handle_metrics(struct lk_exchange *x) {
    struct lk_metrics *metrics = &x->server->metrics;
    struct lk_buf out = {0};
    metrics->request_bytes = lk_budget_bytes(&x->server->budget);
    metrics->changed_calls = lk_call_store_n_changed(x->server->opts.calls);
    metrics->request_max_bytes = x->server->opts.request_bytes;
    lk_models_print_metrics(x->server->models, metrics, &out);
    if (!out.failed) lk_exchange_reply_text(x, 200, "text/plain; version=0.0.4", out.at, out.len);
    lk_buf_free(&out);
}

static void handle_props(struct lk_exchange *x) {
    lk_exchange_reply_json(x, 200, lk_llamacpp_props(&x->served->opts));
}

static void handle_favicon(struct lk_exchange *x) {
    lk_exchange_reply_static(x, 200, "image/x-icon", (const char *)lk_favicon, lk_favicon_len);
}

/* GET / and /page/NAME */
static void handle_page(struct lk_exchange *x) {
    const char *name = x->path[1] ? x->path + strlen("/page/") : "page.html";
    const struct lk_page_file *file = lk_page_find(name);
    if (file) {
        lk_exchange_reply_static(x, 200, file->type, file->text, *file->len);
        return;
    }
    struct lk_api_error error;
    lk_api_error_set(&error, 404, "not_found", NULL, "%.100s not found", x->path);
    lk_exchange_reply_error(x, &error);
}

/* GET /v1/models/NAME */
static void handle_model(struct lk_exchange *x) {
    struct lk_api_error error;
    const struct lk_server_opts *o = &x->server->opts;
    const char *name = strstr(x->path, "/models/") + strlen("/models/");
    struct lk_served *served;
    if (!find_model(x, name, &served, &error)) {
        lk_exchange_reply_error(x, &error);
        return;
    }
    const char *known = lk_served_id(served);
    for (size_t i = 0; i < o->n_alias; i++)
        if (strcmp(name, o->alias[i]) == 0) known = name;
    lk_exchange_reply_json(x, 200, lk_model_json(x->server, served, known));
}

static void handle_preflight(struct lk_exchange *x) { lk_exchange_reply_text(x, 204, "", "", 0); }

/* ---- the table ---- */

struct lk_route {
    const char *method, *path; /* a path that ends with '/' is a prefix, except for "/" */
    bool is_public;            /* no API key is required */
    void (*handle)(struct lk_exchange *x);
    enum { NO_MODEL, OF_BODY, OF_QUERY } model; /* it needs one, which the request names there */
};

static const struct lk_route routes[] = {
    {"POST", "/v1/chat/completions", false, handle_chat_completions, OF_BODY},
    {"POST", "/chat/completions", false, handle_chat_completions, OF_BODY},
    {"POST", "/v1/completions", false, handle_completions, OF_BODY},
    {"POST", "/v1/responses", false, lk_route_responses, OF_BODY},
    {"GET", "/v1/responses/", false, lk_route_response, NO_MODEL},
    {"DELETE", "/v1/responses/", false, lk_route_response, NO_MODEL},
    {"POST", "/v1/messages", false, lk_route_messages, OF_BODY},
    {"POST", "/v1/messages/count_tokens", false, lk_route_count_tokens, OF_BODY},
    {"POST", "/v1/chat/completions/input_tokens", false, lk_route_count_tokens, OF_BODY},
    {"POST", "/v1/responses/input_tokens", false, lk_route_count_tokens, OF_BODY},
    {"POST", "/api/chat", false, lk_route_ollama_chat, OF_BODY},
    {"POST", "/api/generate", false, lk_route_ollama_generate, OF_BODY},
    {"POST", "/api/show", false, lk_route_ollama_show, OF_BODY},
    {"GET", "/api/tags", false, lk_route_ollama_tags, NO_MODEL},
    {"GET", "/api/ps", false, lk_route_ollama_ps, NO_MODEL},
    {"GET", "/api/version", false, lk_route_ollama_version, NO_MODEL},
    {"POST", "/api/embed", false, lk_route_ollama_embed, OF_BODY},
    {"POST", "/api/embeddings", false, lk_route_ollama_embeddings, OF_BODY},
    {"POST", "/api/pull", false, lk_route_ollama_models, NO_MODEL},
    {"POST", "/api/push", false, lk_route_ollama_models, NO_MODEL},
    {"POST", "/api/create", false, lk_route_ollama_models, NO_MODEL},
    {"POST", "/api/copy", false, lk_route_ollama_models, NO_MODEL},
    {"DELETE", "/api/delete", false, lk_route_ollama_models, NO_MODEL},
    {"POST", "/completions", false, handle_completions, OF_BODY},
    {"POST", "/v1/completion", false, handle_llamacpp_completion, OF_BODY},
    {"POST", "/completion", false, handle_llamacpp_completion, OF_BODY},
    {"POST", "/infill", false, handle_llamacpp_infill, OF_BODY},
    {"POST", "/v1/embeddings", false, handle_embeddings, OF_BODY},
    {"POST", "/embeddings", false, handle_embeddings, OF_BODY},
    {"GET", "/v1/models", false, handle_models, NO_MODEL},
    {"GET", "/models", false, handle_models, NO_MODEL},
    {"GET", "/api/v0/models", false, handle_models, NO_MODEL}, /* LM Studio's */
    {"GET", "/v1/models/", false, handle_model, NO_MODEL},
    {"POST", "/tokenize", false, lk_route_tokenize, OF_BODY},
    {"POST", "/v1/tokenize", false, lk_route_tokenize, OF_BODY},
    {"POST", "/detokenize", false, lk_route_detokenize, OF_BODY},
    {"POST", "/v1/detokenize", false, lk_route_detokenize, OF_BODY},
    {"GET", "/tokenizer_info", false, lk_route_tokenizer_info, OF_QUERY},
    {"POST", "/apply-template", false, lk_route_apply_template, OF_BODY},
    {"GET", "/props", false, handle_props, OF_QUERY},
    {"GET", "/slots", false, handle_slots, NO_MODEL},
    {"POST", "/slots/", false, lk_route_slot, OF_QUERY},
    {"GET", "/metrics", false, handle_metrics, NO_MODEL},
    {"GET", "/health", true, handle_health, NO_MODEL},
    {"GET", "/v1/health", true, handle_health, NO_MODEL},
    {"GET", "/favicon.ico", true, handle_favicon, NO_MODEL},
    {"GET", "/", true, handle_page, NO_MODEL},
    {"GET", "/page/", true, handle_page, NO_MODEL},
};
static const struct lk_route preflight = {"OPTIONS", "", true, handle_preflight, NO_MODEL};

static bool path_matches(const char *path, const char *pattern) {
    size_t len = strlen(pattern);
    if (len > 1 && pattern[len - 1] == '/') return strncmp(path, pattern, len) == 0 && path[len];
    return strcmp(path, pattern) == 0;
}

/* Errors have the form of the API that the path belongs to. */
static json_t *(*error_form(const char *path))(const struct lk_api_error *error) {
    if (strncmp(path, "/api/", 5) == 0) return lk_ollama_error_json;
    if (strncmp(path, "/v1/messages", 12) == 0) return lk_anthropic_error_json;
    if (strncmp(path, "/v1/responses", 13) == 0) return lk_openai_responses_error_json;
    if (strcmp(path, "/completion") == 0 || strcmp(path, "/infill") == 0)
        return lk_llamacpp_error_json;
    return lk_api_error_json;
}

/* The route of a path, with the method if it has one. *known: some method has this path. */
static const struct lk_route *find_route(const char *path, const char *method, bool *known) {
    const struct lk_route *found = NULL;
    for (size_t i = 0; !found && i < sizeof routes / sizeof routes[0]; i++) {
        if (!path_matches(path, routes[i].path)) continue;
        *known = true;
        if (strcmp(method, routes[i].method) == 0) found = &routes[i];
    }
    return found;
}

/* Base URLs of clients have more or less than this server's: "/v1" twice or not at all, a name of
 * an API, a slash too many. Returns the part after such prefixes; `path` loses extra slashes. */
static const char *strip_prefixes(char *path) {
    static const char *const prefixes[] = {"/v1/", "/openai/", "/anthropic/", "/api/v0/",
                                           "/api/v1/"};
    size_t n = 0;
    for (const char *c = path; *c; c++)
        if (*c != '/' || n == 0 || path[n - 1] != '/') path[n++] = *c;
    if (n > 1 && path[n - 1] == '/') n--;
    path[n] = 0;
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        size_t len = strlen(prefixes[i]);
        if (strncmp(path, prefixes[i], len) != 0) continue;
        path += len - 1;
        i = (size_t)-1; /* once more from the first one */
    }
    return path;
}

/* Replace a path that is not known by the one that the client means. */
static const struct lk_route *find_meant(char path[128], const char *method, bool *known) {
    char given[128], meant[136];
    snprintf(given, sizeof given, "%s", path);
    const char *rest = strip_prefixes(given);
    static const char *const before[] = {"/v1", ""};
    for (size_t i = 0; rest[0] == '/' && rest[1] && i < 2; i++) {
        snprintf(meant, sizeof meant, "%s%s", before[i], rest);
        const struct lk_route *found = find_route(meant, method, known);
        if (!*known || strlen(meant) >= sizeof given) continue;
        memcpy(path, meant, strlen(meant) + 1);
        return found;
    }
    return NULL;
}

bool lk_route_find(struct lk_exchange *x, struct lk_api_error *error) {
    const struct lk_route *found = NULL;
    bool path_known = false;
    const char *method = strcmp(x->method, "HEAD") == 0 ? "GET" : x->method;
    if (strcmp(x->method, "OPTIONS") == 0 && x->server->opts.origin) found = &preflight;
    if (!found) found = find_route(x->path, method, &path_known);
    if (!found && !path_known) found = find_meant(x->path, method, &path_known);
    x->error_json = error_form(x->path);
    if (!(found && found->is_public) && !lk_auth_check(x, error)) return false;
    x->route = found;
    if (found) return true;
    if (path_known)
        return lk_api_error_set(error, 405, "method_not_allowed", NULL,
                                "method %.10s is not allowed for %.100s", x->method, x->path);
    return lk_api_error_set(error, 404, "not_found", NULL, "%.100s not found", x->path);
}

/* ---- the model of a request ---- */

static bool find_model(const struct lk_exchange *x, const char *name, struct lk_served **out,
                       struct lk_api_error *error) {
    struct lk_models *models = x->server->models;
    *out = lk_models_find(models, name);
    if (*out) return true;
    if (lk_models_are_several(models))
        return lk_api_error_set(error, 404, "model_not_found", "model",
                                "model '%.100s' not found; /v1/models lists the models", name);
    return lk_api_error_set(error, 404, "model_not_found", "model",
                            "model '%.100s' not found; this server has '%.100s'", name,
                            x->server->opts.id);
}

static bool is_alive(void *user) { return lk_exchange_is_alive(user); }

/* Reply to a request of ollama that unloads a model: no prompt, and keep_alive 0. */
static bool reply_unloaded(struct lk_exchange *x, struct lk_served *served,
                           const struct lk_wanted *wanted) {
    bool chat = x->route->handle == lk_route_ollama_chat;
    if (!(chat || x->route->handle == lk_route_ollama_generate) || !wanted->is_empty ||
        wanted->keep_s != 0)
        return false;
    lk_models_keep(x->server->models, served, 0);
    lk_exchange_reply_json(x, 200, lk_ollama_unloaded_json(lk_served_id(served), chat));
    return true;
}

/* Set x->served to the model that the request names, loaded. False: it got its reply, or the client
 * is gone. */
static bool choose_model(struct lk_exchange *x) {
    struct lk_models *models = x->server->models;
    struct lk_served *served = lk_models_default(models);
    struct lk_wanted wanted = {.keep_s = NAN};
    struct lk_api_error error = {0};
    const char *name = lk_exchange_query(x, "model");
    bool several = lk_models_are_several(models), good = true;
    if (several && x->route->model == OF_BODY) good = lk_wanted_read(x, &wanted, &error);
    if (wanted.model[0]) name = wanted.model;
    if (several && name && *name) good = good && find_model(x, name, &served, &error);
    if (good && several && reply_unloaded(x, served, &wanted)) return false;
    good = good && lk_models_use(models, served, is_alive, x, &error);
    if (good) x->served = served;
    if (good && !isnan(wanted.keep_s)) lk_models_keep(models, served, wanted.keep_s);
    if (!good && error.status) lk_exchange_reply_error(x, &error);
    return good;
}

void lk_route(struct lk_exchange *x) {
    if (x->route->model == NO_MODEL || choose_model(x)) x->route->handle(x);
}

/* ---- other APIs ---- */

void lk_route_responses(struct lk_exchange *x) { lk_answer(x, &lk_openai_responses); }

void lk_route_response(struct lk_exchange *x) {
    const char *id = x->path + strlen("/v1/responses/");
    struct lk_response_store *store = x->server->opts.responses;
    struct lk_api_error error;
    bool removes = strcmp(x->method, "DELETE") == 0, found;
    char *text = NULL;
    if (!removes && !lk_charge_add(&x->charge, 2 * LK_MAX_STORED_RESPONSE, &error)) {
        lk_exchange_reply_error(x, &error);
        return;
    }
    if (removes)
        found = lk_response_store_remove(store, id);
    else
        found = (text = lk_response_store_text(store, id)) != NULL;
    if (!found) {
        lk_api_error_set(&error, 404, "not_found", "response_id",
                         "there is no response '%.80s': the last %d responses are kept, up to %d "
                         "MiB, until the server stops",
                         id, LK_STORED_RESPONSES, LK_STORED_RESPONSE_BYTES >> 20);
        lk_exchange_reply_error(x, &error);
    } else if (removes) {
        lk_exchange_reply_json(
            x, 200, json_pack("{s:s, s:s, s:b}", "id", id, "object", "response", "deleted", 1));
    } else {
        lk_exchange_reply_text(x, 200, "application/json", text, strlen(text));
    }
    free(text);
}

void lk_route_messages(struct lk_exchange *x) { lk_answer(x, &lk_anthropic); }

/* ---- tokens of a conversation ---- */

/* Prepare a request as if it were to be answered, and count its tokens. */
static void count_prompt(void *arg) {
    struct lk_work *work = arg;
    struct lk_exchange *x = work->x;
    const struct lk_server_opts *opts = &x->server->opts;
    struct lk_request request = {0};
    if (!lk_work_charge_body(work)) return;
    if (work->endpoint->parse(&request, opts, x->body.at, x->body.len, &work->error) &&
        lk_charge_add(&work->charge, lk_request_bytes(&request), &work->error)) {
        request.all_turns = true; /* clients compare the number with the context */
        bool fits = lk_request_prepare(&request, opts, &work->error);
        size_t n_tok = fits ? request.prompt[0].n_tok : work->error.n_tok;
        if (n_tok > 0) { /* also of a prompt that does not fit: clients compare */
            work->error = (struct lk_api_error){0};
            lk_buf_add_json(&work->out, json_pack("{s:I}", "input_tokens", (json_int_t)n_tok));
        }
    }
    lk_request_free(&request);
}

void lk_route_count_tokens(struct lk_exchange *x) {
    struct lk_work work = {.x = x, .endpoint = &lk_anthropic_count};
    if (strstr(x->path, "/chat/completions")) work.endpoint = &chat;
    if (strstr(x->path, "/responses")) work.endpoint = &lk_openai_responses;
    lk_work_reply(&work, count_prompt);
}

/* ---- ollama ---- */

void lk_route_ollama_chat(struct lk_exchange *x) { lk_answer(x, &lk_ollama_chat); }

void lk_route_ollama_generate(struct lk_exchange *x) { lk_answer(x, &lk_ollama_generate); }

void lk_route_ollama_show(struct lk_exchange *x) {
    struct lk_work work = {.x = x, .convert = lk_ollama_show};
    lk_work_reply(&work, lk_work_convert);
}

void lk_route_ollama_tags(struct lk_exchange *x) {
    lk_exchange_reply_json(x, 200, lk_ollama_tags_json(x->server));
}

void lk_route_ollama_ps(struct lk_exchange *x) {
    lk_exchange_reply_json(x, 200, lk_ollama_ps_json(x->server));
}

void lk_route_ollama_version(struct lk_exchange *x) {
    lk_exchange_reply_json(x, 200, lk_ollama_version_json());
}

void lk_route_ollama_embed(struct lk_exchange *x) { lk_answer(x, &lk_ollama_embed); }

void lk_route_ollama_embeddings(struct lk_exchange *x) { lk_answer(x, &lk_ollama_embeddings); }

void lk_route_ollama_models(struct lk_exchange *x) {
    struct lk_api_error error;
    lk_api_error_set(&error, 501, "not_supported", NULL,
                     "%.100s is not supported: the models of this server are given at its start, "
                     "with 'lowkey serve -m FILE' or --models FOLDER",
                     x->path);
    lk_exchange_reply_error(x, &error);
}
