#include "serve/ask.h"

#include "serve/field.h"
#include "serve/schema.h"
#include "serve/tools.h"

#include <stdlib.h>
#include <string.h>

json_t *lk_body_parse(const char *body, size_t len, struct lk_fault *fault) {
    json_error_t why;
    json_t *json = json_loadb(body ? body : "", len, 0, &why);
    if (json && json_is_object(json)) return json;
    if (json)
        lk_fault_set(fault, 400, "invalid_json", NULL, "the body is not a JSON object");
    else
        lk_fault_set(fault, 400, "invalid_json", NULL,
                     "the body is not JSON: %s (line %d, column %d)", why.text, why.line,
                     why.column);
    json_decref(json);
    return NULL;
}

/* Does the value ask for anything, other than the number that changes nothing? */
static bool asks(const json_t *v, double neutral) {
    if (json_is_number(v)) return json_number_value(v) != neutral;
    if (json_is_string(v)) return json_string_length(v) > 0;
    if (json_is_array(v) || json_is_object(v)) return json_array_size(v) + json_object_size(v) > 0;
    return json_is_true(v);
}

/* What OpenAI's server or llama.cpp's has and this one does not: refused, so that nothing is lost silently. Clients
 * that send every field with the value that changes nothing are served. */
static bool refuse_unsupported(const json_t *body, struct lk_fault *fault) {
    static const struct {
        const char *name;
        double neutral;
    } fields[] = {{"suffix", 0},         {"functions", 0},       {"function_call", 0},
                  {"audio", 0},          {"prediction", 0},      {"web_search_options", 0},
                  {"grammar", 0},        {"typical_p", 1},       {"mirostat", 0},
                  {"tfs_z", 1},          {"top_n_sigma", -1},    {"dynatemp_range", 0},
                  {"dry_multiplier", 0}, {"xtc_probability", 0}, {"n_probs", 0}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (asks(json_object_get(body, fields[i].name), fields[i].neutral))
            return lk_fault_set(fault, 400, "unsupported", fields[i].name,
                                "'%s' is not supported by this server", fields[i].name);
    const json_t *modality;
    size_t i;
    json_array_foreach(
        json_object_get(body, "modalities"), i,
        modality) if (!json_is_string(modality) ||
                      strcmp(json_string_value(modality), "text") !=
                          0) return lk_fault_set(fault, 400, "unsupported", "modalities",
                                                 "only the modality 'text' is supported");
    return true;
}

static bool read_model(const json_t *body, const struct lk_serve_opts *opts,
                       struct lk_fault *fault) {
    const char *model = opts->id;
    if (!lk_field_text(body, "model", &model, fault)) return false;
    if (strcmp(model, opts->id) == 0) return true;
    return lk_fault_set(fault, 404, "model_not_found", "model",
                        "there is no model '%.100s' here, but '%.100s'", model, opts->id);
}

static bool read_recipe(struct lk_ask *ask, const struct lk_serve_opts *opts,
                        struct lk_fault *fault) {
    const char *kv = NULL;
    char names[400] = "";
    if (!lk_field_text(ask->body, "kv", &kv, fault)) return false;
    if (!kv) return true;
    for (size_t i = 0; i < opts->n_recipe; i++) {
        const char *text = lk_recipe_text(opts->recipe[i]);
        if (strcmp(kv, text) == 0) {
            ask->recipe = i;
            return true;
        }
        size_t used = strlen(names);
        if (strlen(text) + 3 < sizeof names - used) {
            if (used) memcpy(names + used, ", ", 3), used += 2;
            memcpy(names + used, text, strlen(text) + 1);
        }
    }
    return lk_fault_set(fault, 400, "invalid_value", "kv",
                        "the recipe '%.60s' is not allowed here; there are: %s", kv, names);
}

static bool read_stop(struct lk_ask *ask, struct lk_fault *fault) {
    const json_t *stop = json_object_get(ask->body, "stop"), *item;
    size_t i;
    if (!stop || json_is_null(stop)) return true;
    if (json_is_string(stop)) {
        if (json_string_length(stop)) ask->stop[ask->n_stop++] = json_string_value(stop);
        return true;
    }
    if (!json_is_array(stop) || json_array_size(stop) > LK_MAX_STOP)
        return lk_fault_set(fault, 400, "invalid_type", "stop",
                            "'stop' must be a string or at most %d strings", LK_MAX_STOP);
    json_array_foreach(stop, i, item) {
        if (!json_is_string(item) || json_string_length(item) == 0)
            return lk_fault_set(fault, 400, "invalid_type", "stop",
                                "'stop' must be strings that are not empty");
        ask->stop[ask->n_stop++] = json_string_value(item);
    }
    return true;
}

/* How many tokens, under any of the names clients use. */
static bool read_most(struct lk_ask *ask, struct lk_fault *fault) {
    static const char *const names[] = {"max_completion_tokens", "max_tokens", "n_predict"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        int64_t most = 0;
        if (!lk_field_int(ask->body, names[i], 1, INT32_MAX, &most, fault)) return false;
        if (most == 0) continue;
        ask->n_most = (size_t)most;
        return true;
    }
    return true;
}

static bool read_stream(struct lk_ask *ask, struct lk_fault *fault) {
    const json_t *options = json_object_get(ask->body, "stream_options");
    if (!lk_field_bool(ask->body, "stream", &ask->stream, fault) ||
        !lk_field_bool(ask->body, "return_progress", &ask->progress, fault))
        return false;
    if (!options || json_is_null(options)) return true;
    if (!json_is_object(options))
        return lk_fault_set(fault, 400, "invalid_type", "stream_options",
                            "'stream_options' must be an object");
    if (!ask->stream)
        return lk_fault_set(fault, 400, "invalid_value", "stream_options",
                            "'stream_options' needs 'stream': true");
    return lk_field_bool(options, "include_usage", &ask->usage, fault);
}

/* llama.cpp's own field for a schema. */
static bool read_schema(struct lk_ask *ask, struct lk_fault *fault) {
    static const struct lk_schema_use use = {.field = "json_schema"};
    if (!lk_field_given(ask->body, use.field)) return true;
    if (ask->grammar)
        return lk_fault_set(
            fault, 400, "invalid_value", use.field,
            "'json_schema' and 'response_format' are two ways to ask for the same; give one");
    ask->sampling.grammar = ask->grammar =
        lk_schema_grammar(json_object_get(ask->body, use.field), &use, fault);
    ask->held_by = use.field;
    return ask->grammar != NULL;
}

static bool read_format(struct lk_ask *ask, struct lk_fault *fault) {
    static const struct lk_schema_use use = {.field = "response_format"};
    const json_t *format = json_object_get(ask->body, "response_format");
    const char *type = NULL;
    if (!format || json_is_null(format)) return true;
    if (!json_is_object(format))
        return lk_fault_set(fault, 400, "invalid_type", "response_format",
                            "'response_format' must be an object");
    if (!lk_field_text(format, "type", &type, fault)) return false;
    if (type && strcmp(type, "text") == 0) return true;
    if (type && strcmp(type, "json_object") == 0) { /* llama.cpp's server takes a schema here too */
        const json_t *schema = json_object_get(format, "schema");
        json_t *any = json_pack("{s:s}", "type", "object");
        ask->grammar =
            lk_schema_grammar(schema && !json_is_null(schema) ? schema : any, &use, fault);
        json_decref(any);
    } else if (type && strcmp(type, "json_schema") == 0) {
        const json_t *inner = json_object_get(format, "json_schema"),
                     *schema = json_object_get(inner ? inner : format, "schema");
        if (!json_is_object(schema))
            return lk_fault_set(fault, 400, "missing_field", "response_format",
                                "'response_format.json_schema.schema' must be an object");
        ask->grammar = lk_schema_grammar(schema, &use, fault);
    } else {
        return lk_fault_set(fault, 400, "invalid_value", "response_format",
                            "'response_format.type' must be text, json_object or json_schema");
    }
    ask->sampling.grammar = ask->grammar;
    ask->held_by = use.field;
    return ask->grammar != NULL;
}

bool lk_ask_common(struct lk_ask *ask, const struct lk_serve_opts *opts, const char *body,
                   size_t len, struct lk_fault *fault) {
    int64_t n = 1;
    *ask = (struct lk_ask){.n_top = -1, .reuse = true};
    ask->body = lk_body_parse(body, len, fault);
    if (!ask->body || !refuse_unsupported(ask->body, fault) ||
        !read_model(ask->body, opts, fault) || !read_recipe(ask, opts, fault) ||
        !read_stop(ask, fault) || !lk_ask_sampling(ask, fault) || !read_most(ask, fault) ||
        !read_stream(ask, fault) || !lk_field_bool(ask->body, "cache_prompt", &ask->reuse, fault) ||
        !lk_field_int(ask->body, "n", 1, LK_MAX_N, &n, fault) || !read_format(ask, fault) ||
        !read_schema(ask, fault))
        return false;
    ask->n = (size_t)n;
    return true;
}

/* What prompt and answer will hold: the larger of what reading takes for a while and what is there at
 * the end. The weights are there anyway. */
static bool plan(struct lk_prompt *p, const struct lk_ask *ask, const struct lk_serve_opts *opts,
                 struct lk_fault *fault) {
    lk_err err = {0};
    lk_plan reading, end;
    const lk_recipe *recipe = opts->recipe[ask->recipe];
    size_t room = (size_t)opts->n_ctx - p->n_tok;
    p->n_most = ask->n_most && ask->n_most < opts->n_predict ? ask->n_most : opts->n_predict;
    if (p->n_most > room) p->n_most = room;
    if (lk_plan_make(opts->model, recipe, p->n_tok, false, &reading, &err) ||
        lk_plan_make(opts->model, recipe, p->n_tok + p->n_most, false, &end, &err))
        return lk_fault_of(fault, &err, NULL);
    p->n_bytes = reading.peak_bytes - reading.weight_bytes;
    if (end.cache_bytes + end.scratch_bytes > p->n_bytes)
        p->n_bytes = end.cache_bytes + end.scratch_bytes;
    return true;
}

static bool prepare_prompt(struct lk_prompt *p, const struct lk_ask *ask,
                           const struct lk_serve_opts *opts, struct lk_fault *fault) {
    const char *field = ask->chat ? "messages" : "prompt";
    lk_err err = {0};
    if (p->text &&
        lk_tokenize(opts->model, p->text, strlen(p->text), true, &p->tok, &p->n_tok, &err))
        return lk_fault_of(fault, &err, field);
    if (p->n_tok == 0)
        return lk_fault_set(fault, 400, "invalid_value", field, "the prompt is empty");
    int32_t n_vocab = lk_model_get_info(opts->model).n_vocab;
    for (size_t i = 0; i < p->n_tok; i++)
        if (p->tok[i] < 0 || p->tok[i] >= n_vocab)
            return lk_fault_set(fault, 400, "invalid_value", field,
                                "token %zu is %d; the vocabulary has 0 to %d", i, p->tok[i],
                                n_vocab - 1);
    if (p->n_tok >= (size_t)opts->n_ctx)
        return lk_fault_set(
            fault, 400, "context_length_exceeded", field,
            "the prompt has %zu tokens, and the context of %d must hold the answer too", p->n_tok,
            opts->n_ctx);
    return plan(p, ask, opts, fault);
}

static bool format_chat(struct lk_ask *ask, const struct lk_serve_opts *opts,
                        struct lk_fault *fault) {
    lk_err err = {0};
    if (ask->tools && !lk_tools_known(opts->model))
        return lk_fault_set(fault, 400, "unsupported", "tools",
                            "the chat template of this model has no tools that this server knows");
    ask->prompt = calloc(1, sizeof *ask->prompt);
    if (!ask->prompt)
        return lk_fault_set(fault, 503, "out_of_memory", NULL, "no memory for the prompt");
    ask->n_prompt = 1;
    if (lk_chat_format(opts->model, ask->msg, ask->n_msg, true, &ask->prompt->text, &err))
        return lk_fault_of(fault, &err, "messages");
    return true;
}

static bool check_bias(const struct lk_ask *ask, const struct lk_serve_opts *opts,
                       struct lk_fault *fault) {
    int32_t n_vocab = lk_model_get_info(opts->model).n_vocab;
    for (size_t i = 0; i < ask->sampling.n_bias; i++)
        if (ask->bias[i].tok >= n_vocab)
            return lk_fault_set(fault, 400, "invalid_value", "logit_bias",
                                "'logit_bias' names token %d; the vocabulary has 0 to %d",
                                ask->bias[i].tok, n_vocab - 1);
    return true;
}

bool lk_ask_prepare(struct lk_ask *ask, const struct lk_serve_opts *opts, struct lk_fault *fault) {
    if (!check_bias(ask, opts, fault)) return false;
    if (ask->chat && !format_chat(ask, opts, fault)) return false;
    for (size_t i = 0; i < ask->n_prompt; i++) {
        struct lk_prompt *p = &ask->prompt[i];
        if (!prepare_prompt(p, ask, opts, fault)) return false;
        if (p->n_bytes > opts->max_bytes)
            return lk_fault_set(fault, 413, "cache_limit_exceeded", NULL,
                                "this request would need %.1f MiB, and the server allows %.1f in "
                                "total; ask for fewer tokens or a smaller recipe",
                                (double)p->n_bytes / (1 << 20),
                                (double)opts->max_bytes / (1 << 20));
    }
    return true;
}

void lk_ask_free(struct lk_ask *ask) {
    for (size_t i = 0; i < ask->n_msg; i++) free((char *)ask->msg[i].content);
    for (size_t i = 0; i < ask->n_prompt; i++) {
        free(ask->prompt[i].text);
        free(ask->prompt[i].tok);
    }
    free(ask->msg);
    free(ask->prompt);
    free(ask->grammar);
    free(ask->bias);
    json_decref(ask->body);
    *ask = (struct lk_ask){0};
}
