/* The fields that both completion endpoints share, and tokenization of the prompts. */
#include "serve/request.h"

#include "lowkey_draft.h"
#include "serve/json_field.h"
#include "serve/logprob.h"
#include "serve/prompt_marks.h"
#include "serve/request_sampling.h"
#include "serve/schema.h"

#include <stdlib.h>
#include <string.h>

/* ---- parsing ---- */

/* Is the field set to anything that changes the result? `neutral` is the number that does not. */
static bool has_effect(const json_t *v, double neutral) {
    if (json_is_number(v)) return json_number_value(v) != neutral;
    if (json_is_string(v)) return json_string_length(v) > 0;
    if (json_is_array(v) || json_is_object(v)) return json_array_size(v) + json_object_size(v) > 0;
    return json_is_true(v);
}

/* Reject fields of OpenAI's API and of llama-server that this server does not have, so that nothing
 * is ignored silently. Clients that send every field with a neutral value are served. */
static bool reject_unsupported(const json_t *body, struct lk_api_error *error) {
    static const struct {
        const char *name;
        double neutral;
    } fields[] = {{"functions", 0},
                  {"function_call", 0},
                  {"audio", 0},
                  {"prediction", 0},
                  {"web_search_options", 0},
                  {"typical_p", 1},
                  {"mirostat", 0},
                  {"tfs_z", 1},
                  {"top_n_sigma", -1},
                  {"dynatemp_range", 0},
                  {"dry_multiplier", 0},
                  {"xtc_probability", 0}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (has_effect(json_object_get(body, fields[i].name), fields[i].neutral))
            return lk_api_error_set(error, 400, "unsupported", fields[i].name,
                                    "'%s' is not supported by this server", fields[i].name);
    const json_t *modalities = json_object_get(body, "modalities");
    for (size_t i = 0; i < json_array_size(modalities); i++) {
        const char *modality = json_string_value(json_array_get(modalities, i));
        if (!modality || strcmp(modality, "text") != 0)
            return lk_api_error_set(error, 400, "unsupported", "modalities",
                                    "only the modality 'text' is supported");
    }
    return true;
}

bool lk_request_reject(const struct lk_request *request, const char *name, double neutral,
                       struct lk_api_error *error) {
    return !has_effect(json_object_get(request->body, name), neutral) ||
           lk_api_error_set(error, 400, "unsupported", name, "'%s' is not supported here", name);
}

bool lk_server_has_model(const struct lk_server_opts *o, const char *name) {
    bool found = strcmp(name, o->id) == 0;
    for (size_t i = 0; i < o->n_alias; i++) found |= strcmp(name, o->alias[i]) == 0;
    return found;
}

static bool parse_model(const json_t *body, const struct lk_server_opts *opts,
                        struct lk_api_error *error) {
    const char *model = opts->id;
    if (!lk_json_field_string(body, "model", &model, error)) return false;
    if (!opts->strict_model || lk_server_has_model(opts, model)) return true;
    return lk_api_error_set(error, 404, "model_not_found", "model",
                            "model '%.100s' not found; this server has '%.100s'", model, opts->id);
}

static bool parse_kv(struct lk_request *request, const struct lk_server_opts *opts,
                     struct lk_api_error *error) {
    const char *kv = NULL;
    char names[400] = "";
    if (!lk_json_field_string(request->body, "kv", &kv, error)) return false;
    if (!kv) return true;
    for (size_t i = 0; i < opts->n_recipe; i++) {
        const char *text = lk_recipe_text(opts->recipe[i]);
        if (strcmp(kv, text) == 0) {
            request->recipe = i;
            return true;
        }
        size_t used = strlen(names);
        if (strlen(text) + 3 < sizeof names - used) {
            if (used) memcpy(names + used, ", ", 3), used += 2;
            memcpy(names + used, text, strlen(text) + 1);
        }
    }
    return lk_api_error_set(error, 400, "invalid_value", "kv",
                            "the recipe '%.60s' is not allowed; allowed are: %s", kv, names);
}

static bool add_stop(struct lk_request *request, const json_t *text, struct lk_api_error *error) {
    size_t len = json_string_length(text);
    if (len > LK_MAX_STOP_BYTES)
        return lk_api_error_set(error, 400, "invalid_value", "stop",
                                "a stop string has %zu bytes; the maximum is %d", len,
                                LK_MAX_STOP_BYTES);
    request->stop[request->n_stop++] = json_string_value(text);
    return true;
}

static bool parse_stop(struct lk_request *request, struct lk_api_error *error) {
    const json_t *stop = json_object_get(request->body, "stop"), *item;
    size_t i;
    if (!stop || json_is_null(stop)) return true;
    if (json_is_string(stop))
        return json_string_length(stop) == 0 || add_stop(request, stop, error);
    if (!json_is_array(stop) || json_array_size(stop) > LK_MAX_STOP)
        return lk_api_error_set(error, 400, "invalid_type", "stop",
                                "'stop' must be a string or an array of at most %d strings",
                                LK_MAX_STOP);
    json_array_foreach(stop, i, item) {
        if (!json_is_string(item) || json_string_length(item) == 0)
            return lk_api_error_set(error, 400, "invalid_type", "stop",
                                    "'stop' must contain only non-empty strings");
        if (!add_stop(request, item, error)) return false;
    }
    return true;
}

/* The token limit, under any of the names that clients use. */
static bool parse_max_tokens(struct lk_request *request, struct lk_api_error *error) {
    static const char *const names[] = {"max_completion_tokens", "max_tokens", "n_predict"};
    enum { NONE = -1 }; /* no limit, as in llama-server */
    int64_t max = NONE;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && max == NONE; i++)
        if (!lk_json_field_int(request->body, names[i], NONE, INT32_MAX, &max, error)) return false;
    request->max_tokens = max == NONE ? LK_NO_LIMIT : (size_t)max;
    return true;
}

static bool parse_stream(struct lk_request *request, struct lk_api_error *error) {
    const json_t *options = json_object_get(request->body, "stream_options");
    if (!lk_json_field_bool(request->body, "stream", &request->stream, error) ||
        !lk_json_field_bool(request->body, "return_progress", &request->progress, error))
        return false;
    if (!options || json_is_null(options)) return true;
    if (!json_is_object(options))
        return lk_api_error_set(error, 400, "invalid_type", "stream_options",
                                "'stream_options' must be an object");
    if (!request->stream)
        return lk_api_error_set(error, 400, "invalid_value", "stream_options",
                                "'stream_options' requires 'stream': true");
    return lk_json_field_bool(options, "include_usage", &request->include_usage, error);
}

/* OpenAI's "response_format". */
static bool parse_response_format(struct lk_request *request, struct lk_api_error *error) {
    static const struct lk_schema_use use = {.field = "response_format"};
    const json_t *format = json_object_get(request->body, "response_format");
    const char *type = NULL;
    if (!format || json_is_null(format)) return true;
    if (!json_is_object(format))
        return lk_api_error_set(error, 400, "invalid_type", "response_format",
                                "'response_format' must be an object");
    if (!lk_json_field_string(format, "type", &type, error)) return false;
    if (type && strcmp(type, "text") == 0) return true;
    if (type && strcmp(type, "json_object") == 0) {
        /* Like llama-server, accept a schema here too. */
        const json_t *schema = json_object_get(format, "schema");
        json_t *any = json_pack("{s:s}", "type", "object");
        request->grammar =
            lk_schema_grammar(schema && !json_is_null(schema) ? schema : any, &use, error);
        json_decref(any);
    } else if (type && strcmp(type, "json_schema") == 0) {
        const json_t *inner = json_object_get(format, "json_schema"),
                     *schema = json_object_get(inner ? inner : format, "schema");
        if (!json_is_object(schema))
            return lk_api_error_set(error, 400, "missing_field", "response_format",
                                    "'response_format.json_schema.schema' must be an object");
        request->grammar = lk_schema_grammar(schema, &use, error);
    } else {
        return lk_api_error_set(error, 400, "invalid_value", "response_format",
                                "'response_format.type' must be text, json_object or json_schema");
    }
    request->sampling.grammar = request->grammar;
    request->grammar_field = use.field;
    return request->grammar != NULL;
}

/* llama-server's "json_schema". */
static bool parse_json_schema(struct lk_request *request, struct lk_api_error *error) {
    static const struct lk_schema_use use = {.field = "json_schema"};
    if (!lk_json_field_is_set(request->body, use.field)) return true;
    if (request->grammar)
        return lk_api_error_set(
            error, 400, "invalid_value", use.field,
            "'json_schema' and 'response_format' cannot be combined; give only one of them");
    request->sampling.grammar = request->grammar =
        lk_schema_grammar(json_object_get(request->body, use.field), &use, error);
    request->grammar_field = use.field;
    return request->grammar != NULL;
}

/* llama-server's "grammar", in GBNF. */
static bool parse_grammar(struct lk_request *request, struct lk_api_error *error) {
    const char *text = NULL;
    if (!lk_json_field_string(request->body, "grammar", &text, error)) return false;
    if (!text || !*text) return true;
    if (request->grammar)
        return lk_api_error_set(error, 400, "invalid_value", "grammar",
                                "'grammar' and '%s' cannot be combined; give only one of them",
                                request->grammar_field);
    request->sampling.grammar = request->grammar = strdup(text);
    request->grammar_field = "grammar";
    return request->grammar ||
           lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: grammar");
}

bool lk_request_parse_json(struct lk_request *request, const struct lk_server_opts *opts,
                           json_t *body, struct lk_api_error *error) {
    int64_t n = 1;
    *request = (struct lk_request){.body = body, .n_top_logprobs = -1, .reuse = true};
    if (!request->body || !reject_unsupported(request->body, error) ||
        !parse_model(request->body, opts, error) || !parse_kv(request, opts, error) ||
        !parse_stop(request, error) || !lk_request_parse_sampling(request, error) ||
        !parse_max_tokens(request, error) || !parse_stream(request, error) ||
        !lk_json_field_bool(request->body, "cache_prompt", &request->reuse, error) ||
        !lk_json_field_int(request->body, "n", 1, LK_MAX_N, &n, error) ||
        !parse_response_format(request, error) || !parse_json_schema(request, error) ||
        !parse_grammar(request, error))
        return false;
    request->n = (size_t)n;
    return true;
}

bool lk_request_parse_common(struct lk_request *request, const struct lk_server_opts *opts,
                             const char *body, size_t len, struct lk_api_error *error) {
    return lk_request_parse_json(request, opts, lk_json_parse_body(body, len, error), error);
}

/* ---- preparing ---- */

/* Log-probabilities of a response that is not streamed are kept until its end. Shorten the answer
 * to their limit, unless the client asked for more tokens itself. */
static bool limit_logprobs(struct lk_prompt *p, const struct lk_request *request,
                           struct lk_api_error *error) {
    if (request->stream || request->n_top_logprobs < 0) return true;
    size_t max = LK_MAX_LOGPROB_BYTES / lk_request_n_answer(request) /
                 lk_logprob_bytes(request->n_top_logprobs);
    if (p->max_tokens <= max) return true;
    if (request->max_tokens != LK_NO_LIMIT)
        return lk_api_error_set(error, 400, "invalid_value", "logprobs",
                                "log-probabilities of %zu answers of %zu tokens are too many for "
                                "one response; use 'stream', or at most %zu tokens",
                                lk_request_n_answer(request), p->max_tokens, max);
    p->max_tokens = max;
    return true;
}

/* Set the token limit of the answer and the memory for prompt and answer. The memory is the larger
 * of the peak during prefill and the total at the end. The weights are not counted. */
static bool plan_prompt(struct lk_prompt *p, const struct lk_request *request,
                        const struct lk_server_opts *opts, struct lk_api_error *error) {
    lk_err err = {0};
    lk_plan prefill, end;
    const lk_recipe *recipe = opts->recipe[request->recipe];
    size_t n_ctx = (size_t)opts->n_ctx, room = n_ctx - p->n_tok;
    if (opts->context_shift) room = request->max_tokens == LK_NO_LIMIT ? n_ctx : LK_NO_LIMIT;
    p->max_tokens = request->max_tokens < opts->n_predict ? request->max_tokens : opts->n_predict;
    if (p->max_tokens > room) p->max_tokens = room;
    if (!limit_logprobs(p, request, error)) return false;
    lk_session_opts prompt_only = {.n_ctx = (int32_t)p->n_tok, .chunked_prefill = request->score};
    bool fills = p->max_tokens > n_ctx - p->n_tok;
    lk_session_opts whole = {.n_ctx = (int32_t)(fills ? n_ctx : p->n_tok + p->max_tokens)};
    if (lk_plan_make(opts->model, recipe, &prompt_only, &prefill, &err) ||
        lk_plan_make(opts->model, recipe, &whole, &end, &err))
        return lk_api_error_from_request(error, &err, NULL);
    p->n_bytes = prefill.peak_bytes - prefill.weight_bytes;
    if (end.cache_bytes + end.scratch_bytes > p->n_bytes)
        p->n_bytes = end.cache_bytes + end.scratch_bytes;
    if (request->score) /* logits of a step, of the session and of its graph */
        p->n_bytes +=
            2ull * LK_SCORE_STEP * sizeof(float) * (uint64_t)lk_model_get_info(opts->model).n_vocab;
    if (opts->draft_lookup) /* logits of a pass with drafts, and the index of the text */
        p->n_bytes +=
            LK_SERVE_PASS * sizeof(float) * (uint64_t)lk_model_get_info(opts->model).n_vocab +
            lk_drafter_lookup_bytes(opts->n_ctx);
    if (p->n_bytes <= opts->max_bytes) return true;
    return lk_api_error_set(error, 413, "cache_limit_exceeded", NULL,
                            "this request would need %.1f MiB, but the server's cache limit is "
                            "%.1f MiB; ask for fewer tokens or a smaller recipe",
                            (double)p->n_bytes / (1 << 20), (double)opts->max_bytes / (1 << 20));
}

static bool prepare_prompt(struct lk_prompt *p, const struct lk_request *request,
                           const struct lk_server_opts *opts, struct lk_api_error *error) {
    const char *field = request->chat ? "messages" : request->embed ? "input" : "prompt";
    unsigned flags = LK_TOKENIZE_BEGIN;
    lk_err err = {0};
    if (request->chat || request->marked) flags |= LK_TOKENIZE_MARKED;
    if (request->parse_special && !request->marked) flags |= LK_TOKENIZE_CONTROL;
    if (p->text && lk_tokenize(opts->model, p->text, strlen(p->text), flags, (size_t)opts->n_ctx,
                               &p->tok, &p->n_tok, &err))
        return lk_api_error_from_request(error, &err, field);
    if (p->n_tok == 0)
        return lk_api_error_set(error, 400, "invalid_value", field, "the prompt is empty");
    int32_t n_vocab = lk_model_get_info(opts->model).n_vocab;
    for (size_t i = 0; i < p->n_tok; i++)
        if (p->tok[i] < 0 || p->tok[i] >= n_vocab)
            return lk_api_error_set(error, 400, "invalid_value", field,
                                    "token %zu is %d, but token ids must be between 0 and %d", i,
                                    p->tok[i], n_vocab - 1);
    if (p->n_tok + (request->max_tokens > 0) > (size_t)opts->n_ctx)
        return lk_api_error_set(error, 400, "context_length_exceeded", field,
                                "the prompt has %zu tokens, which leaves no room for an answer in "
                                "the context of %d",
                                p->n_tok, opts->n_ctx);
    return plan_prompt(p, request, opts, error);
}

bool lk_request_apply_template(struct lk_request *request, const struct lk_server_opts *opts,
                               struct lk_api_error *error) {
    lk_err err = {0};
    char *messages = json_dumps(request->messages, JSON_COMPACT),
         *tools = request->tools ? json_dumps(request->tools, JSON_COMPACT) : NULL,
         *variables = request->variables ? json_dumps(request->variables, JSON_COMPACT) : NULL;
    const lk_chat chat = {messages, tools, variables, request->reply, request->continue_last};
    bool good = messages && (tools || !request->tools) && (variables || !request->variables);
    request->prompt = calloc(1, sizeof *request->prompt);
    if (!request->prompt || !good)
        good = lk_api_error_set(error, 503, "out_of_memory", NULL, "out of memory: prompt");
    request->n_prompt = request->prompt ? 1 : 0;
    if (good && lk_chat_format_json(opts->model, &chat, &request->prompt->text, &err))
        good = lk_api_error_from_request(error, &err, "messages");
    free(messages);
    free(tools);
    free(variables);
    return good;
}

static bool check_bias(const struct lk_request *request, const struct lk_server_opts *opts,
                       struct lk_api_error *error) {
    int32_t n_vocab = lk_model_get_info(opts->model).n_vocab;
    for (size_t i = 0; i < request->sampling.n_bias; i++)
        if (request->bias[i].tok >= n_vocab)
            return lk_api_error_set(error, 400, "invalid_value", "logit_bias",
                                    "'logit_bias' names token %d, but token ids must be between 0 "
                                    "and %d",
                                    request->bias[i].tok, n_vocab - 1);
    return true;
}

size_t lk_request_n_answer(const struct lk_request *request) {
    return request->embed ? 1 : (request->chat ? 1 : request->n_prompt) * request->n;
}

/* Upper bound of the memory of a parsed JSON value, without its texts. */
static uint64_t values_bytes(const json_t *json) {
    enum { VALUE_BYTES = 128, MEMBER_BYTES = 96, CONTAINER_BYTES = 256 };
    uint64_t bytes = VALUE_BYTES;
    const char *key;
    json_t *value;
    size_t i;
    if (json_is_array(json) || json_is_object(json)) bytes += CONTAINER_BYTES;
    json_array_foreach(json, i, value) bytes += values_bytes(value);
    json_object_foreach((json_t *)json, key, value) bytes += MEMBER_BYTES + values_bytes(value);
    return bytes;
}

/* What formatting a conversation takes: its JSON text, the values parsed from it, and the work of
 * the template. */
static uint64_t chat_bytes(const struct lk_request *request) {
    const json_t *part[] = {request->messages, request->tools, request->variables};
    uint64_t n_json = 0, values = 0;
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        if (!part[i]) continue;
        n_json += json_dumpb(part[i], NULL, 0, JSON_COMPACT);
        values += values_bytes(part[i]);
    }
    return 2 * n_json + values + lk_chat_bytes(n_json);
}

uint64_t lk_request_bytes(const struct lk_request *request) {
    /* A text is copied by the template. How many tokens it may have is limited, so its tokenizer
     * needs no more than a few times its bytes. */
    enum { BYTES_PER_TEXT_BYTE = 4, TOKEN_COPIES = 2 };
    uint64_t text = 0, n_tok = 0;
    for (size_t i = 0; i < request->n_prompt; i++) {
        const struct lk_prompt *p = &request->prompt[i];
        text += p->text ? strlen(p->text) : 0;
        n_tok += p->n_tok;
    }
    return (request->chat ? chat_bytes(request) : 0) + text * BYTES_PER_TEXT_BYTE +
           n_tok * sizeof(int32_t) * TOKEN_COPIES;
}

uint64_t lk_request_answer_bytes(const struct lk_request *request) {
    enum { TEXT_BYTES_PER_TOKEN = 8 };
    size_t n_text = request->text_copies + !request->stream;
    uint64_t n_tok = 0, bytes_per_token = TEXT_BYTES_PER_TOKEN * n_text;
    /* A number takes up to 18 bytes as text, in a buffer that grows by half and in the reply. */
    enum { NUMBER_BYTES = 4 + 18 * 3, BASE64_BYTES = 4 + 6 * 3 };
    if (request->embed)
        return request->n_prompt * request->n_dim * (request->base64 ? BASE64_BYTES : NUMBER_BYTES);
    for (size_t i = 0; i < request->n_prompt; i++) n_tok += request->prompt[i].max_tokens;
    if (request->n_top_logprobs >= 0 && !request->stream)
        bytes_per_token += lk_logprob_bytes(request->n_top_logprobs);
    for (size_t i = 0; request->score && i < request->n_prompt && !request->stream; i++)
        n_tok += request->prompt[i].n_tok;
    return n_tok * request->n * bytes_per_token;
}

/* The queue must be able to hold all answers. Checked before anything is made for them. */
static bool check_n_answer(const struct lk_request *request, const struct lk_server_opts *opts,
                           struct lk_api_error *error) {
    size_t n = lk_request_n_answer(request);
    return n <= opts->n_queue ||
           lk_api_error_set(error, 400, "invalid_value", "n",
                            "the request asks for %zu answers, but the queue holds at most %zu", n,
                            opts->n_queue);
}

bool lk_request_prepare(struct lk_request *request, const struct lk_server_opts *opts,
                        struct lk_api_error *error) {
    if (request->max_tokens == 0 && !request->echo && !request->may_be_empty)
        return lk_api_error_set(error, 400, "invalid_value", "max_tokens",
                                "'max_tokens' is 0, expected at least 1, or -1 for no limit; 0 is "
                                "for prompts with 'echo'");
    if (!check_n_answer(request, opts, error) || !check_bias(request, opts, error)) return false;
    if (request->chat && (!lk_request_reject(request, "suffix", 0, error) ||
                          !lk_request_reject(request, "n_probs", 0, error)))
        return false;
    if (request->chat && !lk_request_apply_template(request, opts, error)) return false;
    for (size_t i = 0; i < request->n_prompt; i++)
        if (!prepare_prompt(&request->prompt[i], request, opts, error)) return false;
    if (request->chat) lk_prompt_marks_find(request->prompt, request->messages, opts->model);
    for (size_t i = 1; request->embed && i < request->n_prompt; i++) /* one job for all */
        if (request->prompt[i].n_bytes > request->prompt[0].n_bytes)
            request->prompt[0].n_bytes = request->prompt[i].n_bytes;
    return true;
}

void lk_request_free(struct lk_request *request) {
    for (size_t i = 0; i < request->n_prompt; i++) {
        free(request->prompt[i].text);
        free(request->prompt[i].tok);
        free(request->prompt[i].lp);
    }
    json_decref(request->messages);
    free(request->prompt);
    free(request->grammar);
    free(request->bias);
    free(request->embedding);
    json_decref(request->body);
    json_decref(request->original);
    *request = (struct lk_request){0};
}
